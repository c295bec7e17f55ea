"""A share of cases with its n and interval, as every table of the evaluation states it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from training.evaluation.printed import cut, percent

_Z = 1.959964  # 95 %


@dataclass(frozen=True)
class Rate:
    """``count`` of ``n`` cases."""

    count: int
    n: int

    def __post_init__(self) -> None:
        if not 0 <= self.count <= self.n:
            raise ValueError(f"{self.count} of {self.n} is no rate.")

    @classmethod
    def of(cls, hits: Iterable[bool]) -> Rate:
        known = [bool(hit) for hit in hits]
        return cls(sum(known), len(known))

    @property
    def share(self) -> float | None:
        return self.count / self.n if self.n else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of Wilson (1927), which is sound for few cases and for shares of 0 and 1."""
        if not self.n:
            return None
        p, square = self.count / self.n, _Z**2 / self.n
        middle = (p + square / 2) / (1 + square)
        half = _Z / (1 + square) * math.sqrt(p * (1 - p) / self.n + square / (4 * self.n))
        low = 0.0 if self.count == 0 else middle - half
        high = 1.0 if self.count == self.n else middle + half
        return low, high

    @property
    def short(self) -> str:
        """``97.7 % [93.6, 99.2]``; nothing is rounded up."""
        if self.share is None or self.interval is None:
            return "-"
        low, high = (cut(end * 100, 1) for end in self.interval)
        return f"{percent(self.share, 1)} [{low}, {high}]"

    def __str__(self) -> str:
        """``97.7 % [93.6, 99.2], 132 of 135``."""
        return f"{self.short}, {self.count} of {self.n}" if self.n else "-"

    def to_json(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "n": self.n,
            "share": self.share,
            "interval": None if self.interval is None else list(self.interval),
        }
