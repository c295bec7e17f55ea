"""``python -m training instructions --data ROOT --splits DIR --out DIR2``: the initial policy's examples (paper, A.3).

One row an instruction: for SFT (``sft-*.parquet``, ``sft_val-*.parquet``) every question that MIMIC-ILS's pairs ask of
D_SFT, in varied words; for RL (``rl-*.parquet``) the questions of D_RL, and with ``--evaluation`` those of D_eval. A
row holds what a target is made of, not its text: both lungs' boxes and their source, which of them the question
grounds, a verdict for each region, the boxes of the lesion's components. Its text is written when the row is used, by
the functions that the policies write with (:mod:`training.policies.targets`); a row that has none in that grammar is
left out here, and counted. Images are by reference; ``examples.png`` shows some rows. Without masks
(``--annotations-only``) the lesion boxes are null.

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
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from training.curation.components import components_of, on_the_side
from training.curation.division import EVAL, RL, SFT, VAL
from training.curation.lung_boxes import Boxes, Sizes, lungs_from
from training.curation.paper import PAPER, LungSettings, Settings, read_settings
from training.curation.pictures import examples, instruction_sheet
from training.curation.radiograph_table import TABLES, Known, write_radiograph_table
from training.curation.shards import Row, Stage, Workers, cut, told, write_shards
from training.curation.sources.layout import Sources
from training.curation.sources.masks import read_mask
from training.curation.sources.problems import Problems
from training.curation.splits import ASKED_TOGETHER, asked_file, read_splits
from training.policies.targets import InitTarget
from xflow_core.domain.errors import NotWritten, ValueRefused
from xflow_core.domain.findings import HEART, LUNGS, level_of, lung_of, lungs_for, verdict_regions
from xflow_core.domain.geometry import Box
from xflow_core.export.files import write_whole
from xflow_core.policies.transcript import SquareFrame

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
    Workers.add_arguments(parser)
    parser.add_argument(
        "--evaluation", action="store_true", help="D_eval's too, to measure on (eval-*.parquet); never to train on"
    )


def run(arguments: argparse.Namespace) -> None:
    # Absolute: shards may be made by processes that work elsewhere.
    settings, out = read_settings(arguments.config), arguments.out.absolute()
    sources = settings.sources.under(arguments.data.absolute())
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise NotWritten(f"{out} cannot be made: {problem.strerror or problem}.") from None
    with Problems(out / "problems.jsonl") as problems:
        report = write_instructions(
            sources,
            arguments.splits.absolute(),
            out,
            settings,
            problems,
            not arguments.annotations_only,
            Workers.of(arguments),
            evaluation=arguments.evaluation,
        )
    written: list[str] = []
    if not arguments.annotations_only:
        shown = examples(out, (SFT, RL))
        write_whole(out / "examples.png", instruction_sheet(shown, sources))
        written = written_for(shown, out / "radiographs.parquet")
    title = f"The initial policy's examples (Table 6); lung boxes from {report['lung_source']}"
    six = settings.table_6
    paper = {SFT: six.init_sft_train, VAL: six.init_sft_val, RL: six.init_rl_positive + six.init_rl_negative}
    report_lines = told(title, report["counts"], problems, paper).decode() + "\n".join(written)
    write_whole(out / "report.txt", report_lines.encode())
    write_whole(out / "manifest.json", (json.dumps(report, indent=1) + "\n").encode())
    LOG.info(
        "%s, in %s; not for clinical use", ", ".join(f"{k}: {v['rows']}" for k, v in report["counts"].items()), out
    )


def written_for(rows: list[Row], table: Path) -> list[str]:
    """What a policy is to write for the first rows, for people to read."""
    lines = ["", "What the policy is to write for the first of examples.png (0 to 1000, on the square-padded picture):"]
    for row in rows[:3]:
        size = Known(table, {row["dicom_id"]}).sizes.get(row["dicom_id"])
        if size is not None:
            answer = "".join(InitTarget.of_row(row).pieces(SquareFrame(size)))
            lines += ["", f"> {row['instruction']}", *answer.split("\n")]
    return [*lines, ""]


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

    @classmethod
    def of(cls, row: Row) -> Draft:
        """From a row of ``asked-<split>.parquet``."""
        return cls(**{**row, "regions": tuple(row["regions"]), "located": tuple(row["located"])})


def write_instructions(
    sources: Sources,
    splits: Path,
    out: Path,
    settings: Settings,
    problems: Problems,
    masks: bool,
    workers: Workers | None = None,
    *,
    evaluation: bool = False,
) -> dict[str, Any]:
    """Write the shards; gives the manifest.

    Raises:
        CallError: a set or the splits are missing or damaged, or ``out`` holds shards of another run.
    """
    manifest, radiographs = read_splits(splits)
    asked = (SFT, VAL, RL, EVAL) if evaluation else (SFT, VAL, RL)
    key = hashlib.sha256(json.dumps([SCHEMA, manifest, settings.to_json(), masks]).encode()).hexdigest()
    listed = zip(radiographs["dicom_id"].to_pylist(), radiographs["split"].to_pylist(), strict=True)
    wanted = [dicom_id for dicom_id, split in listed if split in asked]
    table = out / "radiographs.parquet"
    write_radiograph_table(table, sources, settings.lungs, wanted, key, problems)
    make = partial(Finishing, sources, settings.lungs, table, masks)
    stage = Stage(out, ROWS, make, key, gpu=settings.lungs.source == "bundle")
    pieces = {split: cut(split, [asked_file(splits, split)], ASKED_TOGETHER) for split in asked}
    counts, shards = write_shards(stage, pieces, problems, workers)
    return {
        "schema": SCHEMA,
        "notice": "not for clinical use",
        "counts": counts,
        "lung_source": next(_lung_sources(out, shards), settings.lungs.source),
        "problems": dict(sorted(problems.counts.items())),
        "settings": settings.to_json(),
        "shards": shards,
    }


def _lung_sources(out: Path, shards: list[Row]) -> Iterator[str]:
    """The source that each shard's rows name."""
    for shard in shards:
        if shard["rows"]:
            yield pq.read_table(out / shard["file"], columns=["lung_source"])["lung_source"][0].as_py()


