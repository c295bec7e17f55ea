"""Weights in safetensors files, and from there into networks.

Arrays of two and more dimensions are kept as int8 with a scale for each output channel (``NAME.scale``, float32), the
others as float16: a quarter of the size of float32, with answers that differ less than those of two training seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from xflow_core.domain.errors import BundleError

_SCALE = ".scale"
MEMBERS = "members."


def save_weights(arrays: Mapping[str, Tensor], path: Path) -> None:
    """Write a network's floating-point arrays in the form described above, whole or not at all."""
    held: dict[str, Tensor] = {}
    for name, value in arrays.items():
        if value.ndim < 2:
            held[name] = value.to(torch.float16).contiguous()
            continue
        exact = value.float()
        scale = exact.flatten(1).abs().amax(1).clamp(min=1e-12) / 127
        held[name] = (exact / scale.view(-1, *[1] * (exact.ndim - 1))).round().to(torch.int8).contiguous()
        held[name + _SCALE] = scale
    part = path.with_suffix(".part")
    save_file(held, str(part))
    part.replace(path)


def read_weights(path: Path) -> dict[str, Tensor]:
    """A file's arrays by name, float32.

    Raises:
        BundleError: the file cannot be read.
    """
    try:
        held = load_file(str(path))
    except (OSError, SafetensorError) as problem:
        raise BundleError(f"{path} cannot be read as safetensors ({problem}); install the bundle anew.") from None
    arrays = {}
    for name, value in held.items():
        if name.endswith(_SCALE) and name.removesuffix(_SCALE) in held:
            continue
        scale = held.get(name + _SCALE)
        if scale is not None and scale.shape != value.shape[:1]:
            raise BundleError(f"{path}: the scale of {name} does not fit it; install the bundle anew.")
        exact = value.float()
        arrays[name] = exact if scale is None else exact * scale.view(-1, *[1] * (exact.ndim - 1))
    return arrays


def join_members(paths: Sequence[Path], target: Path) -> None:
    """Networks trained apart, whose answers are averaged, as one file."""
    save_weights(
        {f"{MEMBERS}{n}.{name}": value for n, path in enumerate(paths) for name, value in read_weights(path).items()},
        target,
    )


def members_in(arrays: Mapping[str, Tensor]) -> int:
    """How many networks a file of :func:`join_members` holds; 1 for any other."""
    return max(1, len({name.split(".")[1] for name in arrays if name.startswith(MEMBERS)}))


def fill(net: nn.Module, arrays: Mapping[str, Tensor], path: Path) -> None:
    """Put a file's arrays into ``net``, and set it to evaluation.

    Raises:
        BundleError: they are not this network's.
    """
    wanted = {name: value for name, value in net.state_dict().items() if value.is_floating_point()}
    wrong = sorted(
        name
        for name in wanted.keys() | arrays.keys()
        if name not in wanted or name not in arrays or wanted[name].shape != arrays[name].shape
    )
    if wrong:
        raise BundleError(f"{path} does not fit its network: {len(wrong)} arrays differ, first {wrong[0]}.")
    with torch.no_grad():
        for name, value in wanted.items():
            value.copy_(arrays[name])
    net.eval()


def load_weights(net: nn.Module, path: Path) -> None:
    """Fill ``net`` with the file's arrays, and set it to evaluation.

    Raises:
        BundleError: the file cannot be read, or is not this network's.
    """
    fill(net, read_weights(path), path)
