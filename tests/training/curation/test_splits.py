"""The splits: by patient, greedily by what is scarce, and proven disjoint; the tables; the check before a run."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
import yaml

from training.__main__ import main
from training.curation.agreement import Agreed
from training.curation.counts import tables
from training.curation.curate import curate, progress
from training.curation.division import EVAL, RL, SFT, VAL, Radiograph, check_disjoint, divide, strata_of
from training.curation.paper import PAPER, SplitSettings, read_settings
from training.curation.questions import Question, questions_of
from training.curation.sources.problems import Problems
from training.curation.verdicts import verdicts_of
from xflow_core.domain.errors import CallError, ValueRefused
from xflow_core.domain.findings import CHEST, FINDINGS, LEVELS
from xflow_core.domain.instruction import parse_instruction

if TYPE_CHECKING:
    from conftest import Miniature

SETTINGS = SplitSettings(rl_share=0.7, hold_out="radiograph", seed=0)


def agreed(study: int, subject: int, finding: str, *zones: str) -> Agreed:
    verdicts = verdicts_of(finding, zones, () if zones else {CHEST})
    return Agreed(f"s{study}", f"p{subject}", f"d{study}", finding, None, frozenset(zones), verdicts)


def many(seed: int = 0) -> list[Agreed]:
    """About the paper's set: 1,856 radiographs of 1,526 patients, with few unilateral pairs of the rarer findings."""
    random, made, subject = Random(seed), [], 0
    while len({entry.study for entry in made}) < 1856:
        subject += 1
        for _ in range(random.choice((1, 1, 1, 1, 1, 2, 3))):
            study = len({entry.study for entry in made})
            finding = random.choices(FINDINGS[1:], (1, 4, 5, 3, 2, 4))[0]
            one = random.random() < 0.1
            zones = random.choice(((), ("left lung base",) if one else ("left lung base", "right lung base")))
            made.append(agreed(study, subject, finding, *zones))
    return made


def test_every_stratum_is_divided_seventy_to_thirty() -> None:
    entries = many()
    sides = divide(entries, SETTINGS)
    held = {side: strata_of([entry for entry in entries if sides[entry.subject] == side]) for side in (RL, EVAL)}
    total = strata_of(entries)
    assert len(total) > 15
    for stratum, count in total.items():
        assert abs(held[RL][stratum] - 0.7 * count) <= max(1.5, 0.03 * count), stratum
    assert held[RL]["radiographs"] + held[EVAL]["radiographs"] == 1856


def test_scarce_strata_fare_better_than_under_a_random_division() -> None:
    entries = many(1)
    total = strata_of(entries)
    scarce = [stratum for stratum in total if "unilateral" in stratum]

    def worst(sides: dict[str, str]) -> float:
        held = strata_of([entry for entry in entries if sides[entry.subject] == RL])
        return max(abs(held[stratum] / total[stratum] - 0.7) for stratum in scarce)

    random = Random(0)
    drawn = [worst({entry.subject: RL if random.random() < 0.7 else EVAL for entry in entries}) for _ in range(20)]
    assert worst(divide(entries, SETTINGS)) <= min(drawn) < sum(drawn) / len(drawn) / 2


def test_the_division_depends_on_the_seed_alone() -> None:
    entries = many()
    again = entries.copy()
    Random(5).shuffle(again)
    assert divide(entries, SETTINGS) == divide(again, SETTINGS)
    assert divide(entries, SETTINGS) != divide(entries, replace(SETTINGS, seed=1))


