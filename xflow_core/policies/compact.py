"""The compact bundle's first stage and its guard: lungs, verdicts and boxes read off one survey of the radiograph.

The picture goes through :class:`~.compact_network.SurveyNets` once (with its mirror image, averaged); every later
question about any finding reads the same maps and logits. Nothing here samples: ``seed`` changes nothing.

How a number becomes a statement:

- Evidence for a finding in a region is the logit of its map's mean over the 64 strongest pixels (of 128 x 128) inside
  the region, mixed with the network's presence logit for that lung by a share that the bundle states. The share is
  small: on patients not learned from, the map told more, and the presence logit was too sure of itself.
- Evidence for cardiomegaly is the cardiothoracic ratio, measured on the maps of the heart and the lungs.
- A straight line on that evidence (Platt scaling, fitted on patients kept from training) makes it a probability. The
  finding is present where the probability reaches the bundle's threshold, chosen for F1; so a lung may be called
  present with a probability under one half, and the confidence says so.
- An opacity contains consolidation by definition: its evidence is the larger of the two, and its threshold never asks
  for more evidence than consolidation's, so that no consolidation is present without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor
from torch.nn import functional as F

from xflow_core.domain.errors import BundleError, EngineError
from xflow_core.domain.findings import HEART, LUNGS, check_finding, level_of, lung_of, region_band
from xflow_core.domain.geometry import Box
from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import GroundedLung, LesionBox, Verdict
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import Radiograph, engine_grey
from xflow_core.radiograph.square import to_square
from xflow_core.segmenters.trunk import fold_norms
from xflow_core.segmenters.weights import fill, members_in, read_weights

from .calibration import Calibration
from .compact_network import CLASSES, MAPS, SIDE, TURNS, Survey, SurveyNets, flipped
from .lungs import largest_piece
from .protocols import Decision, GuardReport

_LUNG_SIDE = 512  # lung maps are enlarged to this before their edge is taken
_BOX_SIDE = 256  # finding maps, likewise
_STRONGEST = 64  # map pixels that speak for a region
_SMALLEST_LUNG = 0.02  # share of the picture; less is no lung
_SMALLEST_BOX = 0.03  # side of a lesion box as a share of the picture
_LEVELS = np.arange(0.2, 0.95, 0.075)  # shares of a peak at which a piece of a map is tried to fall apart
_RATIO_SLOPE = 20.0  # from a cardiothoracic ratio to the range of a logit, for the line that is fitted on it
_USUAL_RATIO = 0.42  # the middle of the training pictures without cardiomegaly; stands in where none can be measured
# The mean boxes of the open pack's 153 training pictures with drawn lungs: the last resort, given with the map's own
# (low) word.
_USUAL_LUNGS = {"right lung": Box(0.1, 0.11, 0.45, 0.75), "left lung": Box(0.53, 0.11, 0.89, 0.76)}


def _logit(p: float) -> float:
    p = min(max(p, 1e-5), 1 - 1e-5)
    return math.log(p / (1 - p))


@dataclass(frozen=True)
class BoxRule:
    """How boxes are cut from a finding's map.

    share: of the region's peak; what is above it belongs to the lesion.
    floor: the least map value that counts, whatever the peak.
    most: boxes per region at most, the strongest first.
    keep: beside the strongest, boxes whose peak is at least this share of its peak.
    split: two peaks are two lesions where the map between them sinks under this share of the lower one; 0 for never.
    several: from this number of lesions on they are boxed one by one; fewer are taken as one, whose strongest piece,
        not taken apart, gets the box.
    slope, offset: from the logit of a box's peak to the probability that it meets a contour (IoU 0.3).
    """

    share: float = 0.4
    floor: float = 0.05
    most: int = 2
    slope: float = 1.0
    offset: float = 0.0
    keep: float = 0.0
    split: float = 0.0
    several: int = 1

    def __post_init__(self) -> None:
        shares = 0 < self.share < 1 and 0 <= self.floor < 1 and 0 <= self.keep <= 1 and 0 <= self.split < 1
        if not shares or self.most < 1 or self.several < 1:
            raise BundleError(f"{self} cannot be: shares lie between 0 and 1, and at least one box is given.")


@dataclass(frozen=True)
class FindingSettings:
    """lung: also used for the heart. zone: the zones of a lung."""

    lung: Calibration
    zone: Calibration
    boxes: BoxRule


@dataclass(frozen=True)
class GuardSettings:
    """From which probability on a sign counts."""

    not_frontal: float = 0.5
    turned: float = 0.7
    inverted: float = 0.7
    mirrored: float = 0.9


@dataclass(frozen=True)
class CompactSettings:
    """What the manifest says beside the weights.

    findings: those that the survey may answer.
    presence_share: of the presence logit in the evidence; the map has the rest.
    heart_level: what the heart's map has to reach where the heart's width is measured.
    """

    findings: Mapping[str, FindingSettings]
    guard: GuardSettings
    presence_share: float = 0.0
    heart_level: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.presence_share <= 1:
            raise BundleError(f"presence_share is {self.presence_share}; it lies between 0 and 1.")
        if not 0 < self.heart_level < 1:
            raise BundleError(f"heart_level is {self.heart_level}; it lies between 0 and 1.")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CompactSettings:
        """From the manifest.

        Raises:
            BundleError: a part is missing or impossible.
        """
        try:
            findings = {
                check_finding(name): FindingSettings(
                    Calibration(**entry["lung"]), Calibration(**entry["zone"]), BoxRule(**entry["boxes"])
                )
                for name, entry in data["findings"].items()
            }
            return cls(
                findings,
                GuardSettings(**data["guard"]),
                float(data["presence_share"]),
                float(data.get("heart_level", cls.heart_level)),  # 0.5 in bundles before compact 0.4.0
            )
        except (KeyError, TypeError, ValueError) as problem:
            raise BundleError(f"The bundle's survey settings are not well formed: {problem!r}.") from None

    def to_json(self) -> dict[str, Any]:
        return {
            "findings": {name: asdict(settings) for name, settings in self.findings.items()},
            "guard": asdict(self.guard),
            "presence_share": self.presence_share,
            "heart_level": self.heart_level,
        }


@dataclass(frozen=True, eq=False)
class Seen:
    """The survey of one radiograph, both looks averaged.

    maps: float32 ``[len(MAPS), 128, 128]``, probabilities, on the picture stretched to a square.
    presence: float32 ``[2, len(CLASSES)]``, logits; row 0 is the right lung.
    signs: float32 ``[len(SIGNS)]``, probabilities.
    turns: float32 ``[len(TURNS)]``, probabilities that sum to 1.
    """

    maps: np.ndarray
    presence: np.ndarray
    signs: np.ndarray
    turns: np.ndarray

    def map(self, name: str) -> np.ndarray:
        return np.asarray(self.maps[MAPS.index(name)])

    @cached_property
    def lungs(self) -> dict[str, GroundedLung]:
        """Both lungs, found once for all questions about the radiograph."""
        return {label: ground_lung(self, label) for label in LUNGS}


class CompactSurvey:
    """The survey networks, run once per image.

    Args:
        net: in evaluation mode, on the device that it is to run on.
    """

    def __init__(self, net: SurveyNets) -> None:
        self.net = net

    @classmethod
    def load(cls, path: Path, device: str = "cpu") -> CompactSurvey:
        """From the bundle's safetensors file.

        Raises:
            BundleError: the file is not this network's.
        """
        arrays = read_weights(path)
        net = SurveyNets(members_in(arrays))
        fill(net, arrays, path)
        fold_norms(net)
        return cls(net.to(device))

    def of(self, image: EncodedRadiograph) -> Seen:
        """What the network sees, computed at the first call for an image only.

        Raises:
            EngineError: the network gave no usable numbers.
        """
        seen: Seen = image.feature("compact.survey", self._look)
        return seen

    def _look(self, radiograph: Radiograph) -> Seen:
        grey = torch.from_numpy(to_square(engine_grey(radiograph), SIDE))[None, None]
        with torch.inference_mode():
            both = self.net(torch.cat([grey, grey.flip(3)]).to(next(self.net.parameters()).device))
            straight, mirror = (Survey(*(part[row : row + 1] for part in both)) for row in (0, 1))
            mean = [((a + b) / 2)[0].float().cpu() for a, b in zip(straight, flipped(mirror), strict=True)]
        if not all(bool(torch.isfinite(part).all()) for part in mean):
            raise EngineError("The survey network gave numbers that are not finite; nothing was computed.")
        maps, presence, signs, turns = mean
        return Seen(maps.sigmoid().numpy(), presence.numpy(), signs.sigmoid().numpy(), turns.softmax(0).numpy())


def _enlarged(map_: np.ndarray, side: int) -> np.ndarray:
    """A map at ``side`` pixels, bilinear between the centres of its own."""
    source: Tensor = torch.from_numpy(np.ascontiguousarray(map_))[None, None]
    return np.asarray(F.interpolate(source, size=(side, side), mode="bilinear", align_corners=False)[0, 0].numpy())


def find_lung(seen: Seen, label: str) -> GroundedLung | None:
    """A lung by its map: the box around the largest piece above 0.5 and the map's mean there; None without one."""
    map_ = _enlarged(seen.map(label), _LUNG_SIDE)
    piece = largest_piece(map_ > 0.5)
    box = Box.around(piece)
    if box is None or piece.mean() < _SMALLEST_LUNG:
        return None
    return GroundedLung(label, box, float(map_[piece].mean()))


