"""A worker: its own process, one engine, one image at a time.

It reads JSON lines on stdin, first the :class:`~.job.Settings`, then tasks, and answers each on stdout:

    {"loaded": true}                        once, when the engine is ready: a death before it is no image's fault
    {"answered": {..}}                      the rows of a task
    {"stop": sentence, "exit_status": n}    the bundle cannot be used here; no task will fare better

It ends when stdin does, so none outlives the process that started it by more than the image in work, and it ends itself
when an image takes longer than ``Settings.image_seconds``.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from typing import Any, TextIO

from xflow_core.bundles.loading import load_engine
from xflow_core.bundles.manifest import find_bundle
from xflow_core.domain.errors import BundleError, XFlowError
from xflow_core.workflow.engine import Engine

from .image import answer_image
from .job import SLOT_VARIABLE, Settings, Task


class _LazyEngine:
    """The engine, loaded when the first image needs it: a resumed run may need none."""

    def __init__(self, settings: Settings, out: TextIO) -> None:
        self.settings = settings
        self.out = out
        self.engine: Engine | None = None

    def __call__(self) -> Engine:
        if self.engine is None:
            found = find_bundle(self.settings.bundle).identity
            if found != self.settings.identity:
                raise BundleError(
                    f"The bundle {self.settings.bundle!r} is another one here ({found.name} {found.version}) than "
                    "where the batch was started; install the same."
                )
            _choose_gpu(self.settings.device)
            self.engine = load_engine(self.settings.bundle, self.settings.device)
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(self.settings.threads)
            # What a library says of an image may quote its header: from here on it goes nowhere.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            _say(self.out, {"loaded": True})
        return self.engine


def main() -> None:
    """Serve until stdin ends."""
    # Stopping is for the process that started this one: it lets the image in work come to its end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # What a library prints must not come between the answers.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    settings = Settings.from_json(sys.stdin.readline())
    engine = _LazyEngine(settings, out)
    try:
        for line in sys.stdin:
            # Also when a library's own code hangs and holds the interpreter's lock.
            faulthandler.dump_traceback_later(settings.image_seconds, exit=True)
            answered = answer_image(Task.from_json(line), settings, engine)
            faulthandler.cancel_dump_traceback_later()
            _say(out, {"answered": json.loads(answered.to_json())})
    except XFlowError as problem:
        _say(out, {"stop": str(problem), "exit_status": problem.exit_status})
    except BrokenPipeError:
        # Whoever asked is gone; nothing more may be written, also not at the interpreter's end.
        os._exit(0)


def _say(out: TextIO, message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


def _choose_gpu(device: str) -> None:
    """Spread the workers of one machine over its GPUs."""
    if device == "cpu":
        return
    try:
        import torch
    except ModuleNotFoundError:
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get(SLOT_VARIABLE, "0")) % torch.cuda.device_count())


if __name__ == "__main__":
    main()
