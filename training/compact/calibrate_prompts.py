"""Thresholds of the segmenter's predicted IoU and of the revision policy, set on train patients kept apart.

Neither network learned from them, and the dev split stays for measuring. The revision's two numbers are the pair with
the best mean gain on own masks (from good and from rough boxes) and foreign ones together, among those that leave own
masks no worse on average; where there is no such pair, the one that does own masks least harm.

    python -m training compact calibrate-prompts --data PACK --segmenters DIR/0/segmenter.safetensors .. --work FOLDER

Joins the given segmenters in ``FOLDER/segmenter.safetensors``, which ships. ``FOLDER`` holds the revision policy.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import least_squares

from training.compact.measure_prompts import CHANGED, ROUGH, Target, foreign_mask, revised, targets
from training.compact.prompts import jittered
from xflow_core.domain.geometry import mask_iou
from xflow_core.policies.compact_revision import CompactRevisionPolicy, RevisionSettings
from xflow_core.segmenters.compact import CompactSegmenter
from xflow_core.segmenters.protocol import Prompt
from xflow_core.segmenters.weights import join_members

LOG = logging.getLogger(__name__)

GAINS = (0.03, 0.04, 0.05, 0.06, 0.08)
TRUSTS = (0.5, 1.0)


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


def worth(entry: dict[str, float]) -> float:
    """The gains together; a belief from two looks, with and without the mask, has to earn its second pass."""
    two_looks = 0 < entry["trust"] < 1
    return entry["own"] + entry["rough"] + entry["foreign"] - (0.002 if two_looks else 0.0)


def run(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    work: Path = arguments.work
    join_members(arguments.segmenters, work / "segmenter.safetensors")
    found = targets(arguments.data, work, "held")
    raw = CompactSegmenter.load(work / "segmenter.safetensors")
    line = quality_line(raw, found, arguments.repeats, arguments.seed)
    LOG.info("%d components kept apart; predicted IoU: slope %.3f, offset %.3f", len(found), *line)
    segmenter = CompactSegmenter.load(work / "segmenter.safetensors", line)
    policy = CompactRevisionPolicy.load(work / "revision.safetensors", segmenter)

    starts = []
    for repeat in range(arguments.repeats):
        for number, target in enumerate(found):
            rng = np.random.default_rng((arguments.seed, repeat, number, 2))
            box = jittered(target.box, 0.1, rng)
            rough = jittered(target.box, ROUGH, rng)
            own, second = segmenter.segment(target.image, [Prompt(box), Prompt(rough)])
            for kind, asked, mask in (
                ("own", box, own.mask),
                ("rough", rough, second.mask),
                ("foreign", box, foreign_mask(target, box, own.mask, rng)),
            ):
                starts.append((kind, target, asked, mask))
    tried = []
    for trust in TRUSTS:
        for gain in GAINS:
            policy.settings = RevisionSettings(least_gain=gain, trust=trust)
            gains: dict[str, list[float]] = {"own": [], "rough": [], "foreign": []}
            for kind, target, box, mask in starts:
                after, _ = revised(policy, segmenter, target, box, mask)
                gains[kind].append(mask_iou(after, target.mask) - mask_iou(mask, target.mask))
            entry = {"least_gain": gain, "trust": trust}
            for kind, values in gains.items():
                entry[kind] = round(float(np.mean(values)), 4)
                entry[f"{kind}_improved"] = round(float(np.mean(np.array(values) > CHANGED)), 3)
                entry[f"{kind}_worsened"] = round(float(np.mean(np.array(values) < -CHANGED)), 3)
            LOG.info("%s", entry)
            tried.append(entry)
    harmless = [entry for entry in tried if min(entry["own"], entry["rough"]) >= 0]
    if harmless:
        best = max(harmless, key=worth)
    else:
        best = max(tried, key=lambda entry: entry["own"] + entry["rough"])
    settings = {
        "quality": line,
        "revision": {"least_gain": best["least_gain"], "trust": best["trust"]},
        "set_on": {"components": len(found), "patients": len({t.patient for t in found}), "tried": tried},
    }
    (work / "prompt-settings.json").write_text(json.dumps(settings, indent=2) + "\n")