def ground_lung(seen: Seen, label: str) -> GroundedLung:
    """A lung, always: by its map, else opposite the other one, else where lungs usually lie.

    What is not seen but placed carries the map's mean inside the box as its confidence, which is low.
    """
    found = find_lung(seen, label)
    other = find_lung(seen, LUNGS[1 - LUNGS.index(label)])
    # A white lung leaves a scrap at its apex: next to a lung that is much taller, a scrap is not believed.
    if found is not None and (other is None or found.box.height > 0.4 * other.box.height):
        return found
    if other is not None:
        # Mirrored about the picture's middle, moved as little as needed to stay on its own side.
        width = min(other.box.width, 0.5)
        x1 = 1 - other.box.x2
        x1 = min(x1, other.box.x1 - width) if label == "right lung" else max(x1, other.box.x2)
        x1 = min(max(x1, 0.0), 1 - width)
        box = Box(x1, other.box.y1, min(x1 + width, 1.0), other.box.y2)
        if found is not None:
            box = Box(
                min(box.x1, found.box.x1),
                min(box.y1, found.box.y1),
                max(box.x2, found.box.x2),
                max(box.y2, found.box.y2),
            )
    else:
        box = _USUAL_LUNGS[label]
    map_ = seen.map(label)
    return GroundedLung(label, box, float(map_[box.mask(map_.shape)].mean()))


