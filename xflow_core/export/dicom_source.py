"""The image that DICOM results belong to: a header that their writers can rely on, whatever the source left out.

SEG, SR, presentation state and secondary capture carry the patient and the study of their source (PS3.3 A.51, A.35,
A.33, A.8), and refer to it by its UIDs. Real headers lack attributes, leave them empty or hold values that are none of
their type. Here they are completed once: what the standard wants present is there, empty where the source says nothing;
what a source says stays as it says it.
"""

from __future__ import annotations

import copy
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pydicom
from pydicom.datadict import dictionary_description, dictionary_VR, tag_for_keyword
from pydicom.uid import UID
from pydicom.valuerep import DSfloat, validate_value

from xflow_core.domain.errors import ExportError
from xflow_core.domain.quiet import quiet_python
from xflow_core.domain.spacing import Spacing, dicom_spacing
from xflow_core.domain.trace import Trace

from .files import write_whole

_LEFT_OUT = ("PixelData", "FloatPixelData", "DoubleFloatPixelData", "IconImageSequence")

# Patient and General Study, type 2 (PS3.3 C.7.1.1, C.7.2.1): present, and empty where nothing is known.
_TYPE_2 = (
    "PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "ReferringPhysicianName",
    "StudyID", "AccessionNumber",
)  # fmt: skip
_WANTED_UIDS = ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID")
_UID = re.compile(r"(?=.{1,64}$)[0-9]+(\.[0-9]+)*")


@dataclass(frozen=True, eq=False)
class SourceInstance:
    """One single-frame DICOM image, without its pixels.

    Attributes:
        dataset: a copy of its header, completed: the type 2 attributes of patient and study are there, values that are
            none of their type are empty, the character set is one that can be written. No pixel data, no private
            elements, no overlays. Treat it as read-only.
        size: ``(rows, columns)``.
        frame_of_reference: its Frame of Reference UID, where it also has a position, an orientation and a spacing;
            None for nearly every CR and DX.
        spacing_mm: ``(row, column)`` in mm as in the trace, None when it is absent, zero or impossible.
        spacing_kind: ``patient``, ``detector`` or ``none``, as in the trace.
    """

    dataset: pydicom.Dataset
    size: tuple[int, int]
    frame_of_reference: str | None
    spacing_mm: Spacing | None
    spacing_kind: str

    @property
    def sop_class_uid(self) -> str:
        return str(self.dataset.SOPClassUID)

    @property
    def sop_instance_uid(self) -> str:
        return str(self.dataset.SOPInstanceUID)

    @property
    def study_uid(self) -> str:
        return str(self.dataset.StudyInstanceUID)

    @property
    def series_uid(self) -> str:
        return str(self.dataset.SeriesInstanceUID)


def read_source(source: str | Path | bytes, *, name: str | None = None) -> SourceInstance:
    """The source instance in a DICOM file or its bytes; the pixels are not read.

    Args:
        name: what messages call it; by default the file's name.

    Raises:
        ExportError: no DICOM file, or no image that results can refer to.
    """
    name = name or ("the image" if isinstance(source, bytes) else Path(source).name)
    try:
        with quiet_python():
            header = pydicom.dcmread(
                io.BytesIO(source) if isinstance(source, bytes) else source, stop_before_pixels=True, force=True
            )
    except OSError as problem:
        raise ExportError(f"{name} cannot be read: {problem.strerror or problem}.") from None
    except Exception:  # noqa: BLE001  the parser raises whatever its own code runs into
        raise ExportError(f"{name} is not a DICOM file that can be read; DICOM results need one.") from None
    return source_instance(header, file=name)


