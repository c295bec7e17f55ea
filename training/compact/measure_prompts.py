"""The shipped segmenter and revision policy, measured through their run-time code on the pack's dev split.

Truth: each component of a finding's contour, on the image file itself. Reported per finding with n and 95 % intervals
of a bootstrap over patients:

- ``iou0`` from the true box jittered by 10 %, ``iou1`` .. ``iou4`` after oracle clicks; ``box_filled``: the box itself;
- ``quality``: how well the predicted IoU tells the true one, after 0..4 clicks, and after none;
- ``own``: own revision of own masks, as the product does it, against as many clicks at random places in the box;
- ``rough``: the same from boxes jittered by 30 %, as good as a model's own;
- ``foreign``: the same from poor masks of another make. ``second_pass`` is the control that matters there: the
  segmenter once more, on that mask and without a click; ``box_anew`` is the box without the mask.

    python -m training compact measure-prompts --data PACK --work FOLDER
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
import torch

from training.compact.pack import load_pack
from training.compact.prompts import MAIN, SMALLEST, held_out, jittered
from training.curation.oracle import oracle_click
from xflow_core.domain.geometry import Box, Point, mask_iou
from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import Click, LesionBox
from xflow_core.policies.compact_revision import CompactRevisionPolicy, RevisionSettings
from xflow_core.policies.protocols import Done
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import engine_grey, read_radiograph
from xflow_core.segmenters.compact import CompactSegmenter
from xflow_core.segmenters.protocol import Prediction, Prompt

LOG = logging.getLogger(__name__)

CLICKS = 4
ROUGH = 0.3
"""Jitter of a box that a model found, not a reader: three times the usual."""

CHANGED = 0.005
"""A difference of IoU that counts as improved or worsened."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the open pack's folder")
    parser.add_argument("--work", type=Path, required=True, help="folder with segmenter and revision .safetensors")
    parser.add_argument("--part", choices=("dev", "held"), default="dev", help="held: the train patients kept apart")
    parser.add_argument("--repeats", type=int, default=2, help="jitters and damages per component")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)


@dataclass(frozen=True, eq=False)
class Target:
    """A true component on its image: mask bool ``[H, W]`` of the source size."""

    image: EncodedRadiograph
    finding: str
    patient: str
    mask: np.ndarray
    box: Box


def targets(data: Path, work: Path, part: str, findings: Sequence[str] = MAIN) -> list[Target]:
    """The components of the dev split, or of the train patients kept apart."""
    pack = load_pack(data, work)
    found = []
    for index in pack.where("dev" if part == "dev" else "train"):
        record = pack.records[index]
        if not record.contoured or (part == "held" and not held_out(record.patient)):
            continue
        image: EncodedRadiograph | None = None
        for finding in findings:
            if finding not in record.findings:
                continue
            path = data / Path(record.file).parent.parent / "masks" / f"{Path(record.file).stem}__{finding}.png"
            mask = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
            if mask is None:
                raise FileNotFoundError(f"{path} is not a readable mask; is the pack complete?")
            image = image or EncodedRadiograph(read_radiograph(data / record.file))
            count, labels, stats, _ = cv2.connectedComponentsWithStats((mask > 127).astype(np.uint8), connectivity=8)
            for label in range(1, count):
                if stats[label, cv2.CC_STAT_AREA] >= SMALLEST * mask.size:
                    piece = labels == label
                    box = Box.around(piece)
                    assert box is not None
                    found.append(Target(image, finding, record.patient, piece, box))
    return found


def random_click(mask: np.ndarray, box: Box, rng: np.random.Generator) -> Click:
    """Anywhere in the box, asking for the opposite of what the mask says there."""
    point = Point(float(rng.uniform(box.x1, box.x2)), float(rng.uniform(box.y1, box.y2)))
    return Click("negative" if mask[point.pixel(mask.shape)] else "positive", point)


