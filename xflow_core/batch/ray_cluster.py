"""The same run on a Ray cluster: Ray Data hands out ranges of the list to actors, each of which has a worker process.

An actor supervises a process of its own (:class:`~.processes.WorkerProcess`) as a thread does on one machine. So an
image at which the models crash is a row here as there; it neither ends the actor nor is tried for ever. The answers
come back in the order of the input. All machines need the same version of XFlow and the bundle, and see the images and
the output folder under the same paths.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Generator
from typing import Any

from xflow_core import __version__
from xflow_core.domain.errors import CallError, EngineError, XFlowError

from .image_list import LIST_FILE, WORK_FOLDER, ImageList
from .job import Answered, Job
from .processes import WorkerProcess
from .tasks import tasks_of

_START, _STOP, _ANSWER = "start", "stop", "answer"

# The answers of a range come back together: a small one keeps all actors busy to the end, a large one keeps Ray's own
# work small in a run of 200,000 images.
_RANGES_PER_ACTOR = 32
_LONGEST_RANGE = 32


class BatchActor:
    """Answers ranges of the list, in an actor of Ray's."""

    def __init__(self, job: Job, version: str) -> None:
        self.job = job
        self.version = version
        self.worker = WorkerProcess(job.settings)

    def __call__(self, batch: Any) -> Any:
        """``batch`` has a range in each row; gives a JSON text for each image: its rows, or why the run must end."""
        import pyarrow as pa

        answers = []
        try:
            self._check_version()
            with contextlib.closing(ImageList(self.job.settings.out / WORK_FOLDER / LIST_FILE)) as images:
                for start, stop in zip(batch[_START].to_pylist(), batch[_STOP].to_pylist(), strict=True):
                    for task in tasks_of(self.job, images, start, stop):
                        answers.append(self.worker.answer(task).to_json())
        except OSError as problem:
            lost = EngineError(f"A machine of the cluster does not see the output folder ({problem.strerror}).")
            answers.append(_ending(lost))
        except XFlowError as problem:
            answers.append(_ending(problem))
        return pa.table({_ANSWER: pa.array(answers, pa.string())})

    def _check_version(self) -> None:
        if self.version != __version__:
            raise CallError(
                f"A machine of the cluster has XFlow {__version__}, this one {self.version}; install the same."
            )


class Cluster:
    """A Ray cluster that this process is connected to, and its room for the workers of a job."""

    def __init__(self, job: Job) -> None:
        """Connect to ``job.ray``, an address as ``ray.init`` takes it; ``auto`` is the cluster that this machine is in.

        Raises:
            CallError: Ray is not installed, there is no cluster, or it has no room for so many workers.
        """
        assert job.ray is not None
        self._ray = connect(job.ray)
        has = self._ray.cluster_resources()
        on_gpu = job.settings.device == "cuda" or (job.settings.device == "auto" and has.get("GPU", 0) >= 1)
        kind, share = ("GPU", 1.0) if on_gpu else ("CPU", float(job.settings.threads))
        self._needs = {f"num_{kind.lower()}s": share}
        room = int(has.get(kind, 0) // share)
        if (job.workers or 1) > room:
            raise CallError(f"The cluster has {has.get(kind, 0):g} {kind}s, room for {room} workers of this call.")
        self._workers = job.workers or room

    def run(self, job: Job, images: int, stopping: Callable[[], bool]) -> Generator[Answered, None, None]:
        """Answer a list of so many images, in its order.

        Without a number of workers there is one for each GPU, or, without GPUs, for each ``threads`` CPUs.

        Args:
            stopping: asked after each range; when true, no further answer is waited for.

        Raises:
            EngineError: no worker can be started, or the bundle cannot be used there; ``exit_status`` is the cause's.
        """
        import pyarrow as pa
        from ray.data import ActorPoolStrategy, DataContext

        context = DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        actors = min(self._workers, images)
        length = max(1, min(_LONGEST_RANGE, images // (actors * _RANGES_PER_ACTOR)))
        ranges = [
            pa.table({_START: [start], _STOP: [min(start + length, images)]}) for start in range(0, images, length)
        ]
        answers = (
            self._ray.data.from_arrow(ranges)
            .map_batches(
                BatchActor,
                fn_constructor_args=(job, __version__),
                batch_size=1,
                batch_format="pyarrow",
                compute=ActorPoolStrategy(size=actors),
                **self._needs,
            )
            .iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
        )
        for block in answers:
            for text in block[_ANSWER].to_pylist():
                yield _answer(text)
            if stopping():
                return


def connect(address: str) -> Any:
    """Ray, connected to the cluster at ``address``, or to the one that this process is connected to already.

    Raises:
        CallError: Ray is not installed, or there is no cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as problem:
        raise CallError(f"--ray needs {problem.name}, which is not installed: pip install 'xflow-core[ray]'.") from None
    if ray.is_initialized():
        return ray
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as problem:
        reason = str(problem).split("\n", 1)[0]
        raise CallError(f"There is no Ray cluster at {address!r} ({reason}); start one with: ray start.") from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)  # Ray takes it, to end at once
    return ray


def _ending(problem: XFlowError) -> str:
    return json.dumps({"ending": str(problem), "exit_status": problem.exit_status})


def _answer(text: str) -> Answered:
    data = json.loads(text)
    if "ending" in data:
        problem = EngineError(data["ending"])
        problem.exit_status = data["exit_status"]
        raise problem
    return Answered.from_json(text)
