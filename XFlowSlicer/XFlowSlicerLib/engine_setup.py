"""Which engine the module uses, and the engine itself.

Three engines: a Python environment of this computer (XFlow's own, :mod:`.managed_environment`, or one that the user
points to), Slicer's own Python (:mod:`.slicer_packages`), or a server. The models and torch live there and never in
Slicer's process.

Nothing here knows Qt. All but :func:`install_in_slicer` may be called in any thread, and may take its time.
Nothing is installed, and nothing is asked of the network, unless the user asks for it.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from xflow_core import NOT_FOR_CLINICAL_USE
from xflow_core.domain.errors import CallError, NotWritten, XFlowError
from xflow_core.service.client import Client
from xflow_core.service.local import LocalEngine, Progress, Watcher
from xflow_core.service.protocol import Capabilities, Health

from . import handshake
from .managed_environment import (
    ManagedState,
    SetupProgress,
    TorchBuild,
    XFlowSource,
    make_environment,
    managed_folder,
    managed_state,
    remove_environment,
    setup_log,
    torch_hint,
    user_folder,
)
from .pythons import PythonFound, find_pythons, look_at, slicer_python
from .reasons import EngineSetupError, Reason, classify, reason_of
from .slicer_packages import install_in_slicer

__all__ = [
    "EngineChoice", "EngineInfo", "EngineLike", "EngineSetupError", "ManagedState", "PythonFound", "Reason",
    "SetupProgress", "TorchBuild", "XFlowSource", "classify", "connect", "describe", "find_pythons", "from_settings",
    "install_in_slicer", "look_at", "make_environment", "managed_folder", "managed_state", "reason_of",
    "remove_environment", "setup_log", "slicer_python", "store_token", "test_server", "to_settings", "token_file",
    "torch_hint",
]  # fmt: skip

EngineLike = LocalEngine | Client
"""They have the same calls."""

KINDS = ("this_computer", "this_slicer", "server")

_POLL = 0.1
_READY_WITHIN = 300.0
_LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class EngineChoice:
    """Which engine the user wants. Made by :meth:`this_computer`, :meth:`this_slicer` or :meth:`server`.

    Attributes:
        kind: ``this_computer``, ``this_slicer`` or ``server``.
        python: the program of an environment that the user points to; "" is the managed environment.
        url: of the server.
        token: of the server. It is in no settings value and in no ``repr``.
        keep_token: whether the token is kept between sessions, in :func:`token_file`.
        certificate: a file of certificates for a server that has one of its own; "" for the system's.
    """

    kind: str
    python: str = ""
    url: str = ""
    token: str = field(default="", repr=False)
    keep_token: bool = False
    certificate: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise CallError(f"The engine is one of {', '.join(KINDS)}, not {self.kind!r}.")
        if self.kind != "server" and (self.url or self.token or self.certificate or self.keep_token):
            raise CallError("Only a server has an address and a token.")
        if self.kind != "this_computer" and self.python:
            raise CallError("Only an engine on this computer has a Python of its own.")
        if self.kind == "server":
            object.__setattr__(self, "url", _checked_url(self.url))
            if not re.fullmatch(r"[\x21-\x7e]*", self.token):
                raise CallError("A token has no spaces, line ends or letters beyond ASCII; copy it anew.")

    @classmethod
    def this_computer(cls, python: str | Path | None = None) -> EngineChoice:
        """An environment of this computer: the managed one, or that of the Python that is named."""
        return cls("this_computer", python="" if python is None else str(python))

    @classmethod
    def this_slicer(cls) -> EngineChoice:
        """Slicer's own Python, in which XFlow was installed."""
        return cls("this_slicer")

    @classmethod
    def server(cls, url: str, token: str = "", *, keep_token: bool = False, certificate: str = "") -> EngineChoice:
        """``xflow serve`` somewhere else.

        Raises:
            CallError: the address is no ``http://host:port`` or ``https://host:port``.
        """
        return cls("server", url=url, token=token.strip(), keep_token=keep_token, certificate=certificate)

    @property
    def label(self) -> str:
        """In words, for a button or a log."""
        if self.kind == "server":
            return f"the server {self.url}"
        if self.kind == "this_slicer":
            return "Slicer's own Python"
        return f"this computer, {self.python}" if self.python else "this computer, XFlow's own environment"

    @property
    def caution(self) -> str | None:
        """What the user should know before using it; None for nothing."""
        if self.kind != "server":
            return None
        parts = urlsplit(self.url)
        if parts.scheme == "http" and parts.hostname not in _LOCAL_HOSTS:
            return (
                f"Radiographs and the token travel unencrypted to {parts.hostname}; use https, or a server on this "
                "computer."
            )
        return None


