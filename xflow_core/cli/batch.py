"""``xflow batch``: many images, results into a folder and a table."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from xflow_core import NOT_FOR_CLINICAL_USE
from xflow_core.domain.errors import CallError
from xflow_core.domain.instruction import Instruction, parse_instruction

from .app import fail
from .segment import survey

if TYPE_CHECKING:
    from xflow_core.batch.job import Answered, Job
    from xflow_core.batch.run import Outcome
    from xflow_core.bundles.manifest import Bundle

SHOWN_FAILURES = 20
REPORT_SECONDS = 60.0
"""Without a terminal there is no bar, but a line this often."""

LARGE_BUNDLE_BYTES = 2**30
TOGETHER = 4
"""Images that a worker with a large language model has in work at a time: they share its passes."""


@dataclass(frozen=True)
class BatchCall:
    """The call as it was typed."""

    given: str
    out: Path
    instruction: str | None
    survey: bool
    bundle: str
    device: str
    stages: int
    seed: int
    workers: int | None
    threads: int | None
    resume: bool
    ray: str | None
    image_minutes: float = 30.0
    together: int | None = None

    def instructions(self) -> tuple[Instruction, ...]:
        """What is asked of every image, one instruction per finding; none when the list brings them.

        Raises:
            CallError: both an instruction and a survey; a file without a line; one finding in two lines.
            InstructionError: the words name no finding that XFlow knows.
        """
        if self.survey and self.instruction is not None:
            raise CallError('Give either -i "Segment the effusion" or --survey.')
        if self.survey:
            return survey()
        if self.instruction is None:
            return ()
        asked: dict[str, Instruction] = {}
        for line in _lines(self.instruction):
            for instruction in parse_instruction(line):
                if instruction.finding in asked:
                    raise CallError(
                        f"Two lines ask for {instruction.finding}, and an image has one result for each finding; "
                        "ask for both places in one line."
                    )
                asked[instruction.finding] = instruction
        return tuple(asked.values())


def run_batch_call(call: BatchCall) -> int:
    """Answer the call; returns the exit status, the highest of all images, or that of a signal that stopped it."""
    job = _job(call)
    from xflow_core.batch.run import run_batch

    report = _Report()
    with _stopping() as stop:
        try:
            with report.progress:
                outcome = run_batch(job, started=report.start, answered=report.add, stopping=stop)
        except KeyboardInterrupt:
            report.say(f"xflow: stopped at once; go on with --resume ({NOT_FOR_CLINICAL_USE}).")
            return stop.exit_status
    _tell(outcome, report)
    if outcome.problem is not None:
        fail(outcome.problem)
    if stop():
        print(
            f"xflow: stopped after {outcome.reached} of {outcome.images} images; go on with --resume.",
            file=report.console.file,
        )
        return stop.exit_status
    return outcome.exit_status


def _job(call: BatchCall) -> Job:
    """The call, checked as far as it can be without reading an image or loading a model."""
    instructions = call.instructions()
    if call.out.exists() and not call.out.is_dir():
        raise CallError(f"{call.out} is a file; -o names a folder.")
    try:
        import pyarrow.parquet  # noqa: F401
    except ModuleNotFoundError:
        raise CallError(
            "xflow batch writes its table as Parquet and needs pyarrow, which is not installed: "
            "pip install 'xflow-core[batch]'."
        ) from None
    from xflow_core.batch.job import Job, Settings
    from xflow_core.bundles.loading import DEVICES, LAYOUT_VARIABLE
    from xflow_core.bundles.manifest import find_bundle

    if call.device not in DEVICES:
        raise CallError(f"There is no device {call.device!r}; choose {', '.join(DEVICES)}.")
    if not call.survey and not instructions and Path(call.given).suffix.lower() not in (".csv", ".parquet"):
        raise CallError('Give -i "Segment the effusion", -i FILE with an instruction a line, or --survey.')
    bundle = find_bundle(call.bundle)
    bundle.verify()
    if not call.survey:
        _check_findings(bundle, instructions)
    workers, threads = _shares(call, bundle)
    return Job(
        given=call.given,
        settings=Settings(
            out=call.out.absolute(),
            # A folder is the same folder for workers that start elsewhere.
            bundle=str(Path(call.bundle).absolute()) if bundle.folder == Path(call.bundle) else call.bundle,
            identity=bundle.identity,
            device=call.device,
            stages=call.stages,
            seed=call.seed,
            threads=threads,
            resume=call.resume,
            image_seconds=call.image_minutes * 60,
            together=1 if call.ray is not None else call.together or (TOGETHER if bundle.models else 1),
            layout=os.environ.get(LAYOUT_VARIABLE),
        ),
        instructions=instructions,
        survey=call.survey,
        workers=workers,
        ray=call.ray,
    )


def _check_findings(bundle: Bundle, instructions: tuple[Instruction, ...]) -> None:
    from xflow_core.workflow.engine import check_answered

    for instruction in instructions:
        check_answered(bundle.name, bundle.findings, instruction.finding)


def _shares(call: BatchCall, bundle: Bundle) -> tuple[int | None, int]:
    """Workers and the threads of each. By default one worker of one thread for each CPU, which is the fastest; but a
    single one with a GPU or with a large bundle, which memory may not hold several times."""
    if call.ray is not None:
        return call.workers, call.threads or 1
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = call.workers
    if workers is None:
        size = sum((bundle.folder / name).stat().st_size for name in bundle.files)
        alone = call.device in ("cuda", "mps") or size > LARGE_BUNDLE_BYTES or bool(bundle.models)
        workers = 1 if alone else max(1, cpus // (call.threads or 1))
    return workers, call.threads or max(1, cpus // workers)


def _lines(instruction: str) -> list[str]:
    """The instruction itself, or the lines of the file that it names; blank ones and comments (#) are left out."""
    try:
        text = Path(instruction).read_text(encoding="utf-8-sig") if os.path.isfile(instruction) else None
    except (OSError, ValueError) as problem:
        raise CallError(f"The instructions in {instruction} cannot be read ({problem}).") from None
    if text is None:
        return [instruction]
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith("#")]
    if not kept:
        raise CallError(f"{instruction} holds no instruction; write one a line.")
    return kept


