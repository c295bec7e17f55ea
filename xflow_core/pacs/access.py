"""Where a DICOMweb service is and who asks: the URL, and the credentials, which are never part of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import requests
from requests.auth import AuthBase
from requests.utils import get_netrc_auth

from xflow_core.domain.errors import CallError

USER, PASSWORD, TOKEN = "XFLOW_DICOMWEB_USER", "XFLOW_DICOMWEB_PASSWORD", "XFLOW_DICOMWEB_TOKEN"
"""Environment variables; without them a netrc file (``NETRC`` or ``~/.netrc``) is asked for the host."""


def service_url(text: str) -> str:
    """The checked base URL of a DICOMweb service, without a slash at its end.

    Raises:
        CallError: it is no http(s) URL, or holds credentials, a query or a fragment. The URL is not repeated then: a
            secret may be in it.
    """
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise CallError(
            "The DICOMweb URL holds credentials, a query or a fragment, which XFlow never takes from there; give the "
            f"plain URL, and the credentials in {USER} and {PASSWORD}, in {TOKEN} or in a netrc file."
        )
    if parts.scheme not in ("http", "https") or not host or re.search(r"[\s\x00-\x1f\x7f-\x9f\\]", text):
        raise CallError("The DICOMweb URL is none; it looks like https://pacs.example/dicom-web.")
    return text.rstrip("/")


class Authorisation(AuthBase):
    """What a request shows of who asks: HTTP Basic, a bearer token, or nothing."""

    def __init__(self, header: str | None) -> None:
        self._header = header

    @property
    def given(self) -> bool:
        """Whether there are any credentials."""
        return self._header is not None

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._header is not None:
            request.headers["Authorization"] = self._header
        return request


def authorisation(url: str, environment: Mapping[str, str] = os.environ) -> Authorisation:
    """The credentials for a service: of the environment, else of a netrc file, else none.

    Raises:
        CallError: the variables contradict each other, or hold what no header can carry.
    """
    user, password, token = (environment.get(name) for name in (USER, PASSWORD, TOKEN))
    if token:
        if user or password:
            raise CallError(f"Both {TOKEN} and {USER} or {PASSWORD} are set; unset one of them.")
        if not re.fullmatch(r"[\x21-\x7e]+", token.strip()):
            raise CallError(f"{TOKEN} holds characters that no token has; set it again.")
        return Authorisation(f"Bearer {token.strip()}")
    if bool(user) != bool(password):
        unset = PASSWORD if user else USER
        raise CallError(f"{unset} is not set; give both {USER} and {PASSWORD}.")
    pair = (user, password) if user and password else get_netrc_auth(url)
    if pair is None:
        return Authorisation(None)
    # Through requests' own encoder, as UTF-8: a str would go out as Latin-1 or fail.
    made = requests.auth.HTTPBasicAuth(*((part or "").encode() for part in pair))
    header = made(requests.Request("GET", url).prepare()).headers["Authorization"]
    return Authorisation(str(header))
