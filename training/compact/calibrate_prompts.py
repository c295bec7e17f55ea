"""What turns the segmenters' and the revision network's numbers into decisions, set on train patients kept apart.

No network learned from them, and the dev split stays for measuring. In this order:

- the line from the segmenter's estimate to the IoU that it stands for;
- the belief: how much the given mask and how much the segmenter count in it, by the least cross-entropy to the truth
  over own masks (from good and from rough boxes) and foreign ones;
- the gain that a click must promise, by the best mean gain over the three kinds, among those that leave own masks no
  worse on average and make at most one in ten worse; where there is none, the one that does own masks least harm.

    python -m training compact calibrate-prompts --data PACK --segmenters DIR/0/segmenter.safetensors .. --work FOLDER

Joins the given segmenters in ``FOLDER/segmenter.safetensors``, which ships: their answers are averaged. ``FOLDER``
holds the revision policy.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import least_squares

from training.compact.measure_prompts import CHANGED, ROUGH, Target, foreign_mask, revised, targets
from training.compact.prompts import jittered
from xflow_core.domain.geometry import Box, mask_iou
from xflow_core.policies.compact_revision import CompactRevisionPolicy, RevisionSettings
from xflow_core.segmenters.compact import CompactSegmenter
from xflow_core.segmenters.compact_region import MASK_SIDE
from xflow_core.segmenters.protocol import Prediction, Prompt
from xflow_core.segmenters.weights import join_members

LOG = logging.getLogger(__name__)

GAINS = (0.005, 0.01, 0.02, 0.04)
TRUSTS = (0.0, 0.5, 1.0)
SHARES = (0.0, 0.25, 0.5, 0.75)
HARMED = 0.1
"""Share of own masks that may end worse."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the open pack's folder")
    parser.add_argument("--segmenters", type=Path, nargs="+", required=True, help="segmenter.safetensors of each run")
    parser.add_argument("--work", type=Path, required=True, help="folder with revision.safetensors, and for results")
    parser.add_argument("--repeats", type=int, default=2, help="jitters and damages per component")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)


def quality_line(segmenter: CompactSegmenter, found: Sequence[Target], repeats: int, seed: int) -> tuple[float, float]:
    """Slope and offset that bring the network's estimate to the true IoU, by least squares.

    A slope under 0.2 would be an estimate that tells nothing apart; the slope is kept at or above it.
    """
    scores, true = [], []
    for repeat in range(repeats):
        for number, target in enumerate(found):
            rng = np.random.default_rng((seed, repeat, number, 1))
            (answer,) = segmenter.segment(target.image, [Prompt(jittered(target.box, 0.1, rng))])
            assert answer.predicted_iou is not None
            estimate = min(max(answer.predicted_iou, 1e-4), 1 - 1e-4)
            scores.append(np.log(estimate / (1 - estimate)))
            true.append(mask_iou(answer.mask, target.mask))
    x, y = np.array(scores), np.array(true)
    fit = least_squares(lambda p: 1 / (1 + np.exp(-(p[0] * x + p[1]))) - y, (1.0, 0.0), bounds=((0.2, -5), (5, 5)))
    return round(float(fit.x[0]), 4), round(float(fit.x[1]), 4)


@dataclass(frozen=True, eq=False)
class Start:
    """A mask to be revised; kind: "own", "rough" (own, from a rough box) or "foreign"."""

    kind: str
    target: Target
    box: Box
    mask: np.ndarray


def starts(segmenter: CompactSegmenter, found: Sequence[Target], repeats: int, seed: int) -> list[Start]:
    made = []
    for repeat in range(repeats):
        for number, target in enumerate(found):
            rng = np.random.default_rng((seed, repeat, number, 2))
            box = jittered(target.box, 0.1, rng)
            rough = jittered(target.box, ROUGH, rng)
            own, second = segmenter.segment(target.image, [Prompt(box), Prompt(rough)])
            made.append(Start("own", target, box, own.mask))
            made.append(Start("rough", target, rough, second.mask))
            made.append(Start("foreign", target, box, foreign_mask(target, box, own.mask, rng)))
    return made


