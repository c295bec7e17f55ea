"""DICOM files: one grey image, and the evidence of its header.

Nothing is asked of the header beyond the attributes in ``_WANTED``: names, dates and free text are never parsed.
"""

from __future__ import annotations

import io
import math
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xflow_core.domain.errors import RadiographError, RadiographRefused
from xflow_core.domain.quiet import quiet_python
from xflow_core.domain.spacing import dicom_spacing

from . import codecs
from .content import COLOUR_TOLERANCE, COLOURED_SHARE, Content, HeaderEvidence, Window, check_size, grey_of_colour
from .display import FUNCTIONS, LINEAR, LookupTable, apply_window, mirror_window, stretch, to_bytes, window_is_usable

_IMPLICIT, _EXPLICIT = "1.2.840.10008.1.2", "1.2.840.10008.1.2.1"
_DEFLATED, _BIG_ENDIAN = "1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.2"
_UNCOMPRESSED = frozenset({_IMPLICIT, _EXPLICIT, _DEFLATED, _BIG_ENDIAN})

_PALETTES = ("RedPaletteColorLookupTable", "GreenPaletteColorLookupTable", "BluePaletteColorLookupTable")
_TABLES = ("ModalityLUTSequence", "VOILUTSequence", *(f"{palette}Data" for palette in _PALETTES))
_PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
_WANTED = (
    "SOPClassUID", "SOPInstanceUID", "Modality", "PresentationIntentType", "BodyPartExamined", "AnatomicRegionSequence",
    "ViewPosition", "ViewCodeSequence", "PatientOrientation", "ImagerPixelSpacing", "NominalScannedPixelSpacing",
    "PixelSpacing", "PixelSpacingCalibrationType", "SamplesPerPixel", "PhotometricInterpretation",
    "PlanarConfiguration", "NumberOfFrames", "Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit",
    "PixelRepresentation", "PixelPaddingValue", "PixelPaddingRangeLimit", "PixelIntensityRelationshipSign",
    "RescaleIntercept", "RescaleSlope", "VOILUTFunction", "WindowCenter", "WindowWidth", "WindowCenterWidthExplanation",
    "PresentationLUTShape", *(f"{palette}Descriptor" for palette in _PALETTES), *_TABLES, *_PIXELS,
)  # fmt: skip

_UID = r"[0-9.]{1,64}"

MAX_READS = 200_000
"""Reads of a header before it is given up: thousands are usual, a file of empty elements would take hours."""
MAX_VALUE_BYTES = 16_384
MAX_TABLE_BYTES = 2**21
MAX_FRAGMENTS = 65_536
MAX_INFLATED_BYTES = 2**28


def looks_like_dicom(data: bytes) -> bool:
    """The DICM prefix; or, for files without the preamble, an element of group 2 or 8 at the start."""
    return data[128:132] == b"DICM" or data[:2] in (b"\x02\x00", b"\x08\x00") or data[:3] == b"\x00\x08\x00"


def read_dicom(data: bytes, name: str, accept: bool = False) -> Content:
    """The image in the bytes of a DICOM file; ``name`` is what messages call it.

    Raises:
        RadiographRefused: several frames, colour, or a size that no radiograph has.
        RadiographError: not a DICOM image, damaged, or coded in a way that XFlow does not read.
    """
    header = _Header(_parse(data, name), name)
    syntax = header.syntax
    if not re.fullmatch(_UID, syntax):
        raise RadiographError(f"{name} is a damaged DICOM file: its transfer syntax is none; get it again.")
    if syntax not in _UNCOMPRESSED | codecs.COMPRESSED:
        raise RadiographError(
            f"{name} is coded in the transfer syntax {syntax}, which XFlow does not read; convert it to Explicit VR "
            "Little Endian first."
        )
    pixels = _Pixels.of(header, accept)
    words, precision = _decode(header, pixels)
    if pixels.samples == 3:
        samples = _grey_of_channels(words, 2 ** min(precision, pixels.stored) - 1, name, accept)
    elif pixels.photometric == "PALETTE COLOR":
        samples = grey_of_colour(_through_palette(header, words), 255, name, accept).astype(np.uint16)
    else:
        samples = pixels.samples_of(words, precision, lossy=syntax in codecs.LOSSY)
    return _present(header, pixels, samples)


