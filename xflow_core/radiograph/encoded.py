"""A radiograph with what the models have already computed from it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .reading import Radiograph


class EncodedRadiograph:
    """One radiograph and the features that a bundle's parts compute from it, each once, at first need.

    Every part of an engine takes this object instead of the bare image, so that however many instructions, edits and
    clicks follow, the image goes through each encoder once. Safe to share between threads: two that need the same
    feature wait for one computation.
    """

    def __init__(self, radiograph: Radiograph) -> None:
        self.radiograph = radiograph
        self._features: dict[str, Any] = {}
        self._lock = threading.RLock()

    def feature(self, name: str, compute: Callable[[Radiograph], Any]) -> Any:
        """The feature called ``name``, computed by ``compute(radiograph)`` at the first call only."""
        with self._lock:
            if name not in self._features:
                self._features[name] = compute(self.radiograph)
            return self._features[name]
