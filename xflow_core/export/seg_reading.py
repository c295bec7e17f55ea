"""Reading a DICOM Segmentation of a radiograph back: XFlow's own, and other writers', with or without a geometry.

What lies where is taken from the reference to the source image, not from a position in space, which most radiographs
do not have: a frame of the size of the source, derived from the source, is a mask in the source's pixel matrix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import highdicom as hd
import numpy as np
import pydicom
from pydicom.pixels import iter_pixels
from pydicom.uid import UID, RLELossless, SegmentationStorage

from xflow_core.domain.codes import Code, finding_of, regions_of
from xflow_core.domain.errors import ExportError
from xflow_core.domain.findings import FINDINGS, REGIONS
from xflow_core.domain.quiet import quiet_python

from .dicom_source import SourceInstance

LABELMAP_STORAGE = UID("1.2.840.10008.5.1.4.1.1.66.7")
MAX_SEGMENTS = 256

_REVIEW = {"AI result, reviewed": "reviewed", "AI result, not reviewed": "not reviewed"}
_OUR_TRACKING = re.compile(rf"XFlow (?P<finding>{'|'.join(FINDINGS)}): (?P<regions>.+)")


@dataclass(frozen=True, eq=False)
class ReadSegment:
    """A segment of a file.

    Attributes:
        number: its number in the file.
        mask: bool ``[H, W]`` in the source's pixel matrix.
        label: its name in the file.
        code: the segmented property type; None where the file has none.
        finding: which of the seven it is, by code and label; None for anything else.
        regions: where, in XFlow's names; empty where the file does not say.
        review: ``reviewed``, ``not reviewed`` or, of other writers, ``unknown``.
        empty: whether the mask has no pixel.
        tracking_uid: the identity under which a report refers to it.
        colour: recommended display colour, sRGB 0-255.
    """

    number: int
    mask: np.ndarray
    label: str
    code: Code | None
    finding: str | None
    regions: tuple[str, ...]
    review: str
    empty: bool
    tracking_uid: str | None = None
    colour: tuple[int, int, int] | None = None


@dataclass(frozen=True, eq=False)
class ReadSeg:
    """The segments of a file, in its order, and sentences about what was assumed."""

    segments: tuple[ReadSegment, ...]
    warnings: tuple[str, ...] = ()


def read_seg(path: str | Path, source: SourceInstance) -> ReadSeg:
    """The masks of ``source`` in a SEG file: BINARY, FRACTIONAL or LABELMAP, with or without a Frame of Reference.

    A segment without pixels is given with an empty mask, and a warning says so. Of a fractional segment the pixels at
    half of the maximum or more are taken.

    Raises:
        ExportError: the file cannot be read, is no SEG, is damaged, or is one of another image.
    """
    path = Path(path)
    name = path.name
    try:
        with quiet_python():
            dataset = pydicom.dcmread(path)
            return _Reader(dataset, source, name).read()
    except ExportError:
        raise
    except OSError as problem:
        raise ExportError(f"{path} cannot be read: {problem.strerror or problem}.") from None
    except pydicom.errors.InvalidDicomError:
        raise ExportError(f"{name} is not a DICOM file, so no segmentation.") from None
    # A damaged file makes the parser raise whatever its own code runs into.
    except Exception as problem:
        raise ExportError(f"{name} is a damaged DICOM Segmentation ({type(problem).__name__}).") from problem


class _Reader:
    def __init__(self, dataset: pydicom.Dataset, source: SourceInstance, name: str) -> None:
        self.dataset, self.source, self.name = dataset, source, name
        self.warnings: list[str] = []

    def read(self) -> ReadSeg:
        self._check_class()
        self._check_reference()
        self._check_size()
        frames = self._frames()
        items = [item for item in self.dataset.get("SegmentSequence", ()) if int(item.SegmentNumber) > 0]
        if len(items) > MAX_SEGMENTS:
            raise ExportError(f"{self.name} has {len(items)} segments; XFlow reads up to {MAX_SEGMENTS}.")
        numbers = [int(item.SegmentNumber) for item in items]
        masks = self._masks(numbers, frames)
        segments = tuple(
            self._segment(item, number, masks.get(number)) for item, number in zip(items, numbers, strict=True)
        )
        if not segments:
            raise ExportError(f"{self.name} has no segment.")
        return ReadSeg(segments, tuple(dict.fromkeys(self.warnings)))

    # --- is it a segmentation of this image? ---

    def _check_class(self) -> None:
        uid = UID(str(self.dataset.get("SOPClassUID", "")))
        if uid not in (SegmentationStorage, LABELMAP_STORAGE):
            raise ExportError(f"{self.name} is no DICOM Segmentation (its class is {uid.name or 'not stated'}).")

    def _check_reference(self) -> None:
        uid = self.source.sop_instance_uid
        referenced = list(dict.fromkeys(_referenced(self.dataset)))
        if uid in referenced:
            return
        if referenced:
            more = f" and {len(referenced) - 1} more" if len(referenced) > 1 else ""
            raise ExportError(f"{self.name} is a segmentation of the image {referenced[0]}{more}, not of {uid}.")
        frame_of_reference = self.source.frame_of_reference
        if frame_of_reference is None or str(self.dataset.get("FrameOfReferenceUID", "")) != frame_of_reference:
            raise ExportError(f"{self.name} does not say which image it is a segmentation of; the image is {uid}.")
        self.warnings.append("The file names no source image; it was matched by its Frame of Reference.")

    def _check_size(self) -> None:
        size = (int(self.dataset.Rows), int(self.dataset.Columns))
        if size != self.source.size:
            (height, width), (rows, columns) = size, self.source.size
            raise ExportError(
                f"{self.name} holds masks of {width} x {height} pixels, and the image {self.source.sop_instance_uid} "
                f"has {columns} x {rows}; XFlow reads masks in the image's own pixel matrix."
            )

    # --- frames ---

    def _frames(self) -> list[tuple[int, int | None]]:
        """The frames that are of the source: ``(frame index, segment number)``; the number None for a label map."""
        dataset = self.dataset
        count = int(dataset.get("NumberOfFrames") or 1)
        groups: Sequence[Any] = dataset.get("PerFrameFunctionalGroupsSequence") or ()
        if len(groups) != count:
            raise ExportError(f"{self.name} is damaged: it describes {len(groups)} frames, and has {count}.")
        shared = (dataset.get("SharedFunctionalGroupsSequence") or [pydicom.Dataset()])[0]
        found: list[tuple[int, int | None]] = []
        others: list[str] = []
        for index in range(count):
            group = groups[index]
            sources = _derived_from(group) or _derived_from(shared)
            if sources and self.source.sop_instance_uid not in sources:
                others += sources
                continue
            self._check_plane(group, shared)
            found.append((index, None if self.kind == "LABELMAP" else _segment_number(group, shared)))
        if others and not found:
            raise ExportError(
                f"{self.name} is a segmentation of the image {others[0]}, not of {self.source.sop_instance_uid}."
            )
        if others:
            self.warnings.append("The file also holds masks of other images; they were left out.")
        return found

    def _check_plane(self, group: pydicom.Dataset, shared: pydicom.Dataset) -> None:
        """In the source's own Frame of Reference, a frame that lies elsewhere is no mask of the source's matrix."""
        frame_of_reference = self.source.frame_of_reference
        if frame_of_reference is None or str(self.dataset.get("FrameOfReferenceUID", "")) != frame_of_reference:
            return
        for sequence, keyword, tolerance in (
            ("PlaneOrientationSequence", "ImageOrientationPatient", 1e-3),
            ("PlanePositionSequence", "ImagePositionPatient", 0.1),
        ):
            holder = next((item for item in (group, shared) if sequence in item), None)
            if holder is None:
                continue
            stated = np.array(holder[sequence].value[0][keyword].value, float)
            if not np.allclose(stated, np.array(self.source.dataset[keyword].value, float), atol=tolerance):
                raise ExportError(
                    f"{self.name} lies in another plane than the image {self.source.sop_instance_uid} "
                    "(its position or orientation differs)."
                )

    @property
    def kind(self) -> str:
        if self.dataset.SOPClassUID == LABELMAP_STORAGE:
            return "LABELMAP"
        kind = str(self.dataset.get("SegmentationType", "BINARY"))
        if kind not in ("BINARY", "FRACTIONAL", "LABELMAP"):
            raise ExportError(f"{self.name} has the segmentation type {kind[:16]!r}, which XFlow does not read.")
        return kind

    # --- pixels ---

    def _masks(self, numbers: Sequence[int], frames: Sequence[tuple[int, int | None]]) -> dict[int, np.ndarray]:
        """A mask for each segment that has a frame; several frames of one segment are joined."""
        masks: dict[int, np.ndarray] = {}
        known = set(numbers)
        limit = int(self.dataset.get("MaximumFractionalValue") or 255)
        for (_, number), frame in zip(frames, self._pixels([index for index, _ in frames]), strict=True):
            if number is None:
                for label in np.flatnonzero(np.bincount(frame.ravel())).tolist():
                    if label in known:
                        masks[label] = masks[label] | (frame == label) if label in masks else frame == label
                continue
            if self.kind == "FRACTIONAL":
                self.warnings.append("The masks are fractional; pixels at half of the maximum or more were taken.")
                mask = frame.astype(np.uint32) * 2 >= limit
            else:
                mask = frame > 0
            if number in masks:
                self.warnings.append(f"Segment {number} has several masks of the image; they were joined.")
                mask = masks[number] | mask
            masks[number] = mask
        return masks

    def _pixels(self, frames: Sequence[int]) -> Iterator[np.ndarray]:
        dataset = self.dataset
        if not frames:
            return
        if "PixelData" not in dataset:
            raise ExportError(f"{self.name} is damaged: it holds no pixels.")
        shape = self.source.size
        size = shape[0] * shape[1]
        if int(dataset.BitsAllocated) == 1 and not dataset.file_meta.TransferSyntaxUID.is_compressed:
            # Frames follow each other without padding to whole bytes (PS3.5, 8.1.1).
            data = np.frombuffer(dataset.PixelData, np.uint8)
            for index in frames:
                first, last = index * size, (index + 1) * size
                if len(data) * 8 < last:
                    raise ExportError(f"{self.name} is truncated: frame {index + 1} is not complete.")
                bits = np.unpackbits(data[first // 8 : -(-last // 8)], bitorder="little")
                yield bits[first % 8 : first % 8 + size].reshape(shape)
            return
        # pydicom's own RLE decoder: a damaged frame ends in an exception there, and not in the end of the process.
        plugin = "pydicom" if dataset.file_meta.TransferSyntaxUID == RLELossless else ""
        try:
            for frame in iter_pixels(dataset, indices=list(frames), raw=True, decoding_plugin=plugin):
                yield frame.reshape(shape)
        except (AttributeError, NotImplementedError, RuntimeError, ValueError) as problem:
            syntax = dataset.file_meta.TransferSyntaxUID.name
            raise ExportError(
                f"{self.name} is damaged, or coded in a way that cannot be read here ({syntax})."
            ) from problem

    # --- what a segment says ---

    def _segment(self, item: pydicom.Dataset, number: int, mask: np.ndarray | None) -> ReadSegment:
        mask = np.zeros(self.source.size, bool) if mask is None else mask
        empty = not mask.any()
        label = str(item.get("SegmentLabel") or "").strip()
        if empty:
            self.warnings.append(f"Segment {number} ({label or 'no label'}) is empty.")
        code = _code(item.get("SegmentedPropertyTypeCodeSequence"))
        ours = _OUR_TRACKING.fullmatch(str(item.get("TrackingID") or ""))
        finding = None if code is None else finding_of(code.value, code.scheme, label)
        regions = _regions(item)
        if ours is not None and ours["finding"] == finding:
            exact = tuple(ours["regions"].split(", "))
            regions = exact if set(exact) <= set(REGIONS) else regions
        description = str(self.dataset.get("ContentDescription") or "")
        return ReadSegment(
            number=number,
            mask=mask,
            label=label,
            code=code,
            finding=finding,
            regions=regions,
            review=_REVIEW.get(description.split(";")[0].strip(), "unknown"),
            empty=empty,
            tracking_uid=str(item.get("TrackingUID") or "") or None,
            colour=_colour(item),
        )


def _referenced(dataset: pydicom.Dataset) -> Iterator[str]:
    """The images that the file says it was made from."""
    for group in (
        *(dataset.get("SharedFunctionalGroupsSequence") or ()),
        *(dataset.get("PerFrameFunctionalGroupsSequence") or ()),
    ):
        yield from _derived_from(group)
    for series in dataset.get("ReferencedSeriesSequence") or ():
        for item in series.get("ReferencedInstanceSequence") or ():
            yield str(item.ReferencedSOPInstanceUID)
    for keyword in ("SourceImageSequence", "ReferencedImageSequence"):
        for item in dataset.get(keyword) or ():
            yield str(item.ReferencedSOPInstanceUID)


def _derived_from(group: pydicom.Dataset) -> list[str]:
    return [
        str(item.ReferencedSOPInstanceUID)
        for derivation in group.get("DerivationImageSequence") or ()
        for item in derivation.get("SourceImageSequence") or ()
    ]


def _segment_number(group: pydicom.Dataset, shared: pydicom.Dataset) -> int:
    for holder in (group, shared):
        for item in holder.get("SegmentIdentificationSequence") or ():
            return int(item.ReferencedSegmentNumber)
    raise ValueError("a frame names no segment")


def _code(sequence: Any) -> Code | None:
    """The first item of a code sequence; None where it is missing, or is none that fits DICOM's limits."""
    if not sequence:
        return None
    item = sequence[0]
    value = str(item.get("CodeValue") or item.get("LongCodeValue") or "")
    scheme, meaning = str(item.get("CodingSchemeDesignator") or ""), str(item.get("CodeMeaning") or "")
    if not value or not scheme or max(len(value), len(scheme)) > 16:
        return None
    return Code(value, scheme, meaning[:64] or value)


def _regions(item: pydicom.Dataset) -> tuple[str, ...]:
    regions = item.get("AnatomicRegionSequence")
    anatomy = _code(regions)
    if anatomy is None:
        return ()
    modifiers = [_code([modifier]) for modifier in regions[0].get("AnatomicRegionModifierSequence") or ()]
    return regions_of((anatomy.value, anatomy.scheme), [(m.value, m.scheme) for m in modifiers if m is not None])


def _colour(item: pydicom.Dataset) -> tuple[int, int, int] | None:
    value = item.get("RecommendedDisplayCIELabValue")
    if value is None or len(value) != 3:
        return None
    red, green, blue = hd.color.CIELabColor.from_dicom_value(list(value)).to_rgb(clip=True)
    return int(red), int(green), int(blue)
