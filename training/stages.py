"""A long piece of work as stages: commands that are printed before they run, done in their order or side by side.

What is done, command by command, stands in a file; a run that was stopped goes on behind it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xflow_core.domain.errors import CallError, EngineError
from xflow_core.export.files import write_whole

LOG = logging.getLogger(__name__)

STATE = "state.json"
LOGS = "logs"


def add_arguments(parser: argparse.ArgumentParser, jobs: str) -> None:
    """Which stages are done, and how. jobs: how many stand side by side where nothing is said, in words."""
    parser.add_argument("--from", dest="start", metavar="STAGE", help="do this stage and all after it anew")
    parser.add_argument("--only", action="append", metavar="STAGE", help="may be repeated")
    parser.add_argument("--skip", action="append", default=[], metavar="STAGE", help="may be repeated")
    parser.add_argument("--jobs", type=int, help=f"stages side by side ({jobs})")
    parser.add_argument("--list", action="store_true", help="print the stages and their commands; run nothing")


def follow(stages: Sequence[Stage], arguments: argparse.Namespace, out: Path, jobs: int) -> None:
    """Do what ``arguments`` (:func:`add_arguments`) ask for; the state and the logs stand in the folder ``out``.

    Raises:
        CallError: a stage that does not exist is named, or one was done by other commands.
        EngineError: a stage failed.
    """
    names = [stage.name for stage in stages]
    for name in (arguments.start, *(arguments.only or ()), *arguments.skip):
        if name is not None and name not in names:
            raise CallError(f"There is no stage {name!r}; the stages are {', '.join(names)}.")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise CallError(f"--jobs is {arguments.jobs}; it counts from 1.")
    if arguments.list:
        for stage in stages:
            print(f"{stage.name}: {stage.why}")
            for command in stage.commands:
                print(f"    {told(command)}")
        return
    out.mkdir(parents=True, exist_ok=True)
    state = State(out / STATE)
    left = []
    anew = False
    for stage in stages:
        anew = anew or stage.name == arguments.start
        if stage.name in arguments.skip or (arguments.only and stage.name not in arguments.only):
            LOG.info("%s: left out", stage.name)
            continue
        if anew:
            state.forget(stage)
        if state.is_done(stage):
            LOG.info("%s: done already", stage.name)
        else:
            left.append(stage)
    do_all(left, state, arguments.jobs or jobs, out / LOGS)
    LOG.info("%s; not for clinical use", out)


@dataclass(frozen=True)
class Stage:
    """Commands (arguments of Python's), the folders in WORK that they make, and the stages that must be done before."""

    name: str
    why: str
    commands: tuple[tuple[str, ...], ...]
    makes: tuple[str, ...]
    needs: tuple[str, ...] = ()


def do_all(stages: Sequence[Stage], state: State, jobs: int, logs: Path) -> None:
    """All stages, each once those that it needs are done; those left out count as done.

    Raises:
        EngineError: one failed. What ran beside it has come to its end, nothing more was begun.
    """
    waiting = list(stages)
    running: dict[Future[None], Stage] = {}
    problem: EngineError | None = None
    with ThreadPoolExecutor(jobs) as pool:
        while running or (waiting and problem is None):
            open_ = {stage.name for stage in (*waiting, *running.values())}
            ready = [stage for stage in waiting if not open_ & set(stage.needs)]
            for stage in ready[: jobs - len(running)] if problem is None else []:
                waiting.remove(stage)
                log = logs / f"{stage.name}.log" if jobs > 1 else None
                LOG.info("%s: %s%s", stage.name, stage.why, "" if log is None else f" (what it says: {log})")
                running[pool.submit(_do, stage, state, log, jobs)] = stage
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                stage = running.pop(done)
                try:
                    done.result()
                    LOG.info("%s: done", stage.name)
                except EngineError as failure:
                    problem = problem or failure
    if problem is not None:
        raise problem


def _do(stage: Stage, state: State, log: Path | None, jobs: int) -> None:
    """Run those of a stage's commands that are not done, at the terminal or into ``log``."""
    environment = dict(os.environ)
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        environment.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or jobs) // jobs, 1)))
    for command in stage.commands[state.count(stage) :]:
        began = time.time()
        print(f"$ {told(command)}", flush=True)
        if log is None:
            status = subprocess.run(command, check=False).returncode
        else:
            with open(log, "a", encoding="utf-8") as told_there:
                status = subprocess.run(
                    command, check=False, env=environment, stdout=told_there, stderr=subprocess.STDOUT
                ).returncode
        if status:
            where = "stands above" if log is None else f"stands in {log}"
            raise EngineError(
                f"The stage {stage.name!r} ended with status {status}; its own message {where}. "
                "The same command goes on from here."
            )
        state.finish(stage, command, began)


def told(command: Sequence[str]) -> str:
    """A command as it is typed."""
    return shlex.join("python" if word == sys.executable else word for word in command)


def _meant(command: str) -> str:
    """What a command that is told asks for, however it is launched."""
    return command.rpartition(" -m ")[2].removeprefix("-- ")


class State:
    """``state.json``: of each stage the commands that are done, when they began (POSIX time), how long they took."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = threading.Lock()
        try:
            self._done: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        except (OSError, ValueError) as problem:
            raise CallError(f"{path} cannot be read ({problem}); remove it to begin anew.") from None

    def is_done(self, stage: Stage) -> bool:
        return self.count(stage) == len(stage.commands)

    def count(self, stage: Stage) -> int:
        """How many of the stage's commands are done.

        Raises:
            CallError: other commands were: another seed, other sets, another number of studies.
        """
        done = [_meant(command) for command in self._done.get(stage.name, {}).get("commands", ())]
        if done != [_meant(told(command)) for command in stage.commands][: len(done)]:
            raise CallError(
                f"The stage {stage.name!r} was done by other commands ({self._path}); "
                f"choose another --out, or do it anew with all after it: --from {stage.name}."
            )
        return len(done)

    def finish(self, stage: Stage, command: Sequence[str], began: float) -> None:
        with self._writing:
            entry = self._done.setdefault(stage.name, {"commands": [], "began": round(began, 1), "seconds": 0.0})
            entry["commands"].append(told(command))
            entry["seconds"] = round(entry["seconds"] + time.time() - began, 1)
            self._write()

    def _write(self) -> None:
        write_whole(self._path, (json.dumps(self._done, indent=1) + "\n").encode())

    def forget(self, stage: Stage) -> None:
        """The stage and what it made."""
        self._done.pop(stage.name, None)
        self._write()
        for name in stage.makes:
            made = self._path.parent / name
            if made.is_dir():
                shutil.rmtree(made)
            else:
                made.unlink(missing_ok=True)
