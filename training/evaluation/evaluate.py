"""``python -m training evaluate --set SET.jsonl --bundle NAME --out DIR [--stages 1|2] [--resume]``

Answers every row with a bundle and writes ``metrics.json``, ``per_row.csv``, ``by_finding.png``, the trace of every
row under ``traces/`` and ``report.html`` into DIR, a page to be opened in any browser: the figures, plots and the worst
cases. ``--resume`` takes the traces of an earlier run that was stopped. ``--workers`` and ``--ray`` answer through
``xflow batch``; otherwise an image is encoded once for all its rows. A row that cannot be answered (the bundle lacks
the finding, an image is unreadable, the engine fails) is an error and ends the evaluation with a sentence: a missing
prediction is never an "absent". Nor is one that was judged present and has no pixel, unless ``--empty-is-absent`` says
so, as the paper's measure does, which sees masks alone; how many they are stands in ``metrics.json``.
``--skip-unsupported`` leaves out, and counts, the rows of findings that the bundle does not answer."""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import io
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from training.evaluation.answering import Asking, answers, is_empty
from training.evaluation.calibration import calibration
from training.evaluation.metrics import MEASURES, Answered, boxes_of, metrics, pixels_of, resamples
from training.evaluation.predictions import PredictionWriter
from training.evaluation.printed import cut
from training.evaluation.report import page, worst_cases
from training.evaluation.rows import Row, check_files, read_rows
from xflow_core.bundles.loading import load_engine
from xflow_core.bundles.manifest import find_bundle
from xflow_core.domain.errors import CallError
from xflow_core.domain.findings import LUNGS
from xflow_core.domain.geometry import Box, mask_iou
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import BoxesStep, LungsStep, MaskStep, PresenceStep, ResultStep, Trace
from xflow_core.export.files import read_trace, write_whole
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.workflow.engine import Engine, check_answered
from xflow_core.workflow.session import Limits

LOG = logging.getLogger(__name__)

HIT = 0.3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", type=Path, required=True, dest="rows", help="the evaluation set, JSON lines")
    parser.add_argument("--bundle", default="compact")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stages", type=int, choices=(1, 2), default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--resume", action="store_true", help="take the answers of a stopped run that are in OUT")
    parser.add_argument("--workers", type=int, default=1, help="more than one: answer through xflow batch")
    parser.add_argument("--ray", help="the address of a Ray cluster to answer on; it must see all paths")
    parser.add_argument("--skip-unsupported", action="store_true")
    parser.add_argument(
        "--empty-is-absent",
        action="store_true",
        help="count an answer that is judged present and has no pixel as the paper's measure does; else it is an error",
    )
    parser.add_argument("--keep", type=Path, help="store the predictions in this folder, for `score` and `tables`")
    parser.add_argument("--lungs", type=Path, help="images with drawn lungs (pack-set's lungs.jsonl), for their boxes")


def answered_of(row: Row, trace: Trace) -> Answered:
    """What the figures need of an answer.

    Raises:
        CallError: the row's true mask cannot be read, or is of another size.
    """
    size = trace.image.size
    truth = row.truth(size)
    presence = trace.last(PresenceStep)
    mask = mask_of(trace)
    returned = bool(mask.any())
    first = np.zeros(size, bool)
    for step in trace.steps:
        if isinstance(step, MaskStep) and step.turn == 0:
            first |= step.mask.array
    speck = Limits().speck_share
    predicted = [box.box for step in trace.steps if isinstance(step, BoxesStep) for box in step.boxes]
    true = boxes_of(truth, speck)
    lungs = trace.last(LungsStep).lungs
    matched = [lung.box.iou(row.lungs[lung.label]) for lung in lungs if row.lungs and lung.label in row.lungs]
    return Answered(
        id=row.id,
        **row.radiograph,
        finding=row.instruction.finding,
        level=row.instruction.level,
        positive=row.mask is not None,
        returned=returned,
        probability=probability_of(presence),
        **pixels_of(mask, truth, speck),
        first_iou=mask_iou(first, truth) if returned else None,
        boxes=len(predicted),
        true_boxes=len(true),
        box_hits=sum(any(t.iou(p) >= HIT for p in predicted) for t in true),
        box_right=sum(any(t.iou(p) >= HIT for t in true) for p in predicted),
        lung_box_iou=float(np.mean(matched)) if matched else None,
        seconds=round(trace.seconds["total"], 4),
    )


def mask_of(trace: Trace) -> np.ndarray:
    """An answer's mask, bool ``[H, W]``; without a pixel where it is absent, or empty (:func:`.answering.is_empty`)."""
    result: ResultStep | None = trace.last(ResultStep)
    mask = None if result is None else result.mask
    return np.zeros(trace.image.size, bool) if mask is None else mask.array


def probability_of(presence: PresenceStep) -> float | None:
    """That the finding is present in a region asked about; None where a verdict has no confidence."""
    stated = [(verdict.present, verdict.confidence) for verdict in presence.verdicts]
    known = [c if present else 1 - c for present, c in stated if c is not None]
    return max(known) if len(known) == len(stated) else None


