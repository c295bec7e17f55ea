"""What lies in every patch of a picture: the targets of the loss that teaches a fresh vision tower to see.

MedGemma's tower has seen radiographs; that of a model made from scratch has not, and the tokens of an answer say too
little about a picture (:class:`~training.policies.settings.FromScratch`). Targets come from the rows themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from training.curation.sources.masks import read_mask
from training.curation.sources.problems import Problems
from training.policies.dialogues import Dialogue, Radiographs
from xflow_core.domain import rle
from xflow_core.domain.findings import FINDINGS, LUNGS
from xflow_core.domain.geometry import Box
from xflow_core.policies.medgemma_pictures import squared

Maps = np.ndarray
"""float32 ``[channels, patches, patches]``: the share of each patch; NaN where nobody knows."""


class Dense(Protocol):
    """Targets for the pictures of a row's dialogue."""

    channels: int

    def of(self, row: Mapping[str, Any], dialogue: Dialogue) -> list[Maps]: ...


class InitDense:
    """Both lungs' boxes and the masks of the findings, as the rows at chest level tell them.

    Args:
        rows: of ``training instructions``. masks: what their ``mask`` is relative to. patches: along the side.
    """

    channels = len(LUNGS) + len(FINDINGS)

    def __init__(self, rows: Iterable[Mapping[str, Any]], masks: Path, radiographs: Radiographs, patches: int) -> None:
        self._masks, self._radiographs, self._patches = masks, radiographs, patches
        self._of_image: dict[str, dict[str, Any]] = {}
        for row in rows:
            known = self._of_image.setdefault(row["image"], {"lungs": row["lungs"], "masks": {}})
            if row["level"] == "chest":
                known["masks"][row["finding"]] = row["mask"] if row["present"] else None
        self._made: dict[str, Maps] = {}

    def of(self, row: Mapping[str, Any], dialogue: Dialogue) -> list[Maps]:
        name = row["image"]
        if name not in self._made:
            self._made[name] = self._maps(name)
        return [self._made[name]]

    def _maps(self, name: str) -> Maps:
        known = self._of_image[name]
        size = self._radiographs.read(name).radiograph.record.size
        maps = np.full((self.channels, self._patches, self._patches), np.nan, np.float32)
        for lung in known["lungs"]:
            box = Box(*(min(max(float(number), 0.0), 1.0) for number in lung["box"]))
            maps[LUNGS.index(lung["label"])] = shares(box.mask(size), self._radiographs.side, self._patches)
        for finding, mask in known["masks"].items():
            drawn = np.zeros(size, bool) if mask is None else read_mask(self._masks / mask, size, Problems())
            if drawn is not None:
                maps[len(LUNGS) + FINDINGS.index(finding)] = shares(drawn, self._radiographs.side, self._patches)
        return maps


class RevisionDense:
    """The mask that is laid over the radiograph, what it misses of the truth, and what it has too much of."""

    channels = 3

    def __init__(self, radiographs: Radiographs, patches: int) -> None:
        self._side, self._patches = radiographs.side, patches

    def of(self, row: Mapping[str, Any], dialogue: Dialogue) -> list[Maps]:
        size = tuple(row["size"])
        truth = rle.decode(row["truth"], size)
        maps = [np.full((self.channels, self._patches, self._patches), np.nan, np.float32)]  # the plain radiograph
        for told in row["masks"][: len(dialogue.turns)]:
            mask = rle.decode(told, size)
            parts = (mask, truth & ~mask, mask & ~truth)
            maps.append(np.stack([shares(part, self._side, self._patches) for part in parts]))
        return maps


def shares(mask: np.ndarray, side: int, patches: int) -> np.ndarray:
    """A mask ``[H, W]`` of the source image as the share of every patch of the model's square, float32."""
    square = squared(mask.astype(np.uint8) * 255, side)[..., 0].astype(np.float32) / 255
    step = side // patches
    held: np.ndarray = square[: step * patches, : step * patches].reshape(patches, step, patches, step).mean((1, 3))
    return held
