"""Finding chest radiographs: studies with CR or DX series that do not show another part of the body."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime

from xflow_core.domain.errors import CallError
from xflow_core.radiograph.content import HeaderEvidence
from xflow_core.radiograph.guards import inspect_header

from .answers import UID, Answer, uid, values, whole, word
from .service import DicomWeb

MODALITIES = ("CR", "DX")
_PAGE = 100
_MAX_PAGES = 10_000


@dataclass(frozen=True)
class StudyQuery:
    """What is looked for; None asks nothing.

    Attributes:
        patient_id: the patient's ID, with the service's wildcards (``*``, ``?``).
        study_date: ``YYYYMMDD``, or a range ``YYYYMMDD-YYYYMMDD`` whose one end may be left open.
        accession_number: as the patient's ID.
        study_uid: one study.
        modalities: CR, DX or both.

    Raises:
        CallError: a date, UID or modality that is none.
    """

    patient_id: str | None = field(default=None, repr=False)
    study_date: str | None = None
    accession_number: str | None = field(default=None, repr=False)
    study_uid: str | None = None
    modalities: tuple[str, ...] = MODALITIES

    def __post_init__(self) -> None:
        if self.study_date is not None:
            _check_dates(self.study_date)
        if self.study_uid is not None and not UID.fullmatch(self.study_uid):
            raise CallError("The study is given by its Study Instance UID: numbers with dots between them.")
        if not self.modalities or not set(self.modalities) <= set(MODALITIES):
            raise CallError("The modality is CR or DX.")

    def filters(self) -> dict[str, str]:
        """The query's keys and values (PS3.18 section 8.3.4), the modality aside."""
        asked = {
            "PatientID": self.patient_id,
            "StudyDate": self.study_date,
            "AccessionNumber": self.accession_number,
            "StudyInstanceUID": self.study_uid,
        }
        return {keyword: value for keyword, value in asked.items() if value is not None}


@dataclass(frozen=True)
class FoundStudy:
    """A study with chest radiographs.

    Attributes:
        study_date: ``YYYYMMDD``; None when the service does not tell.
        modalities: of its radiographic chest series.
        series: how many there are.
        images: how many images are in them; None when the service does not tell.
        patient_id: identity of the patient, as is ``patient_name``: for a caller who asked for it, for no log.
    """

    study_uid: str
    study_date: str | None
    modalities: tuple[str, ...]
    series: int
    images: int | None
    patient_id: str | None = field(default=None, repr=False)
    patient_name: str | None = field(default=None, repr=False)


def find_studies(
    pacs: DicomWeb, query: StudyQuery, *, limit: int, any_part: bool = False
) -> tuple[list[FoundStudy], bool]:
    """At most ``limit`` studies, the newest first, and whether there are more.

    A study counts as chest unless the header guards know the body part of all its CR and DX series as another
    one; many stations do not name it.

    Args:
        any_part: list studies of every part of the body.

    Raises:
        PacsError: the service cannot be asked.
    """
    found: list[FoundStudy] = []
    for answer in _candidates(pacs, query):
        study = _study(pacs, answer, query, any_part)
        if study is None:
            continue
        if len(found) == limit:
            return _newest_first(found), True
        found.append(study)
    return _newest_first(found), False


def _newest_first(found: list[FoundStudy]) -> list[FoundStudy]:
    return sorted(found, key=lambda study: (study.study_date or "", study.study_uid), reverse=True)


def _candidates(pacs: DicomWeb, query: StudyQuery) -> Iterator[Answer]:
    """Studies with a modality asked for, each once, page by page."""
    seen: set[str] = set()
    for modality in query.modalities:
        # One modality at a time: services differ in how they take a list. Not all of them keep to what is asked for,
        # hence the check of the series later.
        filters = query.filters() | {"ModalitiesInStudy": modality}
        listed: set[str] = set()
        offset = 0
        for _ in range(_MAX_PAGES):
            # Orthanc (1.10) counts what it skips against the limit when it filters by modality; to others this means
            # larger pages.
            page = pacs.search_studies(filters, offset + _PAGE, offset)
            uids = {study: answer for answer in page if (study := uid(answer, "StudyInstanceUID")) is not None}
            if uids.keys() <= listed:  # the end, or a service that knows no offset and repeats its first page
                break
            listed |= uids.keys()
            offset += len(page)
            for study_uid, answer in uids.items():
                if study_uid not in seen:
                    seen.add(study_uid)
                    yield answer


def _study(pacs: DicomWeb, answer: Answer, query: StudyQuery, any_part: bool) -> FoundStudy | None:
    study_uid = uid(answer, "StudyInstanceUID")
    assert study_uid is not None
    series = [
        item
        for item in pacs.search_series(study_uid)
        if word(item, "Modality") in query.modalities and (any_part or not _shows_another_part(item))
    ]
    if not series:
        return None
    counts = [whole(item, "NumberOfSeriesRelatedInstances") for item in series]
    day = word(answer, "StudyDate")
    name = next(iter(values(answer, "PatientName")), None)
    patient = next(iter(values(answer, "PatientID")), None)
    return FoundStudy(
        study_uid=study_uid,
        study_date=day if day is not None and re.fullmatch("[0-9]{8}", day) else None,
        modalities=tuple(sorted({word(item, "Modality") or "" for item in series})),
        series=len(series),
        images=None if any(count is None for count in counts) else sum(count or 0 for count in counts),
        patient_id=None if patient is None else str(patient),
        patient_name="=".join(str(part) for part in name.values()) if isinstance(name, dict) else None,
    )


def _shows_another_part(series: Answer) -> bool:
    modality, part = word(series, "Modality"), word(series, "BodyPartExamined")
    refusals, _ = inspect_header(HeaderEvidence(modality=modality, body_part=part))
    return bool(refusals)


def _check_dates(text: str) -> None:
    first, dash, last = text.partition("-")
    try:
        ends = [_day(end) for end in (first, last) if end]
    except ValueError:
        ends = []
    if not ends or (not dash and not first) or ends != sorted(ends):
        raise CallError("A date is YYYYMMDD, or a range YYYYMMDD-YYYYMMDD, one end of which may be left out.")


def _day(text: str) -> date:
    if not re.fullmatch("[0-9]{8}", text):
        raise ValueError(text)
    return datetime.strptime(text, "%Y%m%d").date()
