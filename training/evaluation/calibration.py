"""Whether a stated probability of presence means what it says: of the rows given 70 %, do 70 % hold the finding?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from training.evaluation.metrics import Answered, interval
from training.evaluation.rates import Rate

BINS = 10


def known_of(rows: Sequence[Answered]) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and truths, of the rows with a probability."""
    stated = [(row.probability, row.positive) for row in rows if row.probability is not None]
    return np.array([p for p, _ in stated], float), np.array([t for _, t in stated], bool)


def reliability(rows: Sequence[Answered], bins: int = BINS) -> list[dict[str, Any]]:
    """For each tenth of the probability: n, the mean probability, and the share of positives with its interval."""
    probability, truth = known_of(rows)
    place = np.minimum((probability * bins).astype(int), bins - 1)
    return [
        {
            "from": k / bins,
            "to": (k + 1) / bins,
            "n": int((place == k).sum()),
            "stated": float(probability[place == k].mean()) if (place == k).any() else None,
            "observed": Rate.of(truth[place == k]).to_json(),
        }
        for k in range(bins)
    ]


def calibration_error(rows: Sequence[Answered], bins: int = BINS) -> float | None:
    """The expected calibration error (Naeini et al. 2015): |stated - observed| over the bins, weighted by n.

    It is never below zero, so chance alone raises it in small sets, and more so in their resamples; it has no
    bootstrap interval, which would lie too high.
    """
    probability, truth = known_of(rows)
    if not probability.size:
        return None
    place = np.minimum((probability * bins).astype(int), bins - 1)
    gaps = np.bincount(place, probability - truth, minlength=bins)
    return float(np.abs(gaps).sum() / probability.size)


def brier(rows: Sequence[Answered]) -> float | None:
    """The mean squared difference of probability and truth (Brier 1950); 0 is best, always saying 0.5 gives 0.25."""
    probability, truth = known_of(rows)
    return float(np.mean((probability - truth) ** 2)) if probability.size else None


def calibration(rows: Sequence[Answered]) -> dict[str, Any] | None:
    """The figures of ``metrics.json``, over all rows and per finding; None where the bundle states no probability."""
    probability, truth = known_of(rows)
    if not probability.size:
        return None
    return {
        "n": int(probability.size),
        "mean_stated": float(probability.mean()),
        "positive": Rate.of(truth).to_json(),
        "brier": brier(rows),
        "brier_interval": interval(rows, brier),
        "calibration_error": calibration_error(rows),
        "reliability": reliability(rows),
        "by_finding": {
            name: {
                "n": int(known_of(lot)[0].size),
                "brier": brier(lot),
                "calibration_error": calibration_error(lot),
            }
            for name in dict.fromkeys(row.finding for row in rows)
            if (lot := [row for row in rows if row.finding == name])
        },
    }
