"""SAM3's promptable part (the paper's F_seg, sections 4.3 and 5.1) on transformers' ``Sam3TrackerModel``.

The picture is stretched to the model's square, as SAM3 itself does: both axes keep their normalised coordinates, so a
normalised box or point of the source is one of the model, and a mask goes back by one resize. The square has whole
patches of 14 pixels; at the paper's 1024 these are 73 a side, 1022 pixels, and the picture is stretched onto just
those: nothing of it is lost at the right and lower edge.

The mask that a click starts from is the binary one of the trace, given as SAM takes a given mask: logits of -10 and
10 at low resolution. The logits of the turn before say a little more, but a trace does not hold them, and a run that
goes on from a trace must equal the one that went through.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional as F
from transformers import Sam3TrackerConfig, Sam3TrackerModel

from xflow_core.domain.errors import BundleError, EngineError, ValueRefused
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.recipes import recipe_grey
from xflow_core.radiograph.square import to_square

from .protocol import Prediction, Prompt

SIDES = (1008, 1024)
"""The sides that SAM3 is used at: its own, and the paper's."""

BOXES_A_CALL = 4
"""Boxes that share one decoder call. Calls are always of this many, filled up where there are fewer: the last digits
of a result depend on the size of the call, and a component's mask may not depend on its neighbours."""

_GIVEN_LOGIT = 10.0
_PATCH = 14

_segmenters = itertools.count()


class Sam3Segmenter:
    """A :class:`~xflow_core.segmenters.protocol.PromptableSegmenter` on SAM3.

    Of the three hypotheses of each prompt the one with the best predicted IoU is the answer. On CUDA the image encoder
    (454 of 458 million parameters) computes in bfloat16, everything after it in float32: eight bits would place a
    point only to four pixels. Elsewhere all is float32.

    Args:
        model: as :func:`load_tracker` gives it.
        recipe: the preprocessing recipe of its bundle.
    """

    def __init__(self, model: Sam3TrackerModel, recipe: str) -> None:
        self._model = model
        self._recipe = recipe
        self._side: int = model.prompt_encoder.input_image_size
        # An image may outlive the segmenter, and meet another one.
        self._feature = f"sam3.{next(_segmenters)}"
        self._lock = threading.Lock()  # one at a time: the encoder's activations are 1.5 GB
        self.make_room: Callable[[], bool] | None = None
        """Frees memory of others when this one's does not suffice, and says whether it could."""

    @classmethod
    def load(cls, folder: Path, *, side: int, recipe: str, device: str = "cpu") -> Sam3Segmenter:
        """From a folder of ``config.json`` and safetensors files.

        Raises:
            BundleError: they are not a SAM3's, or not all of it.
        """
        return cls(load_tracker(folder, side=side, device=device), recipe)

    def embedding(self, image: EncodedRadiograph) -> list[Tensor]:
        """The image encoder's three maps, finest first, computed at the first call for an image only."""

        def compute(_: object) -> list[Tensor]:
            square = to_square(recipe_grey(image, self._recipe), self._side)
            grey = torch.from_numpy(square).to(self._model.device)
            with torch.inference_mode():
                return encode(self._model, grey[None])

        maps: list[Tensor] = image.feature(self._feature, compute)
        return maps

    def segment(self, image: EncodedRadiograph, prompts: Sequence[Prompt]) -> list[Prediction]:
        """See the protocol. Boxes without a click go through the decoder together, clicks one component at a time:
        each has a previous mask of its own, and SAM3's decoder takes one an image."""
        size = image.radiograph.record.size
        for prompt in prompts:
            if prompt.box is None and not prompt.clicks:
                raise ValueRefused("A prompt needs a box or at least one click; this one has neither.")
            if prompt.previous is not None and prompt.previous.mask.shape != size:
                raise ValueRefused(f"The previous mask is of {prompt.previous.mask.shape} pixels, the image of {size}.")
        with self._lock:
            try:
                return self._answer(image, prompts)
            except torch.OutOfMemoryError:
                if self.make_room is None:
                    raise
            # Not in the clause above: the exception holds on to what was being computed.
            if not self.make_room():
                raise EngineError(
                    "The memory does not suffice for the segmenter; free some of it, or use another device."
                )
            return self._answer(image, prompts)

    def _answer(self, image: EncodedRadiograph, prompts: Sequence[Prompt]) -> list[Prediction]:
        size = image.radiograph.record.size
        maps = self.embedding(image)
        alone = [k for k, prompt in enumerate(prompts) if not prompt.clicks and prompt.previous is None]
        found: dict[int, Prediction] = {}
        for start in range(0, len(alone), BOXES_A_CALL):
            together = alone[start : start + BOXES_A_CALL]
            filled = [prompts[k] for k in together] + [prompts[together[0]]] * (BOXES_A_CALL - len(together))
            found.update(zip(together, self._decode(maps, filled, size), strict=False))
        for k, prompt in enumerate(prompts):
            if k not in found:
                (found[k],) = self._decode(maps, [prompt], size)
        return [found[k] for k in range(len(prompts))]

    def _decode(self, maps: list[Tensor], prompts: Sequence[Prompt], size: tuple[int, int]) -> list[Prediction]:
        """The best hypothesis of each prompt; several prompts have boxes alone."""
        device = self._model.device
        with torch.inference_mode():
            out = self._model(
                image_embeddings=maps,
                multimask_output=True,
                **{name: value.to(device) for name, value in prompt_inputs(prompts, self._side).items()},
            )
            best = out.iou_scores[0].argmax(-1)
            each = torch.arange(len(prompts), device=device)
            logits, ious = out.pred_masks[0, each, best].float(), out.iou_scores[0, each, best].float()
            if not (torch.isfinite(logits).all() and torch.isfinite(ious).all()):
                raise EngineError("The segmenter gave numbers that are not finite; no mask was computed.")
            return [
                Prediction(to_source(one, size).cpu().numpy() > 0, min(max(float(iou), 0.0), 1.0))
                for one, iou in zip(logits, ious, strict=True)
            ]


