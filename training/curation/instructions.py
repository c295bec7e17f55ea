"""``python -m training instructions --data ROOT --splits DIR --out DIR2``: the initial policy's examples (paper, A.3).

One row an instruction: for SFT (``sft-*.parquet``, ``sft_val-*.parquet``) every question that MIMIC-ILS's pairs ask of
D_SFT, in varied words; for RL (``rl-*.parquet``) the questions of D_RL, and with ``--evaluation`` those of D_eval. A
row holds what a target is made of, not its text: both lungs' boxes and their source, which of them the question
grounds, a verdict for each region, the boxes of the lesion's components. What a policy is to write follows from it by
the transcript grammar, which is not this room's. Images are by reference; ``examples.png`` shows some rows. Without
masks (``--annotations-only``) the lesion boxes are null.

The same input gives the same bytes, and a run that was stopped goes on. ``report.txt`` and ``manifest.json`` are
written last. Not for clinical use.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from training.curation.components import components_of, on_the_side
from training.curation.curate import progress
from training.curation.division import EVAL, RL, SFT, VAL
from training.curation.lung_boxes import LungBoxes, lungs_from
from training.curation.paper import PAPER, Settings, read_settings
from training.curation.pictures import examples, instruction_sheet
from training.curation.questions import asked_of
from training.curation.shards import told, write_shards
from training.curation.sources.layout import Sources
from training.curation.sources.masks import read_mask
from training.curation.sources.mimic_cxr import read_sizes
from training.curation.sources.mimic_ils import read_studies
from training.curation.sources.problems import Problems
from training.curation.templates import phrased
from xflow_core.domain.errors import CallError, NotWritten
from xflow_core.domain.findings import HEART, LUNGS, level_of, lung_of, lungs_for, verdict_regions
from xflow_core.domain.geometry import Box
from xflow_core.export.files import write_whole

LOG = logging.getLogger(__name__)

SCHEMA = "xflow.instructions/1"
_BOX = pa.list_(pa.float32(), 4)
ROWS = pa.schema([
    *((name, pa.string()) for name in ("id", "study", "dicom_id", "image", "instruction", "finding", "level")),
    ("regions", pa.list_(pa.string())),
    ("present", pa.bool_()),
    ("lungs", pa.list_(pa.struct([("label", pa.string()), ("box", _BOX)]))),
    ("grounded", pa.list_(pa.string())),
    ("lung_source", pa.string()),
    ("verdicts", pa.list_(pa.struct([("region", pa.string()), ("present", pa.bool_())]))),
    ("boxes", pa.list_(_BOX)),
    ("mask", pa.string()),
])  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the folder under which the sets lie")
    parser.add_argument("--splits", type=Path, required=True, help="what `python -m training splits` wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=PAPER)
    parser.add_argument(
        "--annotations-only", action="store_true", help="there are no masks: leave the lesion boxes out"
    )
    parser.add_argument(
        "--evaluation", action="store_true", help="D_eval's too, to measure on (eval-*.parquet); never to train on"
    )


def run(arguments: argparse.Namespace) -> None:
    settings, out = read_settings(arguments.config), arguments.out
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise NotWritten(f"{out} cannot be made: {problem.strerror or problem}.") from None
    with Problems(out / "problems.jsonl") as problems:
        report = write_instructions(
            settings.sources.under(arguments.data),
            arguments.splits,
            out,
            settings,
            problems,
            not arguments.annotations_only,
            evaluation=arguments.evaluation,
        )
    if not arguments.annotations_only:
        shown = examples(out, (SFT, RL))
        write_whole(out / "examples.png", instruction_sheet(shown, settings.sources.under(arguments.data)))
    title = f"The initial policy's examples (Table 6); lung boxes from {report['lung_source']}"
    write_whole(out / "report.txt", told(title, report["counts"], problems))
    write_whole(out / "manifest.json", (json.dumps(report, indent=1) + "\n").encode())
    LOG.info(
        "%s, in %s; not for clinical use", ", ".join(f"{k}: {v['rows']}" for k, v in report["counts"].items()), out
    )


@dataclass(frozen=True, slots=True)
class Draft:
    """A question of a split, before its lungs and boxes are looked up. located: where the finding is said to lie."""

    study: str
    dicom_id: str
    image: str
    finding: str
    regions: tuple[str, ...]
    present: bool
    located: tuple[str, ...]
    mask: str | None
    instruction: str


def write_instructions(
    sources: Sources,
    splits: Path,
    out: Path,
    settings: Settings,
    problems: Problems,
    masks: bool,
    *,
    evaluation: bool = False,
) -> dict[str, Any]:
    """Write the shards; gives the manifest.

    Raises:
        CallError: a set or the splits are missing or damaged, or ``out`` holds shards of another run.
    """
    of_study, key = _splits(splits, settings, masks)
    # CheXmask and the metadata are looked up for these radiographs alone.
    wanted = {dicom_id for _, dicom_id in of_study.values()}
    lungs = lungs_from(settings.lungs, sources, wanted, problems)
    sizes = read_sizes(sources.metadata, problems, wanted) if masks else {}
    counts, shards = {}, []
    for split in (SFT, VAL, RL, *((EVAL,) if evaluation else ())):
        drafts = _questions(splits, split) if split in (RL, EVAL) else _pairs(sources, split, of_study)
        finishing = _Finishing(sources, lungs, sizes, problems, masks)
        counted, files = write_shards(out, split, ROWS, progress(drafts, split), finishing.rows, key)
        counts[split] = dict(sorted(counted.items()))
        shards += files
    return {
        "schema": SCHEMA,
        "notice": "not for clinical use",
        "counts": counts,
        "lung_source": lungs.name,
        "problems": dict(sorted(problems.counts.items())),
        "settings": settings.to_json(),
        "shards": shards,
    }


def _splits(folder: Path, settings: Settings, masks: bool) -> tuple[dict[str, tuple[str, str]], str]:
    """(split, DICOM id) by study, and a key for all that the rows depend on."""
    try:
        manifest = (folder / "manifest.json").read_bytes()
        table = pq.read_table(folder / "radiographs.parquet", columns=["study", "split", "dicom_id"])
    except (OSError, pa.ArrowInvalid) as problem:
        raise CallError(
            f"{folder} holds no finished splits ({problem}); make them with `python -m training splits`."
        ) from None
    columns = (table[name].to_pylist() for name in ("study", "split", "dicom_id"))
    digest = hashlib.sha256(manifest + json.dumps([SCHEMA, settings.to_json(), masks]).encode()).hexdigest()
    return {study: (split, dicom_id) for study, split, dicom_id in zip(*columns, strict=True)}, digest


def _pairs(sources: Sources, split: str, of_study: dict[str, tuple[str, str]]) -> Iterator[Draft]:
    # Problems of the pairs themselves stand in the splits' report already.
    for study in read_studies(sources.instructions, Problems()):
        if of_study.get(study.id, ("", ""))[0] == split:
            for asked in asked_of(study):
                yield Draft(
                    study.id, study.dicom_id, study.image, asked.finding, asked.regions, asked.present, asked.located,
                    asked.mask, phrased(asked.finding, asked.regions, study.id),
                )  # fmt: skip


def _questions(splits: Path, split: str) -> Iterator[Draft]:
    agreed: dict[tuple[str, str], list[str]] = {}
    for row in pq.read_table(splits / "agreed.parquet").to_pylist():
        if row["present"]:
            agreed.setdefault((row["study"], row["finding"]), []).append(row["region"])
    for row in pq.read_table(splits / "questions.parquet").to_pylist():
        if row["split"] == split:
            located = tuple(region for region in agreed.get((row["study"], row["finding"]), ()) if region != "chest")
            yield Draft(
                row["study"], row["dicom_id"], row["image"], row["finding"], tuple(row["regions"]), row["present"],
                located, row["mask"], row["instruction"],
            )  # fmt: skip


class _Finishing:
    """Looks up what a draft needs."""

    def __init__(
        self,
        sources: Sources,
        lungs: LungBoxes,
        sizes: dict[str, tuple[int, int]],
        problems: Problems,
        masks: bool,
    ) -> None:
        self._sources, self._lungs, self._sizes = sources, lungs, sizes
        self._problems, self._masks = problems, masks
        self._last: tuple[str, dict[str, Box] | None] = ("", None)

    def rows(self, draft: Draft) -> list[dict[str, Any] | str]:
        lungs = self._lungs_of(draft)
        if lungs is None:
            return ["no lung boxes"]
        verdicts = verdicts_for(draft)
        if verdicts is None:
            return ["present, but in which lung is not said"]
        boxes: list[list[float]] | None = [] if self._masks or not draft.present else None
        if self._masks and draft.present:
            found = self._boxes(draft, lungs)
            if isinstance(found, str):
                return [found]
            boxes = found
        place = "+".join(region.replace(" ", "-") for region in draft.regions)
        row = {
            "id": f"{draft.study}_{draft.finding}_{place}_{'positive' if draft.present else 'negative'}",
            "study": draft.study,
            "dicom_id": draft.dicom_id,
            "image": draft.image,
            "instruction": draft.instruction,
            "finding": draft.finding,
            "level": level_of(draft.regions[0]),
            "regions": list(draft.regions),
            "present": draft.present,
            "lungs": [{"label": label, "box": lungs[label].to_json()} for label in LUNGS],
            "grounded": list(lungs_for(draft.regions)),
            "lung_source": self._lungs.name,
            "verdicts": [{"region": region, "present": present} for region, present in verdicts.items()],
            "boxes": boxes,
            "mask": draft.mask,
        }
        return [row]

    def _lungs_of(self, draft: Draft) -> dict[str, Box] | None:
        if self._last[0] != draft.dicom_id:
            self._last = (draft.dicom_id, self._lungs.of(draft.dicom_id, self._sources.images / draft.image))
        return self._last[1]

    def _boxes(self, draft: Draft, lungs: dict[str, Box]) -> list[list[float]] | str:
        """The boxes of the mask's components on the question's side, or why there is none."""
        size = self._sizes.get(draft.dicom_id)
        if size is None or draft.mask is None:
            return "no size in the metadata" if size is None else "no mask named"
        mask = read_mask(self._sources.mimic_ils / draft.mask, size, self._problems, enlarged=False)
        if mask is None:
            return "mask unusable"
        boxes = [Box.around(piece) for piece in components_of(on_the_side(mask, draft.regions, lungs))]
        return [box.to_json() for box in boxes if box is not None] or "nothing of the mask on the question's side"


def verdicts_for(draft: Draft) -> dict[str, bool] | None:
    """The verdict of each region that gets one; None where the finding is present and nobody says in which lung."""
    regions = verdict_regions(draft.regions)
    if regions == draft.regions:
        return dict.fromkeys(regions, draft.present)
    lungs = {lung_of(region) for region in draft.located if region != HEART}
    if draft.present and not lungs & set(LUNGS):
        return None
    return {region: draft.present and region in lungs for region in regions}
