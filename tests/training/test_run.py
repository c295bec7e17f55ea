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
from training.compact import stages as compact
from training.stages import Stage, told
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
        "bundles-init", "bundles-rev", "measure-init", "measure-segmenter", "measure-rev-sft", "measure-rev",
        "evaluation-init", "evaluation",
    ]  # fmt: skip
    assert [stage.name for stage in run.stages_of(paper(tmp_path))] == told
    assert [stage.name for stage in run.stages_of(arguments("mini", "--out", str(tmp_path)))] == ["sets", "base", *told]


def all_stages(story: str, out: Path) -> list[Stage]:
    if story == "compact":
        parser = argparse.ArgumentParser()
        compact.add_arguments(parser)
        return compact.stages_of(parser.parse_args(["--data", "pack", "--out", str(out)]))
    return run.stages_of(paper(out) if story == "paper" else arguments("mini", "--out", str(out)))


@pytest.mark.parametrize("story", ["paper", "mini", "compact"])
def test_every_command_of_a_stage_is_one_that_its_own_parser_accepts(story: str, tmp_path: Path) -> None:
    import importlib

    for stage in all_stages(story, tmp_path):
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


def stage(name: str, folder: Path, code: str = "", needs: tuple[str, ...] = ()) -> Stage:
    made = folder / name
    script = code or f"import pathlib; p = pathlib.Path({str(made)!r}); p.mkdir(); (p / 'x').write_text('')"
    return Stage(name, "a stage", ((sys.executable, "-c", script),), (name,), needs)


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Stage]:
    made = [stage(name, tmp_path) for name in ("one", "two", "three")]
    monkeypatch.setattr(run, "stages_of", lambda given: made)
    return made


