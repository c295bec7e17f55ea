"""DICOM's pixel codecs, each called on a codestream whose own header has been checked first.

Which library decodes what (all of them permissively licensed):

========================================  =====================================================
uncompressed, deflated                    numpy
JPEG, 8 bits (.50, .51)                   Pillow (libjpeg-turbo)
JPEG, 12 bits (.51)                       python-gdcm
JPEG Lossless (.57, .70)                  python-gdcm
JPEG-LS (.80, .81)                        python-gdcm (CharLS)
RLE Lossless                              python-gdcm
JPEG 2000, HTJ2K (.90, .91, .201-.203)    pylibjpeg-openjpeg (OpenJPEG)
========================================  =====================================================
"""

from __future__ import annotations

import io
import re
import struct
from dataclasses import dataclass

import numpy as np

from xflow_core.domain.errors import RadiographError
from xflow_core.domain.quiet import quiet_python

from .quiet import quiet_native

RLE = "1.2.840.10008.1.2.5"
JPEG_DCT = frozenset({"1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.51"})
JPEG_LOSSLESS = frozenset({"1.2.840.10008.1.2.4.57", "1.2.840.10008.1.2.4.70"})
JPEG_LS = frozenset({"1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.81"})
JPEG_2000 = frozenset({"1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91"})
HTJ2K = frozenset({f"1.2.840.10008.1.2.4.{number}" for number in (201, 202, 203)})
LOSSY = JPEG_DCT | frozenset(f"1.2.840.10008.1.2.4.{number}" for number in (81, 91, 203))
"""Those that may be lossy."""
COMPRESSED = frozenset({RLE}) | JPEG_DCT | JPEG_LOSSLESS | JPEG_LS | JPEG_2000 | HTJ2K

_END_OF_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
"""In coded data 0xFF is followed by a stuffed 0, a restart marker or a fill byte."""

_JPEG_FRAMES = {0xC0: "dct", 0xC1: "dct", 0xC2: "dct", 0xC3: "lossless", 0xF7: "ls"}


@dataclass(frozen=True)
class Frame:
    """What a codestream says of itself."""

    rows: int
    columns: int
    samples: int
    precision: int
    process: str


