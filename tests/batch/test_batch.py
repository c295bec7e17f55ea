"""``xflow batch`` on one machine, with real worker processes: what is read, what is written, what becomes a row."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from batch.tables import answers, rows_of, without_seconds
from phantom_backend import picture, write_picture
from PIL import Image
from radiograph.dresses import dataset, written

from xflow_core.batch.job import Job, Settings
from xflow_core.batch.run import run_batch
from xflow_core.bundles.manifest import find_bundle
from xflow_core.domain.findings import FINDINGS
from xflow_core.domain.instruction import parse_instruction
from xflow_core.export.files import read_trace

ONE = [(0.3, 0.5, 12.0)]
STUDY = {"StudyInstanceUID": "1.2.3", "SeriesInstanceUID": "1.2.4"}
TWO = [(0.3, 0.5, 12.0), (0.7, 0.4, 10.0)]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Three pictures in a tree: one disc, none, two."""
    folder = tmp_path / "images"
    write_picture(folder / "a.png", ONE)
    write_picture(folder / "sub" / "b.png")
    write_picture(folder / "sub" / "deep" / "c.png", TWO)
    return folder


def test_a_folder_becomes_a_table_in_the_order_of_the_input(images: Path, tmp_path: Path, xflow) -> None:
    (images / "notes.txt").write_text("no image")
    (images / ".hidden.png").write_bytes(b"")
    (images / "1.2.840.1").write_bytes(written(dataset(picture(TWO), SOPInstanceUID="1.2.840.1", **STUDY)))
    out = images / "out"  # its own results are no input
    ended = xflow("batch", images, "-i", "Segment the opacity", "-o", out, "--workers", 2)
    assert ended.status == 0, ended.err
    assert answers(out) == [
        ("1.2.840.1", "opacity", "present", None),
        ("a.png", "opacity", "present", None),
        ("b.png", "opacity", "absent", None),
        ("c.png", "opacity", "present", None),
    ]
    for position, row in enumerate(rows_of(out)):
        trace = read_trace(out / row["folder"] / "trace.json")
        assert trace.result is not None
        assert row["position"] == position
        assert (row["present"], row["confidence"]) == (trace.result.present, trace.result.confidence)
        assert (row["area_px"], row["area_mm2"]) == (trace.result.area_px, trace.result.area_mm2)
        assert (row["regions"], row["level"], row["instruction"]) == (["chest"], "chest", "Segment the opacity")
        assert row["seconds"] == trace.seconds["total"] > 0
        assert row["image_sha256"] == trace.image.sha256
        assert row["bundle_sha256"] == trace.bundle.sha256
    assert "not for clinical use" in ended.out
    assert {"seg.dcm", "sr.dcm", "pr.dcm"} <= {file.name for file in (out / "1.2.840.1").iterdir()}
    again = xflow("batch", images, "-i", "Segment the opacity", "-o", out, "--resume")
    assert again.status == 0
    assert len(rows_of(out)) == 4


def test_an_image_whose_dicom_results_cannot_be_written_keeps_its_answer(tmp_path: Path, xflow) -> None:
    (tmp_path / "x.dcm").write_bytes(written(dataset(picture(ONE))))  # of no study
    ended = xflow("batch", tmp_path / "x.dcm", "-i", "Segment the opacity", "-o", tmp_path / "out")
    assert ended.status == 4
    (row,) = rows_of(tmp_path / "out")
    assert row["status"] == "present"
    assert row["message"].startswith("No DICOM results: ")
    assert "No DICOM results" in ended.err


def test_the_files_are_those_of_segment(images: Path, tmp_path: Path, xflow) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    call = ("-i", "Segment the opacity and the effusion in the left lung", "--stages", 1)
    assert xflow("segment", images / "sub" / "deep" / "c.png", *call, "-o", one).status == 0
    assert xflow("batch", images / "sub" / "deep" / "c.png", *call, "-o", many).status == 0
    made = sorted(path.relative_to(one) for path in one.rglob("*.*"))
    assert [path for path in made if path.name == "mask.png"]
    for path in made:
        if path.name == "trace.json":
            assert read_trace(one / path) == read_trace(many / path)
        else:
            assert (one / path).read_bytes() == (many / path).read_bytes()


