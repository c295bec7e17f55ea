"""Meta's checkpoint, imported. ``benchmarks/parity.py`` compares the result with Meta's own code, which the tests do
not have; here the checkpoint is made from a tiny tracker by :mod:`meta_sam3`."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from meta_sam3 import TRUNK, as_metas
from tiny_sam3 import SIDE, tiny_sam3

from xflow_core.domain.errors import BundleError
from xflow_core.segmenters.sam3 import encode, load_tracker
from xflow_core.segmenters.sam3_checkpoint import import_checkpoint


def test_the_imported_tracker_has_the_checkpoints_weights(tmp_path: Path) -> None:
    model = tiny_sam3()
    weights = {
        name: value + (0.1 * torch.randn_like(value) if value.ndim == 1 else 0)
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(weights)
    torch.save({"model": as_metas(weights)}, tmp_path / "sam3.pt")
    folder = import_checkpoint(tmp_path / "sam3.pt", tmp_path / "sam3", model.config)
    loaded = load_tracker(folder, side=SIDE)
    assert all(torch.equal(value, weights[name]) for name, value in loaded.state_dict().items())
    grey = torch.rand(1, SIDE, SIDE)
    with torch.no_grad():
        pairs = zip(encode(loaded, grey), encode(model, grey), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("lost", ["tracker.no_mem_embed", TRUNK + "blocks.1.attn.qkv.weight"])
def test_a_checkpoint_that_lacks_an_array_is_refused(lost: str, tmp_path: Path) -> None:
    model = tiny_sam3()
    held = as_metas(model.state_dict())
    del held[lost]
    torch.save(held, tmp_path / "sam3.pt")
    with pytest.raises(BundleError, match="tracker"):
        import_checkpoint(tmp_path / "sam3.pt", tmp_path / "sam3", model.config)
    assert not (tmp_path / "sam3").exists()


class Evil:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.path,))


def test_a_checkpoint_that_holds_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    torch.save({"model": Evil(tmp_path / "ran")}, tmp_path / "sam3.pt")
    with pytest.raises(BundleError, match="weights alone"):
        import_checkpoint(tmp_path / "sam3.pt", tmp_path / "sam3")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", pickle.dumps({"a": 1})])
def test_a_file_that_is_no_checkpoint_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "sam3.pt").write_bytes(content)
    with pytest.raises(BundleError, match=r"sam3\.pt") as refused:
        import_checkpoint(tmp_path / "sam3.pt", tmp_path / "sam3")
    assert "\n" not in str(refused.value)
