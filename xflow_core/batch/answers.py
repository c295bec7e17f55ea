"""An image answered, in one way for ``xflow segment`` and ``xflow batch``: it is read and looked at by the guards, its
questions are answered, and what a DICOM image gets besides is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from xflow_core.domain.errors import ExportError, RadiographRefused
from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import Step, Trace
from xflow_core.export.files import remove_dicom
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.workflow.engine import Engine
from xflow_core.workflow.session import Session, answer, unanswered

if TYPE_CHECKING:
    from xflow_core.export.dicom import DicomFiles


@dataclass(frozen=True, eq=False)
class ReadImage:
    """An image before its first question.

    Attributes:
        image: its record has the guards' warnings, unless they refuse it.
        refusal: why they do; every answer says so then, and nothing is computed. None when they admit it.
        seconds: of reading it and of the guards; every answer counts them.
    """

    image: EncodedRadiograph
    refusal: RadiographRefused | None
    seconds: float


def read_image(engine: Engine, data: Path | bytes, *, name: str | None = None, accept_image: bool = False) -> ReadImage:
    """Read an image file, or the bytes of one, and have the guards look at it.

    Args:
        name: what messages call it; the path by default.
        accept_image: go on against refusals; they become warnings.

    Raises:
        RadiographError, RadiographRefused: it cannot be read, or is refused at reading.
        EngineError: the bundle's guard failed.
    """
    start = time.perf_counter()
    radiograph = read_radiograph(data, name=name, accept_image=accept_image)
    refusal = None
    try:
        image = engine.admit(radiograph, accept_image=accept_image)
    except RadiographRefused as problem:
        image, refusal = EncodedRadiograph(radiograph), problem
    return ReadImage(image, refusal, time.perf_counter() - start)


def answer_question(
    engine: Engine,
    read: ReadImage,
    asked: Instruction,
    *,
    stages: int = 2,
    seed: int = 0,
    watch: Callable[[Step, Session], None] | None = None,
) -> Trace:
    """The trace of one question, with its result; a refused image and a failed model are results too."""
    if read.refusal is None:
        trace = answer(engine, read.image, asked, stages=stages, seed=seed, watch=watch)
    else:
        trace = unanswered(engine.identity, read.image, asked, "refused", str(read.refusal))
    trace.seconds["read"] = read.seconds
    trace.seconds["total"] = trace.seconds.get("total", 0.0) + read.seconds
    return trace


def write_dicom_results(
    folder: Path,
    traces: Sequence[Trace],
    data: Path | bytes,
    *,
    name: str,
    geometry: str = "synthetic",
    overlays: Sequence[np.ndarray] | None = None,
) -> DicomFiles | None:
    """Write what an image's folder holds as DICOM, if the image is DICOM.

    Where there is none to write, those of an earlier image of that name go: they say nothing of the new answers.

    Args:
        traces: the image's answers; without any, nothing is touched.
        name: what messages call the image.
        geometry, overlays: as :func:`xflow_core.export.dicom.write_dicom` has them.

    Returns:
        The files; None for an image that is not DICOM, and for a refused one whose header cannot be used (one reason is
        enough).

    Raises:
        ExportError: the header cannot be used.
        NotWritten: the files cannot be written, or those of an earlier image cannot be removed.
    """
    if not traces:
        return None
    if traces[0].image.source != "dicom":
        remove_dicom(folder)
        return None
    from xflow_core.export.dicom import read_source, write_dicom

    try:
        return write_dicom(folder, traces, read_source(data, name=name), geometry=geometry, overlay=overlays)
    except ExportError:
        remove_dicom(folder)
        if is_refused(traces):
            return None
        raise


def is_refused(traces: Sequence[Trace]) -> bool:
    """Whether the image was refused, so that none of its questions was answered."""
    return all(trace.result is not None and trace.result.status == "refused" for trace in traces)
