"""Malformed and hostile files: each is read as a sane radiograph or ends in one typed, clear error.

More than a thousand files are made by seeded mutation of valid ones, and by hand where a mutation would not find the
trap. They are read in a child process whose memory is limited, one after the other, each with its time taken: a crash
of native code ends the child, and names the file. The counts are printed.
"""

from __future__ import annotations

import gzip
import json
import random
import struct
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom.data import get_testdata_file
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence
from radiograph.dresses import (
    DEFLATED,
    IMPLICIT,
    JPEG,
    RLE,
    compressed_by_gdcm,
    compressed_by_pydicom,
    dataset,
    itk,
    jpeg_baseline,
    pillow,
    with_codestream,
    written,
)

from xflow_core.domain.errors import RadiographError
from xflow_core.radiograph.reading import Radiograph, read_radiograph

MEMORY = 2 * 2**30
SECONDS = 10.0
MUTANTS = 60
"""Of each valid file; nine in ten or so of some formats are malformed, half of others."""

READER = """
import json, resource, struct, sys, time
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
import numpy as np
from xflow_core.domain.errors import RadiographError
from xflow_core.radiograph.reading import engine_grey, read_radiograph

def answer(data):
    try:
        read = read_radiograph(data, name="the file")
    except RadiographError as problem:
        return "refused", str(problem)
    sane = np.isfinite(read.values).all() and read.values.shape == read.display.shape == read.size
    grey = engine_grey(read)
    sane = sane and grey.min() >= 0 and grey.max() <= 1 and min(read.size) >= 64
    return ("read", "") if sane else ("insane", repr(read.record))

while (head := sys.stdin.buffer.read(8)):
    data = sys.stdin.buffer.read(struct.unpack("<Q", head)[0])
    start = time.process_time()
    try:
        outcome, text = answer(data)
    except BaseException as problem:
        outcome, text = "leaked", repr(problem)
    print(json.dumps([outcome, text, time.process_time() - start]), flush=True)
"""


class Reader:
    """A child process that reads the files it is given, started anew after a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, data: bytes) -> tuple[str, str, float]:
        """What came of it ("read", "refused", "insane", "leaked" or "crashed"), in which words, in what CPU time."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", READER.format(memory=MEMORY)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(struct.pack("<Q", len(data)) + data)
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            self._process = None
            return "crashed", f"the reading process ended with {process.wait()}", 0.0
        outcome, text, seconds = json.loads(line)
        return outcome, text, seconds

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()


@pytest.fixture(scope="module")
def reader():
    reader = Reader()
    yield reader
    reader.close()


@pytest.fixture(scope="module")
def small(picture: np.ndarray) -> np.ndarray:
    """A part of a real radiograph, 12 bits, small so that a byte of it matters: ``[96, 80]``."""
    return np.ascontiguousarray(picture[::5, ::5][:96, :80])


