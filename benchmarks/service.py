"""What the service adds to a run: everything but the model, as the desktop client sees it.

    python -m benchmarks.service [--bundle compact] [--image FILE] [--threads N] [--repeat N]

One server process on this machine, one client, an image that is encoded already: so a run here is short, and what the
service adds weighs most. "Server overhead" is the client's wall time for a whole run less the seconds that the run's
steps say of themselves; it holds both ends' JSON, HTTP, queueing and mask coding. Times are medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine import large_dicom, python, timed
from xflow_core.domain.trace import BoxesStep, StopStep, Trace
from xflow_core.service.client import Run
from xflow_core.service.local import LocalEngine

GOALS = {
    "server overhead": "10 ms",
    "server overhead, share of the run": "5 %",
    "import xflow_core.service.client": "300 ms",
}


@dataclass(frozen=True)
class Timed:
    """One run as its client saw it, in seconds: until its first step, until its end, and what the models took."""

    first: float
    whole: float
    first_model: float
    model: float
    trace: Trace

    @classmethod
    def of(cls, begin: float, run: Run, kept: int = 0) -> Timed:
        """Play a run that was asked for at ``begin``; ``kept`` steps stood before."""
        first = 0.0
        for _ in run:
            first = first or time.perf_counter() - begin
        whole = time.perf_counter() - begin
        assert run.trace is not None
        made = [step.seconds for step in run.trace.steps[kept:]]
        return cls(first, whole, made[0], sum(made), run.trace)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default="compact")
    parser.add_argument("--image", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=20)
    options = parser.parse_args()

    rows: list[tuple[str, float]] = []
    nothing = timed(python("pass"), 5)
    rows.append(("import xflow_core.service.client", timed(python("import xflow_core.service.client"), 5) - nothing))
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    with tempfile.TemporaryDirectory() as scratch:
        path = options.image or large_dicom(Path(scratch))
        engine = LocalEngine(bundles=[options.bundle], log=Path(scratch) / "log", environment=environment)
        begin = time.perf_counter()
        with engine:
            rows.append(("start until ready", time.perf_counter() - begin))
            client = engine.start()
            begin = time.perf_counter()
            image = client.upload(path)
            rows.append(("upload and read the image", time.perf_counter() - begin))
            sentence = "Segment the opacity"
            begin = time.perf_counter()
            first = Timed.of(begin, client.run(image, sentence, accept_image=True))
            rows.append(("first run: guards, encoders and all", first.whole))

            runs = []
            for _ in range(options.repeat):
                begin = time.perf_counter()
                runs.append(Timed.of(begin, client.run(image, sentence, accept_image=True)))
            overhead = statistics.median(run.whole - run.model for run in runs)
            whole = statistics.median(run.whole for run in runs)
            rows += [
                ("another run, as the client sees it", whole),
                ("its models", statistics.median(run.model for run in runs)),
                ("server overhead", overhead),
                ("before the first step, beyond its model", statistics.median(r.first - r.first_model for r in runs)),
            ]
            trace = first.trace
            boxes = next((k for k, step in enumerate(trace.steps) if isinstance(step, BoxesStep)), None)
            if boxes is not None and any(isinstance(step, StopStep) for step in trace.steps):
                edits = []
                for _ in range(options.repeat):
                    begin = time.perf_counter()
                    edits.append(Timed.of(begin, client.replace(image, trace, boxes, trace.steps[boxes]), boxes + 1))
                rows += [
                    ("boxes replaced and all that follows", statistics.median(edit.whole for edit in edits)),
                    ("server overhead of it", statistics.median(edit.whole - edit.model for edit in edits)),
                ]

    height, width = image.record.size
    print(f"\n{path.name}, {width} x {height}; bundle {trace.bundle.name} {trace.bundle.version};", end=" ")
    print(f"{options.threads} threads; {len(trace.steps)} steps a run; {options.repeat} runs\n")
    print(f"{'what':44} {'ms':>9} {'goal':>9}")
    for name, value in rows:
        print(f"{name:44} {1000 * value:9.1f} {GOALS.get(name, ''):>9}")
    name = "server overhead, share of the run"
    print(f"{name:44} {100 * overhead / whole:7.1f} % {GOALS[name]:>9}")


if __name__ == "__main__":
    main()
