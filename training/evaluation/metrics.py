"""The paper's measures (section 5.2, Table 3) over answered rows.

gIoU is the mean IoU, cIoU total intersection over total union, both over positive rows. F1 is of the positive class
over all rows, a returned mask counting as positive. The three levels of location specificity are averaged with equal
weight (appendix B.1), since pooling would mostly report how zone-level questions are declined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from scipy import ndimage

from xflow_core.domain.geometry import Box

LEVELS = ("chest", "lung", "zone")
# By the truth's share of the image. On a frontal chest radiograph 1 % is a coin, 5 % about a third of one lung.
SIZES = {"small, under 1 %": (0.0, 0.01), "medium, 1 to 5 %": (0.01, 0.05), "large, 5 % and more": (0.05, 1.1)}
AGES = {"under 40": (0, 40), "40 to 59": (40, 60), "60 and more": (60, 200)}


@dataclass(frozen=True)
class Answered:
    """One row with what was answered.

    source, patient, view, age, sex: of the radiograph, where the set says so.

    intersection, union, area: pixels; pixels: of the image. probability: that the finding is present. pieces: the
    8-connected ones of the answer and of the truth; specks, specks_outside, speck_area: of the answer; true_specks,
    true_speck_area: of the truth. first_iou: of the mask before any click. box_hits: true boxes met by a predicted box
    of IoU 0.3; box_right: predicted boxes that meet a true one. What a stored mask cannot tell is zero or None.
    """

    id: str
    image: str
    finding: str
    level: str
    positive: bool
    returned: bool
    probability: float | None
    intersection: int
    union: int
    area: int
    pieces: int
    true_pieces: int
    specks: int
    specks_outside: int
    speck_area: int
    true_specks: int = 0
    true_speck_area: int = 0
    pixels: int = 0
    first_iou: float | None = None
    boxes: int = 0
    true_boxes: int = 0
    box_hits: int = 0
    box_right: int = 0
    lung_box_iou: float | None = None
    seconds: float | None = None
    source: str = ""
    patient: str | None = None
    view: str | None = None
    age: float | None = None
    sex: str | None = None

    @property
    def case(self) -> str:
        """What a bootstrap draws: the patient where it is known, else the image."""
        return self.patient or self.image

    @property
    def iou(self) -> float:
        return self.intersection / self.union if self.union else 1.0

    @property
    def true_area(self) -> int:
        return self.union - self.area + self.intersection


@dataclass(frozen=True)
class Ratio:
    """A measure that is one sum over rows divided by another: the paper's all are. None where the second is zero."""

    numerator: Callable[[Answered], float]
    denominator: Callable[[Answered], float]

    def __call__(self, rows: Sequence[Answered]) -> float | None:
        return share(sum(map(self.numerator, rows)), sum(map(self.denominator, rows)))


giou = Ratio(lambda row: row.iou * row.positive, lambda row: row.positive)
ciou = Ratio(lambda row: row.intersection * row.positive, lambda row: row.union * row.positive)
# 2 TP / (2 TP + FP + FN).
f1 = Ratio(lambda row: 2 * (row.positive and row.returned), lambda row: row.positive + row.returned)
MEASURES = {"gIoU": giou, "cIoU": ciou, "F1": f1}
# Of the positive and of the negative rows, those that were answered with a mask: for subsets of one kind of row, where
# F1 says little.
found_share = Ratio(lambda row: row.positive and row.returned, lambda row: row.positive)
false_alarms = Ratio(lambda row: row.returned and not row.positive, lambda row: not row.positive)

# Table 3, over positive rows; the share is of all predicted pixels. A positive row without a mask counts as one of no
# pieces.
NOISE = {
    "delta_components": Ratio(lambda row: (row.pieces - row.true_pieces) * row.positive, lambda row: row.positive),
    "specks": Ratio(lambda row: row.specks * row.positive, lambda row: row.positive),
    "specks_outside_truth": Ratio(lambda row: row.specks_outside * row.positive, lambda row: row.positive),
    "speck_share_of_mask": Ratio(lambda row: row.speck_area * row.positive, lambda row: row.area * row.positive),
}
TRUE_NOISE = {
    "specks": Ratio(lambda row: row.true_specks * row.positive, lambda row: row.positive),
    "speck_share_of_mask": Ratio(
        lambda row: row.true_speck_area * row.positive, lambda row: row.true_area * row.positive
    ),
}


def area_under_roc(truth: Sequence[bool], score: Sequence[float]) -> float | None:
    """Area under the ROC curve, ties counted half; None without both kinds."""
    yes = np.array([s for t, s in zip(truth, score, strict=True) if t], float)
    no = np.array([s for t, s in zip(truth, score, strict=True) if not t], float)
    if not yes.size or not no.size:
        return None
    above = (yes[:, None] > no[None]).sum() + 0.5 * (yes[:, None] == no[None]).sum()
    return float(above / (yes.size * no.size))


