"""Small stand-ins for the terminologies that Slicer ships and slicer-core does not: same file names and context names.

Each holds one entry (tissue, lung), enough for the terminologies logic to start as it does in Slicer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def _code(value: str, meaning: str, **more: Any) -> dict[str, Any]:
    return {"CodeValue": value, "CodingSchemeDesignator": "SCT", "CodeMeaning": meaning, **more}


_TISSUE = _code("85756007", "Tissue", showAnatomy=True)
_LUNG = _code("39607008", "Lung", recommendedDisplayRGBValue=[197, 165, 145])


def _segmentation(name: str) -> dict[str, Any]:
    return {
        "SegmentationCategoryTypeContextName": name,
        "@schema": "https://raw.githubusercontent.com/qiicr/dcmqi/master/doc/schemas/segment-context-schema.json#",
        "SegmentationCodes": {"Category": [{**_TISSUE, "Type": [_code("85756007", "Tissue"), _LUNG]}]},
    }


def _anatomy(name: str) -> dict[str, Any]:
    return {
        "AnatomicContextName": name,
        "@schema": "https://raw.githubusercontent.com/qiicr/dcmqi/master/doc/schemas/anatomic-context-schema.json#",
        "AnatomicCodes": {"AnatomicRegion": [_code("39607008", "Lung")]},
    }


def write_defaults(folder: Path) -> None:
    """Write the three files that the terminologies logic loads when it gets its scene."""
    files = {
        "SegmentationCategoryTypeModifier-SlicerGeneralAnatomy": _segmentation(
            "Segmentation category and type - 3D Slicer General Anatomy list"
        ),
        "SegmentationCategoryTypeModifier-DICOM-Master": _segmentation(
            "Segmentation category and type - DICOM master list"
        ),
        "AnatomicRegionAndModifier-DICOM-Master": _anatomy("Anatomic codes - DICOM master list"),
    }
    for name, content in files.items():
        (folder / f"{name}.term.json").write_text(json.dumps(content), encoding="utf-8")
