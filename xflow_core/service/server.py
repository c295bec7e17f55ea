"""The server behind ``xflow serve``: Starlette on uvicorn, for the protocol of :mod:`.protocol`.

**Concurrency.** Three kinds of thread, and what each may do:

1. The *event loop* (one thread) speaks HTTP. It never reads an image, parses a body of any size, waits for a lock that
   is held during computation, or touches a model.
2. *Readers* take what is too long for the loop: two threads hash and decode uploads; one parses bodies and instructions
   and checks traces and edits, so that what is wrong is refused before it waits for a model.
3. The *worker* (one thread for the device, :mod:`.worker`) alone runs models: loading, guards, encoders, steps. It
   makes one step at a time and goes round the clients; each line of a run is handed to the loop the moment it is made.

Two locks: the worker's (its queue) and the image store's, each held for a few dictionary operations, neither of them
inside the other, and none while a model computes. A run borrows its image when it is accepted and gives it back when it
ends, so that the store never drops what is needed.

A client that goes away cancels its run before the next step. Nothing waits without an end: the head of a request, a
body's pauses and its least rate, a client that does not read, the queue's length; see :mod:`.connection`.

**What stays out.** The log has the method, the kind of path, the status and the time; no header, name, hash, message of
a library or text of an instruction. Images lie in memory only, and without their patient data.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import ipaddress
import json
import logging
import math
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xflow_core import __version__
from xflow_core.domain.errors import (
    CallError,
    InstructionError,
    RadiographError,
    RadiographRefused,
    ServiceError,
    UnsupportedFinding,
    ValueRefused,
    XFlowError,
)
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import BoxesStep
from xflow_core.workflow.edits import check_steps, continue_from_mask, replace_step
from xflow_core.workflow.engine import check_answered

from .connection import BoundedConnection
from .images import HeldImage, ImageStore, read_upload
from .protocol import (
    CAPABILITIES,
    CLIENT_HEADER,
    HEALTH,
    HEARTBEAT_SECONDS,
    IMAGES,
    KINDS,
    LINES,
    PROTOCOL,
    PROTOCOL_HEADER,
    RUNS,
    UNLOAD,
    Activity,
    AliveLine,
    Ask,
    BundleInfo,
    Capabilities,
    DoneLine,
    EditMask,
    ErrorLine,
    Health,
    ImageInfo,
    Line,
    ReplaceStep,
    ServerLimits,
    check_sha256,
    protocol_mismatch,
    run_request_from_json,
    sha256_of,
    write_line,
)
from .token_file import temporary_token_file, token_from
from .worker import OfferedBundle, Question, Run, Worker, where

log = logging.getLogger("xflow.service")

PAUSE_SECONDS = 10.0
"""The longest pause within a body."""

LEAST_RATE = 2**15
"""Bytes a second that a body has to keep up on average, after its first PAUSE_SECONDS."""

UPLOADS = 8
"""Bodies of images that are taken at one time; others wait for PAUSE_SECONDS, then they are told to come again."""

CONNECTIONS = 500
"""At one time; a process may have some thousand files open."""

MAX_BOXES = 64
"""Components that a trace may have: each costs the segmenter's time."""

_CLIENT = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
T = TypeVar("T")