def radiograph(study: int, subject: int, split: str) -> Radiograph:
    return Radiograph(f"s{study}", f"p{subject}", f"d{study}", f"d{study}.jpg", split)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([radiograph(1, 1, RL), radiograph(2, 1, EVAL)], "patient p1 is in eval and rl"),
        ([radiograph(1, 1, SFT), radiograph(1, 1, VAL)], "study s1 is in sft and in sft_val"),
        ([radiograph(1, 1, SFT), radiograph(2, 1, VAL)], "patient p1 is in sft and sft_val"),
        ([radiograph(1, 1, VAL), radiograph(2, 1, EVAL)], "patient p1 is in eval and sft_val"),
        ([radiograph(1, 1, SFT), replace(radiograph(2, 2, RL), dicom_id="d1")], "radiograph d1 is in sft and in rl"),
        ([radiograph(1, 1, SFT), radiograph(2, 1, RL), radiograph(3, 1, EVAL)], "patient p1"),
        ([radiograph(1, 1, "train")], "no split"),
    ],
)
def test_splits_that_share_what_they_must_not_are_refused(rows: list[Radiograph], words: str) -> None:
    with pytest.raises(ValueRefused, match=words):
        check_disjoint(rows, "radiograph")


def test_a_patient_in_training_and_evaluation_is_counted_or_refused() -> None:
    rows = [radiograph(1, 1, SFT), radiograph(2, 1, EVAL), radiograph(3, 3, RL)]
    assert check_disjoint(rows, "radiograph") == {EVAL: 1}
    with pytest.raises(ValueRefused, match="patient p1"):
        check_disjoint(rows, "patient")


@pytest.mark.parametrize("hold_out", ["radiograph", "patient"])
def test_the_miniatures_splits(annotated: Miniature, tmp_path: Path, hold_out: str) -> None:
    settings = read_settings()
    settings = replace(settings, splits=replace(settings.splits, hold_out=hold_out))
    curated = curate(annotated.sources, settings, Problems(), tmp_path / "parses.jsonl")
    truth = {study["study"]: study for study in annotated.studies}
    reviewed = {name for name, study in truth.items() if study["reviewed"]}
    patients = {truth[name]["subject"] for name in reviewed}
    by_split = {
        split: {entry.study for entry in curated.radiographs if entry.split == split} for split in (SFT, VAL, RL, EVAL)
    }
    unreadable = {"study_malformed", "subject_differs"}
    train = {name for name, study in truth.items() if study["split"] == "train" and study["flaw"] not in unreadable}
    expected = train - reviewed
    if hold_out == "patient":
        expected = {name for name in expected if truth[name]["subject"] not in patients}
        assert not curated.shared
    else:
        assert curated.shared[EVAL] > 0
    assert by_split[SFT] == expected
    assert all(truth[name]["split"] == "val" for name in by_split[VAL])
    assert by_split[RL] | by_split[EVAL] <= reviewed and not by_split[RL] & by_split[EVAL]
    share = len(by_split[RL]) / len(by_split[RL] | by_split[EVAL])
    assert share == pytest.approx(0.7, abs=0.02)


# Questions and tables --------------------------------------------------------------------------------------------


def test_a_unilateral_finding_is_asked_at_three_levels() -> None:
    asked = list(questions_of(agreed(1, 1, "effusion", "left mid zone lung", "left lung base")))
    positive = [question.instruction for question in asked if question.present]
    assert positive == [
        "Segment the effusion.",
        "Segment the effusion in the left lung.",
        "Segment the effusion in the left mid zone lung and left lung base.",
    ]
    assert Counter(question.level for question in asked if not question.present) == {"lung": 1, "zone": 4}


def test_zones_are_asked_only_when_the_sources_agree_on_all_that_the_mask_shows() -> None:
    entry = agreed(1, 1, "effusion", "left mid zone lung", "left lung base")
    verdicts = {region: present for region, present in entry.verdicts.items() if region != "left lung base"}
    asked = questions_of(replace(entry, verdicts=verdicts))
    assert not [question for question in asked if question.level == "zone" and question.present]


def test_cardiomegaly_is_asked_at_the_chest_alone() -> None:
    entry = Agreed("s1", "p1", "d1", "cardiomegaly", None, frozenset(), {"heart": True})
    assert list(questions_of(entry)) == [Question("s1", "cardiomegaly", ("heart",), "chest", True)]


