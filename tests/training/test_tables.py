"""The paper's tables and figures from stored predictions, through the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from training.__main__ import main
from training.evaluation.grids import choose_cases
from training.evaluation.predictions import PredictionWriter
from training.evaluation.rows import read_rows, write_rows
from training.evaluation.table import PUBLISHED, Cell, Table
from training.evaluation.tables import numbers, table_1, table_2, table_4
from xflow_core.export.files import write_mask

SIZE = (64, 80)


def lesion(column: int) -> np.ndarray:
    mask = np.zeros(SIZE, bool)
    mask[20:40, column : column + 20] = True
    return mask


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two sets and three systems: xflow is right, rosalia half right with a speck, the readers drew half."""
    rows: list[dict[str, Any]] = []
    for k in range(12):
        cv2.imwrite(str(tmp_path / f"{k}.png"), np.full(SIZE, 40 + k, np.uint8))
        finding = ("effusion", "edema", "opacity")[k % 3]
        write_mask(tmp_path / f"{k}-truth.png", lesion(10 + k))
        common = {"image": f"{k}.png", "finding": finding, "lungs": None, "source": "test"}
        rows += [
            {**common, "id": f"{k}-chest", "instruction": f"Segment the {finding}.", "regions": ["chest"],
             "level": "chest", "mask": f"{k}-truth.png"},
            {**common, "id": f"{k}-lung", "instruction": f"Segment the {finding} in the left lung.",
             "regions": ["left lung"], "level": "lung", "mask": None},
        ]  # fmt: skip
    write_rows(tmp_path / "percept.jsonl", rows)
    write_rows(tmp_path / "localize.jsonl", [row for row in rows if row["level"] == "chest"])
    systems = {"xflow": 0, "rosalia": 10, "human": 10}
    for name, shift in systems.items():
        for data in ("chexpercept", "chexlocalize") if name != "human" else ("chexlocalize",):
            asked = read_rows(tmp_path / ("percept.jsonl" if data == "chexpercept" else "localize.jsonl"))
            with PredictionWriter(tmp_path / "stored" / name / data) as writer:
                for row in asked:
                    mask = lesion(10 + int(row.id.split("-")[0]) + shift) & (row.mask is not None)
                    mask[60, 70] = name == "rosalia" and row.mask is not None
                    writer.add(row.id, mask)
    return tmp_path


def made(root: Path, *options: str) -> Path:
    main([
        "tables", "--set", f"chexpercept={root / 'percept.jsonl'}", "--set", f"chexlocalize={root / 'localize.jsonl'}",
        "--predictions", str(root / "stored"), "--out", str(root / "out"), *options,
    ])  # fmt: skip
    return root / "out"


def lines(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open()))