def source_instance(header: pydicom.Dataset, *, file: str = "the image") -> SourceInstance:
    """A source instance from its header; the header itself is left as it is.

    Args:
        header: with or without pixel data.
        file: what messages call it.

    Raises:
        ExportError: it is no image, has several frames, or lacks a UID that results have to refer to.
    """
    with quiet_python():
        dataset = _copied(header, file)
        for keyword in _WANTED_UIDS:
            if not _UID.fullmatch(str(_value(dataset, keyword) or "")):
                name = tag_name(keyword)
                raise ExportError(f"{file} has no {name}; DICOM results refer to their source by it.")
        size = _size(dataset, file)
        _check_class(dataset, file)
        _settle_character_set(dataset)
        _drop_impossible(dataset)
        _settle_orientation(dataset)
        for keyword in _TYPE_2:
            _settle(dataset, keyword)
        spacing, kind, _ = dicom_spacing(
            size,
            pixel=_numbers(dataset, "PixelSpacing"),
            imager=_numbers(dataset, "ImagerPixelSpacing"),
            nominal=_numbers(dataset, "NominalScannedPixelSpacing"),
            calibration=str(_value(dataset, "PixelSpacingCalibrationType") or "") or None,
        )
        frame_of_reference = _frame_of_reference(dataset)
    return SourceInstance(dataset, size, frame_of_reference, spacing, kind)


def write_object(path: str | Path, made: pydicom.Dataset, source: SourceInstance) -> None:
    """Write a result of ``source``: in its character set, whole or not at all.

    Raises:
        ExportError: a value of the source's header cannot be coded.
        NotWritten: the file cannot be written.
    """
    # highdicom 0.27 leaves the character set out, and 0.28 takes it over.
    if "SpecificCharacterSet" in source.dataset:
        made.SpecificCharacterSet = source.dataset.SpecificCharacterSet
    buffer = io.BytesIO()
    try:
        with quiet_python():
            made.save_as(buffer, enforce_file_format=True)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as problem:
        raise unusable(source, problem) from problem
    write_whole(path, buffer.getvalue())


def check_traces(traces: Sequence[Trace], source: SourceInstance) -> None:
    """Refuse traces that are not all of the source image.

    Raises:
        ExportError: none at all, one of another image, or of an image without SOP Instance UID.
    """
    if not traces:
        raise ExportError("DICOM results need at least one trace.")
    for trace in traces:
        uid = trace.image.sop_instance_uid
        if uid != source.sop_instance_uid:
            image = "an image without a SOP Instance UID" if uid is None else f"the image {uid}"
            raise ExportError(
                f"A trace is of {image}, its source is {source.sop_instance_uid}; DICOM results belong to one image."
            )
        if trace.image.size != source.size:
            (height, width), (rows, columns) = trace.image.size, source.size
            raise ExportError(f"A trace is of {width} x {height} pixels, and its source has {columns} x {rows}.")


def unusable(source: SourceInstance, problem: Exception) -> ExportError:
    """The error for a header that a writer stumbled over; no value of the header is quoted."""
    return ExportError(
        f"The header of the source image {source.sop_instance_uid} cannot carry DICOM results "
        f"({type(problem).__name__}); correct the header, or use the PNG mask."
    )


def decimal_string(number: float) -> DSfloat:
    """A number as DICOM writes it, in 16 characters at most (DS)."""
    return DSfloat(number, auto_format=True)


def tag_name(keyword: str) -> str:
    """``SOP Instance UID (0008,0018)``."""
    tag = tag_for_keyword(keyword)
    assert tag is not None
    return f"{dictionary_description(tag)} ({tag >> 16:04X},{tag & 0xFFFF:04X})"


def _copied(header: pydicom.Dataset, file: str) -> pydicom.Dataset:
    """What results may need of the header: no pixels, no private elements, no overlays, no icon."""
    dataset = pydicom.Dataset()
    left_out = {tag_for_keyword(keyword) for keyword in _LEFT_OUT}
    try:
        for tag in header.keys():  # noqa: SIM118  iterating over a dataset would convert every element
            if tag.is_private or tag in left_out or tag.group == 2 or tag.group & 0xFF00 == 0x6000:
                continue
            try:
                dataset[tag] = copy.deepcopy(header[tag])
            except Exception:  # noqa: BLE001  a damaged value raises whatever its conversion runs into
                continue
    except AttributeError:
        raise ExportError(f"{file} is not a DICOM header.") from None
    return dataset