def encode(model: Sam3TrackerModel, grey: Tensor) -> list[Tensor]:
    """The image encoder's maps as the mask decoder wants them; gradients flow, training uses it too.

    As ``Sam3TrackerModel.get_image_embeddings``, but for one thing: that adds the "no memory" embedding to the
    coarsest of the encoder's four maps, which is then dropped (transformers 5.24). Meta's SAM3 and transformers' own
    video model drop it first, and add the embedding to the map that the decoder reads, as here.

    Args:
        grey: float ``[B, S, S]`` in [0, 1], S the model's side.

    Returns:
        float32 maps ``[B, C, s, s]`` of four, two and one cell a patch and side.
    """
    dtype = next(model.vision_encoder.parameters()).dtype
    # SAM3 normalises each colour by mean and deviation 0.5.
    pixels = ((grey - 0.5) / 0.5)[:, None].expand(-1, 3, -1, -1).to(dtype)
    fine, middle, coarse = model.vision_encoder(pixels, return_dict=True).fpn_hidden_states[:3]
    decoder = model.mask_decoder
    return [
        decoder.conv_s0(fine.float()),
        decoder.conv_s1(middle.float()),
        coarse.float() + model.no_memory_embedding.view(1, -1, 1, 1),
    ]


def prompt_inputs(prompts: Sequence[Prompt], side: int) -> dict[str, Tensor]:
    """The decoder's inputs for prompts on one image: all with a box and alike in having clicks and a previous mask.

    Coordinates are in the model's pixels, whose centres lie at whole numbers (the prompt encoder adds the half).
    """
    inputs: dict[str, Tensor] = {}
    boxes = [prompt.box for prompt in prompts if prompt.box is not None]
    if boxes:
        corners = torch.tensor([[(b.x1, b.y1, b.x2, b.y2) for b in boxes]], dtype=torch.float32)
        inputs["input_boxes"] = corners * side - 0.5
    if prompts[0].clicks:
        (prompt,) = prompts
        points = torch.tensor([(c.point.x, c.point.y) for c in prompt.clicks], dtype=torch.float32)
        inputs["input_points"] = points[None, None] * side - 0.5
        inputs["input_labels"] = torch.tensor([[[int(c.polarity == "positive") for c in prompt.clicks]]])
    if prompts[0].previous is not None:
        (prompt,) = prompts
        assert prompt.previous is not None
        inputs["input_masks"] = given_mask(prompt.previous.mask, side)
    return inputs


