"""The open chest X-ray pack case by case: one radiograph's file, what is known to be on it, and the same picture in
other dresses."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from training.compact.pack import MERGED, OPACITY, manifest_rows
from xflow_core.domain.findings import check_finding
from xflow_core.domain.geometry import Box

# What ChestX-Det's radiologists looked for on every picture; opacity as DESIGN.md defines it on finer classes.
CONTOURED = ("consolidation", "effusion", "atelectasis", "opacity", "cardiomegaly")


@dataclass(frozen=True)
class Case:
    """One radiograph of the pack.

    masks: the files drawn on it, by the manifest's word ("consolidation", "lung", ..).
    boxes: where a radiologist drew boxes alone, normalised to the image.
    labels: the manifest's words for it ("none_annotated", "no_finding", ..).
    """

    id: str
    source: str
    split: str
    path: Path
    masks: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    boxes: dict[str, tuple[Box, ...]] = field(default_factory=dict)
    labels: frozenset[str] = frozenset()

    @property
    def contoured(self) -> bool:
        """What was not drawn on it is absent."""
        return self.source.startswith("nih_chestxdet")

    @property
    def normal(self) -> bool:
        """Its report says "No Finding" (noisy: about one in eight looks abnormal)."""
        return "no_finding" in self.labels

    def present(self, finding: str) -> bool | None:
        """Whether the finding is on the radiograph; None where nobody looked."""
        check_finding(finding)
        if self.contoured and finding in CONTOURED:
            parts = OPACITY if finding == "opacity" else (finding,)
            return any(part in self.masks for part in parts)
        if self.normal:
            return False
        return True if finding in self.labels else None

    def truth(self, finding: str) -> np.ndarray | None:
        """Where the finding is, bool ``[H, W]`` of the file's size: the contours, or the boxes filled; all false where
        it is absent, None where it is not known or was not drawn."""
        known = self.present(finding)
        if known is None:
            return None
        mask = np.zeros(self.grey().shape, bool)
        if not known:
            return mask
        parts = OPACITY if finding == "opacity" else (finding,)
        for path in (path for part in parts for path in self.masks.get(part, ())):
            mask |= _grey(path) > 127
        for box in () if mask.any() else self.boxes.get(finding, ()):
            mask |= box.mask(mask.shape)
        return mask if mask.any() else None

    def lungs(self) -> np.ndarray | None:
        """Both lungs as one mask, bool ``[H, W]``, where a person drew them."""
        drawn = [_grey(path) > 127 for path in self.masks.get("lung", ())]
        return np.logical_or.reduce(drawn) if drawn else None

    def grey(self) -> np.ndarray:
        """The file's pixels, uint8 ``[H, W]``."""
        return _grey(self.path)


def read_cases(data: Path, splits: Sequence[str] = ("dev",)) -> list[Case]:
    """The pack's radiographs of the splits, in the manifest's order by source and name."""
    cases = []
    for (source, name), rows in manifest_rows(data).items():
        if rows[0]["split"] not in splits:
            continue
        masks: dict[str, tuple[Path, ...]] = {}
        boxes: dict[str, tuple[Box, ...]] = {}
        for row in rows:
            finding = MERGED.get(row["finding"], row["finding"])
            if row["mask_file"]:
                masks[finding] = (*masks.get(finding, ()), data / row["mask_file"])
            elif row["boxes"]:
                size = (int(float(row["height"])), int(float(row["width"])))
                drawn = tuple(Box.of_pixels(tuple(box), size) for box in json.loads(row["boxes"]))
                boxes[finding] = (*boxes.get(finding, ()), *drawn)
        labels = frozenset(row["finding"] for row in rows)
        path = data / rows[0]["file"]
        cases.append(Case(f"{source}-{name}", source, rows[0]["split"], path, masks, boxes, labels))
    return cases


def _grey(path: Path) -> np.ndarray:
    picture = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if picture is None:
        raise FileNotFoundError(f"{path} is not a readable picture; is the pack complete?")
    return np.asarray(picture)


def as_png(picture: np.ndarray) -> bytes:
    """The bytes of a PNG: uint8 ``[H, W]``, or ``[H, W, 3]`` red, green, blue."""
    stored = picture if picture.ndim == 2 else picture[..., ::-1]
    written, encoded = cv2.imencode(".png", np.ascontiguousarray(stored), [cv2.IMWRITE_PNG_COMPRESSION, 1])
    assert written
    return bytes(encoded)


def as_dicom(grey: np.ndarray, **attributes: Any) -> bytes:
    """The bytes of a CR of 12 bits: uint8 ``[H, W]``, bright where dense, times 16.

    ``PhotometricInterpretation="MONOCHROME1"`` stores it the other way round, so that it shows the same picture. Other
    attributes are set as they are given; None leaves one out.
    """
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ComputedRadiographyImageStorage, ExplicitVRLittleEndian

    stored = grey.astype(np.uint16) * np.uint16(16)
    if attributes.get("PhotometricInterpretation") == "MONOCHROME1":
        stored = np.uint16(4095) - stored
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = ComputedRadiographyImageStorage
    meta.MediaStorageSOPInstanceUID = "2.25.1"
    made = Dataset()
    made.file_meta = meta
    values: dict[str, Any] = {
        "SOPClassUID": ComputedRadiographyImageStorage,
        "SOPInstanceUID": "2.25.1",
        "Modality": "CR",
        "BodyPartExamined": "CHEST",
        "ViewPosition": "PA",
        "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2",
        "Rows": grey.shape[0],
        "Columns": grey.shape[1],
        "BitsAllocated": 16,
        "BitsStored": 12,
        "HighBit": 11,
        "PixelRepresentation": 0,
    } | attributes
    for keyword, value in values.items():
        if value is not None:
            setattr(made, keyword, value)
    made.PixelData = stored.tobytes()
    made["PixelData"].VR = "OW"
    stream = io.BytesIO()
    made.save_as(stream, enforce_file_format=True)
    return stream.getvalue()
