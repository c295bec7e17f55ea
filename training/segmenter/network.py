"""SAM3's tracker as it is trained: each radiograph encoded once, its components asked for by a box and then by clicks.

The picture, the encoder's maps and the decoder's inputs are made by the functions that
:class:`~xflow_core.segmenters.sam3.Sam3Segmenter` calls, and what a click starts from is what it starts from there: the
binary mask of the hypothesis with the best predicted IoU. Gradients of every turn flow into the one encoding, not
through the masks.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import Sam3TrackerModel

from training.curation.paper import RevisionSettings
from training.segmenter.losses import mask_losses
from training.segmenter.prompts import first_prompt, next_prompt
from training.segmenter.settings import SegmenterTraining
from xflow_core.domain.errors import BundleError
from xflow_core.radiograph.square import to_square
from xflow_core.segmenters.protocol import Prompt
from xflow_core.segmenters.sam3 import encode, prompt_inputs, to_source

TRUNK = "vision_encoder.backbone."
_LAYERS = TRUNK + "layers."
_USED_LEVELS = 3  # of the neck's four; the decoder drops the coarsest


@dataclass(eq=False)
class Asked:
    """A component in a step. image: its place in the batch. truth: bool ``[H, W]``. losses: a turn each."""

    image: int
    truth: np.ndarray
    square: Tensor
    prompt: Prompt
    rng: np.random.Generator
    losses: list[Tensor]


class PromptedTracker(nn.Module):
    """The tracker with the loss of a batch of radiographs: one encoder pass, and as many decoder turns as clicks.

    Args:
        tracker: as :func:`~xflow_core.segmenters.sam3.load_tracker` gives it; all of it is set free that a loss can
            reach. bf16: the encoder computes in bfloat16 (autocast; its weights stay float32), the decoder in float32,
            as at inference.
        checkpointing: keep only each encoder layer's input, and compute the layer again for its gradient.

    Attributes:
        seen: sums of what happened since it was last emptied, for logs: losses, IoUs, radiographs, and the seconds
            that were spent outside the network.
    """

    def __init__(
        self,
        tracker: Sam3TrackerModel,
        settings: SegmenterTraining,
        revision: RevisionSettings,
        *,
        seed: int,
        bf16: bool = False,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        if tracker.config.mask_decoder_config.num_multimask_outputs != settings.hypotheses:
            raise BundleError(f"The configuration asks for {settings.hypotheses} hypotheses, the model gives others.")
        self.tracker = tracker
        self.seen: Counter[str] = Counter()
        self._settings, self._revision = settings, revision
        self._seed, self._bf16 = seed, bf16
        self._side: int = tracker.prompt_encoder.input_image_size
        cells: int = tracker.prompt_encoder.mask_input_size[0]
        self._loss_side = self._side if settings.loss.at == "picture" else cells
        for name, parameter in tracker.named_parameters():
            parameter.requires_grad_(reached(name))
        if checkpointing:
            for layer in tracker.vision_encoder.backbone.layers:
                layer.gradient_checkpointing = True
                layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)

    def forward(
        self, pictures: Tensor, truths: Sequence[Sequence[np.ndarray]], numbers: Sequence[int], step: int
    ) -> dict[str, Tensor]:
        """The batch's loss: the mean over radiographs of the mean over components of the mean over turns.

        What is asked follows from the seed, the step and an example's number alone, however a batch is divided.

        Args:
            pictures: float32 ``[B, S, S]`` in [0, 1]. truths: each one's components, bool ``[H, W]``.
            numbers: the examples'. step: the optimizer's.
        """
        maps = self._encode(pictures)
        begun = time.perf_counter()
        all_asked = self._first(truths, numbers, step, pictures.device)
        self._spend(begun)
        asked = all_asked
        for turn in range(self._revision.clicks + 1):
            if not asked:
                break
            masks = self._turn(maps, asked, turn, step)
            if turn < self._revision.clicks:
                begun = time.perf_counter()
                asked = self._clicked(asked, masks)
                self._spend(begun)
        # Where no component is left, every map still takes part, with no gradient.
        loss = sum((level.sum() for level in maps), torch.zeros((), device=pictures.device)) * 0
        counts = Counter(each.image for each in all_asked)
        for each in all_asked:
            loss = loss + torch.stack(each.losses).mean() / counts[each.image] / len(truths)
        self.seen["radiographs"] += len(truths)
        self.seen["components"] += len(all_asked)
        return {"loss": loss}

    def _encode(self, pictures: Tensor) -> list[Tensor]:
        with torch.autocast(pictures.device.type, torch.bfloat16, enabled=self._bf16):
            maps = encode(self.tracker, pictures)
        return [level.float() for level in maps]

    def _first(
        self, truths: Sequence[Sequence[np.ndarray]], numbers: Sequence[int], step: int, device: torch.device
    ) -> list[Asked]:
        asked = []
        for image, (components, number) in enumerate(zip(truths, numbers, strict=True)):
            rng = np.random.default_rng((self._seed, step, number))
            count = min(len(components), self._settings.components)
            for k in rng.permutation(len(components))[:count]:
                truth = components[k]
                square = torch.from_numpy(to_square(truth.astype(np.float32), self._loss_side) > 0.5).to(device)
                prompt = first_prompt(truth, self._settings.prompts, rng)
                asked.append(Asked(image, truth, square, prompt, rng, []))
        return asked

    def _turn(self, maps: list[Tensor], asked: Sequence[Asked], turn: int, step: int) -> list[np.ndarray]:
        """The masks that answer, bool ``[H, W]`` each; their losses are added."""
        masks: dict[int, np.ndarray] = {}
        for places in alike([each.prompt for each in asked]):
            logits, predicted = self._decode(maps, [asked[k] for k in places])
            truth = torch.stack([asked[k].square for k in places])
            if logits.shape[-2:] != truth.shape[-2:]:
                seen = F.interpolate(logits, size=truth.shape[-2:], mode="bilinear", align_corners=False)
            else:
                seen = logits
            losses = mask_losses(seen, predicted, truth, self._settings.loss, step)
            best = predicted.argmax(-1)
            for row, k in enumerate(places):
                asked[k].losses.append(losses.total[row])
                with torch.no_grad():
                    size = (asked[k].truth.shape[0], asked[k].truth.shape[1])
                    masks[k] = (to_source(logits[row, best[row]], size) > 0).cpu().numpy()
            each = torch.arange(len(places), device=best.device)
            for name, values in (("focal", losses.focal), ("dice", losses.dice), ("iou_error", losses.iou)):
                self.seen[name] += float(values.detach().sum())
            self.seen[f"iou_{turn}"] += float(losses.ious[each, best].sum())
            self.seen[f"turns_{turn}"] += len(places)
        return [masks[k] for k in range(len(asked))]

    def _decode(self, maps: list[Tensor], asked: Sequence[Asked]) -> tuple[Tensor, Tensor]:
        """Low-resolution logits ``[N, M, m, m]`` and predicted IoUs ``[N, M]``."""
        begun = time.perf_counter()
        inputs = decoder_inputs([each.prompt for each in asked], self._side)
        self._spend(begun)
        device = maps[0].device
        images = torch.tensor([each.image for each in asked], device=device)
        with torch.autocast(device.type, enabled=False):
            out = self.tracker(
                image_embeddings=[level[images] for level in maps],
                multimask_output=True,
                **{name: value.to(device) for name, value in inputs.items()},
            )
        return out.pred_masks[:, 0], out.iou_scores[:, 0]

    def _clicked(self, asked: Sequence[Asked], masks: Sequence[np.ndarray]) -> list[Asked]:
        """Those that get a further click."""
        going_on = []
        for each, mask in zip(asked, masks, strict=True):
            prompt = next_prompt(each.prompt, mask, each.truth, self._settings.prompts, self._revision, each.rng)
            if prompt is not None:
                each.prompt = prompt
                going_on.append(each)
        return going_on

    def _spend(self, begun: float) -> None:
        self.seen["seconds_outside"] += time.perf_counter() - begun


def alike(prompts: Sequence[Prompt]) -> list[list[int]]:
    """Places of prompts that go through the decoder together: those that have the same parts, of the same number.

    None is padded: a padding point takes part in the attention, and training would see what inference never does.
    """
    groups: dict[tuple[bool, int, bool], list[int]] = defaultdict(list)
    for place, prompt in enumerate(prompts):
        groups[(prompt.box is None, len(prompt.clicks), prompt.previous is None)].append(place)
    return list(groups.values())


def decoder_inputs(prompts: Sequence[Prompt], side: int) -> dict[str, Tensor]:
    """The decoder's inputs for prompts that are :func:`alike`, each an image of its own to the decoder.

    By :func:`~xflow_core.segmenters.sam3.prompt_inputs`, one by one: SAM3's decoder takes one previous mask an image.
    """
    each = [prompt_inputs([prompt], side) for prompt in prompts]
    return {name: torch.cat([inputs[name] for inputs in each]) for name in each[0]}


def reached(name: str) -> bool:
    """Whether any loss reaches a parameter: not the neck's coarsest level, nor the heads of the single mask and of
    the object score, which masks of several hypotheses do not use."""
    if name.startswith("vision_encoder.neck.fpn_layers."):
        return int(name.split(".")[3]) < _USED_LEVELS
    return not name.startswith(("mask_decoder.pred_obj_score_head.", "mask_decoder.output_hypernetworks_mlps.0."))


def parameter_groups(tracker: nn.Module, settings: SegmenterTraining) -> list[dict[str, Any]]:
    """AdamW's groups: the decoder at the full rate, the encoder at its share, its trunk slower from layer to layer.

    The trunk's last layer learns at ``encoder_rate * layer_decay``, each one below at ``layer_decay`` of the next, the
    patch embedding below the first; its position embedding, and the neck, at ``encoder_rate``. Biases, norms and other
    vectors do not decay. As MedSAM2 does, which the paper follows.
    """
    layers = len({_layer(name) for name, _ in tracker.named_parameters() if name.startswith(_LAYERS)})
    groups: dict[tuple[float, float], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in tracker.named_parameters():
        if parameter.requires_grad:
            share = _share(name, layers, settings)
            decay = 0.0 if parameter.ndim <= 1 else settings.weight_decay
            groups[(share, decay)].append(parameter)
    return [
        {"params": held, "lr": settings.rate * share, "weight_decay": decay} for (share, decay), held in groups.items()
    ]


def _layer(name: str) -> int:
    return int(name.removeprefix(_LAYERS).split(".")[0])


def _share(name: str, layers: int, settings: SegmenterTraining) -> float:
    if not name.startswith("vision_encoder."):
        return 1.0
    share = settings.encoder_rate
    if name.startswith(_LAYERS):
        return share * settings.layer_decay ** (layers - _layer(name))
    if name.startswith(TRUNK) and not name.endswith("position_embeddings"):
        return share * settings.layer_decay ** (layers + 1)
    return share


def averages(seen: Mapping[str, float]) -> dict[str, float]:
    """What :attr:`PromptedTracker.seen` holds, as means: of losses and of the IoU after each turn."""
    turns = {name.removeprefix("turns_"): count for name, count in seen.items() if name.startswith("turns_")}
    total = sum(turns.values())
    if not total:
        return {}
    means = {name: seen[name] / total for name in ("focal", "dice", "iou_error")}
    return means | {f"iou/{turn}": seen[f"iou_{turn}"] / count for turn, count in sorted(turns.items())}