def test_the_table_says_what_it_is(images: Path, tmp_path: Path, xflow) -> None:
    xflow("batch", images / "a.png", "-i", "Segment the opacity", "-o", tmp_path / "out", "--seed", 3)
    schema = pq.read_schema(tmp_path / "out" / "results.parquet")
    assert schema.metadata[b"notice"] == b"not for clinical use"
    assert schema.metadata[b"schema"] == b"xflow.batch/1"
    call = json.loads(schema.metadata[b"call"])
    assert (call["seed"], call["bundle"]["name"]) == (3, "phantom")
    assert str(tmp_path) not in str(call)
    for field in schema:
        assert field.metadata[b"description"]


def test_failures_are_rows_with_a_reason_and_the_others_are_answered(tmp_path: Path, xflow) -> None:
    folder = tmp_path / "images"
    write_picture(folder / "a-good.png", ONE)
    (folder / "b-broken.dcm").write_bytes(b"not an image")
    Image.fromarray(np.full((200, 240), 90, np.uint8)).save(folder / "c-blank.png")
    write_picture(folder / "d-raises.png", ONE, "raises")
    write_picture(folder / "e-kills.png", ONE, "kills its process")
    write_picture(folder / "f-good.png", ONE)
    out = tmp_path / "out"
    ended = xflow("batch", folder, "-i", "Segment the opacity", "-o", out)
    assert answers(out) == [
        ("a-good.png", "opacity", "present", None),
        ("b-broken.dcm", "opacity", "failed", "unreadable"),
        ("c-blank.png", "opacity", "refused", "refused"),
        ("d-raises.png", "opacity", "failed", "engine"),
        ("e-kills.png", "opacity", "failed", "worker"),
        ("f-good.png", "opacity", "present", None),
    ]
    assert ended.status == 4
    rows = rows_of(out)
    for row in rows[1:5]:
        assert row["message"].endswith(".")
        assert row["present"] is None
        assert row["area_px"] is None
    assert "b-broken.dcm" in ended.err
    assert "out of memory" in rows[3]["message"]
    assert "signal" in rows[4]["message"]
    assert [row["folder"] is None for row in rows] == [False, True, False, False, True, False]


def test_an_image_that_takes_too_long_is_a_row_with_that_reason_and_the_others_are_answered(
    tmp_path: Path, phantom_bundle: str
) -> None:
    folder, out = tmp_path / "images", tmp_path / "out"
    for name, behaviour in (("a", "answers"), ("b", "takes long"), ("c", "answers")):
        write_picture(folder / f"{name}.png", ONE, behaviour)
    settings = Settings(out, phantom_bundle, find_bundle(phantom_bundle).identity, image_seconds=6.0)
    job = Job(str(folder), settings, parse_instruction("Segment the opacity"))
    outcome = run_batch(job, started=lambda images: None, answered=lambda done: None)
    assert outcome.exit_status == 4
    assert [answer[2:] for answer in answers(out)] == [("present", None), ("failed", "worker"), ("present", None)]
    assert rows_of(out)[1]["message"] == (
        "The worker was still at this image after 6 s and was ended; --resume tries it again."
    )


