"""A whole run: the list, the workers, the parts, the table."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from xflow_core import NOT_FOR_CLINICAL_USE, __version__
from xflow_core.bundles.manifest import file_sha256
from xflow_core.domain.errors import CallError, NotWritten, XFlowError
from xflow_core.export.files import write_whole

from .image_list import LIST_FILE, WORK_FOLDER, ImageList, write_list
from .job import Answered, Job
from .processes import run_on_this_machine
from .table import TABLE_FILE, Parts, write_table
from .tasks import tasks_of

VERSION_FILE = "version.json"
LOCK_FILE = "lock"


@dataclass
class Outcome:
    """How a run ended.

    Attributes:
        images: those in the list.
        reached: those that have their rows.
        statuses: how many rows are present, absent, refused, ..
        exit_status: the highest of all images.
        problem: what ended the run before its end, other than a wish to stop.
    """

    table: Path
    images: int = 0
    reached: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    exit_status: int = 0
    problem: XFlowError | None = None


def run_batch(
    job: Job,
    *,
    started: Callable[[int], None],
    answered: Callable[[Answered], None],
    stopping: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Answer all images and write the table, which also holds what there is of a run that is stopped or cannot go on.

    Args:
        started: called with the number of images before the first is answered.
        answered: called with the rows of each image, in the order in which they are done.
        stopping: asked often; once true, no further image is begun.

    Raises:
        CallError: the input cannot be used; nothing was changed.
        NotWritten: the output folder cannot be written.
        KeyboardInterrupt: as it comes, after the table was written.
    """
    cluster = None
    if job.ray is not None:
        from .ray_cluster import Cluster

        cluster = Cluster(job)
    work = job.settings.out / WORK_FOLDER
    with _alone_in(work):
        images = _prepare(job, work)
        try:
            job = replace(job, settings=replace(job.settings, since=_since(work)))
            started(len(images))
            if cluster is None:
                workers = min(job.workers or 1, len(images))
                source = run_on_this_machine(job.settings, tasks_of(job, images), workers, stopping)
            else:
                source = cluster.run(job, len(images), stopping)
            return _collect(job, images, source, answered)
        finally:
            images.close()


def _collect(
    job: Job, images: ImageList, source: Generator[Answered, None, None], answered: Callable[[Answered], None]
) -> Outcome:
    out = job.settings.out
    parts = Parts(out / WORK_FOLDER, len(images))
    outcome = Outcome(out / TABLE_FILE, images=len(images))
    try:
        with contextlib.closing(source):
            for done in source:
                parts.add(done.position, done.rows)
                outcome.reached += 1
                outcome.statuses.update(row["status"] for row in done.rows)
                outcome.exit_status = max(outcome.exit_status, done.exit_status)
                answered(done)
    except NotWritten:
        raise  # the table would not be written either
    except XFlowError as problem:
        outcome.problem = problem
        outcome.exit_status = max(outcome.exit_status, problem.exit_status)
    finally:
        # Also after a second ctrl-C: what was answered is not lost.
        parts.flush()
        write_table(out, parts, images.carried(), images.carried_schema, _call(job))
    return outcome


@contextlib.contextmanager
def _alone_in(work: Path) -> Iterator[None]:
    """The run's own folder, made if need be, and no other run in it. What a wrong call made is removed again."""
    new = [folder for folder in (work, *work.parents) if not folder.exists()]
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = open(work / LOCK_FILE, "w")  # noqa: SIM115  closed below
    except OSError as problem:
        raise NotWritten(
            f"{work} cannot be made: {problem.strerror}; choose another output folder or make room there."
        ) from problem
    try:
        with lock:
            _lock(lock, work.parent)
            yield
    except XFlowError:
        if new and not (work / LIST_FILE).exists():
            (work / LOCK_FILE).unlink()
            for folder in new:
                folder.rmdir()
        raise


def _lock(file: TextIO, out: Path) -> None:
    """Take the file for this process alone, until it is closed or the process ends, however it ends."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CallError(f"Another batch writes to {out}; wait for its end, or choose another output folder.") from None
    except OSError:
        pass  # a file system without locks


def _prepare(job: Job, work: Path) -> ImageList:
    """The list of this run, beside the parts of an earlier one if it goes on with the same list."""
    path, new = work / LIST_FILE, work / f"new-{LIST_FILE}"
    write_list(job.given, job.settings.out, new)
    for half_made in (*work.glob(".*.part"), *job.settings.out.glob(f".{TABLE_FILE}.*.part")):
        half_made.unlink()  # of a run that was killed
    same = job.settings.resume and path.is_file() and file_sha256(path) == file_sha256(new)
    if not same:
        # The rows of another list would stand at the wrong images.
        (job.settings.out / TABLE_FILE).unlink(missing_ok=True)
        for part in work.glob("part-*.parquet"):
            part.unlink()
    os.replace(new, path)
    return ImageList(path)


def _since(work: Path) -> int:
    """When this version of XFlow first worked in the folder: what was written before is another version's."""
    path = work / VERSION_FILE
    try:
        known = json.loads(path.read_bytes())["xflow_version"]
    except (OSError, ValueError, KeyError, TypeError):
        known = None
    if known != __version__:
        write_whole(path, json.dumps({"xflow_version": __version__, "notice": NOT_FOR_CLINICAL_USE}).encode())
    return path.stat().st_mtime_ns


def _call(job: Job) -> dict[str, object]:
    """What the table says of the call; no path, which may name a person."""
    return {
        "instructions": list(dict.fromkeys(asked.text for asked in job.instructions)),
        "survey": job.survey,
        "bundle": job.settings.identity.to_json(),
        "stages": job.settings.stages,
        "seed": job.settings.seed,
    }
