"""How curation grows with the number of studies: time and memory of each stage, and memory of each reader.

    python -m benchmarks.curation [--studies N [N ..]] [--processes N] [--work DIR] [--goal]

Synthetic studies without pictures (`python -m training miniature --annotations-only`) are read, agreed, split and
templated, stage by stage, each stage in a process of its own. CPU seconds are those of the stage and of all that it
starts, and say more than the clock on a shared machine; memory is the most that all of them held together. The second
table reads each set alone: what it needs beyond the smallest size's is what grows with the set. Miniatures are made in
--work where they are not there yet, and are removed with it, unless it was given.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Issue 8: 190,000 studies within ten minutes and 4 GB.
GOAL_SECONDS, GOAL_MIB = 600, 4000
_STAGES = ("miniature", "check", "splits", "instructions")
_COUNTED = ("splits", "instructions")


@dataclass(frozen=True)
class Cost:
    """What a command took: seconds by the clock and of CPUs, and the most memory that it and its children held."""

    wall: float
    cpu: float
    mib: float


def measured(command: list[str], environment: dict[str, str]) -> Cost:
    """Run a command to its end; the script ends where it fails."""
    before, start = os.times(), time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak = [0.0]
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            peak[0] = max(peak[0], sum(_mib(pid) for pid in _family(process.pid)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    _, said = process.communicate()
    stop.set()
    watcher.join()
    after = os.times()
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{said.decode()}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(time.perf_counter() - start, cpu, peak[0])


def _family(pid: int) -> list[int]:
    """A process and all that it started, in Linux's /proc."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(other for child in children for other in _family(int(child)))]


def _mib(pid: int) -> float:
    """Memory that is this process's own, with its share of what it shares."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def readers(data: Path) -> dict[str, Callable[[], int]]:
    """Every set's reader over all of the set; how many records it gave."""
    from training.curation.sources.chexmask import read_lung_boxes
    from training.curation.sources.chexpercept import read_reviews
    from training.curation.sources.imagenome import SceneGraphs
    from training.curation.sources.layout import Sources
    from training.curation.sources.mimic_cxr import read_sizes
    from training.curation.sources.mimic_ils import read_studies
    from training.curation.sources.problems import Problems
    from training.curation.sources.reports import Reports

    sources, problems = Sources().under(data), Problems()

    def graphs() -> int:
        with SceneGraphs(sources.scene_graphs, problems) as archive:
            studies = read_studies(sources.instructions, Problems())
            return sum(archive.read(study.dicom_id, study.subject, study.id) is not None for study in studies)

    def reports() -> int:
        with Reports(sources.reports, problems) as archive:
            studies = read_studies(sources.instructions, Problems())
            return sum(archive.read(study.subject, study.id) is not None for study in studies)

    return {
        "MIMIC-ILS": lambda: sum(1 for _ in read_studies(sources.instructions, problems)),
        "CheXmask": lambda: sum(1 for _ in read_lung_boxes(sources.chexmask, problems)),
        "metadata": lambda: len(read_sizes(sources.metadata, problems)),
        "CheXpercept": lambda: len(read_reviews(sources.reviews, problems).usable),
        "scene graphs": graphs,
        "reports": reports,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, nargs="+", default=[500, 2000])
    parser.add_argument("--processes", type=int, default=1, help="of the stage that has shards (1)")
    parser.add_argument("--work", type=Path, help="a folder for miniatures and outputs")
    parser.add_argument("--side", type=int, default=160, help="the drawn radiographs' longer side, in pixels (160)")
    parser.add_argument("--goal", action="store_true", help="fail where the largest number misses issue 8's limits")
    parser.add_argument("--no-readers", action="store_true", help="leave the second table out")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        readers(options.work)[options.read]()
        return
    work = options.work or Path(tempfile.mkdtemp())
    try:
        _tables(options, work)
    finally:
        if options.work is None:
            shutil.rmtree(work)


def _tables(options: argparse.Namespace, work: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    lines, alone, largest = [], [], []
    for studies in sorted(options.studies):
        data, splits, out = (work / f"{name}-{studies}" for name in ("sets", "splits", "instructions"))
        for folder in (splits, out):
            shutil.rmtree(folder, ignore_errors=True)
        common = ["--annotations-only", "--data", str(data)]
        commands = {
            "miniature": [
                "--studies", str(studies), "--annotations-only", "--side", str(options.side), "--out", str(data)
            ],
            "check": common,
            "splits": [*common[1:], "--out", str(splits)],
            "instructions": [
                *common, "--splits", str(splits), "--out", str(out), "--processes", str(options.processes)
            ],
        }  # fmt: skip
        costs = {}
        for stage in _STAGES:
            if stage != "miniature" or not data.is_dir():
                costs[stage] = measured([sys.executable, "-m", "training", stage, *commands[stage]], environment)
        counts = json.loads((out / "manifest.json").read_text())["counts"]
        rows = sum(held["rows"] for held in counts.values())
        counted = [costs[stage] for stage in _COUNTED]
        wall, cpu, mib = (
            sum(cost.wall for cost in counted),
            sum(cost.cpu for cost in counted),
            max(cost.mib for cost in counted),
        )
        cells = [_cell(costs.get(stage)) for stage in _STAGES]
        line = [f"{studies:,}", f"{rows:,}", *cells, f"{wall:.0f} s", f"{cpu:.1f} s", f"{1000 * cpu / studies:.2f} ms"]
        lines.append("| " + " | ".join(line) + " |")
        largest = [wall, mib]
        print(f"{studies} studies: {wall:.0f} s, CPU {cpu:.1f} s, {mib:.0f} MiB", file=sys.stderr)
        if not options.no_readers:
            command = [sys.executable, "-m", "benchmarks.curation", "--work", str(data), "--read"]
            read = [measured([*command, name], environment) for name in readers(data)]
            alone.append(
                f"| {studies:,} | " + " | ".join(f"{cost.cpu:.1f} s, {cost.mib:.0f} MiB" for cost in read) + " |"
            )

    load = f", load {os.getloadavg()[0]:.1f} at the end" if hasattr(os, "getloadavg") else ""
    print(f"\n{os.cpu_count()} CPUs, {options.processes} process(es) for shards{load}.")
    print("CPU seconds (seconds by the clock), memory:\n")
    heads = ["studies", "instructions", *(f"`{stage}`" for stage in _STAGES), "both", "CPU", "CPU a study"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|\n" + "\n".join(lines))
    if alone:
        names = list(readers(work))
        print("\nEach reader alone, with its interpreter:\n")
        print("| studies | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 1) + "|\n" + "\n".join(alone))
    if options.goal and (largest[0] > GOAL_SECONDS or largest[1] > GOAL_MIB):
        sys.exit(f"More than {GOAL_SECONDS} s or {GOAL_MIB} MiB.")


def _cell(cost: Cost | None) -> str:
    return "-" if cost is None else f"{cost.cpu:.1f} s ({cost.wall:.0f}), {cost.mib:.0f} MiB"


if __name__ == "__main__":
    main()
