"""The miniature's page: a claim that does not hold is said not to, and what people wrote in it stays."""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import pytest

from training.mini import report
from xflow_core.domain.errors import CallError

INIT = {
    "n": 700, "n_positive": 200, "format": [1.0, 0.0], "lung_iou": [0.93, 0.01], "f1": 0.85, "recall": 0.8,
    "precision": 0.9, "box_iou": [0.7, 0.02], "reward": [1.5, 0.02],
}  # fmt: skip
REVISION = {
    "n": 300, "first_iou": [0.7, 0.01], "gain": [0.02, 0.004], "improved": 0.4, "worsened": 0.2, "clicks": [1.2, 0.1],
    "format": [1.0, 0.0], "clicked": {"n": 200, "gain": [0.03, 0.005], "improved": 0.5, "worsened": 0.3},
}  # fmt: skip


def measured() -> dict[str, dict[str, Any]]:
    init = {name: copy.deepcopy(INIT) for name in ("all", "opacity", "effusion", "cardiomegaly")}
    poor = copy.deepcopy(init)
    poor["all"] |= {"lung_iou": [0.6, 0.01], "f1": 0.3}
    sft = {"rows": 700, "radiographs": 80, "greedy": init, "sampled": copy.deepcopy(init), "shuffled": poor}
    rl = copy.deepcopy(sft)
    rl["sampled"]["all"]["reward"] = [1.6, 0.02]
    hows = {
        how: {"all": copy.deepcopy(REVISION)} for how in ("greedy", "sampled", "random_clicks", "second_pass", "oracle")
    }
    hows["random_clicks"]["all"]["gain"] = [-0.03, 0.004]
    hows["second_pass"]["all"]["gain"] = [0.0, 0.001]
    beside = {"random_clicks": [0.05, 0.006], "second_pass": [0.02, 0.004]}
    rev = {"rows": 640, "radiographs": 60, **hows, "beside": beside}
    rev_rl = copy.deepcopy(rev)
    rev_rl["greedy"]["all"] |= {"gain": [0.04, 0.004], "worsened": 0.05}
    rev_rl["greedy"]["all"]["clicked"] |= {"gain": [0.06, 0.005], "worsened": 0.1}
    ious = {"n": 90, "iou": [0.5, 0.56, 0.57, 0.58, 0.59]}
    segmenter = {**ious, "jitter": 0.5, "gains": {"first_click": [0.06, 0.01]}, "by_finding": {"opacity": ious}}
    return {"pi_init_sft": sft, "pi_init": rl, "pi_rev_sft": rev, "pi_rev": rev_rl, "segmenter": segmenter}


def write_run(folder: Path, figures: dict[str, dict[str, Any]]) -> Path:
    (folder / "measured").mkdir(parents=True)
    (folder / "measured" / "segmenter").mkdir()
    (folder / "measured" / "segmenter" / "metrics.json").write_text(json.dumps(figures.pop("segmenter")))
    for name, found in figures.items():
        (folder / "measured" / f"{name}.json").write_text(json.dumps(found))
        (folder / name).mkdir()
        logs = [{"step": step, "loss/answer": 2 / step, "reward": step / 10} for step in (1, 2, 3)]
        (folder / name / "trainer_state.json").write_text(json.dumps({"log_history": logs}))
    (folder / "state.json").write_text(
        json.dumps({"init-sft": {"began": 100.0, "seconds": 700.0}, "init-rl": {"began": 700.0, "seconds": 400.0}})
    )
    tables = folder / "figures" / "tables"
    tables.mkdir(parents=True)
    (tables / "table_2.csv").write_text(
        "Model,Source,CheXpercept gIoU,CheXpercept gIoU low,CheXpercept gIoU high,CheXpercept cIoU,CheXpercept F1\n"
        "XFlow,published,0.9,,,0.9,0.9\n"
        'XFlow,"measured, n = 770 CheXpercept",0.61,0.57,0.65,0.6,0.8\n'
    )
    (folder / "figures" / "xflow").mkdir()
    intervals = {"gIoU": [0.5, 0.7], "cIoU": [0.5, 0.8], "F1": [0.7, 0.9]}
    found = {"n": 400, "n_positive": 90, "gIoU": 0.6, "cIoU": 0.65, "F1": 0.8, "intervals": intervals}
    (folder / "figures" / "xflow" / "metrics.json").write_text(json.dumps({"by_finding": {"effusion": found}}))
    return folder