class _Stop:
    """Whether the run was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    @property
    def exit_status(self) -> int:
        """As a shell has it."""
        return 128 + (self.signal or signal.SIGINT)


@contextmanager
def _stopping() -> Iterator[_Stop]:
    """ctrl-C or SIGTERM lets the images in work come to their end; a second one stops at once."""
    stop = _Stop()

    def heard(number: int, _frame: FrameType | None) -> None:
        if stop():
            raise KeyboardInterrupt
        stop.signal = number

    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Rate(TextColumn):
    """Images a second since the start, or a minute where that is less than one."""

    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Task) -> Text:
        return Text(_rate(task.completed, task.elapsed or 0.0))


def _rate(images: float, seconds: float) -> str:
    if not images or seconds <= 0:
        return ""
    rate = images / seconds
    return f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min"


class _Report:
    """What the user sees on stderr while the run goes on."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.progress = Progress(
            TextColumn("images"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.task = TaskID(0)
        self.images = self.done = self.failures = 0
        self.start_time = self.said_time = time.monotonic()

    def say(self, line: str) -> None:
        self.console.print(line, markup=False)

    def start(self, images: int) -> None:
        self.images = images
        self.task = self.progress.add_task("images", total=images)
        self.start_time = self.said_time = time.monotonic()
        if not self.console.is_terminal:
            self.say(f"xflow batch: {images} images")

    def add(self, answered: Answered) -> None:
        self.done += 1
        self.progress.advance(self.task)
        self._failures(answered.rows)
        now = time.monotonic()
        if not self.console.is_terminal and now - self.said_time >= REPORT_SECONDS:
            self.said_time = now
            spent = now - self.start_time
            left = spent / self.done * (self.images - self.done)
            self.say(
                f"xflow batch: {self.done} of {self.images} images, {_rate(self.done, spent)}, about "
                f"{_duration(left)} left"
            )

    def _failures(self, rows: tuple[dict[str, Any], ...]) -> None:
        """One line for each image that lacks an answer or its DICOM results, up to a limit."""
        said = [row["message"] for row in rows if row.get("message") and row.get("reason") != "unsupported"]
        if not said:
            return
        self.failures += 1
        if self.failures <= SHOWN_FAILURES:
            # A file's name may hold what breaks a line or steers a terminal.
            image = "".join(letter if letter.isprintable() else "?" for letter in rows[0]["image"])
            self.say(f"xflow: {image}: {' '.join(str(said[0]).split())}")
        elif self.failures == SHOWN_FAILURES + 1:
            self.say("xflow: further failures are not shown; the table has them all.")


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _tell(outcome: Outcome, report: _Report) -> None:
    """The result in words, on stdout."""
    counts = ", ".join(f"{count} {status}" for status, count in sorted(outcome.statuses.items()))
    images = "image" if outcome.images == 1 else "images"
    reached = f"{outcome.reached} of " if outcome.reached < outcome.images else ""
    print(f"{reached}{outcome.images} {images}: {counts or 'no answer'}")
    if report.failures:
        print(f"{report.failures} not as asked: the columns status, reason and message tell why")
    print(f"table: {outcome.table}")
    print(NOT_FOR_CLINICAL_USE)