def cardiothoracic_ratio(seen: Seen, level: float = 0.5) -> float | None:
    """The heart's greatest width over the chest's, both as the maps draw them; None where either is not seen.

    On a posteroanterior view at full inspiration more than about 0.5 is read as an enlarged heart (Danzer 1919). An
    anteroposterior view enlarges the heart, and the networks' lungs end a little inside the ribs. A heart of more than
    four fifths of the chest is a map that ran into an effusion, and is not measured.

    level: what the heart's map has to reach. Its doubt spreads into a consolidation or an effusion that lies beside the
        heart, which at 0.5 looks like width.
    """
    heart = largest_piece(seen.map("cardiomegaly") > level)
    lungs = [find_lung(seen, label) for label in LUNGS]
    box = Box.around(heart)
    if box is None or lungs[0] is None or lungs[1] is None:
        return None
    ratio = box.width / max(lungs[1].box.x2 - lungs[0].box.x1, box.width)
    return ratio if ratio <= 0.8 else None


def evidence_in(
    seen: Seen, finding: str, region: str, box: Box | None, presence_share: float = 0.0, heart_level: float = 0.5
) -> float:
    """The evidence (a logit) for a finding in a region whose box is given; None for the whole picture (the heart).

    The last two as in :class:`CompactSettings`.
    """
    if region == HEART:
        ratio = cardiothoracic_ratio(seen, heart_level)
        return _RATIO_SLOPE * ((_USUAL_RATIO if ratio is None else ratio) - 0.5)

    def evidence(name: str) -> float:
        map_ = seen.map(name)
        inside = map_ if box is None else map_[box.mask(map_.shape)]
        drawn = _logit(float(np.sort(inside, axis=None)[-_STRONGEST:].mean()))
        presence = seen.presence[:, CLASSES.index(name)]
        lung = lung_of(region)
        assert lung is not None
        stated = float(presence[LUNGS.index(lung)])
        return presence_share * stated + (1 - presence_share) * drawn

    own = evidence(finding)
    return max(own, evidence("consolidation")) if finding == "opacity" else own


