"""Where the sets lie on disk: the names that their publishers gave, under one data root.

Every name can be overridden in the configuration (``sources:``), since few people unpack seven sets side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Sources:
    """Folders and files, relative to the data root or absolute.

    reports and scene_graphs may be the archive as it was downloaded or the folder it unpacks to. lung_boxes is what
    ``python -m training lungs`` writes.
    """

    mimic_cxr_jpg: Path = Path("mimic-cxr-jpg/2.1.0")
    reports: Path = Path("mimic-cxr/2.1.0/mimic-cxr-reports.zip")
    mimic_ils: Path = Path("mimic-cxr-ext-ils/1.0.0")
    chexpercept: Path = Path("chexpercept")
    scene_graphs: Path = Path("chest-imagenome/1.0.0/silver_dataset/scene_graph.zip")
    chexmask: Path = Path("chexmask/MIMIC-CXR-JPG.csv")
    cxas: Path = Path("cxas")
    chexlocalize: Path = Path("chexlocalize")
    lung_boxes: Path = Path("lung-boxes")

    def under(self, root: Path) -> Sources:
        """The same, under a data root."""
        return Sources(**{field.name: root / getattr(self, field.name) for field in fields(self)})

    @property
    def images(self) -> Path:
        return self.mimic_cxr_jpg / "files"

    @property
    def metadata(self) -> Path:
        return self.mimic_cxr_jpg / "mimic-cxr-2.0.0-metadata.csv.gz"

    @property
    def official_split(self) -> Path:
        return self.mimic_cxr_jpg / "mimic-cxr-2.0.0-split.csv.gz"

    @property
    def instructions(self) -> Path:
        return self.mimic_ils / "mimic_ils_instruction_answer.json"

    @property
    def lesion_masks(self) -> Path:
        return self.mimic_ils / "lesion_mask"

    @property
    def reviews(self) -> Path:
        return self.chexpercept / "chexpercept.json"

    @property
    def chexlocalize_masks(self) -> Path:
        return self.chexlocalize / "gt_segmentations_val.json"


def image_path(subject: str, study: str, dicom_id: str) -> str:
    """A radiograph's place under ``files``, as MIMIC-CXR-JPG has it: ``p10/p10000000/s50000000/<dicom_id>.jpg``."""
    return f"{subject[:3]}/{subject}/{study}/{dicom_id}.jpg"


def report_path(subject: str, study: str) -> str:
    """A report's place in MIMIC-CXR's archive: ``files/p10/p10000000/s50000000.txt``."""
    return f"files/{subject[:3]}/{subject}/{study}.txt"
