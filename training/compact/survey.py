"""Trains the compact bundle's survey network on the open pack: lungs, finding maps, presence per lung, guard.

    python -m training compact survey --data ../shared/data --work DIR/0 --steps 2400 --seed 0
    python -m training compact survey --data ../shared/data --work DIR/1 --steps 1000 --seed 1

The bundle averages the two (:mod:`training.compact.measure_survey`): on patients that neither had learned from, the
long run draws lungs and hearts better; the short one, which knows its few effusions less by heart, finds those better.

What its figures rest on:

- No source annotates everything. A loss is taken only where a source speaks; lungs come from Montgomery and V7,
  findings from ChestX-Det and the normals. Trained so, lungs were near perfect on Montgomery and useless on NIH, so the
  lungs of NIH pictures are labelled by the network itself three times on the way, and kept only when they look like
  lungs (:mod:`training.compact.plausible`); grey levels are matched across sources, and no flag tells them apart.
- V7 counts the lung behind the heart, Montgomery does not: V7's medial band is not learned.
- A lung filled with fluid is a lung: contours of effusion, consolidation and atelectasis join the labelled lung.
- The last share of each batch trains the guard alone (:mod:`training.compact.guard_pictures`).

Every step draws from its own seed, so a run that is stopped goes on from its last checkpoint as if it had not been.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from xflow_core.policies.compact_network import CLASSES, MAPS, SIDE, SIGNS, Survey, SurveyNet, flipped
from xflow_core.policies.lungs import midline
from xflow_core.radiograph.square import to_square

from .augment import intensity, match_histogram, random_affine, swap_lungs, warp
from .guard_pictures import frontal_projections, other_pictures
from .pack import OPACITY, Pack, Record, bit, load_pack
from .plausible import plausible_lungs
from .pretrained import load_imagenet

log = logging.getLogger(__name__)

_STORED = 320  # pixels of the stored pictures' side: room for the affine to zoom
_OUT = SIDE // 2
_BOXED = np.uint16(1 << 15)  # a radiologist's box of pneumonia or infiltrate, as a bit
_LUNGS = np.uint16(bit("right lung") | bit("left lung"))
# How much each map counts: the product's findings first, rare ones less.
_MAP_WEIGHT = dict(zip(MAPS, (1, 1, 1.2, 1.5, 0.7, 0.7, 0.4, 0.4, 0.5, 0.3, 1.0), strict=True))
_SAMPLING = {"consolidation": 1.0, "effusion": 2.0, "atelectasis": 1.5, "cardiomegaly": 1.5, "nodule": 0.7, "mass": 0.7}
_SOURCE_SAMPLING = {
    "nih_normal_1024": 0.9,
    "montgomery_lung_512": 1.6,
    "v7_covid_lung": 2.5,
    "nih_bbox_1024": 0.7,
    "nih_edema_label_1024": 0.5,
}
# Report labels of NIH that stand for a class.
_REPORT = {
    "consolidation": "Consolidation",
    "effusion": "Effusion",
    "atelectasis": "Atelectasis",
    "cardiomegaly": "Cardiomegaly",
}


@dataclass(frozen=True)
class Settings:
    """One run. The learning rates are AdamW's peaks; they fall along a cosine to a hundredth."""

    steps: int = 2400
    batch: int = 10
    guard: int = 3
    seed: int = 0
    encoder_rate: float = 5e-4
    rate: float = 2e-3
    decay: float = 1e-3
    average: float = 0.998
    relabel_at: tuple[float, ...] = (0.2, 0.45, 0.7)
    checkpoint_every: int = 200


def for_calibration(record: Record) -> bool:
    """One patient in eight of the NIH contours and normals is kept from training: confidences are fitted on them."""
    if record.split != "train" or not (record.contoured or record.source == "nih_normal_1024"):
        return False
    return int(hashlib.md5(record.patient.encode(), usedforsecurity=False).hexdigest(), 16) % 8 == 0


@dataclass
class Targets:
    """What one picture teaches; weights of 0 say "not known here"."""

    maps: np.ndarray
    map_weights: np.ndarray
    presence: np.ndarray
    presence_weights: np.ndarray
    signs: np.ndarray
    sign_weights: np.ndarray
    turn: int

    @classmethod
    def unknown(cls) -> Targets:
        maps = (len(MAPS), _OUT, _OUT)
        presence = (2, len(CLASSES))
        return cls(
            np.zeros(maps, np.float32),
            np.zeros(maps, np.float32),
            np.zeros(presence, np.float32),
            np.zeros(presence, np.float32),
            np.zeros(len(SIGNS), np.float32),
            np.zeros(len(SIGNS), np.float32),
            -1,
        )


