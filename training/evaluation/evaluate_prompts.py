"""``python -m training evaluate-prompts --set SET.jsonl --bundle NAME --out DIR``

The bundle's promptable segmenter alone: each true component's box, jittered by 10 %, then up to four clicks of the
oracle that knows the truth (:mod:`training.curation.oracle`; DESIGN.md, "Evaluation set"). Writes ``metrics.json``,
``per_row.csv`` (a line per component) and ``by_clicks.png`` into DIR. Masks, boxes and clicks are in the source image
at its size; nothing of the rest of the bundle is asked. Not for clinical use.

A component is an 8-connected piece of a finding's true mask that is no speck. The same contour stands in rows of
several levels: a finding's components on an image are taken from its rows at the widest level there (a narrower region
may cut them), each once. Findings that share a component (opacity contains consolidation) each count it; ``iou`` over
all counts it once. Its jitter follows from the seed, the image's name and its box, whatever else the set holds.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import ndimage

from training.compact.prompts import jittered
from training.curation.oracle import oracle_click
from training.evaluation.rows import Row, read_rows
from xflow_core.bundles.loading import load_engine
from xflow_core.domain.errors import CallError, EngineError
from xflow_core.domain.geometry import Box, mask_iou
from xflow_core.domain.trace import Click
from xflow_core.export.files import write_whole
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.segmenters.protocol import Prediction, Prompt, PromptableSegmenter
from xflow_core.workflow.session import Limits

LOG = logging.getLogger(__name__)

CLICKS = 4
JITTER = 0.1
_LEVELS = ("chest", "lung", "zone")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", type=Path, required=True, dest="rows", help="the evaluation set, JSON lines")
    parser.add_argument("--bundle", default="compact")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0, help="of the jitter")
    parser.add_argument("--threads", type=int, default=2)


@dataclass(frozen=True, eq=False)
class Component:
    """One true component: bool ``[H, W]`` of the source size, its tight box, the findings that it is a piece of."""

    mask: np.ndarray
    box: Box
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Prompted:
    """One component as the segmenter gave it.

    box: the jittered box that it was asked with. clicks: how many the oracle found a place for. box_iou: of the box
    filled, which needs no segmenter. iou: after 0 .. 4 clicks. seconds: of each prompt, the oracle's time left out; the
    first prompt on an image includes its encoding.
    """

    image: str
    findings: tuple[str, ...]
    box: Box
    clicks: int
    box_iou: float
    iou: tuple[float, ...]
    seconds: tuple[float, ...]


def components(rows: Sequence[Row], size: tuple[int, int]) -> list[Component]:
    """The distinct true components in one image's rows.

    Raises:
        CallError: a mask is missing, or not of the image's ``size`` ``(height, width)``.
    """
    least = Limits().speck_share * size[0] * size[1]
    found: dict[tuple[Any, ...], Component] = {}
    positive = [row for row in rows if row.mask is not None]
    widest: dict[str, int] = {}
    for row in positive:
        level, finding = _LEVELS.index(row.instruction.level), row.instruction.finding
        widest[finding] = min(level, widest.get(finding, level))
    for row in positive:
        finding = row.instruction.finding
        if _LEVELS.index(row.instruction.level) != widest[finding]:
            continue
        labels, _ = ndimage.label(row.truth(size), np.ones((3, 3)))
        for number, place in enumerate(ndimage.find_objects(labels), start=1):
            piece = labels[place] == number
            if np.count_nonzero(piece) < least:
                continue
            rows_there, columns = place
            edges = (columns.start, rows_there.start, columns.stop, rows_there.stop)
            key = (edges, piece.tobytes())
            if key in found:
                known = found[key]
                found[key] = Component(known.mask, known.box, tuple(dict.fromkeys((*known.findings, finding))))
            else:
                mask = np.zeros(size, bool)
                mask[place] = piece
                found[key] = Component(mask, Box.of_pixels(edges, size), (finding,))
    return list(found.values())


def jittered_box(image: str, box: Box, seed: int, jitter: float = JITTER) -> Box:
    """The box asked with: the same for one image's name, true box and seed. jitter: in shares of the box's side."""
    digest = hashlib.sha256(json.dumps([seed, image, box.to_json()]).encode()).digest()
    return jittered(box, jitter, np.random.default_rng(list(digest)))


def prompted(
    segmenter: PromptableSegmenter,
    image: EncodedRadiograph,
    path: Path,
    component: Component,
    seed: int,
    jitter: float = JITTER,
) -> Prompted:
    """One component of the image of ``path`` asked for by its box, then by the oracle's clicks on the mask before.

    When no place is left to click, the mask stays as it is.

    Raises:
        EngineError: the segmenter failed, or gave a mask of another size; the message names the image.
    """
    box = jittered_box(path.name, component.box, seed, jitter)
    clicks: list[Click] = []
    previous: Prediction | None = None
    iou: list[float] = []
    seconds: list[float] = []
    while len(iou) <= CLICKS:
        if previous is not None:
            click = oracle_click(previous.mask, component.mask, clicks)
            if click is None:
                break
            clicks.append(click)
        start = time.perf_counter()
        try:
            (previous,) = segmenter.segment(image, [Prompt(box, tuple(clicks), previous)])
        except EngineError as problem:
            raise EngineError(f"{path.name}: {problem}") from problem
        seconds.append(time.perf_counter() - start)
        if previous.mask.shape != component.mask.shape:
            raise EngineError(
                f"{path.name}: the segmenter gave a mask of {previous.mask.shape}, the image is {component.mask.shape}."
            )
        iou.append(mask_iou(previous.mask, component.mask))
    iou += [iou[-1]] * (CLICKS + 1 - len(iou))
    return Prompted(
        image=str(path),
        findings=component.findings,
        box=box,
        clicks=len(clicks),
        box_iou=mask_iou(box.mask(component.mask.shape), component.mask),
        iou=tuple(iou),
        seconds=tuple(seconds),
    )


def by_image(rows: Sequence[Row]) -> Iterator[tuple[Path, EncodedRadiograph, list[Component]]]:
    """Each image that has a true component, read, with its components.

    Raises:
        XFlowError: an image or a mask cannot be read.
    """
    positive = sorted((row for row in rows if row.mask is not None), key=lambda row: str(row.image))
    for path, asked in groupby(positive, key=lambda row: row.image):
        image = EncodedRadiograph(read_radiograph(path))
        if there := components(list(asked), image.radiograph.size):
            yield path, image, there


def figures(found: Sequence[Prompted]) -> dict[str, Any]:
    """``n``, ``images``, ``iou`` after 0 .. 4 clicks with 95 % intervals, and how the box filled and the clicks do."""
    return {
        "n": len(found),
        "images": len({row.image for row in found}),
        "iou": np.mean([row.iou for row in found], axis=0).tolist(),
        "intervals": intervals([row.image for row in found], np.array([row.iou for row in found])),
        "box_iou": float(np.mean([row.box_iou for row in found])),
        "improved_by_clicks": float(np.mean([row.iou[-1] > row.iou[0] for row in found])),
    }


def intervals(groups: Sequence[str], values: np.ndarray, draws: int = 1000) -> list[list[float]]:
    """95 % bootstrap intervals of the columns' means, groups (images) drawn with replacement.

    Args:
        groups: of each row. values: ``[rows, columns]``.
    """
    names = sorted(set(groups))
    which = np.array([names.index(group) for group in groups])
    sums = np.stack([values[which == k].sum(axis=0) for k in range(len(names))])
    counts = np.bincount(which)
    drawn = np.random.default_rng(0).integers(0, len(names), (draws, len(names)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)[:, None]
    found: list[list[float]] = np.percentile(means, (2.5, 97.5), axis=0).T.tolist()
    return found


def by_finding(found: Sequence[Prompted]) -> dict[str, dict[str, Any]]:
    """:func:`figures` of each finding's components."""
    names = sorted({finding for row in found for finding in row.findings})
    return {name: figures([row for row in found if name in row.findings]) for name in names}


