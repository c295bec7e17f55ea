"""The run as a script of stages: what is run is told, what is done is not done again."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

import pytest

from training import run
from training.__main__ import COMMANDS
from xflow_core.domain.errors import CallError, EngineError


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    return parser.parse_args(list(words))


def paper(out: Path, *words: str) -> argparse.Namespace:
    return arguments("paper", "--out", str(out), "--data", "sets", "--base", "medgemma", "--sam3", "sam3", *words)


def test_both_stories_tell_the_papers_stages_in_their_order(tmp_path: Path) -> None:
    told = [
        "check", "splits", "instructions", "segmenter", "trajectories", "init-sft", "init-rl", "rev-sft", "rev-rl",
        "bundles", "measure", "evaluation",
    ]  # fmt: skip
    assert [stage.name for stage in run.stages_of(paper(tmp_path))] == told
    assert [stage.name for stage in run.stages_of(arguments("mini", "--out", str(tmp_path)))] == ["sets", "base", *told]


@pytest.mark.parametrize("story", ["paper", "mini"])
def test_every_command_of_a_stage_is_one_that_its_own_parser_accepts(story: str, tmp_path: Path) -> None:
    import importlib

    given = paper(tmp_path) if story == "paper" else arguments("mini", "--out", str(tmp_path))
    for stage in run.stages_of(given):
        for command in stage.commands:
            if "training" in command:
                words = list(command[command.index("training") + 1 :])
                name = next(name for name in COMMANDS if words[: len(name.split())] == name.split())
                parser = argparse.ArgumentParser()
                importlib.import_module(COMMANDS[name]).add_arguments(parser)
                parser.parse_args(words[len(name.split()) :])


def test_pi_rev_starts_from_pi_inits_sft_and_trainings_go_on_where_they_stopped(tmp_path: Path) -> None:
    stages = {stage.name: stage for stage in run.stages_of(paper(tmp_path, "--launch", "accelerate launch"))}
    (command,) = stages["rev-sft"].commands
    assert command[command.index("--start") + 1].endswith("pi_init_sft")
    for name in ("init-sft", "init-rl", "rev-sft", "rev-rl"):
        assert stages[name].commands[0][:2] == ("accelerate", "launch")
        assert "--resume" in stages[name].commands[0]


def test_the_papers_run_wants_the_real_sets_and_the_miniature_none(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="needs --data"):
        run.stages_of(arguments("paper", "--out", str(tmp_path)))
    with pytest.raises(CallError, match="its own --base"):
        run.stages_of(arguments("mini", "--out", str(tmp_path), "--base", "medgemma"))


def stage(name: str, folder: Path, code: str = "") -> run.Stage:
    made = folder / name
    script = code or f"import pathlib; p = pathlib.Path({str(made)!r}); p.mkdir(); (p / 'x').write_text('')"
    return run.Stage(name, "a stage", ((sys.executable, "-c", script),), (name,))


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[run.Stage]:
    made = [stage(name, tmp_path) for name in ("one", "two", "three")]
    monkeypatch.setattr(run, "stages_of", lambda given: made)
    return made


def test_what_is_done_stands_on_disk_and_is_not_done_again(
    stages: list[run.Stage], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.run(arguments("mini", "--out", str(tmp_path), "--skip", "two"))
    assert (tmp_path / "three").is_dir() and not (tmp_path / "two").exists()
    capsys.readouterr()
    run.run(arguments("mini", "--out", str(tmp_path)))  # "one" would fail: its folder is there
    printed = capsys.readouterr().out
    assert printed.count("$ ") == 1 and shlex.quote(str(tmp_path / "two"))[1:-1] in printed
    state = json.loads((tmp_path / "state.json").read_text())
    assert set(state) == {"one", "two", "three"} and state["two"]["commands"] == [run.told(stages[1].commands[0])]


def test_from_does_a_stage_and_all_after_it_anew(stages: list[run.Stage], tmp_path: Path) -> None:
    run.run(arguments("mini", "--out", str(tmp_path)))
    kept = (tmp_path / "one" / "x").stat().st_mtime_ns
    (tmp_path / "two" / "left over").write_text("")
    run.run(arguments("mini", "--out", str(tmp_path), "--from", "two"))
    assert (tmp_path / "one" / "x").stat().st_mtime_ns == kept
    assert not (tmp_path / "two" / "left over").exists() and (tmp_path / "three" / "x").exists()


def test_only_runs_that_stage(stages: list[run.Stage], tmp_path: Path) -> None:
    run.run(arguments("mini", "--out", str(tmp_path), "--only", "two"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policies.json", "state.json", "two"]
    with pytest.raises(CallError, match="no stage 'four'"):
        run.run(arguments("mini", "--out", str(tmp_path), "--only", "four"))


def test_a_stage_that_fails_stops_the_run_and_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = [stage("one", tmp_path), stage("two", tmp_path, "raise SystemExit(3)"), stage("three", tmp_path)]
    monkeypatch.setattr(run, "stages_of", lambda given: failing)
    with pytest.raises(EngineError, match="'two' ended with status 3"):
        run.run(arguments("mini", "--out", str(tmp_path)))
    assert not (tmp_path / "three").exists()
    failing[1] = stage("two", tmp_path)
    run.run(arguments("mini", "--out", str(tmp_path)))
    assert (tmp_path / "three").is_dir()
