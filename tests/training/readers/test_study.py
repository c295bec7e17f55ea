"""A reader study from its cases to Table 4."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.stats import rankdata

from training.__main__ import main
from training.evaluation.readers.analyse import latex, markdown, ranks_by_kind, results
from training.evaluation.readers.design import Key, arrange
from training.evaluation.readers.models import davidson_probabilities
from training.evaluation.readers.rankings import Rankings, fleiss_kappa, kendall_w, read_rankings
from training.evaluation.readers.select import CELLS, TRUTH, select_cases
from training.evaluation.rows import Row
from training.evaluation.tables import read_study
from xflow_core.domain.errors import CallError
from xflow_core.domain.instruction import Instruction

LEVEL_REGIONS = {"chest": "chest", "lung": "right lung", "zone": "right lung base"}


def row(finding: str, level: str, number: int, image: str | None = None, positive: bool = True) -> Row:
    region = "heart" if finding == "cardiomegaly" else LEVEL_REGIONS[level]
    identity = f"{finding}-{level}-{number}"
    instruction = Instruction(f"Segment the {finding}.", finding, (region,), level)
    mask = Path("mask.png") if positive else None
    return Row(identity, Path(image or identity), instruction, mask, None, "test")


def many(per_cell: int) -> list[Row]:
    return [row(finding, level, k) for finding, level in CELLS for k in range(per_cell)]


# The cases.


def test_the_papers_95_cases_five_of_each_finding_and_level() -> None:
    cases = select_cases(many(9), lambda _: True, per_cell=5, seed=1)
    assert len(cases) == 95
    assert set(Counter((c.instruction.finding, c.instruction.level) for c in cases).values()) == {5}
    assert cases != select_cases(many(9), lambda _: True, per_cell=5, seed=2)


def test_only_positive_rows_that_every_system_answered_and_other_radiographs_first() -> None:
    rows = [*many(3), *(row(finding, level, 9, positive=False) for finding, level in CELLS)]
    rows += [row(finding, level, 8, image="the same") for finding, level in CELLS]
    cases = select_cases(rows, lambda r: not r.id.endswith("-0"), per_cell=2, seed=0)
    assert not [c for c in cases if c.id.endswith(("-0", "-9"))]
    assert sum(c.image == Path("the same") for c in cases) <= 1


def test_a_cell_with_too_few_cases_is_named_unless_fewer_will_do() -> None:
    rows = [r for r in many(3) if not (r.instruction.finding == "edema" and r.id.endswith("zone-0"))]
    with pytest.raises(CallError, match="edema at zone level has 2"):
        select_cases(rows, lambda _: True, per_cell=3, seed=0)
    assert len(select_cases(rows, lambda _: True, per_cell=3, seed=0, allow_fewer=True)) == 3 * 19 - 1
    with pytest.raises(CallError, match="nothing to rank"):
        select_cases(rows, lambda _: False, per_cell=3, seed=0, allow_fewer=True)


# The order.


def test_each_reader_sees_each_order_equally_often_and_each_case_in_another_one() -> None:
    key = arrange(many(5), (TRUTH, "xflow", "rosalia"), ("a", "b", "c"))
    places: dict[str, list[tuple[str, ...]]] = {}
    for placements in key.readers.values():
        assert [p.case for p in placements] == list(range(1, 96))
        counts = Counter(p.systems for p in placements)
        assert len(counts) == 6
        assert set(counts.values()) <= {15, 16}
        for p in placements:
            places.setdefault(p.row, []).append(p.systems)
    for orders in places.values():
        assert all(len({order[k] for order in orders}) == 3 for k in range(3)), "each system once at each letter"
    sequences = [[p.row for p in placements] for placements in key.readers.values()]
    assert sequences[0] != sequences[1] != sequences[2]


def test_the_seal_holds_the_key(tmp_path: Path) -> None:
    key = arrange(many(1), (TRUTH, "xflow"), ("a",), seed=4)
    path = tmp_path / "key.json"
    path.write_text(json.dumps(key.to_json()))
    assert Key.read(path).seal == key.seal
    (first, *rest) = key.readers["a"]
    swapped = replace(first, systems=first.systems[::-1])
    assert replace(key, readers={"a": (swapped, *rest)}).seal != key.seal
    assert arrange(many(1), (TRUTH, "xflow"), ("a",), seed=4).seal != key.seal, "a seed does not open it"
    path.write_text("{}")
    with pytest.raises(CallError, match="no key"):
        Key.read(path)


# What readers get.


def test_nothing_that_a_reader_gets_tells_the_systems_or_the_source(study: Path) -> None:
    key = Key.read(study / "key.json")
    assert len(key.rows) == 6
    assert not [name for name in key.rows if name.endswith(("missed", "negative"))]
    assert (study / "key.json").stat().st_mode & 0o077 == 0
    for reader in key.readers:
        files = [path for path in (study / reader).rglob("*") if path.is_file()]
        assert len(files) == 3 + 6
        for path in files:
            content = path.read_bytes().lower()
            for word in (b'xflow"', b"rosalia", b"truth", b"secrethospital", b"chest-0", b".jsonl", b"http://"):
                assert word not in content, (path.name, word)
    panel = Image.open(study / "reader-1" / "panels" / "001.png")
    assert panel.width == 4 * 100 + 3 * 8


def test_a_letter_shows_the_mask_that_the_key_says(study: Path, rows: Path) -> None:
    key = Key.read(study / "key.json")
    for placement in key.readers["reader-3"]:
        panel = np.asarray(Image.open(study / "reader-3" / "panels" / f"{placement.case:03d}.png"))
        truth = np.asarray(Image.open(rows.parent / f"{placement.row}-truth.png")) > 0
        k = placement.systems.index(TRUTH) + 1
        shown = panel[76:, k * 108 : k * 108 + 100].astype(int)
        tinted = shown[:, :, 2] - shown[:, :, 0] > 15
        line = (shown == (64, 224, 255)).all(axis=2)
        assert ((tinted & ~line) == truth).all()


def test_a_study_is_not_made_twice_in_one_folder(study: Path, rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (study / "key.json").read_bytes()
    system = f"xflow={rows.parent / 'xflow'}"
    with pytest.raises(SystemExit) as ended:
        main(["readers", "prepare", "--set", str(rows), "--system", system, "--out", str(study)])
    assert ended.value.code == 2
    assert "choose another folder" in capsys.readouterr().err
    assert (study / "key.json").read_bytes() == before


def test_a_systems_missing_answer_is_an_error_and_no_absence(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    next((rows.parent / "rosalia" / "predictions").glob("chest-0.png")).unlink()
    call = ["readers", "prepare", "--set", str(rows), "--per-cell", "2", "--allow-fewer"]
    systems = [word for name in ("xflow", "rosalia") for word in ("--system", f"{name}={rows.parent / name}")]
    with pytest.raises(SystemExit):
        main([*call, *systems, "--out", str(rows.parent / "out")])
    assert "rosalia for row chest-0 is no readable picture" in capsys.readouterr().err
    assert not (rows.parent / "out" / "key.json").exists()


# The answers.


def fill(study: Path, reader: str, prefer: dict[str, str], changes: dict[str, str] | None = None) -> Path:
    """The reader's CSV sheet, each system ranked as ``prefer`` says."""
    key = Key.read(study / "key.json")
    path = study / reader / "sheet.csv"
    lines = list(csv.DictReader(path.open(encoding="utf-8")))
    for line, placement in zip(lines, key.readers[reader], strict=True):
        for letter, system in zip("ABC", placement.systems, strict=True):
            line[letter] = prefer[system]
    lines[0].update(changes or {})
    answers = study / f"{reader}.csv"
    with answers.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    return answers