def _value(dataset: pydicom.Dataset, keyword: str) -> Any:
    value = dataset.get(keyword)
    return None if value is None or (hasattr(value, "__len__") and len(value) == 0) else value


def _numbers(dataset: pydicom.Dataset, keyword: str) -> list[float]:
    value = _value(dataset, keyword)
    values = [] if value is None else value if isinstance(value, (list, tuple)) or hasattr(value, "append") else [value]
    try:
        return [float(item) for item in values]
    except (TypeError, ValueError, OverflowError):
        return []


def _size(dataset: pydicom.Dataset, file: str) -> tuple[int, int]:
    rows, columns = _numbers(dataset, "Rows"), _numbers(dataset, "Columns")
    if len(rows) != 1 or len(columns) != 1 or min(rows[0], columns[0]) < 1:
        raise ExportError(f"{file} is not a DICOM image: its header states no size.")
    frames = _numbers(dataset, "NumberOfFrames")
    if frames and frames[0] > 1:
        raise ExportError(
            f"{file} holds {frames[0]:g} frames; DICOM results are written for images of one frame, so export the one "
            "that is meant."
        )
    return int(rows[0]), int(columns[0])


def _check_class(dataset: pydicom.Dataset, file: str) -> None:
    name = UID(str(dataset.SOPClassUID)).name
    if "Image Storage" not in name:
        raise ExportError(f"{file} is no DICOM image of a standard class ({name}); DICOM results refer to one.")


# --- values that are none of their type -----------------------------------------------------------------------------


# Types whose values have a form; free text and names have none but their length, and stay whatever their length is.
_FORMED = frozenset(("AS", "CS", "DA", "DS", "DT", "IS", "TM", "UI"))


def _drop_impossible(dataset: pydicom.Dataset) -> None:
    """Leave out what is no value of its type, such as an age of "62": copied, it would make every result invalid.

    A number with more digits than DICOM allows is rounded to what it does: many stations write such a spacing. The UIDs
    that results refer to were checked before, and stay as the PACS knows them: some have parts with leading zeros.
    """
    for element in list(dataset):
        if element.VR not in _FORMED or element.is_empty or element.keyword in _WANTED_UIDS:
            continue
        values = element.value if hasattr(element.value, "append") else [element.value]
        try:
            if element.VR == "DS":
                element.value = [decimal_string(float(value)) for value in values]
            else:
                for value in values:
                    validate_value(element.VR, str(value), pydicom.config.RAISE)
        except (ValueError, TypeError, OverflowError):
            del dataset[element.tag]


def _settle(dataset: pydicom.Dataset, keyword: str) -> None:
    """An attribute of type 2 that is there, and holds one value of its type or none."""
    value = _value(dataset, keyword)
    text = "" if value is None else str(value)
    kind = dictionary_VR(keyword)
    if keyword == "PatientSex":
        usable = text in ("M", "F", "O")
    elif kind == "DA":
        usable = bool(re.fullmatch(r"\d{8}", text)) and _is_date(text)
    elif kind == "TM":
        usable = bool(re.fullmatch(r"([01]\d|2[0-3])([0-5]\d([0-5]\d(\.\d{1,6})?)?)?", text))
    elif kind == "PN" and hasattr(value, "append"):  # several names, where the standard wants one
        setattr(dataset, keyword, value[0])
        return
    else:
        usable = value is not None
    if not usable:
        setattr(dataset, keyword, "")


