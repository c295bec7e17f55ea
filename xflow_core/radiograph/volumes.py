"""NIfTI, NRRD and MetaImage (MHA) files of one slice, through SimpleITK.

Their headers are read here first: the size is checked against the file before ITK allocates anything, compressed data
are inflated to a limit only, and a header that points to another file is refused.
"""

from __future__ import annotations

import math
import re
import struct
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xflow_core.domain.errors import RadiographError, RadiographRefused
from xflow_core.domain.spacing import volume_spacing

from .content import Content, HeaderEvidence, check_size, grey_of_colour
from .pictures import shown
from .quiet import quiet_native

NAMES = {"nifti": "NIfTI", "nrrd": "NRRD", "mha": "MetaImage"}
_SUFFIXES = {"nifti": ".nii", "nrrd": ".nrrd", "mha": ".mha"}
_MAX_HEADER_BYTES = 65_536
_MAX_INFLATED_BYTES = 2**28

_NIFTI_BYTES = {2: 1, 4: 2, 8: 4, 16: 4, 64: 8, 128: 3, 256: 1, 512: 2, 768: 4, 1024: 8, 1280: 8, 2304: 4}
_NIFTI_FLOATS = (16, 64)
_NRRD_BYTES = {
    **dict.fromkeys(("signed char", "int8", "int8_t", "uchar", "unsigned char", "uint8", "uint8_t"), 1),
    **dict.fromkeys(("short", "short int", "signed short", "signed short int", "int16", "int16_t"), 2),
    **dict.fromkeys(("ushort", "unsigned short", "unsigned short int", "uint16", "uint16_t"), 2),
    **dict.fromkeys(("int", "signed int", "int32", "int32_t", "uint", "unsigned int", "uint32", "uint32_t"), 4),
    **dict.fromkeys(("longlong", "long long", "int64", "int64_t", "ulonglong", "uint64", "uint64_t", "double"), 8),
    "float": 4,
}
_META_BYTES = {
    "MET_CHAR": 1, "MET_UCHAR": 1, "MET_SHORT": 2, "MET_USHORT": 2, "MET_INT": 4, "MET_UINT": 4, "MET_LONG_LONG": 8,
    "MET_ULONG_LONG": 8, "MET_FLOAT": 4, "MET_DOUBLE": 8,
}  # fmt: skip


_NO_NUMBERS = "holds pixels that are no numbers (NaN or infinite); export it again."


@dataclass(frozen=True)
class _Layout:
    """What a header says: the lengths of the axes in space, values a pixel, bytes a value, where the data start."""

    axes: tuple[int, ...]
    channels: int
    value_bytes: int
    start: int
    compressed: bool


class _Damaged(ValueError):
    """The header cannot be."""


def read_volume(data: bytes, source: str, name: str, accept: bool = False) -> Content:
    """The only slice in the bytes of a ``source`` ("nifti", "nrrd" or "mha") file.

    Rows and columns are as ITK gives them: ``[row, column]`` is ITK's ``[y, x]``, nothing is turned. Bright is taken as
    dense: these formats cannot say otherwise.

    Raises:
        RadiographRefused: several slices, colour, or a size that no radiograph has.
        RadiographError: damaged, pixels that are no numbers, or pixels kept in another file.
    """
    kind = NAMES[source]
    damaged = RadiographError(f"{name} is a damaged {kind} file; get it again from its source.")
    try:
        if data[:2] == b"\x1f\x8b":
            data = _inflate(data, name)
        layout = {"nifti": _nifti, "nrrd": _nrrd, "mha": _meta_image}[source](data, name)
        _check(layout, len(data), name)
        pixels, spacing = _through_itk(data, _SUFFIXES[source])
    except RadiographError:
        raise
    # Header fields raise what their parsing runs into, ITK raises RuntimeError.
    except Exception as problem:
        raise damaged from problem
    colour = pixels.ndim == 3
    if colour and pixels.shape[2] in (3, 4) and pixels.dtype in (np.uint8, np.uint16):
        pixels = np.rint(grey_of_colour(pixels[..., :3], np.iinfo(pixels.dtype).max, name, accept)).astype(pixels.dtype)
    if pixels.ndim != 2:
        raise RadiographRefused(f"{name} holds several values a pixel; a radiograph has one.")
    check_size(pixels.shape[0], pixels.shape[1], name)
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        raise RadiographError(f"{name} {_NO_NUMBERS}")
    with np.errstate(over="ignore"):
        values = pixels.astype(np.float32)
    if not np.isfinite(values).all():
        raise RadiographError(f"{name} holds values beyond any pixel's (up to {np.abs(pixels).max():.1e}).")
    spacing_mm, spacing_kind, warnings = volume_spacing(values.shape, spacing)
    return Content(
        source=source,
        values=values,
        display=shown(pixels),
        header=HeaderEvidence(colour=colour),
        spacing_mm=spacing_mm,
        spacing_kind=spacing_kind,
        warnings=tuple(warnings),
    )


