"""What a source may hold and no reader may fall over: every set, mutated; every flaw a named line, or a named file."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tempfile
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from training.__main__ import main
from training.curation.counts import rows_of
from training.curation.sources.chexlocalize import read_localized
from training.curation.sources.chexmask import read_lung_boxes
from training.curation.sources.chexpercept import read_reviews
from training.curation.sources.imagenome import SceneGraphs
from training.curation.sources.json_stream import members
from training.curation.sources.mimic_cxr import read_marks, read_sizes
from training.curation.sources.mimic_ils import read_studies
from training.curation.sources.problems import Problems
from training.curation.sources.reports import Reports
from xflow_core.domain import rle
from xflow_core.domain.errors import CallError

if TYPE_CHECKING:
    from conftest import Miniature

SUBJECT, STUDY, DICOM = "p10000000", "s50000000", "0-1-2-3-4"
IMAGE = f"p10/{SUBJECT}/{STUDY}/{DICOM}.jpg"
POSITIVE = {
    "pair_id": f"{STUDY}_positive_0", "instruction": "Segment the edema.", "answer": "[SEG]", "type": "global",
    "target": "edema", "location": ["left lung"], "sent_idx": "1", "seg": True, "seg_mask_path": "lesion_mask/m.png",
}  # fmt: skip
RECORD = {
    "subject_id": SUBJECT, "dicom_id": DICOM, "image_path": IMAGE,
    "instruction_answer_pairs": {"positive_pairs": [POSITIVE], "negative_pairs": []},
}  # fmt: skip
REVIEW = {
    "pair_id": f"{STUDY}_positive_0", "dicom_id": DICOM, "detection_qa": {"answer": "Yes"},
    "attribute_extraction_qa": {"distribution": {"answer_zones": ["left lower zone lung"]}},
}  # fmt: skip
GRAPH = {
    "image_id": DICOM, "patient_id": 10000000, "study_id": 50000000,
    "objects": [{"bbox_name": "left lung", "original_x1": 1, "original_y1": 2, "original_x2": 3, "original_y2": 4}],
    "attributes": [{"bbox_name": "left lung", "attributes": [["anatomicalfinding|yes|lung opacity"]]}],
}  # fmt: skip
LOCALIZED = {
    task: {"size": [4, 4], "counts": rle.encode(np.zeros((4, 4), bool))}
    for task in ("Cardiomegaly", "Airspace Opacity", "Edema", "Consolidation", "Atelectasis", "Pleural Effusion")
}
CHEXMASK = ("dicom_id", "Dice RCA (Mean)", "Right Lung", "Left Lung", "Height", "Width")
METADATA = ("dicom_id", "subject_id", "study_id", "Rows", "Columns")

strange = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), st.just([]), st.just({}), st.just(["x"]),
    st.just({"x": 1}), st.just(float("inf")), st.just("a\x00b"), st.just([[]]), st.just(10**30),
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a value can be put into a record."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, held in inner for place in places(held, (*path, key)))]


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = changed(value[place[0]], place[1:], new)
    return copy


def mutated(record: Any) -> st.SearchStrategy[Any]:
    return st.tuples(st.sampled_from(places(record)), strange).map(lambda both: changed(record, *both))


def _json_set(key: str, wrap: Callable[[Any], Any], read: Callable[[Path, Problems], Any]) -> Any:
    def check(record: Any) -> tuple[list[Any], Problems]:
        with tempfile.TemporaryDirectory() as folder:
            path, problems = Path(folder) / "set.json", Problems()
            path.write_text(json.dumps({key: wrap(record)}))
            return list(read(path, problems)), problems

    return check


JSON_SETS = {
    "MIMIC-ILS": (RECORD, _json_set("train", lambda record: {STUDY: record}, read_studies)),
    "CheXpercept": (
        REVIEW,
        _json_set(f"edema_{STUDY}_positive_0", lambda record: record, lambda p, q: read_reviews(p, q).usable),
    ),
    "CheXlocalize": (LOCALIZED, _json_set("patient1_study1_view1_frontal", lambda record: record, read_localized)),
}


@pytest.mark.parametrize("name", JSON_SETS)
@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_record_is_read_or_named(name: str, data: st.DataObject) -> None:
    record, check = JSON_SETS[name]
    read, problems = check(record)
    assert len(read) == 1 and not problems.counts
    read, problems = check(data.draw(mutated(record)))
    assert read or sum(problems.counts.values()) == 1


@given(mutated(GRAPH))
@settings(max_examples=60, deadline=None)
def test_a_scene_graph_is_read_or_named(graph: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, problems = Path(folder) / "scene_graph.zip", Problems()
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"scene_graph/{DICOM}_SceneGraph.json", json.dumps(graph))
        with SceneGraphs(path, problems) as graphs:
            read = graphs.read(DICOM, SUBJECT, STUDY)
    assert read is not None or sum(problems.counts.values()) == 1


cells = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["inf", "nan", "-1", "0", "1e9", "1 2 3", "5 1", "9" * 30, f"2 {2**63 - 1}", ""]),
)


def table(columns: tuple[str, ...], *rows: list[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([columns, *rows])
    return text.getvalue()


@given(st.integers(0, 5), cells)
@settings(max_examples=80, deadline=None)
def test_a_line_of_a_table_is_read_or_named(place: int, cell: str) -> None:
    lungs, sizes = [DICOM, "0.9", "1 3", "8 2", "4", "4"], [DICOM, "10000000", "50000000", "4", "4"]
    with tempfile.TemporaryDirectory() as folder:
        path, problems = Path(folder) / "table.csv", Problems()
        path.write_bytes(table(CHEXMASK, [*lungs[:place], cell, *lungs[place + 1 :]]).encode("utf-8", "replace"))
        read = list(read_lung_boxes(path, problems))
        assert len(read) + sum(problems.counts.values()) == 1
        problems = Problems()
        packed = gzip.compress(table(METADATA, [*sizes[:place], cell, *sizes[place + 1 :]]).encode("utf-8", "replace"))
        path.with_suffix(".gz").write_bytes(packed)
        if place < 5:
            assert len(read_sizes(path.with_suffix(".gz"), problems)) + sum(problems.counts.values()) == 1


def test_bytes_that_are_no_text_spoil_their_line_alone(tmp_path: Path) -> None:
    rows = table(CHEXMASK, ["a", "0.9", "1 3", "8 2", "4", "4"], ["b", "0.9", "1 3", "XX", "4", "4"])
    (tmp_path / "table.csv").write_bytes(rows.encode().replace(b"XX", b"\xff\xfe"))
    problems = Problems()
    assert [lungs.dicom_id for lungs in read_lung_boxes(tmp_path / "table.csv", problems)] == ["a"]
    assert problems.counts == {"rle_odd": 1}


@pytest.mark.parametrize("cut", [100, -20])
def test_a_packed_table_that_is_damaged_is_named(cut: int, tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(table(METADATA, *[[str(k), "1", "2", "3", "4"] for k in range(300)]).encode()))
    path = tmp_path / "metadata.csv.gz"
    path.write_bytes(packed[:cut])
    with pytest.raises(CallError, match=r"metadata\.csv\.gz cannot be read to its end"):
        read_sizes(path, Problems())
    packed[len(packed) // 2] ^= 255
    path.write_bytes(packed)
    with pytest.raises(CallError, match=r"metadata\.csv\.gz cannot be read to its end"):
        read_marks(path)


def test_what_is_damaged_inside_an_archive_counts_as_missing_and_is_named(annotated: Miniature, tmp_path: Path) -> None:
    study = next(study for study in annotated.studies if study["flaw"] is None)
    data = bytearray(annotated.sources.reports.read_bytes())
    name = f"files/{study['subject'][:3]}/{study['subject']}/{study['study']}.txt".encode()
    start = data.index(name) + len(name)
    data[start + 4 : start + 40] = bytes(36)
    (tmp_path / "reports.zip").write_bytes(data)
    problems = Problems()
    with Reports(tmp_path / "reports.zip", problems) as reports:
        assert reports.read(study["subject"], study["study"]) is None
    assert problems.counts == {"report_broken": 1}


@pytest.mark.parametrize("text", ['{"a": ' + "[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_json_that_python_cannot_hold_is_damaged(text: str, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(text)
    with pytest.raises(CallError, match=r"data\.json is damaged"):
        list(members(path))


# What stands twice, or for somebody else -------------------------------------------------------------------------


def read(studies: dict[str, Any], tmp_path: Path, known: set[int] | None = None) -> tuple[list[Any], Problems]:
    path, problems = tmp_path / "ils.json", Problems()
    path.write_text(json.dumps({"train": studies}))
    return list(read_studies(path, problems, known)), problems


def test_a_radiograph_in_two_studies_counts_for_the_first(tmp_path: Path) -> None:
    other = RECORD | {"image_path": f"p10/{SUBJECT}/s50000001/{DICOM}.jpg"}
    other["instruction_answer_pairs"] = {"positive_pairs": [], "negative_pairs": []}
    studies, problems = read({STUDY: RECORD, "s50000001": other}, tmp_path)
    assert [study.id for study in studies] == [STUDY] and problems.counts == {"radiograph_repeated": 1}


def test_a_pair_that_stands_twice_counts_once(tmp_path: Path) -> None:
    pairs = {"positive_pairs": [POSITIVE, POSITIVE | {"target": "effusion"}], "negative_pairs": []}
    studies, problems = read({STUDY: RECORD | {"instruction_answer_pairs": pairs}}, tmp_path)
    assert [pair.finding for pair in studies[0].pairs] == ["edema"] and problems.counts == {"pair_repeated": 1}


def test_a_line_of_chexmask_that_stands_twice_counts_once(tmp_path: Path) -> None:
    lungs = [["a", "0.9", runs, "8 2", "4", "4"] for runs in ("1 3", "5 3")]
    (tmp_path / "table.csv").write_text(table(CHEXMASK, *lungs))
    problems = Problems()
    (kept,) = read_lung_boxes(tmp_path / "table.csv", problems)
    assert kept.boxes["right lung"].y1 == 0 and problems.counts == {"row_repeated": 1}


def test_the_older_spelling_of_a_location_gives_way_where_it_is_empty(tmp_path: Path) -> None:
    pair = POSITIVE | {"grounded_location": None}
    record = RECORD | {"instruction_answer_pairs": {"positive_pairs": [pair], "negative_pairs": []}}
    studies, problems = read({STUDY: record}, tmp_path)
    assert studies[0].pairs[0].regions == ("left lung",) and not problems.counts


@pytest.mark.parametrize("row", [[DICOM, "10000009", "50000000"], [DICOM, "10000000", "50000009"], []])
def test_a_study_that_the_metadata_gives_to_another_patient_is_left_out(row: list[str], tmp_path: Path) -> None:
    path = tmp_path / "metadata.csv.gz"
    good = [DICOM, "10000000", "50000000", "4", "4"]
    path.write_bytes(gzip.compress(table(METADATA, good).encode()))
    assert len(read({STUDY: RECORD}, tmp_path, read_marks(path))[0]) == 1
    path.write_bytes(gzip.compress(table(METADATA, [*row, "4", "4"] if row else ["other", *good[1:]]).encode()))
    studies, problems = read({STUDY: RECORD}, tmp_path, read_marks(path))
    assert studies == [] and problems.counts == {"metadata_differs": 1}


def test_reading_does_not_take_more_memory_for_more_studies(tmp_path: Path) -> None:
    path, peaks = tmp_path / "ils.json", []
    pairs = {"positive_pairs": [POSITIVE | {"answer": "x" * 3000}], "negative_pairs": []}
    for count in (2000, 6000):
        with open(path, "w") as file:
            file.write('{"train": {')
            for number in range(count):
                study, dicom_id = f"s{50_000_000 + number}", f"d-{number}"
                record = RECORD | {"dicom_id": dicom_id, "image_path": f"p10/{SUBJECT}/{study}/{dicom_id}.jpg"}
                record["instruction_answer_pairs"] = json.loads(json.dumps(pairs).replace(STUDY, study))
                file.write(f'{", " if number else ""}"{study}": {json.dumps(record)}')
            file.write("}}")
        tracemalloc.start()
        assert sum(1 for _ in read_studies(path, Problems())) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # A window of the file is held, and a number for each study and each radiograph seen.
    assert peaks[1] < 1.4 * peaks[0] < path.stat().st_size / 2


# Splits, and the tables ------------------------------------------------------------------------------------------


def test_a_patient_in_two_splits_stops_the_run_before_anything_is_written(
    annotated: Miniature, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "sets"
    root.mkdir()
    for entry in annotated.root.iterdir():
        if entry.name != "mimic-cxr-ext-ils":
            (root / entry.name).symlink_to(entry)
    data = json.loads(annotated.sources.instructions.read_text())
    subjects = Counter(study["subject_id"] for study in data["train"].values() if isinstance(study, dict))
    several = next(subject for subject, count in subjects.items() if count > 1)
    moved = next(name for name, study in data["train"].items() if several in str(study))
    data["val"][moved] = data["train"].pop(moved)
    (root / "mimic-cxr-ext-ils" / "1.0.0").mkdir(parents=True)
    (root / "mimic-cxr-ext-ils" / "1.0.0" / "mimic_ils_instruction_answer.json").write_text(json.dumps(data))
    with pytest.raises(SystemExit) as stopped:
        main(["splits", "--data", str(root), "--out", str(tmp_path / "splits")])
    assert stopped.value.code == 2
    assert "The splits are not disjoint: patient p" in capsys.readouterr().err
    written = {path.name for path in (tmp_path / "splits").iterdir()}
    assert not written & {"manifest.json", "radiographs.parquet", "questions.parquet", "asked-sft.parquet"}


def test_counts_shows_the_revision_policys_examples_beside_the_papers(
    annotated: Miniature, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {split: {"rows": rows} for split, rows in (("sft", 1234), ("sft_val", 56), ("rl", 780))}
    (tmp_path / "manifest.json").write_text(json.dumps({"counts": counts}))
    main(["counts", "--data", str(annotated.root), "--trajectories", str(tmp_path)])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in (
        "pi_rev SFT, train (trajectories) 1,234 469,011",
        "pi_rev SFT, val (trajectories) 56 4,423",
        "pi_rev RL (starting states) 780 58,320",
    ):
        assert line in lines
    with pytest.raises(CallError, match="no finished trajectories"):
        rows_of(tmp_path / "none")


def test_splits_whose_files_were_changed_are_refused(
    annotated: Miniature, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "splits"
    main(["splits", "--data", str(annotated.root), "--out", str(out)])
    (out / "asked-rl.parquet").write_bytes((out / "asked-sft_val.parquet").read_bytes())
    with pytest.raises(SystemExit):
        main([
            "instructions", "--data", str(annotated.root), "--splits", str(out), "--out", str(tmp_path / "made"),
            "--annotations-only",
        ])  # fmt: skip
    assert "asked-rl.parquet is not the file that the splits' manifest names" in capsys.readouterr().err
