"""Services to talk to: a real Orthanc, a gate before it that can fail on purpose, and servers that are no PACS."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

USER, PASSWORD = "reader", "pass word é"
# Debian puts daemons and plugins where a user's PATH does not look.
ORTHANC = shutil.which("Orthanc") or shutil.which("Orthanc", path="/usr/sbin:/usr/local/sbin")
PLUGINS = ("/usr/share/orthanc/plugins", "/usr/lib/orthanc")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def dicomweb_plugin() -> Path | None:
    found = [path for folder in PLUGINS for path in Path(folder).glob("libOrthancDicomWeb.so*")]
    return found[0] if found else None


class Orthanc:
    """A running Orthanc: ``url`` is its DICOMweb service, ``rest`` its own interface."""

    def __init__(self, port: int, credentials: tuple[str, str] | None = None) -> None:
        self.rest = f"http://127.0.0.1:{port}"
        self.url = f"{self.rest}/dicom-web"
        self._headers = {}
        if credentials is not None:
            token = base64.b64encode(":".join(credentials).encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"

    def ask(self, path: str, data: bytes | None = None, method: str | None = None) -> bytes:
        request = urllib.request.Request(f"{self.rest}{path}", data, self._headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()

    def put(self, file: bytes) -> None:
        """Put an object into it, by its own interface."""
        self.ask("/instances", file)

    def clear(self) -> None:
        for patient in json.loads(self.ask("/patients")):
            self.ask(f"/patients/{patient}", method="DELETE")

    def tags(self) -> list[dict[str, str]]:
        """The headers of all its objects, keywords to values."""
        instances = json.loads(self.ask("/instances"))
        return [json.loads(self.ask(f"/instances/{number}/simplified-tags")) | {"id": number} for number in instances]

    def file(self, number: str) -> bytes:
        return self.ask(f"/instances/{number}/file")


@contextlib.contextmanager
def running_orthanc(folder: Path, credentials: tuple[str, str] | None = None) -> Iterator[Orthanc]:
    """Orthanc with its DICOMweb plugin on loopback, with an empty database."""
    plugin = dicomweb_plugin()
    assert ORTHANC is not None
    assert plugin is not None
    port = free_port()
    settings = {
        "HttpPort": port,
        "DicomServerEnabled": False,
        "RemoteAccessAllowed": False,
        "AuthenticationEnabled": credentials is not None,
        "RegisteredUsers": {} if credentials is None else dict([credentials]),
        "StorageDirectory": str(folder / "objects"),
        "IndexDirectory": str(folder / "objects"),
        "Plugins": [str(plugin)],
        "DicomWeb": {"Enable": True, "Root": "/dicom-web/", "EnableWado": True},
    }
    (folder / "orthanc.json").write_text(json.dumps(settings))
    log = folder / "orthanc.log"
    with open(log, "wb") as file:
        process = subprocess.Popen([ORTHANC, str(folder / "orthanc.json")], stdout=file, stderr=subprocess.STDOUT)
    orthanc = Orthanc(port, credentials)
    try:
        for _ in range(300):
            assert process.poll() is None, log.read_text(errors="replace")
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                orthanc.ask("/system")
                break
            time.sleep(0.2)
        else:
            raise AssertionError(f"Orthanc did not start within a minute: {log.read_text(errors='replace')}")
        yield orthanc
    finally:
        process.terminate()
        process.wait(30)


class Handler(http.server.BaseHTTPRequestHandler):
    """Silent, and able to answer in a word."""

    server: Served

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", kind: str = "text/plain", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_GET(self) -> None:
        self.sent = self.body()
        self.server.seen.append(f"{self.command} {self.path}")
        self.server.authorisations.append(self.headers.get("Authorization"))
        self.server.rule(self)

    do_POST = do_GET


class Served(http.server.ThreadingHTTPServer):
    """A server on loopback that answers by a rule, and remembers what it was asked."""

    daemon_threads = True

    def __init__(self, rule: Callable[[Handler], object]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.rule = rule
        self.seen: list[str] = []
        self.authorisations: list[str | None] = []
        self.ended = threading.Event()

    @property
    def site(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self.site}/dicom-web"


@contextlib.contextmanager
def served(rule: Callable[[Handler], object]) -> Iterator[Served]:
    server = Served(rule)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


def passing_on(orthanc: Orthanc, first: Callable[[Handler], bool]) -> Callable[[Handler], None]:
    """The rule of a gate before Orthanc: ``first`` may answer (and return true), else Orthanc does."""

    def rule(handler: Handler) -> None:
        if first(handler):
            return
        names = ("Accept", "Content-Type", "Authorization")
        headers = {name: handler.headers[name] for name in names if handler.headers[name]}
        data = handler.sent if handler.command == "POST" else None
        request = urllib.request.Request(f"{orthanc.rest}{handler.path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                handler.answer(answer.status, answer.read(), answer.headers.get("Content-Type", "text/plain"))
        except urllib.error.HTTPError as problem:
            handler.answer(problem.code, problem.read(), problem.headers.get("Content-Type", "text/plain"))

    return rule