def _jpeg_frame(stream: bytes) -> Frame | None:
    """The frame header of a JPEG or JPEG-LS codestream: the first SOF marker segment."""
    if stream[:2] != b"\xff\xd8":
        return None
    at = 2
    while at + 4 <= len(stream):
        if stream[at] != 0xFF:
            return None
        marker = stream[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        (length,) = struct.unpack_from(">H", stream, at + 2)
        if marker in _JPEG_FRAMES:
            if length < 8 or at + 10 > len(stream):
                return None
            precision, rows, columns, samples = struct.unpack_from(">BHHB", stream, at + 4)
            return Frame(rows, columns, samples, precision, _JPEG_FRAMES[marker])
        if marker == 0xDA or length < 2:
            return None
        at += 2 + length
    return None


def _bare_jpeg(stream: bytes, frame: Frame) -> bytes:
    """A sequential JPEG without its application data and comments, when every marker is in order.

    GDCM ends the process when its libjpeg warns of one thing and then fails on another. So all that could make it fail
    is looked for here, and what it might warn of without need (application data) is left out.

    Raises:
        ValueError, IndexError, struct.error: a marker or a table is not in order, or the stream ends too early.
    """
    bare = bytearray(stream[:2])
    tables: set[int] = set()
    at, frames, scanned = 2, 0, 0
    while scanned < frame.samples:
        if stream[at] != 0xFF:
            raise ValueError("no marker where one belongs")
        marker = stream[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        (length,) = struct.unpack_from(">H", stream, at + 2)
        content = stream[at + 4 : at + 2 + length]
        if length < 2 or len(content) != length - 2:
            raise ValueError("a marker segment that runs over the end")
        if marker in _JPEG_FRAMES:
            frames += 1
            if marker == 0xC2 or frames > 1 or len(content) != 6 + 3 * frame.samples:
                raise ValueError("not one sequential frame")
        elif marker == 0xC4:
            tables |= _huffman_tables(content)
        elif marker == 0xDA:
            count = content[0]
            if not frames or not 1 <= count <= frame.samples or len(content) != 4 + 2 * count:
                raise ValueError("a scan of other components")
            for selector in content[2 : 2 + 2 * count : 2]:
                needed = {selector >> 4} if frame.process == "lossless" else {selector >> 4, 0x10 | (selector & 15)}
                if not needed <= tables:
                    raise ValueError("a scan without its tables")
            end = _END_OF_SCAN.search(stream, at + 2 + length)
            if end is None:
                raise ValueError("a scan without end")
            bare += stream[at : end.start()]
            at, scanned = end.start(), scanned + count
            continue
        elif marker not in (0xDB, 0xDD) and marker & 0xF0 != 0xE0 and marker != 0xFE:
            raise ValueError("a marker that does not belong here")
        if marker & 0xF0 != 0xE0 and marker != 0xFE:
            bare += stream[at : at + 2 + length]
        at += 2 + length
    if stream[at : at + 2] != b"\xff\xd9":
        raise ValueError("more after the last scan")
    return bytes(bare + b"\xff\xd9")


def _huffman_tables(content: bytes) -> set[int]:
    """The numbers (class in the upper half) of the Huffman tables of a DHT segment, when they are codes."""
    found, at = set(), 0
    while at < len(content):
        number, counts = content[at], content[at + 1 : at + 17]
        room = sum(count << (15 - index) for index, count in enumerate(counts))
        if number & 0xEC or len(counts) != 16 or room > 1 << 16 or not 0 < sum(counts) <= 256:
            raise ValueError("no Huffman code")
        found.add(number)
        at += 17 + sum(counts)
    if at != len(content):
        raise ValueError("a Huffman table that runs over the end")
    return found


def _jpeg_2000_frame(stream: bytes) -> Frame | None:
    """The SIZ segment of a JPEG 2000 codestream, bare or within JP2 boxes, when all of its tiles are there.

    Its decoder leaves a missing tile black and says nothing.
    """
    start = stream.find(b"\xff\x4f\xff\x51")
    if start < 0 or len(stream) < start + 45:
        return None
    x1, y1, x0, y0, tile_width, tile_height, tile_x, tile_y = struct.unpack_from(">8I", stream, start + 8)
    (samples,) = struct.unpack_from(">H", stream, start + 40)
    components = stream[start + 42 : start + 42 + 3 * samples]
    if len(components) != 3 * samples or not samples or x1 <= x0 or y1 <= y0 or not tile_width or not tile_height:
        return None
    if any(components[3 * i : 3 * i + 3] != bytes((components[0], 1, 1)) for i in range(samples)):
        return None  # components of several precisions, or of reduced resolution
    tiles = -(-(x1 - tile_x) // tile_width) * -(-(y1 - tile_y) // tile_height)
    if not 1 <= tiles <= 65535 or _jpeg_2000_tiles(stream, start + 2) != set(range(tiles)):
        return None
    return Frame(y1 - y0, x1 - x0, samples, (components[0] & 0x7F) + 1, "2000")


def _jpeg_2000_tiles(stream: bytes, at: int) -> set[int]:
    """The tiles that have a tile-part which lies in the stream; ``at`` is the first marker after SOC."""
    tiles = set()
    while at + 12 <= len(stream):
        marker, length = struct.unpack_from(">HH", stream, at)
        if marker == 0xFF90:  # SOT
            tile, part_length = struct.unpack_from(">HI", stream, at + 4)
            if part_length and (part_length < 14 or at + part_length > len(stream)):
                break
            tiles.add(tile)
            if not part_length:  # the last one, up to the end
                break
            at += part_length
        elif tiles or length < 2:  # the end, or no marker segment
            break
        else:
            at += 2 + length
    return tiles


def _rle_frame(stream: bytes, rows: int, columns: int, samples: int, bits: int) -> Frame | None:
    """The header of a run-length coded frame (PS3.5 annex G), when its segments lie in the stream."""
    if len(stream) < 64:
        return None
    count, *offsets = struct.unpack_from("<16L", stream)
    if count != samples * bits // 8 or not 1 <= count <= 15:
        return None
    ends = [*offsets[1:count], len(stream)]
    if offsets[0] != 64 or any(start >= end for start, end in zip(offsets, ends, strict=False)):
        return None
    return Frame(rows, columns, samples, bits, "rle")


def decode(
    stream: bytes, syntax: str, rows: int, columns: int, samples: int, bits: int, name: str
) -> tuple[np.ndarray, int]:
    """One compressed frame as unsigned words, ``[rows, columns]`` or ``[rows, columns, samples]``, and their precision.

    Signed samples stay in two's complement of ``precision`` bits. ``rows``, ``columns``, ``samples`` and ``bits`` (Bits
    Allocated) are the header's: a codestream of another size is refused before its decoder sees it.

    Raises:
        RadiographError: the codestream is damaged, or is not what the header says.
    """
    damaged = RadiographError(f"{name} holds a damaged compressed image; get the file again from its source.")
    if syntax == RLE:
        frame = _rle_frame(stream, rows, columns, samples, bits)
    else:
        frame = _jpeg_2000_frame(stream) if syntax in JPEG_2000 | HTJ2K else _jpeg_frame(stream)
        # Both families end with one marker, then padding. Their decoders fill in what a truncated stream lacks.
        if b"\xff\xd9" not in stream[-64:]:
            raise damaged
    if frame is None:
        raise damaged
    # JPEG's cosine transform has 8 or 12 bits; GDCM writes 16, and crashes on some of those.
    if frame.precision not in ((8, 12) if frame.process == "dct" else range(8, 33 if syntax == RLE else 17)):
        raise RadiographError(f"{name} has a compressed image of {frame.precision} bits, which XFlow does not read.")
    if (frame.rows, frame.columns, frame.samples) != (rows, columns, samples):
        raise RadiographError(
            f"{name} holds a compressed image of {frame.rows} x {frame.columns} x {frame.samples}, and its header says "
            f"{rows} x {columns} x {samples}; get the file again from its source."
        )
    try:
        if frame.process == "2000":
            words = _decode_jpeg_2000(stream)
        elif frame.process == "dct" and frame.precision == 8:
            words = _decode_jpeg_8(stream)
        else:
            words = _decode_gdcm(stream, syntax, frame)
    except ImportError as problem:
        raise RadiographError(f"{name} needs a decoder that is not installed: {problem.name}.") from problem
    # The decoders raise what they like (OSError, ValueError, RuntimeError, SyntaxError, ..) on a damaged stream.
    except Exception as problem:
        raise damaged from problem
    wanted = (rows, columns) if samples == 1 else (rows, columns, samples)
    if words.shape != wanted:
        raise damaged
    return words & words.dtype.type(2**frame.precision - 1), frame.precision


def _decode_jpeg_8(stream: bytes) -> np.ndarray:
    from PIL import JpegImagePlugin

    with quiet_python():
        image = JpegImagePlugin.JpegImageFile(io.BytesIO(stream))
        if image.mode == "RGB" and "adobe_transform" not in image.info:
            image.draft("YCbCr", image.size)  # the components as coded, whichever they are
        return np.asarray(image)


def _decode_jpeg_2000(stream: bytes) -> np.ndarray:
    import openjpeg

    pixels = openjpeg.decode(io.BytesIO(stream))
    return pixels.view(f"u{pixels.dtype.itemsize}")


def _decode_gdcm(stream: bytes, syntax: str, frame: Frame) -> np.ndarray:
    import gdcm

    if frame.process in ("dct", "lossless"):
        stream = _bare_jpeg(stream, frame)
    fragment = gdcm.Fragment()
    fragment.SetByteStringValue(stream)
    fragments = gdcm.SequenceOfFragments.New()
    fragments.AddFragment(fragment)
    element = gdcm.DataElement(gdcm.Tag(0x7FE0, 0x0010))
    element.SetValue(fragments.__ref__())
    allocated = 8 if frame.precision <= 8 else 16 if frame.precision <= 16 else 32
    image = gdcm.Image()
    image.SetNumberOfDimensions(2)
    image.SetDimensions((frame.columns, frame.rows, 1))
    image.SetDataElement(element)
    names = gdcm.PhotometricInterpretation
    image.SetPhotometricInterpretation(names(names.MONOCHROME2 if frame.samples == 1 else names.RGB))
    image.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.GetTSType(syntax)))
    image.SetPixelFormat(gdcm.PixelFormat(frame.samples, allocated, frame.precision, frame.precision - 1, 0))
    with quiet_native() as messages:
        buffer = image.GetBuffer()
    # Its libjpeg only mentions that data are missing, and fills in the rest of the picture.
    if any("Corrupt JPEG data" in line or "Premature end" in line for line in messages):
        raise ValueError(messages[0])
    # The wrapper hands the bytes over as a str.
    words = np.frombuffer(buffer.encode("utf-8", "surrogateescape"), f"<u{allocated // 8}")
    return words.reshape((frame.rows, frame.columns, frame.samples)[: 2 if frame.samples == 1 else 3])
