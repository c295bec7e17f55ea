"""Radiographs as files and in the scene, and answers about them: what the tests of DICOM in and out share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import slicer
from export.dicom_headers import header
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian

SIZE = (223, 191)


def pixels(size: tuple[int, int]) -> np.ndarray:
    """A picture in which no two rows and no two columns are alike, uint16 of 12 bits."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    return (400 + 7 * rows + 9 * columns + (rows * columns) % 17).astype(np.uint16)


def dicom_file(path: Path, size: tuple[int, int] = SIZE, **attributes: Any) -> Path:
    """A CR with pixels, without a Frame of Reference unless ``attributes`` give one."""
    made = header(size, **attributes)
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = made.SOPClassUID, made.SOPInstanceUID
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = FileDataset(str(path), made, file_meta=meta, preamble=b"\0" * 128)
    file.PixelData = pixels(size).tobytes()
    file.save_as(path, enforce_file_format=True)
    return path


def loaded(path: Path) -> Any:
    """The volume of a DICOM file that is in the database, as Slicer's DICOM module loads it."""
    slicer.dicomDatabase.insert(str(path))
    volume = slicer.util.loadVolume(str(path), {"singleFile": True})
    volume.SetAttribute("DICOM.instanceUIDs", slicer.dicomDatabase.instanceForFile(str(path)))
    return volume


def picture(path: Path) -> Any:
    """A PNG in the scene."""
    Image.fromarray((pixels(SIZE) >> 4).astype(np.uint8)).save(path)
    return slicer.util.loadVolume(str(path), {"singleFile": True})


def masks_of(node: Any, volume: Any) -> dict[str, np.ndarray]:
    """Every segment's mask by its name, bool ``[K, J, I]`` on the volume's grid, as Slicer's own export gives it."""
    segmentation = node.GetSegmentation()
    masks = {}
    for number in range(segmentation.GetNumberOfSegments()):
        identity = segmentation.GetNthSegmentID(number)
        name = segmentation.GetSegment(identity).GetName()
        assert name not in masks
        masks[name] = slicer.util.arrayFromSegmentBinaryLabelmap(node, identity, volume) > 0
    return masks


def segment(node: Any, name: str) -> Any:
    segmentation = node.GetSegmentation()
    return segmentation.GetSegment(segmentation.GetSegmentIdBySegmentName(name))
