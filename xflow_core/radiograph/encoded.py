"""A radiograph with what the models have already computed from it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from xflow_core.domain.trace import ImageRecord

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

    def with_record(self, record: ImageRecord) -> EncodedRadiograph:
        """The same picture and the same features under another record, for instance one with more warnings."""
        other = copy.copy(self)  # shallow: features and lock are shared
        other.radiograph = replace(self.radiograph, record=record)
        return other

    @property
    def passes(self) -> int:
        """Features computed so far."""
        return len(self._features)

    @property
    def nbytes(self) -> int:
        """Bytes of the radiograph's arrays and of the features in memory (arrays and tensors; the rest is small)."""
        picture = self.radiograph
        arrays = [picture.values, picture.display, *([] if picture.padding is None else [picture.padding])]
        with self._lock:
            return _nbytes(arrays) + _nbytes(self._features)


def _nbytes(value: Any) -> int:
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(value, Mapping):
        return sum(map(_nbytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_nbytes, value))
    if is_dataclass(value):
        return sum(_nbytes(getattr(value, item.name)) for item in fields(value))
    return 0