@pytest.fixture(scope="module")
def valid(small: np.ndarray) -> dict[str, bytes]:
    """Valid files of every kind."""
    eight = (small >> 4).astype(np.uint8)
    voi = Dataset()
    voi.add_new("LUTDescriptor", "US", [4096, 0, 12])
    voi.add_new("LUTData", "US", list(range(4096)))

    def made(**attributes) -> Dataset:
        return dataset(
            small, WindowCenter=[2000, 1000], WindowWidth=[3000, 500], ImagerPixelSpacing=[4, 4], **attributes
        )

    return {
        "dicom explicit": written(made(VOILUTSequence=Sequence([voi]))),
        "dicom implicit": written(made(), IMPLICIT),
        "dicom deflated": written(made(), DEFLATED),
        "dicom rle": compressed_by_pydicom(made(), RLE),
        "dicom jpeg": jpeg_baseline(eight),
        "dicom jpeg 12 bits": Path(str(get_testdata_file("JPGExtended.dcm", download=False))).read_bytes(),
        "dicom jpeg lossless": compressed_by_gdcm(made(), JPEG + "57"),
        "dicom jpeg lossless sv1": compressed_by_gdcm(made(), JPEG + "70"),
        "dicom jpeg-ls": compressed_by_gdcm(made(), JPEG + "80"),
        "dicom jpeg 2000": compressed_by_pydicom(made(), JPEG + "90"),
        "dicom htj2k": with_codestream(
            dataset(np.zeros((96, 128), np.uint16), BitsStored=16),
            JPEG + "203",
            (Path(__file__).parent / "htj2k" / "203_lossy.j2c").read_bytes(),
        ),
        "png": pillow(eight, "PNG"),
        "png 16 bits": pillow(small, "PNG"),
        "png 16-bit colour": itk(np.stack([small] * 3, axis=2), ".png"),
        "jpeg": pillow(eight, "JPEG"),
        "jpeg colour progressive": pillow(eight, "JPEG", "RGB", progressive=True),
        "tiff": pillow(small, "TIFF"),
        "tiff lzw": pillow(small, "TIFF", compression="tiff_lzw"),
        "tiff deflate": pillow(eight, "TIFF", compression="tiff_deflate"),
        "nifti": itk(small, ".nii"),
        "nifti gz": itk(small.astype(np.float32), ".nii.gz"),
        "nrrd": itk(small, ".nrrd"),
        "nrrd gzip": itk(small, ".nrrd", compress=True),
        "mha": itk(small, ".mha"),
        "mha compressed": itk(small, ".mha", compress=True),
    }


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The file truncated, with flipped bits, with other bytes in its header, overwritten, cut, or a part repeated."""
    changed, length = bytearray(data), len(data)
    kind = chance.randrange(7)
    at = chance.randrange(length)
    if kind == 0:
        return data[:at]
    if kind == 1:
        for _ in range(chance.choice((1, 2, 5, 20))):
            changed[chance.randrange(length)] ^= 1 << chance.randrange(8)
    elif kind == 2:
        for _ in range(chance.choice((1, 2, 4))):
            changed[chance.randrange(min(length, 1200))] = chance.randrange(256)
    elif kind == 3:
        count = chance.choice((1, 2, 4, 16, 64))
        changed[at : at + count] = bytes([chance.choice((0x00, 0x7F, 0xFF))]) * count
    elif kind == 4:
        del changed[at : at + chance.choice((1, 2, 7, 100))]
    elif kind == 5:
        start = chance.randrange(length)
        changed[at:at] = data[start : start + chance.randrange(1, 200)]
    else:
        for _ in range(10):
            changed[chance.randrange(length // 2, length)] = chance.randrange(256)
    return bytes(changed)


def check(name: str, outcome: str, text: str, seconds: float) -> None:
    """What must hold of every file."""
    assert outcome in ("read", "refused"), f"{name}: {outcome}: {text}"
    assert seconds < SECONDS, f"{name} took {seconds:.1f} s"
    if outcome == "refused":
        assert text.endswith((".", "these.")), f"{name}: {text}"
        assert "\n" not in text
        assert len(text) < 300


def test_mutants_are_read_or_refused(valid, reader):
    chance = random.Random(20261130)
    counts: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    slowest = 0.0
    for kind, data in valid.items():
        assert reader.read(data)[0] == "read", kind
        for number in range(MUTANTS):
            outcome, text, seconds = reader.read(mutated(data, chance))
            check(f"{kind} {number}", outcome, text, seconds)
            counts[outcome] += 1
            refused[kind] += outcome == "refused"
            slowest = max(slowest, seconds)
    print(
        f"\n{sum(counts.values())} mutants: {counts['refused']} ended in a RadiographError, {counts['read']} were read"
    )
    print(f"slowest {slowest:.2f} s; errors by kind: {dict(refused)}")
    assert counts["refused"] >= 500
    assert set(refused) == set(valid)


PIXEL_DATA = b"\xe0\x7f\x10\x00OW\x00\x00"

# --- files made to hurt ---------------------------------------------------------------------------------------------


def _png(rows: int, columns: int, depth: int = 8, colour: int = 0, data: bytes = b"") -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", columns, rows, depth, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def _nifti(small: np.ndarray, **fields: tuple[int, str, object]) -> bytes:
    data = bytearray(itk(small, ".nii"))
    for at, code, value in fields.values():
        struct.pack_into(code, data, at, *(value if isinstance(value, tuple) else (value,)))
    return bytes(data)


def _nrrd(
    kind: str = "uchar", sizes: str = "80 96", encoding: str = "raw", more: str = "", data: bytes = bytes(9000)
) -> bytes:
    lines = ["NRRD0004", f"type: {kind}", "dimension: 2", f"sizes: {sizes}", f"encoding: {encoding}", "endian: little"]
    return "\n".join([*lines, more or "# no more", "", ""]).encode() + data


def _mha(
    size: str = "80 96",
    kind: str = "MET_UCHAR",
    pixels: str = "LOCAL",
    compressed: bool = False,
    data: bytes = bytes(9000),
) -> bytes:
    lines = ["ObjectType = Image", "NDims = 2", f"DimSize = {size}", f"CompressedData = {compressed}"]
    return "\n".join([*lines, f"ElementType = {kind}", f"ElementDataFile = {pixels}", ""]).encode() + data


def _nested(depth: int) -> bytes:
    """A file with ``depth`` sequences in one another, all of undefined length."""
    opened = b"\x40\x00\x75\x02SQ\x00\x00\xff\xff\xff\xff" + b"\xfe\xff\x00\xe0\xff\xff\xff\xff"
    return opened * depth


def _dicom(small: np.ndarray, **attributes: object) -> bytes:
    return written(dataset(small, **attributes))


def _jpeg_dicom(small: np.ndarray) -> bytes:
    return jpeg_baseline((small >> 4).astype(np.uint8))


def _jpeg_2000_with(small: np.ndarray, at: int, value: int) -> bytes:
    """JPEG 2000 whose SIZ segment lies: ``at`` bytes after its marker stands ``value``."""
    data = bytearray(compressed_by_pydicom(dataset(small), JPEG + "90"))
    struct.pack_into(">I", data, data.index(b"\xff\x4f\xff\x51") + at, value)
    return bytes(data)


def _with(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    return data.replace(old, new, 1)


def _elements(count: int) -> bytes:
    return b"".join(struct.pack("<HH2sH", 0x0009, 0x1001, b"LO", 0) for _ in range(count))


HOSTILE: dict[str, Callable[[np.ndarray], bytes]] = {
    "empty": lambda small: b"",
    "text": lambda small: b"The lungs are clear.\n" * 50,
    "html": lambda small: b"<html><body>502 Bad Gateway</body></html>",
    "zeros": lambda small: bytes(100_000),
    "a preamble and no more": lambda small: bytes(128) + b"DICM",
    "png: 1 x 1": lambda small: pillow(small[:1, :1], "PNG"),
    "png: 2 000 000 000 a side": lambda small: _png(2_000_000_000, 2_000_000_000),
    "png: 9000 a side, a bomb": lambda small: _png(9000, 9000, data=bytes(9000 * 9001)),
    "png: 60000 x 60000": lambda small: _png(60_000, 60_000, data=bytes(10_000_000)),
    "png: 6000 a side in an empty stream": lambda small: _png(6000, 6000),
    "png: 6000 a side, 16-bit colour, empty": lambda small: _png(6000, 6000, 16, 2),
    "png: a bit depth that is none": lambda small: _png(100, 100, 7, data=bytes(10_100)),
    "png: no data": lambda small: pillow(small, "PNG")[:33],
    "png: renamed jpeg": lambda small: b"\x89PNG\r\n\x1a\n" + pillow((small >> 4).astype(np.uint8), "JPEG"),
    "jpeg: CMYK": lambda small: pillow((small >> 4).astype(np.uint8), "JPEG", "CMYK"),
    "jpeg: 65500 a side": lambda small: _with(
        pillow((small >> 4).astype(np.uint8), "JPEG"), struct.pack(">HH", 96, 80), struct.pack(">HH", 65500, 65500)
    ),
    "jpeg: the start only": lambda small: pillow((small >> 4).astype(np.uint8), "JPEG")[:200],
    "tiff: CMYK": lambda small: pillow((small >> 4).astype(np.uint8), "TIFF", "CMYK"),
    "tiff: 400000 columns": lambda small: _with(
        pillow(small, "TIFF"),
        b"\x00\x01\x04\x00\x01\x00\x00\x00\x50\x00\x00\x00",
        b"\x00\x01\x04\x00\x01\x00\x00\x00\x80\x1a\x06\x00",
    ),
    "tiff: a directory that follows itself": lambda small: b"II*\0\x08\0\0\0" + struct.pack("<H", 0) + b"\x08\0\0\0",
    "tiff: NaN": lambda small: pillow(np.full((80, 80), np.nan, np.float32), "TIFF"),
    "tiff: Lab": lambda small: pillow((small >> 4).astype(np.uint8), "TIFF", "RGB").replace(
        b"\x06\x01\x03\x00\x01\x00\x00\x00\x02\x00", b"\x06\x01\x03\x00\x01\x00\x00\x00\x08\x00"
    ),
    "nifti: NaN": lambda small: itk(np.full((80, 80), np.nan, np.float32), ".nii"),
    "nifti: one infinity": lambda small: itk(
        np.where(np.arange(small.size).reshape(small.shape) == 7, np.inf, small).astype(np.float64), ".nii.gz"
    ),
    "nifti: beyond single precision": lambda small: itk(small.astype(np.float64) * 1e300, ".nii"),
    "nifti: 30000 a side": lambda small: _nifti(small, axes=(42, "<2h", (30_000, 30_000))),
    "nifti: 6000 a side": lambda small: _nifti(small, axes=(42, "<2h", (6000, 6000))),
    "nifti: negative sides": lambda small: _nifti(small, axes=(42, "<2h", (-80, -96))),
    "nifti: no axes": lambda small: _nifti(small, axes=(40, "<h", 0)),
    "nifti: nine axes": lambda small: _nifti(small, axes=(40, "<h", 9)),
    "nifti: no such type": lambda small: _nifti(small, kind=(70, "<h", 4711)),
    "nifti: pixels before the file": lambda small: _nifti(small, start=(108, "<f", -1e9)),
    "nifti: pixels nowhere": lambda small: _nifti(small, start=(108, "<f", float("nan"))),
    "nifti: pixels behind the file": lambda small: _nifti(small, start=(108, "<f", 1e9)),
    "nifti: a header of a pair": lambda small: _with(itk(small, ".nii"), b"n+1\0", b"ni1\0"),
    "gzip: a bomb of 4 GB in many members": lambda small: (
        gzip.compress(itk(small, ".nii")) + gzip.compress(bytes(2**25), 1) * 128
    ),
    "gzip: a bomb of 4 GB in one member": lambda small: gzip.compress(b"")[:10] + _deflated_zeros(4096),
    "gzip: of text": lambda small: gzip.compress(b"hello " * 1000),
    "gzip: cut": lambda small: itk(small, ".nii.gz")[:-200],
    "gzip: within gzip": lambda small: gzip.compress(itk(small, ".nii.gz")),
    "nrrd: another file's pixels": lambda small: _nrrd(more="data file: /etc/passwd"),
    "nrrd: 60000 a side": lambda small: _nrrd("double", "60000 60000", "gzip"),
    "nrrd: 6000 a side, gzip of nothing": lambda small: _nrrd("double", "6000 6000", "gzip", data=gzip.compress(b"")),
    "nrrd: negative sizes": lambda small: _nrrd(sizes="-80 -96"),
    "nrrd: sizes in words": lambda small: _nrrd(sizes="many few"),
    "nrrd: text encoding": lambda small: _nrrd(encoding="text", data=b"1 " * 7680),
    "nrrd: a skip": lambda small: _nrrd(more="byte skip: -1"),
    "nrrd: a header without end": lambda small: b"NRRD0004\n" + b"# nothing\n" * 100_000,
    "nrrd: NaN": lambda small: itk(np.full((80, 80), np.nan, np.float32), ".nrrd"),
    "mha: another file's pixels": lambda small: _mha(pixels="/etc/passwd"),
    "mha: a list of files": lambda small: _mha(pixels="LIST\n/etc/passwd"),
    "mha: 70000 a side": lambda small: _mha("70000 70000", "MET_DOUBLE", compressed=True, data=zlib.compress(b"no")),
    "mha: 6000 a side, no data": lambda small: _mha("6000 6000", compressed=True, data=zlib.compress(b"no")),
    "mha: a size of zero": lambda small: _mha("0 96"),
    "mha: infinite": lambda small: itk(np.full((80, 80), np.inf, np.float64), ".mha"),
    "dicom: 65535 a side": lambda small: _dicom(small, Rows=65535, Columns=65535),
    "dicom: 6000 a side without the pixels": lambda small: _dicom(small, Rows=6000, Columns=6000),
    "dicom: no rows": lambda small: _dicom(small, Rows=0),
    "dicom: 2000000000 frames": lambda small: _dicom(small, NumberOfFrames="2000000000"),
    "dicom: two samples a pixel": lambda small: _dicom(small, SamplesPerPixel=2),
    "dicom: 64 bits": lambda small: _dicom(small, BitsAllocated=64, BitsStored=64, HighBit=63),
    "dicom: no bits": lambda small: _dicom(small, BitsAllocated=0, BitsStored=0, HighBit=0),
    "dicom: more bits stored than allocated": lambda small: _dicom(small, BitsStored=40, HighBit=39),
    "dicom: several rows": lambda small: _dicom(small, Rows=[96, 96]),
    "dicom: pixels of a length beyond the file": lambda small: _with(
        _dicom(small)[:-100],
        PIXEL_DATA + struct.pack("<L", 2 * 96 * 80),
        PIXEL_DATA + struct.pack("<L", 2**31),
    ),
    "dicom: pixels of undefined length, never ended": lambda small: _with(
        _dicom(small), PIXEL_DATA + struct.pack("<L", 2 * 96 * 80), PIXEL_DATA + struct.pack("<L", 2**32 - 1)
    ),
    "dicom: sequences 200 deep": lambda small: _dicom(small)[:400] + _nested(200),
    "dicom: sequences 100000 deep": lambda small: _dicom(small)[:400] + _nested(100_000),
    "dicom: a million empty elements": lambda small: written(dataset(small))[:132] + _elements(1_000_000),
    "dicom: a sequence of a million items": lambda small: (
        _dicom(small)[:400]
        + b"\x40\x00\x75\x02SQ\x00\x00\xff\xff\xff\xff"
        + b"\xfe\xff\x00\xe0\x00\x00\x00\x00" * 1_000_000
    ),
    "dicom: windows without end": lambda small: written(
        dataset(small, WindowCenter="1\\" * 10 + "1"), IMPLICIT
    ).replace(
        b"\x28\x00\x50\x10\x16\x00\x00\x00" + b"1\\" * 10 + b"1 ",
        b"\x28\x00\x50\x10" + struct.pack("<L", 4_000_000) + b"1\\" * 2_000_000,
    ),
    "dicom: a deflated dataset that is none": lambda small: _deflated_header(small) + bytes(1000),
    "dicom: a deflated dataset of 4 GB": lambda small: _deflated_header(small) + _deflated_zeros(4096),
    "dicom: an encapsulated image of a million fragments": lambda small: (
        with_codestream(dataset(small), JPEG + "90", b"\xff\x4f")[:-8]
        + b"\xfe\xff\x00\xe0\x00\x00\x00\x00" * 1_000_000
        + b"\xfe\xff\xdd\xe0\x00\x00\x00\x00"
    ),
    "dicom: no fragment": lambda small: with_codestream(dataset(small), JPEG + "90", b"no").replace(
        b"\xfe\xff\x00\xe0\x02\x00\x00\x00no", b""
    ),
    "dicom: a jpeg of another size": lambda small: _with(
        _jpeg_dicom(small), b"\x28\x00\x10\x00US\x02\x00\x60\x00", b"\x28\x00\x10\x00US\x02\x00\x61\x00"
    ),
    "dicom: a jpeg of 65500 a side": lambda small: _with(
        _jpeg_dicom(small), struct.pack(">HH", 96, 80), struct.pack(">HH", 65500, 65500)
    ),
    "dicom: jpeg 2000 named jpeg": lambda small: _with(
        compressed_by_pydicom(dataset(small), JPEG + "90"), b"1.2.840.10008.1.2.4.90", b"1.2.840.10008.1.2.4.70"
    ),
    "dicom: jpeg 2000 of 4000000000 columns": lambda small: _jpeg_2000_with(small, 8, 4_000_000_000),
    "dicom: jpeg 2000 in tiles of one pixel": lambda small: _jpeg_2000_with(small, 24, 1),
    "dicom: jpeg 2000 in no tiles": lambda small: _jpeg_2000_with(small, 24, 0),
    "dicom: a lossless jpeg whose table's marker is damaged": lambda small: _with(
        compressed_by_gdcm(dataset(small), JPEG + "57"), b"\xff\xc4", b"\xf7\xc4"
    ),
    "dicom: a lossless jpeg with a second frame in its data": lambda small: _with(
        compressed_by_gdcm(dataset(small), JPEG + "70"), b"\xff\xd9", b"\xff\xc3\x00\x0b\xff\xd9"
    ),
    "dicom: a jpeg of 16 bits": lambda small: compressed_by_gdcm(dataset(small), JPEG + "51"),
    "dicom: an empty codestream": lambda small: with_codestream(dataset(small), JPEG + "70", b"\xff\xd8\xff\xd9"),
    "dicom: rle of no segments": lambda small: with_codestream(dataset(small), RLE, bytes(64)),
    "dicom: rle of segments elsewhere": lambda small: with_codestream(
        dataset(small), RLE, struct.pack("<16L", 2, 2**31, 2**32 - 1, *[0] * 13) + bytes(100)
    ),
    "dicom: float pixels": lambda small: _float_dicom(small),
    "dicom: an empty modality lut": lambda small: _dicom(small, ModalityLUTSequence=Sequence([Dataset()])),
    "dicom: a palette that is not there": lambda small: _dicom(small, PhotometricInterpretation="PALETTE COLOR"),
}


def _deflated_header(small: np.ndarray) -> bytes:
    """The file up to the deflated dataset."""
    data = written(dataset(small), DEFLATED)
    return data[: data.index(DEFLATED.encode()) + len(DEFLATED)]


def _deflated_zeros(megabytes: int) -> bytes:
    """A deflate stream of zeros without end; after a full flush a block can be repeated as it is."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = deflater.compress(bytes(2**20)) + deflater.flush(zlib.Z_FULL_FLUSH)
    return block * megabytes