def read_through_itk(data: bytes, suffix: str) -> np.ndarray:
    """The pixels of the bytes of a file that ITK knows by ``suffix``: ``[H, W]`` or ``[H, W, channels]``."""
    return _through_itk(data, suffix)[0]


def _through_itk(data: bytes, suffix: str) -> tuple[np.ndarray, tuple[float, float]]:
    """Pixels, and ``(row, column)`` spacing. ITK reads by path, so the bytes take one."""
    import SimpleITK as sitk

    with tempfile.TemporaryDirectory(prefix="xflow-") as folder:
        path = Path(folder) / f"image{suffix}"
        path.write_bytes(data)
        with quiet_native() as messages:
            image = sitk.ReadImage(str(path))
    # Some of ITK's formats only mention that data are missing, and leave the rest of the picture as it was in memory.
    if any("not read completely" in line or "Uncompress failed" in line for line in messages):
        raise ValueError(messages[0])
    pixels = sitk.GetArrayFromImage(image)
    column_mm, row_mm = image.GetSpacing()[:2]
    channels = image.GetNumberOfComponentsPerPixel()
    width, height = image.GetSize()[:2]
    return pixels.reshape((height, width) if channels == 1 else (height, width, channels)), (row_mm, column_mm)


def _check(layout: _Layout, file_bytes: int, name: str) -> None:
    """Refuse what is more than one slice, or more than the file can hold."""
    if len(layout.axes) < 2 or min(layout.axes) < 1 or layout.channels < 1:
        raise _Damaged("axes")
    columns, rows, *others = layout.axes
    if math.prod(others) != 1:
        raise RadiographRefused(f"{name} is a volume of several slices; XFlow reads single radiographs.")
    if layout.channels > 4:
        raise RadiographRefused(f"{name} holds {layout.channels} values a pixel; a radiograph has one.")
    check_size(rows, columns, name)
    wanted = rows * columns * layout.channels * layout.value_bytes
    if not layout.compressed and layout.start + wanted > file_bytes:
        raise RadiographError(f"{name} is truncated: it is shorter than its header says; get it again.")


def _inflate(data: bytes, name: str) -> bytes:
    """What a gzip file holds (in one member or several), to a limit."""
    content = bytearray()
    while data.startswith(b"\x1f\x8b"):
        inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
        content += inflater.decompress(data, _MAX_INFLATED_BYTES + 1 - len(content))
        if len(content) > _MAX_INFLATED_BYTES:
            raise RadiographRefused(f"{name} inflates to more than any radiograph holds; it was not read.")
        if not inflater.eof:
            raise _Damaged("truncated")
        data = inflater.unused_data
    return bytes(content)


def is_nifti(data: bytes) -> bool:
    """A NIfTI-1 or NIfTI-2 header in either byte order."""
    return data[:4] in (b"\x5c\x01\0\0", b"\0\0\x01\x5c", b"\x1c\x02\0\0", b"\0\0\x02\x1c")