def lesion_of(seen: Seen, finding: str, box: Box | None, rule: BoxRule, side: int) -> tuple[np.ndarray, np.ndarray]:
    """What the map takes for the lesion inside ``box`` (None: anywhere).

    Returns:
        bool ``[side, side]``, never all false, and the map there, 0 outside the box.
    """
    map_ = _enlarged(seen.map(finding), side)
    inside = map_ if box is None else np.where(box.mask(map_.shape), map_, 0.0)
    peak = float(inside.max())
    # Against the network's own opinion the peak may lie under the floor: what surrounds it is boxed all the same.
    level = rule.share * peak if peak <= rule.floor else max(rule.floor, rule.share * peak)
    return (inside >= level) & (inside > 0), inside


def boxes_in(seen: Seen, finding: str, box: Box | None, rule: BoxRule) -> list[tuple[Box, float]]:
    """At least one lesion box inside ``box`` (None: anywhere) with its peak on the map, the strongest first."""
    lesion, inside = lesion_of(seen, finding, box, rule, _BOX_SIDE)
    return kept_boxes(_boxes_of(inside, lesion, box, rule.split), _boxes_of(inside, lesion, box, 0.0)[:1], rule)


def _boxes_of(inside: np.ndarray, lesion: np.ndarray, box: Box | None, split: float) -> list[tuple[Box, float]]:
    found: list[tuple[Box, float]] = []
    smallest = _SMALLEST_BOX * _BOX_SIDE
    for piece in _pieces(inside, lesion, split):
        ((rows, columns),) = ndimage.find_objects(piece.astype(np.uint8))
        strength = float(inside[piece].max())
        # A box of a pixel or two would ask the segmenter for nothing.
        grow_y = max(0.0, (smallest - (rows.stop - rows.start)) / 2)
        grow_x = max(0.0, (smallest - (columns.stop - columns.start)) / 2)
        edges = (columns.start - grow_x, rows.start - grow_y, columns.stop + grow_x, rows.stop + grow_y)
        grown = Box.of_pixels(edges, inside.shape)
        kept = grown if box is None else grown.intersect(box)
        if kept is not None:
            found.append((kept, strength))
    return sorted(found, key=lambda entry: -entry[1] * math.sqrt(entry[0].area))


def _pieces(map_: np.ndarray, lesion: np.ndarray, split: float) -> Iterator[np.ndarray]:
    """The connected pieces of ``lesion``, taken apart between peaks of ``map_`` as :class:`BoxRule` says."""
    labels, count = ndimage.label(lesion)
    for number in range(1, count + 1):
        yield from _apart(map_, labels == number, split)


def _apart(map_: np.ndarray, piece: np.ndarray, split: float) -> list[np.ndarray]:
    peak = float(map_[piece].max())
    smallest = (0.5 * _SMALLEST_BOX * _BOX_SIDE) ** 2
    for level in peak * _LEVELS if split > 0 else ():
        labels, count = ndimage.label(piece & (map_ >= level))
        if count < 2:
            continue
        numbers = np.arange(1, count + 1)
        peaks, sizes = ndimage.maximum(map_, labels, numbers), np.bincount(labels.ravel())[1:]
        parts = [
            labels == n
            for n, top, size in zip(numbers, peaks, sizes, strict=True)
            if level <= split * top and size >= smallest
        ]
        if len(parts) > 1:
            return [part for found in parts for part in _apart(map_, found, split)]
    return [piece]


def kept_boxes(
    apart: Sequence[tuple[Box, float]], whole: Sequence[tuple[Box, float]], rule: BoxRule
) -> list[tuple[Box, float]]:
    """Of boxes with their peaks, the strongest first: those that the rule keeps; ``whole`` where it keeps too few."""
    least = rule.keep * apart[0][1] if apart else 0.0
    kept = [entry for entry in apart if entry[1] >= least][: rule.most]
    return kept if len(kept) >= rule.several else list(whole)


