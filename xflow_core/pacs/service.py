"""The DICOMweb service: search, retrieve, store, and one clear sentence for everything that can go wrong.

Every request ends: connecting and each wait for bytes have a limit. TLS certificates are checked, against the authority
in ``REQUESTS_CA_BUNDLE`` where that is set. Redirects are not followed: a request may carry an image.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pydicom
import requests
from dicomweb_client.web import DICOMwebClient
from requests.adapters import HTTPAdapter
from urllib3.exceptions import ReadTimeoutError
from urllib3.util import Retry

from xflow_core.domain.errors import CallError, PacsError, StoreError, XFlowError
from xflow_core.domain.quiet import quiet_python

from .access import PASSWORD, TOKEN, USER, authorisation, service_url
from .answers import Answer, is_answer

TIMEOUT_SECONDS = 60.0
_CONNECT_SECONDS = 10.0
_CHECK_URL = "check the URL (it often ends in /dicom-web, /rs or /wado-rs)"

_LOGGERS = ("dicomweb_client", "retrying", "urllib3")

_FAILURES = {
    0xA700: "it is out of resources",
    0xA900: "the dataset does not match its class",
    0xC000: "it cannot understand the dataset",
    0xC122: "it does not take the transfer syntax",
    0x0110: "it failed to process it",
    0x0122: "it does not take this class of object",
    0x0124: "it does not allow it",
}
"""Failure Reason (0008,1197), PS3.18 table I.2-2 and PS3.7 annex C."""


class _Session(requests.Session):
    """Requests as dicomweb-client makes them, put right where services would stumble."""

    def prepare_request(self, request: requests.Request) -> requests.PreparedRequest:
        prepared = super().prepare_request(request)
        # It names the host without the port; the HTTP library knows the right one.
        prepared.headers.pop("Host", None)
        # It writes queries as forms do. Outside of forms a plus is no space, and the wildcards may stand as they are:
        # they have to for Orthanc's plugin 1.7, which decodes nothing.
        path, mark, query = (prepared.url or "").partition("?")
        prepared.url = path + mark + query.replace("+", "%20").replace("%2A", "*").replace("%3F", "?")
        return prepared


@dataclass(frozen=True)
class Instance:
    """One object in the PACS; the UIDs are checked."""

    study_uid: str
    series_uid: str
    sop_instance_uid: str


class DicomWeb:
    """A DICOMweb service.

    Args:
        url: its base URL, https://pacs.example/dicom-web or the like; the credentials come from the environment.
        timeout: seconds without a byte from the service before a request is given up.

    Raises:
        CallError: no such URL or time, or contradicting credentials. The service is not contacted yet.
    """

    def __init__(self, url: str, *, timeout: float = TIMEOUT_SECONDS) -> None:
        if not 0 < timeout < 86_400:
            raise CallError(f"A time-out is a number of seconds up to a day, not {timeout:g}.")
        self.url = service_url(url)
        self.name = f"The PACS at {urlsplit(self.url).netloc}"
        self._timeout = timeout
        self._authorisation = authorisation(self.url)
        session = _Session()
        session.auth = self._authorisation
        session.headers["Accept"] = "application/dicom+json"
        # What a busy service asks for, and only where asking twice does no harm.
        retry = Retry(
            total=2,
            connect=1,
            read=False,
            status_forcelist=(429, 503),
            allowed_methods=("GET",),
            backoff_factor=0.5,
            raise_on_status=False,
            respect_retry_after_header=False,
        )
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(max_retries=retry))
        self._client = DICOMwebClient(
            self.url, session, timeout=(min(timeout, _CONNECT_SECONDS), timeout), callback=self._check
        )
        self._client.set_http_retry_params(retry=False)

    def search_studies(self, filters: Mapping[str, str], limit: int, offset: int) -> list[Answer]:
        """Studies that match, as the service says, at most ``limit`` of them from ``offset`` on.

        Raises:
            PacsError: as for every method here, in one sentence.
        """
        with self._said("searching for studies"):
            return self._answers(
                self._client.search_for_studies(limit=limit, offset=offset, search_filters=dict(filters))
            )

    def search_series(self, study_uid: str) -> list[Answer]:
        """The series of a study; none when the service knows no such study."""
        fields = ["BodyPartExamined", "NumberOfSeriesRelatedInstances"]
        try:
            with self._said("listing the study's series"):
                return self._answers(self._client.search_for_series(study_uid, fields=fields))
        except _NotFound:
            return []

    def series_headers(self, study_uid: str, series_uid: str) -> list[Answer]:
        """The headers of a series' instances, without pixels; none when the service knows no such series."""
        try:
            with self._said("reading the series' headers"):
                return self._answers(self._client.retrieve_series_metadata(study_uid, series_uid))
        except _NotFound:
            return []

    def fetch(self, instance: Instance) -> bytes:
        """One instance as a DICOM file, in the transfer syntax that the service holds.

        Raises:
            PacsError: it could not be had whole.
        """
        with self._said("fetching the image"):
            dataset = self._client.retrieve_instance(instance.study_uid, instance.series_uid, instance.sop_instance_uid)
            if dataset.get("SOPInstanceUID") != instance.sop_instance_uid:
                raise PacsError(f"{self.name} sent another image than the one that was asked for; tell its keeper.")
            buffer = io.BytesIO()
            dataset.save_as(buffer)
            return buffer.getvalue()

    def store(self, files: Sequence[Path]) -> None:
        """Store DICOM files, one after another, so that each is known to be taken or not.

        What the service refuses does not keep it from the others; when it cannot be reached any more, the rest is not
        tried. The files are never touched.

        Raises:
            StoreError: not all were taken; the sentence says which and why.
        """
        reasons: dict[Path, str] = {}
        lost = ""
        for file in files:
            try:
                self._store_one(file)
            except _NotTaken as problem:
                reasons[file] = str(problem)
            except PacsError as problem:
                lost = str(problem)
                reasons.update(dict.fromkeys(files[files.index(file) :], "not sent"))
                reasons[file] = "not confirmed"
                break
        if reasons:
            said = lost or f"{self.name} did not take all."
            left = [f"{file} ({reason})" for file, reason in reasons.items()]
            done = [file.name for file in files if file not in reasons]
            raise StoreError(
                f"{said} Not stored: {', '.join(left)}; stored: {', '.join(done) or 'none'}. The files stay on disk; "
                "send them again with: xflow pacs store"
            )

    def _store_one(self, file: Path) -> None:
        try:
            with quiet_python():
                dataset = pydicom.dcmread(file)
            sop_instance_uid = str(dataset.SOPInstanceUID)
        except OSError as problem:
            raise _NotTaken(f"it cannot be read: {problem.strerror or 'unknown reason'}") from None
        except Exception:  # noqa: BLE001 - the parser raises whatever its own code runs into
            raise _NotTaken("it is no DICOM file") from None
        with self._said("storing the results", sends=True):
            answer = self._client.store_instances([dataset])
        for item in answer.get("FailedSOPSequence") or ():
            raise _NotTaken(_failure(item))
        taken = [item.get("ReferencedSOPInstanceUID") for item in answer.get("ReferencedSOPSequence") or ()]
        if sop_instance_uid not in taken:
            raise _NotTaken("it did not confirm it")

    def _answers(self, items: Any) -> list[Answer]:
        if not isinstance(items, list) or not all(is_answer(item) for item in items):
            raise ValueError("not the DICOM JSON model")
        return items

    def _check(self, response: requests.Response, *_: Any, **__: Any) -> requests.Response:
        """Called with every response before dicomweb-client sees it."""
        if response.is_redirect or response.is_permanent_redirect:
            target = urlsplit(response.headers.get("Location", ""))
            where = f"{target.scheme}://{target.hostname}" if target.scheme and target.hostname else "another address"
            raise PacsError(f"{self.name} sends requests on to {where}, which XFlow does not follow; give that URL.")
        kind, *parameters = (part.strip() for part in response.headers.get("Content-Type", "").split(";"))
        if response.request.method == "POST":
            # dicomweb-client knows the bare media types only; "..; charset=utf-8" would read as no answer.
            response.headers["Content-Type"] = kind.lower()
        if kind.lower() == "multipart/related" and response.ok:
            found = (part.partition("=")[2] for part in parameters if part.lower().startswith("boundary="))
            boundary = next(found, "").strip('"')
            # Without a length in the header a broken connection looks like an end; only the last boundary tells.
            if f"--{boundary}--".encode() not in response.content[-len(boundary) - 256 :]:
                raise PacsError(f"{self.name} stopped in the middle of its answer; try again.")
        return response

    @contextmanager
    def _said(self, doing: str, *, sends: bool = False) -> Iterator[None]:
        """What goes wrong becomes one sentence without any of the libraries' words, which may repeat the request."""
        try:
            with _quiet():
                yield
        except XFlowError:
            raise
        except requests.exceptions.SSLError:
            raise PacsError(
                f"{self.name} shows a TLS certificate that this machine does not trust; name the file of its "
                "authority's certificates in REQUESTS_CA_BUNDLE."
            ) from None
        except requests.HTTPError as problem:
            assert problem.response is not None
            raise self._refusal(problem.response, doing, sends) from None
        except requests.Timeout:
            raise self._late(doing) from None
        except requests.ConnectionError as problem:
            if problem.args and isinstance(problem.args[0], ReadTimeoutError):
                raise self._late(doing) from None
            raise PacsError(
                f"{self.name} cannot be reached, or broke the connection, while {doing}; check the URL and the network."
            ) from None
        except (requests.exceptions.ChunkedEncodingError, requests.exceptions.ContentDecodingError):
            raise PacsError(f"{self.name} stopped in the middle of its answer while {doing}; try again.") from None
        except Exception as problem:  # noqa: BLE001 - parsers raise whatever they run into on an answer that is none
            if isinstance(problem, OSError) and not isinstance(problem, requests.RequestException):
                raise CallError(
                    "The certificates that REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE names cannot be read; check the path."
                ) from None
            raise PacsError(
                f"{self.name} did not answer as a DICOMweb service does while {doing}; {_CHECK_URL}."
            ) from None

    def _late(self, doing: str) -> PacsError:
        return PacsError(f"{self.name} did not answer within {self._timeout:g} s while {doing}; try again later.")

    def _refusal(self, response: requests.Response, doing: str, sends: bool) -> PacsError:
        status = response.status_code
        if status == 401:
            if self._authorisation.given:
                return PacsError(f"{self.name} does not accept the credentials (401); check them.")
            return PacsError(
                f"{self.name} wants credentials (401); set {USER} and {PASSWORD}, or {TOKEN}, or write a netrc file."
            )
        if status == 403:
            return PacsError(f"{self.name} does not allow this user {doing} (403); ask its keeper.")
        if sends and status in (400, 409, 413, 415, 422):
            return _NotTaken(_failure_of(response) or f"it answered {status}")
        if status in (404, 410):
            return _NotFound(f"{self.name} has nothing there (404) while {doing}; {_CHECK_URL}.")
        if status >= 500:
            return PacsError(f"{self.name} failed ({status}) while {doing}; try again later or ask its keeper.")
        return PacsError(f"{self.name} refused the request ({status}) while {doing}; {_CHECK_URL}.")


@contextmanager
def _quiet() -> Iterator[None]:
    """No logs either: they repeat requests, which may hold the patient ID that was searched for."""
    with quiet_python():
        loggers = [logging.getLogger(name) for name in _LOGGERS]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


class _NotFound(PacsError):
    """404 or 410."""


class _NotTaken(PacsError):
    """One object is not stored; the message is the reason, in brackets behind its name."""


def _failure_of(response: requests.Response) -> str | None:
    """The reason in the body of a refused store (PS3.18 table 10.5.3-1), when there is one."""
    try:
        items = pydicom.Dataset.from_json(response.json()).get("FailedSOPSequence")
        return _failure(items[0]) if items else None
    except Exception:  # noqa: BLE001 - no body, or anything in it: the status tells enough
        return None


def _failure(item: pydicom.Dataset) -> str:
    code = item.get("FailureReason")
    if not isinstance(code, int):
        return "without a reason"
    families = (code, code & 0xFF00, code & 0xF000)
    words = next((_FAILURES[family] for family in families if family in _FAILURES), "without words")
    return f"{words}, code {code:04X}"
