"""A bundle's answers to an evaluation set, a trace for each row in ``OUT/traces``, from which a stopped run goes on.

Rows are answered in this process, each image encoded once for all its rows, or through ``xflow batch`` on several
workers or a Ray cluster, each row an image of its own there."""

from __future__ import annotations

import csv
import hashlib
import io
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from training.evaluation.rows import Row
from xflow_core.bundles.loading import load_engine
from xflow_core.bundles.manifest import Bundle
from xflow_core.domain.errors import CallError, EngineError, XFlowError
from xflow_core.domain.instruction import Instruction, parse_instruction
from xflow_core.domain.trace import BoxesStep, MaskStep, Trace
from xflow_core.export.files import read_trace, write_trace, write_whole
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.workflow.engine import Engine
from xflow_core.workflow.session import answer

LOG = logging.getLogger(__name__)

TRACES = "traces"
_SECONDS = 20.0  # between two lines of progress


@dataclass(frozen=True)
class Asking:
    """How a set is asked.

    Attributes:
        out: the evaluation's folder.
        name: the bundle as typed.
        workers: more than one, or ``ray``, takes the batch path.
        threads: of torch, in this process or in each worker.
        empty_is_absent: take an answer that was judged present and of whose masks no pixel is left (:func:`is_empty`).
    """

    out: Path
    name: str
    bundle: Bundle
    device: str = "auto"
    stages: int = 2
    seed: int = 0
    threads: int = 2
    resume: bool = False
    workers: int = 1
    ray: str | None = None
    empty_is_absent: bool = False

    def trace_file(self, row: Row) -> Path:
        """Raises CallError: the row's id is no file name."""
        if not row.id or row.id != Path(row.id).name or "\\" in row.id or "\0" in row.id:
            raise CallError(f"The row id {row.id!r} cannot be a file name; ids of an evaluation set hold no slash.")
        return self.out / TRACES / f"{row.id}.json"

    def stored(self, row: Row, sha256: str) -> Trace | None:
        """The row's trace from an earlier run, if it answers this question on this image as this run would."""
        path = self.trace_file(row)
        if not path.is_file():
            return None
        try:
            trace = read_trace(path)
        except XFlowError:
            return None  # damaged: it is made again
        as_here = trace.bundle == self.bundle.identity and (trace.stages, trace.seed) == (self.stages, self.seed)
        same = trace.image.sha256 == sha256 and _question(trace.instruction) == _question(row.instruction)
        return trace if as_here and same and _answered(trace) else None


@dataclass
class Progress:
    """Says now and then how far a run is, and about how long it still takes."""

    total: int
    what: str = "rows"
    done: int = 0
    taken: int = 0
    start: float = field(default_factory=time.monotonic)
    said: float = field(default_factory=time.monotonic)

    def add(self, stored: bool) -> None:
        self.done += 1
        self.taken += stored
        now = time.monotonic()
        if now - self.said < _SECONDS and self.done < self.total:
            return
        self.said = now
        made = self.done - self.taken
        left = (now - self.start) / made * (self.total - self.done) if made else 0.0
        resumed = f", {self.taken} of them from before" if self.taken else ""
        LOG.info("%d of %d %s%s; about %d s left", self.done, self.total, self.what, resumed, round(left))


def answers(
    asking: Asking, rows: Sequence[Row], engine: Callable[[], Engine] | None = None
) -> Iterator[tuple[Row, Trace]]:
    """Each row with its answer; stored ones first where the run is resumed.

    Args:
        engine: gives the engine, at first need; it is loaded here by default.

    Raises:
        XFlowError: a row cannot be answered; the message names it. What was answered before stays for ``--resume``.
    """
    (asking.out / TRACES).mkdir(parents=True, exist_ok=True)
    progress = Progress(len(rows))
    pending = []
    shas: dict[Path, str] = {}
    for row in rows:
        trace = None
        if asking.resume and asking.trace_file(row).is_file():
            if row.image not in shas:
                shas[row.image] = _sha256(row)
            trace = asking.stored(row, shas[row.image])
        if trace is None:
            pending.append(row)
        else:
            progress.add(stored=True)
            yield row, trace
    if not pending:
        return
    made = (
        _in_batch(asking, pending) if asking.workers > 1 or asking.ray is not None else _here(asking, pending, engine)
    )
    for row, trace in made:
        if not (_answered(trace) or (asking.empty_is_absent and is_empty(trace))):
            reason = trace.result.message if trace.result is not None else "there is no result"
            raise EngineError(f"Row {row.id} has no answer: {reason}")
        write_trace(asking.trace_file(row), trace)
        progress.add(stored=False)
        yield row, trace