def foreign_mask(target: Target, box: Box, own: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A poor mask that knows nothing of the truth: what is bright in the box, or the own mask halved, or grown.

    Damaged truths, which the networks have learned to repair, would not do: there a second pass without any click beats
    every policy.
    """
    kind = int(rng.integers(3))
    if kind == 0:
        grey = (engine_grey(target.image.radiograph) * 255).astype(np.uint8)
        grey = cv2.GaussianBlur(grey, (0, 0), max(grey.shape) / 200)
        x1, y1, x2, y2 = box.pixels(own.shape)
        inside = np.ascontiguousarray(grey[y1:y2, x1:x2])
        level, _ = cv2.threshold(inside, 0, 255, cv2.THRESH_OTSU)
        mask = np.zeros_like(own)
        mask[y1:y2, x1:x2] = inside > level
        return mask
    mask = own.copy()
    rows, columns = np.nonzero(mask)
    if kind == 1 and rows.size:
        side = int(rng.integers(4))
        middle = int(np.median(rows if side < 2 else columns))
        half = slice(middle, None) if side % 2 else slice(None, middle)
        if side < 2:
            mask[half] = False
        else:
            mask[:, half] = False
        return mask
    reach = max(round(0.3 * float(np.sqrt(mask.sum()))), 3)
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (reach, reach))
    return cv2.dilate(mask.astype(np.uint8), kernel) > 0


@dataclass
class Table:
    """One row per component and repeat."""

    rows: list[dict[str, float | str]] = field(default_factory=list)

    def values(self, name: str, finding: str | None = None) -> np.ndarray:
        return np.array([row[name] for row in self.rows if finding in (None, row["finding"])], float)

    def interval(self, name: str, finding: str | None, rng: np.random.Generator, draws: int = 1000) -> list[float]:
        """95 % of the mean, resampling patients."""
        rows = [row for row in self.rows if finding in (None, row["finding"])]
        per: dict[str, list[float]] = {}
        for row in rows:
            per.setdefault(str(row["patient"]), []).append(float(row[name]))
        groups = [(sum(v), len(v)) for v in per.values()]
        sums, counts = np.array([g[0] for g in groups]), np.array([g[1] for g in groups])
        picked = rng.integers(0, len(groups), (draws, len(groups)))
        means = sums[picked].sum(1) / counts[picked].sum(1)
        return [float(v) for v in np.percentile(means, (2.5, 97.5))]


Revise = Callable[[Target, Box, np.ndarray], tuple[np.ndarray, int]]


def revised(
    policy: CompactRevisionPolicy, segmenter: CompactSegmenter, target: Target, box: Box, mask: np.ndarray
) -> tuple[np.ndarray, int]:
    """The mask after the policy's own clicks, up to four, and how many it made."""
    instruction = question(target.finding)
    component = LesionBox(0, target.finding, box, "heart" if target.finding == "cardiomegaly" else "chest")
    masks, clicks = [mask], []
    while len(clicks) < CLICKS:
        decision = policy.revise(target.image, instruction, component, masks, clicks, seed=0).value
        if isinstance(decision, Done):
            break
        clicks.append(decision)
        (answer,) = segmenter.segment(target.image, [Prompt(box, tuple(clicks), Prediction(masks[-1]))])
        masks.append(answer.mask)
    return masks[-1], len(clicks)


def question(finding: str) -> Instruction:
    region = "heart" if finding == "cardiomegaly" else "chest"
    return Instruction(f"Segment the {finding}", finding, (region,), "chest")


def measure(
    segmenter: CompactSegmenter, policy: CompactRevisionPolicy | None, found: Sequence[Target], repeats: int, seed: int
) -> Table:
    """All figures of all components, ``repeats`` times each with other jitters and damages."""
    table = Table()
    for repeat in range(repeats):
        for number, target in enumerate(found):
            rng = np.random.default_rng((seed, repeat, number))
            box = jittered(target.box, 0.1, rng)
            row: dict[str, float | str] = {"finding": target.finding, "patient": target.patient}
            row["box_filled"] = mask_iou(box.mask(target.mask.shape), target.mask)
            clicks: list[Click] = []
            previous: Prediction | None = None
            for turn in range(CLICKS + 1):
                (answer,) = segmenter.segment(target.image, [Prompt(box, tuple(clicks), previous)])
                if turn == 0:
                    first = answer
                previous = Prediction(answer.mask)
                row[f"iou{turn}"] = mask_iou(answer.mask, target.mask)
                row[f"predicted{turn}"] = float("nan") if answer.predicted_iou is None else answer.predicted_iou
                click = oracle_click(answer.mask, target.mask, clicks)
                if click is not None:
                    clicks.append(click)
            if policy is not None:
                revise(row, "own", segmenter, policy, target, box, first.mask, rng)
                rough = jittered(target.box, ROUGH, rng)
                (found_there,) = segmenter.segment(target.image, [Prompt(rough)])
                revise(row, "rough", segmenter, policy, target, rough, found_there.mask, rng)
                revise(row, "foreign", segmenter, policy, target, box, foreign_mask(target, box, first.mask, rng), rng)
            table.rows.append(row)
    return table


def revise(
    row: dict[str, float | str],
    name: str,
    segmenter: CompactSegmenter,
    policy: CompactRevisionPolicy,
    target: Target,
    box: Box,
    mask: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Own revision of ``mask`` and its controls, into the row."""
    after, count = revised(policy, segmenter, target, box, mask)
    (again,) = segmenter.segment(target.image, [Prompt(box, (), Prediction(mask))])
    (fresh,) = segmenter.segment(target.image, [Prompt(box)])
    stray = mask
    clicks: tuple[Click, ...] = ()
    for _ in range(count):
        clicks = (*clicks, random_click(stray, box, rng))
        stray = segmenter.segment(target.image, [Prompt(box, clicks, Prediction(stray))])[0].mask
    before = mask_iou(mask, target.mask)
    row[f"{name}_before"] = before
    row[f"{name}_gain"] = mask_iou(after, target.mask) - before
    row[f"{name}_gain_second_pass"] = mask_iou(again.mask, target.mask) - before
    row[f"{name}_gain_box_anew"] = mask_iou(fresh.mask, target.mask) - before
    row[f"{name}_gain_random"] = mask_iou(stray, target.mask) - before
    row[f"{name}_improved"] = float(row[f"{name}_gain"] > CHANGED)
    row[f"{name}_worsened"] = float(row[f"{name}_gain"] < -CHANGED)
    row[f"{name}_clicks"] = float(count)


def summary(table: Table, seed: int) -> dict[str, dict[str, object]]:
    """Per finding and for all: n, means and intervals, and how the predicted IoU does."""
    rng = np.random.default_rng(seed)
    figures: dict[str, dict[str, object]] = {}
    for finding in (None, *dict.fromkeys(str(row["finding"]) for row in table.rows)):
        rows = [row for row in table.rows if finding in (None, row["finding"])]
        entry: dict[str, object] = {"n": len(rows), "patients": len({row["patient"] for row in rows})}
        for name in table.rows[0]:
            if name in ("finding", "patient"):
                continue
            mean = float(table.values(name, finding).mean())
            entry[name] = {"mean": mean, "interval": table.interval(name, finding, rng)}
        for name, turns in (("quality_of_boxes", (0,)), ("quality", tuple(range(CLICKS + 1)))):
            predicted = np.concatenate([table.values(f"predicted{turn}", finding) for turn in turns])
            true = np.concatenate([table.values(f"iou{turn}", finding) for turn in turns])
            entry[name] = {
                "correlation": float(np.corrcoef(predicted, true)[0, 1]),
                "mean_error": float((predicted - true).mean()),
                "spread_of_the_true": float(np.abs(true - np.median(true)).mean()),
                "mean_absolute_error": float(np.abs(predicted - true).mean()),
            }
        figures["all" if finding is None else finding] = entry
    return figures


def run(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    work: Path = arguments.work
    settings = json.loads((work / "prompt-settings.json").read_text())
    segmenter = CompactSegmenter.load(work / "segmenter.safetensors", tuple(settings["quality"]))
    policy = CompactRevisionPolicy.load(
        work / "revision.safetensors", segmenter, RevisionSettings(**settings["revision"])
    )
    found = targets(arguments.data, work, arguments.part)
    LOG.info("%d components of %s", len(found), arguments.part)
    table = measure(segmenter, policy, found, arguments.repeats, arguments.seed)
    figures = summary(table, arguments.seed)
    path = work / f"prompt-figures-{arguments.part}.json"
    path.write_text(json.dumps(figures, indent=2) + "\n")
    LOG.info("written: %s", path)