def test_a_csv_list_brings_instructions_and_carries_its_columns(images: Path, tmp_path: Path, xflow) -> None:
    csv = images / "list.csv"
    csv.write_text(
        "\ufeffstudy,image,instruction,finding\n"
        "007,a.png,Segment the effusion,mine\n"
        "008,sub/b.png,,\n"
        "009,a.png,Segment the pneumothorax,\n"
        '010,nowhere.png,"opacity, effusion",\n'
        "011,a.png,Is there consolidation?,\n"
    )
    out = tmp_path / "out"
    ended = xflow("batch", csv, "-i", "Segment the opacity", "-o", out)
    assert answers(out) == [
        ("a.png", "effusion", "present", None),
        ("b.png", "opacity", "absent", None),
        ("a.png", None, "failed", "instruction"),
        ("nowhere.png", "opacity", "failed", "unreadable"),
        ("nowhere.png", "effusion", "failed", "unreadable"),
        ("a.png", "consolidation", "unsupported", "unsupported"),
    ]
    rows = rows_of(out)
    assert [row["study"] for row in rows] == ["007", "008", "009", "010", "010", "011"]
    assert rows[0]["listed_finding"] == "mine"
    assert rows[1]["image"] == "sub/b.png"
    assert "pneumothorax" in rows[2]["message"]
    assert rows[0]["folder"] != rows[5]["folder"]
    assert ended.status == 3


def test_a_parquet_list_keeps_the_types_of_its_columns(images: Path, tmp_path: Path, xflow) -> None:
    day = datetime.date(2026, 11, 30)
    made = {"image": ["c.png", "../b.png"], "age": [71, None], "taken": [day, day], "tags": [["AP"], []]}
    pq.write_table(pa.table(made), images / "sub" / "deep" / "list.parquet")
    out = tmp_path / "out"
    assert xflow("batch", images / "sub" / "deep" / "list.parquet", "-i", "opacity", "-o", out).status == 0
    rows = rows_of(out)
    assert [(row["status"], row["age"], row["taken"], row["tags"]) for row in rows] == [
        ("present", 71, day, ["AP"]),
        ("absent", None, day, []),
    ]


def test_a_survey_has_a_row_for_every_finding_of_a_glob(images: Path, tmp_path: Path, xflow) -> None:
    out = tmp_path / "out"
    assert xflow("batch", f"{images}/**/[bc].png", "--survey", "-o", out).status == 0
    rows = rows_of(out)
    assert [row["finding"] for row in rows] == [*FINDINGS, *FINDINGS]
    assert {row["finding"] for row in rows if row["status"] == "unsupported"} == set(FINDINGS) - {
        "opacity",
        "effusion",
        "cardiomegaly",
    }


def test_instructions_come_one_a_line_from_a_file(images: Path, tmp_path: Path, xflow) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("# two questions\nSegment the effusion in the left lung\n\nIs the heart enlarged?\n")
    assert xflow("batch", images / "sub" / "b.png", "-i", lines, "-o", tmp_path / "out").status == 0
    assert [(row["finding"], row["regions"]) for row in rows_of(tmp_path / "out")] == [
        ("effusion", ["left lung"]),
        ("cardiomegaly", ["heart"]),
    ]


