"""The compact bundle's revision policy: it clicks where a click is expected to help, and says when none is.

It forms a belief of where the lesion is, looks for the piece that is most worth adding and the one that is most worth
taking away, asks the segmenter what a click on each would give, and makes the better click if the expected IoU rises by
more than a threshold.

The belief averages what a network of its own sees (:class:`RevisionNet`, which is told the finding) and what the
segmenter sees where the mask is hidden from it. How much each counts, and the threshold, were set on patients that
neither had learned from: a belief is too sure of itself, and the best of several guesses looks better than it is. On
those patients the average was nearer to the truth than the network alone (cross-entropy), and clicks corrected masks of
another make; the segmenter's own masks they did not improve, so the threshold is one that these hardly reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from xflow_core.domain.errors import EngineError, ValueRefused
from xflow_core.domain.geometry import Point
from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import Click, LesionBox
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.segmenters.compact import CompactSegmenter, prompt_inputs
from xflow_core.segmenters.compact_region import MASK_CHANNEL, MASK_SIDE, Region
from xflow_core.segmenters.protocol import Prediction, Prompt
from xflow_core.segmenters.trunk import fold_norms
from xflow_core.segmenters.weights import load_weights

from .compact_revision_network import RevisionNet, class_of, expected_iou
from .protocols import Decision, Done

GUARD = 25 / 1024
"""Least distance of clicks of one polarity, as a share of the image's longer side (the paper's 25-pixel guard)."""

_EDGE = 0.1  # No click this near to the region's edge: it would move the region, and the comparison with it.
_SMALLEST = 4  # Mask pixels.


@dataclass(frozen=True)
class RevisionSettings:
    """least_gain: the rise of the expected IoU that a click must promise.
    trust: how much the given mask counts when the network forms its part of the belief, 0 (not looked at) to 1.
    segmenter_share: the segmenter's part of the belief, 0 to 1; the network has the rest.
    """

    least_gain: float = 0.05
    trust: float = 1.0
    segmenter_share: float = 0.0

    def __post_init__(self) -> None:
        if not self.least_gain >= 0:
            raise ValueRefused(f"least_gain is {self.least_gain}; it must be 0 or more.")
        for name in ("trust", "segmenter_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueRefused(f"{name} is {getattr(self, name)}; it lies between 0 and 1.")


class CompactRevisionPolicy:
    """A :class:`~xflow_core.policies.protocols.RevisionPolicy` that asks its bundle's segmenter before it clicks."""

    def __init__(self, net: RevisionNet, segmenter: CompactSegmenter, settings: RevisionSettings | None = None) -> None:
        self._net = net
        self._segmenter = segmenter
        self.settings = settings or RevisionSettings()

    @classmethod
    def load(
        cls,
        path: Path,
        segmenter: CompactSegmenter,
        settings: RevisionSettings | None = None,
        device: str = "cpu",
    ) -> CompactRevisionPolicy:
        """From the bundle's safetensors file.

        Raises:
            BundleError: the file is not this network's.
        """
        net = RevisionNet()
        load_weights(net, path)
        fold_norms(net)
        return cls(net.to(device), segmenter, settings)

    def revise(
        self,
        image: EncodedRadiograph,
        instruction: Instruction,
        component: LesionBox,
        masks: Sequence[np.ndarray],
        clicks: Sequence[Click],
        *,
        seed: int,
    ) -> Decision[Click | Done]:
        """See the protocol. Nothing is sampled, so ``seed`` changes nothing.

        ``satisfied``: nothing is believed wrong that would be worth a click; ``no_progress``: something is, and no
        click on it is expected to help.
        """
        if not masks:
            raise ValueRefused("A revision starts from a mask; none was given.")
        prompt = Prompt(component.box, tuple(clicks), Prediction(masks[-1]))
        region, belief = self.belief(image, instruction.finding, prompt)
        mask = region.cut(masks[-1], MASK_SIDE) > 0.5
        candidates = self._candidates(region, belief, mask, clicks)
        if not candidates:
            return Decision(Done("satisfied"))
        prompts = [replace(prompt, clicks=(*prompt.clicks, click)) for click in candidates]
        answers = self._segmenter.probabilities(image, prompts)
        before = expected_iou(mask, belief)
        gains = [
            float(expected_iou(torch.from_numpy(probability > 0.5), belief) - before) for _, probability, _ in answers
        ]
        best = int(np.argmax(gains))
        if gains[best] <= self.settings.least_gain:
            return Decision(Done("no_progress"))
        return Decision(candidates[best])

    def belief(self, image: EncodedRadiograph, finding: str, prompt: Prompt) -> tuple[Region, Tensor]:
        """Where the lesion is believed to be: the prompt's region and probabilities ``[96, 96]`` in it.

        Raises:
            EngineError: the network gave no usable numbers.
        """
        (region,), grey, channels = prompt_inputs(image, [prompt])
        blind = channels.clone()
        blind[:, MASK_CHANNEL] = 0
        views = torch.cat([channels, blind])
        trust, share = self.settings.trust, self.settings.segmenter_share
        weights = torch.tensor([trust, 1 - trust])
        used = weights > 0
        device = next(self._net.parameters()).device
        with torch.inference_mode():
            count = int(used.sum())
            index = torch.full((count,), class_of(finding), device=device)
            logits = self._net(grey.expand(count, -1, -1, -1).to(device), views[used].to(device), index).cpu()
        if not torch.isfinite(logits).all():
            raise EngineError("The revision policy gave numbers that are not finite; no click was computed.")
        belief = (logits.sigmoid() * weights[used, None, None]).sum(0)
        if share > 0:
            belief = torch.lerp(belief, torch.from_numpy(self._segmenter.unaided(image, prompt)), share)
        return region, belief

    def _candidates(self, region: Region, belief: Tensor, mask: Tensor, clicks: Sequence[Click]) -> list[Click]:
        """Up to one positive and one negative click, each on the piece whose correction would raise the expected IoU
        most, where that is worth a click at all."""
        height, width = region.size
        pixel = region.side / MASK_SIDE
        guard = GUARD * max(height, width)
        before = expected_iou(mask, belief)
        edge = int(np.ceil(_EDGE * MASK_SIDE))
        reachable = np.zeros((MASK_SIDE, MASK_SIDE), bool)
        reachable[edge:-edge, edge:-edge] = True
        rows, columns = np.indices(reachable.shape)
        # Pixel centres in the source; a click has to lie in the image.
        x, y = region.x + (columns + 0.5) * pixel, region.y + (rows + 0.5) * pixel
        reachable &= (x > 0) & (x < width) & (y > 0) & (y < height)
        found = []
        for polarity, error in (("positive", (belief > 0.5) & ~mask), ("negative", (belief < 0.5) & mask)):
            free = reachable.copy()
            for click in clicks:
                if click.polarity == polarity:
                    free &= np.hypot(x - click.point.x * width, y - click.point.y * height) >= guard
            labels, count = ndimage.label(error.numpy(), np.ones((3, 3)))
            best: tuple[float, int, int] | None = None
            for label in range(1, count + 1):
                piece = labels == label
                if np.count_nonzero(piece) < _SMALLEST:
                    continue
                corrected = mask ^ torch.from_numpy(piece)
                gain = float(expected_iou(corrected, belief) - before)
                if gain <= max(self.settings.least_gain, 0.0 if best is None else best[0]):
                    continue
                depth = ndimage.distance_transform_edt(np.pad(piece, 1))[1:-1, 1:-1] * free
                if depth.max() == 0:
                    continue
                row, column = np.unravel_index(int(depth.argmax()), depth.shape)
                best = (gain, int(row), int(column))
            if best is not None:
                point = Point(float(x[best[1:]]) / width, float(y[best[1:]]) / height)
                found.append(Click(polarity, point))
        return found
