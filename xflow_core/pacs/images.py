"""Which images of a study can be answered, by their headers alone: no pixel is fetched for an image left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xflow_core.domain.errors import CallError, PacsError, RadiographRefused
from xflow_core.radiograph.content import HeaderEvidence
from xflow_core.radiograph.guards import inspect_header, says_frontal

from .answers import UID, Answer, uid, values, whole, word
from .service import DicomWeb, Instance
from .studies import MODALITIES

_FOR_PROCESSING = "FOR PROCESSING"


@dataclass(frozen=True)
class ImageChoice:
    """The images to answer, in the service's order, and why others of the series were left out."""

    chosen: tuple[Instance, ...]
    left_out: tuple[tuple[Instance, str], ...]


def choose_images(
    pacs: DicomWeb, study_uid: str, series_uid: str | None = None, *, accept_image: bool = False
) -> ImageChoice:
    """The frontal chest radiographs among a study's CR and DX images, or among those of one series.

    The guards' refusals leave an image out. Where one image's header names a frontal view, images without a
    named view are left out too (often the laterals), and a raw image (FOR PROCESSING) beside one for reading.

    Args:
        accept_image: leave out nothing but what is no image.

    Raises:
        CallError: a UID that is none.
        PacsError: the service cannot be asked, or holds no such study or series.
        RadiographRefused: it does, and no image can be answered; the sentence says why.
    """
    for text in (study_uid, series_uid):
        if text is not None and not UID.fullmatch(text):
            raise CallError("Studies and series are given by their instance UIDs: numbers with dots between them.")
    headers = [
        header
        for series in ([series_uid] if series_uid is not None else _radiographic_series(pacs, study_uid))
        for header in pacs.series_headers(study_uid, series)
    ]
    images = [
        (Instance(study_uid, series, instance), header)
        for header in headers
        if (series := uid(header, "SeriesInstanceUID")) and (instance := uid(header, "SOPInstanceUID"))
    ]
    if not images:
        raise PacsError(f"{pacs.name} holds no images there; check the study's and the series' UID.")
    reasons = _reasons(images, accept_image)
    chosen = tuple(image for image, _ in images if image not in reasons)
    if not chosen:
        why = " ".join(dict.fromkeys(reasons.values()))
        raise RadiographRefused(f"No image of the study can be answered. {why}")
    return ImageChoice(chosen, tuple(reasons.items()))


def _radiographic_series(pacs: DicomWeb, study_uid: str) -> list[str]:
    series = pacs.search_series(study_uid)
    if not series:
        raise PacsError(f"{pacs.name} knows no study with this UID; xflow pacs find lists what it has.")
    found = [
        number
        for item in series
        if word(item, "Modality") in MODALITIES and (number := uid(item, "SeriesInstanceUID")) is not None
    ]
    if not found:
        raise RadiographRefused("The study has no CR or DX series; name another with --series to try it.")
    return found


def _reasons(images: Sequence[tuple[Instance, Answer]], accept_image: bool) -> dict[Instance, str]:
    """Why each image that is left out is."""
    reasons: dict[Instance, str] = {}
    kept: list[tuple[Instance, HeaderEvidence]] = []
    for image, header in images:
        evidence = _evidence(header)
        frames = whole(header, "NumberOfFrames") or 1
        if whole(header, "Rows") is None:
            reasons[image] = "It is no image."
        elif frames > 1 and not accept_image:
            reasons[image] = f"It holds {frames} frames; XFlow reads single radiographs."
        elif not accept_image and (refusals := inspect_header(evidence)[0]):
            reasons[image] = " ".join(refusals)
        else:
            kept.append((image, evidence))
    if accept_image:
        return reasons
    if any(says_frontal(evidence) for _, evidence in kept):
        for image, evidence in kept:
            if not says_frontal(evidence):
                reasons[image] = "Its header names no frontal view, and another image's does."
    kept = [(image, evidence) for image, evidence in kept if image not in reasons]
    if any(evidence.presentation_intent != _FOR_PROCESSING for _, evidence in kept):
        for image, evidence in kept:
            if evidence.presentation_intent == _FOR_PROCESSING:
                reasons[image] = "It is raw (FOR PROCESSING), and another image is for reading."
    return reasons


def _evidence(header: Answer) -> HeaderEvidence:
    return HeaderEvidence(
        modality=word(header, "Modality"),
        sop_class_uid=uid(header, "SOPClassUID"),
        body_part=word(header, "BodyPartExamined") or _meaning(header, "AnatomicRegionSequence"),
        view_position=word(header, "ViewPosition"),
        view_code=_meaning(header, "ViewCodeSequence"),
        orientation=_orientation(header),
        presentation_intent=word(header, "PresentationIntentType"),
    )


def _meaning(header: Answer, keyword: str) -> str | None:
    items = values(header, keyword)
    return word(items[0], "CodeMeaning") if items and isinstance(items[0], dict) else None


def _orientation(header: Answer) -> tuple[str, str] | None:
    letters = [str(item).strip().upper() for item in values(header, "PatientOrientation")]
    if len(letters) != 2 or not all(item and set(item) <= set("LRAPHF") for item in letters):
        return None
    return letters[0], letters[1]
