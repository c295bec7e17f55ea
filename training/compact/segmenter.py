"""The compact promptable segmenter's training: one component, one box, then up to four corrections.

Each step draws components, asks the present network for masks and lets an oracle click on their errors (0 to 4 times),
then learns to give the right mask after the last click. One previous mask in five is not the network's own but a
damaged truth, so that it also corrects what a person drew; some components come without a box. Earlier masks are cut to
0/1, as the trace keeps them.

The shipped weights are the running average of the trained ones, mixed with that average half-way. On the patients kept
apart (39 components, three jitters each) the mixture had IoU .707 from the box, the end of the training .699 and its
middle .706; after four clicks .846, .845 and .842.

    python -m training compact segmenter --data PACK --work SEGMENTER/0 --steps 2400 --seed 0

Several such runs of other seeds are averaged in what ships (``calibrate-prompts``).
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
from training.compact.pack import Pack, load_pack
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
from xflow_core.segmenters.compact_network import SegmenterNet
from xflow_core.segmenters.weights import read_weights, save_weights

LOG = logging.getLogger(__name__)

BATCH = 12
ENCODER_RATE, DECODER_RATE = 4e-4, 2e-3
# How often a component of a class is drawn; the lungs are easy shapes that teach what an outline is.
SHARES = {
    "consolidation": 0.32,
    "effusion": 0.25,
    "atelectasis": 0.08,
    "cardiomegaly": 0.10,
    "fibrosis": 0.08,
    "pleural_thickening": 0.05,
    "nodule_mass": 0.06,
    "right lung": 0.03,
    "left lung": 0.03,
}
# How many clicks precede the answer that is learned from.
CLICKS = (0.36, 0.24, 0.18, 0.12, 0.10)
# Share of the steps: file. The revision policy learns from masks of the half-trained network too.
SNAPSHOTS = {0.25: "segmenter-25.safetensors", 0.5: "segmenter-50.safetensors", 1.0: "segmenter-100.safetensors"}
# How much each snapshot counts in what is shipped.
MIXTURE = {"segmenter-100.safetensors": 0.6, "segmenter-50.safetensors": 0.4}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the open pack's folder")
    parser.add_argument("--work", type=Path, required=True, help="folder for caches, checkpoints, logs and results")
    parser.add_argument("--steps", type=int, default=2400, help=f"optimiser steps of {BATCH} components")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)


def pictures(pack: Pack, parts: list[Component]) -> dict[int, Tensor]:
    """The images of some components, float ``[1, 1, S, S]``, by their index in the pack."""
    wanted = sorted({part.image for part in parts})
    return {index: torch.from_numpy(np.array(pack.images[index], np.float32) / 255)[None, None] for index in wanted}


def probabilities(net: SegmenterNet, cases: list[Case]) -> np.ndarray:
    """float ``[N, 96, 96]``, without gradients, in bfloat16."""
    grey, prompt = batch_of(cases)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        logits, _ = net(grey, prompt)
    return logits.sigmoid().numpy()


def draw(images: dict[int, Tensor], component: Component, rng: np.random.Generator) -> tuple[Case, int]:
    """A training case and how many more clicks it gets."""
    box = jittered(component.box, 0.12 if rng.random() < 0.8 else 0.2, rng)
    case = case_of(images[component.image], component, box, rng)
    turns = int(rng.choice(len(CLICKS), p=CLICKS))
    blind = rng.random() < 0.07
    if rng.random() < 0.2:
        case = replace(case, previous=damaged(case.truth, rng))
        # A few stay without a click: a second look at a given mask must not be strange to the network.
        case = (with_oracle_click(case, rng) if rng.random() < 0.85 else None) or case
    if blind:
        case = replace(case, box=None)
        if not case.clicks:
            case = with_oracle_click(case, rng) or replace(case, box=box)
    return case, turns


def rolled_out(net: SegmenterNet, cases: list[Case], turns: list[int], rng: np.random.Generator) -> list[Case]:
    """Each case after its number of answers and oracle clicks; the last click is not answered yet."""
    cases = list(cases)
    net.eval()
    for turn in range(max(turns)):
        live = [i for i, wanted in enumerate(turns) if wanted > turn]
        for i, probability in zip(live, probabilities(net, [cases[i] for i in live]), strict=True):
            answered = cases[i].answered(probability)
            cases[i] = with_oracle_click(answered, rng) or answered
    return cases


def loss_of(logits: Tensor, quality: Tensor, truth: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Cross-entropy and Dice of the mask; squared error of the quality against the mask's own IoU."""
    seen = logits.sigmoid()
    entropy = F.binary_cross_entropy_with_logits(logits, truth)
    dice = 1 - ((2 * (seen * truth).sum((1, 2)) + 1) / ((seen + truth).sum((1, 2)) + 1)).mean()
    with torch.no_grad():
        mask, true = seen > 0.5, truth > 0.5
        iou = (mask & true).sum((1, 2)) / (mask | true).sum((1, 2)).clamp(min=1)
    regret = F.mse_loss(quality.sigmoid(), iou)
    parts = {"entropy": entropy.item(), "dice": dice.item(), "iou": iou.mean().item(), "quality": regret.item()}
    return entropy + dice + regret, parts


def mix(work: Path, path: Path) -> None:
    """Write the :data:`MIXTURE` of the snapshots in ``work``."""
    parts = [(read_weights(work / name), share) for name, share in MIXTURE.items()]
    names = parts[0][0]
    save_weights({name: torch.stack([part[name] * share for part, share in parts]).sum(0) for name in names}, path)


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

    net = SegmenterNet()
    load_imagenet(net.trunk)
    net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    course = Course(
        net,
        net.trunk.encoder_parameters(),
        (ENCODER_RATE, DECODER_RATE),
        arguments.steps,
        arguments.seed,
        work / "segmenter-checkpoint.pt",
    )
    snapshots = {int(share * arguments.steps): work / name for share, name in SNAPSHOTS.items()}
    while course.done < arguments.steps:
        rng = np.random.default_rng((arguments.seed, course.done))
        chosen = [parts[i] for i in rng.choice(len(parts), BATCH, p=chances)]
        drawn = [draw(images, part, rng) for part in chosen]
        cases = rolled_out(net, [case for case, _ in drawn], [turns for _, turns in drawn], rng)
        grey, prompt = batch_of(cases)
        truth = torch.from_numpy(np.stack([case.truth for case in cases]))
        course.train_mode()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, quality = net(grey, prompt)
        course.learn(*loss_of(logits, quality, truth))
        if course.done in snapshots:
            course.save(snapshots[course.done])
    mix(work, work / "segmenter.safetensors")
    settings = {
        "steps": arguments.steps,
        "batch": BATCH,
        "seed": arguments.seed,
        "rates": [ENCODER_RATE, DECODER_RATE],
        "shares": SHARES,
        "mixture": MIXTURE,
        "components": per_class,
        "data_sha256": pack.sha256,
    }
    (work / "segmenter.json").write_text(json.dumps(settings, indent=2) + "\n")
    LOG.info("done: %s", work / "segmenter.safetensors")