def _settle_orientation(dataset: pydicom.Dataset) -> None:
    """A Patient Orientation (PS3.3 C.7.6.1.1.1) that names the direction of the rows and of the columns, or none."""
    value = _value(dataset, "PatientOrientation")
    stated = [] if value is None else [value] if isinstance(value, str) else [str(item) for item in value]
    if stated and not (len(stated) == 2 and all(re.fullmatch("[LRAPHF]{1,3}", item) for item in stated)):
        del dataset.PatientOrientation


def _is_date(text: str) -> bool:
    try:
        date(int(text[:4]), int(text[4:6]), int(text[6:]))
    except ValueError:
        return False
    return True


_ONE_SET = re.compile(r"ISO[ _-]?IR[ _-]?(\d+)")
_EXTENSIONS = re.compile(r"ISO[ _-]?2022[ _-]?IR[ _-]?(\d+)")


def _settle_character_set(dataset: pydicom.Dataset) -> None:
    """A Specific Character Set as the standard spells it (PS3.3 C.12.1.1.2); one that is none becomes UTF-8.

    Text is decoded by the source's own statement first, so it stays what it is.
    """
    value = _value(dataset, "SpecificCharacterSet")
    stated = [] if value is None else [value] if isinstance(value, str) else [str(item) for item in value]
    dataset.decode()
    settled = _character_set(stated)
    if settled is None:
        dataset.SpecificCharacterSet = "ISO_IR 192"
    elif settled:
        dataset.SpecificCharacterSet = settled[0] if len(settled) == 1 else list(settled)
    elif "SpecificCharacterSet" in dataset:
        del dataset.SpecificCharacterSet


def _character_set(stated: Sequence[str]) -> tuple[str, ...] | None:
    """The terms in the standard's spelling; none for the default repertoire, None for what is no character set."""
    numbers = []
    for term in stated:
        text = term.strip().upper()
        if text in ("GB18030", "GBK"):
            return (text,) if len(stated) == 1 else None
        found = _ONE_SET.fullmatch(text) or _EXTENSIONS.fullmatch(text)
        if text and found is None:
            return None
        numbers.append("6" if found is None else found[1])
    if not numbers or numbers == ["6"]:
        return ()
    if len(numbers) == 1:
        return (f"ISO_IR {numbers[0]}",) if numbers[0] in _SINGLE else None
    if "192" in numbers or not set(numbers) <= _SINGLE | _SEVERAL | {"6"} or numbers[0] in _SEVERAL:
        return None
    return tuple(f"ISO 2022 IR {number}" for number in dict.fromkeys(numbers))


_SINGLE = frozenset(("100", "101", "109", "110", "144", "127", "126", "138", "148", "203", "13", "166", "192"))
# Sets of several bytes, after a first one. Korean (149) and Chinese (58) become UTF-8: highdicom 0.28 knows neither.
_SEVERAL = frozenset(("87", "159"))


def _frame_of_reference(dataset: pydicom.Dataset) -> str | None:
    """The Frame of Reference UID of an image that lies in one: position, orientation and spacing are there as well.

    Six zeros, or twice the same direction, are no orientation: some stations fill them in.
    """
    uid = str(_value(dataset, "FrameOfReferenceUID") or "")
    position, orientation = _numbers(dataset, "ImagePositionPatient"), _numbers(dataset, "ImageOrientationPatient")
    spacing = _numbers(dataset, "PixelSpacing")
    lies = len(position) == 3 and _orthonormal(orientation) and len(spacing) == 2 and min(spacing) > 0
    return uid if _UID.fullmatch(uid) and lies else None


def _orthonormal(orientation: Sequence[float]) -> bool:
    """Whether six numbers are two directions at a right angle; a hundredth off is bad rounding."""
    if len(orientation) != 6:
        return False
    row, column = orientation[:3], orientation[3:]
    angle = sum(a * b for a, b in zip(row, column, strict=True))
    return abs(math.hypot(*row) - 1) < 0.01 and abs(math.hypot(*column) - 1) < 0.01 and abs(angle) < 0.01
