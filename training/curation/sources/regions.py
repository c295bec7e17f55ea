"""The sets' names for places, as XFlow's regions."""

from __future__ import annotations

from functools import lru_cache

from xflow_core.domain.findings import HEART, LUNGS, ZONES

# What a set may write after the side: MIMIC-ILS, CheXpercept ("lower zone lung" for the base), Chest ImaGenome.
_AFTER_SIDE = {
    "lung": "lung",
    "apical zone lung": "apical zone lung",
    "apical zone": "apical zone lung",
    "upper zone lung": "upper zone lung",
    "upper lung zone": "upper zone lung",
    "mid zone lung": "mid zone lung",
    "mid lung zone": "mid zone lung",
    "lung base": "lung base",
    "lower zone lung": "lung base",
    "lower lung zone": "lung base",
    "costophrenic angle": "lung base",
}
_NAMES = {f"{side} {words}": f"{side} {region}" for side in ("right", "left") for words, region in _AFTER_SIDE.items()}
_NAMES |= {"heart": HEART, "cardiac silhouette": HEART}

# The zones that the sources are compared on. The apical one lies inside the upper one and is no vote of its own.
THIRDS = tuple(zone for zone in ZONES if "apical" not in zone)


def region_of(words: object) -> str | None:
    """XFlow's name of a place in any set's spelling; None where it is no lung, zone or heart."""
    return _region_of(words) if isinstance(words, str) else None


@lru_cache(4096)
def _region_of(words: str) -> str | None:
    return _NAMES.get(" ".join(words.lower().split()))


def thirds_of(region: str) -> tuple[str, ...]:
    """The zones that a region reaches into: a lung's three, an apical zone's upper one, else itself."""
    if region in LUNGS:
        return tuple(zone for zone in THIRDS if zone.startswith(region.split()[0]))
    return (region.replace("apical zone", "upper zone"),)