def _float_dicom(small: np.ndarray) -> bytes:
    made = dataset(small)
    del made.PixelData
    made.FloatPixelData = small.astype("<f4").tobytes()
    return written(made)


@pytest.mark.parametrize("name", HOSTILE)
def test_files_made_to_hurt_are_refused(name, small, reader):
    outcome, text, seconds = reader.read(HOSTILE[name](small))
    check(name, outcome, text, seconds)
    assert outcome == "refused", name
    print(f"\n{name}: {text} ({seconds:.2f} s)")


def test_the_largest_radiograph_stays_within_the_memory(reader):
    chance = np.random.default_rng(0)
    data = written(dataset(np.tile(chance.integers(0, 4096, (6000, 500), dtype=np.uint16), (1, 12))))
    outcome, text, seconds = reader.read(data)
    check("6000 x 6000", outcome, text, seconds)
    assert outcome == "read"


# --- anything at all ------------------------------------------------------------------------------------------------

STARTS = [
    b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"\x1f\x8b\x08\0", b"\x5c\x01\0\0",
    b"NRRD0004\n", b"ObjectType = Image\n", bytes(128) + b"DICM", b"\x08\x00\x16\x00UI",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(start=st.sampled_from(STARTS), rest=st.binary(max_size=600))
def test_any_bytes_at_all_end_in_a_radiograph_error(start, rest):
    with pytest.raises(RadiographError) as caught:
        read_radiograph(start + rest)
    assert str(caught.value).endswith(".")


_words = st.one_of(st.none(), st.integers(0, 65535))


@settings(max_examples=200, deadline=None)
@given(
    rows=st.sampled_from([0, 1, 64, 96, 97, 5000, 65535]),
    columns=st.sampled_from([0, 80, 81, 160, 9000]),
    allocated=st.sampled_from([0, 1, 8, 12, 16, 32, 64]),
    stored=_words,
    high_bit=_words,
    samples=st.sampled_from([None, 0, 1, 3, 4]),
    photometric=st.sampled_from([None, "", "MONOCHROME1", "MONOCHROME2", "RGB", "YBR_FULL_422", "PALETTE COLOR", "X"]),
    padding=_words,
    slope=st.sampled_from([None, "0", "1e300", "-1", "nan", "2.5"]),
)
def test_any_lie_in_the_header_is_read_or_refused(
    rows, columns, allocated, stored, high_bit, samples, photometric, padding, slope
):
    picture = np.arange(96 * 80, dtype=np.uint16).reshape(96, 80)
    made = dataset(picture, BitsStored=stored, HighBit=high_bit, PixelPaddingValue=padding)
    for keyword, value in (
        ("Rows", rows), ("Columns", columns), ("BitsAllocated", allocated), ("SamplesPerPixel", samples),
        ("PhotometricInterpretation", photometric),
    ):  # fmt: skip
        setattr(made, keyword, value)
    data = written(made)
    if slope is not None:
        element = (
            b"\x28\x00\x53\x10DS"
            + struct.pack("<H", len(slope) + len(slope) % 2)
            + slope.encode().ljust(len(slope) + len(slope) % 2)
        )
        at = data.index(b"\xe0\x7f\x10\x00")
        data = data[:at] + element + data[at:]
    try:
        read = read_radiograph(data)
    except RadiographError:
        return
    assert isinstance(read, Radiograph)
    assert read.size == read.values.shape == (rows, columns)
    assert np.isfinite(read.values).all()
