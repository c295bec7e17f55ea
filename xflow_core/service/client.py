"""A client of ``xflow serve``: synchronous, iterator-based, without torch, for Python 3.11 and later.

    with Client("http://127.0.0.1:40123", token) as client:
        image = client.upload(Path("chest.dcm"))
        run = client.run(image, "Segment the effusion in the left lung")
        for step in run:                                   # each the moment it is made
            print(step.kind)
        again = client.replace(image, run.trace, 2, BoxesStep(boxes=(my_box,)))
        for step in again: ...                             # only what follows the edit

A session is its trace: to go on after whatever happened, :meth:`Client.resume` the trace on any server that has the
bundle. Errors are the family of :mod:`xflow_core.domain.errors`, with the server's sentence: what the server says of
the instruction, image or edit has the class that it has on the command line, the rest is :class:`ServiceError`, and
:class:`ServiceGone` when the server cannot be reached or was lost in the middle.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import weakref
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import requests

from xflow_core.domain.errors import (
    CallError,
    InstructionError,
    RadiographError,
    RadiographRefused,
    ServiceError,
    ServiceGone,
    UnsupportedFinding,
    ValueRefused,
    XFlowError,
)
from xflow_core.domain.trace import ImageRecord, Mask, Step, Trace

from .protocol import (
    CAPABILITIES,
    CLIENT_HEADER,
    HEALTH,
    IMAGES,
    KINDS,
    PROTOCOL,
    PROTOCOL_HEADER,
    RUNS,
    UNLOAD,
    ArrayImage,
    Ask,
    Capabilities,
    CheckLine,
    Continue,
    DoneLine,
    EditMask,
    EndLine,
    ErrorLine,
    Health,
    ImageCheck,
    ImageInfo,
    Line,
    ReplaceStep,
    RunLine,
    RunRequest,
    StepLine,
    TraceLine,
    protocol_mismatch,
    read_line,
    sha256_of,
)

_CONNECT_SECONDS = 5.0
_CLASSES: dict[str, type[XFlowError]] = {
    "instruction": InstructionError,
    "unsupported": UnsupportedFinding,
    "unreadable": RadiographError,
    "refused": RadiographRefused,
    "value": ValueRefused,
}


@dataclass(frozen=True, eq=False)
class Image:
    """An uploaded image; it keeps its bytes, to send them again to a server that has dropped it or was restarted."""

    record: ImageRecord
    data: bytes
    accepted: bool

    @property
    def sha256(self) -> str:
        return self.record.sha256


class Client:
    """One user of one server. Usable from several threads; runs of one client follow one another.

    Args:
        url: ``http://host:port`` as the server printed it.
        token: what stands in the server's token file.
        timeout: seconds without a word from the server after which it counts as gone; a run that computes sends a word
            every second.
        upload_timeout: seconds for the server to read an image.
        verify: False or a file of certificates, as ``requests`` has it, for a server with a certificate of its own.
    """

    def __init__(
        self, url: str, token: str, *, timeout: float = 30.0, upload_timeout: float = 120.0, verify: bool | str = True
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise CallError(f"The server's address is http://host:port or https://host:port, not {url!r}.")
        self.url = url.rstrip("/")
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()
        self._lock = threading.Lock()
        self.timeout = timeout
        self.upload_timeout = upload_timeout
        self._session = requests.Session()
        # A proxy of the environment must not come between this machine and itself, nor a .netrc replace the token.
        self._session.trust_env = False
        self._session.verify = verify
        self._session.headers.update(
            {
                "Authorization": f"Bearer {token}",
                PROTOCOL_HEADER: str(PROTOCOL),
                CLIENT_HEADER: secrets.token_hex(8),
                "User-Agent": "xflow-client",
            }
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; a run that is being made is cancelled."""
        with self._lock:
            runs = list(self._runs)
        for run in runs:
            run.close()
        self._session.close()

    def health(self, timeout: float | None = None) -> Health:
        """Whether the server is ready, without the token.

        Args:
            timeout: seconds to wait for it; the client's own by default.

        Raises:
            ServiceGone: it cannot be reached.
            ServiceError: ``protocol``: it speaks none that this client speaks; the sentence says which side to update.
        """
        health = Health.from_json(self._json("GET", HEALTH, timeout=timeout))
        mismatch = protocol_mismatch(PROTOCOL, health.protocols)
        if mismatch is not None:
            raise ServiceError(mismatch, "protocol")
        return health

    def capabilities(self) -> Capabilities:
        """The server's bundles, device, limits, and what it holds."""
        return Capabilities.from_json(self._json("GET", CAPABILITIES))

    def upload(self, source: bytes | Path | ArrayImage, *, accept_image: bool = False) -> Image:
        """Send an image, unless the server has it already.

        Args:
            source: a file (DICOM, PNG, .., anything ``xflow segment`` reads), its bytes, or an array with its meaning.
            accept_image: read a colour picture or the first of several frames all the same.

        Raises:
            RadiographError, RadiographRefused: it cannot be read, or is refused at reading.
            CallError: the file cannot be read here.
            ServiceError: ``too_large``.
        """
        if isinstance(source, ArrayImage):
            data = source.to_bytes()
        elif isinstance(source, Path):
            try:
                data = source.read_bytes()
            except OSError as problem:
                raise CallError(f"{source.name} cannot be read: {problem.strerror or problem}.") from None
        else:
            data = bytes(source)
        return Image(self._send(data, accept_image), data, accept_image)

    def check(self, image: Image, *, bundle: str | None = None) -> ImageCheck:
        """What reading it and the bundle's guards say of the image, before anything is asked.

        It waits for its turn as a run does; what is encoded for it serves the runs that follow.

        Raises:
            ServiceError: ``unknown_bundle``, ``busy``, ..; ``internal`` when the bundle cannot look at it.
        """
        path = f"{IMAGES}/{image.sha256}/check"
        if bundle is not None:
            path += f"?bundle={quote(bundle, safe='')}"
        run = self._start(image, "GET", path)
        run.finish()
        if run._check is None:
            raise ServiceGone(f"The server at {self.url} ended a check without an answer.")
        return run._check

    def run(
        self,
        image: Image,
        instruction: str,
        *,
        bundle: str | None = None,
        stages: int = 2,
        seed: int = 0,
        accept_image: bool = False,
    ) -> Run:
        """Ask; iterate the run for the steps.

        Raises:
            InstructionError, UnsupportedFinding: as on the command line, before anything is computed.
            ServiceError: ``unknown_bundle``, ``busy``, ..
        """
        return self._ask(image, Ask(image.sha256, instruction, bundle, stages, seed, accept_image))

    def resume(self, image: Image, trace: Trace) -> Run:
        """Go on where a trace ends: one that was cut off, cancelled or read from disk."""
        return self._ask(image, Continue(trace))

    def replace(self, image: Image, trace: Trace, k: int, step: Step) -> Run:
        """The user's ``step`` as the trace's ``k``-th, and what follows from it.

        Raises:
            ValueRefused: no such step, or the new one cannot stand there.
        """
        return self._ask(image, Continue(trace, ReplaceStep(k, step)))

    def continue_from(
        self, image: Image, trace: Trace, component: int, mask: np.ndarray | Mask, *, revise: bool = True
    ) -> Run:
        """The user's mask in the place of the component's last one, from which stage 2 goes on.

        Args:
            mask: bool ``[H, W]`` of the image's size.
            revise: false keeps it as drawn.
        """
        drawn = mask if isinstance(mask, Mask) else Mask.of(mask)
        return self._ask(image, Continue(trace, EditMask(component, drawn, revise)))

    def forget(self, image: Image | str) -> bool:
        """Have the server drop an image (by its sha256), with what was computed from it; false when it had none."""
        sha256 = image if isinstance(image, str) else image.sha256
        return bool(self._json("DELETE", f"{IMAGES}/{sha256}")["forgotten"])

    def unload(self) -> None:
        """Have the server drop its models from memory while no run needs them."""
        self._json("POST", UNLOAD)

    def cancel(self, run: str) -> bool:
        """Stop a run before its next step; false when it had ended."""
        try:
            return bool(self._json("DELETE", f"{RUNS}/{run}")["cancelled"])
        except ServiceError as problem:
            if problem.kind == "unknown_run":
                return False
            raise

    def _send(self, data: bytes, accept: bool) -> ImageRecord:
        path = f"{IMAGES}/{sha256_of(data)}"
        try:
            return ImageInfo.from_json(self._json("GET", path)).record
        except ServiceError as problem:
            if problem.kind != "unknown_image":
                raise
        limit = self.capabilities().limits.image_bytes
        if len(data) > limit:
            raise ServiceError(
                f"The image is larger than {limit / 2**20:.3g} MiB, the most this server takes.", "too_large"
            )
        query = "?accept_image=true" if accept else ""
        return ImageInfo.from_json(self._json("PUT", path + query, data, self.upload_timeout)).record

    def _ask(self, image: Image, asked: RunRequest) -> Run:
        if isinstance(asked, Continue) and asked.image != image.sha256:
            raise ValueRefused("The trace was made on another image (its sha256 differs).")
        return self._start(image, "POST", RUNS, json.dumps(asked.to_json(), allow_nan=False).encode())

    def _start(self, image: Image, method: str, path: str, body: bytes | None = None) -> Run:
        """What is queued there; the image is sent again to a server that does not have it."""
        try:
            return Run(self, self._request(method, path, body, stream=True))
        except ServiceError as problem:
            if problem.kind != "unknown_image":
                raise
        self._send(image.data, image.accepted)
        return Run(self, self._request(method, path, body, stream=True))

    def _json(self, method: str, path: str, body: bytes | None = None, timeout: float | None = None) -> dict[str, Any]:
        response = self._request(method, path, body, timeout=timeout)
        try:
            data = response.json()
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise ServiceError(f"{self.url} does not answer as an XFlow server does; check the address.", "protocol")
        return data

    def _request(
        self, method: str, path: str, body: bytes | None = None, *, stream: bool = False, timeout: float | None = None
    ) -> requests.Response:
        """The server's answer; whatever is asked may be asked twice, and once is not always enough."""
        headers = {"Content-Type": "application/json" if path == RUNS else "application/octet-stream"} if body else {}
        for last in (False, True):
            try:
                response = self._session.request(
                    method,
                    self.url + path,
                    data=body,
                    headers=headers,
                    stream=stream,
                    timeout=(_CONNECT_SECONDS, timeout or self.timeout),
                    allow_redirects=False,
                )
            except requests.exceptions.SSLError as problem:
                raise ServiceError(
                    f"The certificate of {self.url} is not one that this client trusts; name its file with verify.",
                    "certificate",
                ) from problem
            except requests.exceptions.RequestException as problem:
                # The server may close an idle connection in the moment in which this client uses it again. A server
                # that is gone is found so at once.
                cut = isinstance(problem, requests.exceptions.ConnectionError)
                if last or not cut or isinstance(problem, requests.exceptions.Timeout):
                    raise ServiceGone(
                        f"The server at {self.url} cannot be reached ({type(problem).__name__})."
                    ) from problem
            else:
                # A machine that is busy may take too long over a body; it has another try.
                if response.status_code != KINDS["slow"] or last:
                    break
                response.close()
        if response.status_code != 200:
            raise self._error(response)
        return response

    def _error(self, response: requests.Response) -> XFlowError:
        try:
            data = response.json()
            sentence, kind = str(data["error"]), str(data["kind"])
        except (ValueError, KeyError, TypeError, requests.exceptions.RequestException):
            status = response.status_code
            if status == 503:  # what stands in front of the application says so in its own words
                return ServiceError("The server has too many connections; try again in a moment.", "busy")
            return ServiceError(f"{self.url} answered {status}, and not as an XFlow server does.", "protocol")
        return _problem(sentence, kind)


