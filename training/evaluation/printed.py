"""Figures as they are printed about the bundles that ship: cut after the last digit, so that none is rounded up."""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal


def cut(value: float, digits: int = 3) -> str:
    """The value to so many digits, never above it: 0.6996 is "0.69" at two, -0.0012 is "-0.002" at three."""
    return str(Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), ROUND_FLOOR))


def percent(share: float, digits: int = 0) -> str:
    """A share of one as a percentage, cut likewise: 0.9778 is "97 %"."""
    return f"{(Decimal(repr(float(share))) * 100).quantize(Decimal(1).scaleb(-digits), ROUND_FLOOR)} %"
