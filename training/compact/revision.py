"""The compact revision policy's training: a belief of where the lesion is, beside a mask that may be wrong.

The network learns the truth of a region from the image, the finding, the box, the clicks and a mask. A belief that has
only seen the trained segmenter's masks of its own training images learns to trust them, and then never finds anything
to correct. So the masks come from the segmenter's early snapshots as well, a part are damaged truths, and two in five
are not shown at all. It starts from the segmenter's half-trained weights and is then told the finding, which the
segmenter is not.

    python -m training compact revision --data PACK --work FOLDER --steps 1500

``work`` is the folder of the segmenter's training, which has to be finished.
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
from xflow_core.segmenters.weights import load_weights, read_weights

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
START = "segmenter-50.safetensors"
# Segmenters that give the masks, and how often each: the early ones err on the training images too.
SOURCES = {"segmenter-25.safetensors": 0.45, "segmenter-50.safetensors": 0.3, "segmenter-100.safetensors": 0.25}
ANSWERS = (0.5, 0.2, 0.2, 0.1)  # Clicks before the mask that is judged.
STRAY = 0.4  # Clicks that fall anywhere in the box instead of on an error.
DAMAGED = 0.25
HIDDEN = 0.4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the open pack's folder")
    parser.add_argument("--work", type=Path, required=True, help="the segmenter's training folder")
    parser.add_argument("--steps", type=int, default=1500, help=f"optimiser steps of {BATCH} components")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)


def start_from(net: RevisionNet, path: Path) -> None:
    """The segmenter's trunk; the new parts stay as they are."""
    held = {name: value for name, value in read_weights(path).items() if name.startswith("trunk.")}
    unknown = net.load_state_dict(held, strict=False).unexpected_keys
    if unknown:
        raise ValueError(f"{path} has arrays that the revision network lacks, first {unknown[0]}.")


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
    box = jittered(component.box, 0.12 if rng.random() < 0.8 else 0.2, rng)
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

    sources = []
    for name in SOURCES:
        source = SegmenterNet()
        load_weights(source, work / name)
        sources.append(source.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    net = RevisionNet()
    start_from(net, work / START)
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
        source = sources[int(rng.choice(len(sources), p=list(SOURCES.values())))]
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
        "sources": SOURCES,
        "data_sha256": pack.sha256,
        "command": f"python -m training compact revision --data PACK --work FOLDER --steps {arguments.steps} "
        f"--threads {arguments.threads} --seed {arguments.seed}",
    }
    (work / "revision.json").write_text(json.dumps(settings, indent=2) + "\n")
    LOG.info("done: %s", work / "revision.safetensors")
