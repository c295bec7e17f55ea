"""Three sources reduced to verdicts, and a triple admitted only when the three are equal."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.curation.agreement import agree
from training.curation.curate import Curated, curate
from training.curation.paper import read_settings
from training.curation.report_parsing import EndpointParser, Parse, Parses, RuleParser, Stated, read_answer
from training.curation.sources.chexpercept import Review
from training.curation.sources.imagenome import SceneGraph
from training.curation.sources.problems import Problems
from training.curation.sources.regions import THIRDS, thirds_of
from training.curation.verdicts import COMPARED, verdicts_of
from xflow_core.domain.errors import CallError, EngineError
from xflow_core.domain.findings import CHEST, HEART, LUNGS, REGIONS

if TYPE_CHECKING:
    from conftest import Miniature


# Verdicts --------------------------------------------------------------------------------------------------------


def test_a_located_finding_is_absent_from_everywhere_else() -> None:
    verdicts = verdicts_of("consolidation", {"right lung base"}, ())
    assert {region for region, present in verdicts.items() if present} == {CHEST, "right lung", "right lung base"}
    assert set(verdicts) == set(COMPARED)


def test_a_lung_without_a_zone_says_nothing_of_its_zones() -> None:
    verdicts = verdicts_of("effusion", {"left lung"}, ())
    assert verdicts["left lung"] and not verdicts["right lung"] and not verdicts["right lung base"]
    assert "left lung base" not in verdicts


def test_the_chest_alone_says_nothing_of_the_lungs() -> None:
    assert verdicts_of("edema", {CHEST}, ()) == {CHEST: True}


def test_absent_in_the_chest_or_in_both_lungs_is_absent_everywhere() -> None:
    everywhere = dict.fromkeys(COMPARED, False)
    assert verdicts_of("edema", (), {CHEST}) == verdicts_of("edema", (), set(LUNGS)) == everywhere


def test_absent_in_one_lung_says_nothing_of_the_other() -> None:
    verdicts = verdicts_of("edema", (), {"left lung"})
    assert verdicts["left lung"] is False and verdicts["left mid zone lung"] is False
    assert "right lung" not in verdicts and CHEST not in verdicts


def test_the_apical_zone_is_part_of_the_upper_one() -> None:
    assert verdicts_of("opacity", {"left apical zone lung"}, ())["left upper zone lung"]


def test_what_is_stated_both_ways_has_no_verdict() -> None:
    verdicts = verdicts_of("opacity", {"left lung base"}, {"left lung"})
    assert "left lung" not in verdicts and "left lung base" not in verdicts and not verdicts["right lung"]
    assert verdicts_of("opacity", {"left lung base"}, {CHEST}) == {}
    assert verdicts_of("cardiomegaly", {HEART}, {HEART}) == {}


def test_cardiomegaly_has_one_region() -> None:
    assert verdicts_of("cardiomegaly", {HEART}, ()) == {HEART: True}
    assert verdicts_of("cardiomegaly", (), {CHEST}) == {HEART: False}


regions = st.sets(st.sampled_from([region for region in REGIONS if region != HEART]), max_size=4)


@given(regions, regions)
@settings(deadline=None)
def test_verdicts_never_contradict_each_other(present: set[str], absent: set[str]) -> None:
    verdicts = verdicts_of("opacity", present, absent)
    for lung in LUNGS:
        zones = [verdicts.get(zone) for zone in thirds_of(lung)]
        if verdicts.get(lung) is False:
            assert not any(zones)
        if verdicts.get(lung) is True:
            assert verdicts[CHEST]
    if verdicts.get(CHEST) is False:
        assert not any(verdicts.values())


# Agreement on the miniature --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def curated(annotated: Miniature, tmp_path_factory: pytest.TempPathFactory) -> Curated:
    parses = tmp_path_factory.mktemp("parses") / "parses.jsonl"
    return curate(annotated.sources, read_settings(), Problems(), parses)


def test_without_a_flaw_the_sources_agree_on_everything(annotated: Miniature, curated: Curated) -> None:
    agreed = {(entry.study, entry.finding): entry for entries in curated.agreed.values() for entry in entries}
    checked = 0
    for study in annotated.studies:
        for finding in study["reviewed"] if study["flaw"] is None else ():
            verdicts = agreed[study["study"], finding].verdicts
            assert set(verdicts) == ({HEART} if finding == "cardiomegaly" else set(COMPARED))
            true = set(study["present"].get(finding, ()))
            assert {region for region, present in verdicts.items() if present} >= true
            assert any(verdicts.values()) == bool(true)
            checked += 1
    assert checked > 100


def test_a_contradicted_or_unsupported_verdict_is_never_admitted(annotated: Miniature, curated: Curated) -> None:
    agreed: dict[str, dict[str, dict[str, bool]]] = defaultdict(dict)
    for entries in curated.agreed.values():
        for entry in entries:
            agreed[entry.study][entry.finding] = entry.verdicts
    seen = set()
    truth = {study["study"]: study["present"] for study in annotated.studies}
    for flaw in annotated.flaws:
        kind, study, finding = flaw["kind"], flaw.get("study"), flaw.get("finding")
        if kind in ("report_missing", "scene_graph_missing", "scene_graph_broken", "scene_graph_patient"):
            assert study not in agreed
        elif kind in ("report_silent", "review_answer", "review_zone", "review_dicom"):
            assert finding not in agreed[study]
        elif kind in ("report_denies", "scene_graph_denies"):
            # All three may still agree that it is not in a zone where it is not.
            verdicts = agreed[study].get(finding, {})
            assert not any(verdicts.values()) and not set(verdicts) & {CHEST, *truth[study][finding]}
        elif kind in ("report_elsewhere", "scene_graph_elsewhere"):
            # They agree that it is there, and on no place that either says.
            verdicts = agreed[study][finding]
            assert {region for region, present in verdicts.items() if present} == {CHEST}
        else:
            continue
        seen.add(kind)
    assert len(seen) == 12


def test_every_dropped_triple_has_a_reason(annotated: Miniature, curated: Curated) -> None:
    assert set(curated.dropped) == {
        "no report",
        "no scene graph",
        "report silent on the finding",
        "report disagrees",
        "scene graph disagrees",
    }
    assert min(curated.dropped.values()) > 0


# Reports ---------------------------------------------------------------------------------------------------------


def test_rules_do_not_weigh_a_doubt() -> None:
    stated = (
        RuleParser().parse("FINDINGS: There may be a left effusion. No edema. Atelectasis in the left base.").stated
    )
    assert stated == {
        "edema": (frozenset(), {CHEST}),
        "atelectasis": ({"left lung base"}, frozenset()),
    }


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "The report is normal.",
        "[]",
        '{"effusion": ["left lung"]}',
        '{"effusion": {"present": ["left hilum"]}}',
        '{"nodule": {"present": ["left lung"]}}',
        '{"effusion": {"present": "left lung"}}',
        '{"cardiomegaly": {"present": ["left lung"]}}',
        '{"effusion": {"present": ["left lung"]',
    ],
)
def test_an_answer_that_cannot_be_read_is_no_verdict(raw: str) -> None:
    parse = read_answer("asked", raw)
    assert parse.stated is None and parse.problem and parse.raw == raw


def test_an_answer_is_read_out_of_its_wrapping() -> None:
    said = '{"effusion": {"present": ["left lower zone lung"], "absent": []}}'
    raw = f'<unused94>{{"think": 1}}<unused95>```json\n{said}\n```'
    assert read_answer("asked", raw).stated == {"effusion": ({"left lung base"}, frozenset())}


def read_all(parses: Parses, *reports: tuple[str, str]) -> list[Stated | None]:
    return [stated for _, stated in parses.alongside(reports, lambda each: each)]


class Model(BaseHTTPRequestHandler):
    """An OpenAI-compatible address on loopback that answers each report alike."""

    asked: list[dict[str, Any]]

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(asked)
        content = '{"edema": {"present": [], "absent": ["chest"]}}'
        answer = json.dumps({"choices": [{"message": {"content": content}}]}).encode()
        self.send_response(200 if self.path == "/v1/chat/completions" else 404)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def model() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    asked: list[dict[str, Any]] = []
    server = HTTPServer(("127.0.0.1", 0), type("Answering", (Model,), {"asked": asked}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_model_is_asked_once_and_its_words_are_kept(model: tuple[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    url, asked = model
    path = tmp_path / "parses.jsonl"
    for _ in range(2):
        with Parses(path, EndpointParser(url, "medgemma")) as parses:
            first, second = read_all(parses, ("s1", "FINDINGS: No edema."), ("s2", "FINDINGS: Clear."))
            assert first == second == {"edema": (frozenset(), {CHEST})}
    assert len(asked) == 2 and asked[0]["temperature"] == 0 and "No edema." in asked[0]["messages"][0]["content"]
    row = json.loads(path.read_text().splitlines()[0])
    assert row["raw"].startswith("{") and row["prompt"].endswith("No edema.") and row["parser"] == "endpoint/1 medgemma"
    # Another model's answers, or another report's, are not taken over.
    with Parses(path, EndpointParser(url, "other")) as parses:
        read_all(parses, ("s1", "FINDINGS: No edema."))
    with Parses(path, EndpointParser(url, "medgemma")) as parses:
        read_all(parses, ("s1", "FINDINGS: Edema."))
    assert len(asked) == 4


def test_a_run_goes_on_after_a_line_that_a_stop_cut_off(tmp_path: Path) -> None:
    class Counting:
        name = "counting"
        at_once = 2
        calls = 0

        def parse(self, report: str) -> Parse:
            self.calls += 1
            stated: Stated = {"edema": (frozenset({"left lung"}), frozenset())}
            return Parse("asked", report, stated)

    path, first, second = tmp_path / "parses.jsonl", Counting(), Counting()
    with Parses(path, first) as parses:
        read_all(parses, *((f"s{number}", "text") for number in range(5)))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with Parses(path, second) as parses:
        read_all(parses, *((f"s{number}", "text") for number in range(5)))
    assert (first.calls, second.calls) == (5, 1)
    assert path.read_bytes() == whole
    path.write_text("something else\n")
    with pytest.raises(CallError, match="Line 1"):
        Parses(path, first)


def test_a_model_that_is_not_there_stops_the_run_with_one_sentence() -> None:
    with pytest.raises(EngineError, match=r"gave no answer .* run this again"):
        EndpointParser("http://127.0.0.1:9/v1", "m", seconds=2).parse("FINDINGS: Clear.")


def test_reports_are_read_side_by_side_and_kept_in_their_order(tmp_path: Path) -> None:
    class Together:
        """Answers only when three are asked at the same time; the last one cannot be read, the fifth has no answer."""

        name, at_once = "together", 3

        def __init__(self) -> None:
            self.all_there = threading.Barrier(3, timeout=10)

        def parse(self, report: str) -> Parse:
            self.all_there.wait()
            return read_answer("asked", report)

    said = [json.dumps({"edema": {"present": [lung]}}) for lung in LUNGS] + ["who knows"]
    path = tmp_path / "parses.jsonl"
    with Parses(path, Together()) as parses:
        cases: list[tuple[str, str | None]] = [("none", None), *((f"s{k}", words) for k, words in enumerate(said))]
        found = list(parses.alongside(cases, lambda case: case))
    assert [case for case, _ in found] == cases
    assert [stated for _, stated in found] == [None, *({"edema": ({lung}, frozenset())} for lung in LUNGS), None]
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["study"], row["raw"]) for row in kept] == [(f"s{k}", words) for k, words in enumerate(said)]
    assert kept[2]["stated"] is None and kept[2]["problem"] == "no JSON object"


stated_regions = st.tuples(regions.map(frozenset), regions.map(frozenset))


@given(st.booleans(), st.sets(st.sampled_from(THIRDS), min_size=1), stated_regions, stated_regions)
@settings(deadline=None)
def test_a_triple_is_admitted_exactly_when_three_equal_verdicts_exist(
    present: bool, zones: set[str], reported: Any, graphed: Any
) -> None:
    """A.2: identical verdicts are admitted, "anything else, including a missing source, is dropped"."""
    review = Review("k", "p", "s", "d", "opacity", present, frozenset(zones if present else ()))
    dropped: Counter[str] = Counter()
    graph = SceneGraph("d", {}, {"opacity": graphed})
    entry = agree(review, "p1", None, {"opacity": reported}, True, graph, dropped)
    mine = verdicts_of("opacity", zones if present else (), () if present else {CHEST})
    theirs, silver = (verdicts_of("opacity", *both) for both in (reported, graphed))
    equal = {r: mine[r] for r in COMPARED if r in mine and mine[r] == theirs.get(r) == silver.get(r)}
    assert (entry.verdicts if entry else {}) == equal
    assert sum(dropped.values()) == len(mine) - len(equal)


def test_an_unreadable_answer_counts_as_a_missing_source(annotated: Miniature, tmp_path: Path) -> None:
    dropped: Counter[str] = Counter()
    review = Review("effusion_s1_negative_0", "s1_negative_0", "s1", "d", "effusion", False, frozenset())
    assert agree(review, "p1", None, None, True, None, dropped) is None
    assert dropped == {"report unreadable": len(COMPARED)}
