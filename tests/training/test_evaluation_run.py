"""A whole evaluation: stopped and taken up again, on several workers, with a page to look at."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from training.__main__ import main
from training.evaluation.calibration import brier, calibration, calibration_error
from training.evaluation.metrics import Answered
from training.evaluation.report import worst_of
from xflow_core.export.files import write_mask
from xflow_core.segmenters.compact import CompactSegmenter
from xflow_core.segmenters.protocol import Prediction

SIZE = (1955, 1841)  # of the demo's radiograph
ASKED = {
    "a": ("Segment the opacity.", "opacity", ["chest"], "chest"),
    "b": ("Segment the opacity in the right lung.", "opacity", ["right lung"], "lung"),
    "c": ("Segment the effusion.", "effusion", ["chest"], "chest"),
}


@pytest.fixture
def rows(rg1: Path, tmp_path: Path) -> Path:
    mask = np.zeros(SIZE, bool)
    mask[800:1500, 200:700] = True
    write_mask(tmp_path / "mask.png", mask)
    lines = [
        {
            "id": identity,
            "image": str(rg1),
            "instruction": text,
            "finding": finding,
            "regions": regions,
            "level": level,
            "mask": "mask.png" if finding == "opacity" else None,
            "lungs": None,
            "source": "test",
        }
        for identity, (text, finding, regions, level) in ASKED.items()
    ]
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def evaluate(rows: Path, out: Path, *options: str) -> dict[str, object]:
    main(["evaluate", "--set", str(rows), "--bundle", "compact", "--device", "cpu", "--out", str(out), *options])
    figures = json.loads((out / "metrics.json").read_text())
    figures.pop("seconds_per_row")
    return figures


@pytest.mark.timeout(900)
def test_a_stopped_evaluation_goes_on_and_a_batch_answers_the_same(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    figures = evaluate(rows, out)
    assert [line["id"] for line in csv.DictReader((out / "per_row.csv").open())] == list(ASKED)
    made = {path.name: path.read_bytes() for path in (out / "traces").iterdir()}
    assert made.keys() == {"a.json", "b.json", "c.json"}

    (out / "traces" / "b.json").unlink()
    (out / "traces" / "c.json").write_text(made["c.json"].decode()[:200])
    times = (out / "traces" / "a.json").stat().st_mtime_ns
    assert evaluate(rows, out, "--resume") == figures
    assert (out / "traces" / "a.json").stat().st_mtime_ns == times, "what was there was taken"
    assert json.loads((out / "traces" / "c.json").read_text())["id"] == json.loads(made["c.json"])["id"]

    evaluate(rows, out, "--resume", "--stages", "1")
    assert json.loads((out / "traces" / "a.json").read_text())["stages"] == 1, "another question is asked anew"

    batched = tmp_path / "batched"
    assert evaluate(rows, batched, "--workers", "2", "--threads", "1") == figures
    assert {path.name for path in (batched / "traces").iterdir()} == made.keys()
    assert not (batched / "batch").exists()

    page = (out / "report.html").read_text()
    assert "Not for clinical use." in page
    assert page.count("Segment the opacity") >= 1, "one of the two questions about the same lesion"
    assert "http" not in page.replace("http-equiv", "")
    assert str(rows.parent) not in page
    assert page.count("data:image/png") == 2, "overlap and reliability"


def test_an_answer_without_a_pixel_is_an_error_or_said_to_count_as_the_papers_measure_counts_it(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The segmenter finds nothing in any box.
    empty = lambda self, image, prompts: [Prediction(np.zeros(SIZE, bool)) for _ in prompts]  # noqa: E731
    monkeypatch.setattr(CompactSegmenter, "segment", empty)
    with pytest.raises(SystemExit):
        evaluate(rows, tmp_path / "strict", "--stages", "1")
    assert "judged present, but no mask has a pixel left" in capsys.readouterr().err
    kept = tmp_path / "kept"
    figures = evaluate(rows, tmp_path / "out", "--stages", "1", "--empty-is-absent", "--keep", str(kept))
    assert figures["empty"] == figures["n"] == 3
    assert figures["gIoU"] == 0 and figures["found"] == 0
    stated = [json.loads(line) for line in (kept / "presence.jsonl").read_text().splitlines()]
    assert {line["id"]: line["present"] for line in stated} == dict.fromkeys("abc", False)


def test_words_that_a_batch_would_read_otherwise_are_an_error(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = json.loads(rows.read_text().splitlines()[1]) | {"instruction": "Segment the opacity in the left lung."}
    rows.write_text(json.dumps(line) + "\n")
    with pytest.raises(SystemExit) as ended:
        evaluate(rows, tmp_path / "out", "--workers", "2")
    assert ended.value.code == 2
    assert "Row b" in capsys.readouterr().err


def row(number: int, positive: bool, probability: float | None, **changes: object) -> Answered:
    made = Answered(
        id=str(number),
        image=str(number),
        finding="effusion",
        level="chest",
        positive=positive,
        returned=False,
        probability=probability,
        intersection=0,
        union=0,
        area=0,
        pieces=0,
        true_pieces=0,
        specks=0,
        specks_outside=0,
        speck_area=0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_probabilities_that_mean_what_they_say_have_no_calibration_error() -> None:
    rows = [row(10 * k + i, i < k, k / 10 + 0.001) for k in range(1, 10) for i in range(10)]
    assert calibration_error(rows) == pytest.approx(0.001)
    assert calibration_error([replace(r, probability=0.9) for r in rows]) == pytest.approx(0.4)
    assert brier([row(0, True, 1.0), row(1, False, 0.5)]) == pytest.approx(0.125)
    found = calibration(rows)
    assert found is not None
    assert [part["observed"]["count"] for part in found["reliability"]] == list(range(10))
    low, high = found["brier_interval"]
    assert low < found["brier"] < high


def test_a_bundle_without_probabilities_has_no_calibration() -> None:
    assert calibration([row(0, True, None)]) is None


def test_the_worst_cases_come_first() -> None:
    rows = [
        row(0, True, 0.9, returned=True, union=10, intersection=9),
        row(1, True, 0.9, returned=True, union=10, intersection=1, specks=3),
        row(2, True, 0.4),
        row(3, True, 0.1),
        row(4, False, 0.6, returned=True, union=5),
        row(5, False, 0.9, returned=True, union=5),
    ]
    rows += [replace(rows[1], id="1b", level="lung", intersection=2), replace(rows[5], id="5b", probability=0.95)]
    found = {kind: [r.id for r in lot] for kind, lot in worst_of(rows).items()}
    assert found == {"Least overlap": ["1", "0"], "Missed": ["3", "2"], "Made up": ["5b", "4"], "Most specks": ["1"]}