def targets_of(record: Record, mask: np.ndarray, lungs_known: bool, mirrored: bool) -> Targets:
    """The targets of an upright frontal picture from its bits ``[128, 128]``."""
    t = Targets.unknown()
    t.signs[SIGNS.index("mirrored")] = mirrored
    t.sign_weights[:] = 1.0
    t.turn = 0
    for index, name in enumerate(MAPS):
        value = sum(bit(part) for part in OPACITY) if name == "opacity" else bit(name)
        t.maps[index] = (mask & np.uint16(value)) > 0
    middle = midline(t.maps[0] > 0, t.maps[1] > 0)
    sides = (slice(0, middle), slice(middle, _OUT))
    at = {name: index for index, name in enumerate(MAPS)}
    if record.has_lungs:
        t.map_weights[:2] = 1.0
        if record.source == "v7_covid_lung":
            medial = np.abs(np.arange(_OUT) - middle)[None, :] < 24
            t.map_weights[:2, medial & (t.maps[:2].any(0))] = 0.0
    elif lungs_known:
        t.map_weights[:2] = 0.5
    if record.contoured:
        t.map_weights[2:] = 1.0
        if "cardiomegaly" not in record.findings:
            t.map_weights[at["cardiomegaly"]] = 0.0  # the heart is drawn only when it is large
        if "fibrosis" in record.findings:  # fibrosis is an opacity to many readers
            unsure = (t.maps[at["fibrosis"]] > 0) & (t.maps[at["opacity"]] == 0)
            t.map_weights[at["opacity"]][unsure] = 0.0
        for index in range(len(CLASSES)):
            total = t.maps[2 + index].sum()
            for side, columns in enumerate(sides):
                area = t.maps[2 + index][:, columns].sum()
                present = area >= max(8, 0.15 * total)
                t.presence[side, index] = present
                t.presence_weights[side, index] = float(area == 0 or present)  # a sliver across the midline: unknown
        heart = CLASSES.index("cardiomegaly")
        t.presence[:, heart] = "cardiomegaly" in record.findings
        t.presence_weights[:, heart] = 1.0
    elif record.source == "nih_normal_1024":
        t.map_weights[2:] = 0.5  # report labels: about one in eight looks abnormal
        t.map_weights[at["cardiomegaly"]] = 0.0
        t.presence_weights[:] = 0.5
    elif record.source.startswith("nih"):
        for name, label in _REPORT.items():
            if label not in record.nih_labels:
                t.presence_weights[:, CLASSES.index(name)] = 0.2
        if "Cardiomegaly" in record.nih_labels:
            t.presence[:, CLASSES.index("cardiomegaly")] = 1.0
            t.presence_weights[:, CLASSES.index("cardiomegaly")] = 0.3
        boxed = (mask & _BOXED) > 0
        if boxed.any():
            t.maps[at["opacity"]] = boxed
            t.map_weights[at["opacity"]] = 0.3
            for side, columns in enumerate(sides):
                if boxed[:, columns].sum() > 40:
                    t.presence[side, CLASSES.index("opacity")] = 1.0
                    t.presence_weights[side, CLASSES.index("opacity")] = 1.0
    return t


