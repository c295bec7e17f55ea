"""``python -m training trajectories --data ROOT --instructions DIR --out DIR2``: the revision policy's examples.

One row a true component of a positive instruction (paper, A.3, Algorithm 1). For SFT (``sft-*.parquet``,
``sft_val-*.parquet``): the perturbed box, the mask that the segmenter gives for it, then up to four oracle clicks with
the mask after each; a trajectory that clicks without improving its mask is dropped. For RL (``rl-*.parquet``): the
perturbed box and its mask, several a component; for D_eval, where the instructions hold it, the same. Masks are COCO
run lengths in the radiograph's frame. F_seg is a bundle's segmenter: the compact one runs on a CPU, another bundle's
takes its place by ``--bundle``. It encodes a radiograph once, and is asked once a turn for all components of all
questions about it.

``examples.png`` shows some of them. The same input and segmenter give the same bytes, and a run that was stopped goes
on. Not for clinical use.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from training.curation.components import components_of, on_the_side
from training.curation.division import EVAL, RL, SFT, VAL
from training.curation.oracle import Trajectory, revise, starts
from training.curation.paper import PAPER, RevisionSettings, read_settings
from training.curation.pictures import examples, trajectory_sheet
from training.curation.shards import Maker, Piece, Row, Span, Stage, Workers, told, write_shards
from training.curation.sources.layout import Sources
from training.curation.sources.masks import read_mask
from training.curation.sources.problems import Problems
from xflow_core.bundles.loading import load_engine
from xflow_core.bundles.manifest import find_bundle
from xflow_core.domain import rle
from xflow_core.domain.errors import BundleError, CallError, NotWritten, RadiographError
from xflow_core.domain.geometry import Box, mask_iou
from xflow_core.domain.trace import BundleIdentity
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
# Radiographs a shard. Trajectories are slow to make: small shards lose little when a run is stopped.
_RADIOGRAPHS_EACH = 200

# The positive instructions about one radiograph, as `instructions` wrote them.
Draft = list[dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the folder under which the sets lie")
    parser.add_argument("--instructions", type=Path, required=True, help="what `python -m training instructions` wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=PAPER)
    parser.add_argument("--bundle", default="compact", help="whose segmenter stands for F_seg")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--radiographs",
        type=int,
        help=f"of D_SFT, about so many that have a positive instruction ({_RADIOGRAPHS_EACH} a shard; all)",
    )
    Workers.add_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    # Absolute: shards may be made by processes that work elsewhere.
    settings, out = read_settings(arguments.config), arguments.out.absolute()
    found = find_bundle(arguments.bundle)
    bundle = str(found.folder.absolute()) if Path(arguments.bundle).is_dir() else arguments.bundle
    identity = found.identity.to_json()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise NotWritten(f"{out} cannot be made: {problem.strerror or problem}.") from None
    sources = settings.sources.under(arguments.data.absolute())
    seed = settings.splits.seed
    make = partial(with_bundle, bundle, arguments.device, found.identity, sources, settings.revision, seed)
    key = json.dumps([identity, settings.to_json()])
    most = None if arguments.radiographs is None else max(round(arguments.radiographs / _RADIOGRAPHS_EACH), 1)
    there, begun = {path.name for path in out.glob("*.parquet")}, time.monotonic()
    with Problems(out / "problems.jsonl") as problems:
        report = {
            "schema": SCHEMA,
            "notice": "not for clinical use",
            "segmenter": identity,
            **write_trajectories(
                arguments.instructions.absolute(),
                out,
                make,
                key,
                problems,
                Workers.of(arguments),
                gpu=arguments.device in ("auto", "cuda"),
                most=most,
            ),
            "problems": dict(sorted(problems.counts.items())),
            "settings": settings.to_json(),
        }
    title = f"The revision policy's examples (Table 6); F_seg: {identity['name']} {identity['version']}"
    six = settings.table_6
    paper = {SFT: six.rev_sft_train, VAL: six.rev_sft_val, RL: six.rev_rl}
    write_whole(out / "report.txt", told(title, report["counts"], problems, paper))
    states = out / f"{RL}-00000.parquet"
    first = pq.read_table(states).slice(0, settings.revision.starts).to_pylist() if states.is_file() else []
    write_whole(out / "examples.png", trajectory_sheet(examples(out, (SFT,)), first, sources))
    write_whole(out / "manifest.json", (json.dumps(report, indent=1) + "\n").encode())
    LOG.info(
        "%s, in %s; not for clinical use", ", ".join(f"{k}: {v['rows']}" for k, v in report["counts"].items()), out
    )
    # Not in the report, which equal input makes equal.
    made, seconds = (
        sum(shard["rows"] for shard in report["shards"] if shard["file"] not in there),
        time.monotonic() - begun,
    )
    LOG.info("%d rows were made in %.0f s: %.1f a second", made, seconds, made / seconds)


class Trajectories:
    """Makes the rows of all positive instructions about one radiograph, which is read and encoded once."""

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

    def rows(self, split: str, drafts: Iterator[Row]) -> Iterator[Row | str]:
        """Of a piece of the instructions; negative ones are passed over."""
        finish = self.starts if split in (RL, EVAL) else self.trajectories
        positive = (draft for draft in drafts if draft["present"])
        for _, asked in groupby(positive, key=lambda draft: draft["image"]):
            yield from finish(list(asked))

    def trajectories(self, draft: Draft) -> list[dict[str, Any] | str]:
        """For SFT."""
        image, asked, rows = self._asked(draft, 1)
        if image is not None:
            truths, rngs = [one.truth for one in asked], [one.rng for one in asked]
            for one, made in zip(asked, revise(self._segmenter, image, truths, self._settings, rngs), strict=True):
                rows.append("clicks do not improve the mask" if made is None else _row(one, made))
        return rows

    def starts(self, draft: Draft) -> list[dict[str, Any] | str]:
        """For RL, and to measure on."""
        image, asked, rows = self._asked(draft, self._settings.starts)
        if image is not None:
            truths, rngs = [one.truth for one in asked], [one.rng for one in asked]
            begun = starts(self._segmenter, image, truths, self._settings.jitter, rngs)
            for one, (box, prediction) in zip(asked, begun, strict=True):
                iou = mask_iou(prediction.mask, one.truth)
                rows.append(_row(one, Trajectory(box, (prediction.mask,), (), (iou,))))
        return rows

    def _asked(self, draft: Draft, times: int) -> tuple[EncodedRadiograph | None, list[_Asked], list[Any]]:
        """The radiograph, the components to be asked for, and a reason for every instruction that has none."""
        image = self._read(draft[0]["image"])
        if image is None:
            return None, [], ["radiograph unreadable"] * len(draft)
        size, asked, reasons = image.radiograph.size, [], []
        masks: dict[str, np.ndarray | None] = {}
        for question in draft:
            name = question["mask"]
            if name not in masks:
                masks[name] = read_mask(self._sources.mimic_ils / name, size, self._problems)
            mask = masks[name]
            if mask is None:
                reasons.append("mask unusable")
                continue
            lungs = {lung["label"]: Box(*lung["box"]) for lung in question["lungs"]}
            pieces = components_of(on_the_side(mask, question["regions"], lungs))
            asked += [
                _Asked(question, number, turn, truth, self._rng(question["id"], number, turn))
                for number, truth in enumerate(pieces)
                for turn in range(times)
            ]
            if not pieces:
                reasons.append("nothing of the mask on the question's side")
        return image, asked, reasons

    def _rng(self, name: str, number: int, turn: int) -> np.random.Generator:
        digest = hashlib.sha256(json.dumps([self._seed, name, number, turn]).encode()).digest()
        return np.random.default_rng(list(digest))

    def _read(self, name: str) -> EncodedRadiograph | None:
        path = self._sources.images / name
        try:
            return EncodedRadiograph(read_radiograph(path))
        except RadiographError as problem:
            kind = "image_truncated" if path.exists() else "image_missing"
            self._problems.add(kind, path, path.stem, str(problem))
            return None


@dataclass(frozen=True, eq=False)
class _Asked:
    """One component of a question's truth, to be asked for with a box of its own. turn: the how-manieth such box."""

    question: dict[str, Any]
    number: int
    turn: int
    truth: np.ndarray
    rng: np.random.Generator


