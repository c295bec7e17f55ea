"""Weights from safetensors files into networks."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from xflow_core.domain.errors import BundleError


def load_weights(net: nn.Module, path: Path) -> None:
    """Fill ``net`` with the file's arrays, as float32, and set it to evaluation.

    Raises:
        BundleError: the file cannot be read, or is not this network's.
    """
    try:
        held = {name: value.float() for name, value in load_file(str(path)).items()}
    except (OSError, SafetensorError) as problem:
        raise BundleError(f"{path} cannot be read as safetensors ({problem}); install the bundle anew.") from None
    wanted = {name: value for name, value in net.state_dict().items() if value.is_floating_point()}
    wrong = sorted(
        name
        for name in wanted.keys() | held.keys()
        if name not in wanted or name not in held or wanted[name].shape != held[name].shape
    )
    if wrong:
        raise BundleError(f"{path} does not fit its network: {len(wrong)} arrays differ, first {wrong[0]}.")
    with torch.no_grad():
        for name, value in wanted.items():
            value.copy_(held[name])
    net.eval()