def written(tmp_path: Path, *runs: Path) -> str:
    words = [word for folder in runs for word in ("--run", str(folder))]
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    page = tmp_path / "docs" / "reproduction.md"
    page.parent.mkdir(exist_ok=True)
    report.run(parser.parse_args([*words, "--out", str(page)]))
    return page.read_text()


def line(page: str, words: str) -> str:
    return next(line for line in page.splitlines() if words in line)


def test_every_claim_is_there_with_its_figure_and_whether_it_holds(tmp_path: Path) -> None:
    figures = measured()
    figures["pi_init_sft"]["greedy"]["opacity"]["box_iou"] = [0.31, 0.02]
    page = written(tmp_path, write_run(tmp_path / "run", figures))
    assert line(page, "lung IoU at least 0.90").endswith("| 0.930 | yes |")
    assert line(page, "opacity, at least 0.40").endswith("| 0.310 | **no** |")
    held = [
        row
        for row in page.splitlines()
        if row.startswith(("| pi_", "| F_seg", "| all")) and row.endswith(("| yes |", "| **no** |"))
    ]
    assert len(held) == len(report.CLAIMS) and sum("**no**" in row for row in held) == 1
    assert "| XFlow | 770 CheXpercept | 0.610 (0.570 to 0.650) | 0.600 | 0.800 |" in page
    assert "| xflow | effusion | 400 (90) | 0.600 (0.500 to 0.700) | 0.650 (0.500 to 0.800) | 0.800 (" in page
    assert "published" not in page
    assert (tmp_path / "docs" / "images" / "reproduction-curves.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("policy", "change", "words"),
    [
        ("pi_init", {"greedy": {"opacity": {"recall": 0.5}}}, "recall falls"),
        ("pi_init", {"greedy": {"all": {"f1": 0.8}}}, "greedy F1 not down"),
        ("pi_rev_sft", {"greedy": {"all": {"gain": [0.007, 0.004]}}}, "greedy gain above zero"),
        ("pi_rev_sft", {"beside": {"random_clicks": [-0.001, 0.004]}}, "above as many random clicks"),
        (
            "pi_rev",
            {"greedy": {"all": {"worsened": 0.0, "clicked": {"n": 0, "gain": None, "worsened": None}}}},
            "share worsened",
        ),
        ("pi_init", {"greedy": {"opacity": {"recall": 0.0}}}, "recall falls"),
        ("pi_rev", {"greedy": {"all": {"clicked": {"n": 0, "gain": None, "worsened": None}}}}, "among clicked cases"),
        ("pi_rev", {"greedy": {"all": {"worsened": 0.11}}}, "at least halved"),
    ],
)
def test_a_policy_that_learns_the_wrong_thing_is_told(
    policy: str, change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    figures = measured()
    for how, findings in change.items():
        for finding, values in findings.items():
            if isinstance(values, dict):
                figures[policy][how][finding] |= values
            else:
                figures[policy][how][finding] = values
    page = written(tmp_path, write_run(tmp_path / "run", figures))
    assert line(page, words).endswith("| **no** |")


def test_a_segmenter_whose_first_click_does_not_help_is_told(tmp_path: Path) -> None:
    figures = measured()
    figures["segmenter"]["gains"]["first_click"] = [0.006, 0.0035]
    page = written(tmp_path, write_run(tmp_path / "run", figures))
    assert line(page, "first click helps").endswith("| +0.0060 ± 0.0035 | **no** |")
    assert "| opacity | 90 | 0.500 | 0.560 | 0.570 | 0.580 | 0.590 |" in page


def test_several_runs_are_counted_and_notes_are_kept(tmp_path: Path) -> None:
    poor = measured()
    poor["pi_init_sft"]["greedy"]["all"]["f1"] = 0.7
    runs = [write_run(tmp_path / "0", measured()), write_run(tmp_path / "1", poor)]
    page = written(tmp_path, *runs)
    assert line(page, "presence F1").endswith("| 0.850 | 0.700 | 1 of 2 |")
    (tmp_path / "docs" / "reproduction.md").write_text(f"{page}Why opacity is hard.\n")
    assert written(tmp_path, *runs).endswith("## Notes\nWhy opacity is hard.\n")


def test_a_run_that_is_not_finished_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="no finished run"):
        report.Run.read(tmp_path)
