"""The compact revision policy's training: a belief of where the lesion is, beside a mask that may be wrong.

The network learns the truth of a region from the image, the finding, the box, the clicks and a mask. It is worth asking
only where it knows something that the segmenter does not. So it starts from ImageNet as the segmenters do, not from
one of them (a network that went on from a segmenter's weights was the worse judge: on the patients kept apart its mask
from the box had IoU .693, the segmenter's .706); it is told the finding, which they are not; and half of its boxes are
as rough as those that a model finds.

A belief that has only seen the trained segmenter's masks of its own training images learns to trust them, and then
never finds anything to correct. So the masks are those of several segmenters' early snapshots, which err on the
training images too, a part are damaged truths, and two in five are not shown at all.

    python -m training compact revision --data PACK --segmenters SEGMENTER/0 SEGMENTER/1 --work FOLDER --steps 1500

``--segmenters`` are the folders of the segmenters' trainings, which have to be half-way at least.
"""

from __future__ import annotations

import argparse
import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from training.compact.course import Course
from training.compact.pack import load_pack
from training.compact.pretrained import load_imagenet
from training.compact.prompts import (
    Case,
    Component,
    batch_of,
    case_of,
    components,
    damaged,
    jittered,
    with_oracle_click,
)
from training.compact.segmenter import pictures, probabilities
from xflow_core.policies.compact_revision_network import RevisionNet, class_of
from xflow_core.segmenters.compact_network import SegmenterNet
from xflow_core.segmenters.compact_region import MASK_SIDE
from xflow_core.segmenters.weights import load_weights

LOG = logging.getLogger(__name__)

BATCH = 12
ENCODER_RATE, DECODER_RATE = 3e-4, 1.5e-3
SHARES = {
    "consolidation": 0.30,
    "effusion": 0.24,
    "opacity": 0.12,
    "atelectasis": 0.08,
    "cardiomegaly": 0.10,
    "fibrosis": 0.07,
    "pleural_thickening": 0.05,
    "nodule_mass": 0.04,
}
# Snapshots that give the masks, and how often each.
SOURCES = {"segmenter-25.safetensors": 0.5, "segmenter-50.safetensors": 0.5}
ANSWERS = (0.5, 0.2, 0.2, 0.1)  # Clicks before the mask that is judged.
STRAY = 0.4  # Clicks that fall anywhere in the box instead of on an error.
DAMAGED = 0.25
HIDDEN = 0.4
# Jitter of the boxes, and how often: a reader's, and a model's.
JITTERS = {0.12: 0.5, 0.3: 0.5}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the open pack's folder")
    parser.add_argument("--segmenters", type=Path, nargs="+", required=True, help="the segmenters' training folders")
    parser.add_argument("--work", type=Path, required=True, help="folder for caches, checkpoints, logs and results")
    parser.add_argument("--steps", type=int, default=1500, help=f"optimiser steps of {BATCH} components")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)


def stray_click(case: Case, rng: np.random.Generator) -> Case:
    """A click anywhere in the middle of the region, of any polarity: a policy's own clicks are not all good."""
    row, column = rng.uniform(0.2, 0.8, 2) * MASK_SIDE
    return case.clicked(row, column, bool(rng.random() < 0.5))


def judged(net: SegmenterNet, cases: list[Case], rng: np.random.Generator) -> list[Case]:
    """Each case with a mask of ``net`` after some clicks."""
    cases = list(cases)
    turns = rng.choice(len(ANSWERS), size=len(cases), p=ANSWERS)
    for turn in range(int(turns.max()) + 1):
        live = [i for i in range(len(cases)) if turns[i] >= turn]
        for i, probability in zip(live, probabilities(net, [cases[i] for i in live]), strict=True):
            cases[i] = cases[i].answered(probability)
            if turns[i] > turn:
                better = stray_click(cases[i], rng) if rng.random() < STRAY else with_oracle_click(cases[i], rng)
                cases[i] = better or cases[i]
    return cases


def draw(images: dict[int, Tensor], component: Component, rng: np.random.Generator) -> Case:
    box = jittered(component.box, float(rng.choice(list(JITTERS), p=list(JITTERS.values()))), rng)
    return case_of(images[component.image], component, box, rng)


def loss_of(logits: Tensor, truth: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Cross-entropy, for probabilities that mean something, and half of Dice."""
    seen = logits.sigmoid()
    entropy = F.binary_cross_entropy_with_logits(logits, truth)
    dice = 1 - ((2 * (seen * truth).sum((1, 2)) + 1) / ((seen + truth).sum((1, 2)) + 1)).mean()
    return entropy + 0.5 * dice, {"entropy": entropy.item(), "dice": dice.item()}


def run(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    work: Path = arguments.work
    pack = load_pack(arguments.data, work)
    parts = components(pack, "learn", tuple(SHARES))
    images = pictures(pack, parts)
    per_class = {name: sum(part.finding == name for part in parts) for name in SHARES}
    chances = np.array([SHARES[part.finding] / per_class[part.finding] for part in parts])
    chances /= chances.sum()
    LOG.info("%d components of %d images: %s", len(parts), len(images), per_class)

    sources: list[list[SegmenterNet]] = []
    for name in SOURCES:
        sources.append([])
        for folder in arguments.segmenters:
            source = SegmenterNet()
            load_weights(source, folder / name)
            sources[-1].append(source.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    net = RevisionNet()
    load_imagenet(net.trunk)
    net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    course = Course(
        net,
        net.trunk.encoder_parameters(),
        (ENCODER_RATE, DECODER_RATE),
        arguments.steps,
        arguments.seed,
        work / "revision-checkpoint.pt",
    )
    while course.done < arguments.steps:
        rng = np.random.default_rng((arguments.seed, 1, course.done))
        chosen = [parts[i] for i in rng.choice(len(parts), BATCH, p=chances)]
        alike = sources[int(rng.choice(len(sources), p=list(SOURCES.values())))]
        source = alike[int(rng.integers(len(alike)))]
        cases = judged(source, [draw(images, part, rng) for part in chosen], rng)
        cases = [replace(c, previous=damaged(c.truth, rng)) if rng.random() < DAMAGED else c for c in cases]
        cases = [replace(c, previous=None) if rng.random() < HIDDEN else c for c in cases]
        grey, prompt = batch_of(cases)
        truth = torch.from_numpy(np.stack([case.truth for case in cases]))
        findings = torch.tensor([class_of(part.finding) for part in chosen])
        course.train_mode()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = net(grey, prompt, findings)
        course.learn(*loss_of(logits, truth))
    course.save(work / "revision.safetensors")
    settings = {
        "steps": arguments.steps,
        "batch": BATCH,
        "seed": arguments.seed,
        "rates": [ENCODER_RATE, DECODER_RATE],
        "shares": SHARES,
        "components": per_class,
        "jitters": JITTERS,
        "sources": SOURCES,
        "segmenters": len(arguments.segmenters),
        "data_sha256": pack.sha256,
    }
    (work / "revision.json").write_text(json.dumps(settings, indent=2) + "\n")
    LOG.info("done: %s", work / "revision.safetensors")