# --- the header ---------------------------------------------------------------------------------------------------


class _TooManyReads(Exception):
    """No header has so many elements."""


class _CountedReads(io.BytesIO):
    """Bytes that a parser may read so many times, and no more."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        if self.reads > MAX_READS:
            raise _TooManyReads
        return super().read(size)


def _parse(data: bytes, name: str) -> Any:
    """The wanted elements as a pydicom dataset, nothing converted yet."""
    import pydicom

    damaged = RadiographError(f"{name} is a damaged DICOM file; get it again from its source.")
    stream = _inflate(data, name)
    try:
        with quiet_python():
            dataset = pydicom.dcmread(_CountedReads(stream), force=True, specific_tags=list(_WANTED))
            for keyword in _WANTED:
                # A value is converted at its first use; one that is absurdly long is not even looked at.
                element = dataset.get_item(keyword)
                limit = MAX_TABLE_BYTES if keyword in _TABLES or keyword.endswith("Sequence") else MAX_VALUE_BYTES
                raw = getattr(element, "value", None)
                if keyword not in _PIXELS and isinstance(raw, bytes) and len(raw) > limit:
                    raise damaged
    except RadiographError:
        raise
    # The parser raises whatever its own code runs into (EOFError, struct.error, RecursionError, ..).
    except Exception as problem:
        raise damaged from problem
    if any(keyword not in dataset for keyword in ("SOPClassUID", "Rows", "Columns")):
        raise RadiographError(f"{name} is not a DICOM image: its header names no image class or no size.")
    return dataset


def _inflate(data: bytes, name: str) -> bytes:
    """The file with a deflated dataset inflated, to a limit: pydicom would inflate without one."""
    if data[128:132] != b"DICM":
        return data
    at, syntax = 132, b""
    while at + 8 <= len(data) and data[at : at + 2] == b"\x02\x00":
        long = data[at + 4 : at + 6] in (b"OB", b"OW", b"UN", b"SQ", b"UT")
        start = at + (12 if long else 8)
        length = int.from_bytes(data[at + 8 : at + 12] if long else data[at + 6 : at + 8], "little")
        if data[at + 2 : at + 4] == b"\x10\x00":
            syntax = data[start : start + length].rstrip(b"\0 ")
        at = start + length
    if syntax != _DEFLATED.encode():
        return data
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        dataset = inflater.decompress(data[at:], MAX_INFLATED_BYTES)
    except zlib.error as problem:
        raise RadiographError(f"{name} is a damaged deflated DICOM file; get it again from its source.") from problem
    if inflater.unconsumed_tail:
        raise RadiographRefused(f"{name} inflates to more than any radiograph holds; it was not read.")
    explicit = _EXPLICIT.encode() + b"\0"
    return bytes(128) + b"DICM\x02\x00\x10\x00UI" + struct.pack("<H", len(explicit)) + explicit + dataset


class _Header:
    """Typed access to a dataset whose values may be missing, of another type or damaged."""

    def __init__(self, dataset: Any, name: str) -> None:
        self._dataset = dataset
        self.name = name
        self.warnings: list[str] = []
        meta = getattr(dataset, "file_meta", None)
        implicit, little = dataset.original_encoding
        self.little_endian = little is not False
        stated = None if meta is None else meta.get("TransferSyntaxUID")
        self.syntax = str(stated) if stated else (_IMPLICIT if implicit else _EXPLICIT if little else _BIG_ENDIAN)

    def value(self, keyword: str, dataset: Any = None) -> Any:
        """The element's value, None when it is missing, empty or cannot be read."""
        dataset = self._dataset if dataset is None else dataset
        try:
            with quiet_python():
                value = dataset.get(keyword)
        except Exception:  # noqa: BLE001 - a damaged value raises whatever its conversion runs into
            self.warnings.append(f"{keyword} in the header cannot be read and was ignored.")
            return None
        return None if value is None or (hasattr(value, "__len__") and len(value) == 0) else value

    def is_words(self, keyword: str) -> bool:
        """Whether the element is coded as 16-bit words (OW), which a big endian file turns whole."""
        return bool(self._dataset[keyword].VR == "OW")

    def numbers(self, keyword: str, dataset: Any = None) -> list[float]:
        """All values as finite floats; empty when there is none or one is no number."""
        value = self.value(keyword, dataset)
        if isinstance(value, bytes):  # an ambiguous VR (US or SS) that pydicom left alone
            value = np.frombuffer(value[: len(value) // 2 * 2], "<u2" if self.little_endian else ">u2").tolist()
        values = [] if value is None else [value] if isinstance(value, (int, float, str)) else value
        try:
            found = [float(item) for item in values]
        except (TypeError, ValueError, OverflowError):
            return []
        return found if all(math.isfinite(item) for item in found) else []

    def whole(self, keyword: str, default: int | None = None) -> int:
        """One whole number.

        Raises:
            RadiographError: it is missing and there is no default, or it is none.
        """
        values = self.numbers(keyword)
        if len(values) == 1 and values[0] == int(values[0]):
            return int(values[0])
        if default is None or values:
            raise RadiographError(f"{self.name} is a damaged DICOM file: {keyword} in its header is no whole number.")
        return default

    def word(self, keyword: str, dataset: Any = None) -> str | None:
        """A coded word in capitals; None when it is missing or is anything but a coded word."""
        value = self.value(keyword, dataset)
        if isinstance(value, (list, tuple)) or hasattr(value, "append"):
            value = value[0] if len(value) else None
        text = "" if value is None else str(value).strip()
        return text.upper() if re.fullmatch(r"[A-Za-z0-9 _./,()+-]{1,64}", text) else None

    def items(self, keyword: str) -> Sequence[Any]:
        """The items of a sequence."""
        value = self.value(keyword)
        return value if value is not None and not isinstance(value, (bytes, str)) else ()

    def uid(self, keyword: str) -> str | None:
        value = self.value(keyword)
        text = "" if value is None else str(value)
        return text if re.fullmatch(_UID, text) else None

    def orientation(self) -> tuple[str, str] | None:
        """Where rows and columns lead, in the letters L R A P H F; None when it is not stated in full."""
        value = self.value("PatientOrientation")
        if value is None or isinstance(value, (str, bytes)) or len(value) != 2:
            return None
        row, column = (str(item).strip().upper() for item in value)
        return (row, column) if all(re.fullmatch("[LRAPHF]{1,3}", item) for item in (row, column)) else None

    def evidence(self, colour: bool) -> HeaderEvidence:
        regions, views = self.items("AnatomicRegionSequence"), self.items("ViewCodeSequence")
        return HeaderEvidence(
            modality=self.word("Modality"),
            sop_class_uid=self.uid("SOPClassUID"),
            body_part=self.word("BodyPartExamined") or (self.word("CodeMeaning", regions[0]) if regions else None),
            view_position=self.word("ViewPosition"),
            view_code=self.word("CodeMeaning", views[0]) if views else None,
            orientation=self.orientation(),
            presentation_intent=self.word("PresentationIntentType"),
            colour=colour,
        )


# --- the pixels ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pixels:
    """The Image Pixel module (C.7.6.3), checked."""

    rows: int
    columns: int
    samples: int
    photometric: str
    allocated: int
    stored: int
    high_bit: int
    signed: bool

    @classmethod
    def of(cls, header: _Header, accept: bool) -> _Pixels:
        name = header.name
        rows, columns = header.whole("Rows"), header.whole("Columns")
        check_size(rows, columns, name)
        frames = header.whole("NumberOfFrames", 1)
        if frames > 1 and not accept:
            raise RadiographRefused(f"{name} holds {frames} frames; XFlow reads single radiographs.")
        photometric = header.word("PhotometricInterpretation")
        samples = header.whole("SamplesPerPixel", 1)
        if photometric is None:
            raise RadiographError(f"{name} names no Photometric Interpretation: whether bright is dense is not known.")
        if samples != 3 and (samples != 1 or photometric not in ("MONOCHROME1", "MONOCHROME2", "PALETTE COLOR")):
            raise RadiographRefused(f"{name} is no grey picture (its Photometric Interpretation is another).")
        allocated = header.whole("BitsAllocated")
        stored = header.whole("BitsStored", allocated)
        if allocated not in (8, 16, 32) or not 2 <= stored <= min(allocated, 16):
            raise RadiographError(
                f"{name} stores {stored} bits a pixel in {allocated}; XFlow reads up to 16 bits, in 8, 16 or 32."
            )
        high_bit = header.whole("HighBit", stored - 1)
        if not stored - 1 <= high_bit < allocated:
            header.warnings.append("High Bit in the header is impossible; the pixels are taken from the low bits.")
            high_bit = stored - 1
        signed = header.whole("PixelRepresentation", 0) == 1
        return cls(rows, columns, samples, photometric, allocated, stored, high_bit, signed)

    def samples_of(self, words: np.ndarray, precision: int, lossy: bool) -> np.ndarray:
        """The samples as uint16 ``[H, W]``, signed ones in two's complement of 16 bits.

        Bits beside the stored ones (overlays, garbage) are dropped. A codestream of fewer bits holds bare samples, and
        so does a lossy one of more bits: what goes beyond the stored ones is then an overshoot, which is cut.
        """
        bare = precision <= self.stored or (lossy and not self.signed)
        bits = precision if bare else self.stored
        if not bare:
            words = words >> words.dtype.type(self.high_bit + 1 - self.stored)
        samples = (words & words.dtype.type(2**bits - 1)).astype(np.uint16, copy=False)
        if self.signed and bits < 16:
            sign = np.uint16(1 << (bits - 1))
            return (samples ^ sign) - sign
        if not self.signed and bits > self.stored:
            return np.minimum(samples, np.uint16(2**self.stored - 1))
        return samples


def _decode(header: _Header, pixels: _Pixels) -> tuple[np.ndarray, int]:
    """The pixel words and their precision; ``[H, W]``, or ``[H, W, 3]`` for colour."""
    data = header.value("PixelData")
    if not isinstance(data, bytes):
        raise RadiographError(f"{header.name} holds no integer pixel data, so no radiograph.")
    if header.syntax in codecs.COMPRESSED:
        stream = _codestream(data, header.whole("NumberOfFrames", 1), header.name)
        return codecs.decode(
            stream, header.syntax, pixels.rows, pixels.columns, pixels.samples, pixels.allocated, header.name
        )
    size = pixels.allocated // 8
    count = pixels.rows * pixels.columns
    subsampled = pixels.samples == 3 and pixels.photometric == "YBR_FULL_422"
    expected = count * size * (2 if subsampled else pixels.samples)
    if len(data) < expected:
        raise RadiographError(
            f"{header.name} is truncated: {len(data)} bytes of pixel data where {expected} belong; get it again."
        )
    if size == 1 and not header.little_endian and header.is_words("PixelData"):
        data = np.frombuffer(data[: len(data) // 2 * 2], np.uint16).byteswap().tobytes()
    words = np.frombuffer(data, f"{'<' if header.little_endian else '>'}u{size}", expected // size)
    words = words.astype(words.dtype.newbyteorder("="), copy=False)
    shape = (pixels.rows, pixels.columns)
    if pixels.samples == 1:
        return words.reshape(shape), pixels.allocated
    if subsampled:
        pairs = words.reshape(-1, 4)
        chroma = np.repeat(pairs[:, 2:], 2, axis=0)
        return np.concatenate([pairs[:, :2].reshape(-1, 1), chroma], axis=1).reshape(*shape, 3), pixels.allocated
    if header.whole("PlanarConfiguration", 0) == 1:
        return np.moveaxis(words.reshape(3, *shape), 0, 2), pixels.allocated
    return words.reshape(*shape, 3), pixels.allocated


def _codestream(data: bytes, frames: int, name: str) -> bytes:
    """The fragments of the only frame, joined (PS3.5 annex A.4); of several frames the first, kept in one fragment."""
    fragments: list[bytes] = []
    at = 0
    while at + 8 <= len(data) and len(fragments) <= MAX_FRAGMENTS:
        group, element, length = struct.unpack_from("<HHL", data, at)
        if (group, element) != (0xFFFE, 0xE000):
            break
        fragments.append(data[at + 8 : at + 8 + length])
        at += 8 + length
    if len(fragments) < 2:  # the first is the offset table
        raise RadiographError(f"{name} holds no compressed image where its header announces one; get it again.")
    if frames <= 1:
        return b"".join(fragments[1:])
    if len(fragments) - 1 != frames:
        raise RadiographError(f"{name} keeps its {frames} frames in pieces; export the one that is meant.")
    return fragments[1]


def _grey_of_channels(words: np.ndarray, full_scale: int, name: str, accept: bool) -> np.ndarray:
    """The grey picture in three channels, as uint16: equal channels (RGB), or a luminance beside empty chroma (YBR).

    The pixels tell the two apart better than the header, which is often wrong about JPEG.
    """
    middle = (full_scale + 1) // 2
    coloured = np.abs(words[..., 1:].astype(np.int32) - middle).max(axis=2) > COLOUR_TOLERANCE * full_scale
    if np.count_nonzero(coloured) <= COLOURED_SHARE * coloured.size:
        return words[..., 0].astype(np.uint16)
    return np.rint(grey_of_colour(words, full_scale, name, accept)).astype(np.uint16)


def _through_palette(header: _Header, words: np.ndarray) -> np.ndarray:
    """Palette indices as 8-bit red, green and blue."""
    channels = []
    for palette in _PALETTES:
        descriptor, data = header.numbers(f"{palette}Descriptor"), header.value(f"{palette}Data")
        table = _table(descriptor, data, header.little_endian, lowest=0.0)
        if table is None:
            raise RadiographError(f"{header.name} is a damaged DICOM file: its palette is missing or incomplete.")
        channels.append(to_bytes(table.apply(np.arange(65536.0)) / table.full_scale)[words])
    return np.stack(channels, axis=2)


# --- from samples to what is seen -----------------------------------------------------------------------------------


def _table(descriptor: Sequence[float], data: Any, little_endian: bool, lowest: float) -> LookupTable | None:
    """A LUT from its descriptor and data, None when they are missing or incomplete; ``lowest`` is the smallest input.

    The odd forms of C.11.1.1: no entries means 65,536; the first input is signed where inputs can be negative,
    whatever its VR; data come as numbers, as words or as bytes, and 8-bit entries may be packed two to a word.
    """
    if len(descriptor) != 3 or data is None:
        return None
    entries = int(descriptor[0]) & 0xFFFF or 65536
    first, bits = int(descriptor[1]), int(descriptor[2])
    if first > 32767 and lowest < 0:
        first -= 65536
    if isinstance(data, bytes):
        word = "<u2" if little_endian else ">u2"
        values = np.frombuffer(data[: 2 * entries], word) if len(data) >= 2 * entries else np.frombuffer(data, np.uint8)
    else:
        values = np.atleast_1d(np.asarray(data, dtype=np.int64)) & 0xFFFF
        if bits <= 8 and len(values) < entries:
            values = values.astype("<u2").view(np.uint8)
    if len(values) < entries:
        return None
    values = values[:entries].astype(np.float64)
    needed = int(values.max()).bit_length()
    return LookupTable(first, values, max(needed, bits if 1 <= bits <= 16 else 8))


def _modality(header: _Header, inputs: np.ndarray) -> np.ndarray:
    """Stored samples to the modality's values (C.11.1): its LUT, else slope and intercept."""
    sequence = header.items("ModalityLUTSequence")
    if len(sequence):
        item = sequence[0]
        table = _table(
            header.numbers("LUTDescriptor", item), header.value("LUTData", item), header.little_endian, inputs.min()
        )
        if table is None:
            raise RadiographError(f"{header.name} is a damaged DICOM file: its Modality LUT is incomplete.")
        return table.apply(inputs)
    slope, intercept = header.numbers("RescaleSlope") or [1.0], header.numbers("RescaleIntercept") or [0.0]
    if slope[0] == 0.0 or abs(slope[0]) > 1e6 or abs(slope[0]) < 1e-6 or abs(intercept[0]) > 1e9:
        header.warnings.append("Rescale Slope and Intercept in the header make no sense and were ignored.")
        return inputs
    return inputs * slope[0] + intercept[0]


def _windows(header: _Header) -> tuple[Window, ...]:
    """The usable windows, in the header's order."""
    function = header.word("VOILUTFunction") or LINEAR
    if function not in FUNCTIONS:
        header.warnings.append("VOI LUT Function in the header is unknown; LINEAR was taken.")
        function = LINEAR
    explanations = header.value("WindowCenterWidthExplanation")
    texts = [explanations] if isinstance(explanations, str) else list(explanations or ())
    found = []
    centres, widths = header.numbers("WindowCenter"), header.numbers("WindowWidth")
    for index, (centre, width) in enumerate(zip(centres, widths, strict=False)):
        text = str(texts[index])[:64] if index < len(texts) else ""
        window = Window(centre, width, text, function)
        if window_is_usable(window):
            found.append(window)
    if len(found) < max(len(centres), len(widths)):
        header.warnings.append("A window in the header has no usable width and was ignored.")
    return tuple(found)


def _padding(header: _Header, inputs: np.ndarray, pixels: _Pixels) -> np.ndarray:
    """Which of the samples are padding (C.7.5.1.1.2)."""
    value = header.numbers("PixelPaddingValue")
    if len(value) != 1:
        return np.zeros(inputs.shape, bool)
    limit = header.numbers("PixelPaddingRangeLimit")
    ends = [value[0], limit[0] if len(limit) == 1 else value[0]]
    if pixels.signed:  # written as US or as SS
        ends = [end - 65536 if end > 32767 else end for end in ends]
    return (inputs >= min(ends)) & (inputs <= max(ends))


def _present(header: _Header, pixels: _Pixels, samples: np.ndarray) -> Content:
    """Samples (uint16, two's complement when signed) to values and display.

    The polarity is settled once, on what a viewer shows: MONOCHROME1, or Presentation LUT Shape INVERSE. In an image
    the two state one fact (General Image module, C.7.6.1: INVERSE goes with MONOCHROME1, IDENTITY with MONOCHROME2), so
    both together still mean one inversion; where they disagree either one inverts, and a warning says so. A VOI LUT
    that falls turns the picture too, and so turns the values.
    """
    every = np.arange(65536, dtype=np.uint16)
    signed = pixels.signed and pixels.samples == 1 and pixels.photometric != "PALETTE COLOR"
    inputs = (every.view(np.int16) if signed else every).astype(np.float64)
    outputs = _modality(header, inputs)

    occurring = _occurring(samples)
    padding = _padding(header, inputs, pixels) & occurring
    if padding.any() and not (occurring & ~padding).any():
        header.warnings.append("Every pixel is padding by the header; Pixel Padding Value was ignored.")
        padding[:] = False
    low, high = float(outputs[occurring & ~padding].min()), float(outputs[occurring & ~padding].max())

    shape = header.word("PresentationLUTShape")
    inverse = pixels.photometric == "MONOCHROME1" or shape == "INVERSE"
    if shape in ("IDENTITY", "INVERSE") and (shape == "INVERSE") != (pixels.photometric == "MONOCHROME1"):
        header.warnings.append(
            f"Presentation LUT Shape {shape} contradicts {pixels.photometric}: the picture may be shown inverted."
        )
    windows = _windows(header)
    fraction, falling = _value_of_interest(header, outputs, low, high, windows)
    if inverse:
        fraction = 1.0 - fraction
    if inverse != falling:
        outputs = (low + high) - outputs
        windows = tuple(mirror_window(window, low + high) for window in windows)
    outputs = np.where(padding, low, outputs)
    fraction = np.where(padding, 0.0, fraction)
    seen = occurring & ~padding
    _warn_of_processing(header, inputs[seen], outputs[seen])

    colour = pixels.samples == 3 or pixels.photometric == "PALETTE COLOR"
    spacing, kind, notes = dicom_spacing(
        (pixels.rows, pixels.columns),
        pixel=header.numbers("PixelSpacing"),
        imager=header.numbers("ImagerPixelSpacing"),
        nominal=header.numbers("NominalScannedPixelSpacing"),
        calibration=header.word("PixelSpacingCalibrationType"),
    )
    return Content(
        source="dicom",
        values=_look_up(outputs.astype(np.float32), samples),
        display=_look_up(to_bytes(fraction), samples),
        padding=_look_up(padding, samples) if padding.any() else None,
        header=header.evidence(colour),
        photometric=pixels.photometric,
        sop_instance_uid=header.uid("SOPInstanceUID"),
        spacing_mm=spacing,
        spacing_kind=kind,
        windows=windows,
        warnings=tuple(dict.fromkeys([*header.warnings, *notes])),
    )


def _value_of_interest(
    header: _Header, outputs: np.ndarray, low: float, high: float, windows: tuple[Window, ...]
) -> tuple[np.ndarray, bool]:
    """The VOI stage, to [0, 1], and whether it falls: its LUT, else the first window, else the occurring range."""
    sequence = header.items("VOILUTSequence")
    if len(sequence):
        item = sequence[0]
        table = _table(header.numbers("LUTDescriptor", item), header.value("LUTData", item), header.little_endian, low)
        if table is not None:
            fraction = table.apply(outputs) / table.full_scale
            first, last = table.apply(np.array([low, high]))
            return fraction, bool(last < first)
        header.warnings.append("The VOI LUT in the header is incomplete and was ignored.")
    if windows:
        return apply_window(outputs, windows[0]), False
    return stretch(outputs, low, high), False


def _warn_of_processing(header: _Header, samples: np.ndarray, values: np.ndarray) -> None:
    """Say so where the header doubts that this is a picture for reading, or that its bright is dense."""
    if header.word("PresentationIntentType") == "FOR PROCESSING":
        header.warnings.append("The image is raw, FOR PROCESSING: it was not prepared for reading.")
    sign = header.numbers("PixelIntensityRelationshipSign")
    # 1: more X-rays gave larger samples. In a picture for reading, more X-rays are darker.
    if len(sign) == 1 and sign[0] in (1.0, -1.0) and values.min() < values.max():
        brighter_upwards = values[samples.argmax()] > values[samples.argmin()]
        if brighter_upwards == (sign[0] == 1.0):
            header.warnings.append(
                "By Pixel Intensity Relationship Sign the bright pixels had more X-rays: the picture may be inverted."
            )


def _occurring(samples: np.ndarray) -> np.ndarray:
    """Which of the 65,536 samples occur."""
    found = np.zeros(65536, bool)
    for rows in _blocks(samples):
        found[samples[rows]] = True
    return found


def _look_up(table: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """``table[samples]``."""
    out = np.empty(samples.shape, table.dtype)
    for rows in _blocks(samples):
        np.take(table, samples[rows], out=out[rows], mode="clip")
    return out


def _blocks(samples: np.ndarray) -> Iterator[slice]:
    """Some rows at a time: an index into a table takes eight bytes a pixel."""
    step = max(1, 2**18 // samples.shape[1])
    for row in range(0, samples.shape[0], step):
        yield slice(row, row + step)
