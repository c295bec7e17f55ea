"""``xflow serve``: the engine for other programs, on this machine or behind TLS."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from xflow_core.domain.errors import CallError
from xflow_core.service.protocol import Listening, ServerLimits

if TYPE_CHECKING:
    from xflow_core.service.server import ServerProcess

_LAST_SECONDS = 15.0
"""After its parent is gone a server ends in any case, also in the middle of a model's step."""


@dataclass(frozen=True)
class ServeCall:
    """The call as it was typed."""

    host: str
    port: int
    token_file: Path | None
    bundles: tuple[str, ...]
    device: str
    tls_cert: Path | None
    tls_key: Path | None
    behind_proxy: bool
    hosts: tuple[str, ...]
    cache_mib: int
    idle_minutes: float
    with_parent: bool


def run_serve(call: ServeCall) -> None:
    """Serve until a signal, or the parent's end with ``--with-parent``.

    Raises:
        CallError, BundleError: nothing was started.
        XFlowError: the first bundle cannot be loaded.
    """
    from xflow_core.bundles.loading import DEVICES, load_engine
    from xflow_core.bundles.manifest import find_bundle

    if call.device not in DEVICES:
        raise CallError(f"There is no device {call.device!r}; choose {', '.join(DEVICES)}.")
    try:
        from xflow_core.service.server import ServerProcess, ServeSettings
        from xflow_core.service.worker import OfferedBundle
    except ImportError as problem:
        raise CallError(
            f"xflow serve needs {problem.name}, which is not installed: pip install 'xflow-core[engine]'."
        ) from None

    settings = ServeSettings(
        host=call.host,
        port=call.port,
        token_file=call.token_file,
        certificate=call.tls_cert,
        key=call.tls_key,
        behind_proxy=call.behind_proxy,
        hosts=call.hosts,
        limits=replace(ServerLimits(), cached_bytes=call.cache_mib * 2**20),
        idle_seconds=call.idle_minutes * 60 if call.idle_minutes > 0 else None,
    )
    bundles = []
    for name in dict.fromkeys(call.bundles):
        found = find_bundle(name)
        load = partial(load_engine, str(found.folder), call.device)
        bundles.append(OfferedBundle(found.identity, found.findings, load))
    _log_to_stderr()
    server = ServerProcess(settings, bundles)
    listening = Listening(call.host, server.port, server.url, str(server.token_file.absolute()), os.getpid())
    if call.with_parent:
        watch = (server, _parents_pipe())
        threading.Thread(target=_end_with_parent, args=watch, name="xflow-parent", daemon=True).start()
    print(json.dumps(listening.to_json()), flush=True)
    server.run()


class _NoTraceback(logging.Formatter):
    """An exception's message may quote what a log must not hold."""

    def formatException(self, ei: object) -> str:
        return ""


def _log_to_stderr() -> None:
    # A copy of it: while C code decodes an image, the process's own is kept from what that code writes there.
    stream = os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1, errors="backslashreplace")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_NoTraceback("%(asctime)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("xflow.service").setLevel(logging.INFO)


def _parents_pipe() -> int:
    """Standard input, for the watch on the parent alone; whoever else asks for it finds it empty.

    On Windows a pipe that one thread reads holds up all who look at it, and the libraries of numpy and torch look at
    standard input as they are loaded: they would not get past that (github.com/numpy/numpy/issues/24290).
    """
    pipe = os.dup(sys.stdin.fileno())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    return pipe


def _end_with_parent(server: ServerProcess, pipe: int) -> None:
    """The pipe ends when the parent closes it or dies, on every system."""
    try:
        while os.read(pipe, 4096):
            pass
    except OSError:
        pass  # it cannot be read any more: the same
    server.stop()
    threading.Event().wait(_LAST_SECONDS)
    os._exit(0)
