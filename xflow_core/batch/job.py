"""What is asked of a worker and what it answers: plain values that travel as JSON between processes and machines."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import BundleIdentity

SLOT_VARIABLE = "XFLOW_BATCH_SLOT"
"""A worker's number among those of its machine, in its environment; it spreads them over the GPUs."""


@dataclass(frozen=True)
class Settings:
    """What is the same for all images of a run.

    Attributes:
        out: the folder for the results; on a cluster, all machines see it under this path.
        bundle: a bundle's name or folder, as typed.
        identity: the bundle that the call found; a worker that finds another one under the name refuses to work.
        threads: of torch and numpy, in each worker.
        resume: take results that are done and whole as they are.
        since: a result is no older than this (a file's modification time, nanoseconds) if it counts as done.
        together: images that a worker has in work at a time, in threads that share its model's passes.
        layout: how a foundation bundle's policies lie in memory; None leaves it to the worker's environment.
        image_seconds: the longest that a worker may be at one image, all its questions and a first load of the models
            together; then the worker is ended, and the image is a row with that reason.
    """

    out: Path
    bundle: str
    identity: BundleIdentity
    device: str = "auto"
    stages: int = 2
    seed: int = 0
    threads: int = 1
    resume: bool = False
    since: int = 0
    image_seconds: float = 1800.0
    together: int = 1
    layout: str | None = None

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "out": str(self.out)})

    @classmethod
    def from_json(cls, text: str) -> Settings:
        data = json.loads(text)
        identity = BundleIdentity.from_json(data.pop("identity"))
        return cls(out=Path(data.pop("out")), identity=identity, **data)


@dataclass(frozen=True)
class Job:
    """What a call asks for.

    Attributes:
        given: the input as typed.
        instructions: what is asked of every image whose row has no instruction of its own; one per finding.
        survey: these are all the findings, whether or not the bundle can answer them.
        workers: images at a time; None takes what the machine or the cluster has.
        ray: the address of a Ray cluster, or None for this machine.
    """

    given: str
    settings: Settings
    instructions: tuple[Instruction, ...] = ()
    survey: bool = False
    workers: int | None = None
    ray: str | None = None


@dataclass(frozen=True)
class Task:
    """One row of the input: an image and what is asked of it.

    Attributes:
        position: its place in the input, counted from 0.
        image: its path as the input names it.
        path: the same, to be opened.
        name: its folder among the results.
        instructions: one per finding, no finding twice.
        survey: all findings are asked, so that one which the bundle cannot answer is no mistake of the caller's.
        problem: why nothing can be asked (the row's instruction was not understood); there are no instructions then.
    """

    position: int
    image: str
    path: str
    name: str
    instructions: tuple[Instruction, ...]
    survey: bool = False
    problem: str | None = None

    def __post_init__(self) -> None:
        findings = [instruction.finding for instruction in self.instructions]
        if len(set(findings)) != len(findings):
            raise ValueRefused(f"An image is asked for each finding once; got {', '.join(findings)}.")
        if bool(findings) == (self.problem is not None):
            raise ValueRefused("An image has instructions, or a problem that says why there are none.")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        data = json.loads(text)
        asked = tuple(
            Instruction(**{**one, "regions": tuple(one["regions"]), "notes": tuple(one["notes"])})
            for one in data.pop("instructions")
        )
        return cls(instructions=asked, **data)


@dataclass(frozen=True)
class Answered:
    """The rows of one image, in the order of its instructions, and its exit status as ``xflow segment`` has it."""

    position: int
    rows: tuple[dict[str, Any], ...]
    exit_status: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Answered:
        data = json.loads(text)
        return cls(data["position"], tuple(data["rows"]), data["exit_status"])


def answer_without_trace(
    task: Task, settings: Settings, reason: str, message: str, exit_status: int, seconds: float = 0.0
) -> Answered:
    """The rows of an image of which nothing was written: every finding asked for, and the reason."""
    rows = tuple(row_without_trace(task, settings, asked, reason, message, seconds) for asked in asked_of(task))
    return Answered(task.position, rows, exit_status)


def asked_of(task: Task) -> tuple[Instruction | None, ...]:
    """The instructions, or None alone when there are none: an image always has a row."""
    return task.instructions or (None,)


def row_without_trace(
    task: Task, settings: Settings, asked: Instruction | None, reason: str, message: str, seconds: float
) -> dict[str, Any]:
    """A row of the table (see :mod:`.table`) without a result on disk."""
    return {
        **row_start(task, settings, asked),
        "status": "refused" if reason == "refused" else "failed",
        "reason": reason,
        "message": message,
        "seconds": round(seconds, 4),
    }


def row_start(task: Task, settings: Settings, asked: Instruction | None) -> dict[str, Any]:
    """What a row says before there is any answer."""
    return {
        "position": task.position,
        "image": task.image,
        "instruction": None if asked is None else asked.text,
        "finding": None if asked is None else asked.finding,
        "regions": None if asked is None else list(asked.regions),
        "level": None if asked is None else asked.level,
        **{f"bundle_{key}": value for key, value in settings.identity.to_json().items()},
    }
