"""DICOM headers and traces made for the tests of the DICOM results, and the validators of other people."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom.dataset import Dataset
from pydicom.uid import ComputedRadiographyImageStorage

from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import (
    BundleIdentity,
    ImageRecord,
    Mask,
    PresenceStep,
    Result,
    ResultStep,
    Step,
    Trace,
    Verdict,
)
from xflow_core.export.dicom_source import SourceInstance, source_instance

BUNDLE = BundleIdentity("compact", "0.1.0", "compact", "cd" * 32)
PATIENT = {
    "PatientName": "Doe^Jane",
    "PatientID": "SECRET-17",
    "PatientBirthDate": "19500102",
    "PatientSex": "F",
    "AccessionNumber": "ACC-4711",
}


def header(size: tuple[int, int] = (48, 32), **attributes: Any) -> Dataset:
    """The header of a CR without a Frame of Reference; None leaves an attribute out."""
    made = Dataset()
    fields: dict[str, Any] = {
        "SOPClassUID": ComputedRadiographyImageStorage,
        "SOPInstanceUID": "2.25.1001",
        "StudyInstanceUID": "2.25.1002",
        "SeriesInstanceUID": "2.25.1003",
        **PATIENT,
        "StudyDate": "20260102",
        "StudyTime": "101112",
        "StudyID": "7",
        "ReferringPhysicianName": "Roe^Richard",
        "Modality": "CR",
        "BodyPartExamined": "CHEST",
        "PatientOrientation": ["L", "F"],
        "PhotometricInterpretation": "MONOCHROME2",
        "SamplesPerPixel": 1,
        "Rows": size[0],
        "Columns": size[1],
        "BitsAllocated": 16,
        "BitsStored": 12,
        "HighBit": 11,
        "PixelRepresentation": 0,
    } | attributes
    for keyword, value in fields.items():
        if value is not None:
            setattr(made, keyword, value)
    return made


def source(size: tuple[int, int] = (48, 32), **attributes: Any) -> SourceInstance:
    return source_instance(header(size, **attributes))


IN_SPACE = {
    "FrameOfReferenceUID": "2.25.1004",
    "PositionReferenceIndicator": "",
    "ImagePositionPatient": [10.0, -20.0, 30.0],
    "ImageOrientationPatient": [1.0, 0.0, 0.0, 0.0, 0.0, -1.0],
    "PixelSpacing": [0.4, 0.3],
}
"""What puts a radiograph into a Frame of Reference."""


def blob(size: tuple[int, int], seed: int) -> np.ndarray:
    """A mask with ragged edges that reaches the first and the last pixel."""
    mask = np.random.default_rng(seed).random(size) > 0.6
    mask[0, 0] = mask[-1, -1] = True
    return mask


def patch(size: tuple[int, int], seed: int) -> np.ndarray:
    """A ragged mask in the middle of a large image: quick to encode."""
    mask = np.zeros(size, bool)
    part = (slice(size[0] // 3, size[0] // 3 + 40), slice(size[1] // 3, size[1] // 3 + 30))
    mask[part] = blob((40, 30), seed)
    mask[-1, -1] = True
    return mask


def answer(
    image: SourceInstance,
    finding: str,
    mask: np.ndarray | None,
    places: Sequence[str] = (),
    *,
    steps: Sequence[Step] = (),
    uid: str | None = "",
    bundle: BundleIdentity = BUNDLE,
) -> Trace:
    """A finished trace: present in ``places`` (the left lung, or the heart) with its mask, or absent there."""
    present = mask is not None
    places = places or (("heart",) if finding == "cardiomegaly" else ("left lung",))
    record = ImageRecord(
        "ef" * 32,
        "dicom",
        image.size,
        image.sop_instance_uid if uid == "" else uid,
        spacing_mm=image.spacing_mm,
        spacing_kind=image.spacing_kind,
    )
    verdicts = PresenceStep(verdicts=tuple(Verdict(place, present, 0.9) for place in places))
    result = ResultStep(present=present, mask=None if mask is None else Mask.of(mask))
    return Trace(
        image=record,
        instruction=asked(finding),
        bundle=bundle,
        steps=(verdicts, *steps, result),
        result=Result("present" if present else "absent", 0.9, None, 0 if mask is None else int(mask.sum())),
    )


def asked(finding: str) -> Instruction:
    place = "heart" if finding == "cardiomegaly" else "chest"
    return Instruction(f"Segment the {finding}", finding, (place,), "chest")


def without_answer(image: SourceInstance, finding: str, status: str) -> Trace:
    record = ImageRecord("ef" * 32, "dicom", image.size, image.sop_instance_uid)
    return Trace(record, asked(finding), BUNDLE, result=Result(status, message="for a reason"))


def validated(path: Path) -> list[str]:
    """The errors that dciodvfy finds in a file."""
    tool = shutil.which("dciodvfy")
    if tool is None:
        pytest.skip("dciodvfy is not installed (Debian package dicom3tools)")
    ran = subprocess.run([tool, str(path)], capture_output=True, text=True, errors="replace", check=False)
    return [line for line in (ran.stdout + ran.stderr).splitlines() if line.startswith("Error")]


def dcmqi(tool: str) -> str:
    """A program of dcmqi, which the PyPI package of that name installs beside Python."""
    found = shutil.which(tool, path=str(Path(sys.executable).parent)) or shutil.which(tool)
    if found is None:
        pytest.skip(f"{tool} is not installed (pip install dcmqi)")
    return found


def every_element(dataset: Dataset) -> list[str]:
    """The keywords of all elements, those inside sequences too."""
    return [element.keyword for element in dataset.iterall()]
