"""``python -m training evaluate-prompts``: with a backend of the tests' own, and with the bundle that ships."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from phantom import LESION, SIZE, PhantomParts, phantom

from training.__main__ import main
from training.evaluation.evaluate_prompts import (
    Component,
    Prompted,
    by_finding,
    components,
    figures,
    intervals,
    jittered_box,
    oracle_click,
    prompted,
)
from training.evaluation.rows import Row
from xflow_core.domain.errors import CallError, EngineError
from xflow_core.domain.geometry import Box
from xflow_core.domain.instruction import Instruction
from xflow_core.export.files import write_mask
from xflow_core.policies.compact_revision import GUARD
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.segmenters.protocol import Prediction, Prompt

PATH = Path("phantom.png")
DISCS = [(0.25, 0.5, 14), (0.7, 0.3, 10), (0.75, 0.7, 12)]


def discs(*which: int) -> np.ndarray:
    """The true mask of some of the phantom's discs."""
    return phantom([DISCS[k] for k in which]).values > LESION


def row(folder: Path, name: str, finding: str, regions: tuple[str, ...], level: str, mask: np.ndarray | None) -> Row:
    if mask is not None:
        write_mask(folder / f"{name}.png", mask)
    instruction = Instruction(f"Segment the {finding}", finding, regions, level)
    return Row(name, folder / "image.png", instruction, None if mask is None else folder / f"{name}.png", None, "test")


def component(mask: np.ndarray) -> Component:
    box = Box.around(mask)
    assert box is not None
    return Component(mask, box, ("opacity",))


def test_a_component_of_several_rows_counts_once_and_for_each_of_its_findings(tmp_path: Path) -> None:
    rows = [
        row(tmp_path, "a", "opacity", ("chest",), "chest", discs(0, 1, 2)),
        row(tmp_path, "b", "opacity", ("right lung",), "lung", discs(0)),
        row(tmp_path, "c", "opacity", ("left lung",), "lung", discs(1, 2)),
        row(tmp_path, "d", "consolidation", ("left lung",), "lung", discs(1)),
        row(tmp_path, "e", "consolidation", ("right lung",), "lung", None),
    ]
    found = components(rows, SIZE)
    assert len(found) == 3
    assert sorted(c.findings for c in found) == [("opacity",), ("opacity",), ("opacity", "consolidation")]
    assert (np.logical_or.reduce([c.mask for c in found]) == discs(0, 1, 2)).all()
    assert all(c.box == Box.around(c.mask) for c in found)


