"""Who asks, and where: credentials from the environment or a netrc file only, TLS checked, nothing repeated."""

from __future__ import annotations

import base64
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pacs.servers import PASSWORD, USER, Orthanc, Served, served

from xflow_core.domain.errors import CallError, PacsError
from xflow_core.pacs.access import service_url
from xflow_core.pacs.service import DicomWeb

NOTHING = b"[]"
BASIC = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def find(url: str) -> list:
    return DicomWeb(url).search_studies({}, 10, 0)


@pytest.fixture
def listening() -> Iterator[Served]:
    """A service with no studies that remembers the credentials it was shown."""
    with served(lambda handler: handler.answer(200, NOTHING, "application/dicom+json")) as server:
        yield server


def test_orthanc_lets_in_whom_the_environment_names(
    guarded_orthanc: Orthanc, monkeypatch: pytest.MonkeyPatch, xflow
) -> None:
    ended = xflow("pacs", "find", "--dicomweb", guarded_orthanc.url)
    assert ended.status == 3
    assert ended.one_line
    assert "wants credentials (401); set XFLOW_DICOMWEB_USER and XFLOW_DICOMWEB_PASSWORD" in ended.err

    monkeypatch.setenv("XFLOW_DICOMWEB_USER", USER)
    monkeypatch.setenv("XFLOW_DICOMWEB_PASSWORD", "s3cret-and-wrong")
    ended = xflow("pacs", "find", "--dicomweb", guarded_orthanc.url)
    assert ended.status == 3
    assert ended.one_line
    assert "does not accept the credentials (401)" in ended.err
    assert "s3cret" not in ended.err

    monkeypatch.setenv("XFLOW_DICOMWEB_PASSWORD", PASSWORD)
    ended = xflow("pacs", "find", "--dicomweb", guarded_orthanc.url)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.count("\n") == 2


def test_a_netrc_file_is_read_when_the_environment_says_nothing(
    listening: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password fromfile\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    find(listening.url)
    monkeypatch.setenv("XFLOW_DICOMWEB_USER", USER)
    monkeypatch.setenv("XFLOW_DICOMWEB_PASSWORD", PASSWORD)
    find(listening.url)
    assert listening.authorisations == ["Basic " + base64.b64encode(b"ann:fromfile").decode(), BASIC]


def test_a_bearer_token_is_shown_as_one_also_beside_a_netrc_file(
    listening: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password fromfile\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("XFLOW_DICOMWEB_TOKEN", "abc.def-123\n")
    find(listening.url)
    assert listening.authorisations == ["Bearer abc.def-123"]


@pytest.mark.parametrize(
    "variables",
    [
        {"XFLOW_DICOMWEB_USER": "ann"},
        {"XFLOW_DICOMWEB_PASSWORD": "s3cret"},
        {"XFLOW_DICOMWEB_TOKEN": "s3cret", "XFLOW_DICOMWEB_USER": "ann", "XFLOW_DICOMWEB_PASSWORD": "s3cret"},
        {"XFLOW_DICOMWEB_TOKEN": "s3cret\r\nX-Injected: 1"},
    ],
)
def test_half_or_contradicting_credentials_are_refused_before_anything_is_asked(
    variables: dict[str, str], listening: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CallError) as refused:
        find(listening.url)
    assert "s3cret" not in str(refused.value)
    assert listening.seen == []


@pytest.mark.parametrize(
    "url",
    [
        "http://ann:s3cret@pacs.example/dicom-web",
        "https://s3cret@pacs.example/dicom-web",
        "https://pacs.example/dicom-web?token=s3cret",
        "https://pacs.example/dicom-web#s3cret",
        "http://ann:s3cret@[broken/dicom-web",
        "http://ann:s3cret@pacs.example:port/dicom-web",
        "ann:s3cret@pacs.example/dicom-web",
        "ftp://ann:s3cret@pacs.example/",
    ],
)
def test_a_url_with_a_secret_in_it_is_refused_and_not_repeated(url: str, xflow, tmp_path: Path) -> None:
    for arguments in (
        ("pacs", "find", "--dicomweb", url),
        ("segment", "--dicomweb", url, "--study", "1.2.3", "-i", "Segment the edema", "-o", tmp_path / "out"),
    ):
        ended = xflow(*arguments)
        assert ended.status == 2
        assert ended.one_line
        assert "s3cret" not in ended.err + ended.out
        assert "ann" not in ended.err + ended.out


@pytest.mark.parametrize(
    "url", ["", "pacs.example/dicom-web", "https://", "file:///etc/passwd", "https://a b/", "http://a\nb"]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(CallError):
        service_url(url)


def test_a_plain_url_is_taken_without_its_last_slash() -> None:
    assert service_url("https://pacs.example:8443/dicom-web/") == "https://pacs.example:8443/dicom-web"
    assert service_url("http://[::1]:8042/dicom-web") == "http://[::1]:8042/dicom-web"


def test_a_redirect_is_not_followed_with_the_credentials(listening: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFLOW_DICOMWEB_TOKEN", "abc")
    sending_on = served(lambda handler: handler.answer(302, Location=f"{listening.url}/studies"))
    with sending_on as server, pytest.raises(PacsError, match=r"sends requests on to http://127\.0\.0\.1"):
        find(server.url)
    assert listening.seen == []


def test_a_certificate_is_checked_against_the_machines_authorities_or_the_one_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key]
    subject = ["-out", certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*request, *subject], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with served(lambda handler: handler.answer(200, NOTHING, "application/dicom+json")) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        url = server.url.replace("http:", "https:")
        with pytest.raises(PacsError, match=r"does not trust; name the file .* in REQUESTS_CA_BUNDLE"):
            find(url)
        assert server.seen == []
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        assert find(url) == []
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "missing.pem"))
        with pytest.raises(CallError, match="REQUESTS_CA_BUNDLE"):
            find(url)
