"""``python -m training check --data ROOT``: what is missing or broken under ROOT, by its path, before hours are spent.

Reads every table and JSON file to its end, opens the archives, and looks at every radiograph and mask (``--images`` for
a sample): whether a file is there, ends where it should, and has the size that the metadata states. What a run would
leave out is listed by kind and may be written whole with ``--report``. The exit status is 2 where something has to be
put right first: a set that is missing or damaged, a radiograph or mask that cannot be read. Not for clinical use.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from training.curation.curate import progress
from training.curation.lungs import read_rows
from training.curation.paper import PAPER, Settings, read_settings
from training.curation.sources.chexlocalize import read_localized
from training.curation.sources.chexmask import read_lung_boxes
from training.curation.sources.chexpercept import read_reviews
from training.curation.sources.cxas import read_lungs
from training.curation.sources.imagenome import SceneGraphs
from training.curation.sources.layout import Sources
from training.curation.sources.masks import read_mask
from training.curation.sources.mimic_cxr import check_image, read_marks, read_sizes
from training.curation.sources.mimic_ils import Study, read_studies
from training.curation.sources.problems import Problems
from training.curation.sources.reports import Reports
from xflow_core.domain.errors import CallError, XFlowError

# A radiograph or mask with one of these stops a run; a record with any other is left out by the readers.
_FATAL = ("image_missing", "image_truncated", "image_size", "mask_missing", "mask_empty", "mask_aspect")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the folder under which the sets lie")
    parser.add_argument("--config", type=Path, default=PAPER)
    parser.add_argument("--images", default="all", help="how many radiographs to look at, drawn by lot (all)")
    parser.add_argument(
        "--annotations-only", action="store_true", help="no radiographs and masks are there, nor wanted"
    )
    parser.add_argument("--report", type=Path, help="a file for every problem, JSON lines")


def run(arguments: argparse.Namespace) -> None:
    settings = read_settings(arguments.config)
    try:
        images = None if arguments.images == "all" else int(arguments.images)
    except ValueError:
        raise CallError(f'--images is a number or "all", not {arguments.images!r}.') from None
    if images is not None and images < 1:
        raise CallError(f"--images is at least 1, not {images}; without pictures: --annotations-only.")
    with Problems(arguments.report) as problems:
        found = check(arguments.data, settings, problems, images, pixels=not arguments.annotations_only)
    print("\n".join([*found.said, *problems.lines(every=_FATAL)]))
    fatal = found.missing + sum(problems.counts[kind] for kind in _FATAL)
    if fatal:
        things = "One thing" if fatal == 1 else f"{fatal} things"
        raise CallError(f"{things} under {arguments.data} must be put right before a run; see above.")
    print(f"{arguments.data} is ready.")


@dataclass
class Found:
    """The lines for people, and how many sets are missing or damaged."""

    said: list[str]
    missing: int = 0


def check(root: Path, settings: Settings, problems: Problems, images: int | None, pixels: bool = True) -> Found:
    """Look through everything under ``root``.

    Args:
        images: how many radiographs to look at; None for all.
        pixels: whether radiographs and masks are to be there at all.
    """
    sources = settings.sources.under(root)
    found = Found([])
    if not root.is_dir():
        raise CallError(f"{root} is no folder; give the one under which the sets lie with --data.")
    if not any(path.exists() for path in vars(sources).values()):
        inside = ", ".join(sorted(entry.name for entry in root.iterdir())[:8]) or "nothing"
        raise CallError(
            f"None of the sets is under {root} (it holds {inside}); give the folder above them, or their places in the "
            "configuration."
        )

    def look(name: str, path: Path, obtain: str, read: Callable[[], str], optional: str = "") -> None:
        try:
            if not path.exists() and not (path.suffix == ".zip" and path.with_suffix("").is_dir()):
                found.said.append(f"{'-' if optional else 'MISSING'}  {name}: {path} ({optional or obtain})")
                found.missing += not optional
                return
            found.said.append(f"ok  {name}: {read()}")
        except (CallError, OSError) as problem:
            found.said.append(f"DAMAGED  {name}: {problem}")
            found.missing += 1

    studies: dict[str, Study] = {}
    sizes: dict[str, tuple[int, int]] = {}
    counted = {"studies": 0, "pairs": 0}

    def instructions() -> str:
        _ends_whole(sources.instructions)
        reviewed = _reviewed(sources)
        known = read_marks(sources.metadata) if sizes else None
        for study in progress(read_studies(sources.instructions, problems, known), "MIMIC-ILS"):
            counted["studies"] += 1
            counted["pairs"] += len(study.pairs)
            if study.id in reviewed:
                studies[study.id] = study
        return f"{counted['studies']:,} studies, {counted['pairs']:,} pairs"

    physionet = "credentialed, physionet.org/content"

    def metadata() -> str:
        sizes.update(read_sizes(sources.metadata, problems))
        return f"{len(sizes):,} radiographs"

    def reviews() -> str:
        return f"{len(read_reviews(sources.reviews, problems).usable):,} reviewed pairs"

    def lungs() -> str:
        boxes = read_lung_boxes(sources.chexmask, problems, sizes, least_quality=settings.lungs.least_quality)
        return f"{sum(1 for _ in progress(boxes, 'CheXmask')):,} radiographs with both lungs"

    def localized() -> str:
        return f"{sum(1 for _ in read_localized(sources.chexlocalize_masks, problems)):,} radiographs"

    look("MIMIC-CXR-JPG metadata", sources.metadata, f"{physionet}/mimic-cxr-jpg/2.1.0", metadata)
    look("MIMIC-ILS", sources.instructions, f"{physionet}/mimic-cxr-ext-ils/1.0.0", instructions)
    look("CheXpercept", sources.reviews, "its authors' release", reviews)
    look(
        "Chest ImaGenome",
        sources.scene_graphs,
        f"{physionet}/chest-imagenome/1.0.0",
        lambda: _graphs(sources, studies, problems),
    )
    look("reports", sources.reports, f"{physionet}/mimic-cxr/2.1.0", lambda: _reports(sources, studies, problems))
    if settings.reports.parser == "medgemma":
        try:
            found.said.append(f"ok  MedGemma, for the reports: {_medgemma(settings.reports.model)}")
        except XFlowError as problem:
            found.said.append(f"MISSING  MedGemma, for the reports: {problem}")
            found.missing += 1
    source = settings.lungs.source
    other = "" if source == "chexmask" else f"lungs.source is {source}"
    look("CheXmask", sources.chexmask, "physionet.org/content/chexmask-cxr-segmentation-data", lungs, other)
    if source == "run":
        made = "after `splits`, `python -m training lungs` makes them"
        look("lung boxes", sources.lung_boxes, "", lambda: f"{len(read_rows(sources.lung_boxes)):,} radiographs", made)
    look("CheXlocalize", sources.chexlocalize_masks, "", localized, "only for the external evaluation")
    if pixels:
        look(
            "radiographs",
            sources.images,
            f"{physionet}/mimic-cxr-jpg/2.1.0",
            lambda: _pixels(sources, images, sizes, problems),
        )
        other = "" if source == "cxas" else f"lungs.source is {source}"
        look("CXAS", sources.cxas, "its authors' program", lambda: _cxas(sources, images, sizes, problems), other)
    return found


def _looked_at(sources: Sources, count: int | None) -> Iterable[Study]:
    """A fair, seeded sample of MIMIC-ILS's studies; all of them, one by one, where ``count`` is None."""
    studies = read_studies(sources.instructions, Problems())
    if count is None:
        return studies
    kept: list[Study] = []
    random = Random(0)
    for passed, study in enumerate(studies, start=1):
        place = len(kept) if len(kept) < count else random.randrange(passed)
        if place < count:
            kept[place : place + 1] = [study]
    return kept