def test_xflow_reads_its_own_questions() -> None:
    for finding in FINDINGS[1:]:
        for zones in (("left mid zone lung", "left lung base"), ("right upper zone lung",)):
            for question in questions_of(agreed(1, 1, finding, *zones)):
                (read,) = parse_instruction(question.instruction)
                assert (read.finding, read.regions, read.level) == (finding, question.regions, question.level)


def test_the_papers_tables_are_consistent() -> None:
    settings = read_settings()
    five, eight = settings.table_5, settings.table_8
    assert five.mimic_ils_train - five.chexpercept == five.sft_train
    assert five.rl + five.eval == five.agreed
    assert five.rl / five.agreed == pytest.approx(settings.splits.rl_share, abs=0.002)
    totals = {
        level: tuple(sum(levels.get(level, (0, 0))[side] for levels in eight.values()) for side in (0, 1))
        for level in LEVELS
    }
    assert totals == {"chest": (382, 444), "lung": (429, 1050), "zone": (330, 3286)}


def test_the_tables_count_what_the_miniature_holds(annotated: Miniature, tmp_path: Path) -> None:
    curated = curate(annotated.sources, read_settings(), Problems(), tmp_path / "parses.jsonl")
    here = tables(curated)
    five = here["table_5"]
    assert five["rl"] + five["eval"] == five["agreed"] <= five["chexpercept"]
    assert five["sft_train"] == five["mimic_ils_train"] - five["chexpercept"]
    questions = curated.questions(EVAL)
    assert sum(sum(sides) for levels in here["table_8"].values() for sides in levels.values()) == len(questions)
    assert here["table_8"]["cardiomegaly"]["lung"] == [0, 0]
    assert here["table_6"]["rev_rl"] is None


def test_counts_prints_the_papers_numbers_beside(annotated: Miniature, capsys: pytest.CaptureFixture[str]) -> None:
    main(["counts", "--data", str(annotated.root)])
    told = capsys.readouterr().out
    for words in (
        "185,488",
        "1,031,506",
        "(382/444)",
        "Patients that D_SFT shares",
        "x no report",
        "Not for clinical use",
    ):
        assert words in told
    main(["counts", "--data", str(annotated.root), "--json"])
    assert set(json.loads(capsys.readouterr().out)) == {"table_5", "table_6", "table_8"}


def test_splits_are_written_alike_twice_and_say_what_they_hold(annotated: Miniature, tmp_path: Path) -> None:
    for name in ("one", "two"):
        main(["splits", "--data", str(annotated.root), "--out", str(tmp_path / name)])
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    assert manifest == json.loads((tmp_path / "two" / "manifest.json").read_text()) | {"settings": manifest["settings"]}
    radiographs = pq.read_table(tmp_path / "one" / "radiographs.parquet").to_pylist()
    assert Counter(row["split"] for row in radiographs)[RL] == manifest["tables"]["table_5"]["rl"]
    questions = pq.read_table(tmp_path / "one" / "questions.parquet").to_pylist()
    assert len({row["id"] for row in questions}) == len(questions)
    assert all((row["mask"] is not None) == row["present"] for row in questions)
    assert manifest["schema"] == "xflow.splits/2" and manifest["settings"]["splits"]["seed"] == 0
    with pytest.raises(SystemExit) as stopped:
        main(["splits", "--data", str(annotated.root), "--out", str(tmp_path / "one")])
    assert stopped.value.code == 2


# Configuration and check -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"splits": {"rl_share": 0.7, "hold_out": "study", "seed": 0}}, "splits.hold_out is 'study'"),
        ({"splits": {"rl_share": 1.5, "hold_out": "patient", "seed": 0}}, "rl_share is 1.5"),
        ({"splits": {"rl_share": 0.5, "seed": 0}}, "splits.hold_out is missing"),
        ({"extra": 1}, "extra is unknown"),
        ({"table_8": {"nodule": {"chest": [1, 2]}}}, "table_8.nodule"),
        ({"lungs": 3}, "lungs should hold"),
    ],
)
def test_a_wrong_configuration_is_refused_by_key(change: dict[str, object], words: str, tmp_path: Path) -> None:
    data = yaml.safe_load(PAPER.read_text()) | change
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(CallError, match=words):
        read_settings(path)


