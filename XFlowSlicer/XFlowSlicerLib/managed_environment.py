"""XFlow's own Python environment on this computer: made, gone on with after a stop, kept up to date, removed.

Nothing is installed unless the user asks for it, and nothing half-made counts as made: the environment has a mark
beside it, which says "made" only after the new engine was checked.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from xflow_core import NOT_FOR_CLINICAL_USE
from xflow_core.domain.errors import CallError, Cancelled, NotWritten
from xflow_core.export.files import write_whole
from xflow_core.service.child import OLDEST_PYTHON, BoundedLog, default_log, engine_environment

from . import __version__, handshake
from .pythons import PythonFound, find_pythons, look_at, no_window
from .reasons import DISTRIBUTION, EngineSetupError, Reason, classify, halves, of_system, reason_of

TORCH = "torch>=2.4"
_POLL = 0.1


@dataclass(frozen=True)
class XFlowSource:
    """Where XFlow is installed from: by name from pip's index, or a folder or wheel file of the user's."""

    path: Path | None = None

    @classmethod
    def index(cls) -> XFlowSource:
        return cls()

    @classmethod
    def local(cls, path: str | Path) -> XFlowSource:
        """
        Raises:
            CallError: no folder with a ``pyproject.toml``, and no wheel.
        """
        path = Path(path).absolute()
        if not (path / "pyproject.toml").is_file() and not (path.is_file() and path.suffix == ".whl"):
            raise CallError(f"{path} is no folder of XFlow's sources and no wheel file (.whl).")
        return cls(path)

    @property
    def requirement(self) -> str:
        """As pip has it. By name the version is one that fits this module: the first two numbers are the same."""
        if self.path is None:
            major, minor = __version__.split(".")[:2]
            return f"{DISTRIBUTION}[engine]=={major}.{minor}.*"
        return f"{DISTRIBUTION}[engine] @ {self.path.as_uri()}"


@dataclass(frozen=True)
class TorchBuild:
    """Which torch: ``any`` (what pip's index offers), ``cpu`` or ``cuda``.

    ``index`` is an address of torch builds for the place of pip's own index, as pytorch.org's "Get Started" page shows
    it. Where it is needed, :func:`torch_hint` says.
    """

    kind: str = "any"
    index: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("any", "cpu", "cuda"):
            raise CallError(f"torch is any, cpu or cuda, not {self.kind!r}.")
        if self.index and urlsplit(self.index).scheme not in ("https", "http", "file"):
            raise CallError("The address of torch builds begins with https://.")
        if self.kind == "cuda" and sys.platform == "darwin":
            raise CallError("There is no CUDA on a Mac; choose the CPU build.")


def _index_has_cuda(torch: TorchBuild) -> bool:
    """On Linux pip's own index has the build for GPUs alone; it runs on a CPU, too."""
    return not torch.index and sys.platform.startswith("linux")


def torch_hint(kind: str) -> str:
    """What a kind of torch means on this computer: how large it is, and whether an address is needed for it."""
    ask = "copy the address after --index-url from pytorch.org, Get Started"
    if kind == "cuda":
        if sys.platform == "darwin":
            return "There is no CUDA on a Mac."
        address = f"; {ask} (a CUDA platform)" if sys.platform == "win32" else ""
        return f"For an NVIDIA GPU; about 3 GB to download, 6 GB on disk{address}."
    if sys.platform.startswith("linux"):
        return f"About 200 MB to download; {ask} (platform CPU). Without it comes the build for GPUs, of 3 GB."
    return "About 200 MB to download."


@dataclass(frozen=True)
class ManagedState:
    """The state of XFlow's own environment.

    Attributes:
        made: it is complete and was checked.
        unfinished: an installation was stopped or failed; :func:`make_environment` goes on there.
        python: its program, whether it is there or not.
        xflow, torch: the versions in it, once made.
        devices: what torch saw there, once made.
        sentence: all this in words.
    """

    made: bool
    unfinished: bool
    python: Path
    xflow: str | None = None
    torch: str | None = None
    devices: tuple[str, ...] = ()
    sentence: str = ""


@dataclass(frozen=True)
class SetupProgress:
    """How an installation goes on: step ``step`` of ``steps``, what is being done, and the tool's last line."""

    step: int
    steps: int
    doing: str
    line: str = ""


_STEPS = ("Looking at Python", "Making the environment", "Installing torch", "Installing XFlow", "Checking the engine")
_MARK = "xflow-environment.json"
_LOCK = "xflow-environment.lock"
_CHECK = """
import json
from xflow_core import __version__
from xflow_core.service.protocol import OLDEST_PROTOCOL, PROTOCOL
print(json.dumps([__version__, OLDEST_PROTOCOL, PROTOCOL]))
"""


def user_folder() -> Path:
    """Where the system keeps a program's own data of this user."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "XFlow"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "XFlow"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "xflow"


def managed_folder() -> Path:
    """Where XFlow's own environment goes unless the user says: the system's folder for a program's data."""
    return user_folder() / "engine"


def setup_log() -> Path:
    """The log of installations, beside the engine's; of 1 MiB at most, and one older."""
    return default_log().with_name("setup.log")


def managed_state(folder: str | Path | None = None) -> ManagedState:
    """The state of XFlow's own environment; quick, nothing is run."""
    folder = managed_folder() if folder is None else Path(folder)
    python = _python_in(folder / "venv")
    mark = _read_mark(folder)
    if mark is None:
        return ManagedState(False, False, python, sentence="XFlow is not installed on this computer yet.")
    if mark.get("state") != "made" or not python.exists():
        sentence = "The installation was not finished; installing again goes on from there."
        return ManagedState(False, True, python, sentence=sentence)
    devices = tuple(map(str, mark.get("devices", ())))
    sentence = f"XFlow {mark.get('xflow')} with torch {mark.get('torch')}; {'; '.join(devices)}."
    build = mark.get("build")
    if isinstance(build, dict) and build.get("kind") == "cuda" and not any("cuda" in device for device in devices):
        sentence += " No GPU is seen: its driver is missing or too old. The engine runs on the CPU."
    return ManagedState(True, False, python, str(mark.get("xflow")), str(mark.get("torch")), devices, sentence)


def make_environment(
    *,
    folder: str | Path | None = None,
    python: str | Path | None = None,
    source: XFlowSource | None = None,
    torch: TorchBuild | None = None,
    watch: Callable[[SetupProgress], None] | None = None,
    cancelled: threading.Event | None = None,
    environment: Mapping[str, str] | None = None,
    log: str | Path | None = None,
) -> ManagedState:
    """Install XFlow in an environment of its own, or go on with an installation that was stopped, or bring it up to
    date. torch comes first, so that the build is the one that was chosen.

    Until the new engine was checked, the environment does not count as made. What a stopped installation has is kept
    and used by the next. An engine that runs there must be stopped before.

    Args:
        folder: :func:`managed_folder` by default; new, empty, or XFlow's.
        python: that makes it; by default that of an earlier installation, or the best of :func:`find_pythons`.
        watch: hears each step and each line of the tools, in this thread.
        cancelled: when set, the installation stops within a second.
        environment: variables for Python and pip, such as Slicer's own from before its start.
        log: :func:`setup_log` by default.

    Raises:
        EngineSetupError: it cannot be; the reason says why and what to do.
        Cancelled: ``cancelled`` was set.
    """
    folder = managed_folder() if folder is None else Path(folder)
    source = source or XFlowSource.index()
    torch = torch or TorchBuild()
    variables = engine_environment(environment)
    variables.update(PIP_NO_INPUT="1", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_USER="0")
    try:
        record = BoundedLog(setup_log() if log is None else log)
    except CallError as problem:
        raise EngineSetupError(Reason("not_writable", *halves(str(problem)))) from None
    setup = _Setup(watch or (lambda progress: None), cancelled or threading.Event(), variables, record)
    try:
        with _alone(folder):
            return _make(folder, python, source, torch, environment, setup)
    except NotWritten as problem:
        cause = problem.__cause__
        raise EngineSetupError(of_system(cause) if isinstance(cause, OSError) else reason_of(problem)) from problem
    except OSError as problem:
        raise EngineSetupError(of_system(problem)) from problem
    finally:
        record.close()


def remove_environment(folder: str | Path | None = None) -> None:
    """Remove XFlow's own environment; of a folder that is not XFlow's nothing.

    Raises:
        EngineSetupError: a file is in use or cannot be removed; then it counts as unfinished.
    """
    folder = managed_folder() if folder is None else Path(folder)
    if _read_mark(folder) is None:
        return
    try:
        with _alone(folder):
            _write_mark(folder, {"state": "making"})
            if (folder / "venv").exists():
                shutil.rmtree(folder / "venv")
            (folder / _MARK).unlink()
    except (OSError, NotWritten):
        raise EngineSetupError(
            Reason("not_writable", f"{folder} cannot be removed as a whole.", "Stop the engine, and remove it again.")
        ) from None


def _make(
    folder: Path,
    python: str | Path | None,
    source: XFlowSource,
    torch: TorchBuild,
    environment: Mapping[str, str] | None,
    setup: _Setup,
) -> ManagedState:
    setup.enter(0)
    mark = _read_mark(folder)
    venv = folder / "venv"
    inside = _python_in(venv)
    if mark is None and any(path.name != _LOCK for path in folder.iterdir()):
        raise EngineSetupError(
            Reason("not_writable", f"{folder} is not empty, and not XFlow's.", "Choose a new or an empty folder.")
        )
    before = _usable(inside, environment) if mark is not None else None
    if before is None or python is not None:
        base = _base_python(python, environment)
        if before is not None and before.version != base.version:
            before = None  # another Python was chosen, perhaps because there is no torch for the first
    _check_room(folder, torch, torch_is_there=before is not None and before.torch is not None)
    _write_mark(folder, {**(mark or {}), "state": "making"})

    setup.enter(1)
    if before is None:
        shutil.rmtree(venv, ignore_errors=True)
        try:
            setup.run([str(base.path), "-m", "venv", "--without-pip", str(venv)])
            # By itself, for venv does not pass on why pip could not be put there.
            setup.run([str(inside), "-m", "ensurepip", "--default-pip"])
        except BaseException:
            shutil.rmtree(venv, ignore_errors=True)
            raise

    setup.enter(2)
    options = ["--progress-bar", "raw" if _has_raw_progress(inside, environment) else "off"]
    options += ["--retries", "2", "--timeout", "30"]
    pip = [str(inside), "-m", "pip"]
    chosen = asdict(torch)
    if before is not None and before.torch is not None and mark is not None and mark.get("build", chosen) != chosen:
        setup.run([*pip, "uninstall", "-y", "torch"])
    index = ["--index-url", torch.index] if torch.index else []
    setup.run([*pip, "install", *options, *index, TORCH])
    _write_mark(folder, {"state": "making", "build": chosen})

    setup.enter(3)
    if source.path is not None and before is not None and before.xflow is not None:
        # pip takes a wheel of the same version for the same wheel.
        setup.run([*pip, "uninstall", "-y", DISTRIBUTION])
    setup.run([*pip, "install", *options, "--upgrade", source.requirement])

    setup.enter(4)
    xflow, oldest, newest = json.loads(_last_line(setup.run([str(inside), "-c", _CHECK])))
    agreed = handshake(xflow, (oldest, newest))
    if not agreed.ok:
        assert agreed.sentence is not None
        kind = "xflow_old" if "engine is too old" in agreed.sentence else "xflow_new"
        raise EngineSetupError(Reason(kind, *halves(agreed.sentence)))
    report = json.loads(_last_line(setup.run([str(inside), "-m", "xflow_core.cli", "doctor", "--json"], good=(0, 4))))
    _check_report(report)
    parts = {part["part"]: part["version"] for part in report["parts"]}
    made = {"state": "made", "build": chosen, "xflow": xflow, "torch": parts.get("torch"), "devices": report["devices"]}
    _write_mark(folder, made)
    return managed_state(folder)


def _check_report(report: Mapping[str, Any]) -> None:
    """What ``xflow doctor`` found must be able to answer."""
    if not report["devices"]:
        raise EngineSetupError(classify("No module named torch"))
    problems = [bundle["problem"] for bundle in report["bundles"] if bundle["problem"]]
    if not report["ready"]:
        said = problems[0] if problems else "xflow doctor finds it not ready."
        raise EngineSetupError(Reason("damaged", f"XFlow's models cannot be used: {said}", "Install again."))


def _base_python(python: str | Path | None, environment: Mapping[str, str] | None) -> PythonFound:
    if python is None:
        found = next((found for found in find_pythons(environment) if found.can_make), None)
        if found is None:
            raise EngineSetupError(
                Reason(
                    "no_python",
                    f"This computer has no Python {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or newer that XFlow can use.",
                    "Install Python 3.12 (python.org), point to one, or use Slicer's own Python or a server.",
                )
            )
        return found
    found = look_at(python, environment)
    if not found.can_make:
        kind = "old_python" if found.version < OLDEST_PYTHON else "no_venv"
        remedy = "Choose another Python."
        if kind == "no_venv":
            remedy = "Install it (on Debian and Ubuntu the package python3-venv), or choose another Python."
        raise EngineSetupError(Reason(kind, found.sentence, remedy))
    return found


def _usable(python: Path, environment: Mapping[str, str] | None) -> PythonFound | None:
    """The environment as far as an earlier installation came; None where it has to be made anew."""
    if not python.exists() or _pip_version(python, environment) is None:
        return None
    try:
        return look_at(python, environment)
    except EngineSetupError:
        return None


# Measured with torch 2.15 on Linux: 5.4 GB with the build for GPUs, 1.3 GB with the CPU build; and XFlow's other parts.
_ROOM = {"cpu": 2 * 10**9, "cuda": 7 * 10**9}
_ROOM_FOR_XFLOW = 5 * 10**8


def _check_room(folder: Path, torch: TorchBuild, *, torch_is_there: bool) -> None:
    """Said before an hour of download, not after it."""
    if torch_is_there:
        needed = _ROOM_FOR_XFLOW
    else:
        needed = _ROOM["cuda" if torch.kind == "cuda" or _index_has_cuda(torch) else "cpu"]
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise EngineSetupError(
            Reason(
                "no_space",
                f"XFlow's environment needs about {needed / 1e9:.2g} GB, and the disk of {folder} has "
                f"{free / 1e9:.2g} GB left.",
                "Make room or choose another folder.",
            )
        )


def _pip_version(python: Path, environment: Mapping[str, str] | None) -> tuple[int, int] | None:
    """None where an installation was cut off before pip was there."""
    try:
        asked = subprocess.run(
            [str(python), "-m", "pip", "--version"],
            env=engine_environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            **no_window(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    known = re.match(r"pip (\d+)\.(\d+)", asked.stdout)
    return None if known is None else (int(known[1]), int(known[2]))


def _has_raw_progress(python: Path, environment: Mapping[str, str] | None) -> bool:
    """Whether pip tells how a download goes on to a program, too."""
    return (_pip_version(python, environment) or (0, 0)) >= (24, 1)


class _Setup:
    """The steps of one installation: what is run, heard, logged and stopped."""

    def __init__(
        self,
        watch: Callable[[SetupProgress], None],
        cancelled: threading.Event,
        variables: Mapping[str, str],
        log: BoundedLog,
    ) -> None:
        self.variables = dict(variables)
        self._watch = watch
        self._cancelled = cancelled
        self._log = log
        self._step = 0

    def enter(self, step: int) -> None:
        self._step = step
        self._tell("")

    def run(self, command: Sequence[str], good: Sequence[int] = (0,)) -> str:
        """Run a command to its end; what it wrote on stdout.

        Raises:
            EngineSetupError: it failed.
            Cancelled: as asked; the command and what it started are gone.
        """
        self._note(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(command)}")
        process = subprocess.Popen(
            list(command),
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **_own_group(),
        )
        said: queue.Queue[tuple[str, str] | None] = queue.Queue()
        assert process.stdout is not None and process.stderr is not None
        for name, stream in (("out", process.stdout), ("err", process.stderr)):
            threading.Thread(target=_read, args=(name, stream, said), daemon=True).start()
        lines: dict[str, list[str]] = {"out": [], "err": []}
        open_streams = 2
        try:
            while open_streams:
                self._stop_if_asked()
                try:
                    got = said.get(timeout=_POLL)
                except queue.Empty:
                    continue
                if got is None:
                    open_streams -= 1
                    continue
                name, line = got
                if not _is_progress(line):
                    self._note(line)
                    lines[name].append(line)
                    del lines[name][:-2000]
                self._tell(line)
            while process.poll() is None:
                self._stop_if_asked()
                time.sleep(_POLL)
        except BaseException:
            _end(process)
            raise
        if process.returncode not in good:
            self._note(f"ended with status {process.returncode}")
            raise EngineSetupError(classify("\n".join(lines["out"] + lines["err"])))
        return "\n".join(lines["out"])

    def _stop_if_asked(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled("The installation was stopped; installing again goes on from there.")

    def _note(self, line: str) -> None:
        self._log.write(_without_credentials(line).encode())

    def _tell(self, line: str) -> None:
        self._stop_if_asked()
        self._watch(SetupProgress(self._step + 1, len(_STEPS), _STEPS[self._step], _for_reading(line)))


def _read(name: str, stream: IO[bytes], said: queue.Queue[tuple[str, str] | None]) -> None:
    with stream:
        for line in stream:
            said.put((name, line.decode("utf-8", "replace").rstrip()))
    said.put(None)


def _is_progress(line: str) -> bool:
    return line.startswith("Progress ")


def _for_reading(line: str) -> str:
    """A tool's line for the screen: no credentials, no colours, pip's raw progress in MB."""
    done = re.match(r"Progress (\d+) of (\d+)", line)
    if done is not None and int(done[2]):
        return f"{int(done[1]) / 1e6:.0f} of {int(done[2]) / 1e6:.0f} MB"
    return re.sub(r"\x1b\[[0-9;]*m", "", _without_credentials(line)).strip()[:300]


def _without_credentials(line: str) -> str:
    return re.sub(r"(?<=://)[^/@\s]+@", "****@", line)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and, where the system has groups of processes, what it started."""
    with contextlib.suppress(OSError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)


def _own_group() -> dict[str, Any]:
    return {"start_new_session": True} if os.name == "posix" else no_window()


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One installation at a time in a folder, of all programs; the system ends the lock with the program."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / _LOCK, "wb") as file:
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise EngineSetupError(
                Reason("busy", f"Another program is installing XFlow in {folder}.", "Wait until it is done.")
            ) from None
        yield


def _python_in(venv: Path) -> Path:
    return venv / "Scripts" / "python.exe" if sys.platform == "win32" else venv / "bin" / "python"


def _read_mark(folder: Path) -> dict[str, Any] | None:
    try:
        mark = json.loads((folder / _MARK).read_bytes())
    except (OSError, ValueError):
        return None
    return mark if isinstance(mark, dict) else None


def _write_mark(folder: Path, mark: Mapping[str, Any]) -> None:
    write_whole(folder / _MARK, (json.dumps({**mark, "notice": NOT_FOR_CLINICAL_USE}, indent=1) + "\n").encode())
