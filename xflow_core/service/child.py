"""``xflow serve`` as a child process: the Python that can run it, its log, its start and its end.

**No orphan.** The child reads a pipe whose other end only this process holds (``xflow serve --with-parent``). However
this process ends, the system closes that end, and the child ends with it. It is written for Linux, macOS and Windows
alike, and was run on Linux only.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from xflow_core.domain.errors import CallError, EngineError

from .protocol import PROTOCOL, Listening, protocol_mismatch

OLDEST_PYTHON = (3, 11)
LOG_BYTES = 2**20
"""Of the log file; one older file of the same size is kept beside it."""

_POLL = 0.1
_LONGEST_LINE = 2**14
_INQUIRY = """
import json, sys
found = {"python": sys.version_info[:3], "xflow": None, "serves": False}
try:
    import xflow_core
    found["xflow"] = xflow_core.__version__
    import xflow_core.service
    found["serves"] = True
except ImportError:
    pass
print(json.dumps(found))
"""
# No console window on Windows. This process's ctrl-C is not the child's, which ends when this process wants.
_AS_CHILD: dict[str, Any] = {"start_new_session": True}
if sys.platform == "win32":
    _AS_CHILD = {"creationflags": subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP}
# Slicer and other programs that bring a Python of their own lead every child to it by these.
_LEADING_ASTRAY = ("PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__")


def default_log() -> Path:
    """Where the engine's log goes unless the caller says: the folder that the system has for such files."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "XFlow" / "engine.log"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Logs" / "XFlow" / "engine.log"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "xflow" / "engine.log"


class BoundedLog:
    """A text file that never grows beyond ``max_bytes``: when full it becomes ``<name>.1``, and a new one begins."""

    def __init__(self, path: str | Path, max_bytes: int = LOG_BYTES) -> None:
        """
        Raises:
            CallError: the file cannot be written there.
        """
        self.path = Path(path)
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = open(self.path, "ab")  # noqa: SIM115  open as long as the engine
        except OSError as problem:
            raise CallError(
                f"The engine's log {self.path} cannot be written: {problem.strerror or problem}; name another file."
            ) from None

    def write(self, line: bytes) -> None:
        """Add a line; one that is longer than the file may be is cut."""
        line = line[: self.max_bytes - 1].rstrip(b"\r\n") + b"\n"
        # A full disk must not stop the engine: the lines are lost, and the run is not.
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self._file.tell() + len(line) > self.max_bytes:
                self._turn_over()
            self._file.write(line)
            self._file.flush()

    def _turn_over(self) -> None:
        self._file.close()
        try:
            os.replace(self.path, self.path.with_name(f"{self.path.name}.1"))
            self._file = open(self.path, "ab")  # noqa: SIM115
        except OSError:
            # Windows moves no file that another process has open; then it begins anew in place.
            self._file = open(self.path, "wb")  # noqa: SIM115

    def close(self) -> None:
        with self._lock:
            self._file.close()


def engine_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment variables for a child Python: ``base`` as it is, or this process's own without those that would
    lead another Python to this one's libraries."""
    if base is not None:
        environment = dict(base)
    else:
        environment = {name: value for name, value in os.environ.items() if name not in _LEADING_ASTRAY}
    # A file called random.py in the current folder is no part of the engine.
    environment["PYTHONSAFEPATH"] = "1"
    environment["PYTHONUNBUFFERED"] = "1"
    environment["PYTHONIOENCODING"] = "utf-8"
    return environment


def check_python(python: str | Path, environment: Mapping[str, str] | None = None, seconds: float = 120.0) -> str:
    """The version of XFlow that is installed for a Python.

    Raises:
        CallError: there is no such program, it is no Python or too old a one, or XFlow is not installed there; the
            sentence says which and what to do.
    """
    command = [str(python), "-c", _INQUIRY]
    try:
        asked = subprocess.run(
            command,
            env=engine_environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            **_AS_CHILD,
        )
    except (FileNotFoundError, NotADirectoryError):
        raise CallError(f"There is no Python at {python}; choose the python of an environment with XFlow.") from None
    except subprocess.TimeoutExpired:
        raise CallError(f"{python} gave no answer within {seconds:.0f} s; is it a Python?") from None
    except OSError as problem:
        raise CallError(f"{python} cannot be run: {problem.strerror or problem}; choose a Python.") from None
    try:
        found = json.loads(asked.stdout.decode("utf-8", "replace").strip().splitlines()[-1])
        version, xflow = tuple(found["python"]), found["xflow"]
    except (ValueError, LookupError, TypeError):
        raise CallError(f"{python} is no Python that runs here{_last_words(asked.stderr)}.") from None
    if version < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        raise CallError(
            f"{python} is Python {'.'.join(map(str, version))}, and the engine needs {wanted} or newer; choose another."
        )
    if xflow is None:
        raise CallError(
            f"XFlow is not installed for {python}; install it there: {python} -m pip install 'xflow-core[engine]'."
        )
    if not found.get("serves"):
        raise CallError(f"XFlow {xflow} for {python} is too old to serve; there, pip install -U 'xflow-core[engine]'.")
    return str(xflow)