class Finishing:
    """Turns the questions of ``asked-<split>.parquet`` into rows."""

    def __init__(self, sources: Sources, settings: LungSettings, table: Path, masks: bool, problems: Problems) -> None:
        self._sources, self._table, self._masks, self._problems = sources, table, masks, problems
        self._sizes: Sizes = {}
        self._lungs = None if settings.source in TABLES else lungs_from(settings, sources, (), problems, self._sizes)

    def rows(self, split: str, drafts: Iterator[Row]) -> Iterator[Row | str]:
        asked = [Draft.of(row) for row in drafts]
        known = Known(self._table, {draft.dicom_id for draft in asked})
        self._sizes.clear()
        self._sizes.update(known.sizes)
        source = self._lungs or known
        for dicom_id, together in groupby(asked, key=lambda draft: draft.dicom_id):
            of_one = list(together)
            lungs = source.of(dicom_id, self._sources.images / of_one[0].image)
            for draft in of_one:
                yield self._row(draft, lungs, source.name, known.sizes.get(dicom_id))

    def _row(self, draft: Draft, lungs: Boxes | None, lung_source: str, size: tuple[int, int] | None) -> Row | str:
        if lungs is None:
            return "no lung boxes"
        verdicts = verdicts_for(draft)
        if verdicts is None:
            return "present, but in which lung is not said"
        boxes: list[list[float]] | None = [] if self._masks or not draft.present else None
        if self._masks and draft.present:
            found = self._boxes(draft, lungs, size)
            if isinstance(found, str):
                return found
            boxes = found
        place, level, grounded = _asked_about(draft.regions)
        row = {
            "id": f"{draft.study}_{draft.finding}_{place}_{'positive' if draft.present else 'negative'}",
            "study": draft.study,
            "dicom_id": draft.dicom_id,
            "image": draft.image,
            "instruction": draft.instruction,
            "finding": draft.finding,
            "level": level,
            "regions": list(draft.regions),
            "present": draft.present,
            "lungs": [{"label": label, "box": lungs[label].to_json()} for label in LUNGS],
            "grounded": grounded,
            "lung_source": lung_source,
            "verdicts": [{"region": region, "present": present} for region, present in verdicts.items()],
            "boxes": boxes,
            "mask": draft.mask,
        }
        if boxes is not None:
            try:
                InitTarget.of_row(row)
            except ValueRefused:
                return "no answer: a region that is present and that no box reaches, or too many boxes in one"
        return row

    def _boxes(self, draft: Draft, lungs: Boxes, size: tuple[int, int] | None) -> list[list[float]] | str:
        """The boxes of the mask's components on the question's side, or why there is none."""
        if size is None or draft.mask is None:
            return "no size in the metadata" if size is None else "no mask named"
        mask = read_mask(self._sources.mimic_ils / draft.mask, size, self._problems, enlarged=False)
        if mask is None:
            return "mask unusable"
        boxes = [Box.around(piece) for piece in components_of(on_the_side(mask, draft.regions, lungs))]
        return [box.to_json() for box in boxes if box is not None] or "nothing of the mask on the question's side"


@cache
def _asked_about(regions: tuple[str, ...]) -> tuple[str, str, tuple[str, ...]]:
    """A word for the regions, their level, and the lungs to ground."""
    return "+".join(region.replace(" ", "-") for region in regions), level_of(regions[0]), lungs_for(regions)


def verdicts_for(draft: Draft) -> dict[str, bool] | None:
    """The verdict of each region that gets one; None where the finding is present and nobody says in which lung."""
    regions = verdict_regions(draft.regions)
    if regions == draft.regions:
        return dict.fromkeys(regions, draft.present)
    lungs = {lung_of(region) for region in draft.located if region != HEART}
    if draft.present and not lungs & set(LUNGS):
        return None
    return {region: draft.present and region in lungs for region in regions}
