"""One image of a batch: answered and written as ``xflow segment`` does, or taken as it lies there when it is whole."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from xflow_core.domain.errors import RadiographError, RadiographRefused, XFlowError
from xflow_core.domain.instruction import Instruction
from xflow_core.domain.quiet import quiet_python
from xflow_core.domain.trace import ResultStep, Trace
from xflow_core.export.files import (
    MASK_FILE,
    OVERLAY_FILE,
    PR_FILE,
    SEG_FILE,
    SR_FILE,
    TRACE_FILE,
    read_trace,
    sweep,
    write_result,
)
from xflow_core.workflow.engine import Engine

from .answers import answer_question, read_image, write_dicom_results
from .job import Answered, Settings, Task, answer_without_trace, row_start, row_without_trace


def answer_image(task: Task, settings: Settings, load: Callable[[], Engine]) -> Answered:
    """Answer all instructions on one image and write the results below ``settings.out``.

    Whatever is wrong with the image, its instruction, the models or the disk becomes a row with a reason.

    Args:
        load: gives the engine; called only when something has to be computed. What it raises is the run's end, not
            this image's.
    """
    start = time.perf_counter()
    if task.problem is not None:
        return answer_without_trace(task, settings, "instruction", task.problem, 2)
    folder = settings.out / task.name
    done = _finished(task, settings, folder) if settings.resume else {}
    engine = load() if len(done) < len(task.instructions) else None
    try:
        sweep(folder)
        traces, status = done, 0
        rows: dict[str, dict[str, Any]] = {}
        if engine is not None:
            traces, rows, status = _ask(task, settings, engine, folder, done)
        rows |= {finding: _row(task, settings, trace) for finding, trace in traces.items()}
        in_order = [traces[asked.finding] for asked in task.instructions if asked.finding in traces]
        no_dicom = _write_dicom(task, folder, in_order, done)
    except RadiographRefused as problem:
        return answer_without_trace(task, settings, "refused", str(problem), 3, time.perf_counter() - start)
    except RadiographError as problem:
        return answer_without_trace(task, settings, "unreadable", str(problem), 3, time.perf_counter() - start)
    except XFlowError as problem:
        took = time.perf_counter() - start
        return answer_without_trace(task, settings, "engine", str(problem), problem.exit_status, took)
    # A library may raise what it likes on a strange image; its words may quote the header, so only its kind is told.
    except Exception as problem:  # noqa: BLE001
        message = f"An internal error ({type(problem).__name__}), please report it with the image's kind."
        return answer_without_trace(task, settings, "engine", message, 4, time.perf_counter() - start)
    if no_dicom is not None:
        status = max(status, no_dicom.exit_status)
        for row in rows.values():
            row["message"] = row.get("message") or f"No DICOM results: {no_dicom}"
    for row in rows.values():
        status = max(status, _status_of(row, task.survey))
    return Answered(task.position, tuple(rows[asked.finding] for asked in task.instructions), status)


def _ask(
    task: Task, settings: Settings, engine: Engine, folder: Path, done: dict[str, Trace]
) -> tuple[dict[str, Trace], dict[str, dict[str, Any]], int]:
    """Traces by finding, those of ``done`` among them; the rows of findings that could not be written; the status."""
    read = read_image(engine, Path(task.path))
    traces, status = dict(done), 0
    rows: dict[str, dict[str, Any]] = {}
    for asked in task.instructions:
        if asked.finding in done:
            continue
        trace = answer_question(engine, read, asked, stages=settings.stages, seed=settings.seed)
        try:
            write_result(folder / asked.finding, trace, read.image.radiograph.display)
        except XFlowError as problem:
            # What was written for the other findings stays, and is listed.
            status = max(status, problem.exit_status)
            rows[asked.finding] = row_without_trace(
                task, settings, asked, "not written", str(problem), trace.seconds["total"]
            )
            continue
        traces[asked.finding] = trace
    return traces, rows, status


def _row(task: Task, settings: Settings, trace: Trace) -> dict[str, Any]:
    result = trace.result
    assert result is not None
    answered = result.present is not None
    return {
        **row_start(task, settings, trace.instruction),
        "image_sha256": trace.image.sha256,
        "status": result.status,
        "present": result.present,
        "confidence": result.confidence,
        "area_px": result.area_px if answered else None,
        "area_mm2": result.area_mm2,
        "spacing_kind": trace.image.spacing_kind,
        "seconds": round(trace.seconds["total"], 4),
        "reason": {"failed": "engine"}.get(result.status, None if answered else result.status),
        "message": result.message,
        "folder": f"{task.name}/{trace.instruction.finding}",
    }


def _status_of(row: dict[str, Any], survey: bool) -> int:
    if row["status"] == "unsupported":
        return 0 if survey else 2
    return {"refused": 3, "engine": 4}.get(row["reason"] or "", 0)


# What is done already ------------------------------------------------------------------------------------------


def _finished(task: Task, settings: Settings, folder: Path) -> dict[str, Trace]:
    """The traces, by finding, that stand on disk as this run would write them, with all their files."""
    try:
        with open(task.path, "rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    except (OSError, ValueError):
        return {}  # reading it will say why
    found = {}
    for asked in task.instructions:
        trace = finished_trace(folder / asked.finding, asked, sha256, settings)
        if trace is not None:
            found[asked.finding] = trace
    return found


def finished_trace(folder: Path, asked: Instruction, sha256: str, settings: Settings) -> Trace | None:
    """The trace in a result folder, if it answers this instruction on this image as this run would, and its files
    are whole; None when it has to be made (again). A failure is never finished."""
    try:
        if (folder / TRACE_FILE).stat().st_mtime_ns < settings.since:
            return None
        trace = read_trace(folder / TRACE_FILE)
    except (OSError, XFlowError):
        return None
    if trace.image.sha256 != sha256 or trace.bundle != settings.identity or trace.instruction != asked:
        return None
    if trace.result is None or trace.result.status == "failed":
        return None
    # An unanswered question has no steps that a seed or a stage could have changed.
    if trace.steps and (trace.seed, trace.stages) != (settings.seed, settings.stages):
        return None
    if trace.branch_of is not None or any(step.origin == "user" for step in trace.steps):
        return None
    return trace if _whole(folder, trace) else None


def _whole(folder: Path, trace: Trace) -> bool:
    """Whether the mask is the trace's, pixel by pixel, and the overlay can be opened; or neither is there."""
    result = trace.result
    assert result is not None
    if (folder / OVERLAY_FILE).exists() != (result.present is not None):
        return False
    if (folder / MASK_FILE).exists() != bool(result.present):
        return False
    try:
        if result.present is not None:
            with Image.open(folder / OVERLAY_FILE) as overlay:
                overlay.verify()
        if result.present:
            step: ResultStep | None = trace.last(ResultStep)
            if step is None or step.mask is None:
                return False
            with Image.open(folder / MASK_FILE) as picture:
                return bool(np.array_equal(np.asarray(picture) > 0, step.mask.array))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):  # Pillow's, on a damaged picture
        return False
    return True