def test_what_is_done_stands_on_disk_and_is_not_done_again(
    stages: list[Stage], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.run(arguments("mini", "--out", str(tmp_path), "--skip", "two"))
    assert (tmp_path / "three").is_dir() and not (tmp_path / "two").exists()
    capsys.readouterr()
    run.run(arguments("mini", "--out", str(tmp_path), "--jobs", "1"))  # "one" would fail: its folder is there
    printed = capsys.readouterr().out
    assert printed.count("$ ") == 1 and shlex.quote(str(tmp_path / "two"))[1:-1] in printed
    state = json.loads((tmp_path / "state.json").read_text())
    assert set(state) == {"one", "two", "three"} and state["two"]["commands"] == [told(stages[1].commands[0])]


def test_from_does_a_stage_and_all_after_it_anew(stages: list[Stage], tmp_path: Path) -> None:
    run.run(arguments("mini", "--out", str(tmp_path)))
    kept = (tmp_path / "one" / "x").stat().st_mtime_ns
    (tmp_path / "two" / "left over").write_text("")
    run.run(arguments("mini", "--out", str(tmp_path), "--from", "two"))
    assert (tmp_path / "one" / "x").stat().st_mtime_ns == kept
    assert not (tmp_path / "two" / "left over").exists() and (tmp_path / "three" / "x").exists()


def test_jobs_count_from_one(stages: list[Stage], tmp_path: Path) -> None:
    with pytest.raises(CallError, match="--jobs is 0; it counts from 1"):
        run.run(arguments("mini", "--out", str(tmp_path), "--jobs", "0"))


def test_only_runs_that_stage(stages: list[Stage], tmp_path: Path) -> None:
    run.run(arguments("mini", "--out", str(tmp_path), "--only", "two", "--jobs", "1"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "policies.json", "state.json", "two"]
    with pytest.raises(CallError, match="no stage 'four'"):
        run.run(arguments("mini", "--out", str(tmp_path), "--only", "four"))


def test_a_stage_that_fails_stops_the_run_and_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = [stage("one", tmp_path), stage("two", tmp_path, "raise SystemExit(3)"), stage("three", tmp_path)]
    monkeypatch.setattr(run, "stages_of", lambda given: failing)
    with pytest.raises(EngineError, match="'two' ended with status 3; its own message stands above"):
        run.run(arguments("mini", "--out", str(tmp_path), "--jobs", "1"))
    assert not (tmp_path / "three").exists()
    failing[1] = stage("two", tmp_path)
    run.run(arguments("mini", "--out", str(tmp_path)))
    assert (tmp_path / "three").is_dir()


def test_of_a_stage_of_several_commands_those_that_are_done_are_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, ready = tmp_path / "made", tmp_path / "ready"
    first = (sys.executable, "-c", f"import pathlib; pathlib.Path({str(made)!r}).mkdir()")  # twice would fail
    second = (sys.executable, "-c", f"import pathlib; assert pathlib.Path({str(ready)!r}).exists()")
    monkeypatch.setattr(run, "stages_of", lambda given: [Stage("both", "two commands", (first, second), ("made",))])
    with pytest.raises(EngineError, match="goes on from here"):
        run.run(arguments("mini", "--out", str(tmp_path), "--jobs", "1"))
    ready.write_text("")
    run.run(arguments("mini", "--out", str(tmp_path), "--jobs", "1"))
    assert json.loads((tmp_path / "state.json").read_text())["both"]["commands"] == [told(first), told(second)]


def test_from_one_stage_and_only_that_keeps_what_comes_after(stages: list[Stage], tmp_path: Path) -> None:
    run.run(arguments("mini", "--out", str(tmp_path), "--jobs", "1"))
    kept = (tmp_path / "three" / "x").stat().st_mtime_ns
    run.run(arguments("mini", "--out", str(tmp_path), "--from", "two", "--only", "two", "--jobs", "1"))
    assert (tmp_path / "three" / "x").stat().st_mtime_ns == kept and (tmp_path / "two" / "x").exists()


def test_a_run_is_not_mixed_with_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sets(seed: int, *launch: str) -> list[Stage]:
        # Python takes -m as it comes: what is launched, and how, is told apart by it.
        return [Stage("sets", "a stage", ((*(launch or (sys.executable,)), "-m", "this", str(seed)),), ())]

    monkeypatch.setattr(run, "stages_of", lambda given: sets(1))
    run.run(arguments("mini", "--out", str(tmp_path), "--jobs", "1"))
    monkeypatch.setattr(run, "stages_of", lambda given: sets(1, sys.executable, "-u"))
    run.run(arguments("mini", "--out", str(tmp_path), "--jobs", "1"))
    monkeypatch.setattr(run, "stages_of", lambda given: sets(2))
    with pytest.raises(CallError, match="'sets' was done by other commands"):
        run.run(arguments("mini", "--out", str(tmp_path), "--jobs", "1"))
    run.run(arguments("mini", "--out", str(tmp_path), "--jobs", "1", "--from", "sets"))
    other = tmp_path / "other.yaml"
    other.write_text(run.MINI.read_text().replace("starts: 2", "starts: 3"))
    with pytest.raises(CallError, match="is not the configuration that this run began with"):
        run.run(arguments("mini", "--out", str(tmp_path), "--config", str(other)))


@pytest.mark.parametrize("story", ["mini", "compact"])
def test_every_stage_needs_only_stages_before_it_and_what_it_reads_is_made_by_them(story: str, tmp_path: Path) -> None:
    stages = all_stages(story, tmp_path)
    before: dict[str, set[str]] = {}
    for each in stages:
        assert set(each.needs) <= set(before), each.name
        before[each.name] = set(each.needs).union(*(before[name] for name in each.needs))
    makes = {made: each.name for each in stages for made in (*each.makes,)}
    for each in stages:
        told = " ".join(word for command in each.commands for word in command)
        for made, maker in makes.items():
            if f"{tmp_path / made} " in told + " " and maker != each.name:
                assert maker in before[each.name], (each.name, made)


def test_side_by_side_run_the_stages_that_do_not_need_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each of the first two waits for the other one's word, and the third for both to be done.
    meet = (
        "import pathlib, time; here = pathlib.Path({here!r}); here.write_text(''); print('said')\n"
        "while not pathlib.Path({there!r}).exists(): time.sleep(0.01)"
    )
    one, two = str(tmp_path / "here-one"), str(tmp_path / "here-two")
    state = str(tmp_path / "state.json")
    last = f"import json, pathlib; assert set(json.loads(pathlib.Path({state!r}).read_text())) == {{'one', 'two'}}"
    made = [
        stage("one", tmp_path, meet.format(here=one, there=two)),
        stage("two", tmp_path, meet.format(here=two, there=one)),
        stage("three", tmp_path, last, ("one", "two")),
    ]
    monkeypatch.setattr(run, "stages_of", lambda given: made)
    run.run(arguments("mini", "--out", str(tmp_path), "--jobs", "2"))
    assert set(json.loads((tmp_path / "state.json").read_text())) == {"one", "two", "three"}
    assert (tmp_path / "logs" / "one.log").read_text() == "said\n"


def test_side_by_side_a_failure_lets_the_other_end_and_begins_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = f"import pathlib, time; time.sleep(0.5); pathlib.Path({str(tmp_path / 'slow')!r}).write_text('')"
    made = [
        stage("bad", tmp_path, "raise SystemExit('why it failed')"),
        stage("slow", tmp_path, slow),
        stage("after", tmp_path),
    ]
    monkeypatch.setattr(run, "stages_of", lambda given: made)
    with pytest.raises(EngineError, match=r"'bad' ended with status 1; its own message stands in .*bad\.log"):
        run.run(arguments("mini", "--out", str(tmp_path), "--jobs", "2"))
    assert set(json.loads((tmp_path / "state.json").read_text())) == {"slow"}
    assert "why it failed" in (tmp_path / "logs" / "bad.log").read_text() and not (tmp_path / "after").exists()
