"""A SAM3 tracker of the real class and a thousandth of the size, with random weights, written to disk."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    Sam3Config,
    Sam3TrackerConfig,
    Sam3TrackerModel,
    Sam3TrackerVideoConfig,
    Sam3VideoConfig,
    Sam3VideoModel,
)

SIDE = 112


def tiny_sam3(seed: int = 0, side: int = SIDE) -> Sam3TrackerModel:
    cells = side // 14
    config = Sam3TrackerConfig(
        vision_config={
            "model_type": "sam3_vision_model",
            "fpn_hidden_size": 32,
            "backbone_feature_sizes": [[4 * cells] * 2, [2 * cells] * 2, [cells] * 2],
            "backbone_config": {
                "model_type": "sam3_vit_model",
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "image_size": side,
                "patch_size": 14,
                "window_size": cells // 2,
                "global_attn_indexes": [1],
                "pretrain_image_size": 56,
            },
        },
        prompt_encoder_config={"hidden_size": 32, "image_size": side, "patch_size": 14},
        mask_decoder_config={
            "hidden_size": 32,
            "mlp_dim": 64,
            "num_attention_heads": 4,
            "iou_head_hidden_dim": 32,
        },
    )
    torch.manual_seed(seed)
    model = Sam3TrackerModel(config).eval()
    with torch.no_grad():
        # Fresh weights are so small that prompts hardly matter, and this one starts at nought.
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(4)
        model.no_memory_embedding.normal_()
        # One and the same in SAM3.
        model.shared_image_embedding.positional_embedding.copy_(
            model.prompt_encoder.shared_embedding.positional_embedding
        )
    return model


def write_tiny_sam3(folder: Path, seed: int = 0) -> Path:
    tiny_sam3(seed).save_pretrained(folder)
    return folder


def video_config(model: Sam3TrackerModel) -> Sam3TrackerVideoConfig:
    """The configuration of the same tracker with a memory of frames."""
    parts = model.config
    return Sam3TrackerVideoConfig(
        vision_config=parts.vision_config.to_dict(),
        prompt_encoder_config=parts.prompt_encoder_config.to_dict(),
        mask_decoder_config=parts.mask_decoder_config.to_dict(),
        memory_attention_hidden_size=32,
        memory_encoder_hidden_size=32,
        memory_encoder_output_channels=16,
        mask_downsampler_embed_dim=32,
        memory_fuser_embed_dim=32,
        memory_fuser_intermediate_dim=64,
        memory_attention_feed_forward_hidden_size=64,
        image_size=SIDE,
    )


def write_whole_sam3(folder: Path, tracker: Sam3TrackerModel) -> Path:
    """All of SAM3 as it is published (detector, tracker, video memory), with this tracker in it."""
    small = {"hidden_size": 32, "num_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    words = {"vocab_size": 100, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2}
    detector = Sam3Config(
        vision_config=tracker.config.vision_config.to_dict(),
        text_config={**words, **small, "num_hidden_layers": 1, "projection_dim": 32},
        geometry_encoder_config=small,
        detr_encoder_config=small,
        detr_decoder_config={**small, "num_queries": 4},
        mask_decoder_config={"hidden_size": 32, "num_attention_heads": 2},
    )
    whole = Sam3VideoModel(
        Sam3VideoConfig(detector_config=detector.to_dict(), tracker_config=video_config(tracker).to_dict())
    )
    weights = whole.state_dict()
    for name, value in tracker.state_dict().items():
        for old, new in (
            ("vision_encoder.neck.", "tracker_neck."),
            ("vision_encoder.backbone.", "detector_model.vision_encoder.backbone."),
            ("", "tracker_model."),
        ):
            if name.startswith(old):
                weights[new + name.removeprefix(old)].copy_(value)
                break
    whole.save_pretrained(folder)
    return folder