ORDERS = (
    {TRUTH: "1", "xflow": "2", "rosalia": "3"},
    {TRUTH: "1", "xflow": "1", "rosalia": "2"},
    {TRUTH: "3", "xflow": "2", "rosalia": "1"},
)


def test_the_key_puts_letters_back_to_systems_and_ties_share_a_rank(study: Path) -> None:
    sheets = [fill(study, f"reader-{k}", order) for k, order in enumerate(ORDERS, start=1)]
    rankings = read_rankings(Key.read(study / "key.json"), sheets[::-1])
    assert rankings.systems == (TRUTH, "xflow", "rosalia")
    assert (rankings.ranks == np.array([[[1, 2, 3]], [[1.5, 1.5, 3]], [[3, 2, 1]]])).all()
    assert rankings.outcomes()[0].tolist() == [[1, 1, 1], [2, 1, 0], [2, 1, 0]]


def test_table_4_from_the_sheets(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheets = [str(fill(study, f"reader-{k}", order)) for k, order in enumerate(ORDERS, start=1)]
    out = tmp_path / "out"
    main(["readers", "analyse", "--key", str(study / "key.json"), "--out", str(out), "--draws", "50", *sheets])
    figures = json.loads((out / "results.json").read_text())
    assert (figures["rankings"], figures["comparisons"]) == (18, 54)
    assert figures["tie_rate"]["value"] == pytest.approx(6 / 54)
    assert figures["mean_ranks"][TRUTH]["value"] == pytest.approx(5.5 / 3)
    for name in ("Davidson", "Rao-Kupper"):
        strengths = [part["value"] for part in figures["models"][name]["log_strengths"].values()]
        assert sum(strengths) == pytest.approx(0, abs=1e-6)
    assert "18 of 18 rankings" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {
        "results.json",
        "fits.json",
        "table.md",
        "table.tex",
        "table.csv",
    }
    study_of_tables = read_study(out / "fits.json")
    assert study_of_tables["systems"].keys() == {"truth", "xflow", "rosalia"}
    assert study_of_tables["systems"]["truth"]["mean_rank"] == pytest.approx(5.5 / 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"A": "4"}, "a whole number from 1 to 3"),
        ({"B": ""}, "nothing"),
        ({"A": "1.5"}, "1.5"),
        ({"study": "x"}, "of the study x"),
        ({"seal": "0"}, "changed after"),
        ({"reader": "nobody"}, "nobody"),
        ({"case": "2"}, "twice"),
        ({"case": "77"}, "77"),
        ({"A": "", "B": "", "C": ""}, "the first is case 1"),
    ],
)
def test_a_sheet_that_cannot_be_counted_is_named(study: Path, changes: dict[str, str], words: str) -> None:
    sheets = [fill(study, "reader-1", ORDERS[0], changes)]
    with pytest.raises(CallError, match=words) as refused:
        read_rankings(Key.read(study / "key.json"), sheets)
    assert "reader-1.csv" in str(refused.value)