@pytest.mark.parametrize(
    ("given", "arguments", "words"),
    [
        ("images", [], "--survey"),
        ("images", ["-i", "opacity", "--survey"], "--survey"),
        ("images", ["-i", "Segment the pneumothorax"], "pneumothorax"),
        ("images", ["-i", "Segment the edema"], "cannot answer edema"),
        ("images", ["-i", "twice.txt"], "Two lines ask for opacity"),
        ("images", ["-i", "opacity", "--device", "tpu"], "tpu"),
        ("images", ["-i", "opacity", "--workers", "0"], "--workers"),
        ("nowhere", ["-i", "opacity"], "does not exist"),
        ("empty", ["-i", "opacity"], "holds no image"),
        ("images/*.dcm", ["-i", "opacity"], "holds no image"),
        ("columns.csv", ["-i", "opacity"], "no column 'image'"),
        ("ragged.csv", ["-i", "opacity"], "2 fields"),
        ("broken.parquet", ["-i", "opacity"], "Parquet"),
        ("torn.parquet", ["-i", "opacity"], "Parquet"),
    ],
)
def test_a_wrong_call_is_one_line_and_leaves_nothing(
    given: str, arguments: list[str], words: str, images: Path, tmp_path: Path, xflow, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("twice.txt").write_text("opacity in the left lung\nopacity in the right lung\n")
    Path("columns.csv").write_text("file\na.png\n")
    Path("ragged.csv").write_text("image,age,sex\na.png,1\n")
    Path("broken.parquet").write_bytes(b"PAR1")
    pq.write_table(pa.table({"image": [f"{number}.png" for number in range(100)]}), "torn.parquet")
    whole = Path("torn.parquet").read_bytes()
    Path("torn.parquet").write_bytes(whole[:4] + bytes(200) + whole[204:])
    ended = xflow("batch", given, *arguments, "-o", "out")
    assert ended.status == 2
    assert ended.err.count("\n") == 1
    assert words in ended.err
    assert not Path("out").exists()


def test_without_pyarrow_there_is_a_sentence(images: Path, tmp_path: Path, xflow, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    ended = xflow("batch", images, "-i", "opacity", "-o", tmp_path / "out")
    assert ended.status == 2
    assert "pip install 'xflow-core[batch]'" in ended.err


def test_a_worker_that_cannot_start_ends_the_run_with_its_reason(
    images: Path, tmp_path: Path, xflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")  # the workers do not find the backend
    ended = xflow("batch", images, "-i", "opacity", "-o", tmp_path / "out")
    assert ended.status == 2
    assert "backend 'phantom'" in ended.err
    assert rows_of(tmp_path / "out") == []


def test_two_workers_and_one_give_the_same_rows(images: Path, tmp_path: Path, xflow) -> None:
    for workers in (1, 2):
        xflow("batch", images, "-i", "opacity", "-o", tmp_path / str(workers), "--workers", workers)
    one, two = (without_seconds(rows_of(tmp_path / name)) for name in ("1", "2"))
    assert one == two


def test_images_in_work_together_give_the_same_rows(images: Path, tmp_path: Path, xflow) -> None:
    for number in range(4):
        write_picture(images / f"more{number}.png", [(0.3, 0.4 + number / 50, 12.0)])
    for together in (1, 3):
        out = tmp_path / str(together)
        assert (
            xflow(
                "batch", images, "-i", "Segment the opacity", "-o", out, "--workers", 1, "--together", together
            ).status
            == 0
        )
    assert without_seconds(rows_of(tmp_path / "1")) == without_seconds(rows_of(tmp_path / "3"))


def test_of_images_in_work_together_only_the_one_that_ends_the_worker_is_a_failed_row(tmp_path: Path, xflow) -> None:
    behaviours = ["answers", "takes a second", "kills its process", "takes a second", "raises", "answers"]
    for number, behaviour in enumerate(behaviours):
        write_picture(tmp_path / "images" / f"{number}.png", [(0.3, 0.4 + number / 50, 12.0)], behaviour)
    ended = xflow(
        "batch",
        tmp_path / "images",
        "-i",
        "Segment the opacity",
        "-o",
        tmp_path / "out",
        "--workers",
        1,
        "--together",
        3,
    )
    assert ended.status == 4
    rows = rows_of(tmp_path / "out")
    assert [row["reason"] for row in rows] == [None, None, "worker", None, "engine", None]


def test_an_image_that_takes_too_long_among_others_is_a_row_with_that_reason(tmp_path: Path, xflow) -> None:
    behaviours = ["answers", "takes long", "answers", "answers"]
    for number, behaviour in enumerate(behaviours):
        write_picture(tmp_path / "images" / f"{number}.png", [(0.3, 0.4 + number / 50, 12.0)], behaviour)
    call = ("-i", "opacity", "--workers", 1, "--together", 2, "--image-minutes", 0.1)
    assert xflow("batch", tmp_path / "images", *call, "-o", tmp_path / "out").status == 4
    assert [row["reason"] for row in rows_of(tmp_path / "out")] == [None, "worker", None, None]
