"""``python -m training tiny-segmenter --out BASE``: a SAM3 tracker of the real class, tiny, with random weights.

What the reproduction on a laptop trains in the place of SAM3; it knows nothing. Not for clinical use.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import torch
from transformers import Sam3TrackerConfig, Sam3TrackerModel

from xflow_core.bundles.foundation_backend import quiet_transformers
from xflow_core.domain.errors import CallError

LOG = logging.getLogger(__name__)

_PATCH = 14


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--side", type=int, default=112, help="pixels of its picture, a multiple of 28")
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> None:
    if arguments.side % (2 * _PATCH) or arguments.side < 4 * _PATCH:
        raise CallError(f"--side is {arguments.side}; it is a multiple of {2 * _PATCH}, {4 * _PATCH} at least.")
    model = tiny_tracker(arguments.side, arguments.seed)
    with quiet_transformers():
        model.save_pretrained(arguments.out, save_original_format=False)
    count = sum(parameter.numel() for parameter in model.parameters())
    LOG.info("%d parameters in %s; not for clinical use", count, arguments.out)


def tiny_tracker(side: int, seed: int, *, width: int = 64, layers: int = 4, decoder: int = 64) -> Sam3TrackerModel:
    """A fresh tracker for pictures of ``side`` pixels."""
    cells = side // _PATCH
    config = Sam3TrackerConfig(
        vision_config={
            "model_type": "sam3_vision_model",
            "fpn_hidden_size": decoder,
            "backbone_feature_sizes": [[4 * cells] * 2, [2 * cells] * 2, [cells] * 2],
            "backbone_config": {
                "model_type": "sam3_vit_model",
                "hidden_size": width,
                "intermediate_size": 2 * width,
                "num_hidden_layers": layers,
                "num_attention_heads": 4,
                "image_size": side,
                "patch_size": _PATCH,
                "window_size": cells // 2,
                "global_attn_indexes": [layers - 1],
                "pretrain_image_size": side,
            },
        },
        prompt_encoder_config={"hidden_size": decoder, "image_size": side, "patch_size": _PATCH},
        mask_decoder_config={
            "hidden_size": decoder,
            "mlp_dim": 2 * decoder,
            "num_attention_heads": 4,
            "iou_head_hidden_dim": decoder,
        },
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Sam3TrackerModel(config)
    with torch.no_grad():
        # One and the same in SAM3.
        model.shared_image_embedding.positional_embedding.copy_(
            model.prompt_encoder.shared_embedding.positional_embedding
        )
    return model.eval()
