"""Reports read by a Gemma3 on this machine: a tiny one, whose answers mean nothing but are always answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gemma import write_tiny_gemma

from training.curation.curate import curate, parser_of
from training.curation.medgemma_reports import MedGemmaParser
from training.curation.paper import read_settings
from training.curation.report_parsing import Parses, answer_plan, read_answer
from training.curation.sources.problems import Problems
from xflow_core.domain.errors import BundleError, CallError, EngineError
from xflow_core.domain.findings import FINDINGS
from xflow_core.policies.transcript import Choice, write

if TYPE_CHECKING:
    from conftest import Miniature

REPORTS = [f"FINDINGS: There is {word} effusion. No edema." for word in ("a", "no", "a large", "a small left")]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gemma(tmp_path_factory.mktemp("base"), sliding_window=4096)


@given(st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_every_answer_that_can_be_decoded_is_the_object_that_was_asked_for(random) -> None:  # type: ignore[no-untyped-def]
    plan, text = answer_plan(), ""
    step = next(plan)
    try:
        while True:
            said = step if isinstance(step, str) else random.choice(step.options)
            text += said
            step = plan.send("" if isinstance(step, str) else said)
            assert not isinstance(step, Choice) or len(set(step.options)) == len(step.options)
    except StopIteration:
        pass
    parse = read_answer("asked", text)
    assert parse.stated is not None, (text, parse.problem)
    wanted = {
        finding: tuple({_xflow(region) for region in sides.get(side, ())} for side in ("present", "absent"))
        for finding, sides in json.loads(text).items()
    }
    assert parse.stated == wanted
    assert list(json.loads(text)) == [finding for finding in json.loads(text) if finding in FINDINGS]


def _xflow(region: str) -> str:
    from training.curation.sources.regions import region_of

    return region if region == "chest" else str(region_of(region))


def test_nothing_stated_is_an_answer_too() -> None:
    assert "".join(write(answer_plan(), ["{}"])) == "{}"
    assert read_answer("asked", "{}").stated == {}


def test_medgemma_answers_every_report_and_shares_its_passes(base: Path, tmp_path: Path) -> None:
    together, alone = (MedGemmaParser.load(str(base), at_once, "cpu") for at_once in (4, 1))
    assert together.name == alone.name and together.name.startswith("medgemma/1 sha256:")
    kept = []
    for parser in (together, alone):
        path = tmp_path / f"{parser.at_once}.jsonl"
        with Parses(path, parser) as parses:
            found = list(parses.alongside(enumerate(REPORTS), lambda case: (f"s{case[0]}", case[1])))
        assert all(stated is not None for _, stated in found)
        kept.append([json.loads(line) for line in path.read_text().splitlines()])
    # One pass of the model takes what four reports would feed; what each is read as stays its own.
    assert kept[0] == kept[1]
    assert [row["study"] for row in kept[0]] == ["s0", "s1", "s2", "s3"]
    for row, report in zip(kept[0], REPORTS, strict=True):
        assert (
            row["prompt"].endswith(report.removeprefix("FINDINGS: ")) and read_answer("", row["raw"]).stated is not None
        )
    assert len({row["raw"] for row in kept[0]}) > 1
    assert together._gemma.work.passes < 0.6 * alone._gemma.work.passes
    assert together._gemma.work.decode_steps == alone._gemma.work.decode_steps > 4


def test_a_run_goes_on_without_asking_the_model_again(base: Path, tmp_path: Path) -> None:
    path = tmp_path / "parses.jsonl"
    for _ in range(2):
        parser = MedGemmaParser.load(str(base), 2, "cpu")
        with Parses(path, parser) as parses:
            list(parses.alongside(REPORTS[:2], lambda report: (report, report)))
    assert parser._gemma.work.passes == 0
    # Other weights are another parser: their answers are not taken over.
    other = MedGemmaParser.load(str(write_tiny_gemma(tmp_path / "other", seed=3, sliding_window=4096)), 1, "cpu")
    assert other.name != parser.name


def test_a_model_that_fails_is_no_verdict(base: Path, tmp_path: Path) -> None:
    parser = MedGemmaParser.load(str(base), 1, "cpu")
    parser._gemma.gemma.get_input_embeddings().weight.fill_(float("nan"))
    with (
        pytest.raises(EngineError, match="not finite"),
        Parses(tmp_path / "parses.jsonl", parser) as parses,
    ):
        list(parses.alongside(REPORTS, lambda report: (report, report)))
    assert (tmp_path / "parses.jsonl").read_bytes() == b""


def test_curation_names_the_parser_in_its_configuration(
    base: Path, drawn: Miniature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = read_settings()
    reports = replace(chosen.reports, parser="medgemma", model=base.name, at_once=4)
    monkeypatch.setenv("XFLOW_MODELS", str(base.parent))
    found = curate(drawn.sources, replace(chosen, reports=reports), Problems(), tmp_path / "parses.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "parses.jsonl").read_text().splitlines()]
    assert len(rows) > 5 and all(row["parser"].startswith("medgemma/1") and row["stated"] is not None for row in rows)
    # What a model of random weights says agrees with nothing much.
    assert found.admitted < sum(found.dropped.values())
    with pytest.raises(BundleError, match=r"reports.model is 'nowhere'.*XFLOW_MODELS"):
        parser_of(replace(reports, model="nowhere"))
    with pytest.raises(CallError, match="no language model"):
        parser_of(replace(reports, model="compact"))
