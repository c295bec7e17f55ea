"""Stored predictions: whole and consistent, or refused with a sentence; ``python -m training score``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from training.__main__ import main
from training.evaluation.predictions import PRESENCE, PredictionWriter, answered_from, mask_file
from training.evaluation.rows import Row, read_rows, write_rows
from xflow_core.domain.errors import CallError
from xflow_core.export.files import write_mask

SIZE = (40, 60)
TRUTH = np.zeros(SIZE, bool)
TRUTH[5:15, 5:25] = True
HALF = TRUTH.copy()
HALF[:, 15:] = False
NOTHING = np.zeros(SIZE, bool)


def question(identity: str, mask: str | None, **changes: Any) -> dict[str, Any]:
    return {
        "id": identity, "image": "image.png", "instruction": "Segment the effusion.", "finding": "effusion",
        "regions": ["chest"], "level": "chest", "mask": mask, "lungs": None, "source": "test", **changes,
    }  # fmt: skip


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    cv2.imwrite(str(tmp_path / "image.png"), np.full(SIZE, 90, np.uint8))
    write_mask(tmp_path / "truth.png", TRUTH)
    write_rows(tmp_path / "set.jsonl", [question("a", "truth.png"), question("b", "truth.png"), question("c", None)])
    return read_rows(tmp_path / "set.jsonl")


def stored(folder: Path, masks: dict[str, np.ndarray]) -> Path:
    with PredictionWriter(folder) as writer:
        for row, mask in masks.items():
            writer.add(row, mask, 0.25)
    return folder


@pytest.fixture
def whole(rows: list[Row], tmp_path: Path) -> Path:
    return stored(tmp_path / "system", {"a": TRUTH, "b": HALF, "c": NOTHING})


def test_what_was_stored_is_measured(rows: list[Row], whole: Path) -> None:
    answered = answered_from(whole, rows)
    assert [row.iou for row in answered] == [1.0, 0.5, 1.0]
    assert [row.returned for row in answered] == [True, True, False]
    assert answered[2].probability == 0.25


def test_many_rows_are_read_by_several_processes_in_order(rows: list[Row], tmp_path: Path) -> None:
    many = [question(f"r{k}", "truth.png" if k % 2 else None) for k in range(100)]
    write_rows(tmp_path / "many.jsonl", many)
    folder = stored(tmp_path / "many", {row["id"]: HALF if row["mask"] else NOTHING for row in many})
    answered = answered_from(folder, read_rows(tmp_path / "many.jsonl"), workers=2)
    assert [row.id for row in answered] == [row["id"] for row in many]
    assert {row.iou for row in answered if row.positive} == {0.5}


def test_a_missing_prediction_is_an_error_and_no_absence(rows: list[Row], whole: Path) -> None:
    mask_file(whole, "b").unlink()
    with pytest.raises(CallError, match=r"row b.*no 'absent'"):
        answered_from(whole, rows)
    assert [row.id for row in answered_from(whole, rows, partial=True)] == ["a", "c"]


def test_a_row_without_a_line_is_missing_too(rows: list[Row], whole: Path) -> None:
    lines = (whole / PRESENCE).read_text().splitlines()
    (whole / PRESENCE).write_text("\n".join(lines[1:]))
    with pytest.raises(CallError, match="row a"):
        answered_from(whole, rows)


def test_a_mask_of_another_size_is_named(rows: list[Row], whole: Path) -> None:
    write_mask(mask_file(whole, "b"), TRUTH.T.copy())
    with pytest.raises(CallError, match=r"row b is 60 x 40, its image 40 x 60"):
        answered_from(whole, rows)


def test_a_mask_that_contradicts_its_line_is_refused(rows: list[Row], whole: Path) -> None:
    write_mask(mask_file(whole, "c"), TRUTH)
    with pytest.raises(CallError, match=r"Row c is stated as absent"):
        answered_from(whole, rows)


@pytest.mark.parametrize("picture", [np.full(SIZE, 100, np.uint8), np.zeros((*SIZE, 3), np.uint8)])
def test_a_mask_is_grey_and_of_two_values(picture: np.ndarray, rows: list[Row], whole: Path) -> None:
    cv2.imwrite(str(mask_file(whole, "a")), picture)
    with pytest.raises(CallError, match="mask of a is no 8-bit grey"):
        answered_from(whole, rows)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "Line 4"),
        ('{"id": "a", "present": true}', "repeats the id a"),
        ('{"id": "z", "present": true}', "row z, which the set does not ask"),
        ('{"id": "z", "present": 1}', "not true or false"),
        ('{"id": "z", "present": true, "probability": 2}', "0 to 1"),
    ],
)
def test_a_bad_line_is_named(line: str, says: str, rows: list[Row], whole: Path) -> None:
    with (whole / PRESENCE).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(CallError, match=says):
        answered_from(whole, rows)


def test_a_row_without_an_image_is_named(rows: list[Row], whole: Path, tmp_path: Path) -> None:
    (tmp_path / "image.png").unlink()
    with pytest.raises(CallError, match="image of row a is missing"):
        answered_from(whole, rows)


@pytest.mark.parametrize("gone", ["image.png", "truth.png"])
def test_a_missing_file_is_named_before_anything_is_measured(
    gone: str, rows: list[Row], whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / gone).unlink()
    calls = {
        "score": ["--predictions", str(whole)],
        "evaluate": ["--bundle", "compact"],
    }
    for command, options in calls.items():
        with pytest.raises(SystemExit) as ended:
            main([command, "--set", str(tmp_path / "set.jsonl"), "--out", str(tmp_path / "out"), *options])
        assert ended.value.code == 2
        assert f"{gone.split('.')[0].replace('truth', 'mask')} of row a is missing" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"finding": "pneumothorax"}, "pneumothorax"),
        ({"id": "a"}, "repeats the id a"),
        ({"regions": ["liver"]}, "liver"),
        ({"image": None}, "its image is None"),
    ],
)
def test_a_row_of_an_unknown_finding_or_a_repeated_one_is_named(
    changes: dict[str, Any], says: str, rows: list[Row], tmp_path: Path
) -> None:
    with (tmp_path / "set.jsonl").open("a") as file:
        file.write(json.dumps(question("d", None) | changes) + "\n")
    with pytest.raises(CallError, match=rf"Line 4 .*{says}"):
        read_rows(tmp_path / "set.jsonl")


def test_an_id_that_is_no_file_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="file name"), PredictionWriter(tmp_path) as writer:
        writer.add("../a", TRUTH)
    assert not (tmp_path / PRESENCE).exists()


def test_score_writes_metrics_and_a_comparison(rows: list[Row], whole: Path, tmp_path: Path) -> None:
    stored(tmp_path / "other", {"a": HALF, "b": HALF, "c": TRUTH})
    out = tmp_path / "out"
    main([
        "score", "--set", str(tmp_path / "set.jsonl"), "--predictions", str(whole), "--against",
        str(tmp_path / "other"), "--out", str(out),
    ])  # fmt: skip
    figures = json.loads((out / "metrics.json").read_text())
    assert (figures["n"], figures["gIoU"], figures["F1"], figures["left_out"]) == (3, 0.75, 1.0, 0)
    assert figures["notice"] == "not for clinical use"
    found = json.loads((out / "comparison.json").read_text())
    assert (found["gIoU"]["difference"], found["n"]) == (0.25, 3)


def test_score_of_fewer_rows_is_refused_unless_told_to(
    rows: list[Row], whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mask_file(whole, "b").unlink()
    call = ["score", "--set", str(tmp_path / "set.jsonl"), "--predictions", str(whole), "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        main(call)
    assert ended.value.code == 2
    assert "--partial" in capsys.readouterr().err
    main([*call, "--partial"])
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["left_out"] == 1