def given_mask(mask: np.ndarray, side: int) -> Tensor:
    """A source mask as the decoder's low-resolution logits: float32 ``[1, 1, m, m]``, -10 outside and 10 inside.

    Args:
        mask: bool ``[H, W]``.
        side: the model's side in pixels; m is four cells for each patch of 14.
    """
    cells = 4 * (side // _PATCH)
    share = torch.from_numpy(to_square(np.asarray(mask, np.float32), cells))
    return ((2 * share - 1) * _GIVEN_LOGIT)[None, None]


def to_source(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Low-resolution logits ``[m, m]`` in the source image: float32 ``[H, W]``, bilinear between cell centres."""
    return F.interpolate(logits[None, None], size=size, mode="bilinear", align_corners=False)[0, 0]


def load_tracker(folder: Path, *, side: int, device: str = "cpu") -> Sam3TrackerModel:
    """The tracker in ``folder``, at ``side`` pixels rounded down to whole patches, ready to answer.

    ``folder`` holds a ``Sam3TrackerModel``, or all of SAM3 (``facebook/sam3``), of which the tracker is a part. Read
    from safetensors files alone, without the network.

    Raises:
        BundleError: it is not a SAM3, or not all of its arrays are there.
    """
    try:
        config = _config(folder, side)
        model, report = Sam3TrackerModel.from_pretrained(
            None, config=config, state_dict=_weights(folder), dtype=torch.float32, output_loading_info=True
        )
    # transformers and safetensors raise what they like at what is not a model of theirs.
    except Exception as problem:
        raise BundleError(f"{folder} cannot be read as SAM3 ({_first_line(problem)}).") from problem
    wrong = sorted([*report["missing_keys"], *(str(entry[0]) for entry in report["mismatched_keys"])])
    if wrong:
        raise BundleError(f"{folder} does not hold all of SAM3's tracker: {wrong[0]} is missing or of another shape.")
    if device == "cuda":
        model.vision_encoder.to(torch.bfloat16)
    return model.to(device).eval().requires_grad_(False)


# Where the tracker's parts are in all of SAM3; the rest of it is the detector's and the video memory's.
_IN_WHOLE_SAM3 = (
    ("tracker_model.", ""),
    ("tracker_neck.", "vision_encoder.neck."),
    ("detector_model.vision_encoder.backbone.", "vision_encoder.backbone."),
)


def _weights(folder: Path) -> dict[str, Tensor]:
    """The tracker's arrays under its own names. transformers (5.24) does not take them out of a whole SAM3 itself."""
    index = folder / "model.safetensors.index.json"
    names = sorted(set(json.loads(index.read_bytes())["weight_map"].values())) if index.is_file() else []
    weights: dict[str, Tensor] = {}
    for name in names or ["model.safetensors"]:
        with safe_open(str(folder / name), framework="pt") as file:
            held = list(file.keys())
            whole = any(key.startswith(("tracker_model.", "detector_model.")) for key in held)
            for key in held:
                inner = next((new + key[len(old) :] for old, new in _IN_WHOLE_SAM3 if key.startswith(old)), None)
                if inner is not None or not whole:
                    weights[inner or key] = file.get_tensor(key)
    return weights


def _config(folder: Path, side: int) -> Any:
    """The tracker's configuration for pictures of ``side`` pixels."""
    said = json.loads((folder / "config.json").read_bytes())
    # All of SAM3 (the video model) holds the configuration of its tracker, a video model as well, inside.
    said = said.get("tracker_config", said)
    parts = ("vision_config", "prompt_encoder_config", "mask_decoder_config")
    config: Any = Sam3TrackerConfig(**{part: said[part] for part in parts if part in said})
    cells = side // config.prompt_encoder_config.patch_size
    config.vision_config.image_size = cells * _PATCH
    config.vision_config.backbone_feature_sizes = [[cells * scale] * 2 for scale in (4, 2, 1)]
    config.prompt_encoder_config.image_size = cells * _PATCH
    return config


def _first_line(problem: Exception) -> str:
    return next(iter(str(problem).splitlines()), type(problem).__name__)