def test_mean_ranks_are_also_given_by_finding_and_level() -> None:
    ranks = np.array([[[1.0, 2.0], [2.0, 1.0], [np.nan, np.nan]], [[1.0, 2.0], [1.5, 1.5], [2.0, 1.0]]])
    rankings = Rankings(("a", "b"), ("r0", "r1", "r2"), ("ground truth", "xflow"), ranks)
    kinds = {"r0": ("effusion", "chest"), "r1": ("edema", "chest"), "r2": ("edema", "lung")}
    found = ranks_by_kind(rankings, kinds)
    assert {word: {name: part["rankings"] for name, part in lot.items()} for word, lot in found.items()} == {
        "finding": {"effusion": 2, "edema": 3},
        "level": {"chest": 4, "lung": 1},
    }
    edema = found["finding"]["edema"]["mean_ranks"]
    assert edema["ground truth"]["value"] == pytest.approx((2 + 1.5 + 2) / 3)
    assert edema["ground truth"]["value"] + edema["xflow"]["value"] == pytest.approx(3)
    assert found["finding"]["effusion"]["mean_ranks"]["xflow"] == {"value": 2.0, "interval": [2.0, 2.0]}


def test_a_reader_who_did_not_answer_is_named_unless_that_is_accepted(study: Path) -> None:
    key = Key.read(study / "key.json")
    sheets = [fill(study, "reader-1", ORDERS[0])]
    with pytest.raises(CallError, match="no sheet of reader-2, reader-3"):
        read_rankings(key, sheets)
    with pytest.raises(CallError, match="both of the reader"):
        read_rankings(key, sheets * 2)
    assert read_rankings(key, sheets, allow_incomplete=True).outcomes().sum() == 18


# The figures.


def simulated(cases: int, readers: int, seed: int, spread: float = 0.5) -> Rankings:
    """Readers who see the systems' qualities with noise of their own and of the case, and tie what looks alike."""
    rng = np.random.default_rng(seed)
    quality = (
        np.array([0.4, 0.2, -0.6]) + rng.gumbel(0, spread, (1, cases, 3)) + rng.gumbel(0, spread, (readers, cases, 3))
    )
    ranks = np.apply_along_axis(lambda q: rankdata(np.round(-q * 2)), 2, quality)
    return Rankings(("a", "b", "c")[:readers], tuple(map(str, range(cases))), (TRUTH, "xflow", "rosalia"), ranks)