def _checked_url(url: str) -> str:
    url = url.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        parts, usable = urlsplit(""), False
    if not usable or parts.query or parts.fragment or re.search(r"\s", url):
        raise CallError("The server's address is http://host:port or https://host:port, as xflow serve prints it.")
    if parts.username is not None or parts.password is not None:
        raise CallError("Write the token in its own field, not into the server's address.")
    return url


def to_settings(choice: EngineChoice) -> dict[str, str]:
    """The choice as plain values for the settings. The token is not among them; see :func:`store_token`."""
    return {
        "engine": choice.kind,
        "python": choice.python,
        "url": choice.url,
        "certificate": choice.certificate,
        "keep_token": "true" if choice.keep_token else "false",
    }


def from_settings(values: Mapping[str, object]) -> EngineChoice:
    """The reverse; a kept token is read from its file. Values that make no choice give the managed environment."""

    def text(name: str) -> str:
        value = values.get(name)
        return value if isinstance(value, str) else ""

    kind = text("engine")
    try:
        if kind == "server":
            keep = str(values.get("keep_token", "")).lower() == "true"
            url = _checked_url(text("url"))
            token = _kept_token(url) if keep else ""
            return EngineChoice.server(url, token, keep_token=keep, certificate=text("certificate"))
        if kind == "this_slicer":
            return EngineChoice.this_slicer()
        return EngineChoice.this_computer(text("python") or None)
    except CallError:
        return EngineChoice.this_computer()


def token_file(url: str) -> Path:
    """Where the token of a server is kept if the user asks for that: a file that this user alone can read."""
    name = hashlib.sha256(_checked_url(url).encode()).hexdigest()[:16]
    return user_folder() / "tokens" / name


def store_token(choice: EngineChoice) -> Path | None:
    """Keep the token between sessions if the choice says so, and forget a kept one if not.

    Returns:
        The file, None when nothing is kept.

    Raises:
        NotWritten: the file cannot be written.
    """
    if choice.kind != "server":
        return None
    path = token_file(choice.url)
    try:
        if not (choice.keep_token and choice.token):
            path.unlink(missing_ok=True)
            return None
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_name(f".{path.name}.part")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(choice.token + "\n")
        os.replace(new, path)
    except OSError as problem:
        raise NotWritten(f"The token cannot be kept in {path}: {problem.strerror or problem}.") from None
    return path


def _kept_token(url: str) -> str:
    """The kept token; none where there is no such file, or one that others can read."""
    path = token_file(url)
    try:
        if os.name == "posix" and path.stat().st_mode & 0o077:
            return ""
        return path.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


@dataclass(frozen=True)
class EngineInfo:
    """An engine in words.

    Attributes:
        device: such as ``CPU`` or ``GPU (cuda:0)``.
        memory: of the device, or "".
        bundle: the models that answer: name, version, backend.
        findings: those that these can answer.
        sentence: what to update; None when module and engine are of one version.
        lines: all of it, a line each, for the engine section.
    """

    version: str
    device: str
    memory: str
    bundle: str
    findings: tuple[str, ...]
    sentence: str | None
    lines: tuple[str, ...]