def test_check_passes_what_is_whole(annotated: Miniature, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "--data", str(annotated.root), "--annotations-only"])
    told = capsys.readouterr().out
    assert "is ready" in told and "x low_quality" in told


def test_check_names_each_file_that_must_be_put_right(
    drawn: Miniature, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["check", "--data", str(drawn.root), "--images", "all", "--report", str(tmp_path / "problems.jsonl")])
    assert stopped.value.code == 2
    written = [json.loads(line) for line in (tmp_path / "problems.jsonl").read_text().splitlines()]
    named = {(row["kind"], row["record"]) for row in written}
    for flaw in drawn.flaws:
        if flaw["kind"] in ("image_missing", "image_truncated"):
            assert (flaw["kind"], flaw["dicom_id"]) in named
    assert {row["kind"] for row in written} >= {"mask_missing", "mask_empty", "mask_aspect", "study_repeated"}
    assert "must be put right" in capsys.readouterr().err


def test_check_names_what_is_missing_and_where_to_get_it(
    annotated: Miniature, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root = tmp_path / "sets"
    shutil.copytree(annotated.root, root)
    (root / "mimic-cxr" / "2.1.0" / "mimic-cxr-reports.zip").unlink()
    whole = (root / "mimic-cxr-ext-ils" / "1.0.0" / "mimic_ils_instruction_answer.json").read_bytes()
    (root / "mimic-cxr-ext-ils" / "1.0.0" / "mimic_ils_instruction_answer.json").write_bytes(whole[:-5000])
    with pytest.raises(SystemExit):
        main(["check", "--data", str(root), "--annotations-only"])
    told = capsys.readouterr().out
    assert "MISSING  reports" in told and "mimic-cxr-reports.zip" in told and "credentialed" in told
    assert "DAMAGED  MIMIC-ILS" in told and "broke off" in told


def test_check_asks_for_what_the_configuration_names(
    annotated: Miniature, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = yaml.safe_load(PAPER.read_text())
    data["reports"] |= {"parser": "medgemma", "model": "nowhere"}
    data["lungs"]["source"] = "run"
    config = tmp_path / "chosen.yaml"
    config.write_text(yaml.safe_dump(data))
    with pytest.raises(SystemExit):
        main(["check", "--data", str(annotated.root), "--annotations-only", "--config", str(config)])
    told = capsys.readouterr().out
    assert "MISSING  MedGemma, for the reports: reports.model is 'nowhere'" in told
    assert "-  lung boxes" in told and "python -m training lungs" in told


@pytest.mark.parametrize("command", ["check", "counts", "splits"])
def test_a_wrong_root_is_said_at_once(command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "holiday").mkdir()
    more = ["--out", str(tmp_path / "out")] if command == "splits" else []
    with pytest.raises(SystemExit) as stopped:
        main([command, "--data", str(tmp_path), *more])
    assert stopped.value.code == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and str(tmp_path) in told[0]


def test_how_far_a_stage_is_shows_as_a_bar_on_a_terminal_and_as_lines_in_a_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert list(progress(range(3), "Agreement")) == [0, 1, 2]
    assert not caplog.messages and not capsys.readouterr().err  # a short stage says nothing
    assert list(progress(iter("abc"), "Agreement", total=3, every=0)) == ["a", "b", "c"]
    assert [message.split(",")[0] for message in caplog.messages] == [f"Agreement: {k} of 3" for k in range(3)]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert list(progress(range(3), "Agreement")) == [0, 1, 2]
    shown = capsys.readouterr().err
    assert "Agreement" in shown and "3/3" in shown
