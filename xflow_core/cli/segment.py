"""``xflow segment``: instructions on image files, results into a folder."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress

from xflow_core import NOT_FOR_CLINICAL_USE
from xflow_core.domain.errors import CallError, EngineError, RadiographError, RadiographRefused, XFlowError
from xflow_core.domain.findings import FINDINGS
from xflow_core.domain.instruction import Instruction, describe, parse_instruction
from xflow_core.domain.trace import Step, Trace
from xflow_core.export.files import image_names, write_result
from xflow_core.export.words import result_in_words, step_in_words

from .app import fail

if TYPE_CHECKING:
    from xflow_core.radiograph.encoded import EncodedRadiograph
    from xflow_core.workflow.engine import Engine
    from xflow_core.workflow.session import Session


@dataclass(frozen=True)
class SegmentCall:
    """The call as it was typed."""

    images: tuple[Path, ...]
    out: Path
    instruction: str | None
    survey: bool
    bundle: str
    device: str
    stages: int
    seed: int
    accept_image: bool
    as_json: bool

    def instructions(self) -> tuple[Instruction, ...]:
        """What is asked, one instruction per finding.

        Raises:
            CallError: neither or both of an instruction and a survey.
            InstructionError: the words name no finding that XFlow knows.
        """
        if self.survey == (self.instruction is not None):
            raise CallError('Give either -i "Segment the effusion" or --survey.')
        if self.instruction is not None:
            return parse_instruction(self.instruction)
        return tuple(parse_instruction(f"Segment the {finding}.")[0] for finding in FINDINGS)


def run_segment(call: SegmentCall) -> int:
    """Answer the call; returns the exit status, the highest of all images."""
    try:
        status, results = _run(call)
    except XFlowError as problem:
        # The call itself is wrong, or the bundle: no image was looked at.
        status, results = fail(problem), []
    if call.as_json:
        only = results[0] if len(results) == 1 else {}
        end = {"results": results, "exit_status": status, "notice": NOT_FOR_CLINICAL_USE}
        print(json.dumps({**only, **end}), flush=True)
    return status


def _run(call: SegmentCall) -> tuple[int, list[dict[str, Any]]]:
    instructions = call.instructions()
    if call.out.exists() and not call.out.is_dir():
        raise CallError(f"{call.out} is a file; -o names a folder.")
    from xflow_core.bundles.loading import load_engine

    engine = load_engine(call.bundle, call.device)
    if not call.survey:
        for instruction in instructions:
            engine.check_finding(instruction.finding)

    results: list[dict[str, Any]] = []
    status = 0
    names = image_names(call.images)
    with Progress(console=Console(stderr=True), transient=True, disable=len(call.images) < 2) as progress:
        task = progress.add_task("images", total=len(call.images))
        for path, name in zip(call.images, names, strict=True):
            try:
                done, made = _segment_image(call, engine, path, call.out / name, instructions)
            except XFlowError as problem:
                done, made = fail(problem, str(path)), [_without_trace(path, problem)]
            status = max(status, done)
            results += made
            progress.advance(task)
    return status, results


def _segment_image(
    call: SegmentCall, engine: Engine, path: Path, folder: Path, instructions: tuple[Instruction, ...]
) -> tuple[int, list[dict[str, Any]]]:
    from xflow_core.radiograph.encoded import EncodedRadiograph
    from xflow_core.radiograph.reading import read_radiograph
    from xflow_core.workflow.session import answer, unanswered

    def say(line: str) -> None:
        # With --json the trace tells the steps; stderr is for errors alone.
        if not call.as_json:
            print(line, flush=True)

    start = time.perf_counter()
    radiograph = read_radiograph(path, accept_image=call.accept_image)
    say(f"{path}: {radiograph.record.size[1]} x {radiograph.record.size[0]} pixels")
    refusal: RadiographRefused | None = None
    try:
        image = engine.admit(radiograph, accept_image=call.accept_image)
    except RadiographRefused as problem:
        refusal = problem
        image = EncodedRadiograph(radiograph)
    read_seconds = time.perf_counter() - start
    for warning in image.radiograph.record.warnings:
        say(f"  warning: {warning}")
    if refusal is not None:
        status = fail(refusal, str(path))
        made = []
        for instruction in instructions:
            trace = unanswered(engine.identity, image, instruction, "refused", str(refusal))
            trace.seconds.update(read=read_seconds, total=read_seconds)
            made.append(_write(folder, trace, image, path))
        return status, made

    status = 0
    made = []
    for instruction in instructions:
        say(f"  understood: {describe(instruction)}")
        for note in instruction.notes:
            say(f"    ({note})")

        def watch(step: Step, session: Session) -> None:
            say(f"    {step_in_words(step, session.trace())}")

        trace = answer(engine, image, instruction, stages=call.stages, seed=call.seed, watch=watch)
        trace.seconds["read"] = read_seconds
        trace.seconds["total"] = trace.seconds.get("total", 0.0) + read_seconds
        assert trace.result is not None
        if trace.result.status == "failed":
            status = max(status, fail(EngineError(trace.result.message or "the engine failed"), str(path)))
        try:
            written = _write(folder, trace, image, path)
        except XFlowError as problem:
            # What was written for the other findings stays, and is listed.
            status = max(status, fail(problem, str(path)))
            made.append({**_without_trace(path, problem), "finding": instruction.finding})
            continue
        say(f"  {result_in_words(trace)}")
        for key in ("overlay", "mask", "trace"):
            if written[f"{key}_file"]:
                say(f"    {key}: {Path(written['folder']) / written[f'{key}_file']}")
        made.append(written)
    say(f"  {NOT_FOR_CLINICAL_USE}")
    return status, made


def _write(folder: Path, trace: Trace, image: EncodedRadiograph, path: Path) -> dict[str, Any]:
    target = folder / trace.instruction.finding
    files = write_result(target, trace, image.radiograph.display)
    assert trace.result is not None
    return {
        "image": str(path),
        "finding": trace.instruction.finding,
        "regions": list(trace.instruction.regions),
        **replace(trace.result, mask_file=None if files.mask is None else files.mask.name).to_json(),
        "overlay_file": None if files.overlay is None else files.overlay.name,
        "trace_file": files.trace.name,
        "folder": str(target),
    }


def _without_trace(path: Path, problem: XFlowError) -> dict[str, Any]:
    status = "refused" if isinstance(problem, RadiographRefused) else "failed"
    kind = "unreadable" if isinstance(problem, RadiographError) and status == "failed" else status
    return {"image": str(path), "status": status, "present": None, "reason": kind, "message": str(problem)}
