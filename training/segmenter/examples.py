"""D_SFT's radiographs with the true components of their lesions, from the rows of ``training instructions``.

Many questions of a radiograph ask for the same contour, at several levels and in several words. Here each radiograph
stands once, with every component that any of its questions asks for, once: the very components that the policies'
boxes and trajectories are made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.utils.data import Dataset

from training.curation.components import components_of, on_the_side
from training.curation.sources.layout import Sources
from training.curation.sources.masks import read_mask
from training.curation.sources.mimic_cxr import check_image
from training.curation.sources.problems import Problems
from xflow_core.domain.errors import CallError, RadiographError
from xflow_core.domain.findings import lung_of
from xflow_core.domain.geometry import Box
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.radiograph.recipes import check_recipe, recipe_grey
from xflow_core.radiograph.square import to_square

FRAME = 512
"""Masks and clicks are made on a radiograph of at most this many pixels: the decoder's masks are coarser still, and the
oracle's time would count at full size."""

KEPT_BYTES = 2**30
"""Examples stay in memory, in the order in which they are first read, until they fill this much of it: on a miniature
all, of which reading was a tenth of a step."""

_COLUMNS = ["image", "finding", "present", "regions", "lungs", "mask"]


@dataclass(frozen=True)
class Contour:
    """A mask file, and the part of it that a question asks for.

    regions: of the question; they decide on the side. lungs: what the side follows from.
    """

    finding: str
    mask: str
    regions: tuple[str, ...]
    lungs: tuple[tuple[str, Box], ...]


@dataclass(frozen=True)
class Marked:
    """A radiograph, by its path under MIMIC-CXR-JPG's ``files``, and its contours."""

    image: str
    contours: tuple[Contour, ...]


@dataclass(frozen=True, eq=False)
class Component:
    """One true component: bool ``[H, W]`` in the radiograph's frame, and the findings that it is a piece of."""

    mask: np.ndarray
    findings: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Example:
    """One radiograph as it is trained on.

    number: its place among the examples. picture: float32 ``[S, S]`` in [0, 1], what the encoder gets. components:
    masks bool ``[H, W]`` in the radiograph's frame, reduced to :data:`FRAME` pixels where it is larger.
    """

    number: int
    picture: Tensor
    components: tuple[Component, ...]


def marked_radiographs(folder: Path, split: str) -> list[Marked]:
    """The radiographs of a split with a contour, in the order of the rows.

    Raises:
        CallError: the folder holds no finished rows of the split, or rows without masks.
    """
    shards = sorted(folder.glob(f"{split}-*.parquet"))
    if not shards or not (folder / "manifest.json").exists():
        raise CallError(
            f"{folder} holds no finished rows of the split {split!r}; `python -m training instructions` makes them."
        )
    contours: dict[str, dict[tuple[str, str, frozenset[str | None]], Contour]] = {}
    for shard in shards:
        for batch in pq.ParquetFile(shard).iter_batches(columns=_COLUMNS):
            for row in batch.to_pylist():
                if row["present"]:
                    contour = _contour(row, shard)
                    # Questions of one side, whatever their level, ask for the same part of a mask.
                    sides = frozenset(lung_of(region) for region in contour.regions)
                    contours.setdefault(row["image"], {}).setdefault((contour.finding, contour.mask, sides), contour)
    return [Marked(image, tuple(held.values())) for image, held in contours.items()]


def _contour(row: Mapping[str, Any], shard: Path) -> Contour:
    if row["mask"] is None:
        raise CallError(f"{shard} has a positive row without a mask; the segmenter learns from masks.")
    lungs = tuple((lung["label"], Box(*map(float, lung["box"]))) for lung in row["lungs"])
    return Contour(row["finding"], row["mask"], tuple(row["regions"]), lungs)


def whole(marked: Iterable[Marked], sources: Sources, problems: Problems) -> list[Marked]:
    """Those whose radiograph's file is whole; the others are added to ``problems``. No pixel is decoded.

    Raises:
        CallError: there is none.
    """
    kept = [each for each in marked if check_image(sources.images / each.image, None, problems)]
    if not kept:
        raise CallError("There is no radiograph with a contour to train on.")
    return kept


def components_on(marked: Marked, size: tuple[int, int], sources: Sources, problems: Problems) -> tuple[Component, ...]:
    """The distinct components of a radiograph's contours, bool ``[H, W]`` of ``size``."""
    found: dict[bytes, Component] = {}
    for contour in marked.contours:
        mask = read_mask(sources.mimic_ils / contour.mask, size, problems)
        if mask is None:
            continue
        for piece in components_of(on_the_side(mask, contour.regions, dict(contour.lungs))):
            key = np.packbits(piece).tobytes()
            known = found[key].findings if key in found else ()
            found[key] = Component(piece, tuple(dict.fromkeys((*known, contour.finding))))
    return tuple(found.values())


class Examples(Dataset[Example]):
    """The examples of a training.

    Args:
        recipe: how a radiograph becomes the grey picture. side: pixels of the model's square.
    """

    def __init__(self, marked: list[Marked], sources: Sources, recipe: str, side: int) -> None:
        check_recipe(recipe)
        self.marked, self.sources = marked, sources
        self._recipe, self._side = recipe, side
        self._kept: dict[int, Example] = {}
        self._room = KEPT_BYTES

    def __len__(self) -> int:
        return len(self.marked)

    def __getitem__(self, number: int) -> Example:
        """Read once while there is room to keep it, else anew each time.

        Raises:
            RadiographError: a radiograph cannot be read.
        """
        if number in self._kept:
            return self._kept[number]
        example = self._made(number)
        size = example.picture.nbytes + sum(component.mask.nbytes for component in example.components)
        if size <= self._room:
            self._kept[number] = example
            self._room -= size
        return example

    def _made(self, number: int) -> Example:
        marked = self.marked[number]
        image = self.read(number)
        height, width = image.radiograph.size
        shrink = min(1.0, FRAME / max(height, width))
        size = (max(round(height * shrink), 1), max(round(width * shrink), 1))
        # The same two calls as Sam3Segmenter's.
        picture = to_square(recipe_grey(image, self._recipe), self._side)
        return Example(number, torch.from_numpy(picture), components_on(marked, size, self.sources, Problems()))

    def read(self, number: int) -> EncodedRadiograph:
        """The radiograph itself."""
        path = self.sources.images / self.marked[number].image
        try:
            return EncodedRadiograph(read_radiograph(path))
        except RadiographError as problem:
            raise RadiographError(f"{path} cannot be trained on: {problem}") from problem


def collated(examples: list[Example]) -> dict[str, Any]:
    """A batch as :class:`~training.segmenter.network.PromptedTracker` takes it."""
    return {
        "pictures": torch.stack([example.picture for example in examples]),
        "truths": [[component.mask for component in example.components] for example in examples],
        "numbers": [example.number for example in examples],
    }