def plot(path: Path, lines: dict[str, dict[str, Any]], title: str) -> None:
    """Mean IoU against the number of clicks, a line per finding, the interval as a band around "all"."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5.5, 4), layout="constrained")
    turns = np.arange(CLICKS + 1)
    for name, entry in lines.items():
        whole = name == "all"
        axes.plot(turns, entry["iou"], "-o", lw=2.5 if whole else 1, ms=4, label=f"{name} (n {entry['n']})")
        if whole:
            axes.fill_between(turns, *np.array(entry["intervals"]).T, alpha=0.2)
    axes.set_xticks(turns)
    axes.set_xlabel("oracle clicks after the jittered box")
    axes.set_ylabel("mask IoU")
    axes.set_ylim(0, 1)
    axes.set_title(title, fontsize=9)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    pyplot.close(figure)
    write_whole(path, buffer.getvalue())


def table(found: Sequence[Prompted]) -> str:
    """The components as CSV text."""
    text = io.StringIO()
    writer = csv.writer(text)
    turns = range(CLICKS + 1)
    writer.writerow(["image", "findings", "x1", "y1", "x2", "y2", "clicks", "box_iou", *(f"iou{k}" for k in turns)])
    for row in found:
        numbers = (*row.box.to_json(), row.clicks, row.box_iou, *row.iou)
        writer.writerow([row.image, " ".join(row.findings), *(round(number, 5) for number in numbers)])
    return text.getvalue()


def run(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    rows = read_rows(arguments.rows)
    engine = load_engine(arguments.bundle, arguments.device)
    found = [
        prompted(engine.segmenter, image, path, component, arguments.seed)
        for path, image, there in by_image(rows)
        for component in there
    ]
    if not found:
        raise CallError(f"The set {arguments.rows} holds no true component to prompt for; it needs positive rows.")
    overall, each = figures(found), by_finding(found)
    report = {
        "set": arguments.rows.name,
        "bundle": engine.identity.to_json(),
        "seed": arguments.seed,
        "jitter": JITTER,
        "notice": "not for clinical use",
        **overall,
        "by_finding": each,
    }
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise CallError(f"The folder {arguments.out} cannot be made: {problem.strerror}.") from None
    title = f"{engine.identity.name} {engine.identity.version} on {arguments.rows.name}; not for clinical use"
    write_whole(arguments.out / "per_row.csv", table(found).encode())
    write_whole(arguments.out / "metrics.json", (json.dumps(report, indent=1) + "\n").encode())
    plot(arguments.out / "by_clicks.png", {"all": overall, **each}, title)
    LOG.info("IoU after 0 to %d clicks: %s, over %d components", CLICKS, overall["iou"], overall["n"])