def connect(
    choice: EngineChoice,
    watch: Watcher,
    *,
    environment: Mapping[str, str] | None = None,
    log: str | Path | None = None,
    device: str = "auto",
    bundles: Sequence[str] = (),
) -> EngineLike:
    """The engine of the user's choice.

    One of this computer is not started yet: its first call starts it, or :meth:`LocalEngine.start`; what is wrong there
    is raised then, and :func:`reason_of` has the words. A server is asked whether it is ready and takes the token.

    Args:
        watch: hears how a start goes on; what it raises ends it.
        environment: variables of the engine's Python. From within Slicer pass ``slicer.util.startupEnvironment()``:
            Slicer's own library paths break other programs. Slicer's own Python gets this process's.
        log: the engine's; :func:`xflow_core.service.child.default_log` by default.
        device: ``auto``, ``cpu`` or ``cuda``; of a server its own.
        bundles: the models to offer, by name or folder; of a server its own.

    Raises:
        EngineSetupError: there is no such engine.
    """
    if choice.kind == "server":
        return _server(choice, watch)
    if choice.kind == "this_slicer":
        return LocalEngine(slicer_python(), bundles=bundles, device=device, log=log, watch=watch)
    python: str | Path = choice.python
    if not python:
        state = managed_state()
        if not state.made:
            raise EngineSetupError(
                Reason("not_installed", state.sentence, "Press Install, or choose another engine in the settings.")
            )
        python = state.python
    return LocalEngine(python, bundles=bundles, device=device, log=log, environment=environment, watch=watch)


def test_server(choice: EngineChoice, watch: Watcher | None = None) -> EngineInfo:
    """What the server is, to show that address and token are right.

    Raises:
        EngineSetupError: they are not, or it is not ready.
    """
    with _server(choice, watch or (lambda progress: None)) as client:
        return describe(_reasoned(client.capabilities))


test_server.__test__ = False  # type: ignore[attr-defined]  # pytest takes it for one of its own


def describe(capabilities: Capabilities) -> EngineInfo:
    """What an engine says of itself, in words."""
    agreed = handshake(capabilities.version, capabilities.protocols)
    place = capabilities.device
    device = "CPU" if place == "cpu" else f"GPU ({place})" if place.startswith("cuda") else place
    size = capabilities.memory_bytes
    memory = "" if size is None else f"{size / 2**30:.0f} GiB"
    bundle = "none"
    findings: tuple[str, ...] = ()
    if capabilities.bundles:
        first = capabilities.bundles[0]
        identity, findings = first.identity, first.findings
        bundle = f"{identity.name} {identity.version} ({identity.backend})"
    lines = [
        f"XFlow {capabilities.version}, {NOT_FOR_CLINICAL_USE}",
        f"Device: {device}{f', {memory}' if memory else ''}",
        f"Models: {bundle}",
        f"Findings: {', '.join(findings) or 'none'}",
    ]
    if agreed.sentence is not None:
        lines.append(agreed.sentence)
    return EngineInfo(capabilities.version, device, memory, bundle, findings, agreed.sentence, tuple(lines))


def _server(choice: EngineChoice, watch: Watcher) -> Client:
    if choice.kind != "server":
        raise CallError("Only a server is tested by its address.")
    if choice.certificate and not Path(choice.certificate).is_file():
        raise EngineSetupError(
            Reason("certificate", f"There is no certificate file {choice.certificate}.", "Choose the server's file.")
        )
    if not choice.token:
        raise EngineSetupError(
            Reason("token", "The server needs a token.", "Copy it from the server's token file into the settings.")
        )
    client = Client(choice.url, choice.token, verify=choice.certificate or True)
    began = time.monotonic()
    try:
        health: Health = _reasoned(client.health)
        while not health.ready:
            watch(Progress("loading", health.doing, time.monotonic() - began))
            if time.monotonic() - began > _READY_WITHIN:
                raise EngineSetupError(
                    Reason("busy", f"The server was not ready after {_READY_WITHIN:.0f} s.", "Look at its log.")
                )
            time.sleep(_POLL)
            health = _reasoned(client.health)
        _reasoned(client.capabilities)  # takes the token, or not
    except BaseException:
        client.close()
        raise
    watch(Progress("ready", "The server is ready.", time.monotonic() - began))
    return client


def _reasoned(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except XFlowError as problem:
        raise EngineSetupError(reason_of(problem)) from problem