class Sampler:
    """Draws the pictures of a step. ``labelled`` holds the pictures whose lungs the network itself has drawn."""

    def __init__(self, pack: Pack, settings: Settings, data: Path, cache: Path) -> None:
        self.pack = pack
        self.settings = settings
        self.masks = np.array(pack.masks)
        self.train = np.array([i for i in pack.where("train") if not for_calibration(pack.records[i])])
        self.labelled: dict[int, np.ndarray] = {}
        weights = np.array([self._weight(pack.records[i]) for i in self.train])
        self.odds = weights / weights.sum()
        for index in self.train:
            for name in ("pneumonia", "infiltrate"):
                for box in pack.records[index].boxes.get(name, ()):
                    x1, y1, x2, y2 = (int(v * pack.images.shape[1]) for v in box)
                    self.masks[index, y1:y2, x1:x2] |= _BOXED
        kept = cache / f"guard-{settings.seed}.npz"
        if not kept.is_file():
            side = pack.images.shape[1]
            np.savez(
                kept,
                frontal=frontal_projections(data, 120, settings.seed + 1, side),
                other=other_pictures(data, settings.seed + 2, side),
            )
        pictures = np.load(kept)
        self.frontal, self.other = pictures["frontal"], pictures["other"]

    @staticmethod
    def _weight(record: Record) -> float:
        if record.contoured:
            return 1.0 + sum(w for name, w in _SAMPLING.items() if name in record.findings)
        return _SOURCE_SAMPLING[record.source]

    def label_lungs(self, index: int, lungs: np.ndarray) -> None:
        """Take ``lungs``, bool ``[2, S, S]``, as that picture's; the dense disease of its chest joins them."""
        record = self.pack.records[index]
        self.labelled[index] = lungs
        joined = lungs.copy()
        if record.contoured:
            dense = (self.masks[index] & np.uint16(bit("effusion") | bit("consolidation") | bit("atelectasis"))) > 0
            middle = midline(lungs[0], lungs[1])
            joined[0, :, :middle] |= dense[:, :middle]
            joined[1, :, middle:] |= dense[:, middle:]
        self.masks[index] &= ~_LUNGS
        self.masks[index][joined[0]] |= np.uint16(bit("right lung"))
        self.masks[index][joined[1]] |= np.uint16(bit("left lung"))

    def unlabel_lungs(self, index: int) -> None:
        if self.labelled.pop(index, None) is not None:
            self.masks[index] &= ~_LUNGS

    def _matched(self, picture: np.ndarray, rng: np.random.Generator, odds: float) -> np.ndarray:
        if rng.random() >= odds:
            return picture
        other = self.pack.images[rng.choice(self.train)]
        return match_histogram(picture, other, rng.uniform(0.3, 1.0))

    def chest(self, rng: np.random.Generator) -> tuple[np.ndarray, Targets]:
        """A training picture with all that is known of it."""
        index = int(rng.choice(self.train, p=self.odds))
        affine, mirrored = random_affine(rng)
        picture = warp(self._matched(self.pack.images[index], rng, 0.5), affine, SIDE, smooth=True)
        mask = warp(self.masks[index], affine, _OUT, smooth=False)
        if mirrored:
            mask = swap_lungs(mask)
        targets = targets_of(self.pack.records[index], mask, index in self.labelled, mirrored)
        return intensity(picture.astype(np.float32) / 255, rng), targets

    def guard_only(self, rng: np.random.Generator) -> tuple[np.ndarray, Targets]:
        """A picture for the guard: turned, inverted, cut, doubled, not a chest at all, or a projected chest."""
        t = Targets.unknown()
        t.sign_weights[SIGNS.index("not_frontal")] = 1.0
        kinds = {"other": 0.46, "turned": 0.24, "inverted": 0.14, "cut": 0.06, "doubled": 0.04, "projected": 0.06}
        kind = rng.choice(list(kinds), p=list(kinds.values()))
        chest = self.pack.images[rng.choice(self.train)]
        if kind in ("other", "cut", "doubled"):
            t.signs[SIGNS.index("not_frontal")] = 1.0
        if kind == "other":
            picture = self.other[rng.integers(len(self.other))]
            picture = np.rot90(picture, rng.choice([0, 0, 0, 1, 2, 3]))
            if rng.random() < 0.2:
                picture = 255 - picture
        elif kind == "cut":
            size = int(chest.shape[0] * rng.uniform(0.25, 0.5))
            top, left = rng.integers(0, chest.shape[0] - size, 2)
            picture = chest[top : top + size, left : left + size]
        elif kind == "doubled":
            beside = self.other[rng.integers(130)] if rng.random() < 0.5 else self.pack.images[rng.choice(self.train)]
            pair = (chest, beside) if rng.random() < 0.5 else (beside, chest)
            picture = np.concatenate(pair, axis=int(rng.random() < 0.8))
        elif kind == "projected":
            picture = self.frontal[rng.integers(len(self.frontal))]
        else:
            picture = chest
        picture = np.rint(to_square(np.ascontiguousarray(picture), _STORED) * 255).astype(np.uint8)
        picture = self._matched(picture, rng, 0.3)
        inverted = kind == "inverted" or (kind == "turned" and rng.random() < 0.15)
        if kind in ("turned", "inverted", "projected"):
            turn = int(rng.integers(1, 4)) if kind == "turned" else 0
            picture = np.ascontiguousarray(np.rot90(picture, turn))
            t.turn = turn
            t.signs[SIGNS.index("inverted")] = inverted
            t.sign_weights[SIGNS.index("inverted")] = 1.0
        before = inverted and rng.random() < 0.5  # else what lies outside the picture turns white as well
        affine, mirrored = random_affine(rng)
        if t.turn > 0 and mirrored:
            t.turn = {1: 3, 3: 1}.get(t.turn, t.turn)
        if t.turn == 0:
            t.signs[SIGNS.index("mirrored")] = mirrored
            t.sign_weights[SIGNS.index("mirrored")] = 1.0
        warped = warp(255 - picture if before else picture, affine, SIDE, smooth=True).astype(np.float32) / 255
        return intensity(1 - warped if inverted and not before else warped, rng), t

    def batch(self, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        rng = np.random.default_rng([self.settings.seed, step])
        drawn = [self.chest(rng) for _ in range(self.settings.batch)]
        drawn += [self.guard_only(rng) for _ in range(self.settings.guard)]
        pictures = torch.from_numpy(np.stack([picture for picture, _ in drawn]))[:, None]
        names = ("maps", "map_weights", "presence", "presence_weights", "signs", "sign_weights")
        targets = {name: torch.from_numpy(np.stack([getattr(t, name) for _, t in drawn])) for name in names}
        targets["turn"] = torch.tensor([t.turn for _, t in drawn])
        return pictures, targets


def loss_of(survey: Survey, targets: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parts of the loss, each already weighted."""
    importance = torch.tensor([float(_MAP_WEIGHT[name]) for name in MAPS])
    logits, truth, weights = survey.maps.float(), targets["maps"], targets["map_weights"]
    cross = F.binary_cross_entropy_with_logits(logits, truth, reduction="none", pos_weight=torch.tensor(2.0))
    chests = max(1.0, float(weights.flatten(1).any(1).sum()))
    pixels = ((cross * weights).mean((2, 3)) * importance).sum() / chests
    soft = logits.sigmoid()
    present = ((truth * weights).sum((2, 3)) > 0).float() * importance
    overlap = (soft * truth * weights).sum((2, 3))
    both = ((soft + truth) * weights).sum((2, 3))
    dice = ((1 - (2 * overlap + 2) / (both + 2)) * present).sum() / present.sum().clamp(min=1)
    counts = targets["presence_weights"] * importance[2:]
    presence = F.binary_cross_entropy_with_logits(survey.presence.float(), targets["presence"], reduction="none")
    signs = F.binary_cross_entropy_with_logits(survey.signs.float(), targets["signs"], reduction="none")
    turned = targets["turn"]
    turns = F.cross_entropy(survey.turns.float(), turned, ignore_index=-1) if (turned >= 0).any() else logits.sum() * 0
    return {
        "pixels": 2 * pixels,
        "dice": dice,
        "presence": 0.6 * (presence * counts).sum() / counts.sum().clamp(min=1),
        "signs": 0.6 * (signs * targets["sign_weights"]).sum() / targets["sign_weights"].sum().clamp(min=1),
        "turns": 0.3 * turns,
    }


def new_network(state: dict[str, Tensor] | None = None) -> SurveyNet:
    network = SurveyNet()
    if state is not None:
        own = network.state_dict()
        network.load_state_dict({name: value.to(own[name].dtype) for name, value in state.items()})
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@torch.no_grad()
def look(network: SurveyNet, picture: np.ndarray) -> Survey:
    """The logits of one stored picture (uint8, square), averaged with those of its mirror image; batch of one."""
    grey = torch.from_numpy(to_square(picture, SIDE))[None, None]
    seen = network(torch.cat([grey, grey.flip(3)]))
    straight, mirror = (Survey(*(part[row : row + 1] for part in seen)) for row in (0, 1))
    return Survey(*((a + b) / 2 for a, b in zip(straight, flipped(mirror), strict=True)))


def relabel(sampler: Sampler, state: dict[str, Tensor]) -> None:
    """Draw the lungs of the NIH training pictures anew with the averaged network; what looks like none is left out."""
    network = new_network(state).eval()
    side = sampler.pack.images.shape[1]
    asked = [int(i) for i in sampler.train if sampler.pack.records[i].source.startswith("nih")]
    for index in asked:
        sampler.unlabel_lungs(index)
        maps = look(network, sampler.pack.images[index]).maps[:, :2].sigmoid()
        shares = F.interpolate(maps, size=(side, side), mode="bilinear", align_corners=False)[0].numpy()
        lungs = plausible_lungs(shares)
        if lungs is not None:
            sampler.label_lungs(index, lungs)
    log.info("lungs labelled on %d of %d NIH pictures", len(sampler.labelled), len(asked))


def train(data: Path, work: Path, settings: Settings) -> Path:
    """Train or go on training; returns the weights' path (``survey.safetensors``, float16, averaged)."""
    pack = load_pack(data, work / "cache", _STORED)
    sampler = Sampler(pack, settings, data, work / "cache")
    torch.manual_seed(settings.seed)
    network = new_network()
    load_imagenet(network.trunk)
    encoder = network.trunk.encoder_parameters()
    inside = {id(parameter) for parameter in encoder}
    rest = [parameter for parameter in network.parameters() if id(parameter) not in inside]
    optimiser = torch.optim.AdamW(
        [{"params": encoder, "lr": settings.encoder_rate}, {"params": rest, "lr": settings.rate}],
        weight_decay=settings.decay,
    )
    peaks = [group["lr"] for group in optimiser.param_groups]
    average = {name: value.detach().clone().float() for name, value in network.state_dict().items()}
    checkpoint = work / "survey-checkpoint.pt"
    first = 0
    if checkpoint.is_file():
        saved = torch.load(checkpoint, map_location="cpu", weights_only=False)  # written by this very function
        if saved["settings"] != asdict(settings):
            raise ValueError(f"{checkpoint} belongs to a run with other settings; choose another work folder.")
        network.load_state_dict(saved["network"])
        optimiser.load_state_dict(saved["optimiser"])
        average, first = saved["average"], saved["step"]
        for index, packed in saved["labelled"].items():
            sampler.label_lungs(index, np.unpackbits(packed).reshape(2, _STORED, _STORED).astype(bool))
        log.info("going on from step %d", first)
    marks = {int(share * settings.steps) for share in settings.relabel_at}
    seen: list[dict[str, float]] = []
    started = time.monotonic()
    network.train()
    for step in range(first, settings.steps):
        if step in marks:
            relabel(sampler, average)
        torch.manual_seed(settings.seed * 1_000_003 + step)  # dropout
        fall = min(1.0, (step + 1) / 60) * (0.5 * (1 + math.cos(math.pi * step / settings.steps)) + 0.01)
        for group, peak in zip(optimiser.param_groups, peaks, strict=True):
            group["lr"] = peak * fall
        pictures, targets = sampler.batch(step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            survey = network(pictures)
        parts = loss_of(survey, targets)
        optimiser.zero_grad(set_to_none=True)
        torch.stack(list(parts.values())).sum().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 2.0)
        optimiser.step()
        keep = min(settings.average, (1 + step) / (10 + step))
        for name, value in network.state_dict().items():
            average[name].mul_(keep).add_(value.float(), alpha=1 - keep)
        seen.append({name: float(part.detach()) for name, part in parts.items()})
        done = step + 1
        if done % 50 == 0:
            means = {name: round(sum(s[name] for s in seen) / len(seen), 3) for name in seen[0]}
            pace = (time.monotonic() - started) / (done - first)
            left = pace * (settings.steps - done) / 60
            log.info("step %d of %d, %.2f s a step, %.0f min left, %s", done, settings.steps, pace, left, means)
            seen.clear()
        if done % settings.checkpoint_every == 0 or done == settings.steps:
            state: dict[str, Any] = {
                "settings": asdict(settings),
                "step": done,
                "network": network.state_dict(),
                "optimiser": optimiser.state_dict(),
                "average": average,
                "labelled": {index: np.packbits(lungs) for index, lungs in sampler.labelled.items()},
            }
            partial = checkpoint.with_suffix(".partial")
            torch.save(state, partial)
            partial.replace(checkpoint)
    weights = work / "survey.safetensors"
    save_file(
        {
            name: value.to(torch.float16).contiguous()
            for name, value in average.items()
            if not name.endswith("num_batches_tracked")
        },
        weights,
    )
    facts = {
        "settings": asdict(settings),
        "manifest_sha256": pack.sha256,
        "train_images": len(sampler.train),
    }
    (work / "survey-training.json").write_text(json.dumps(facts, indent=2))
    log.info("weights written to %s", weights)
    return weights


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the open chest X-ray pack (holds manifest.csv)")
    parser.add_argument("--work", type=Path, required=True, help="a folder outside the project for arrays and weights")
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=Settings.seed)


def run(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    arguments.work.mkdir(parents=True, exist_ok=True)
    file = logging.FileHandler(arguments.work / "survey.log")
    file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(file)
    log.setLevel(logging.INFO)
    settings = Settings(steps=arguments.steps, seed=arguments.seed)
    train(arguments.data, arguments.work, settings)
