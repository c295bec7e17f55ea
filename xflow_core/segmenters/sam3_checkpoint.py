"""Meta's own SAM3 checkpoint (``sam3.pt``) as a ``Sam3TrackerModel``: the same weights under other names.

Of the checkpoint three parts are used: the image encoder's trunk, the tracker's neck over it (``sam2_convs``; the
detector has another one) and the tracker's prompt encoder and mask decoder. ``benchmarks/parity.py`` compares the
result with Meta's code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Sam3TrackerConfig, Sam3TrackerModel

from xflow_core.domain.errors import BundleError

_TRUNK = "detector.backbone.vision_backbone.trunk."
_NECK = "detector.backbone.vision_backbone.sam2_convs."
_PROMPTS = "tracker.sam_prompt_encoder."
_DECODER = "tracker.sam_mask_decoder."

# Applied in this order to every name; what stays under one of Meta's prefixes is not the tracker's and is left out.
_RENAMED = (
    (rf"^{re.escape(_TRUNK)}patch_embed\.proj\.", "vision_encoder.backbone.embeddings.patch_embeddings.projection."),
    (rf"^{re.escape(_TRUNK)}pos_embed$", "vision_encoder.backbone.embeddings.position_embeddings"),
    (rf"^{re.escape(_TRUNK)}ln_pre\.", "vision_encoder.backbone.layer_norm."),
    (rf"^{re.escape(_TRUNK)}blocks\.(\d+)\.norm([12])\.", r"vision_encoder.backbone.layers.\1.layer_norm\2."),
    (rf"^{re.escape(_TRUNK)}blocks\.(\d+)\.attn\.proj\.", r"vision_encoder.backbone.layers.\1.attention.o_proj."),
    (rf"^{re.escape(_TRUNK)}blocks\.(\d+)\.attn\.qkv\.", r"vision_encoder.backbone.layers.\1.attention.qkv."),
    (rf"^{re.escape(_TRUNK)}blocks\.(\d+)\.mlp\.", r"vision_encoder.backbone.layers.\1.mlp."),
    (rf"^{re.escape(_NECK)}(\d+)\.dconv_2x2(?:_0)?\.", r"vision_encoder.neck.fpn_layers.\1.scale_layers.0."),
    (rf"^{re.escape(_NECK)}(\d+)\.dconv_2x2_1\.", r"vision_encoder.neck.fpn_layers.\1.scale_layers.2."),
    (rf"^{re.escape(_NECK)}(\d+)\.conv_1x1\.", r"vision_encoder.neck.fpn_layers.\1.proj1."),
    (rf"^{re.escape(_NECK)}(\d+)\.conv_3x3\.", r"vision_encoder.neck.fpn_layers.\1.proj2."),
    (r"^tracker\.no_mem_embed$", "no_memory_embedding"),
    (
        rf"^{re.escape(_PROMPTS)}pe_layer\.positional_encoding_gaussian_matrix$",
        "prompt_encoder.shared_embedding.positional_embedding",
    ),
    (rf"^{re.escape(_PROMPTS)}(no_mask_embed|not_a_point_embed)\.", r"prompt_encoder.\1."),
    (rf"^{re.escape(_PROMPTS)}point_embeddings\.", "prompt_encoder.point_embeddings."),
    (rf"^{re.escape(_PROMPTS)}mask_downscaling\.0\.", "prompt_encoder.mask_embed.conv1."),
    (rf"^{re.escape(_PROMPTS)}mask_downscaling\.1\.", "prompt_encoder.mask_embed.layer_norm1."),
    (rf"^{re.escape(_PROMPTS)}mask_downscaling\.3\.", "prompt_encoder.mask_embed.conv2."),
    (rf"^{re.escape(_PROMPTS)}mask_downscaling\.4\.", "prompt_encoder.mask_embed.layer_norm2."),
    (rf"^{re.escape(_PROMPTS)}mask_downscaling\.6\.", "prompt_encoder.mask_embed.conv3."),
    (rf"^{re.escape(_DECODER)}output_upscaling\.0\.", "mask_decoder.upscale_conv1."),
    (rf"^{re.escape(_DECODER)}output_upscaling\.1\.", "mask_decoder.upscale_layer_norm."),
    (rf"^{re.escape(_DECODER)}output_upscaling\.3\.", "mask_decoder.upscale_conv2."),
    (
        rf"^{re.escape(_DECODER)}transformer\.layers\.(\d+)\.norm(\d)\.",
        _DECODER + r"transformer.layers.\1.layer_norm\2.",
    ),
    (rf"^{re.escape(_DECODER)}transformer\.norm_final_attn\.", _DECODER + "transformer.layer_norm_final_attn."),
    (
        rf"^{re.escape(_DECODER)}transformer\.layers\.(\d+)\.mlp\.(?:lin1|layers\.0)\.",
        _DECODER + r"transformer.layers.\1.mlp.proj_in.",
    ),
    (
        rf"^{re.escape(_DECODER)}transformer\.layers\.(\d+)\.mlp\.(?:lin2|layers\.1)\.",
        _DECODER + r"transformer.layers.\1.mlp.proj_out.",
    ),
    (rf"^({re.escape(_DECODER)}transformer\..*)\.out_proj\.", r"\1.o_proj."),
    # The heads: three linear layers in a row.
    (rf"^({re.escape(_DECODER)}(?!transformer).*)\.layers\.0\.", r"\1.proj_in."),
    (rf"^({re.escape(_DECODER)}(?!transformer).*)\.layers\.1\.", r"\1.layers.0."),
    (rf"^({re.escape(_DECODER)}(?!transformer).*)\.layers\.2\.", r"\1.proj_out."),
    (rf"^{re.escape(_DECODER)}", "mask_decoder."),
)
_NOT_USED = ("detector.", "tracker.")
_ROPE = re.compile(r"\.attn\.freqs_cis$")  # computed, not learned


def import_checkpoint(path: Path, folder: Path, config: Sam3TrackerConfig | None = None) -> Path:
    """Write the tracker in Meta's checkpoint ``path`` as ``config.json`` and ``model.safetensors`` in ``folder``.

    The file is read as weights alone: a pickle that holds anything else is refused, and nothing in it runs.

    Args:
        config: of the network; SAM3's own by default.

    Raises:
        BundleError: it is no SAM3 checkpoint, or not all of the tracker is in it.
    """
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    # Whatever the unpickler runs into: no such file, a damaged one, one with code.
    except Exception as problem:
        reason = next(iter(str(problem).splitlines()), type(problem).__name__)
        raise BundleError(f"{path} cannot be read as a checkpoint of weights alone: {reason}") from problem
    if isinstance(held, dict) and isinstance(held.get("model"), dict):
        held = held["model"]
    if not isinstance(held, dict) or not any(str(name).startswith(_TRUNK) for name in held):
        raise BundleError(f"{path} is no checkpoint of SAM3: it has no {_TRUNK}* in it.")
    config = config or _own_config()
    with torch.device("meta"):
        model = Sam3TrackerModel(config)
    weights = tracker_weights(held)
    wanted: Mapping[str, Tensor] = model.state_dict()
    wrong = sorted(
        name
        for name in wanted.keys() | weights.keys()
        if name not in wanted or name not in weights or wanted[name].shape != weights[name].shape
    )
    if wrong:
        raise BundleError(f"{path} does not hold SAM3's tracker: {len(wrong)} arrays differ, first {wrong[0]}.")
    model.load_state_dict(weights, assign=True)
    model.save_pretrained(folder)
    return folder


def tracker_weights(held: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tracker's arrays of a checkpoint of Meta's, under the names of ``Sam3TrackerModel``."""
    named: dict[str, Tensor] = {}
    for name, value in held.items():
        if _ROPE.search(name):
            continue
        for pattern, replacement in _RENAMED:
            name = re.sub(pattern, replacement, name)
        if not name.startswith(_NOT_USED):
            named[name] = value
    weights: dict[str, Tensor] = {}
    for name, value in named.items():
        if ".attention.qkv." in name:
            for part, piece in zip("qkv", value.chunk(3), strict=True):
                weights[name.replace(".qkv.", f".{part}_proj.")] = piece.contiguous()
        elif name.startswith("prompt_encoder.point_embeddings."):
            continue
        else:
            weights[name] = value.contiguous()
    points = [named[name] for name in sorted(named) if name.startswith("prompt_encoder.point_embeddings.")]
    if points:
        weights["prompt_encoder.point_embed.weight"] = torch.cat(points)
    positions = "vision_encoder.backbone.embeddings.position_embeddings"
    if positions in weights:
        weights[positions] = weights[positions][:, 1:].contiguous()  # the first is the class token's, which is not used
    shared = "prompt_encoder.shared_embedding.positional_embedding"
    if shared in weights:
        weights["shared_image_embedding.positional_embedding"] = weights[shared].clone()
    return weights


def _own_config() -> Sam3TrackerConfig:
    """SAM3's own sizes; its trunk's layer norms have the epsilon of Meta's code, not of transformers' default."""
    config = Sam3TrackerConfig()
    config.vision_config.backbone_config.layer_norm_eps = 1e-5
    return config
