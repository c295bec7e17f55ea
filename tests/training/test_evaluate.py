"""``python -m training evaluate`` and ``pack-set``, through their command line, with the bundle that ships."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from training.__main__ import main
from training.evaluation.pack_set import sides_of
from training.evaluation.rows import read_rows
from xflow_core.bundles.manifest import MANIFEST, find_bundle
from xflow_core.domain.errors import CallError
from xflow_core.export.files import write_mask

SIZE = (1955, 1841)  # of the demo's radiograph


def row(identity: str, image: Path, mask: str | None, **changes: Any) -> dict[str, Any]:
    return {
        "id": identity,
        "image": str(image),
        "instruction": "Segment the opacity.",
        "finding": "opacity",
        "regions": ["chest"],
        "level": "chest",
        "mask": mask,
        "lungs": None,
        "source": "test",
        **changes,
    }


@pytest.fixture
def rows(rg1: Path, tmp_path: Path) -> Path:
    mask = np.zeros(SIZE, bool)
    mask[800:1500, 200:700] = True
    write_mask(tmp_path / "mask.png", mask)
    lung = {"instruction": "Segment the opacity in the right lung.", "regions": ["right lung"], "level": "lung"}
    lines = [
        row("a", rg1, "mask.png", lungs={"right lung": [0.05, 0.08, 0.42, 0.8]}),
        row("b", rg1, "mask.png", **lung),
        row("c", rg1, None, instruction="Segment the edema.", finding="edema"),
    ]
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def narrow(tmp_path: Path) -> str:
    """The compact bundle without an answer for edema."""
    folder = tmp_path / "narrow"
    shutil.copytree(find_bundle("compact").folder, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["findings"].remove("edema")
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return str(folder)


def test_a_set_is_answered_and_measured(rows: Path, narrow: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    main(["evaluate", "--set", str(rows), "--bundle", narrow, "--out", str(out), "--skip-unsupported"])
    figures = json.loads((out / "metrics.json").read_text())
    assert figures["n"] == 2
    assert figures["left_out"] == 1
    assert figures["by_level"].keys() == {"chest", "lung"}
    assert figures["by_finding"]["opacity"]["n_positive"] == 2
    assert 0 < figures["lung_box_iou"] <= 1
    assert figures["noise"]["specks"] == 0
    table = list(csv.DictReader((out / "per_row.csv").open()))
    assert [line["id"] for line in table] == ["a", "b"]
    assert (out / "by_finding.png").stat().st_size > 1000


def test_kept_predictions_measure_the_same_as_the_bundle_did(rows: Path, narrow: str, tmp_path: Path) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"
    main([
        "evaluate", "--set", str(rows), "--bundle", narrow, "--out", str(out), "--skip-unsupported", "--keep", str(kept)
    ])  # fmt: skip
    main(["score", "--set", str(rows), "--predictions", str(kept), "--out", str(tmp_path / "again"), "--partial"])
    first, again = (json.loads((folder / "metrics.json").read_text()) for folder in (out, tmp_path / "again"))
    for name in ("n", "gIoU", "cIoU", "F1", "noise", "by_size"):
        assert first[name] == again[name]


def test_a_row_that_the_bundle_cannot_answer_is_an_error_and_no_absence(
    rows: Path, narrow: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", "--set", str(rows), "--bundle", narrow, "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert "edema" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "line", ["{", "[]", "{}", json.dumps(row("a", Path("x"), None, level="lung")), json.dumps({"id": "a"})]
)
def test_a_line_that_is_no_row_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_text(line + "\n")
    with pytest.raises(CallError, match="Line 1"):
        read_rows(tmp_path / "set.jsonl")


def test_a_mask_of_another_size_is_refused(rows: Path, tmp_path: Path) -> None:
    (first, *_) = read_rows(rows)
    with pytest.raises(CallError, match="row a"):
        first.truth((10, 10))


def test_a_piece_belongs_to_the_lung_of_its_half_and_one_in_both_halves_to_none() -> None:
    mask = np.zeros((100, 100), bool)
    mask[10:20, 10:30] = True
    mask[40:60, 48:80] = True
    sides = sides_of(mask)
    assert sides is not None
    assert sides["right lung"].sum() == 200
    assert sides["left lung"].sum() == 20 * 32
    mask[70:80, 40:60] = True
    assert sides_of(mask) is None