def belief_tried(
    policy: CompactRevisionPolicy, segmenter: CompactSegmenter, made: Sequence[Start]
) -> list[dict[str, float]]:
    """Each mixture's mean cross-entropy per pixel of the region."""
    costs: dict[tuple[float, float], list[float]] = {}
    for start in made:
        finding, prompt = start.target.finding, Prompt(start.box, (), Prediction(start.mask))
        looks = []
        for trust in (1.0, 0.0):
            policy.settings = RevisionSettings(trust=trust)
            region, look = policy.belief(start.target.image, finding, prompt)
            looks.append(look.numpy())
        given, blind = looks
        unaided = segmenter.unaided(start.target.image, prompt)
        truth = region.cut(start.target.mask, MASK_SIDE).numpy()
        for trust, share in product(TRUSTS, SHARES):
            p = (1 - share) * (trust * given + (1 - trust) * blind) + share * unaided
            p = np.clip(p, 1e-4, 1 - 1e-4)
            cost = -(truth * np.log(p) + (1 - truth) * np.log(1 - p)).mean()
            costs.setdefault((trust, share), []).append(float(cost))
    return [
        {"trust": trust, "segmenter_share": share, "entropy": round(float(np.mean(values)), 5)}
        for (trust, share), values in costs.items()
    ]


def gain_tried(
    policy: CompactRevisionPolicy, segmenter: CompactSegmenter, made: Sequence[Start], settings: RevisionSettings
) -> dict[str, float]:
    """What own revision with some settings gains on each kind of mask."""
    policy.settings = settings
    gains: dict[str, list[float]] = {}
    for start in made:
        truth = start.target.mask
        after, _ = revised(policy, segmenter, start.target, start.box, start.mask)
        gains.setdefault(start.kind, []).append(mask_iou(after, truth) - mask_iou(start.mask, truth))
    entry = {"least_gain": settings.least_gain}
    for kind, values in gains.items():
        entry[kind] = round(float(np.mean(values)), 4)
        entry[f"{kind}_improved"] = round(float(np.mean(np.array(values) > CHANGED)), 3)
        entry[f"{kind}_worsened"] = round(float(np.mean(np.array(values) < -CHANGED)), 3)
    return entry


def chosen(tried: Sequence[dict[str, float]]) -> dict[str, float]:
    """The entry of :func:`gain_tried` that the bundle is to follow."""
    harmless = [
        entry
        for entry in tried
        if min(entry["own"], entry["rough"]) >= 0 and max(entry["own_worsened"], entry["rough_worsened"]) <= HARMED
    ]
    if harmless:
        return max(harmless, key=lambda entry: entry["own"] + entry["rough"] + entry["foreign"])
    return max(tried, key=lambda entry: entry["own"] + entry["rough"])


def run(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    work: Path = arguments.work
    join_members(arguments.segmenters, work / "segmenter.safetensors")
    runs = [json.loads(path.with_name("segmenter.json").read_text()) for path in arguments.segmenters]
    (work / "segmenter-training.json").write_text(json.dumps({"runs": runs}, indent=2) + "\n")
    found = targets(arguments.data, work, "held")
    raw = CompactSegmenter.load(work / "segmenter.safetensors")
    line = quality_line(raw, found, arguments.repeats, arguments.seed)
    LOG.info("%d components kept apart; predicted IoU: slope %.3f, offset %.3f", len(found), *line)
    segmenter = CompactSegmenter.load(work / "segmenter.safetensors", line)
    policy = CompactRevisionPolicy.load(work / "revision.safetensors", segmenter)
    made = starts(segmenter, found, arguments.repeats, arguments.seed)

    beliefs = belief_tried(policy, segmenter, made)
    for entry in beliefs:
        LOG.info("%s", entry)
    belief = min(beliefs, key=lambda entry: entry["entropy"])
    tried = []
    for gain in GAINS:
        settings = RevisionSettings(gain, belief["trust"], belief["segmenter_share"])
        tried.append(gain_tried(policy, segmenter, made, settings))
        LOG.info("%s", tried[-1])
    best = RevisionSettings(chosen(tried)["least_gain"], belief["trust"], belief["segmenter_share"])
    result = {
        "quality": line,
        "revision": asdict(best),
        "set_on": {
            "components": len(found),
            "patients": len({target.patient for target in found}),
            "beliefs": beliefs,
            "tried": tried,
        },
    }
    (work / "prompt-settings.json").write_text(json.dumps(result, indent=2) + "\n")
