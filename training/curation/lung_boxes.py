"""The lung boxes of an example, from the source that the configuration names."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from training.curation.lungs import read_rows
from training.curation.paper import LungSettings
from training.curation.sources.chexmask import read_lung_boxes
from training.curation.sources.cxas import read_lungs
from training.curation.sources.layout import Sources
from training.curation.sources.problems import Problems
from xflow_core.domain.errors import CallError, EngineError, RadiographError
from xflow_core.domain.findings import LUNGS
from xflow_core.domain.geometry import Box
from xflow_core.domain.instruction import Instruction

Boxes = dict[str, Box]
Sizes = dict[str, tuple[int, int]]


class LungBoxes(Protocol):
    """Both lungs' boxes of a radiograph, normalised to it; None where they cannot be had. Each row keeps ``name``."""

    name: str

    def of(self, dicom_id: str, image: Path) -> Boxes | None: ...


class CheXmaskLungs:
    """Read once, for the wanted radiographs; about a kilobyte each."""

    name = "chexmask"

    def __init__(
        self, path: Path, wanted: Collection[str], least_quality: float, problems: Problems, sizes: Sizes | None = None
    ) -> None:
        table = read_lung_boxes(path, problems, sizes, wanted, least_quality)
        self._boxes = {lungs.dicom_id: lungs.boxes for lungs in table}

    def of(self, dicom_id: str, image: Path) -> Boxes | None:
        return self._boxes.get(dicom_id)


class CxasLungs:
    name = "cxas"

    def __init__(self, folder: Path, problems: Problems, sizes: Sizes | None = None) -> None:
        self._folder, self._problems = folder, problems
        self._sizes = {} if sizes is None else sizes

    def of(self, dicom_id: str, image: Path) -> Boxes | None:
        return read_lungs(self._folder, dicom_id, self._problems, self._sizes.get(dicom_id))


class RunLungs:
    """What ``python -m training lungs`` made with CXAS or CheXmask-U."""

    def __init__(self, folder: Path) -> None:
        rows = read_rows(folder)
        tools = sorted({row["source"] for row in rows})
        if len(tools) != 1:
            raise CallError(f"{folder} holds lung boxes of several tools ({', '.join(tools)}); keep those of one.")
        self.name = tools[0]
        self._lungs = {row["dicom_id"]: row["lungs"] for row in rows}

    def of(self, dicom_id: str, image: Path) -> Boxes | None:
        lungs = self._lungs.get(dicom_id)
        return None if lungs is None else {label: Box(*lungs[label]) for label in LUNGS}


class BundleLungs:
    """The lungs that a bundle grounds in the radiograph itself; no other set is needed."""

    def __init__(self, bundle: str, problems: Problems) -> None:
        from xflow_core.bundles.loading import load_engine

        self._engine = load_engine(bundle)
        self._problems = problems
        self.name = f"bundle {self._engine.identity.name} {self._engine.identity.version}"

    def of(self, dicom_id: str, image: Path) -> Boxes | None:
        from xflow_core.radiograph.encoded import EncodedRadiograph
        from xflow_core.radiograph.reading import read_radiograph

        asked = Instruction("Segment the opacity.", "opacity", ("chest",), "chest")
        try:
            read = EncodedRadiograph(read_radiograph(image))
            lungs = self._engine.init_policy.ground_lungs(read, asked, LUNGS, seed=0).value
        except (RadiographError, EngineError) as problem:
            self._problems.add("lungs_missing", image, dicom_id, str(problem))
            return None
        return {lung.label: lung.box for lung in lungs}


def lungs_from(
    settings: LungSettings, sources: Sources, wanted: Collection[str], problems: Problems, sizes: Sizes | None = None
) -> LungBoxes:
    """The source that the configuration names.

    Args:
        wanted: the radiographs that will be asked for. sizes: theirs; a record of another size is left out.
    """
    if settings.source == "chexmask":
        return CheXmaskLungs(sources.chexmask, wanted, settings.least_quality, problems, sizes)
    if settings.source == "cxas":
        return CxasLungs(sources.cxas, problems, sizes)
    if settings.source == "run":
        return RunLungs(sources.lung_boxes)
    return BundleLungs(settings.bundle, problems)