class CompactInitPolicy:
    """An :class:`~.protocols.InitPolicy` that reads the survey."""

    def __init__(self, survey: CompactSurvey, settings: CompactSettings) -> None:
        self.survey = survey
        self._settings = settings

    @property
    def findings(self) -> tuple[str, ...]:
        """Those that can be asked."""
        return tuple(self._settings.findings)

    def ground_lungs(
        self, image: EncodedRadiograph, instruction: Instruction, lungs: Sequence[str], *, seed: int
    ) -> Decision[tuple[GroundedLung, ...]]:
        seen = self.survey.of(image)
        return Decision(tuple(seen.lungs[label] for label in lungs))

    def judge(
        self,
        image: EncodedRadiograph,
        instruction: Instruction,
        regions: Sequence[str],
        lungs: Sequence[GroundedLung],
        *,
        seed: int,
    ) -> Decision[tuple[Verdict, ...]]:
        seen = self.survey.of(image)
        finding = instruction.finding
        verdicts = []
        for region in regions:
            box = _place(region, lungs)
            calibration = self._of(finding).zone if level_of(region) == "zone" else self._of(finding).lung
            probability = calibration.probability(
                evidence_in(seen, finding, region, box, self._settings.presence_share, self._settings.heart_level)
            )
            present = probability >= calibration.threshold
            verdicts.append(Verdict(region, present, probability if present else 1 - probability))
        return Decision(tuple(verdicts))

    def localise(
        self,
        image: EncodedRadiograph,
        instruction: Instruction,
        lungs: Sequence[GroundedLung],
        verdicts: Sequence[Verdict],
        *,
        seed: int,
    ) -> Decision[tuple[LesionBox, ...]]:
        seen = self.survey.of(image)
        finding = instruction.finding
        rule = self._of(finding).boxes
        found: list[LesionBox] = []
        for verdict in verdicts:
            if not verdict.present:
                continue
            boxes = boxes_in(seen, finding, _place(verdict.region, lungs), rule)
            for box, peak in sorted(boxes, key=lambda entry: (entry[0].y1, entry[0].x1)):
                confidence = Calibration(rule.slope, rule.offset, 0.5).probability(_logit(peak))
                found.append(LesionBox(len(found), finding, box, verdict.region, confidence))
        return Decision(tuple(found))

    def _of(self, finding: str) -> FindingSettings:
        if finding not in self._settings.findings:
            raise EngineError(f"The compact survey has not learned {finding}; ask another bundle.")
        return self._settings.findings[finding]


def _place(region: str, lungs: Sequence[GroundedLung]) -> Box | None:
    """The box of a region inside the grounded lungs; None for the heart, which is looked for everywhere."""
    if region == HEART:
        return None
    label = lung_of(region)
    for lung in lungs:
        if lung.label == label:
            return region_band(region, lung.box)
    raise EngineError(f"The {region} cannot be judged: its lung was not grounded.")


class CompactGuard:
    """An :class:`~.protocols.ImageGuard` on the same survey: one upright frontal chest radiograph, bones bright?"""

    def __init__(self, survey: CompactSurvey, settings: GuardSettings) -> None:
        self._survey = survey
        self._settings = settings

    def inspect(self, image: EncodedRadiograph) -> GuardReport:
        seen = self._survey.of(image)
        not_frontal, inverted, mirrored = (float(value) for value in seen.signs)
        turned = 1 - float(seen.turns[0])
        if not_frontal >= self._settings.not_frontal:
            return GuardReport(("It does not look like one frontal chest radiograph.",))
        refusals, warnings = [], []
        if inverted >= self._settings.inverted:
            refusals.append("It looks inverted (bones dark, air bright); give it with bones bright.")
        if turned >= self._settings.turned:
            turn = TURNS[1:][int(np.argmax(seen.turns[1:]))]
            way = {
                90: "rotated by 90 degrees counter-clockwise",
                180: "upside down",
                270: "rotated by 90 degrees clockwise",
            }[turn]
            refusals.append(f"It looks {way}; turn it upright.")
        elif mirrored >= self._settings.mirrored and not refusals:
            warnings.append(
                "It looks mirrored (the heart lies on the picture's left): left and right may be exchanged."
            )
        return GuardReport(tuple(refusals), tuple(warnings))


def load_survey(
    weights: Path, settings: Mapping[str, Any], device: str = "cpu"
) -> tuple[CompactInitPolicy, CompactGuard]:
    """The first stage and the guard of a compact bundle; they share one network.

    Args:
        weights: the bundle's ``survey.safetensors``.
        settings: the ``survey`` part of the manifest's settings (:meth:`CompactSettings.to_json`).

    Raises:
        BundleError: the weights are not this network's, or the settings are not well formed.
    """
    parsed = CompactSettings.from_json(settings)
    survey = CompactSurvey.load(weights, device)
    return CompactInitPolicy(survey, parsed), CompactGuard(survey, parsed.guard)
