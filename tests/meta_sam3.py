"""A tracker's weights under the names of Meta's own checkpoint, by a table that the importer does not share."""

from __future__ import annotations

import re

import torch
from torch import Tensor

TRUNK = "detector.backbone.vision_backbone.trunk."
_NECK = "detector.backbone.vision_backbone.sam2_convs."
_METAS = {
    r"^vision_encoder\.backbone\.embeddings\.patch_embeddings\.projection": TRUNK + "patch_embed.proj",
    r"^vision_encoder\.backbone\.embeddings\.position_embeddings": TRUNK + "pos_embed",
    r"^vision_encoder\.backbone\.layer_norm": TRUNK + "ln_pre",
    r"^vision_encoder\.backbone\.layers\.(\d+)\.layer_norm": TRUNK + r"blocks.\1.norm",
    r"^vision_encoder\.backbone\.layers\.(\d+)\.attention\.o_proj": TRUNK + r"blocks.\1.attn.proj",
    r"^vision_encoder\.backbone\.layers\.(\d+)\.mlp": TRUNK + r"blocks.\1.mlp",
    r"^vision_encoder\.neck\.fpn_layers\.0\.scale_layers\.0": _NECK + "0.dconv_2x2_0",
    r"^vision_encoder\.neck\.fpn_layers\.0\.scale_layers\.2": _NECK + "0.dconv_2x2_1",
    r"^vision_encoder\.neck\.fpn_layers\.1\.scale_layers\.0": _NECK + "1.dconv_2x2",
    r"^vision_encoder\.neck\.fpn_layers\.(\d)\.proj1": _NECK + r"\1.conv_1x1",
    r"^vision_encoder\.neck\.fpn_layers\.(\d)\.proj2": _NECK + r"\1.conv_3x3",
    r"^no_memory_embedding": "tracker.no_mem_embed",
    r"^prompt_encoder\.shared_embedding\.positional_embedding": (
        "tracker.sam_prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"
    ),
    r"^prompt_encoder\.mask_embed\.conv1": "tracker.sam_prompt_encoder.mask_downscaling.0",
    r"^prompt_encoder\.mask_embed\.layer_norm1": "tracker.sam_prompt_encoder.mask_downscaling.1",
    r"^prompt_encoder\.mask_embed\.conv2": "tracker.sam_prompt_encoder.mask_downscaling.3",
    r"^prompt_encoder\.mask_embed\.layer_norm2": "tracker.sam_prompt_encoder.mask_downscaling.4",
    r"^prompt_encoder\.mask_embed\.conv3": "tracker.sam_prompt_encoder.mask_downscaling.6",
    r"^prompt_encoder\.": "tracker.sam_prompt_encoder.",
    r"^mask_decoder\.upscale_conv1": "tracker.sam_mask_decoder.output_upscaling.0",
    r"^mask_decoder\.upscale_layer_norm": "tracker.sam_mask_decoder.output_upscaling.1",
    r"^mask_decoder\.upscale_conv2": "tracker.sam_mask_decoder.output_upscaling.3",
    r"^mask_decoder\.(transformer\.layers\.\d\.mlp)\.proj_in": r"tracker.sam_mask_decoder.\1.lin1",
    r"^mask_decoder\.(transformer\.layers\.\d\.mlp)\.proj_out": r"tracker.sam_mask_decoder.\1.lin2",
    r"^(mask_decoder\.(?:iou|pred|output).*)\.layers\.0": r"tracker.sam_\1.layers.1",
    r"^(mask_decoder\.(?:iou|pred|output).*)\.proj_in": r"tracker.sam_\1.layers.0",
    r"^(mask_decoder\.(?:iou|pred|output).*)\.proj_out": r"tracker.sam_\1.layers.2",
    r"^mask_decoder\.": "tracker.sam_mask_decoder.",
}


def as_metas(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A tracker's weights as Meta's checkpoint holds them, with some of the other things that are in it."""
    held: dict[str, Tensor] = {"detector.geometry_encoder.norm.weight": torch.ones(3), "tracker.maskmem": torch.ones(2)}
    for name, value in weights.items():
        block = re.match(r"vision_encoder\.backbone\.layers\.(\d+)\.attention\.q_proj\.(\w+)", name)
        if block:
            parts = [weights[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            held[f"{TRUNK}blocks.{block[1]}.attn.qkv.{block[2]}"] = torch.cat(parts)
            held[f"{TRUNK}blocks.{block[1]}.attn.freqs_cis"] = torch.ones(4, dtype=torch.complex64)
            continue
        if re.search(r"backbone.*\.[kv]_proj\.", name) or name.startswith("shared_image_embedding"):
            continue
        if name == "prompt_encoder.point_embed.weight":
            for k, row in enumerate(value):
                held[f"tracker.sam_prompt_encoder.point_embeddings.{k}.weight"] = row[None]
            continue
        pattern = next(pattern for pattern in _METAS if re.search(pattern, name))
        meta = re.sub(pattern, _METAS[pattern], name)
        if "sam_mask_decoder.transformer" in meta:
            meta = meta.replace("o_proj", "out_proj").replace("layer_norm", "norm")
        if meta.endswith("pos_embed"):
            value = torch.cat([torch.zeros_like(value[:, :1]), value], 1)
        held[meta] = value
    return held