def _nifti(data: bytes, name: str) -> _Layout:
    order = "<" if data[0] else ">"
    if data[:4] in (b"\x5c\x01\0\0", b"\0\0\x01\x5c"):
        magic = data[344:348]
        axes = struct.unpack_from(f"{order}8h", data, 40)
        (datatype,) = struct.unpack_from(f"{order}h", data, 70)
        (start,) = struct.unpack_from(f"{order}f", data, 108)
    else:
        magic = data[4:8]
        axes = struct.unpack_from(f"{order}8q", data, 16)
        (datatype,) = struct.unpack_from(f"{order}h", data, 12)
        (start,) = struct.unpack_from(f"{order}q", data, 168)
    if magic[:3] not in (b"n+1", b"n+2"):
        raise RadiographError(f"{name} is a NIfTI or Analyze header without its pixels; use a single .nii file.")
    if not 2 <= axes[0] <= 7 or not 352 <= start <= len(data):
        raise _Damaged("axes")
    lengths = axes[1 : axes[0] + 1]
    channels = lengths[4] if len(lengths) == 5 else 1  # by NIfTI, the fifth axis is the one of vectors
    if datatype in _NIFTI_FLOATS:
        # ITK's reader turns NaN into zero without a word.
        values = np.frombuffer(data, f"{order}f{_NIFTI_BYTES[datatype]}", math.prod(lengths), int(start))
        if not np.isfinite(values).all():
            raise RadiographError(f"{name} {_NO_NUMBERS}")
    return _Layout(lengths[:4] + lengths[5:], channels, _NIFTI_BYTES[datatype], int(start), compressed=False)


def _nrrd(data: bytes, name: str) -> _Layout:
    end = re.search(rb"\r?\n\r?\n", data[:_MAX_HEADER_BYTES])
    if end is None:
        raise _Damaged("no end")
    start = end.end()
    fields: dict[str, str] = {}
    for line in data[:start].decode("ascii").splitlines()[1:]:
        if not line.startswith("#") and ": " in line and ":=" not in line:
            key, value = line.split(": ", 1)
            fields[key.strip().lower()] = value.strip()
    if "data file" in fields or "datafile" in fields:
        raise RadiographError(f"{name} keeps its pixels in another file; use an NRRD with the pixels inside.")
    if any(int(fields.get(skip, 0)) for skip in ("line skip", "lineskip", "byte skip", "byteskip")):
        raise RadiographError(f"{name} skips over a part of its own data; export it again.")
    encoding = fields["encoding"].lower()
    if encoding not in ("raw", "gzip", "gz"):
        raise RadiographError(f"{name} is an NRRD in {encoding[:20]} encoding; XFlow reads raw and gzip.")
    lengths = tuple(int(length) for length in fields["sizes"].split())
    if len(lengths) != int(fields["dimension"]):
        raise _Damaged("sizes")
    first_kind = fields.get("kinds", "").split()[:1]
    in_space = not first_kind or first_kind[0].lower() in ("domain", "space")
    channels, axes = (1, lengths) if in_space else (lengths[0], lengths[1:])
    return _Layout(axes, channels, _NRRD_BYTES[fields["type"].lower()], start, compressed=encoding != "raw")


def _meta_image(data: bytes, name: str) -> _Layout:
    mark = data.find(b"ElementDataFile", 0, _MAX_HEADER_BYTES)
    start = data.index(b"\n", mark) + 1 if mark >= 0 else 0
    if not start:
        raise _Damaged("no end")
    fields: dict[str, str] = {}
    for line in data[:start].decode("ascii").splitlines():
        key, _, value = line.partition("=")
        fields[key.strip()] = value.strip()
    if fields["ElementDataFile"].upper() != "LOCAL":
        raise RadiographError(f"{name} keeps its pixels in another file; use an MHA with the pixels inside.")
    lengths = tuple(int(length) for length in fields["DimSize"].split())
    if len(lengths) != int(fields["NDims"]) or not 2 <= len(lengths) <= 4:
        raise _Damaged("sizes")
    channels = int(fields.get("ElementNumberOfChannels", 1))
    if int(fields.get("HeaderSize", 0)) > 0:
        raise RadiographError(f"{name} skips over a part of its own data; export it again.")
    if fields.get("BinaryData", "True").lower() != "true":
        raise RadiographError(f"{name} is a MetaImage written as text; XFlow reads binary ones.")
    compressed = fields.get("CompressedData", "False").lower() == "true"
    return _Layout(lengths, channels, _META_BYTES[fields["ElementType"]], start, compressed)