def auc(rows: Sequence[Answered]) -> float | None:
    """:func:`area_under_roc` of the probability, over the rows that have one."""
    known = [(row.positive, row.probability) for row in rows if row.probability is not None]
    return area_under_roc([positive for positive, _ in known], [probability for _, probability in known])


def over_levels(rows: Sequence[Answered], measure: Callable[[Sequence[Answered]], float | None]) -> float | None:
    """The mean of a measure over the levels that have it, with equal weight."""
    values = [measure([row for row in rows if row.level == level]) for level in LEVELS]
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def share(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def metrics(rows: Sequence[Answered]) -> dict[str, Any]:
    """``metrics.json`` of DESIGN.md, with 95 % bootstrap intervals over cases under ``intervals``, and ``subsets``.

    Numbers stand in full; who prints them says how.
    """
    findings = list(dict.fromkeys(row.finding for row in rows))
    lungs = [row for row in rows if row.level == "lung"]
    revised = [row for row in rows if row.positive and row.first_iou is not None]
    returned = [row for row in rows if row.positive and row.returned]
    gains = np.array([row.iou - (row.first_iou or 0.0) for row in revised])
    return {
        **_measured(rows, averaged=True),
        "lung_box_iou": mean([row.lung_box_iou for row in rows if row.lung_box_iou is not None]),
        "by_level": {level: _measured(at) for level in LEVELS if (at := [row for row in rows if row.level == level])},
        "by_finding": {name: _finding([row for row in rows if row.finding == name]) for name in findings},
        "by_finding_lung": {
            name: _finding(at) for name in findings if (at := [row for row in lungs if row.finding == name])
        },
        "by_size": {name: _of_positives(at) for name, at in by_size(rows).items() if at},
        "subsets": {
            kind: {name: _measured(at, averaged=True) for name, at in parts.items()}
            for kind, parts in subsets(rows).items()
        },
        "noise": {"n": len(returned), **{name: measure(returned) for name, measure in NOISE.items()}},
        "revision": {
            "n": len(revised),
            "iou_before": mean([row.first_iou or 0.0 for row in revised]),
            "iou_after": mean([row.iou for row in revised]),
            "improved": share(int((gains > 0.005).sum()), len(gains)),
            "worsened": share(int((gains < -0.005).sum()), len(gains)),
        },
        "seconds_per_row": mean([row.seconds for row in rows if row.seconds is not None]),
    }


def subsets(rows: Sequence[Answered]) -> dict[str, dict[str, list[Answered]]]:
    """The rows by source, view, age and sex, as far as the set says so and there is more than one kind."""
    parts: dict[str, dict[str, list[Answered]]] = {"source": {}, "view": {}, "age": {}, "sex": {}}
    for row in rows:
        age = row.age
        years = None if age is None else next(name for name, (low, high) in AGES.items() if low <= age < high)
        for kind, value in (("source", row.source), ("view", row.view), ("age", years), ("sex", row.sex)):
            if value:
                parts[kind].setdefault(value, []).append(row)
    order = list(AGES)
    parts["age"] = dict(sorted(parts["age"].items(), key=lambda part: order.index(part[0])))
    return {kind: found for kind, found in parts.items() if len(found) > 1}


def by_size(rows: Sequence[Answered]) -> dict[str, list[Answered]]:
    """The positive rows by the share of the image that the truth takes (:data:`SIZES`)."""
    known = [row for row in rows if row.positive and row.pixels]
    return {
        name: [row for row in known if low <= row.true_area / row.pixels < high] for name, (low, high) in SIZES.items()
    }


def _measured(rows: Sequence[Answered], averaged: bool = False) -> dict[str, Any]:
    """The counts, the measures and their intervals; averaged: over the levels with equal weight."""
    measures = {**MEASURES, "found": found_share, "false_alarms": false_alarms}
    return {
        "n": len(rows),
        "n_positive": sum(row.positive for row in rows),
        "n_negative": sum(not row.positive for row in rows),
        "cases": len({row.case for row in rows}),
        **{name: over_levels(rows, m) if averaged else m(rows) for name, m in measures.items()},
        "intervals": {name: interval(rows, m, averaged=averaged) for name, m in measures.items()},
    }


def _of_positives(rows: Sequence[Answered]) -> dict[str, Any]:
    """Of rows that are all positive, where F1 says nothing."""
    found = _measured(rows)
    return {**found, "F1": None, "intervals": {**found["intervals"], "F1": None}}


def _finding(rows: Sequence[Answered]) -> dict[str, Any]:
    found = _measured(rows)
    return {
        **found,
        "auc": auc(rows),
        "box_recall_at_0.3": share(sum(row.box_hits for row in rows), sum(row.true_boxes for row in rows)),
        "box_precision_at_0.3": share(sum(row.box_right for row in rows), sum(row.boxes for row in rows)),
        "intervals": {**found["intervals"], "auc": interval(rows, auc)},
    }


@dataclass(frozen=True, eq=False)
class Sums:
    """The two sums of a ratio by case and level, so that a resample of the cases is one product of matrices.

    numerators, denominators: float ``[cases, levels]``; one level where the levels are not averaged.
    """

    cases: tuple[str, ...]
    numerators: np.ndarray
    denominators: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Answered], measure: Ratio, averaged: bool) -> Sums:
        place = {case: k for k, case in enumerate(dict.fromkeys(row.case for row in rows))}
        numerators, denominators = np.zeros((2, len(place), len(LEVELS) if averaged else 1))
        for row in rows:
            at = place[row.case], LEVELS.index(row.level) if averaged else 0
            numerators[at] += measure.numerator(row)
            denominators[at] += measure.denominator(row)
        return cls(tuple(place), numerators, denominators)

    def at(self, weights: np.ndarray) -> np.ndarray:
        """The measure for each of the weightings ``[draws, cases]``: ``[draws]``, NaN where it is not defined."""
        return averaged_ratio(weights @ self.numerators, weights @ self.denominators)


