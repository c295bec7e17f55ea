"""How long an evaluation set of the paper's size takes to measure from stored predictions, and where the time goes.

    python -m benchmarks.metrics [--rows 5921] [--side 1024] [--workers 2] [--work FOLDER]

Table 8's questions on 560 images, with drawn masks: lesions with specks for the positive rows, a mask for one negative
row in twenty. Every PNG is written first, and read again as `score` reads it. The goal (60 s on two cores) is for cores
of one's own: CPU seconds and the load of the machine stand beside the wall's.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from training.curation.paper import read_settings
from training.evaluation.comparison import compare_all
from training.evaluation.metrics import LEVELS, metrics, pixels_of
from training.evaluation.predictions import PredictionWriter, answered_from, image_size, mask_file, read_mask
from training.evaluation.rows import Row, read_rows, write_rows
from xflow_core.export.files import write_mask
from xflow_core.workflow.session import Limits

GOAL = "60 s on 2 cores"
IMAGES = 560
REGIONS = {"chest": ["chest"], "lung": ["left lung"], "zone": ["left lung base"]}
SAMPLE = 200  # rows whose parts are timed one by one


def lesion(rng: np.random.Generator, side: int) -> np.ndarray:
    """A few ellipses and specks, as a model draws them: bool ``[side, side]``."""
    mask = np.zeros((side, side), np.uint8)
    for _ in range(rng.integers(1, 4)):
        centre = rng.integers(side // 5, 4 * side // 5, 2)
        axes = rng.integers(side // 40, side // 8, 2)
        cv2.ellipse(mask, centre.tolist(), axes.tolist(), float(rng.uniform(0, 180)), 0, 360, 1, -1)
    for x, y in rng.integers(0, side, (rng.integers(0, 4), 2)).tolist():
        cv2.circle(mask, (x, y), side // 256, 1, -1)
    return mask > 0


def write_set(folder: Path, count: int, side: int) -> tuple[list[Row], Path]:
    """The set and a system's predictions of it, with Table 8's shares of levels, findings, positive and negative."""
    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for k in range(IMAGES):
        cv2.imwrite(str(folder / "images" / f"{k}.png"), np.full((side, side), k % 200, np.uint8))
    asked = [
        (finding, level, positive)
        for finding, levels in read_settings().table_8.items()
        for level in LEVELS
        for positive, n in zip((True, False), levels.get(level, (0, 0)), strict=True)
        for _ in range(n)
    ]
    rows: list[dict[str, Any]] = []
    with PredictionWriter(folder / "system") as writer:
        for k in np.linspace(0, len(asked) - 1, count).astype(int).tolist():
            finding, level, positive = asked[k]
            name = f"r{k}"
            truth = lesion(rng, side) if positive else np.zeros((side, side), bool)
            if positive:
                write_mask(folder / "masks" / f"{name}.png", truth)
            returned = positive or rng.random() < 0.05
            writer.add(name, np.roll(truth, side // 50, 1) | lesion(rng, side) if returned else truth, rng.random())
            rows.append({
                "id": name, "image": f"images/{k % IMAGES}.png", "instruction": f"Segment the {finding}.",
                "finding": finding, "level": level, "mask": f"masks/{name}.png" if positive else None, "lungs": None,
                "regions": ["heart"] if finding == "cardiomegaly" else REGIONS[level], "source": "drawn",
            })  # fmt: skip
    write_rows(folder / "set.jsonl", rows)
    return read_rows(folder / "set.jsonl"), folder / "system"


def cpu() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    own, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


def timed(what: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result, wall seconds and CPU seconds."""
    wall, used = time.perf_counter(), cpu()
    found = what()
    return found, time.perf_counter() - wall, cpu() - used


def parts_of(rows: list[Row], folder: Path) -> dict[str, float]:
    """CPU milliseconds a row of each part, over a sample in this process."""
    cv2.setNumThreads(1)
    spent = dict.fromkeys(("image's header", "prediction's PNG", "truth's PNG", "pixels and pieces"), 0.0)
    sample = rows[:: max(1, len(rows) // SAMPLE)]
    for row in sample:
        marks = [time.process_time()]
        size = image_size(row)
        marks.append(time.process_time())
        mask = read_mask(mask_file(folder, row.id), row.id)
        marks.append(time.process_time())
        truth = row.truth(size)
        marks.append(time.process_time())
        pixels_of(mask, truth, Limits().speck_share)
        marks.append(time.process_time())
        for name, start, end in zip(spent, marks[:-1], marks[1:], strict=True):
            spent[name] += end - start
    return {name: 1000 * seconds / len(sample) for name, seconds in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5921)
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, help="where the files are written, for instance on another disk")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
        rows, system = write_set(Path(folder) / "set", arguments.rows, arguments.side)
        answered, *read = timed(lambda: answered_from(system, rows, workers=arguments.workers))
        _, *measured = timed(lambda: metrics(answered))
        _, *compared = timed(lambda: compare_all(answered, answered))
        parts = parts_of(rows, system)
    print(f"{len(rows)} rows at {arguments.side} x {arguments.side}, {arguments.workers} processes; goal {GOAL}")
    print(f"load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print("| part | wall, s | CPU, s |\n|---|---:|---:|")
    named = {"read and count": read, "metrics, with intervals": measured, "two systems compared": compared}
    for name, (wall, used) in {**named, "all": [sum(pair) for pair in zip(*named.values(), strict=True)]}.items():
        print(f"| {name} | {wall:.1f} | {used:.1f} |")
    print("\n| of a row's reading | CPU, ms |\n|---|---:|")
    for name, milliseconds in {**parts, "all": sum(parts.values())}.items():
        print(f"| {name} | {milliseconds:.2f} |")


if __name__ == "__main__":
    main()
