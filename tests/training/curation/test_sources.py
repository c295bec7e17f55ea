"""The readers: they read what is there, and name each dirty record once."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.curation.sources import json_stream
from training.curation.sources.chexlocalize import read_localized
from training.curation.sources.chexmask import box_of, decode, read_lung_boxes
from training.curation.sources.chexpercept import read_reviews
from training.curation.sources.cxas import read_lungs
from training.curation.sources.imagenome import SceneGraphs
from training.curation.sources.json_stream import members
from training.curation.sources.masks import read_mask
from training.curation.sources.mimic_cxr import check_image, read_sizes
from training.curation.sources.mimic_ils import read_studies
from training.curation.sources.problems import Problem, Problems
from training.curation.sources.regions import region_of
from training.curation.sources.reports import Reports, seen
from training.curation.synthetic.records import row_major_runs
from xflow_core.domain.errors import CallError, ValueRefused
from xflow_core.domain.findings import LUNGS
from xflow_core.domain.geometry import Box

if TYPE_CHECKING:
    from conftest import Miniature

PAIR_FLAWS = ("unknown_target", "unknown_location", "missing_field", "no_mask_path", "seg_contradicts")
STUDY_FLAWS = ("study_repeated", "subject_differs", "study_malformed")
TABLE_FLAWS = ("rle_overruns", "rle_odd", "low_quality", "size_differs")


def named(problems: Problems) -> Counter[tuple[str, str]]:
    return Counter((problem.kind, problem.record) for kept in problems.first.values() for problem in kept)


def test_each_flaw_of_mimic_ils_is_named_once_and_nothing_else_is(drawn: Miniature) -> None:
    problems = Problems()
    studies = {study.id: study for study in read_studies(drawn.sources.instructions, problems)}
    flaws = drawn.flaws
    expected = Counter((flaw["kind"], flaw["pair"]) for flaw in flaws if flaw["kind"] in PAIR_FLAWS)
    expected += Counter((flaw["kind"], flaw["study"]) for flaw in flaws if flaw["kind"] in STUDY_FLAWS)
    assert named(problems) == expected
    lost = {flaw["study"] for flaw in flaws if flaw["kind"] in ("subject_differs", "study_malformed")}
    assert set(studies) == {study["study"] for study in drawn.studies} - lost


def test_a_study_is_read_as_it_was_made(annotated: Miniature) -> None:
    truth = {study["study"]: study for study in annotated.studies}
    for study in read_studies(annotated.sources.instructions, Problems()):
        made = truth[study.id]
        assert (study.subject, study.dicom_id, study.split) == (made["subject"], made["dicom_id"], made["split"])
        if made["flaw"] is None:
            found = {pair.finding: set(pair.regions) for pair in study.pairs if pair.positive and pair.type == "global"}
            assert found == {finding: set(regions) for finding, regions in made["present"].items()}
            absent = {pair.finding for pair in study.pairs if not pair.positive}
            assert set(made["denied"]) <= absent and not absent & set(found)


def test_both_spellings_of_a_location_are_read(annotated: Miniature) -> None:
    text = annotated.sources.instructions.read_text()
    assert '"grounded_location"' in text and '"location"' in text
    assert region_of("Right lower zone lung") == region_of("right lung base") == "right lung base"
    assert region_of("left mid lung zone") == region_of("left mid zone lung") == "left mid zone lung"
    assert region_of("mediastinum") is None and region_of(7) is None


def test_each_flaw_of_chexpercept_is_named_once(annotated: Miniature) -> None:
    problems = Problems()
    reviews = read_reviews(annotated.sources.reviews, problems)
    flaws = [flaw for flaw in annotated.flaws if flaw["kind"] in ("review_answer", "review_zone")]
    assert Counter(kind for kind, _ in named(problems)) == Counter(flaw["kind"] for flaw in flaws)
    assert {record.split("_")[1] for _, record in named(problems)} == {flaw["study"] for flaw in flaws}
    truth = {study["study"]: study for study in annotated.studies}
    for review in reviews.usable:
        if review.study in truth:
            regions = truth[review.study]["present"].get(review.finding, [])
            assert review.present == bool(regions)
            assert review.zones == ({*()} if review.finding == "cardiomegaly" else set(regions))
    reviewed = {study["study"] for study in annotated.studies if study["reviewed"]}
    assert reviews.studies == reviewed | {"s99999999"}


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"pair_id": "s50000000_negative_9"}, "review_malformed"),
        ({"dicom_id": None}, "review_malformed"),
        ({"detection_qa": []}, "review_malformed"),
        ({"detection_qa": {"answer": "Yes"}}, "review_answer"),
    ],
)
def test_a_review_that_cannot_be_is_named(change: dict[str, Any], kind: str, tmp_path: Path) -> None:
    good = {"pair_id": "s50000000_negative_0", "dicom_id": "d", "detection_qa": {"answer": "No"}}
    path = tmp_path / "chexpercept.json"
    path.write_text(json.dumps({"edema_s50000000_negative_0": good | change, "nodule_s50000001_positive_0": good}))
    problems = Problems()
    reviews = read_reviews(path, problems)
    assert reviews.usable == () and reviews.studies == {"s50000000", "s50000001"}
    assert problems.counts == {kind: 1, "review_key": 1}


def test_a_finding_that_is_reviewed_twice_counts_once(tmp_path: Path) -> None:
    entries = {
        f"edema_{pair}": {"pair_id": pair, "dicom_id": "d", "detection_qa": {"answer": "No"}}
        for pair in ("s50000000_negative_0", "s50000000_negative_3")
    }
    path = tmp_path / "chexpercept.json"
    path.write_text(json.dumps(entries))
    problems = Problems()
    (review,) = read_reviews(path, problems).usable
    assert review.pair == "s50000000_negative_0" and problems.counts == {"review_repeated": 1}


def test_a_scene_graph_of_another_patient_or_a_broken_one_counts_as_missing(annotated: Miniature) -> None:
    problems = Problems()
    with SceneGraphs(annotated.sources.scene_graphs, problems) as graphs:
        for study in annotated.studies:
            graph = graphs.read(study["dicom_id"], study["subject"], study["study"])
            missing = study["flaw"] in ("scene_graph_missing", "scene_graph_broken", "scene_graph_patient")
            assert (graph is None) == missing
            if graph is not None and study["flaw"] is None:
                stated = {finding for finding, (yes, _) in graph.stated.items() if yes}
                assert stated == set(study["present"])
                x1, y1, x2, y2 = study["boxes"]["left lung"]
                assert np.allclose(graph.boxes["left lung"], (x1, y1, x2, y2), atol=1.6)
    assert {kind for kind, _ in named(problems)} == {"scene_graph_broken", "scene_graph_patient"}


def test_archives_are_read_packed_and_unpacked(annotated: Miniature, tmp_path: Path) -> None:
    with zipfile.ZipFile(annotated.sources.reports) as archive:
        archive.extractall(tmp_path / "mimic-cxr-reports")
    study = next(study for study in annotated.studies if study["flaw"] is None)
    texts = []
    for path in (
        annotated.sources.reports,
        tmp_path / "mimic-cxr-reports.zip",
        tmp_path / "mimic-cxr-reports" / "files",
    ):
        with Reports(path, Problems()) as reports:
            texts.append(reports.read(study["subject"], study["study"]))
    assert texts[0] is not None and texts[0] == texts[1] == texts[2]
    with pytest.raises(CallError, match="nor the folder"):
        Reports(tmp_path / "none.zip", Problems())
    (tmp_path / "half.zip").write_bytes(annotated.sources.reports.read_bytes()[:5000])
    with pytest.raises(CallError, match="no whole zip archive"):
        Reports(tmp_path / "half.zip", Problems())


def test_only_what_was_seen_and_concluded_is_read_of_a_report() -> None:
    report = " INDICATION:  Rule out pneumonia.\n\n FINDINGS: \n\n No effusion.\n\n IMPRESSION: \n\n Normal\n chest.\n"
    assert seen(report) == "No effusion. Normal chest."
    assert seen("Clear lungs.") == "Clear lungs."


def test_each_flaw_of_chexmask_is_named_once_and_boxes_are_the_lungs(drawn: Miniature) -> None:
    problems = Problems()
    sizes = read_sizes(drawn.sources.metadata, problems)
    boxes = {lungs.dicom_id: lungs.boxes for lungs in read_lung_boxes(drawn.sources.chexmask, problems, sizes)}
    kinds = (*TABLE_FLAWS, "metadata_repeated")
    assert named(problems) == Counter((flaw["kind"], flaw["dicom_id"]) for flaw in drawn.flaws if flaw["kind"] in kinds)
    for dicom_id, found in boxes.items():
        masks = read_lungs(drawn.sources.cxas, dicom_id, Problems(), sizes[dicom_id])
        assert masks == found  # CXAS and CheXmask were drawn from one contour


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_chexmasks_runs_go_along_the_rows_from_one(data: st.DataObject) -> None:
    size = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    bits = data.draw(st.lists(st.booleans(), min_size=size[0] * size[1], max_size=size[0] * size[1]))
    mask = np.array(bits).reshape(size)
    text = row_major_runs(mask)
    if not mask.any():
        with pytest.raises(ValueRefused, match="rle_empty"):
            decode(text, size)
        return
    assert np.array_equal(decode(text, size), mask)
    tight, box = Box.around(mask), box_of(text, size)
    # A run that goes on in the next row makes the box as wide as the image; a lung's never does.
    assert tight is not None and (box == tight or (box.x1, box.x2) == (0.0, 1.0))


@pytest.mark.parametrize(
    ("runs", "kind"), [("1 2 3", "rle_odd"), ("x 2", "rle_odd"), ("0 2", "rle_overruns"), ("99 3", "rle_overruns")]
)
def test_runs_that_cannot_be_are_refused_by_kind(runs: str, kind: str) -> None:
    with pytest.raises(ValueRefused, match=kind):
        decode(runs, (10, 10))


def test_a_mask_is_brought_to_the_radiographs_size_only_with_its_aspect_ratio(drawn: Miniature) -> None:
    problems = Problems()
    truth = {study["study"]: study for study in drawn.studies}
    usable = 0
    for study in read_studies(drawn.sources.instructions, Problems()):
        size = tuple(truth[study.id]["size"])
        for name in sorted({pair.mask for pair in study.pairs if pair.mask is not None}):
            mask = read_mask(drawn.sources.mimic_ils / name, size, problems)
            usable += mask is not None
            assert mask is None or (mask.shape == size and mask.dtype == bool and mask.any())
    expected = Counter(
        flaw["kind"] for flaw in drawn.flaws if flaw["kind"] in ("mask_missing", "mask_empty", "mask_aspect")
    )
    assert usable > 20 and problems.counts == expected


def test_a_radiograph_is_checked_without_decoding_it(drawn: Miniature) -> None:
    problems = Problems()
    sizes = read_sizes(drawn.sources.metadata, Problems())
    for study in read_studies(drawn.sources.instructions, Problems()):
        check_image(drawn.sources.images / study.image, sizes[study.dicom_id], problems)
    flaws = [flaw for flaw in drawn.flaws if flaw["kind"] in ("image_missing", "image_truncated")]
    assert named(problems) == Counter((flaw["kind"], flaw["dicom_id"]) for flaw in flaws)
    assert flaws


def test_chexlocalize_gives_six_findings(drawn: Miniature) -> None:
    problems = Problems()
    read = list(read_localized(drawn.sources.chexlocalize_masks, problems))
    assert read and not problems.counts
    for entry in read:
        assert (drawn.sources.chexlocalize / "CheXpert-v1.0" / "valid" / entry.image).is_file()
        assert "pneumonia" not in entry.counts and len(entry.counts) == 6
    masks = [entry.mask(finding) for entry in read for finding in entry.counts]
    assert any(mask is not None for mask in masks) and any(mask is None for mask in masks)


# The stream -----------------------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), values, max_size=6), st.integers(1, 40), st.sampled_from([None, 1]))
@settings(max_examples=120, deadline=None)
def test_members_are_what_json_reads_whatever_the_window(data: dict[str, Any], chunk: int, indent: int | None) -> None:
    import tempfile

    before = json_stream._CHUNK
    json_stream._CHUNK = chunk
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "data.json"
            path.write_text(json.dumps(data, indent=indent, ensure_ascii=False), encoding="utf-8")
            assert [(key, value) for (key,), value in members(path)] == list(data.items())
            path.write_text(json.dumps({"a": data, "b": {}}, indent=indent), encoding="utf-8")
            assert [(keys, value) for keys, value in members(path, 2)] == [
                (("a", key), value) for key, value in data.items()
            ]
    finally:
        json_stream._CHUNK = before


def test_a_key_that_stands_twice_is_given_twice(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text('{"a": 1, "a": 2}')
    assert list(members(path)) == [(("a",), 1), (("a",), 2)]


def test_a_broken_download_is_said_with_its_place(annotated: Miniature, tmp_path: Path) -> None:
    whole = annotated.sources.instructions.read_bytes()
    path = tmp_path / "half.json"
    path.write_bytes(whole[: len(whole) // 2])
    read = []
    with pytest.raises(CallError, match=r"half\.json is damaged .* download it again"):
        read.extend(study.id for study in read_studies(path, Problems()))
    # What stands before the break is read first.
    path.write_bytes(whole[: len(whole) // 2])
    stream = read_studies(path, Problems())
    assert next(stream).id.startswith("s")


@pytest.mark.parametrize("text", ["[]", "{", '{"a" 1}', '{"a": 1} x', '{"a": tru}', "", '{"a": 1,}'])
def test_what_is_no_object_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(text)
    with pytest.raises(CallError, match=r"data\.json"):
        list(members(path))


@pytest.mark.parametrize(
    "record",
    [None, 3, [], {}, {"instruction_answer_pairs": []}, {"instruction_answer_pairs": {"positive_pairs": 3}}, "text"],
)
def test_no_record_of_mimic_ils_crashes_the_reader(record: Any, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"train": {"s50000000": record}, "extra": {"s50000001": record}}))
    problems = Problems()
    assert list(read_studies(path, problems)) == []
    assert problems.counts["split_unknown"] == 1 and sum(problems.counts.values()) == 2


@given(values)
@settings(max_examples=80, deadline=None)
def test_no_pair_crashes_the_reader(entry: Any) -> None:
    import tempfile

    record = {
        "subject_id": "p10000000",
        "dicom_id": "d",
        "image_path": "p10/p10000000/s50000000/d.jpg",
        "instruction_answer_pairs": {"positive_pairs": [entry], "negative_pairs": [entry]},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.json"
        path.write_text(json.dumps({"train": {"s50000000": record}}))
        problems = Problems()
        (study,) = read_studies(path, problems)
        assert study.pairs == () and sum(problems.counts.values()) == 2


def test_problems_are_written_line_by_line_and_summed_up(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    with Problems(path) as problems:
        for number in range(50):
            problems.add("mask_empty", "sets/mask.png", f"m{number}")
        assert not path.exists()
    assert len(path.read_text().splitlines()) == problems.counts["mask_empty"] == 50
    assert len(problems.first["mask_empty"]) < 50
    assert problems.lines()[0].startswith("50 x mask_empty")
    with pytest.raises(ValueError, match="no kind"):
        Problem("odd", "path", "record")


def test_lungs_that_cannot_be_had_are_named(drawn: Miniature) -> None:
    problems = Problems()
    assert read_lungs(drawn.sources.cxas, "none", problems) is None
    assert named(problems) == Counter([("lungs_missing", "none")])
    assert set(LUNGS) == {"right lung", "left lung"}