def _row(asked: _Asked, made: Trajectory) -> dict[str, Any]:
    return {
        "id": f"{asked.question['id']}_{asked.number}_{asked.turn}",
        **{name: asked.question[name] for name in ("study", "image", "instruction", "finding")},
        "component": asked.number,
        "size": list(asked.truth.shape),
        "truth": rle.encode(asked.truth),
        "box": made.box.to_json(),
        "masks": [rle.encode(mask) for mask in made.masks],
        "clicks": [{"polarity": click.polarity, "point": click.point.to_json()} for click in made.clicks],
        "ious": list(made.ious),
    }


def with_bundle(
    bundle: str,
    device: str,
    identity: BundleIdentity,
    sources: Sources,
    settings: RevisionSettings,
    seed: int,
    problems: Problems,
) -> Trajectories:
    """A maker whose segmenter is a bundle's, wherever the shards are made.

    Raises:
        BundleError: the bundle there is not the one that ``identity`` names.
    """
    engine = load_engine(bundle, device)
    if engine.identity != identity:
        raise BundleError(
            f"The bundle {bundle!r} is another one here ({engine.identity.name} {engine.identity.version}) than where "
            "the run was started; install the same."
        )
    # Sums depend on the number of threads: with one, the bytes do not hang on how many cores a machine has.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    return Trajectories(sources, engine.segmenter, settings, seed, problems)


def write_trajectories(
    instructions: Path,
    out: Path,
    make: Callable[[Problems], Maker],
    key: str,
    problems: Problems,
    workers: Workers | None = None,
    gpu: bool = False,
    most: int | None = None,
) -> dict[str, Any]:
    """Write the shards of all splits, of D_SFT's training split the first ``most``; gives counts and shards for the
    manifest.

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
    digest = hashlib.sha256((key + json.dumps([manifest["shards"], most])).encode()).hexdigest()
    pieces = {}
    for split in (SFT, VAL, RL, EVAL):
        paths = [instructions / name for name in files if name.rsplit("-", 1)[0] == split]
        if paths or split != EVAL:
            pieces[split] = pieces_of(split, paths, _RADIOGRAPHS_EACH)[: most if split == SFT else None]
    counts, shards = write_shards(Stage(out, ROWS, make, digest, gpu), pieces, problems, workers)
    return {"counts": counts, "shards": shards}


def pieces_of(split: str, paths: Sequence[Path], each: int) -> list[Piece]:
    """Pieces of ``each`` radiographs with a positive instruction; what is asked of one is never parted, also where it
    goes from one file into the next."""
    pieces: list[Piece] = []
    spans: list[Span] = []
    held, last = 0, None
    for path in paths:
        table = pq.read_table(path, columns=["image", "present"])
        start = 0
        for place, (image, present) in enumerate(
            zip(table["image"].to_pylist(), table["present"].to_pylist(), strict=True)
        ):
            if not present or image == last:
                continue
            if held == each:
                pieces.append(Piece(split, len(pieces), (*spans, Span(path, start, place))))
                spans, start, held = [], place, 0
            held, last = held + 1, image
        spans.append(Span(path, start, table.num_rows))
    return [*pieces, Piece(split, len(pieces), tuple(spans))] if held else pieces