class Service:
    """The application and what stands behind it, for one token.

    >>> service = Service(bundles, token="...")
    >>> service.worker.start()
    >>> uvicorn.run(service.app, http=BoundedConnection)

    Args:
        bundles: what it answers with; the first is loaded when the worker starts and answers by default.
        allowed_hosts: names and addresses that the Host header may hold, beside those of the loopback.
        any_address: take every IP address in the Host header, for a server beyond loopback: only a name can be rebound.
    """

    def __init__(
        self,
        bundles: Sequence[OfferedBundle],
        token: str,
        *,
        limits: ServerLimits | None = None,
        allowed_hosts: Sequence[str] = (),
        any_address: bool = False,
        idle_seconds: float | None = None,
        on_failure: Callable[[XFlowError], None] = lambda problem: None,
    ) -> None:
        self.limits = limits or ServerLimits()
        self.images = ImageStore(self.limits.cached_bytes)
        self.worker = Worker(
            tuple(bundles),
            self.images,
            max_waiting=self.limits.waiting_runs,
            idle_seconds=idle_seconds,
            on_failure=on_failure,
        )
        self.hosts = frozenset(host.lower().rstrip(".") for host in (*_LOOPBACK_NAMES, *allowed_hosts))
        self.any_address = any_address
        self._token = token.encode()
        self._readers = ThreadPoolExecutor(2, "xflow-reader")
        self._parser = ThreadPoolExecutor(1, "xflow-parser")
        self._uploads = asyncio.Semaphore(UPLOADS)
        routes = [
            Route(HEALTH, self._health, methods=["GET"]),
            Route(CAPABILITIES, self._capabilities, methods=["GET"]),
            Route(f"{IMAGES}/{{sha256}}", self._image, methods=["GET", "PUT", "DELETE"]),
            Route(f"{IMAGES}/{{sha256}}/check", self._check, methods=["GET"]),
            Route(RUNS, self._run, methods=["POST"]),
            Route(f"{RUNS}/{{run}}", self._cancel, methods=["DELETE"]),
            Route(UNLOAD, self._unload, methods=["POST"]),
        ]
        handlers = {HTTPException: _http_error, XFlowError: _xflow_error, Exception: _internal_error}
        inner = Starlette(routes=routes, exception_handlers=handlers)
        inner.router.redirect_slashes = False
        self.app: ASGIApp = _Gate(inner, self)

    def close(self) -> None:
        """Stop computing; what waits is told."""
        self.worker.stop()
        for pool in (self._readers, self._parser):
            pool.shutdown(wait=False, cancel_futures=True)

    def refusal(self, scope: Scope) -> ServiceError | None:
        """Why a request is not even looked at: its host, its token, its protocol."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        if not self._host_is_ours(headers.get("host", [])):
            return ServiceError("The Host header names another machine than this server.", "host")
        if scope["path"] == HEALTH:
            return None
        given = headers.get("authorization", [])
        expected = b"Bearer " + self._token
        if len(given) != 1 or not hmac.compare_digest(given[0].encode("latin-1"), expected):
            return ServiceError("The token is missing or wrong; it is in the server's token file.", "token")
        spoken = headers.get(PROTOCOL_HEADER.lower(), [str(PROTOCOL)])
        if len(spoken) != 1 or not re.fullmatch(r"[0-9]{1,9}", spoken[0]):
            return ServiceError(f"The header {PROTOCOL_HEADER} is not a protocol's number.", "request")
        mismatch = protocol_mismatch(int(spoken[0]))
        return None if mismatch is None else ServiceError(mismatch, "protocol")

    def _host_is_ours(self, values: list[str]) -> bool:
        if len(values) != 1:
            return False
        found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(:[0-9]{1,5})?", values[0].strip())
        if found is None:
            return False
        host = found[1].strip("[]").lower().rstrip(".")
        return host in self.hosts or (self.any_address and _is_address(host))

    # Endpoints.

    async def _health(self, request: Request) -> Response:
        return JSONResponse(Health(__version__, self.worker.state, self.worker.doing).to_json())

    async def _capabilities(self, request: Request) -> Response:
        worker = self.worker
        images, image_bytes = self.images.size()
        activity = Activity(
            images, image_bytes, worker.encoder_passes, worker.waiting, worker.runs_done, worker.steps_made
        )
        bundles = tuple(BundleInfo(b.identity, b.findings, worker.loaded(b)) for b in worker.bundles)
        found = Capabilities(__version__, bundles, worker.device, worker.memory_bytes, self.limits, activity)
        return JSONResponse(found.to_json())

    async def _image(self, request: Request) -> Response:
        sha256 = check_sha256(request.path_params["sha256"])
        if request.method == "PUT":
            return await self._upload(request, sha256)
        if request.method == "DELETE":
            return JSONResponse({"forgotten": self.images.forget(sha256)})
        return JSONResponse(ImageInfo(self.images.find(sha256).record).to_json())

    async def _check(self, request: Request) -> Response:
        bundle = self._bundle(request.query_params.get("bundle"))
        image = self.images.borrow(check_sha256(request.path_params["sha256"]))
        return self._queued(request, bundle, image, ())

    async def _upload(self, request: Request, sha256: str) -> Response:
        accept = _flag(request.query_params.get("accept_image", "false"))
        try:
            async with asyncio.timeout(PAUSE_SECONDS):
                await self._uploads.acquire()
        except TimeoutError:
            raise ServiceError("The server is taking many images just now; try again in a moment.", "busy") from None
        try:
            data = await read_body(request, self.limits.image_bytes, "The image")
            held = await _in(self._readers, functools.partial(self._read, data, sha256, accept))
        finally:
            self._uploads.release()
        return JSONResponse(ImageInfo(held.record).to_json())

    def _read(self, data: bytes, sha256: str, accept: bool) -> HeldImage:
        if sha256_of(data) != sha256:
            raise ValueRefused("The bytes have another sha256 than the image's name; they were damaged on the way.")
        with contextlib.suppress(ServiceError):
            held = self.images.find(sha256)
            if held.refusal is None or accept:
                return held
        start = time.perf_counter()
        radiograph, refusal = read_upload(data, accept_image=accept)
        return self.images.add(HeldImage(radiograph, refusal, time.perf_counter() - start))

    async def _run(self, request: Request) -> Response:
        body = await read_body(request, self.limits.request_bytes, "The request")
        bundle, image, questions = await _in(self._parser, functools.partial(self._understood, body))
        return self._queued(request, bundle, image, questions)

    def _queued(
        self, request: Request, bundle: OfferedBundle, image: HeldImage, questions: tuple[Question, ...]
    ) -> Response:
        """The worker's answers as they will come; ``image`` is borrowed already."""
        lines: asyncio.Queue[Line | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def emit(line: Line) -> None:
            # Without a loop the server has ended, and nobody is there to hear.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(lines.put_nowait, line)

        run = Run(_client_of(request), bundle, image, questions, emit)
        try:
            self.worker.submit(run)
        except ServiceError:
            self.images.give_back(image)
            raise
        return _Stream(self.worker, run, lines)

    def _understood(self, body: bytes) -> tuple[OfferedBundle, HeldImage, tuple[Question, ...]]:
        """What a run's body asks, every part of it checked; the image is borrowed."""
        try:
            data = json.loads(body, parse_constant=_finite, parse_float=_finite)
        except (ValueError, RecursionError):
            raise ServiceError("The body is not JSON (of finite numbers).", "request") from None
        asked = run_request_from_json(data)
        if isinstance(asked, Ask):
            bundle = self._bundle(asked.bundle)
            instructions = parse_instruction(asked.instruction)
            for instruction in instructions:
                check_answered(bundle.identity.name, bundle.findings, instruction.finding)
            questions = tuple(Question(one, asked.stages, asked.seed, asked.accept_image) for one in instructions)
            return bundle, self.images.borrow(asked.image), questions
        trace = asked.trace
        bundle = self._bundle(trace.bundle.name)
        if trace.bundle != bundle.identity:
            raise ValueRefused(
                f"The trace was made by bundle {trace.bundle.name} {trace.bundle.version}, and the server has "
                f"{bundle.identity.version} or another one of that name; ask anew."
            )
        check_answered(bundle.identity.name, bundle.findings, trace.instruction.finding)
        if trace.result is not None and trace.result.status in ("refused", "unsupported"):
            raise ValueRefused(f"The trace ended as {trace.result.status}; there is nothing to go on from. Ask anew.")
        if trace.stages not in (1, 2) or not 0 <= trace.seed < 2**63:
            raise ValueRefused("The trace's stages are 1 or 2, and its seed is from 0 to 2**63 - 1.")
        check_steps(trace)
        edit = asked.edit
        if isinstance(edit, ReplaceStep):
            trace = replace_step(trace, edit.k, edit.step)
        elif isinstance(edit, EditMask):
            trace = continue_from_mask(trace, edit.component, edit.mask, revise=edit.revise)
        boxes = trace.last(BoxesStep)
        if boxes is not None and len(boxes.boxes) > MAX_BOXES:
            raise ValueRefused(f"The trace has {len(boxes.boxes)} boxes; the server takes {MAX_BOXES}.")
        image = self.images.borrow(trace.image.sha256)
        try:
            if image.record.size != tuple(trace.image.size):
                raise ValueRefused(f"The trace is of {trace.image.size} pixels, the image of {image.record.size}.")
        except XFlowError:
            self.images.give_back(image)
            raise
        return bundle, image, (Question(trace),)

    def _bundle(self, name: str | None) -> OfferedBundle:
        offered = {bundle.identity.name: bundle for bundle in self.worker.bundles}
        if name is None:
            return self.worker.bundles[0]
        if name not in offered:
            raise ServiceError(f"The server does not offer that bundle; it has {', '.join(offered)}.", "unknown_bundle")
        return offered[name]

    async def _cancel(self, request: Request) -> Response:
        if not self.worker.cancel(request.path_params["run"]):
            raise ServiceError("No such run is waiting or running; it may have ended.", "unknown_run")
        return JSONResponse({"cancelled": True})

    async def _unload(self, request: Request) -> Response:
        self.worker.unload()
        return JSONResponse({"unloading": True})


async def _in(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)


async def read_body(request: Request, limit: int, what: str) -> bytes:
    """The body, bounded in size, pauses and rate.

    Raises:
        ServiceError: ``too_large``, ``slow`` or ``request``.
    """
    too_large = ServiceError(f"{what} is larger than {limit / 2**20:.3g} MiB, the most this server takes.", "too_large")
    length = request.headers.get("content-length")
    if length is not None and int(length) > limit:
        raise too_large
    body = bytearray()
    start = time.monotonic()
    chunks = request.stream()
    while True:
        try:
            async with asyncio.timeout(PAUSE_SECONDS):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise ServiceError(f"Nothing of the body came for {PAUSE_SECONDS:.0f} seconds.", "slow") from None
        if chunk is None:
            return bytes(body)
        body += chunk
        if len(body) > limit:
            raise too_large
        if (time.monotonic() - start - PAUSE_SECONDS) * LEAST_RATE > len(body):
            raise ServiceError(f"The body came at less than {LEAST_RATE // 1024} KiB a second.", "slow")


class _Stream(Response):
    """A run's lines as they are made; a client that goes away cancels the run."""

    media_type = LINES

    def __init__(self, worker: Worker, run: Run, lines: asyncio.Queue[Line | None]) -> None:
        self.worker = worker
        self.run = run
        self.lines = lines
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-store"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(self._until_gone(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            while True:
                try:
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        line = await self.lines.get()
                except TimeoutError:
                    line = AliveLine()
                if line is None:
                    return
                await send({"type": "http.response.body", "body": write_line(line), "more_body": True})
                if isinstance(line, (DoneLine, ErrorLine)):
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    return
        finally:
            gone.cancel()
            self.worker.cancel(self.run.id)

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.lines.put_nowait(None)


class _Gate:
    """Around the application: who may come in, what every answer carries, and what the log says."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        start = time.perf_counter()
        status = 0

        async def answered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *_ALWAYS]}
            await send(message)

        try:
            refusal = self.service.refusal(scope)
            if refusal is None:
                await self.app(scope, receive, answered)
            else:
                await _error(str(refusal), refusal.kind)(scope, receive, answered)
        except ClientDisconnect:
            pass
        except Exception as problem:  # noqa: BLE001  it was answered with 500; the log has no message
            log.error("a request failed: %s", where(problem))
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "?"
            log.info("%s %s %d %.0f ms", method, _kind_of(scope["path"]), status, 1000 * (time.perf_counter() - start))


_ALWAYS = [(PROTOCOL_HEADER.lower().encode(), str(PROTOCOL).encode()), (b"x-content-type-options", b"nosniff")]


def _error(sentence: str, kind: str) -> JSONResponse:
    return JSONResponse({"error": " ".join(sentence.split()), "kind": kind}, KINDS[kind])


async def _xflow_error(request: Request, problem: Exception) -> Response:
    kinds: dict[type[XFlowError], str] = {
        InstructionError: "instruction",
        UnsupportedFinding: "unsupported",
        RadiographRefused: "refused",
        RadiographError: "unreadable",
        ValueRefused: "value",
    }
    if isinstance(problem, ServiceError):
        return _error(str(problem), problem.kind)
    return _error(str(problem), next((kinds[cls] for cls in type(problem).__mro__ if cls in kinds), "internal"))


async def _http_error(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    if problem.status_code == 405:
        return _error("That path does not take that method.", "method")
    return _error("There is no such path.", "not_found")


async def _internal_error(request: Request, problem: Exception) -> Response:
    return _error("The server failed; its log says where.", "internal")


def _client_of(request: Request) -> str:
    named = request.headers.get(CLIENT_HEADER, "")
    if _CLIENT.fullmatch(named):
        return named
    return f"address {request.client.host}" if request.client else "?"


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not finite")
    return number


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueRefused("accept_image is true or false.")
    return text == "true"


def _kind_of(path: str) -> str:
    first = "/" + path.split("/")[1] if path.startswith("/") else "?"
    return first if first in (HEALTH, CAPABILITIES, IMAGES, RUNS, UNLOAD) else "?"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


# A process of its own.


@dataclass(frozen=True)
class ServeSettings:
    """How ``xflow serve`` was called.

    Attributes:
        token_file: where the token is, or is put; None for a file that goes when the server ends.
        certificate, key: PEM files for TLS.
        behind_proxy: a reverse proxy in front of it speaks TLS.
        hosts: names by which clients call it, for the Host header.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    behind_proxy: bool = False
    hosts: tuple[str, ...] = ()
    limits: ServerLimits = field(default_factory=ServerLimits)
    idle_seconds: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise CallError(f"There is no port {self.port}; 0 takes a free one.")
        if (self.certificate is None) != (self.key is None):
            raise CallError("TLS needs both --tls-cert and --tls-key.")
        if self.is_loopback:
            return
        if self.token_file is None:
            raise CallError(
                f"To listen on {self.host}, beyond this machine, name the clients' token: --token-file FILE."
            )
        if self.certificate is None and not self.behind_proxy:
            raise CallError(
                f"To listen on {self.host}, beyond this machine, give --tls-cert and --tls-key, or --behind-proxy when "
                "a reverse proxy speaks TLS in front of it: images and the token would travel in the open."
            )

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        return _is_address(self.host) and ipaddress.ip_address(self.host).is_loopback


class _UvicornServer(uvicorn.Server):
    """Ends the runs before it waits for their connections."""

    def __init__(self, config: uvicorn.Config, worker: Worker) -> None:
        super().__init__(config)
        self.worker = worker

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.worker.stop(timeout=0)
        await super().shutdown(sockets)


class ServerProcess:
    """A server as ``xflow serve`` runs it: its socket is bound and its token file written when this is made.

    Raises:
        CallError: the address, the token file or the certificate cannot be used.
    """

    def __init__(self, settings: ServeSettings, bundles: Sequence[OfferedBundle]) -> None:
        self.settings = settings
        self._temporary = settings.token_file is None
        self.token_file = temporary_token_file() if settings.token_file is None else settings.token_file
        token = token_from(self.token_file)
        self._failure: XFlowError | None = None
        self.service = Service(
            bundles,
            token,
            limits=settings.limits,
            allowed_hosts=(*settings.hosts, settings.host),
            any_address=not settings.is_loopback,
            idle_seconds=settings.idle_seconds,
            on_failure=self._failed,
        )
        config = uvicorn.Config(
            self.service.app,
            http=BoundedConnection,
            ws="none",
            lifespan="off",
            loop="asyncio",
            access_log=False,
            log_config=None,
            log_level="critical",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=5,
            h11_max_incomplete_event_size=2**14,
            ssl_certfile=settings.certificate,
            ssl_keyfile=settings.key,
        )
        try:
            config.load()
        except OSError as problem:
            self._forget_token()
            raise CallError(
                f"The certificate {settings.certificate} with the key {settings.key} cannot be used "
                f"({problem.strerror or problem}); give two PEM files that belong together."
            ) from None
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        try:
            self._socket = socket.create_server((settings.host, settings.port), family=family, backlog=256)
        except OSError as problem:
            self._forget_token()
            raise CallError(
                f"The server cannot listen on {settings.host}, port {settings.port}: {problem.strerror or problem}."
            ) from None
        self._server = _UvicornServer(config, self.service.worker)
        self.port: int = self._socket.getsockname()[1]

    @property
    def url(self) -> str:
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"{'http' if self.settings.certificate is None else 'https'}://{host}:{self.port}"

    def run(self) -> None:
        """Serve until :meth:`stop`, a signal, or a bundle that cannot be loaded.

        Raises:
            XFlowError: that bundle's problem.
        """
        self.service.worker.start()
        if threading.current_thread() is threading.main_thread():
            # uvicorn raises a signal again once it has ended; the default handler would leave the token file behind.
            signal.signal(signal.SIGTERM, lambda *_: self.stop())
        try:
            with self._socket:
                self._server.run([self._socket])
        finally:
            self.service.close()
            self._forget_token()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End soon; from any thread."""
        self._server.should_exit = True

    def _failed(self, problem: XFlowError) -> None:
        self._failure = problem
        self.stop()

    def _forget_token(self) -> None:
        if self._temporary:
            shutil.rmtree(self.token_file.parent, ignore_errors=True)