def lung_boxes(engine: Engine, path: Path) -> dict[str, dict[str, Any]]:
    """Per source, the mean IoU of the grounded lung boxes with the drawn lungs', its 95 % interval over images, its
    tenth percentile, and n lungs."""
    (instruction,) = parse_instruction("Segment the opacity.")
    found: dict[str, list[tuple[str, float]]] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        image = EncodedRadiograph(read_radiograph(path.parent / entry["image"]))
        grounded = engine.init_policy.ground_lungs(image, instruction, LUNGS, seed=0).value
        for lung in grounded:
            if lung.label in entry["lungs"]:
                iou = lung.box.iou(Box(*entry["lungs"][lung.label]))
                found.setdefault(entry["source"], []).append((entry["image"], iou))
    figures = {}
    for source, lot in found.items():
        values = np.array([iou for _, iou in lot])
        images = list(dict.fromkeys(image for image, _ in lot))
        of_image = np.array([[image == name for image, _ in lot] for name in images], float)
        weights = resamples(len(images), 2000)
        drawn = weights @ (of_image @ values) / (weights @ of_image.sum(axis=1))
        figures[source] = {
            "n": len(lot),
            "mean": float(values.mean()),
            "interval": np.percentile(drawn, (2.5, 97.5)).tolist(),
            "p10": float(np.percentile(values, 10)),
        }
    return figures


def plot(path: Path, found: dict[str, dict[str, float | None]], title: str) -> None:
    """gIoU, F1 and AUC per finding, with n."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(found)
    figure, axes = pyplot.subplots(figsize=(1.6 * len(names) + 2, 3.6), layout="constrained")
    for shift, measure in enumerate(("gIoU", "F1", "auc")):
        values = [found[name][measure] or 0.0 for name in names]
        axes.bar(np.arange(len(names)) + (shift - 1) * 0.27, values, 0.25, label={"auc": "AUC"}.get(measure, measure))
    axes.set_xticks(
        np.arange(len(names)), [f"{name}\n{found[name]['n_positive']}+ {found[name]['n_negative']}-" for name in names]
    )
    axes.set_ylim(0, 1)
    axes.set_title(title, fontsize=10)
    figure.legend(frameon=False, ncols=3, fontsize=8, loc="outside lower center")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    pyplot.close(figure)
    write_whole(path, buffer.getvalue())


def run(arguments: argparse.Namespace) -> None:
    if arguments.workers < 1:
        raise CallError(f"--workers is {arguments.workers}; it counts from 1.")
    rows = read_rows(arguments.rows)
    check_files(rows)
    bundle = find_bundle(arguments.bundle)
    supported = [row for row in rows if row.instruction.finding in bundle.findings]
    left_out = len(rows) - len(supported)
    if left_out and not arguments.skip_unsupported:
        finding = next(row.instruction.finding for row in rows if row.instruction.finding not in bundle.findings)
        check_answered(arguments.bundle, bundle.findings, finding)
    if not supported:
        raise CallError(f"The bundle {arguments.bundle!r} answers no row of {arguments.rows}.")
    asking = Asking(
        out=arguments.out,
        name=arguments.bundle,
        bundle=bundle,
        device=arguments.device,
        stages=arguments.stages,
        seed=arguments.seed,
        threads=arguments.threads,
        resume=arguments.resume,
        workers=arguments.workers,
        ray=arguments.ray,
        empty_is_absent=arguments.empty_is_absent,
    )
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise CallError(f"The folder {arguments.out} cannot be made: {problem.strerror}.") from None
    engine = functools.cache(lambda: load_engine(arguments.bundle, arguments.device))
    found = {}
    empty = 0
    with contextlib.ExitStack() as stack:
        keep = None if arguments.keep is None else stack.enter_context(PredictionWriter(arguments.keep))
        for row, trace in answers(asking, supported, engine):
            found[row.id] = answered_of(row, trace)
            if keep is not None:
                keep.add(row.id, mask_of(trace), found[row.id].probability)
            empty += is_empty(trace)
    answered = [found[row.id] for row in supported]
    identity = bundle.identity
    facts: dict[str, Any] = {
        "set": arguments.rows.name,
        "bundle": identity.to_json(),
        "stages": arguments.stages,
        "left_out": left_out,
        "empty": empty,
        "calibration": calibration(answered),
    }
    if arguments.lungs is not None:
        boxes = lung_boxes(engine(), arguments.lungs)
        facts["lung_box_iou_by_source"] = boxes
        facts["lung_box_iou"] = float(np.average([b["mean"] for b in boxes.values()]))
    title = f"{identity.name} {identity.version} on {arguments.rows.absolute().parent.name}/{arguments.rows.name}"
    figures = write_measured(arguments.out, answered, facts, f"{title}, all levels")
    cases = worst_cases(answered, {row.id: row for row in supported}, lambda row: read_trace(asking.trace_file(row)))
    write_whole(arguments.out / "report.html", page(title, figures, answered, cases).encode())
    LOG.info("%s", arguments.out / "report.html")


def write_measured(out: Path, answered: Sequence[Answered], facts: dict[str, Any], title: str) -> dict[str, Any]:
    """Write ``metrics.json`` (:func:`metrics` and the facts), ``per_row.csv`` and ``by_finding.png``.

    Returns:
        What ``metrics.json`` holds.

    Raises:
        CallError: they cannot be written.
    """
    figures = {"notice": "not for clinical use", **metrics(answered), **facts}
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise CallError(f"The folder {out} cannot be made: {problem.strerror}.") from None
    table = io.StringIO()
    writer = csv.DictWriter(table, [*asdict(answered[0]), "iou"])
    writer.writeheader()
    for row in answered:
        writer.writerow({**asdict(row), "iou": row.iou})
    write_whole(out / "per_row.csv", table.getvalue().encode())
    write_whole(out / "metrics.json", (json.dumps(figures, indent=1) + "\n").encode())
    plot(out / "by_finding.png", figures["by_finding"], title)
    said = ("-" if figures[name] is None else cut(figures[name], 4) for name in MEASURES)
    LOG.info("gIoU %s, cIoU %s, F1 %s over %d rows", *said, figures["n"])
    return figures
