"""``python -m training trajectories --data ROOT --instructions DIR --out DIR2``: the revision policy's examples.

One row a true component of a positive instruction (paper, A.3, Algorithm 1). For SFT (``sft-*.parquet``,
``sft_val-*.parquet``): the perturbed box, the mask that the segmenter gives for it, then up to four oracle clicks with
the mask after each; a trajectory that clicks without improving its mask is dropped. For RL (``rl-*.parquet``): the
perturbed box and its mask, several a component; for D_eval, where the instructions hold it, the same. Masks are COCO
run lengths in the radiograph's frame. F_seg is a bundle's segmenter: the compact one runs on a CPU, another bundle's
takes its place by ``--bundle``.

``examples.png`` shows some of them. The same input and segmenter give the same bytes, and a run that was stopped goes
on. Not for clinical use.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from training.curation.components import components_of, on_the_side
from training.curation.curate import progress
from training.curation.division import EVAL, RL, SFT, VAL
from training.curation.oracle import revise, start
from training.curation.paper import PAPER, RevisionSettings, read_settings
from training.curation.pictures import examples, trajectory_sheet
from training.curation.shards import told, write_shards
from training.curation.sources.layout import Sources
from training.curation.sources.masks import read_mask
from training.curation.sources.problems import Problems
from xflow_core.bundles.loading import load_engine
from xflow_core.domain import rle
from xflow_core.domain.errors import CallError, NotWritten, RadiographError
from xflow_core.domain.geometry import Box, mask_iou
from xflow_core.domain.trace import Click
from xflow_core.export.files import write_whole
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.segmenters.protocol import PromptableSegmenter

LOG = logging.getLogger(__name__)

SCHEMA = "xflow.trajectories/1"
_BOX = pa.list_(pa.float32(), 4)
ROWS = pa.schema([
    *((name, pa.string()) for name in ("id", "study", "image", "instruction", "finding")),
    ("component", pa.int32()),
    ("size", pa.list_(pa.int32(), 2)),
    ("truth", pa.string()),
    ("box", _BOX),
    ("masks", pa.list_(pa.string())),
    ("clicks", pa.list_(pa.struct([("polarity", pa.string()), ("point", pa.list_(pa.float32(), 2))]))),
    ("ious", pa.list_(pa.float32())),
])  # fmt: skip
# A box, the masks that follow from it, the clicks between them.
_Made = tuple[Box, tuple[np.ndarray, ...], tuple[Click, ...]]
_Make = Callable[[EncodedRadiograph, np.ndarray, str, int], Iterator[_Made | None]]
# Trajectories are slow to make: small shards lose little when a run is stopped.
_DRAFTS_EACH = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the folder under which the sets lie")
    parser.add_argument("--instructions", type=Path, required=True, help="what `python -m training instructions` wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=PAPER)
    parser.add_argument("--bundle", default="compact", help="whose segmenter stands for F_seg")
    parser.add_argument("--device", default="auto")


def run(arguments: argparse.Namespace) -> None:
    settings, out = read_settings(arguments.config), arguments.out
    engine = load_engine(arguments.bundle, arguments.device)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise NotWritten(f"{out} cannot be made: {problem.strerror or problem}.") from None
    identity = engine.identity.to_json()
    with Problems(out / "problems.jsonl") as problems:
        maker = Trajectories(
            settings.sources.under(arguments.data), engine.segmenter, settings.revision, settings.splits.seed, problems
        )
        report = {
            "schema": SCHEMA,
            "notice": "not for clinical use",
            "segmenter": identity,
            **write_trajectories(arguments.instructions, out, maker, json.dumps([identity, settings.to_json()])),
            "problems": dict(sorted(problems.counts.items())),
            "settings": settings.to_json(),
        }
    title = f"The revision policy's examples (Table 6); F_seg: {identity['name']} {identity['version']}"
    write_whole(out / "report.txt", told(title, report["counts"], problems))
    write_whole(out / "examples.png", trajectory_sheet(examples(out, ("sft",)), settings.sources.under(arguments.data)))
    write_whole(out / "manifest.json", (json.dumps(report, indent=1) + "\n").encode())
    LOG.info(
        "%s, in %s; not for clinical use", ", ".join(f"{k}: {v['rows']}" for k, v in report["counts"].items()), out
    )


class Trajectories:
    """Makes the rows of an instruction; an image is read and encoded once for all instructions that follow on it."""

    def __init__(
        self,
        sources: Sources,
        segmenter: PromptableSegmenter,
        settings: RevisionSettings,
        seed: int,
        problems: Problems,
    ) -> None:
        self._sources, self._segmenter, self._problems = sources, segmenter, problems
        self._settings, self._seed = settings, seed
        self._last: tuple[str, EncodedRadiograph | None] = ("", None)

    def trajectories(self, draft: dict[str, Any]) -> list[dict[str, Any] | str]:
        """For SFT."""
        return self._rows(draft, self._revised)

    def starts(self, draft: dict[str, Any]) -> list[dict[str, Any] | str]:
        """For RL."""
        return self._rows(draft, self._started)

    def _rows(self, draft: dict[str, Any], make: _Make) -> list[dict[str, Any] | str]:
        image = self._image(draft["image"])
        if image is None:
            return ["radiograph unreadable"]
        size = image.radiograph.size
        mask = read_mask(self._sources.mimic_ils / draft["mask"], size, self._problems)
        if mask is None:
            return ["mask unusable"]
        lungs = {lung["label"]: Box(*lung["box"]) for lung in draft["lungs"]}
        rows: list[dict[str, Any] | str] = []
        pieces = components_of(on_the_side(mask, draft["regions"], lungs))
        for number, truth in enumerate(pieces):
            for turn, made in enumerate(make(image, truth, draft["id"], number)):
                if made is None:
                    rows.append("clicks do not improve the mask")
                    continue
                box, masks, clicks = made
                rows.append({
                    "id": f"{draft['id']}_{number}_{turn}",
                    **{name: draft[name] for name in ("study", "image", "instruction", "finding")},
                    "component": number,
                    "size": list(size),
                    "truth": rle.encode(truth),
                    "box": box.to_json(),
                    "masks": [rle.encode(mask) for mask in masks],
                    "clicks": [{"polarity": click.polarity, "point": click.point.to_json()} for click in clicks],
                    "ious": [mask_iou(mask, truth) for mask in masks],
                })  # fmt: skip
        return rows or ["nothing of the mask on the question's side"]

    def _revised(self, image: EncodedRadiograph, truth: np.ndarray, name: str, number: int) -> Iterator[_Made | None]:
        made = revise(self._segmenter, image, truth, self._settings, self._rng(name, number, 0))
        yield None if made is None else (made.box, made.masks, made.clicks)

    def _started(self, image: EncodedRadiograph, truth: np.ndarray, name: str, number: int) -> Iterator[_Made | None]:
        for turn in range(self._settings.starts):
            rng = self._rng(name, number, turn)
            box, prediction = start(self._segmenter, image, truth, self._settings.jitter, rng)
            yield box, (prediction.mask,), ()

    def _rng(self, name: str, number: int, turn: int) -> np.random.Generator:
        digest = hashlib.sha256(json.dumps([self._seed, name, number, turn]).encode()).digest()
        return np.random.default_rng(list(digest))

    def _image(self, name: str) -> EncodedRadiograph | None:
        if self._last[0] != name:
            path = self._sources.images / name
            try:
                self._last = (name, EncodedRadiograph(read_radiograph(path)))
            except RadiographError as problem:
                kind = "image_truncated" if path.exists() else "image_missing"
                self._problems.add(kind, path, path.stem, str(problem))
                self._last = (name, None)
        return self._last[1]


def write_trajectories(instructions: Path, out: Path, maker: Trajectories, key: str) -> dict[str, Any]:
    """Write the shards of all splits; gives counts and shards for the manifest.

    Raises:
        CallError: the instructions are not there, or ``out`` holds shards of another run.
    """
    try:
        manifest = json.loads((instructions / "manifest.json").read_bytes())
        files = [shard["file"] for shard in manifest["shards"]]
    except (OSError, ValueError, KeyError) as problem:
        raise CallError(
            f"{instructions} holds no finished instructions ({problem}); `python -m training instructions` makes them."
        ) from None
    digest = hashlib.sha256((key + json.dumps(manifest["shards"])).encode()).hexdigest()
    counts, shards = {}, []
    for split in (SFT, VAL, RL, EVAL):
        paths = [instructions / name for name in files if name.rsplit("-", 1)[0] == split]
        if split == EVAL and not paths:
            continue
        finish = maker.starts if split in (RL, EVAL) else maker.trajectories
        drafts = progress(_positive(paths), split)
        counted, made = write_shards(out, split, ROWS, drafts, finish, digest, _DRAFTS_EACH)
        counts[split] = dict(sorted(counted.items()))
        shards += made
    return {"counts": counts, "shards": shards}


def _positive(paths: list[Path]) -> Iterator[dict[str, Any]]:
    """The positive instructions, in their order."""
    for path in paths:
        for batch in pq.ParquetFile(path).iter_batches():
            for row in batch.to_pylist():
                if row["present"]:
                    yield row