def _problem(sentence: str, kind: str) -> XFlowError:
    return _CLASSES[kind](sentence) if kind in _CLASSES else ServiceError(sentence, kind)


class Run:
    """The steps of one request, as they come; iterate it once.

    Attributes:
        id: the run's name on the server, once its first line came.
        ahead: how many runs waited before it then.
        traces: the answers, in the order of the findings; the last one may still grow, and every one is valid at every
            moment: save it, show it, resume it.
        cancelled: the server stopped it as asked.
    """

    def __init__(self, client: Client, response: requests.Response) -> None:
        self.id: str | None = None
        self.ahead = 0
        self.traces: tuple[Trace, ...] = ()
        self.cancelled = False
        self._client = client
        self._response = response
        self._wants_cancel = False
        self._closed = self._ended = False
        self._check: ImageCheck | None = None
        self._steps = self._read()
        with client._lock:
            client._runs.add(self)

    def __iter__(self) -> Iterator[Step]:
        return self._steps

    def __next__(self) -> Step:
        return next(self._steps)

    @property
    def trace(self) -> Trace | None:
        """The answer that is being made, or the last one."""
        return self.traces[-1] if self.traces else None

    def finish(self) -> tuple[Trace, ...]:
        """Wait for the end; the traces."""
        for _ in self:
            pass
        return self.traces

    def cancel(self) -> None:
        """Stop before the next step, from any thread; the iteration then ends, and what was made stays."""
        self._wants_cancel = True
        if self.id is not None:
            self._client.cancel(self.id)

    def close(self) -> None:
        """Hear no more of it, from any thread: the iteration ends, the server cancels it, and what was made stays."""
        self._closed = True
        if self._ended:
            return  # its connection may serve another request by now
        # A thread that waits for the next line holds the stream; urllib3 (2.3 and later) can wake it.
        shutdown = getattr(self._response.raw, "shutdown", None)
        if shutdown is not None:
            with contextlib.suppress(ValueError, RuntimeError, OSError):
                shutdown()
        self._response.close()

    def _read(self) -> Generator[Step, None, None]:
        done = False
        try:
            for line in self._lines():
                if isinstance(line, StepLine):
                    self._take(line)
                    yield line.step
                elif isinstance(line, TraceLine):
                    self.traces = (*self.traces, line.trace)
                elif isinstance(line, EndLine):
                    ended = replace(self._growing(), result=line.result, seconds=line.seconds)
                    self._now(replace(ended, memory_layout=line.memory_layout))
                elif isinstance(line, RunLine):
                    self.id, self.ahead = line.run, line.ahead
                    if self._wants_cancel:
                        self._client.cancel(line.run)
                elif isinstance(line, CheckLine):
                    self._check = line.check
                elif isinstance(line, DoneLine):
                    # Read on to the stream's own end, so that the connection can serve the next request.
                    self.cancelled, done = line.cancelled, True
                elif isinstance(line, ErrorLine):
                    raise _problem(line.error, line.error_kind)
        except ServiceGone:
            if not done and not self._closed:
                raise
        finally:
            self._ended = True
            self._response.close()
        if not done and not self._closed:
            raise ServiceGone(f"The server at {self._client.url} was lost in the middle of an answer.")

    def _lines(self) -> Iterator[Line | None]:
        try:
            for text in self._response.iter_lines(chunk_size=None):
                if text:
                    yield read_line(text)
        except ValueRefused as problem:
            raise ServiceGone(f"The server at {self._client.url} sent a damaged line: {problem}") from problem
        except (requests.exceptions.RequestException, OSError, AttributeError, ValueError) as problem:
            # AttributeError, ValueError: urllib3's and the stream's, when another thread closes it.
            raise ServiceGone(
                f"The server at {self._client.url} was lost in the middle of an answer ({type(problem).__name__})."
            ) from problem

    def _growing(self) -> Trace:
        if not self.traces:
            raise ServiceGone(f"The server at {self._client.url} sent a step of no answer.")
        return self.traces[-1]

    def _take(self, line: StepLine) -> None:
        trace = self._growing()
        if line.index != len(trace.steps):
            raise ServiceGone(
                f"The server at {self._client.url} sent step {line.index} after {len(trace.steps)} steps."
            )
        self._now(replace(trace, steps=(*trace.steps, line.step)))

    def _now(self, trace: Trace) -> None:
        self.traces = (*self.traces[:-1], trace)
