"""A promptable segmenter of a few lines, for tests of what is built around one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.segmenters.protocol import Prediction, Prompt


class Brush:
    """The box filled; a click paints or wipes a disc. ``deaf`` ignores clicks.

    It counts the prompts of every call (``asked``), and how often it encoded each radiograph (``encoded``).
    """

    def __init__(self, deaf: bool = False, size: tuple[int, int] = (96, 96)) -> None:
        self.deaf, self.size = deaf, size
        self.asked: list[int] = []
        self.encoded: Counter[str] = Counter()

    def segment(self, image: EncodedRadiograph | None, prompts: Sequence[Prompt]) -> list[Prediction]:
        size = self.size
        self.asked.append(len(prompts))
        if image is not None:
            size = image.radiograph.size
            image.feature("brush", lambda read: self.encoded.update([read.record.sha256]))
        made = []
        for prompt in prompts:
            mask = prompt.previous.mask.copy() if prompt.previous else np.zeros(size, bool)
            if prompt.previous is None and prompt.box is not None:
                mask = prompt.box.mask(size)
            elif not self.deaf:
                row, column = prompt.clicks[-1].point.pixel(size)
                rows, columns = np.ogrid[: size[0], : size[1]]
                disc = (rows - row) ** 2 + (columns - column) ** 2 <= (max(size) / 14) ** 2
                mask[disc] = prompt.clicks[-1].polarity == "positive"
            made.append(Prediction(mask))
        return made
