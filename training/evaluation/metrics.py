"""The paper's measures (section 5.2, Table 3) over answered rows.

gIoU is the mean IoU, cIoU total intersection over total union, both over positive rows. F1 is of the positive class
over all rows, a returned mask counting as positive. The three levels of location specificity are averaged with equal
weight (appendix B.1), since pooling would mostly report how zone-level questions are declined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import ndimage

from xflow_core.domain.geometry import Box


@dataclass(frozen=True)
class Answered:
    """One row with what was answered.

    intersection, union, true_area, area: pixels. probability: that the finding is present. first_iou: of the mask
    before any click. pieces: 8-connected pieces of the answer and of the truth; specks, specks_outside, speck_area: of
    the answer. box_hits: true boxes met by a predicted box of IoU 0.3; box_right: predicted boxes that meet a true one.
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
    first_iou: float | None
    pieces: int
    true_pieces: int
    specks: int
    specks_outside: int
    speck_area: int
    boxes: int
    true_boxes: int
    box_hits: int
    box_right: int
    lung_box_iou: float | None
    seconds: float

    @property
    def iou(self) -> float:
        return self.intersection / self.union if self.union else 1.0


def f1(rows: Sequence[Answered]) -> float | None:
    """2 TP / (2 TP + FP + FN); None without a positive or returned row."""
    both = sum(row.positive and row.returned for row in rows)
    total = sum(row.positive for row in rows) + sum(row.returned for row in rows)
    return 2 * both / total if total else None


def giou(rows: Sequence[Answered]) -> float | None:
    positive = [row.iou for row in rows if row.positive]
    return float(np.mean(positive)) if positive else None


def ciou(rows: Sequence[Answered]) -> float | None:
    union = sum(row.union for row in rows if row.positive)
    return sum(row.intersection for row in rows if row.positive) / union if union else None


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
    values = [measure([row for row in rows if row.level == level]) for level in ("chest", "lung", "zone")]
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def share(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def metrics(rows: Sequence[Answered]) -> dict[str, Any]:
    """``metrics.json`` of DESIGN.md, with 95 % bootstrap intervals over images under ``intervals``."""
    findings = list(dict.fromkeys(row.finding for row in rows))
    lungs = [row for row in rows if row.level == "lung"]
    revised = [row for row in rows if row.positive and row.first_iou is not None]
    returned = [row for row in rows if row.positive and row.returned]
    gains = np.array([row.iou - (row.first_iou or 0.0) for row in revised])
    return _rounded(
        {
            "n": len(rows),
            "gIoU": over_levels(rows, giou),
            "cIoU": over_levels(rows, ciou),
            "F1": over_levels(rows, f1),
            "lung_box_iou": mean([row.lung_box_iou for row in rows if row.lung_box_iou is not None]),
            "by_level": {
                level: {"n": len(at), "gIoU": giou(at), "cIoU": ciou(at), "F1": f1(at)}
                for level in ("chest", "lung", "zone")
                if (at := [row for row in rows if row.level == level])
            },
            "by_finding": {name: _finding([row for row in rows if row.finding == name]) for name in findings},
            "by_finding_lung": {
                name: _finding(at) for name in findings if (at := [row for row in lungs if row.finding == name])
            },
            "noise": {
                "n": len(returned),
                "delta_components": mean([row.pieces - row.true_pieces for row in returned]),
                "specks": mean([row.specks for row in returned]),
                "specks_outside_truth": mean([row.specks_outside for row in returned]),
                "speck_share_of_mask": share(sum(r.speck_area for r in returned), sum(r.area for r in returned)),
            },
            "revision": {
                "n": len(revised),
                "iou_before": mean([row.first_iou or 0.0 for row in revised]),
                "iou_after": mean([row.iou for row in revised]),
                "improved": share(int((gains > 0.005).sum()), len(gains)),
                "worsened": share(int((gains < -0.005).sum()), len(gains)),
            },
            "seconds_per_row": mean([row.seconds for row in rows]),
        }
    )


def _finding(rows: Sequence[Answered]) -> dict[str, Any]:
    return {
        "n_positive": sum(row.positive for row in rows),
        "n_negative": sum(not row.positive for row in rows),
        "gIoU": giou(rows),
        "F1": f1(rows),
        "auc": auc(rows),
        "box_recall_at_0.3": share(sum(row.box_hits for row in rows), sum(row.true_boxes for row in rows)),
        "box_precision_at_0.3": share(sum(row.box_right for row in rows), sum(row.boxes for row in rows)),
        "intervals": {"gIoU": interval(rows, giou), "F1": interval(rows, f1), "auc": interval(rows, auc)},
    }


def interval(
    rows: Sequence[Answered], measure: Callable[[Sequence[Answered]], float | None], draws: int = 300
) -> list[float] | None:
    """95 % bootstrap interval, images drawn with replacement."""
    by_image: dict[str, list[Answered]] = {}
    for row in rows:
        by_image.setdefault(row.image, []).append(row)
    images = list(by_image.values())
    rng = np.random.default_rng(0)
    values = []
    for _ in range(draws):
        drawn = [row for k in rng.integers(0, len(images), len(images)) for row in images[k]]
        value = measure(drawn)
        if value is not None:
            values.append(value)
    return [float(v) for v in np.percentile(values, (2.5, 97.5))] if values else None


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return round(value, 4) if isinstance(value, float) else value


def pieces_of(mask: np.ndarray, speck_share: float, truth: np.ndarray) -> tuple[int, int, int, int]:
    """8-connected pieces of a mask, its specks (under ``speck_share`` of the image), those outside the truth, and the
    specks' pixels (paper, Table 3)."""
    labels, count = ndimage.label(mask, np.ones((3, 3)))
    areas = np.bincount(labels.ravel(), minlength=count + 1)[1:]
    met = np.bincount(labels[truth].ravel(), minlength=count + 1)[1:]
    specks = areas < speck_share * mask.size
    return count, int(specks.sum()), int((specks & (met == 0)).sum()), int(areas[specks].sum())


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