def averaged_ratio(numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
    """The ratios' mean over the levels ``[.., levels]`` that have one; NaN where none has."""
    known = denominators > 0
    ratios = np.divide(numerators, denominators, out=np.zeros_like(numerators), where=known)
    count = known.sum(-1)
    return np.divide(ratios.sum(-1), count, out=np.full(count.shape, np.nan), where=count > 0)


def resamples(cases: int, draws: int, seed: int = 0) -> np.ndarray:
    """How often each case is drawn, ``[draws, cases]``, with replacement."""
    return np.random.default_rng(seed).multinomial(cases, np.full(cases, 1 / cases), size=draws).astype(float)


def interval(
    rows: Sequence[Answered],
    measure: Callable[[Sequence[Answered]], float | None],
    averaged: bool = False,
    draws: int | None = None,
) -> list[float] | None:
    """95 % bootstrap interval, cases drawn with replacement: 2,000 times for a ratio, 300 for any other measure.

    averaged: of the mean over the levels (:func:`over_levels`); for ratios alone.

    Returns:
        The interval; None where fewer than two cases count, since drawing from one always gives that one.
    """
    if not rows:
        return None
    if isinstance(measure, Ratio):
        sums = Sums.of(rows, measure, averaged)
        if np.count_nonzero(sums.denominators.any(axis=1)) < 2:
            return None
        values = sums.at(resamples(len(sums.cases), draws or 2000))
    else:
        by_case: dict[str, list[Answered]] = {}
        for row in rows:
            by_case.setdefault(row.case, []).append(row)
        cases = list(by_case.values())
        if len(cases) < 2:
            return None
        weights = resamples(len(cases), draws or 300).astype(int)
        found = [measure([row for k, n in enumerate(drawn) for row in cases[k] * n]) for drawn in weights]
        values = np.array([np.nan if value is None else value for value in found])
    values = values[~np.isnan(values)]
    return [float(v) for v in np.percentile(values, (2.5, 97.5))] if values.size else None


def pieces_of(mask: np.ndarray, speck_share: float, truth: np.ndarray) -> tuple[int, int, int, int]:
    """8-connected pieces of a mask, its specks (under ``speck_share`` of the image), those outside the truth, and the
    specks' pixels (paper, Table 3)."""
    grey = mask.astype(np.uint8)
    x, y, width, height = cv2.boundingRect(grey)
    if not width:
        return 0, 0, 0, 0
    inside = np.s_[y : y + height, x : x + width]
    count, labels, facts, _ = cv2.connectedComponentsWithStats(grey[inside], connectivity=8)
    areas = facts[1:, cv2.CC_STAT_AREA]
    met = np.bincount(labels[truth[inside] & mask[inside]], minlength=count)[1:]
    specks = areas < speck_share * mask.size
    return count - 1, int(specks.sum()), int((specks & (met == 0)).sum()), int(areas[specks].sum())


def pixels_of(mask: np.ndarray, truth: np.ndarray, speck_share: float) -> dict[str, int]:
    """What :class:`Answered` holds of an answer's mask and the truth, both bool ``[H, W]``."""
    pieces, specks, outside, speck_area = pieces_of(mask, speck_share, truth)
    true_pieces, true_specks, _, true_speck_area = pieces_of(truth, speck_share, truth)
    both, area, true_area = (int(np.count_nonzero(part)) for part in (mask & truth, mask, truth))
    return {
        "intersection": both,
        "union": area + true_area - both,
        "area": area,
        "pieces": pieces,
        "true_pieces": true_pieces,
        "specks": specks,
        "specks_outside": outside,
        "speck_area": speck_area,
        "true_specks": true_specks,
        "true_speck_area": true_speck_area,
        "pixels": mask.size,
    }


def boxes_of(mask: np.ndarray, least_share: float) -> list[Box]:
    """The boxes around a mask's 8-connected pieces that are no specks."""
    labels, count = ndimage.label(mask, np.ones((3, 3)))
    areas = np.bincount(labels.ravel(), minlength=count + 1)
    found = []
    for number, place in enumerate(ndimage.find_objects(labels), start=1):
        if areas[number] >= least_share * mask.size:
            rows, columns = place
            found.append(Box.of_pixels((columns.start, rows.start, columns.stop, rows.stop), mask.shape))
    return found
