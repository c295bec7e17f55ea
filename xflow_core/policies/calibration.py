"""From what a model gives to a verdict to a probability, and from a probability to a verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xflow_core.domain.errors import BundleError


@dataclass(frozen=True)
class Calibration:
    """Evidence to probability, and the probability from which on a finding is called present."""

    slope: float
    offset: float
    threshold: float

    def __post_init__(self) -> None:
        if not (self.slope > 0 and math.isfinite(self.slope) and math.isfinite(self.offset)):
            raise BundleError(f"A calibration must rise with the evidence; {self.slope} and {self.offset} do not.")
        if not 0 < self.threshold < 1:
            raise BundleError(f"A calibration's threshold is a probability, not {self.threshold}.")

    def probability(self, evidence: float) -> float:
        return 1 / (1 + math.exp(-min(max(self.slope * evidence + self.offset, -30.0), 30.0)))
