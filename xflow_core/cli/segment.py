"""``xflow segment``: instructions on image files, results into a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import Progress

from xflow_core import NOT_FOR_CLINICAL_USE
from xflow_core.domain.errors import (
    CallError,
    EngineError,
    ExportError,
    RadiographError,
    RadiographRefused,
    XFlowError,
)
from xflow_core.domain.findings import FINDINGS
from xflow_core.domain.instruction import Instruction, describe, parse_instruction
from xflow_core.domain.trace import Step, Trace
from xflow_core.export.files import image_names, sweep, write_result
from xflow_core.export.words import result_in_words, step_in_words

from .app import fail
from .pacs import PacsOptions, PacsStudy

if TYPE_CHECKING:
    from xflow_core.batch.answers import ReadImage
    from xflow_core.workflow.engine import Engine
    from xflow_core.workflow.session import Session


@dataclass(frozen=True)
class SegmentCall:
    """The call as it was typed."""

    images: tuple[Path, ...]
    pacs: PacsOptions
    out: Path
    instruction: str | None
    survey: bool
    bundle: str
    device: str
    stages: int
    seed: int
    accept_image: bool
    dicom_geometry: str | None
    secondary_capture: bool
    as_json: bool

    @property
    def wants_dicom(self) -> bool:
        """Whether the call asks for something that only DICOM images have; their DICOM results need no asking."""
        return self.dicom_geometry is not None or self.secondary_capture

    def say(self, line: str) -> None:
        """Print what happens; with --json the trace tells the steps, and stderr is for errors alone."""
        if not self.as_json:
            print(line, flush=True)

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
        return survey()


def survey() -> tuple[Instruction, ...]:
    """What ``--survey`` asks: each finding, wherever it is."""
    return tuple(parse_instruction(f"Segment the {finding}.")[0] for finding in FINDINGS)


@dataclass(frozen=True)
class SourceImage:
    """One image of the call.

    Attributes:
        label: what messages and results call it: the path as typed, or the SOP Instance UID of an image in a PACS.
        name: its folder among the results.
        read: the path, or the bytes of its file.
    """

    label: str
    name: str
    read: Callable[[], Path | bytes]


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
    study = call.pacs.study(call.images)
    if call.dicom_geometry not in (None, "synthetic", "none"):
        raise CallError(f"--dicom-geometry is synthetic or none, not {call.dicom_geometry!r}.")
    if call.out.exists() and not call.out.is_dir():
        raise CallError(f"{call.out} is a file; -o names a folder.")
    from xflow_core.bundles.loading import load_engine

    engine = load_engine(call.bundle, call.device)
    if not call.survey:
        for instruction in instructions:
            engine.check_finding(instruction.finding)

    results: list[dict[str, Any]] = []
    status = 0
    images = _images(call, study)
    console = Console(stderr=True)
    # Where nobody watches, the bar would still end with an empty line.
    with Progress(console=console, transient=True, disable=len(images) < 2 or not console.is_interactive) as progress:
        task = progress.add_task("images", total=len(images))
        for image in images:
            try:
                done, made = _segment_image(call, study, engine, image, call.out / image.name, instructions)
            except XFlowError as problem:
                done, made = fail(problem, image.label), [_without_trace(image.label, problem)]
            status = max(status, done)
            results += made
            progress.advance(task)
    return status, results


def _images(call: SegmentCall, study: PacsStudy | None) -> list[SourceImage]:
    if study is None:
        names = image_names(call.images)
        return [
            SourceImage(str(path), name, partial(Path, path)) for path, name in zip(call.images, names, strict=True)
        ]
    return [
        SourceImage(image.sop_instance_uid, image.sop_instance_uid, partial(study.pacs.fetch, image))
        for image in study.images(call.say, accept_image=call.accept_image)
    ]


def _segment_image(
    call: SegmentCall,
    study: PacsStudy | None,
    engine: Engine,
    source: SourceImage,
    folder: Path,
    instructions: tuple[Instruction, ...],
) -> tuple[int, list[dict[str, Any]]]:
    from xflow_core.batch.answers import answer_question, read_image

    say = call.say
    data = source.read()
    read = read_image(
        engine, data, name=source.label if isinstance(data, bytes) else None, accept_image=call.accept_image
    )
    record = read.image.radiograph.record
    say(f"{source.label}: {record.size[1]} x {record.size[0]} pixels")
    if call.wants_dicom and record.source != "dicom":
        raise RadiographError(
            f"{Path(source.label).name} is no DICOM file ({record.source}); leave --dicom-geometry and "
            "--secondary-capture away, they are for DICOM images."
        )
    for warning in record.warnings:
        say(f"  warning: {warning}")
    status = 0 if read.refusal is None else fail(read.refusal, source.label)
    sweep(folder)
    made, traces = [], []
    for instruction in instructions:
        if read.refusal is None:
            say(f"  understood: {describe(instruction)}")
            for note in instruction.notes:
                say(f"    ({note})")

        def watch(step: Step, session: Session) -> None:
            say(f"    {step_in_words(step, session.trace())}")

        trace = answer_question(engine, read, instruction, stages=call.stages, seed=call.seed, watch=watch)
        assert trace.result is not None
        if trace.result.status == "failed":
            status = max(status, fail(EngineError(trace.result.message or "the engine failed"), source.label))
        try:
            written = _write(folder, trace, read, source.label)
        except XFlowError as problem:
            # What was written for the other findings stays, and is listed.
            status = max(status, fail(problem, source.label))
            made.append({**_without_trace(source.label, problem), "finding": instruction.finding})
            continue
        if read.refusal is None:
            say(f"  {result_in_words(trace)}")
            for key in ("overlay", "mask", "trace"):
                if written[f"{key}_file"]:
                    say(f"    {key}: {Path(written['folder']) / written[f'{key}_file']}")
        made.append(written)
        traces.append(trace)
    status = max(status, _write_dicom(call, study, source, data, folder, traces, made))
    say(f"  {NOT_FOR_CLINICAL_USE}")
    return status, made


def _write(folder: Path, trace: Trace, read: ReadImage, label: str) -> dict[str, Any]:
    target = folder / trace.instruction.finding
    files = write_result(target, trace, read.image.radiograph.display)
    assert trace.result is not None
    return {
        "image": label,
        "finding": trace.instruction.finding,
        "regions": list(trace.instruction.regions),
        **replace(trace.result, mask_file=None if files.mask is None else files.mask.name).to_json(),
        "overlay_file": None if files.overlay is None else files.overlay.name,
        "trace_file": files.trace.name,
        "folder": str(target),
    }


def _write_dicom(
    call: SegmentCall,
    study: PacsStudy | None,
    source: SourceImage,
    data: Path | bytes,
    folder: Path,
    traces: list[Trace],
    made: list[dict[str, Any]],
) -> int:
    """The DICOM results of a DICOM image, also into the PACS; ``made`` names them. Returns the exit status."""
    from xflow_core.batch.answers import is_refused, write_dicom_results

    for result in made:
        result["dicom"] = None
    try:
        files = write_dicom_results(
            folder,
            traces,
            data,
            name=Path(source.label).name,
            geometry=call.dicom_geometry or "synthetic",
            overlays=_overlays(made) if call.secondary_capture else None,
        )
        if files is None:
            return 0
        for result in made:
            result["dicom"] = {
                "folder": str(folder),
                **{kind: path and path.name for kind, path in files.by_kind().items()},
                "warnings": list(files.warnings),
                "stored": False,
            }
        for warning in files.warnings:
            call.say(f"  warning: {warning}")
        for path in files.paths:
            call.say(f"    dicom: {path}")
        # What the bundle does not take for a chest is not the PACS's business.
        if study is not None and not is_refused(traces) and study.send(files.paths, call.say):
            for result in made:
                result["dicom"]["stored"] = True
    except ExportError as problem:
        if call.accept_image and not call.wants_dicom:
            call.say(f"  no DICOM results: {problem}")
            return 0
        return fail(problem, source.label)
    except XFlowError as problem:
        return fail(problem, source.label)
    return 0


def _overlays(made: list[dict[str, Any]]) -> list[np.ndarray] | None:
    files = [Path(result["folder"]) / result["overlay_file"] for result in made if result.get("overlay_file")]
    return [np.asarray(Image.open(file).convert("RGB")) for file in files] or None


def _without_trace(label: str, problem: XFlowError) -> dict[str, Any]:
    status = "refused" if isinstance(problem, RadiographRefused) else "failed"
    kind = "unreadable" if isinstance(problem, RadiographError) and status == "failed" else status
    return {"image": label, "status": status, "present": None, "reason": kind, "message": str(problem)}
