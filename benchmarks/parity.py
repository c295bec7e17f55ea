"""Does SAM3 through XFlow give what Meta's own code gives? Both with the same random weights, on the same prompts.

    python -m benchmarks.parity [--full]

Needs the package ``sam3`` (``pip install --no-deps sam3==0.1.4 einops``), best in an environment of its own: with all
its requirements it brings torchvision and an older numpy. Only its modules of the network are imported here, and these
need of timm three small things, which stand below. By default the network is a small one; ``--full`` takes SAM3's own
sizes (about two minutes on two cores).

It builds Meta's trunk, neck, prompt encoder and mask decoder, writes their weights as Meta's checkpoint has them,
imports that with :mod:`xflow_core.segmenters.sam3_checkpoint`, and compares image maps, logits and predicted IoUs.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import types
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import Sam3TrackerConfig

from xflow_core.bundles.foundation_backend import quiet_transformers
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.trace import Click
from xflow_core.segmenters.protocol import Prompt
from xflow_core.segmenters.sam3 import encode, load_tracker, prompt_inputs
from xflow_core.segmenters.sam3_checkpoint import import_checkpoint

TOLERANCE = 1e-3
"""Of the largest value; float32 on two implementations of attention."""

SMALL = {"width": 64, "depth": 4, "heads": 2, "mlp": 128, "dim": 32, "decoder_mlp": 64, "decoder_heads": 4, "side": 112}
FULL = {
    "width": 1024, "depth": 32, "heads": 16, "mlp": 4736, "dim": 256, "decoder_mlp": 2048, "decoder_heads": 8,
    "side": 1008,
}  # fmt: skip
PATCH = 14
BOX = Box(0.2, 0.1, 0.7, 0.8)
CLICKS = (Click("positive", Point(0.4, 0.5)), Click("negative", Point(0.9, 0.2)), Click("positive", Point(0.3, 0.3)))


def meta_modules() -> None:
    """Make ``sam3.model.vitdet`` and the like importable without running the package's own ``__init__``."""
    found = importlib.util.find_spec("sam3")
    if found is None or not found.submodule_search_locations:
        sys.exit("benchmarks.parity needs Meta's package: pip install --no-deps sam3==0.1.4 einops")
    root = Path(next(iter(found.submodule_search_locations)))
    for name in ("sam3", "sam3.model"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    if importlib.util.find_spec("timm") is None:
        timm, layers = types.ModuleType("timm"), types.ModuleType("timm.layers")
        layers.DropPath, layers.Mlp = _Identity, _Mlp  # type: ignore[attr-defined]
        layers.trunc_normal_ = nn.init.trunc_normal_  # type: ignore[attr-defined]
        sys.modules |= {"timm": timm, "timm.layers": layers}


class _Identity(nn.Module):
    """timm's DropPath, which does nothing outside training."""

    def __init__(self, *_: object) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x


class _Mlp(nn.Module):
    """timm's Mlp without dropout."""

    def __init__(self, in_features: int, hidden_features: int, act_layer: type[nn.Module], **_: object) -> None:
        super().__init__()
        self.fc1 = nn.Linear(in_features, hidden_features)
        self.act = act_layer()
        self.fc2 = nn.Linear(hidden_features, in_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Meta(nn.Module):
    """Meta's parts of the tracker, named as its checkpoint names them."""

    def __init__(self, size: dict[str, int]) -> None:
        super().__init__()
        from sam3.model.necks import Sam3DualViTDetNeck  # type: ignore[import-not-found]
        from sam3.model.vitdet import ViT  # type: ignore[import-not-found]
        from sam3.sam.mask_decoder import MaskDecoder  # type: ignore[import-not-found]
        from sam3.sam.prompt_encoder import PromptEncoder  # type: ignore[import-not-found]
        from sam3.sam.transformer import TwoWayTransformer  # type: ignore[import-not-found]

        side, dim = size["side"], size["dim"]
        cells = side // PATCH
        full = size is FULL
        trunk = ViT(
            img_size=side,
            pretrain_img_size=336 if full else 56,
            patch_size=PATCH,
            embed_dim=size["width"],
            depth=size["depth"],
            num_heads=size["heads"],
            mlp_ratio=size["mlp"] / size["width"],
            global_att_blocks=(7, 15, 23, 31) if full else (1, 3),
            rel_pos_blocks=(),
            use_rope=True,
            use_interp_rope=True,
            window_size=24 if full else cells // 2,
            retain_cls_token=False,
            ln_pre=True,
            bias_patch_embed=False,
        )
        neck = Sam3DualViTDetNeck(trunk, lambda x: x, dim, scale_factors=(4.0, 2.0, 1.0, 0.5), add_sam2_neck=True)
        self.detector = _holder(backbone=_holder(vision_backbone=neck))
        self.tracker = _holder(
            sam_prompt_encoder=PromptEncoder(dim, (cells, cells), (cells * PATCH, cells * PATCH), 16),
            sam_mask_decoder=MaskDecoder(
                transformer_dim=dim,
                transformer=TwoWayTransformer(2, dim, size["decoder_heads"], size["decoder_mlp"]),
                iou_head_hidden_dim=256 if full else dim,
                use_high_res_features=True,
                iou_prediction_use_sigmoid=True,
                pred_obj_scores=True,
                pred_obj_scores_mlp=True,
                use_multimask_token_for_obj_ptr=True,
            ),
        )
        self.tracker.no_mem_embed = nn.Parameter(torch.zeros(1, 1, dim))

    def maps(self, pixels: Tensor) -> list[Tensor]:
        """As ``SAM3InteractiveImagePredictor.set_image`` keeps them."""
        _, _, levels, _ = self.detector.backbone.vision_backbone(pixels)
        fine, middle, coarse = levels[:3]
        decoder = self.tracker.sam_mask_decoder
        coarse = coarse + self.tracker.no_mem_embed.view(1, -1, 1, 1)
        return [decoder.conv_s0(fine), decoder.conv_s1(middle), coarse]

    def answer(self, maps: list[Tensor], inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """As ``SAM3InteractiveImagePredictor._predict``: a box goes in as two points of the labels 2 and 3."""
        points = inputs["input_boxes"].reshape(-1, 2, 2)
        labels = torch.tensor([[2, 3]]).repeat(len(points), 1)
        if "input_points" in inputs:
            points = torch.cat([points, inputs["input_points"][0]], 1)
            labels = torch.cat([labels, inputs["input_labels"][0]], 1)
        encoder = self.tracker.sam_prompt_encoder
        sparse, dense = encoder(points=(points, labels), boxes=None, masks=inputs.get("input_masks"))
        logits, ious, _, _ = self.tracker.sam_mask_decoder(
            image_embeddings=maps[2],
            image_pe=encoder.get_dense_pe(),
            sparse_prompt_embeddings=sparse,
            dense_prompt_embeddings=dense,
            multimask_output=True,
            repeat_image=len(points) > 1,
            high_res_features=maps[:2],
        )
        return logits, ious


def _holder(**parts: nn.Module) -> nn.Module:
    module = nn.Module()
    for name, part in parts.items():
        module.add_module(name, part)
    return module


def config_of(size: dict[str, int]) -> Sam3TrackerConfig:
    full = size is FULL
    cells = size["side"] // PATCH
    return Sam3TrackerConfig(
        vision_config={
            "model_type": "sam3_vision_model",
            "fpn_hidden_size": size["dim"],
            "backbone_feature_sizes": [[cells * scale] * 2 for scale in (4, 2, 1)],
            "backbone_config": {
                "model_type": "sam3_vit_model",
                "hidden_size": size["width"],
                "intermediate_size": size["mlp"],
                "num_hidden_layers": size["depth"],
                "num_attention_heads": size["heads"],
                "image_size": cells * PATCH,
                "patch_size": PATCH,
                "window_size": 24 if full else cells // 2,
                "global_attn_indexes": [7, 15, 23, 31] if full else [1, 3],
                "pretrain_image_size": 336 if full else 56,
                "layer_norm_eps": 1e-5,
            },
        },
        prompt_encoder_config={"hidden_size": size["dim"], "image_size": cells * PATCH, "patch_size": PATCH},
        mask_decoder_config={
            "hidden_size": size["dim"],
            "mlp_dim": size["decoder_mlp"],
            "num_attention_heads": size["decoder_heads"],
            "iou_head_hidden_dim": 256 if full else size["dim"],
        },
    )


def compare(size: dict[str, int]) -> dict[str, float]:
    """The largest difference of each output, as a share of its largest value in Meta's."""
    torch.manual_seed(0)
    meta = Meta(size).eval()
    with torch.no_grad():
        for name, weight in meta.named_parameters():
            if weight.ndim == 1:
                weight.add_(0.1 * torch.randn_like(weight))
            elif "no_mem" in name or "pos_embed" in name:
                weight.normal_(std=0.5)
            elif not name.startswith("detector") and weight.ndim == 2:
                weight.mul_(1.5)
    with tempfile.TemporaryDirectory() as folder, quiet_transformers():
        checkpoint = Path(folder) / "sam3.pt"
        torch.save({"model": meta.state_dict()}, checkpoint)
        imported = import_checkpoint(checkpoint, Path(folder) / "sam3", None if size is FULL else config_of(size))
        ours = load_tracker(imported, side=size["side"])
    grey = torch.rand(1, size["side"], size["side"])
    pixels = ((grey - 0.5) / 0.5)[:, None].expand(-1, 3, -1, -1)
    apart: dict[str, float] = {}

    def measure(name: str, one: Tensor, other: Tensor) -> None:
        apart[name] = float((one - other).abs().max() / other.abs().max())

    with torch.inference_mode():
        theirs, mine = meta.maps(pixels), encode(ours, grey)
        for name, one, other in zip(("fine map", "middle map", "coarse map"), mine, theirs, strict=True):
            measure(name, one, other)
        two_boxes = prompt_inputs([Prompt(BOX), Prompt(Box(0.5, 0.5, 0.9, 0.9))], size["side"])
        cases = {"two boxes": two_boxes}
        before = meta.answer(theirs, prompt_inputs([Prompt(BOX)], size["side"]))[0][:, :1]
        for count in range(1, len(CLICKS) + 1):
            inputs = prompt_inputs([Prompt(BOX, CLICKS[:count])], size["side"])
            cases[f"box, {count} clicks, mask"] = {**inputs, "input_masks": before}
        for name, inputs in cases.items():
            logits, ious = meta.answer(theirs, inputs)
            out = ours(image_embeddings=mine, multimask_output=True, **inputs)
            measure(f"{name}: logits", out.pred_masks[0], logits)
            measure(f"{name}: IoU", out.iou_scores[0], ious)
    return apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="SAM3's own sizes")
    size = FULL if parser.parse_args().full else SMALL
    meta_modules()
    apart = compare(size)
    print(
        f"SAM3 through XFlow against Meta's code, {'full size' if size is FULL else 'small'}, random weights, float32"
    )
    for name, value in apart.items():
        print(f"  {name:28} {value:.1e}")
    worst = max(apart.values())
    print(f"  largest relative difference {worst:.1e}, tolerance {TOLERANCE:.0e}; not for clinical use")
    if not worst < TOLERANCE:
        sys.exit(1)


if __name__ == "__main__":
    main()
