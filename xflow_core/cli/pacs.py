"""``xflow pacs``, and the PACS side of ``xflow segment``: what to fetch, and what goes back."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from xflow_core.domain.errors import CallError

if TYPE_CHECKING:
    from xflow_core.pacs.service import DicomWeb, Instance
    from xflow_core.pacs.studies import FoundStudy


def connect(url: str, timeout: float) -> DicomWeb:
    """The DICOMweb service at a URL, not contacted yet.

    Raises:
        CallError: the URL or the credentials are wrong, or dicomweb-client is not installed.
    """
    try:
        from xflow_core.pacs.service import DicomWeb
    except ModuleNotFoundError as problem:
        raise CallError(f"A PACS needs the package {problem.name}: pip install xflow-core[pacs]") from None
    return DicomWeb(url, timeout=timeout)


@dataclass(frozen=True, eq=False)
class PacsStudy:
    """The study that ``xflow segment`` answers, and whether its results are stored beside it."""

    pacs: DicomWeb
    study_uid: str
    series_uid: str | None
    store: bool

    def images(self, say: Callable[[str], None], *, accept_image: bool) -> tuple[Instance, ...]:
        """The images to answer; tells of those left out.

        Raises:
            PacsError, RadiographRefused: there are none, or they cannot be asked for.
        """
        from xflow_core.pacs.images import choose_images

        choice = choose_images(self.pacs, self.study_uid, self.series_uid, accept_image=accept_image)
        for image, reason in choice.left_out:
            say(f"{image.sop_instance_uid}: left out. {reason}")
        return choice.chosen

    def send(self, files: Sequence[Path], say: Callable[[str], None]) -> bool:
        """Store an image's results, when the call asks for it; whether it did.

        Raises:
            StoreError: not all were taken.
        """
        if not self.store:
            return False
        self.pacs.store(files)
        say(f"    stored in the PACS: {', '.join(file.name for file in files)}")
        return True


@dataclass(frozen=True)
class PacsOptions:
    """What the options of ``xflow segment`` say of a PACS, as they were typed."""

    url: str | None
    study_uid: str | None
    series_uid: str | None
    store: bool
    timeout: float

    def study(self, images: Sequence[Path]) -> PacsStudy | None:
        """The study that they name; None when the call names image files instead.

        Raises:
            CallError: it names both or neither, or only half of what a PACS needs.
        """
        if self.url is None:
            if self.study_uid is not None or self.series_uid is not None or self.store:
                raise CallError("--study, --series and --store belong to a PACS; name it with --dicomweb URL.")
            if not images:
                raise CallError("Give image files, or a study in a PACS: --dicomweb URL --study UID.")
            return None
        if images:
            raise CallError("Give either image files or --dicomweb, not both.")
        if self.study_uid is None:
            raise CallError("--dicomweb needs --study UID; xflow pacs find lists a PACS's chest studies.")
        return PacsStudy(connect(self.url, self.timeout), self.study_uid, self.series_uid, self.store)


@dataclass(frozen=True)
class FindCall:
    """The call of ``xflow pacs find`` as it was typed."""

    url: str
    patient: str | None
    date: str | None
    accession: str | None
    study: str | None
    modality: str | None
    any_part: bool
    limit: int
    show_patient: bool
    timeout: float
    as_json: bool


def run_find(call: FindCall) -> None:
    """List chest CR and DX studies: one a line, tabs between its fields."""
    pacs = connect(call.url, call.timeout)
    from xflow_core.pacs.studies import MODALITIES, StudyQuery, find_studies

    query = StudyQuery(
        patient_id=call.patient,
        study_date=call.date,
        accession_number=call.accession,
        study_uid=call.study,
        modalities=MODALITIES if call.modality is None else (call.modality.upper(),),
    )
    studies, more = find_studies(pacs, query, limit=call.limit, any_part=call.any_part)
    rows = [_row(study, call.show_patient) for study in studies]
    if call.as_json:
        typer.echo(json.dumps({"studies": rows, "more": more}))
        return
    if rows:
        typer.echo("# " + "\t".join(rows[0]))
    for row in rows:
        typer.echo("\t".join(_text(value) for value in row.values()))
    if not rows:
        typer.echo("# no study matches")
    if more:
        typer.echo(f"# there are more; narrow the search or raise --limit {call.limit}")


def run_store(files: Sequence[Path], url: str, timeout: float) -> None:
    """Store DICOM files, for instance those that a PACS did not take in an earlier call."""
    pacs = connect(url, timeout)
    pacs.store(files)
    typer.echo(f"stored: {len(files)} objects")


def _row(study: FoundStudy, show_patient: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "study_uid": study.study_uid,
        "date": study.study_date,
        "modalities": list(study.modalities),
        "series": study.series,
        "images": study.images,
    }
    if show_patient:
        row |= {"patient_id": study.patient_id, "patient_name": study.patient_name}
    return row


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(value)
    # A name may hold what steers a terminal.
    return "?" if value is None else "".join(letter if letter.isprintable() else "?" for letter in str(value))