def _reviewed(sources: Sources) -> frozenset[str]:
    """The studies that CheXpercept reviewed; none where it cannot be read, which is said of it elsewhere."""
    try:
        return read_reviews(sources.reviews, Problems()).studies
    except CallError:
        return frozenset()


def _ends_whole(path: Path) -> None:
    """A JSON object ends with a brace: a broken download is told from the last byte, without reading a gigabyte."""
    with open(path, "rb") as file:
        file.seek(max(path.stat().st_size - 64, 0))
        if not file.read().rstrip().endswith(b"}"):
            raise CallError(f"{path} does not end as a JSON object does; the download broke off, get it again.")


def _graphs(sources: Sources, studies: dict[str, Study], problems: Problems) -> str:
    with SceneGraphs(sources.scene_graphs, problems) as graphs:
        there = sum(graphs.read(study.dicom_id, study.subject, study.id) is not None for study in studies.values())
    return f"{there:,} of {len(studies):,} reviewed studies have a scene graph"


def _reports(sources: Sources, studies: dict[str, Study], problems: Problems) -> str:
    with Reports(sources.reports, problems) as reports:
        there = sum(reports.read(study.subject, study.id) is not None for study in studies.values())
    return f"{there:,} of {len(studies):,} reviewed studies have a report"


def _pixels(sources: Sources, images: int | None, sizes: dict[str, tuple[int, int]], problems: Problems) -> str:
    seen = whole = masks = 0
    for study in progress(_looked_at(sources, images), "radiographs"):
        size = sizes.get(study.dicom_id)
        seen += 1
        whole += check_image(sources.images / study.image, size, problems)
        for name in sorted({pair.mask for pair in study.pairs if pair.mask is not None}):
            masks += size is not None and read_mask(sources.mimic_ils / name, size, problems) is not None
    return f"{whole:,} of {seen:,} looked at are whole, with {masks:,} masks"


def _medgemma(model: str) -> str:
    """
    Raises:
        XFlowError: it is not there, or is damaged.
    """
    from training.curation.medgemma_reports import base_folder
    from xflow_core.bundles.checkpoints import LANGUAGE_MODELS, model_file_names

    folder = base_folder(model)
    model_file_names(folder, LANGUAGE_MODELS)
    return str(folder)


def _cxas(sources: Sources, images: int | None, sizes: dict[str, tuple[int, int]], problems: Problems) -> str:
    seen = there = 0
    for study in progress(_looked_at(sources, images), "CXAS"):
        seen += 1
        there += read_lungs(sources.cxas, study.dicom_id, problems, sizes.get(study.dicom_id)) is not None
    return f"{there:,} of {seen:,} looked at have both lungs"
