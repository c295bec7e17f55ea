"""Trains one of the compact bundle's survey networks on the open pack: lungs, finding maps, presence per lung, guard.

    for fold in 0 1 2 3: python -m training compact survey --data ../shared/data --work DIR/FOLD --fold FOLD

Each run leaves out an eighth of the NIH patients: calibrations and box rules are fitted on the answers of networks that
have not seen the picture (:mod:`training.compact.measure_survey`). The bundle averages the runs that were made. About
1,200 steps: a run of 2,400 knew its few effusions by heart and found new ones worse.

What its figures rest on:

- No source annotates everything. A loss is taken only where a source speaks; lungs come from Montgomery and V7,
  findings from ChestX-Det and the normals. Trained so, lungs were near perfect on Montgomery and useless on NIH, so the
  lungs of NIH pictures are labelled by the network itself three times on the way, and kept only when they look like
  lungs (:mod:`training.compact.plausible`); grey levels are matched across sources, and no flag tells them apart.
- V7 counts the lung behind the heart, Montgomery does not: V7's medial band is not learned.
- The heart is drawn only where it is large: its map learns what a heart is, and finding one elsewhere is no error.
  Whether it is large is read off the map's width (:mod:`xflow_core.policies.compact`).
- A lung filled with fluid is a lung: contours of effusion, consolidation and atelectasis join the labelled lung.
- Pneumonia has no contour: radiologists' boxes, and the consolidation of pictures whose report says pneumonia, stand
  for it; COVID-19 pictures hold some, somewhere. Edema has report labels alone: a labelled picture shows some in its
  lungs, wherever the network finds it likeliest. Both, and rare findings, are also drawn into healthy lungs
  (:mod:`training.compact.synthetic`).
- Some pictures are halves of two: a lung with its findings beside another patient's, so that a finding in one lung says
  little about the other.
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
from collections import Counter
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from xflow_core.policies.compact_network import CLASSES, MAPS, SIDE, SIGNS, Survey, SurveyNet, flipped
from xflow_core.policies.lungs import midline
from xflow_core.radiograph.square import to_square
from xflow_core.segmenters.weights import save_weights

from .augment import intensity, match_histogram, random_affine, swap_lungs, warp
from .guard_pictures import frontal_projections, other_pictures
from .pack import OPACITY, Pack, Record, bit, load_pack
from .plausible import plausible_lungs
from .pretrained import load_imagenet
from .synthetic import draw_lesion

log = logging.getLogger(__name__)

_STORED = 320  # pixels of the stored pictures' side: room for the affine to zoom
_OUT = SIDE // 2
_BOXED = np.uint16(1 << 15)  # a radiologist's box of pneumonia or infiltrate, as a bit
FOLDS = 8
_MADE, _HALVES = 0.15, 0.15  # shares of the chests that get a drawn lesion, and that are halves of two
_LUNGS = np.uint16(bit("right lung") | bit("left lung"))
# How much each map counts: the product's findings first, rare ones less.
_MAP_WEIGHT = dict(zip(MAPS, (1, 1, 1.2, 1.5, 1.0, 0.6, 0.4, 0.4, 0.6, 0.3, 0.7, 0.7, 1.0), strict=True))
_SAMPLING = {"consolidation": 1.0, "effusion": 2.0, "atelectasis": 1.5, "cardiomegaly": 4.0, "nodule": 0.7, "mass": 0.7}
_SOURCE_SAMPLING = {
    "nih_normal_1024": 0.9,
    "montgomery_lung_512": 1.6,
    "v7_covid_lung": 2.5,
    "nih_bbox_1024": 1.0,
    "nih_edema_label_1024": 1.0,
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

    fold: int
    steps: int = 1200
    batch: int = 10
    guard: int = 2
    seed: int = 0
    encoder_rate: float = 5e-4
    rate: float = 2e-3
    decay: float = 1e-3
    average: float = 0.998
    relabel_at: tuple[float, ...] = (0.2, 0.45, 0.7)
    checkpoint_every: int = 200


def fold_of(record: Record) -> int | None:
    """The run that does not learn from this training picture; None for pictures that every run learns from."""
    if record.split != "train" or not record.source.startswith("nih"):
        return None
    return int(hashlib.md5(record.patient.encode(), usedforsecurity=False).hexdigest(), 16) % FOLDS


@dataclass
class Targets:
    """What one picture teaches; weights of 0 say "not known here".

    somewhere: weight, by class, of "this picture shows some, wherever".
    """

    maps: np.ndarray
    map_weights: np.ndarray
    presence: np.ndarray
    presence_weights: np.ndarray
    somewhere: np.ndarray
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
            np.zeros(len(CLASSES), np.float32),
            np.zeros(len(SIGNS), np.float32),
            np.zeros(len(SIGNS), np.float32),
            -1,
        )

    def state(self, name: str, middle: int, weight: float) -> None:
        """Presence of a class by where its map lies; a sliver across the midline says nothing."""
        map_, index = self.maps[MAPS.index(name)], CLASSES.index(name)
        total = map_.sum()
        for side, columns in enumerate((slice(0, middle), slice(middle, None))):
            area = map_[:, columns].sum()
            present = area >= max(8, 0.15 * total)
            self.presence[side, index] = present
            self.presence_weights[side, index] = weight * float(area == 0 or present)


def targets_of(record: Record, mask: np.ndarray, lungs_known: bool, mirrored: bool) -> Targets:
    """The targets of an upright frontal picture from its bits ``[128, 128]``, drawn lesions among them."""
    t = Targets.unknown()
    t.signs[SIGNS.index("mirrored")] = mirrored
    t.sign_weights[:] = 1.0
    t.turn = 0
    for index, name in enumerate(MAPS):
        value = sum(bit(part) for part in OPACITY) if name == "opacity" else bit(name)
        t.maps[index] = (mask & np.uint16(value)) > 0
    middle = midline(t.maps[0] > 0, t.maps[1] > 0)
    at = {name: index for index, name in enumerate(MAPS)}
    heart = CLASSES.index("cardiomegaly")
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
        for name in CLASSES:
            t.state(name, middle, 1.0)
        t.presence[:, heart] = "cardiomegaly" in record.findings
        t.presence_weights[:, heart] = 1.0
        if "Atelectasis" in record.nih_labels and not t.maps[at["atelectasis"]].any():  # report and reader disagree
            t.map_weights[at["atelectasis"]] = 0.0
            t.presence_weights[:, CLASSES.index("atelectasis")] = 0.0
            t.somewhere[CLASSES.index("atelectasis")] = 0.2
        _teach_pneumonia(t, record, middle)
    elif record.normal:
        t.map_weights[2:] = 0.5  # report labels: about one in eight looks abnormal
        t.map_weights[at["cardiomegaly"]] = 0.0
        for name in CLASSES:
            t.state(name, middle, 0.5)
    elif record.source.startswith("nih"):
        for name, label in _REPORT.items():
            if label not in record.nih_labels:
                t.presence_weights[:, CLASSES.index(name)] = 0.2
        if "Cardiomegaly" in record.nih_labels:
            t.presence[:, heart] = 1.0
            t.presence_weights[:, heart] = 0.3
        boxed = (mask & _BOXED) > 0
        if boxed.any():
            t.maps[at["opacity"]] = t.maps[at["opacity"]].astype(bool) | boxed
            t.map_weights[at["opacity"]] = 0.3
            opacity = CLASSES.index("opacity")
            for side, columns in enumerate((slice(0, middle), slice(middle, None))):
                t.presence[side, opacity] = t.presence_weights[side, opacity] = boxed[:, columns].sum() > 40
        if "pneumonia" in record.findings:
            t.map_weights[at["pneumonia"]] = 0.4
            t.state("pneumonia", middle, 0.7)
    elif "COVID-19" in record.nih_labels:
        t.somewhere[CLASSES.index("pneumonia")] = 0.5
    if record.source.startswith("nih") and not record.normal:
        _teach_edema(t, record, middle)
    return t


def _teach_pneumonia(t: Targets, record: Record, middle: int) -> None:
    """Contoured pictures: the consolidation is the pneumonia where the report says pneumonia, and unsure elsewhere."""
    own, dense = MAPS.index("pneumonia"), t.maps[MAPS.index("consolidation")]
    if "Pneumonia" in record.nih_labels:
        t.maps[own] = dense
        if dense.any():
            t.map_weights[own] = 0.6
            t.state("pneumonia", middle, 0.6)
        else:
            t.map_weights[own] = 0.0
            t.presence_weights[:, CLASSES.index("pneumonia")] = 0.0
            t.somewhere[CLASSES.index("pneumonia")] = 0.15
        return
    unsure = (dense > 0) & (t.maps[own] == 0)
    t.map_weights[own] = np.where(unsure, 0.0, 0.5)
    t.state("pneumonia", middle, 0.1 if unsure.any() else 0.5)


def _teach_edema(t: Targets, record: Record, middle: int) -> None:
    """Report labels: edema lies in both lungs, and the report does not say where in them."""
    own, index = MAPS.index("edema"), CLASSES.index("edema")
    if "Edema" in record.nih_labels:
        t.map_weights[own] = 0.0
        t.presence[:, index] = 1.0
        t.presence_weights[:, index] = 0.7
        t.somewhere[index] = 0.5
    else:
        t.map_weights[own] = 0.3
        t.state("edema", middle, 0.3)


def beside(one: Targets, other: Targets, takes_other: np.ndarray, mirrored: bool) -> Targets:
    """The targets of halves of two pictures.

    Args:
        one, other: of the whole pictures, one brought over the other.
        takes_other: bool ``[128, 128]``, the pixels that show the other.
        mirrored: then the other shows in the right lung, else in the left.
    """
    t = Targets.unknown()
    t.maps = np.where(takes_other, other.maps, one.maps)
    t.map_weights = np.where(takes_other, other.map_weights, one.map_weights)
    rows = (other, one) if mirrored else (one, other)
    t.presence = np.stack([rows[0].presence[0], rows[1].presence[1]])
    t.presence_weights = np.stack([rows[0].presence_weights[0], rows[1].presence_weights[1]])
    t.map_weights[MAPS.index("cardiomegaly")] = 0.0  # there is no such heart
    t.presence_weights[:, CLASSES.index("cardiomegaly")] = 0.0
    t.sign_weights[:2] = 1.0
    t.turn = 0
    return t


class Sampler:
    """Draws the pictures of a step. ``labelled`` holds the pictures whose lungs the network itself has drawn."""

    def __init__(self, pack: Pack, settings: Settings, data: Path, cache: Path) -> None:
        self.pack = pack
        self.settings = settings
        self.masks = np.array(pack.masks)
        self.train = np.array([i for i in pack.where("train") if fold_of(pack.records[i]) != settings.fold])
        self.labelled: dict[int, np.ndarray] = {}
        # A patient with nine films counts as three: else one who was read oddly sets what an effusion looks like.
        self._films = Counter(pack.records[i].patient for i in self.train)
        weights = np.array([self._weight(pack.records[i]) for i in self.train])
        self.odds = weights / weights.sum()
        for index in self.train:
            for name in ("pneumonia", "infiltrate"):
                for box in pack.records[index].boxes.get(name, ()):
                    x1, y1, x2, y2 = (int(v * pack.images.shape[1]) for v in box)
                    self.masks[index, y1:y2, x1:x2] |= _BOXED | np.uint16(bit("pneumonia") * (name == "pneumonia"))
        readable = [i for i in self.train if pack.records[i].contoured or pack.records[i].normal]
        healthy = [i for i in readable if pack.records[i].normal or pack.records[i].findings == ("none_annotated",)]
        self._readable, self._healthy = np.array(readable), np.array(healthy)
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

    def _weight(self, record: Record) -> float:
        weight = _SOURCE_SAMPLING.get(record.source, 1.0)
        if record.contoured:
            weight += sum(w for name, w in _SAMPLING.items() if name in record.findings)
        return weight / math.sqrt(self._films[record.patient])

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

    def _with_lungs(self, indices: np.ndarray) -> np.ndarray:
        return np.array([i for i in indices if i in self.labelled or self.pack.records[i].has_lungs])

    def chest(self, rng: np.random.Generator) -> tuple[np.ndarray, Targets]:
        """A training picture with all that is known of it."""
        kind = rng.random()
        if kind < _HALVES and (known := self._with_lungs(self._readable)).size > 50:
            return self._halves(known, rng)
        index = int(rng.choice(self.train, p=self.odds))
        made: dict[str, np.ndarray] = {}
        if kind > 1 - _MADE and (known := self._with_lungs(self._healthy)).size:
            index = int(rng.choice(known))
        picture, mask = self._matched(self.pack.images[index], rng, 0.5), self.masks[index]
        if kind > 1 - _MADE and known.size:
            lungs = np.stack([mask & np.uint16(bit(name)) > 0 for name in ("right lung", "left lung")])
            picture, made = draw_lesion(picture, lungs, rng)
            mask = mask.copy()
            for name, drawn in made.items():
                mask[drawn] |= np.uint16(bit(name))
        affine, mirrored = random_affine(rng)
        picture = warp(picture, affine, SIDE, smooth=True)
        mask = warp(mask, affine, _OUT, smooth=False)
        if mirrored:
            mask = swap_lungs(mask)
        targets = targets_of(self.pack.records[index], mask, index in self.labelled, mirrored)
        for name in made:
            targets.map_weights[MAPS.index(name)] = 1.0
            targets.state(name, midline(targets.maps[0] > 0, targets.maps[1] > 0), 1.0)
        if "consolidation" in made:  # at the base it is what an effusion looks like
            effusion = MAPS.index("effusion")
            targets.map_weights[effusion][targets.maps[MAPS.index("consolidation")] > 0] = 0.0
            targets.presence_weights[:, CLASSES.index("effusion")] = 0.0
        if "edema" in made:  # an opacity to some readers
            targets.map_weights[MAPS.index("opacity")][targets.maps[MAPS.index("edema")] > 0] = 0.0
            targets.presence_weights[:, CLASSES.index("opacity")] = 0.0
        return intensity(picture.astype(np.float32) / 255, rng), targets

    def _halves(self, known: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, Targets]:
        """One patient's right half beside another's left half, their lungs brought over each other."""
        side = self.pack.images.shape[1]
        odds = np.array([self._weight(self.pack.records[i]) for i in known])
        one, other = (int(i) for i in rng.choice(known, 2, replace=False, p=odds / odds.sum()))
        frames, middles = [], []
        for index in (one, other):
            right, left = (self.masks[index] & np.uint16(bit(name)) > 0 for name in ("right lung", "left lung"))
            rows, columns = np.flatnonzero((right | left).any(1)), np.flatnonzero((right | left).any(0))
            frames.append(np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]) / side)
            middles.append(midline(right, left))
        scale = (frames[0][2:] - frames[0][:2]) / (frames[1][2:] - frames[1][:2])
        over = np.hstack([np.diag(scale), (frames[0][:2] - frames[1][:2] * scale)[:, None]])
        theirs = match_histogram(self.pack.images[other], self.pack.images[one], 1.0)
        theirs = warp(theirs, over, side, smooth=True)
        share = 1 / (1 + np.exp(-(np.arange(side) - middles[0]) / (0.015 * side)))
        picture = np.rint((1 - share) * self.pack.images[one] + share * theirs).astype(np.uint8)
        takes = np.broadcast_to(share > 0.5, (side, side)).astype(np.uint8)
        affine, mirrored = random_affine(rng)
        parts = []
        for index, mask in ((one, self.masks[one]), (other, warp(self.masks[other], over, side, smooth=False))):
            moved = warp(mask, affine, _OUT, smooth=False)
            moved = swap_lungs(moved) if mirrored else moved
            parts.append(targets_of(self.pack.records[index], moved, index in self.labelled, mirrored))
        targets = beside(parts[0], parts[1], warp(takes, affine, _OUT, smooth=False) > 0, mirrored)
        picture = warp(self._matched(picture, rng, 0.5), affine, SIDE, smooth=True)
        return intensity(picture.astype(np.float32) / 255, rng), targets

    def guard_only(self, rng: np.random.Generator) -> tuple[np.ndarray, Targets]:
        """A picture for the guard: turned, inverted, cut, doubled, not a chest at all, or a projected chest."""
        t = Targets.unknown()
        t.sign_weights[SIGNS.index("not_frontal")] = 1.0
        kinds = {"other": 0.42, "turned": 0.24, "inverted": 0.14, "cut": 0.10, "doubled": 0.04, "projected": 0.06}
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
            # A window of a chest, or half of one, either way.
            shares = rng.uniform(0.25, 0.5, 2) if rng.random() < 0.5 else rng.permutation([rng.uniform(0.4, 0.52), 1.0])
            height, width = (int(chest.shape[0] * share) for share in shares)
            top, left = (int(rng.integers(0, chest.shape[0] - size + 1)) for size in (height, width))
            picture = chest[top : top + height, left : left + width]
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
        rng = np.random.default_rng([self.settings.seed, self.settings.fold, step])
        drawn = [self.chest(rng) for _ in range(self.settings.batch)]
        drawn += [self.guard_only(rng) for _ in range(self.settings.guard)]
        pictures = torch.from_numpy(np.stack([picture for picture, _ in drawn]))[:, None]
        names = [field.name for field in fields(Targets) if field.name != "turn"]
        targets = {name: torch.from_numpy(np.stack([getattr(t, name) for _, t in drawn])) for name in names}
        targets["turn"] = torch.tensor([t.turn for _, t in drawn])
        return pictures, targets


def loss_of(survey: Survey, targets: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parts of the loss, each already weighted."""
    importance = torch.tensor([float(_MAP_WEIGHT[name]) for name in MAPS])
    logits, truth, weights = survey.maps.float(), targets["maps"], targets["map_weights"]
    cross = F.binary_cross_entropy_with_logits(logits, truth, reduction="none", pos_weight=torch.tensor(2.0))
    # Each map over the pictures that tell of it, so that the heart, drawn on one in ten, is learned as fast as lungs.
    told = weights.flatten(2).any(2).sum(0).clamp(min=1)
    pixels = ((cross * weights).mean((2, 3)).sum(0) / told * importance).sum()
    soft = logits.sigmoid()
    present = ((truth * weights).sum((2, 3)) > 0).float() * importance
    overlap = (soft * truth * weights).sum((2, 3))
    both = ((soft + truth) * weights).sum((2, 3))
    dice = ((1 - (2 * overlap + 2) / (both + 2)) * present).sum() / present.sum().clamp(min=1)
    counts = targets["presence_weights"] * importance[2:]
    presence = F.binary_cross_entropy_with_logits(survey.presence.float(), targets["presence"], reduction="none")
    # Of a picture that shows some, wherever: its likeliest twentieth of the lungs, and its likelier lung.
    inside = soft[:, :2].amax(1, keepdim=True).detach() > 0.5
    likeliest = (soft[:, 2:] * inside).flatten(2).topk(soft[0, 0].numel() // 60, dim=2).values.mean(2)
    likelier = survey.presence.float().sigmoid().amax(1)
    sought = targets["somewhere"]
    missed = -(likeliest.clamp(min=1e-4).log() + likelier.clamp(min=1e-4).log()) * sought
    signs = F.binary_cross_entropy_with_logits(survey.signs.float(), targets["signs"], reduction="none")
    turned = targets["turn"]
    turns = F.cross_entropy(survey.turns.float(), turned, ignore_index=-1) if (turned >= 0).any() else logits.sum() * 0
    return {
        "pixels": 2 * pixels,
        "dice": dice,
        "presence": 0.6 * (presence * counts).sum() / counts.sum().clamp(min=1),
        "somewhere": 0.5 * missed.sum() / sought.sum().clamp(min=1),
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
    """Train or go on training; returns the weights' path (``survey.safetensors``, averaged)."""
    pack = load_pack(data, work / "cache", _STORED)
    sampler = Sampler(pack, settings, data, work / "cache")
    torch.manual_seed(settings.seed * FOLDS + settings.fold)
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
        torch.manual_seed((settings.seed * FOLDS + settings.fold) * 1_000_003 + step)  # dropout
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
    save_weights({name: v for name, v in average.items() if not name.endswith("num_batches_tracked")}, weights)
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
    parser.add_argument("--fold", type=int, required=True, choices=range(FOLDS), help="the patients it leaves out")
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
    settings = Settings(arguments.fold, steps=arguments.steps, seed=arguments.seed)
    train(arguments.data, arguments.work, settings)