# DICOM ---------------------------------------------------------------------------------------------------------


def _write_dicom(task: Task, folder: Path, traces: Sequence[Trace], done: dict[str, Trace]) -> XFlowError | None:
    """Write the DICOM results of a DICOM image, unless they are there; returns why they could not be written."""
    if traces and len(done) == len(traces) and traces[0].image.source == "dicom" and dicom_whole(folder, traces):
        return None
    try:
        write_dicom_results(folder, traces, Path(task.path), name=Path(task.path).name)
    except XFlowError as problem:
        return problem
    return None


def dicom_whole(folder: Path, traces: Sequence[Trace]) -> bool:
    """Whether the report is there, of these answers and no older than they, with the segmentation that it names and the
    presentation state, where these answers have one; and all can be read."""
    import pydicom

    present = any(trace.result is not None and trace.result.present for trace in traces)
    decided = any(trace.steps for trace in traces)
    try:
        made = (folder / SR_FILE).stat().st_mtime_ns
        answered = max((folder / t.instruction.finding / TRACE_FILE).stat().st_mtime_ns for t in traces)
        if made < answered or (folder / SEG_FILE).is_file() != present or (folder / PR_FILE).is_file() != decided:
            return False
        with quiet_python():
            report = list(pydicom.dcmread(folder / SR_FILE).iterall())
            if decided and not pydicom.dcmread(folder / PR_FILE).SOPInstanceUID:
                return False
            if present:
                segmentation = pydicom.dcmread(folder / SEG_FILE)
                named = {item.value for item in report if item.keyword == "ReferencedSOPInstanceUID"}
                if segmentation.SOPInstanceUID not in named or segmentation.pixel_array.size == 0:
                    return False
    # On a file that was cut short pydicom raises what it likes, also EOFError; it is made again then.
    except Exception:  # noqa: BLE001
        return False
    said = "\n".join(str(item.value) for item in report if item.keyword == "TextValue")
    return all(trace.instruction.text in said for trace in traces)