def check_protocols(spoken: Any) -> None:
    """Raise :class:`EngineError` unless this XFlow and an engine of protocols ``(oldest, newest)`` can talk."""
    try:
        oldest, newest = map(int, spoken)
    except (TypeError, ValueError):
        raise EngineError("The engine does not say which protocol it speaks; update XFlow on its side.") from None
    sentence = protocol_mismatch(PROTOCOL, (oldest, newest))
    if sentence is not None:
        raise EngineError(sentence)


def _last_words(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return f": {lines[-1].strip()}" if lines else ""


class EngineProcess:
    """One ``xflow serve`` from its start to its end; after a crash :class:`.local.LocalEngine` starts another.

    Attributes:
        listening: where it answers; set by :meth:`await_address`.
        ended: set the moment that the process has ended, for whatever reason.
    """

    def __init__(
        self,
        python: str | Path,
        arguments: Sequence[str],
        log: BoundedLog,
        environment: Mapping[str, str] | None = None,
        at_end: Callable[[EngineProcess], None] | None = None,
    ) -> None:
        """
        Args:
            arguments: of ``xflow serve``.
            at_end: called once with this process, from a thread of its own, when it has ended.

        Raises:
            CallError: the Python cannot be run.
        """
        self.log = log
        self.ended = threading.Event()
        self.listening: Listening | None = None
        self._at_end = at_end
        self._said: queue.Queue[bytes | None] = queue.Queue()
        self._last_line = ""
        self._keeps_token = any(argument.split("=")[0] == "--token-file" for argument in arguments)
        command = [str(python), "-m", "xflow_core.cli", "serve", "--with-parent", *arguments]
        log.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(command)}".encode())
        try:
            self._process = subprocess.Popen(
                command,
                env=engine_environment(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                **_AS_CHILD,
            )
        except OSError as problem:
            raise CallError(f"{python} cannot be run: {problem.strerror or problem}; choose a Python.") from None
        assert self._process.stdin is not None and self._process.stdout is not None and self._process.stderr is not None
        self._pipe = self._process.stdin
        self._readers = [
            threading.Thread(target=self._read_stdout, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._read_stderr, args=(self._process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        threading.Thread(target=self._wait, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def await_address(self, deadline: float, tell: Callable[[], None]) -> Listening:
        """Where the child listens, once it says so.

        Args:
            deadline: of :func:`time.monotonic`.
            tell: called every tenth of a second.

        Raises:
            EngineError: it ended (with its own last words), did not listen in time, or speaks another protocol.
        """
        while self.listening is None:
            tell()
            try:
                line = self._said.get(timeout=_POLL)
            except queue.Empty:
                if time.monotonic() > deadline:
                    raise EngineError(f"The engine took too long to start; its log is {self.log.path}.") from None
                continue
            if line is None:
                self.ended.wait(5)
                raise EngineError(self.epitaph())
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                if isinstance(said, dict) and said.get("service") == "xflow":
                    check_protocols(said.get("protocols"))
                    self.listening = Listening.from_json(said)
        return self.listening

    def epitaph(self) -> str:
        """How the child ended, in a sentence, with its own last words."""
        for reader in self._readers:
            reader.join(1)
        status = self._process.poll()
        how = "is ending" if status is None else f"was killed (signal {-status})" if status < 0 else ""
        how = how or f"ended with status {status}"
        words = self._last_line.removeprefix("xflow: ").rstrip(".")
        return f"The engine {how}{f': {words}' if words and status else ''}. Its log is {self.log.path}."

    def stop(self, grace: float = 5.0) -> None:
        """End the child: by closing the pipe that it watches, then by asking, then by force."""
        with contextlib.suppress(OSError):
            self._pipe.close()
        for end in (self._process.terminate, self._process.kill):
            if self.ended.wait(grace):
                return
            with contextlib.suppress(OSError):
                end()
        self.ended.wait(grace)

    def kill(self) -> None:
        """End the child at once."""
        with contextlib.suppress(OSError):
            self._process.kill()
        self.ended.wait(5)

    def _read_stdout(self, stream: IO[bytes]) -> None:
        with stream:
            while line := stream.readline(_LONGEST_LINE):
                if self.listening is None:
                    self._said.put(line)
        self._said.put(None)

    def _read_stderr(self, stream: IO[bytes]) -> None:
        with stream:
            while line := stream.readline(_LONGEST_LINE):
                self.log.write(line)
                self._last_line = line.decode("utf-8", "replace").strip() or self._last_line

    def _forget_token(self) -> None:
        """A child that was killed had no time to remove the token that was for its life alone."""
        if self.listening is None or self._keeps_token:
            return
        token_file = Path(self.listening.token_file)
        with contextlib.suppress(OSError):
            token_file.unlink(missing_ok=True)
            token_file.parent.rmdir()

    def _wait(self) -> None:
        self._process.wait()
        self._forget_token()
        with contextlib.suppress(OSError):
            self._pipe.close()
        self.ended.set()
        if self._at_end is not None:
            self._at_end(self)
