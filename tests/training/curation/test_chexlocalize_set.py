"""CheXlocalize from its own JSON to the human benchmark's measures, through the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from training.__main__ import main
from training.curation.sources.chexlocalize import masks_file, pictures_folder
from training.evaluation.rows import read_rows
from xflow_core.domain import rle
from xflow_core.domain.errors import CallError


@pytest.fixture
def root(drawn: Any, tmp_path: Path) -> Path:
    """A copy of the miniature's CheXlocalize, which a test may spoil."""
    shutil.copytree(drawn.sources.chexlocalize, tmp_path / "data" / "chexlocalize")
    return tmp_path / "data"


def made(root: Path, out: Path, *options: str) -> list[Any]:
    main(["chexlocalize-set", "--data", str(root), "--out", str(out), *options])
    return read_rows(out / "set.jsonl")


def test_every_radiograph_is_asked_for_six_findings_at_chest_level(root: Path, tmp_path: Path) -> None:
    rows = made(root, tmp_path / "set")
    assert len(rows) % 6 == 0
    assert {row.instruction.level for row in rows} == {"chest"}
    assert {row.instruction.text for row in rows} >= {"Segment the consolidation.", "Segment the cardiomegaly."}
    truth = json.loads(masks_file(root / "chexlocalize", "gt", "test").read_text())
    tasks = ("Cardiomegaly", "Airspace Opacity", "Edema", "Consolidation", "Atelectasis", "Pleural Effusion")
    drawn = sum(
        rle.decode(truth[name][task]["counts"], truth[name][task]["size"]).any() for name in truth for task in tasks
    )
    assert sum(row.mask is not None for row in rows) == drawn
    for row in rows:
        assert row.image.is_file()
        assert row.patient is not None and row.patient in str(row.image)


def test_the_second_radiologists_are_scored_like_a_system(root: Path, tmp_path: Path) -> None:
    made(root, tmp_path / "set")
    main([
        "score", "--set", str(tmp_path / "set" / "set.jsonl"), "--predictions", str(tmp_path / "set" / "human"),
        "--out", str(tmp_path / "out"),
    ])  # fmt: skip
    figures = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert 0.3 < figures["gIoU"] < 1.0
    assert figures["left_out"] == 0


def test_the_validation_split_has_no_human_benchmark(root: Path, tmp_path: Path) -> None:
    made(root, tmp_path / "set", "--split", "val")
    assert not (tmp_path / "set" / "human").exists()


def test_a_lateral_view_is_left_out_unless_asked_for(root: Path, tmp_path: Path) -> None:
    folder = root / "chexlocalize"
    for kind in ("gt", "hb"):
        path = masks_file(folder, kind, "test")
        data = json.loads(path.read_text())
        first = next(iter(data))
        data[first.replace("view1_frontal", "view2_lateral")] = data[first]
        path.write_text(json.dumps(data))
    picture = next(pictures_folder(folder, "test").rglob("view1_frontal.jpg"))
    name = next(iter(data)).split("_")[0]
    picture = pictures_folder(folder, "test") / name / "study1" / "view1_frontal.jpg"
    shutil.copy(picture, picture.with_name("view2_lateral.jpg"))
    assert len(made(root, tmp_path / "all", "--views", "all")) == len(made(root, tmp_path / "frontal")) + 6


def test_the_releases_own_folders_are_found(root: Path, tmp_path: Path) -> None:
    folder = root / "chexlocalize"
    (folder / "CheXlocalize").mkdir()
    for path in folder.glob("*.json"):
        path.rename(folder / "CheXlocalize" / path.name)
    (folder / "CheXpert").mkdir()
    (folder / "CheXpert-v1.0" / "test").rename(folder / "CheXpert" / "test")
    assert made(root, tmp_path / "set")


def test_a_radiograph_that_the_second_group_did_not_see_is_an_error(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = masks_file(root / "chexlocalize", "hb", "test")
    data = json.loads(path.read_text())
    gone = next(iter(data))
    del data[gone]
    path.write_text(json.dumps(data))
    with pytest.raises(SystemExit):
        made(root, tmp_path / "set")
    assert gone in capsys.readouterr().err
    assert not (tmp_path / "set" / "human" / "presence.jsonl").exists()


def test_a_missing_radiograph_is_named_and_counted(root: Path, tmp_path: Path) -> None:
    picture = next(pictures_folder(root / "chexlocalize", "test").rglob("*.jpg"))
    picture.unlink()
    made(root, tmp_path / "set")
    problems = [json.loads(line) for line in (tmp_path / "set" / "problems.jsonl").read_text().splitlines()]
    assert [problem["kind"] for problem in problems] == ["image_missing"]


def test_no_pictures_at_all_is_said(root: Path) -> None:
    shutil.rmtree(root / "chexlocalize" / "CheXpert-v1.0")
    with pytest.raises(CallError, match="no radiographs"):
        pictures_folder(root / "chexlocalize", "test")