def test_both_models_agree_on_simulated_readers() -> None:
    figures = results(simulated(95, 3, seed=5), draws=2000)
    one, other = (figures["models"][name] for name in ("Davidson", "Rao-Kupper"))
    for model in (one, other):
        values = [part["value"] for part in model["log_strengths"].values()]
        assert values == sorted(values, reverse=True)
        assert model["implied_tie_rate"] == pytest.approx(figures["tie_rate"]["value"], abs=0.005)
        for part in model["log_strengths"].values():
            low, high = part["interval"]
            assert low < part["value"] < high
    first, second = (np.array([part["value"] for part in model["log_strengths"].values()]) for model in (one, other))
    assert np.corrcoef(first, second)[0, 1] > 0.999
    assert sum(part["value"] for part in figures["mean_ranks"].values()) == pytest.approx(6)
    assert 0 < figures["agreement"]["fleiss_kappa"] < 1
    assert "285 of 285 rankings of 95 cases, 855 comparisons" in markdown(figures)
    assert latex(figures).count(r"\\") == 4


def test_intervals_are_as_wide_as_cases_and_not_comparisons_allow() -> None:
    """Three readers who say the same know no more than one."""
    once = simulated(60, 1, seed=2)
    thrice = replace(once, readers=("a", "b", "c"), ranks=np.repeat(once.ranks, 3, axis=0))
    widths = []
    for rankings in (once, thrice):
        low, high = results(rankings, draws=400)["models"]["Davidson"]["log_strengths"]["rosalia"]["interval"]
        widths.append(high - low)
    assert widths[1] == pytest.approx(widths[0], rel=1e-6)


def test_agreement_is_one_when_readers_agree_and_none_when_they_cannot_be_told() -> None:
    once = simulated(30, 1, seed=1)
    alike = np.repeat(once.ranks, 3, axis=0)
    same = replace(once, readers=("a", "b", "c"), ranks=alike)
    assert fleiss_kappa(same.preferences()) == pytest.approx(1)
    assert kendall_w(alike) == pytest.approx(1)
    assert fleiss_kappa(once.preferences()) is None
    assert kendall_w(np.array([[[1.0, 2, 3]], [[3.0, 2, 1]]])) == pytest.approx(0)
    assert kendall_w(np.full((2, 4, 3), 2.0)) is None


def test_kappa_as_fleiss_printed_it() -> None:
    """Two readers, four comparisons of one pair: three alike, one not."""
    preferences = np.zeros((2, 4, 1, 3))
    for reader, answers in enumerate(([0, 0, 1, 2], [0, 0, 1, 1])):
        preferences[reader, range(4), 0, answers] = 1
    expected = (4 / 8) ** 2 + (3 / 8) ** 2 + (1 / 8) ** 2
    assert fleiss_kappa(preferences) == pytest.approx((0.75 - expected) / (1 - expected))


def test_rankings_without_a_loser_have_no_strengths() -> None:
    ranks = np.tile([1.0, 2.0, 3.0], (3, 10, 1))
    with pytest.raises(CallError, match="no finite strengths"):
        results(Rankings(("a", "b", "c"), tuple("0123456789"), (TRUTH, "x", "y"), ranks), draws=10)


def test_known_strengths_come_back_from_simulated_comparisons() -> None:
    """Two systems, so that a ranking is one comparison: the whole way from ranks to strengths."""
    rng = np.random.default_rng(11)
    chances = davidson_probabilities(np.array([0.3, -0.3]), 0.3)[0]
    drawn = np.array([[1, 2], [2, 1], [1.5, 1.5]])[rng.choice(3, (1, 6000), p=chances)]
    figures = results(Rankings(("a",), tuple(map(str, range(6000))), ("one", "other"), drawn), draws=200)
    low, high = figures["models"]["Davidson"]["log_strengths"]["one"]["interval"]
    assert low < 0.3 < high
    assert figures["models"]["Davidson"]["nu"]["value"] == pytest.approx(0.3, abs=0.04)
