"""Two systems on the same rows: the difference, its bootstrap interval and a paired test.

Cases are patients where the set names them, else images, since the answers about one radiograph hang together. The
interval draws cases with replacement, the same ones for both systems. The test swaps the two systems' answers case by
case at random (Noreen 1989, approximate randomisation): under "no difference" the swapped set is as likely as the real
one. It needs no assumption about how IoU is distributed, and is the same for gIoU, cIoU and F1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from training.evaluation.metrics import MEASURES, Answered, Ratio, Sums, averaged_ratio, resamples
from xflow_core.domain.errors import CallError

DRAWS = 2000
SWAPS = 10_000


@dataclass(frozen=True)
class Comparison:
    """One measure of two systems. difference: first minus second; interval: its 95 % bootstrap interval; p: two-sided;
    cases: how many are drawn from."""

    first: float
    second: float
    difference: float
    interval: tuple[float, float]
    p: float
    cases: int

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "interval": list(self.interval)}


def compare(
    first: Sequence[Answered], second: Sequence[Answered], measure: Ratio, averaged: bool = True, seed: int = 0
) -> Comparison | None:
    """The measure of both systems and whether they differ; None where it is not defined for one of them.

    averaged: over the levels with equal weight (:func:`training.evaluation.metrics.over_levels`).

    Raises:
        CallError: the two do not answer the same rows.
    """
    if {(row.id, row.image) for row in first} != {(row.id, row.image) for row in second}:
        raise CallError("Two systems are compared on the same rows; one of them lacks some.")
    order = {row.id: k for k, row in enumerate(first)}
    a = Sums.of(first, measure, averaged)
    b = Sums.of(sorted(second, key=lambda row: order[row.id]), measure, averaged)
    whole = np.ones((1, len(a.cases)))
    real = float((a.at(whole) - b.at(whole))[0])
    if np.isnan(real):
        return None

    weights = resamples(len(a.cases), DRAWS, seed)
    drawn = a.at(weights) - b.at(weights)
    low, high = np.percentile(drawn[~np.isnan(drawn)], (2.5, 97.5))

    swapped = np.random.default_rng(seed).integers(0, 2, (SWAPS, len(a.cases))).astype(float)
    numerators, denominators = (
        (one.sum(0) + swapped @ (other - one), other.sum(0) + swapped @ (one - other))
        for one, other in ((a.numerators, b.numerators), (a.denominators, b.denominators))
    )
    by_chance = np.abs(averaged_ratio(numerators[0], denominators[0]) - averaged_ratio(numerators[1], denominators[1]))
    as_far = int(np.count_nonzero(by_chance >= abs(real) - 1e-12))
    return Comparison(
        float(a.at(whole)[0]),
        float(b.at(whole)[0]),
        real,
        (float(low), float(high)),
        (1 + as_far) / (1 + SWAPS),
        len(a.cases),
    )


def compare_all(first: Sequence[Answered], second: Sequence[Answered]) -> dict[str, Any]:
    """gIoU, cIoU and F1 of two systems, for JSON."""
    found = {name: compare(first, second, measure) for name, measure in MEASURES.items()}
    return {name: None if one is None else one.to_json() for name, one in found.items()}
