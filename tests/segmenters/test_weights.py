"""How weights are kept: int8 with a scale a channel, networks trained apart in one file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from xflow_core.domain.errors import BundleError
from xflow_core.segmenters.weights import join_members, load_weights, members_in, read_weights, save_weights


def small() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 2, 1))


def floating(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in net.state_dict().items() if value.is_floating_point()}


def test_weights_come_back_within_half_a_step_of_their_channel(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, other = small(), small()
    net[0].weight.data[3] *= 1000
    net[0].weight.data[4] = 0
    save_weights(floating(net), tmp_path / "net.safetensors")
    load_weights(other, tmp_path / "net.safetensors")
    for name, value in floating(net).items():
        step = value.abs().flatten(1).amax(1) / 127 if value.ndim > 1 else value.abs().max() / 1000
        assert ((floating(other)[name] - value).abs().flatten(1 if value.ndim > 1 else 0).amax(-1) <= step).all(), name
    assert (tmp_path / "net.safetensors").stat().st_size < 4 * sum(v.numel() for v in floating(net).values())
    assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]


def test_networks_trained_apart_are_one_file_and_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.safetensors" for n in range(3)]
    for path in paths:
        save_weights(floating(small()), path)
    join_members(paths, tmp_path / "all.safetensors")
    arrays = read_weights(tmp_path / "all.safetensors")
    assert members_in(arrays) == 3 and members_in(read_weights(paths[0])) == 1
    assert torch.allclose(arrays["members.2.0.weight"], read_weights(paths[2])["0.weight"], atol=1e-6)


def test_a_file_that_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    save_weights(floating(nn.Linear(4, 4)), path)
    with pytest.raises(BundleError, match="does not fit"):
        load_weights(small(), path)
    save_file({"weight": torch.zeros(4, 4, dtype=torch.int8), "weight.scale": torch.ones(3)}, path)
    with pytest.raises(BundleError, match="scale of weight"):
        load_weights(nn.Linear(4, 4), path)
    path.write_bytes(b"no safetensors")
    with pytest.raises(BundleError, match="install the bundle anew"):
        read_weights(path)