def test_measured_rows_stand_beside_published_ones_and_say_so(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = made(root, "--compare", "xflow")
    for number in (1, 2, 3, 4, 8):
        for ending in ("md", "tex", "csv"):
            assert (out / f"table_{number}.{ending}").stat().st_size > 100
    table = lines(out / "table_1.csv")
    assert [row["Source"].split(",")[0] for row in table if row["Model"] == "XFlow"] == ["published", "measured"]
    measured = next(row for row in table if row["Model"] == "XFlow" and row["Source"] != PUBLISHED)
    assert measured["CheXpercept gIoU"] == "1.0"
    assert "24 CheXpercept + 12 CheXlocalize" in measured["Source"]
    rosalia = next(row for row in table if row["Model"] == "ROSALIA" and row["Source"] != PUBLISHED)
    assert float(rosalia["CheXpercept gIoU"]) == pytest.approx(1 / 3, abs=0.01)
    assert float(rosalia["CheXpercept gIoU low"]) <= float(rosalia["CheXpercept gIoU"])
    printed = capsys.readouterr().out
    assert printed == (out / "tables.md").read_text() + "\n"
    assert "ot for clinical use" in printed


def test_people_who_were_told_what_to_draw_have_no_f1(root: Path) -> None:
    human = [row for row in lines(made(root, "--no-figures") / "table_1.csv") if row["Model"] == "Human benchmark"]
    assert [row["CheXlocalize F1"] for row in human] == ["", ""]
    assert float(human[1]["CheXlocalize gIoU"]) > 0.3


def test_a_system_that_was_told_the_truths_boxes_is_marked_and_has_no_f1(root: Path) -> None:
    (root / "stored" / "rosalia").rename(root / "stored" / "medsam")
    out = made(root, "--no-figures", "--compare", "xflow")
    (row,) = [row for row in lines(out / "table_1.csv") if "MedSAM" in row["Model"]]
    assert row["Model"] == "MedSAM (told the truth's boxes)"
    assert row["CheXpercept F1"] == "" and float(row["CheXpercept gIoU"]) > 0.3
    others = [row for row in lines(out / "differences.csv") if "MedSAM" in row["Second"]]
    assert {row["Measure"] for row in others} == {"gIoU", "cIoU"}
    assert "(told the truth's boxes)" in (out / "table_3.tex").read_text()


def test_the_best_two_are_marked_among_published_and_among_measured_models(root: Path) -> None:
    lines_of: dict[tuple[str, bool], str] = {}
    for line in (made(root, "--no-figures") / "table_1.md").read_text().splitlines():
        if "published |" in line or "measured, n" in line:
            lines_of[line.split(" | ")[0].removeprefix("| "), "published |" in line] = line
    assert "**0.703**" in lines_of["XFlow", True] and "<u>0.621</u>" in lines_of["ROSALIA", True]
    assert "**0.634**" in lines_of["ROSALIA", True] and "*" not in lines_of["Human benchmark", True]
    assert "**1.000 [" in lines_of["XFlow", False] and "<u>0.3" in lines_of["ROSALIA", False]
    assert "*" not in lines_of["Human benchmark", False]
    assert r"\textbf{0.703}" in (root / "out" / "table_1.tex").read_text()


def test_noise_has_the_truths_own_row(root: Path) -> None:
    table = {(row["Model"], row["Source"].split(",")[0]): row for row in lines(made(root) / "table_3.csv")}
    assert float(table["GT", "measured"]["specks"]) == 0
    assert float(table["XFlow", "measured"]["difference in components"]) == 0
    assert float(table["ROSALIA", "measured"]["difference in components"]) == 1
    assert table["ROSALIA", PUBLISHED]["specks"] == "5.57"


def test_systems_are_compared_in_pairs(root: Path) -> None:
    found = lines(made(root, "--compare", "xflow", "--no-figures") / "differences.csv")
    gain = next(row for row in found if row["Second"] == "ROSALIA" and row["Measure"] == "gIoU")
    assert float(gain["difference"]) == pytest.approx(2 / 3, abs=0.01)
    assert float(gain["p"]) < 0.01
    assert not [row for row in found if row["Second"] == "Human benchmark" and row["Measure"] == "F1"]


def test_the_evaluation_set_is_counted_beside_table_8(root: Path) -> None:
    table = {(row["Finding"], row["Source"]): row for row in lines(made(root, "--no-figures") / "table_8.csv")}
    assert [table["total", PUBLISHED][f"{level} positive"] for level in ("chest", "lung", "zone")] == [
        "382",
        "429",
        "330",
    ]
    assert [table["total", PUBLISHED][f"{level} negative"] for level in ("chest", "lung", "zone")] == [
        "444",
        "1050",
        "3286",
    ]
    assert (table["total", "counted"]["chest positive"], table["total", "counted"]["lung negative"]) == ("12", "12")


def test_a_reader_study_fills_table_4(root: Path) -> None:
    fits = {"davidson": [0.2, 0.1, 0.3], "rao_kupper": [0.1, 0.0, 0.2], "mean_rank": 1.9}
    (root / "study.json").write_text(json.dumps({"rankings": 285, "systems": {"xflow": fits}}))
    table = lines(made(root, "--reader-study", str(root / "study.json"), "--no-figures") / "table_4.csv")
    assert [row["Davidson log-strength"] for row in table if row["Model"] == "XFlow"] == ["0.185", "0.2"]
    (root / "study.json").write_text("{}")
    with pytest.raises(SystemExit):
        made(root, "--reader-study", str(root / "study.json"))


def test_figures_show_other_cases_drawn_without_a_look_at_the_answers(root: Path) -> None:
    out = made(root)
    for name in ("figure_3", "figure_6"):
        assert min(cv2.imread(str(out / f"{name}.png")).shape[:2]) > 300
    rows = read_rows(root / "percept.jsonl")
    chosen = choose_cases(rows, 12)
    assert len({row.image for row in chosen}) == 12
    assert chosen == choose_cases(rows, 12)
    assert {row.instruction.finding for row in chosen[:3]} == {"effusion", "edema", "opacity"}


def test_without_predictions_only_published_rows_are_printed() -> None:
    for table in (table_1({}), table_2({}), table_4(None)):
        assert {row[1] for row in table.rows} == {PUBLISHED}
    assert len(table_1({}).rows) == 10


def test_the_papers_numbers_are_the_papers() -> None:
    """Human benchmark, the always-positive systems and XFlow's gain, as sections 5.2 and 5.3 say them."""
    table = numbers("table_1")
    assert table["human"]["chexlocalize"] == [0.314, 0.339, None]
    assert table["pixellm"]["chexpercept"][2] == table["ibisagent"]["chexpercept"][2] == 0.416
    assert table["xflow"]["chexpercept"] == numbers("table_2")["xflow"]["chexpercept"] == [0.703, 0.731, 0.961]
    assert sum(fits["davidson"][0] for fits in numbers("table_4").values()) == pytest.approx(0, abs=1e-3)


def test_a_set_of_another_name_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tables", "--set", "mine=x", "--predictions", str(root), "--out", str(root / "out")])
    assert "chexpercept=FILE" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        made(root, "--compare", "unet")
    assert "'unet'" in capsys.readouterr().err


def test_latex_escapes_what_it_must() -> None:
    table = Table("t", "50 % of a_b", ("A & B",), ((Cell(0.5, (0.4, 0.6)),),))
    assert r"A \& B" in table.latex() and r"50 \% of a\_b" in table.latex()
    assert table.latex().count("{") == table.latex().count("}")
    signed = Table(
        "t", "", ("A", "B"), ((Cell(-0.5, signed=True), Cell(None)), (Cell(1.714, digits=2, signed=True), "x-1"))
    )
    assert "$-$0.500 & -- \\\\" in signed.latex() and "$+$1.71 & x-1" in signed.latex()
    assert "| +1.71 |" in signed.markdown()
    assert "0.500 [0.400, 0.600]" in table.markdown()
    assert table.csv() == "A & B,A & B low,A & B high\n0.5,0.4,0.6\n"
    with pytest.raises(ValueError, match="2 cells"):
        Table("t", "", ("A",), (("a", "b"),))


def test_incomplete_predictions_are_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    next((root / "stored" / "xflow" / "chexpercept" / "predictions").glob("*.png")).unlink()
    with pytest.raises(SystemExit):
        made(root)
    assert "--partial" in capsys.readouterr().err
    assert made(root, "--partial", "--no-figures")