def test_a_piece_that_a_narrower_region_cuts_is_no_component_of_its_own(tmp_path: Path) -> None:
    cut = discs(0)
    cut[: SIZE[0] // 2] = False
    rows = [
        row(tmp_path, "zone", "effusion", ("right lung base",), "zone", cut),
        row(tmp_path, "lung", "effusion", ("right lung",), "lung", discs(0)),
    ]
    (only,) = components(rows, SIZE)
    assert (only.mask == discs(0)).all()


def test_a_speck_of_the_truth_is_no_component(tmp_path: Path) -> None:
    mask = discs(0)
    mask[2, 2:4] = True
    assert len(components([row(tmp_path, "a", "opacity", ("chest",), "chest", mask)], SIZE)) == 1


def test_the_oracle_clicks_into_the_middle_of_the_larger_error() -> None:
    truth, missed = discs(0, 1), discs(0)
    click = oracle_click(truth & ~missed, truth, [])
    assert click is not None
    assert click.polarity == "positive"
    assert np.hypot(click.point.x * SIZE[1] - 0.25 * SIZE[1], click.point.y * SIZE[0] - 0.5 * SIZE[0]) < 2
    click = oracle_click(truth | discs(2), truth, [])
    assert click is not None
    assert click.polarity == "negative"
    assert discs(2)[click.point.pixel(SIZE)]


def test_the_oracle_keeps_the_guard_and_has_no_click_for_a_perfect_mask() -> None:
    truth = discs(0)
    first = oracle_click(np.zeros(SIZE, bool), truth, [])
    assert first is not None
    second = oracle_click(np.zeros(SIZE, bool), truth, [first])
    assert second is not None
    apart = np.hypot((first.point.x - second.point.x) * SIZE[1], (first.point.y - second.point.y) * SIZE[0])
    assert apart >= GUARD * max(SIZE) * 0.99
    assert oracle_click(truth, truth, []) is None


def test_any_backend_is_measured_through_the_protocol() -> None:
    parts = PhantomParts()
    image = EncodedRadiograph(phantom(DISCS))
    row_ = prompted(parts, image, PATH, component(discs(0)), seed=0)
    assert row_.iou == (1.0,) * 5
    assert row_.clicks == 0
    assert parts.calls["segment"] == 1
    assert 0 < row_.box_iou < 1

    # A truth larger than what the backend sees: each click adds a small disc, and the mask never gets worse.
    larger = phantom([(0.25, 0.5, 30)]).values > LESION
    row_ = prompted(parts, image, PATH, component(larger), seed=0)
    assert row_.clicks == 4
    assert len(row_.iou) == len(row_.seconds) == 5
    assert list(row_.iou) == sorted(row_.iou)
    assert row_.iou[4] > row_.iou[0]
    assert parts.calls["encode"] == 1


def test_each_prompt_carries_the_box_every_click_so_far_and_the_mask_before() -> None:
    seen: list[Prompt] = []

    class Watched(PhantomParts):
        def segment(self, image: EncodedRadiograph, prompts: list[Prompt]) -> list[Prediction]:
            seen.extend(prompts)
            return [replace(p, state=len(seen)) for p in super().segment(image, prompts)]

    larger = phantom([(0.25, 0.5, 30)]).values > LESION
    asked = prompted(Watched(), EncodedRadiograph(phantom(DISCS)), PATH, component(larger), seed=3)
    assert [len(prompt.clicks) for prompt in seen] == [0, 1, 2, 3, 4]
    assert {prompt.box for prompt in seen} == {asked.box}
    assert seen[0].previous is None
    assert [prompt.previous.state for prompt in seen[1:] if prompt.previous] == [1, 2, 3, 4]


def test_a_mask_of_another_size_is_an_error_that_names_the_image() -> None:
    class Small(PhantomParts):
        def segment(self, image: EncodedRadiograph, prompts: list[Prompt]) -> list[Prediction]:
            return [Prediction(np.ones((3, 3), bool)) for _ in prompts]

    with pytest.raises(EngineError, match=r"phantom\.png"):
        prompted(Small(), EncodedRadiograph(phantom(DISCS)), PATH, component(discs(0)), seed=0)


def test_the_jitter_is_a_tenth_at_most_and_follows_from_seed_image_and_box() -> None:
    box = Box(0.2, 0.4, 0.5, 0.8)
    moved = jittered_box("a.png", box, 0)
    assert moved == jittered_box("a.png", box, 0)
    assert len({jittered_box("a.png", box, 1), jittered_box("b.png", box, 0), moved}) == 3
    for name in "abcdefghij":
        moved = jittered_box(name, box, 0)
        assert abs(moved.x1 - box.x1) <= 0.03 + 1e-9
        assert abs(moved.y2 - box.y2) <= 0.04 + 1e-9


def test_a_shared_component_counts_once_over_all() -> None:
    def one(image: str, findings: tuple[str, ...], iou: float) -> Prompted:
        return Prompted(image, findings, Box(0, 0, 1, 1), 4, 0.5, (iou,) * 5, (0.1,) * 5)

    found = [one("a", ("opacity", "consolidation"), 0.8), one("b", ("opacity",), 0.4), one("b", ("effusion",), 0.6)]
    assert figures(found)["n"] == 3
    assert figures(found)["images"] == 2
    assert figures(found)["iou"] == pytest.approx([0.6] * 5)
    each = by_finding(found)
    assert {name: entry["n"] for name, entry in each.items()} == {"consolidation": 1, "effusion": 1, "opacity": 2}
    low, high = intervals(["a", "b", "b"], np.array([[0.8], [0.4], [0.6]]))[0]
    assert (low, high) == pytest.approx((0.5, 0.8))


def test_the_command_writes_figures_a_table_and_a_plot(rg1: Path, tmp_path: Path) -> None:
    mask = np.zeros((1955, 1841), bool)
    mask[800:1500, 200:700] = True
    mask[900:1200, 1200:1500] = True
    write_mask(tmp_path / "mask.png", mask)
    line = {
        "id": "a",
        "image": str(rg1),
        "instruction": "Segment the opacity.",
        "finding": "opacity",
        "regions": ["chest"],
        "level": "chest",
        "mask": "mask.png",
    }
    (tmp_path / "set.jsonl").write_text(json.dumps(line) + "\n")
    out = tmp_path / "out"
    main(["evaluate-prompts", "--set", str(tmp_path / "set.jsonl"), "--bundle", "compact", "--out", str(out)])
    measured = json.loads((out / "metrics.json").read_text())
    assert measured["n"] == measured["by_finding"]["opacity"]["n"] == 2
    assert len(measured["iou"]) == len(measured["intervals"]) == 5
    assert measured["iou"][4] > measured["iou"][0]
    assert measured["notice"] == "not for clinical use"
    table = list(csv.DictReader((out / "per_row.csv").open()))
    assert [line["findings"] for line in table] == ["opacity", "opacity"]
    assert float(table[0]["iou4"]) > 0.5
    assert (out / "by_clicks.png").stat().st_size > 1000


def test_a_set_without_a_positive_row_is_refused(rg1: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = {"id": "a", "image": str(rg1), "instruction": "Segment the opacity.", "finding": "opacity"}
    line |= {"regions": ["chest"], "level": "chest", "mask": None}
    (tmp_path / "set.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(SystemExit) as ended:
        main(["evaluate-prompts", "--set", str(tmp_path / "set.jsonl"), "--out", str(tmp_path / "out")])
    assert ended.value.code == CallError.exit_status
    assert "positive" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