def _here(asking: Asking, rows: Sequence[Row], given: Callable[[], Engine] | None) -> Iterator[tuple[Row, Trace]]:
    import torch

    torch.set_num_threads(asking.threads)
    engine = load_engine(asking.name, asking.device) if given is None else given()
    for path, asked in groupby(sorted(rows, key=lambda row: str(row.image)), key=lambda row: row.image):
        image = engine.admit(read_radiograph(path), accept_image=True)
        for row in asked:
            yield row, answer(engine, image, row.instruction, stages=asking.stages, seed=asking.seed)


def _in_batch(asking: Asking, rows: Sequence[Row]) -> Iterator[tuple[Row, Trace]]:
    from xflow_core.batch.image_list import folder_names
    from xflow_core.batch.job import Job, Settings
    from xflow_core.batch.run import run_batch

    for row in rows:
        parsed = parse_instruction(row.instruction.text)
        if [_question(one) for one in parsed] != [_question(row.instruction)]:
            raise CallError(
                f"Row {row.id} asks {row.instruction.text!r}, which is not read as its finding and regions; the batch "
                "path asks by words alone. Evaluate without --workers and --ray."
            )
    out = asking.out.absolute() / "batch"
    if not asking.resume:
        shutil.rmtree(out, ignore_errors=True)
    listed = io.StringIO()
    writer = csv.writer(listed, lineterminator="\n")
    writer.writerow(["image", "instruction"])
    paths = [str(row.image.absolute()) for row in rows]
    writer.writerows(zip(paths, (row.instruction.text for row in rows), strict=True))
    given = asking.out / "batch.csv"
    write_whole(given, listed.getvalue().encode())
    name = str(Path(asking.name).absolute()) if asking.bundle.folder == Path(asking.name) else asking.name
    settings = Settings(
        out,
        name,
        asking.bundle.identity,
        asking.device,
        asking.stages,
        asking.seed,
        max(1, asking.threads),
        asking.resume,
    )
    LOG.info("%d rows by xflow batch", len(rows))
    watched = Progress(len(rows))
    job = Job(str(given), settings, workers=asking.workers, ray=asking.ray)
    outcome = run_batch(job, started=lambda n: None, answered=lambda done: watched.add(stored=False))
    for row, folder in zip(rows, folder_names(paths), strict=True):
        path = out / folder / row.instruction.finding / "trace.json"
        if not path.is_file():
            raise outcome.problem or EngineError(
                f"Row {row.id} has no answer; {outcome.table} says why. An image that the guards refuse is answered, "
                "with a warning in its trace, without --workers and --ray."
            )
        yield row, read_trace(path)
    shutil.rmtree(out, ignore_errors=True)
    given.unlink()


def is_empty(trace: Trace) -> bool:
    """Whether an answer failed for this alone: judged present, every box got a mask, and none has a pixel left."""
    boxes, masks = trace.last(BoxesStep), [step for step in trace.steps if isinstance(step, MaskStep)]
    if _answered(trace) or boxes is None or not boxes.boxes:
        return False
    last = {step.component: step for step in masks}
    return {box.component for box in boxes.boxes} == set(last) and not any(s.mask.array.any() for s in last.values())


def _answered(trace: Trace) -> bool:
    return trace.result is not None and trace.result.present is not None


def _question(instruction: Instruction) -> tuple[str, str, tuple[str, ...], str]:
    return instruction.text, instruction.finding, instruction.regions, instruction.level


def _sha256(row: Row) -> str:
    try:
        with row.image.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as problem:
        raise CallError(f"The image of row {row.id} cannot be read: {row.image} ({problem.strerror}).") from None
