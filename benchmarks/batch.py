"""How much faster a batch is with several workers: one table.

    python -m benchmarks.batch [--bundle compact] [--image FILE] [--images N] [--workers N] [--repeat N]

One worker with one thread against N workers with one thread each, on copies of one image (the demo's radiograph unless
--image names another), all files written. A rate counts the images after each worker has answered its first, so that
loading the bundle is left out; what it takes stands beside. The rates are medians of the repeats, which alternate.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from xflow_core.batch.job import Job, Settings
from xflow_core.batch.run import run_batch
from xflow_core.bundles.manifest import find_bundle
from xflow_core.domain.instruction import parse_instruction

GOAL = 1.7


def measured(folder: Path, out: Path, bundle: str, workers: int) -> tuple[float, float]:
    """Images a second once all workers are at work, and the seconds until then."""
    settings = Settings(out, bundle, find_bundle(bundle).identity, device="cpu", threads=1)
    job = Job(str(folder), settings, parse_instruction("Segment the opacity"), workers=workers)
    times: list[float] = []
    start = time.perf_counter()
    outcome = run_batch(job, started=lambda images: None, answered=lambda done: times.append(time.perf_counter()))
    if outcome.exit_status:
        sys.exit(f"The run failed: {outcome.problem or dict(outcome.statuses)}")
    shutil.rmtree(out)
    # Of the last images, fewer than all workers are at work: the rate ends before them.
    first, last = workers - 1, len(times) - workers
    return (last - first) / (times[last] - times[first]), times[first] - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default="compact")
    parser.add_argument("--image", type=Path)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    if options.images < 3 * options.workers:
        parser.error("--images: at least three for each worker")
    image = options.image
    if image is None:
        from pydicom.data import get_testdata_file

        image = Path(str(get_testdata_file("RG1_J2KI.dcm", download=False)))

    rates: dict[int, list[float]] = {1: [], options.workers: []}
    starts: dict[int, list[float]] = {1: [], options.workers: []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "images"
        folder.mkdir()
        for number in range(options.images):
            shutil.copy(image, folder / f"{number:04}{image.suffix}")
        for _ in range(options.repeat):
            for workers in rates:
                rate, start = measured(folder, Path(scratch) / "out", options.bundle, workers)
                rates[workers].append(rate)
                starts[workers].append(start)

    print(f"\n{options.images} copies of {image.name}, bundle {options.bundle}, {os.cpu_count()} CPUs, ", end="")
    print(f"load {os.getloadavg()[0]:.1f}\n" if hasattr(os, "getloadavg") else "\n")
    print(f"{'workers, one thread each':28} {'images/s':>9} {'ratio':>7} {'goal':>6} {'until all answer, s':>21}")
    alone = statistics.median(rates[1])
    for workers, found in rates.items():
        rate = statistics.median(found)
        goal = f"{GOAL:.1f}" if workers == 2 else ""
        print(f"{workers:<28} {rate:9.3f} {rate / alone:7.2f} {goal:>6} {statistics.median(starts[workers]):21.1f}")


if __name__ == "__main__":
    main()
