"""Who may come in, and what happens to those who send what they should not: a reason, at once, and never a 5xx."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from service.phantom_server import Served, picture, serving

from xflow_core.domain.errors import CallError, RadiographError, ServiceError, ServiceGone
from xflow_core.service import connection, server
from xflow_core.service.client import Client
from xflow_core.service.protocol import KINDS, ArrayImage, ServerLimits, sha256_of
from xflow_core.service.server import ServerProcess, ServeSettings
from xflow_core.service.token_file import token_from

TEXT = "Segment the opacity"


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with serving(limits=ServerLimits(image_bytes=2**20, request_bytes=2**18)) as one:
        yield one


def ask(served: Served, method: str, path: str, **options: object) -> requests.Response:
    headers = {"Authorization": f"Bearer {served.token}", **options.pop("headers", {})}  # type: ignore[dict-item]
    session = requests.Session()
    session.trust_env = False
    return session.request(method, served.url + path, headers=headers, timeout=30, **options)  # type: ignore[arg-type]


def told(response: requests.Response, kind: str) -> str:
    data = response.json()
    assert (response.status_code, data["kind"]) == (KINDS[kind], kind)
    assert data["error"].endswith(".")
    return data["error"]


def raw(served: Served, data: bytes, timeout: float = 20) -> bytes:
    with socket.create_connection(("127.0.0.1", served.process.port), timeout=timeout) as sock:
        said = b""
        # A server that has heard enough closes while there is more to come.
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            sock.sendall(data)
            while chunk := sock.recv(65536):
                said += chunk
        return said


def head(served: Served, request: str, *more: str, token: bool = True) -> bytes:
    lines = [request, *more]
    if not any(line.lower().startswith("host:") for line in more):
        lines.append("Host: 127.0.0.1")
    if token:
        lines.append(f"Authorization: Bearer {served.token}")
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": ""},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer " + "ü" * 43},
        {"Authorization": "Basic abc"},
    ],
)
def test_a_wrong_token_is_401_on_every_path_but_health(shared: Served, headers: dict[str, str]) -> None:
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    for method, path in (("GET", "/capabilities"), ("POST", "/runs"), ("PUT", f"/images/{'a' * 64}"), ("GET", "/x")):
        told(ask(shared, method, path, headers=encoded), "token")
    assert ask(shared, "GET", "/health", headers=encoded).json()["state"] == "ready"


def test_a_client_with_a_wrong_token_gets_the_sentence(shared: Served) -> None:
    with Client(shared.url, "wrong") as client:
        assert client.health().ready
        with pytest.raises(ServiceError, match="token file") as problem:
            client.upload(picture())
        assert problem.value.kind == "token"


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "169.254.1.1", "", "localhost@evil", "[::2]"]
)
def test_a_host_header_of_another_machine_is_421_also_for_health(shared: Served, host: str) -> None:
    for path in ("/health", "/capabilities"):
        assert ask(shared, "GET", path, headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1:1", "[::1]:8080", "localhost."])
def test_the_loopbacks_own_names_are_taken(shared: Served, host: str) -> None:
    assert ask(shared, "GET", "/capabilities", headers={"Host": host}).status_code == 200


def test_an_unknown_image_bundle_run_path_and_method_are_said(shared: Served) -> None:
    told(ask(shared, "GET", f"/images/{'a' * 64}"), "unknown_image")
    told(ask(shared, "POST", "/runs", json={"image": "a" * 64, "instruction": TEXT}), "unknown_image")
    told(ask(shared, "DELETE", "/runs/abc"), "unknown_run")
    told(ask(shared, "GET", "/elsewhere"), "not_found")
    told(ask(shared, "GET", "/runs/"), "not_found")
    told(ask(shared, "PATCH", "/runs"), "method")
    sentence = told(
        ask(shared, "POST", "/runs", json={"image": "a" * 64, "instruction": TEXT, "bundle": "x"}), "unknown_bundle"
    )
    assert "it has phantom" in sentence
    told(ask(shared, "GET", "/images/..%2f..%2fetc%2fpasswd"), "not_found")
    told(ask(shared, "GET", "/images/short"), "value")


def test_an_old_client_gets_a_sentence_and_a_new_server_is_told_apart(shared: Served) -> None:
    response = ask(shared, "GET", "/capabilities", headers={"XFlow-Protocol": "0"})
    assert told(response, "protocol") == (
        "The client speaks protocol 0, the server protocol 1; update XFlow on the client's side."
    )
    assert response.headers["XFlow-Protocol"] == "1"
    told(ask(shared, "GET", "/capabilities", headers={"XFlow-Protocol": "99"}), "protocol")
    told(ask(shared, "GET", "/capabilities", headers={"XFlow-Protocol": "one"}), "request")


def test_an_image_that_is_too_large_is_413_and_the_client_says_it_before_sending(shared: Served) -> None:
    large = b"\0" * (2**20 + 1)
    told(ask(shared, "PUT", f"/images/{sha256_of(large)}", data=large), "too_large")
    told(ask(shared, "PUT", f"/images/{sha256_of(large)}", data=iter([large[: 2**19]] * 3)), "too_large")
    with shared.client() as client, pytest.raises(ServiceError, match="larger than 1 MiB") as problem:
        client.upload(large)
    assert problem.value.kind == "too_large"
    told(ask(shared, "POST", "/runs", data=b" " * (2**18 + 1)), "too_large")
    sixty = ArrayImage(np.arange(60 * 60, dtype=np.uint16).reshape(60, 60), dense_is_bright=True)
    with shared.client() as client, pytest.raises(RadiographError, match="at least 64"):
        client.upload(sixty)


def test_an_image_larger_than_the_store_is_413() -> None:
    with serving(limits=ServerLimits(cached_bytes=1000)) as small, pytest.raises(ServiceError) as problem:
        small.client().upload(picture())
    assert problem.value.kind == "too_large"


def test_bytes_under_another_name_and_bytes_that_are_no_image_are_refused(shared: Served) -> None:
    data = picture().to_bytes()
    assert "damaged" in told(ask(shared, "PUT", f"/images/{'a' * 64}", data=data), "value")
    told(ask(shared, "PUT", f"/images/{sha256_of(b'abc')}", data=b"abc"), "unreadable")
    told(ask(shared, "PUT", f"/images/{sha256_of(b'')}"), "unreadable")
    told(ask(shared, "PUT", f"/images/{sha256_of(data)}?accept_image=maybe", data=data), "value")
    with pytest.raises(RadiographError, match="none of DICOM"):
        shared.client().upload(b"abc")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def trace_json(shared: Served) -> dict[str, object]:
    client = shared.client()
    return client.run(client.upload(picture()), TEXT).finish()[0].to_json()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_request_with_anything_in_any_place_is_answered_and_never_with_a_5xx(
    shared: Served, trace_json: dict[str, object], data: st.DataObject
) -> None:
    body: object = {"trace": json.loads(json.dumps(trace_json)), "edit": {"replace": 2, "step": trace_json["steps"][2]}}  # type: ignore[index]
    if data.draw(st.booleans()):
        body = {"image": trace_json["image"]["sha256"], "instruction": TEXT, "stages": 1, "seed": 0}  # type: ignore[index]
    for _ in range(data.draw(st.integers(1, 3))):
        body = _damaged(body, data)
    response = ask(shared, "POST", "/runs", data=json.dumps(body).encode())
    assert response.status_code < 500
    if response.status_code == 200:
        last = json.loads(response.content.splitlines()[-1])
        assert last["kind"] == "done", last
    else:
        assert response.json()["kind"] in KINDS


def _damaged(body: object, data: st.DataObject) -> object:
    """The value with something else at a random place in it."""
    if isinstance(body, dict) and body and data.draw(st.integers(0, 9)):
        key = data.draw(st.sampled_from(sorted(body)))
        return {**body, key: _damaged(body[key], data)}
    if isinstance(body, list) and body and data.draw(st.integers(0, 9)):
        place = data.draw(st.integers(0, len(body) - 1))
        return [*body[:place], _damaged(body[place], data), *body[place + 1 :]]
    return data.draw(JUNK)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(["POST", "PUT", "GET"]), st.binary(max_size=300), st.text("abc/%.?=&{}", max_size=20))
def test_any_bytes_to_any_path_are_answered_with_a_4xx(shared: Served, method: str, body: bytes, rest: str) -> None:
    response = ask(shared, method, "/" + rest, data=body)
    assert 400 <= response.status_code < 500
    assert response.json()["kind"] in KINDS


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(min_size=1, max_size=200))
def test_what_is_no_http_is_answered_with_a_reason_or_closed(shared: Served, data: bytes) -> None:
    said = raw(shared, data + b"\r\n\r\n\r\n")
    assert said == b"" or said.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))


def test_bodies_that_lie_about_themselves_end_at_once(shared: Served) -> None:
    deep = b'{"trace":' + b"[" * 100_000
    for body in (b"", b"{", deep, b'{"seed": NaN}', b"\xff\xfe", b'{"seed": 1e999}', b"9" * 5000):
        told(ask(shared, "POST", "/runs", data=body), "request")
    assert b" 400 " in raw(shared, head(shared, "POST /runs HTTP/1.1", "Content-Length: nine"))
    assert b" 400 " in raw(shared, head(shared, "POST /runs HTTP/1.1", "Content-Length: 3", "Content-Length: 4"))
    assert b" 400 " in raw(
        shared, head(shared, "POST /runs HTTP/1.1", "Transfer-Encoding: chunked", "Connection: close") + b"zz\r\n"
    )
    assert raw(shared, head(shared, "GET /health HTTP/1.1", "X: " + "a" * 500_000))[:12] in (b"", b"HTTP/1.1 400")
    assert b" 400 " in raw(shared, b"GET /health HTTP/1.1\r\n\r\n"), "without a Host header"


def test_a_body_that_breaks_off_logs_no_fault_whatever_the_request_was_answered(
    shared: Served, caplog: pytest.LogCaptureFixture
) -> None:
    chunked = ("POST /runs HTTP/1.1", "Transfer-Encoding: chunked")
    for token in (True, False):
        for body in (b"zz\r\n", b"5\r\nabcdefgh\r\n", b"1\r\n{\r\nzz\r\n"):
            assert b" 400 " in raw(shared, head(shared, *chunked, token=token) + body).split(b"\r\n")[0]
    assert ask(shared, "GET", "/health").status_code == 200
    assert "failed" not in caplog.text


def test_slow_and_half_open_connections_are_bounded_and_hold_nobody_up(
    shared: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 1.0)
    monkeypatch.setattr(server, "PAUSE_SECONDS", 1.0)
    address = ("127.0.0.1", shared.process.port)
    silent = [socket.create_connection(address, timeout=20) for _ in range(20)]
    begun = socket.create_connection(address, timeout=20)
    begun.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
    body = socket.create_connection(address, timeout=20)
    body.sendall(head(shared, "POST /runs HTTP/1.1", "Content-Length: 1000") + b"{")
    start = time.monotonic()
    client = shared.client()
    assert client.run(client.upload(picture()), TEXT).finish()[0].result.status == "present"
    for sock in (*silent, begun):
        assert sock.recv(1000) == b""
    assert b"408" in body.recv(1000).split(b"\r\n")[0]
    assert time.monotonic() - start < 15
    for sock in (*silent, begun, body):
        sock.close()


def test_the_queue_is_bounded() -> None:
    with serving(limits=ServerLimits(waiting_runs=2)) as small:
        client = small.client()
        image = client.upload(picture())
        small.parts.closed = True
        runs = [client.run(image, TEXT) for _ in range(2)]
        with pytest.raises(ServiceError, match="2 runs waiting") as problem:
            client.run(image, TEXT)
        assert problem.value.kind == "busy"
        small.parts.closed = False
        small.parts.gate.release(100)
        assert all(run.finish() for run in runs)


def test_a_server_that_ends_tells_its_runs_and_cannot_be_reached_then() -> None:
    with serving() as short:
        client = short.client()
        image = client.upload(picture())
        short.parts.closed = True
        run = client.run(image, TEXT)
        next(run)
        waiting = client.run(image, TEXT)
        short.process.stop()
        time.sleep(0.5)
        short.parts.gate.release(100)
        with pytest.raises(ServiceError):
            run.finish()
        with pytest.raises(ServiceError):
            waiting.finish()
        assert run.trace.steps, "what was made is there, to go on from"
    with pytest.raises(ServiceGone):
        client.health()


def wait_for(line: str, caplog: pytest.LogCaptureFixture) -> None:
    """The server logs a request after its answer."""
    deadline = time.monotonic() + 20
    while line not in caplog.text:
        assert time.monotonic() < deadline, f"{line} is not in the log"
        time.sleep(0.02)


def test_a_fault_of_the_servers_own_is_a_500_whose_message_stays_out_of_answer_and_log(
    shared: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("DOE^JANE")

    monkeypatch.setattr(shared.service.images, "size", broken)
    response = ask(shared, "GET", "/capabilities")
    assert "log" in told(response, "internal")
    wait_for("RuntimeError at", caplog)
    assert "DOE" not in response.text + caplog.text


def test_the_log_names_no_image_instruction_or_token(shared: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "xflow.service"):
        client = shared.client()
        image = client.upload(picture([]))
        client.run(image, TEXT).finish()
        ask(shared, "GET", "/DOE^JANE?name=DOE")
        ask(shared, "POST", "/runs", json={"image": image.sha256, "instruction": "DOE has pneumothorax"})
        for line in ("PUT /images 200", "POST /runs 200", "GET ? 404", "POST /runs 422"):
            wait_for(line, caplog)
    for secret in (image.sha256[:12], "opacity", "DOE", shared.token):
        assert secret not in caplog.text


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_the_token_file_is_made_whole_for_its_owner_alone_and_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "token"
    token = token_from(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token_from(path) == token
    assert list(path.parent.iterdir()) == [path]
    path.chmod(0o640)
    with pytest.raises(CallError, match="chmod 600"):
        token_from(path)
    path.chmod(0o600)
    path.write_text("short\n")
    with pytest.raises(CallError, match="holds no token"):
        token_from(path)
    with pytest.raises(CallError, match="cannot be used"):
        token_from(tmp_path)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "somewhere.example"])
def test_it_does_not_listen_beyond_loopback_without_a_token_file_and_tls_or_a_proxy(host: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    with pytest.raises(CallError, match="--token-file"):
        ServeSettings(host=host, behind_proxy=True)
    with pytest.raises(CallError, match="--behind-proxy"):
        ServeSettings(host=host, token_file=token)
    with pytest.raises(CallError, match="both"):
        ServeSettings(host=host, token_file=token, certificate=token)
    assert not ServeSettings(host=host, token_file=token, behind_proxy=True).is_loopback
    assert ServeSettings(host="::1").is_loopback


def test_beyond_loopback_a_name_has_to_be_known_and_an_address_cannot_be_rebound(tmp_path: Path) -> None:
    settings = ServeSettings(host="0.0.0.0", token_file=tmp_path / "token", behind_proxy=True, hosts=("xray.example",))
    with serving(settings=settings) as wide:
        for host, status in (("xray.example", 200), ("10.1.2.3:99", 200), ("other.example", 421)):
            assert ask(wide, "GET", "/capabilities", headers={"Host": host}).status_code == status


def test_a_certificate_that_cannot_be_used_is_said(shared: Served, tmp_path: Path) -> None:
    nothing = tmp_path / "none.pem"
    with pytest.raises(CallError, match=r"none\.pem"):
        ServerProcess(ServeSettings(certificate=nothing, key=nothing), shared.service.worker.bundles)


def test_a_port_in_use_is_said(shared: Served) -> None:
    with pytest.raises(CallError, match=f"port {shared.process.port}: Address already in use"):
        ServerProcess(ServeSettings(port=shared.process.port), shared.service.worker.bundles)
