"""What the workflow asks of a promptable segmenter (the paper's F_seg, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from xflow_core.domain.geometry import Box
from xflow_core.domain.trace import Click
from xflow_core.radiograph.encoded import EncodedRadiograph


@dataclass(frozen=True, eq=False)
class Prediction:
    """One component's mask.

    mask: bool ``[H, W]``, the source image frame.
    predicted_iou: the segmenter's own estimate of the mask's IoU, in [0, 1]; None where it has none.
    state: whatever the segmenter wants back with the next click (SAM3's low-resolution logits); None after a mask was
        loaded from a trace or drawn by the user, and then the segmenter starts from ``mask`` alone.
    """

    mask: np.ndarray
    predicted_iou: float | None = None
    state: Any = None


@dataclass(frozen=True, eq=False)
class Prompt:
    """What one component is asked with.

    box: the lesion box, normalised to the source image; None for clicks alone.
    clicks: all clicks so far, oldest first; points normalised to the source image.
    previous: the mask that the last click was made on; None before any.
    """

    box: Box | None
    clicks: tuple[Click, ...] = ()
    previous: Prediction | None = None


class PromptableSegmenter(Protocol):
    """Masks from boxes, clicks and the previous mask."""

    def segment(self, image: EncodedRadiograph, prompts: Sequence[Prompt]) -> list[Prediction]:
        """One prediction per prompt, in order; equal inputs give equal masks.

        The image is encoded at the first call for it and never again (``image.feature``). A mask may be all false.

        Raises:
            ValueRefused: a prompt with neither box nor click, or a previous mask of another size.
            EngineError: the network gave no usable numbers.
        """
        ...
