"""The Pythons of this computer that can run XFlow or make an environment for it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xflow_core.service.child import OLDEST_PYTHON, engine_environment

from .reasons import EngineSetupError, Reason

_BEST = ((3, 12), (3, 11), (3, 13))
"""Those for which torch and the DICOM codecs are ready made, the likeliest first."""

_LOOK = """
import importlib.util as u, json, struct, sys
from importlib import metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
print(json.dumps({"version": list(sys.version_info[:3]), "prefix": sys.prefix, "bits": 8 * struct.calcsize("P"),
    "can_make": all(u.find_spec(part) for part in ("venv", "ensurepip")), "xflow": version("xflow-core"), "torch": version("torch")}))
"""  # noqa: E501
_PLACES = {
    "linux": (
        "~/.pyenv/versions/*/bin/python3",
        "~/.local/share/uv/python/*/bin/python3",
        "~/*conda3/bin/python3",
        "~/miniforge3/bin/python3",
    ),
    "darwin": (
        "/opt/homebrew/bin/python3.*",
        "/usr/local/bin/python3.*",
        "/Library/Frameworks/Python.framework/Versions/3.*/bin/python3",
        "~/.pyenv/versions/*/bin/python3",
        "~/.local/share/uv/python/*/bin/python3",
        "~/*conda3/bin/python3",
        "~/miniforge3/bin/python3",
    ),
    "win32": (
        "$LOCALAPPDATA/Programs/Python/Python3*/python.exe",
        "$LOCALAPPDATA/Python/pythoncore-3*/python.exe",
        "$ProgramFiles/Python3*/python.exe",
        "~/AppData/Roaming/uv/python/*/python.exe",
        "~/*conda3/python.exe",
    ),
}


@dataclass(frozen=True)
class PythonFound:
    """A Python of this computer.

    Attributes:
        path: its program.
        version: such as ``(3, 12, 4)``.
        xflow, torch: the versions installed there, None for none.
        can_make: it can make XFlow's environment.
        sentence: what it is, or why it cannot be used as it is.
    """

    path: Path
    version: tuple[int, int, int]
    xflow: str | None
    torch: str | None
    can_make: bool
    sentence: str

    @property
    def has_engine(self) -> bool:
        return self.xflow is not None and self.torch is not None


def look_at(python: str | Path, environment: Mapping[str, str] | None = None) -> PythonFound:
    """What a Python is and has.

    Args:
        environment: variables for it; :func:`xflow_core.service.child.engine_environment` by default.

    Raises:
        EngineSetupError: it is no Python that runs.
    """
    path = Path(python)
    try:
        asked = subprocess.run(
            [str(path), "-c", _LOOK],
            env=engine_environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            **no_window(),
        )
        found = json.loads(asked.stdout.decode("utf-8", "replace").strip().splitlines()[-1])
        version = (int(found["version"][0]), int(found["version"][1]), int(found["version"][2]))
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError):
        raise EngineSetupError(
            Reason("no_python", f"{path} is no Python that runs on this computer.", "Choose another one.")
        ) from None
    shown = ".".join(map(str, version))
    xflow, torch = found["xflow"], found["torch"]
    suits = version >= OLDEST_PYTHON and found["bits"] == 64
    if version < OLDEST_PYTHON:
        sentence = f"Python {shown} is too old: XFlow needs {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or newer."
    elif not suits:
        sentence = f"Python {shown} is of {found['bits']} bits; torch needs one of 64."
    elif xflow is not None:
        with_torch = f"torch {torch}" if torch else "without torch"
        sentence = f"Python {shown} with XFlow {xflow}, {with_torch}."
    elif not found["can_make"]:
        sentence = f"Python {shown} cannot make environments: its venv part is missing."
    else:
        sentence = f"Python {shown}."
    return PythonFound(path, version, xflow, torch, suits and bool(found["can_make"]), sentence)


def find_pythons(environment: Mapping[str, str] | None = None) -> tuple[PythonFound, ...]:
    """The Pythons of this computer that can run XFlow or make its environment, the best first; not Slicer's own.

    Looked for on the path, with Windows' ``py``, and where Python, Homebrew, pyenv, uv and conda usually put theirs.
    """
    variables = engine_environment(environment)
    search = variables.get("PATH")
    named = ("python3.12", "python3.11", "python3.13", "python3.14", "python3", "python")
    candidates = [Path(found) for name in named if (found := shutil.which(name, path=search)) is not None]
    for pattern in _PLACES.get(sys.platform, ()):
        candidates += _matching(pattern)
    candidates += _by_launcher(variables)
    own = os.path.realpath(slicer_python())
    unique = {os.path.normcase(str(path)): path for path in candidates if not _is_slicer(path, own)}

    def look(path: Path) -> PythonFound | None:
        try:
            return look_at(path, environment)
        except EngineSetupError:
            return None

    with ThreadPoolExecutor(4) as pool:
        looked = list(pool.map(look, unique.values()))
    # One program has several names; what it is made of tells.
    kept: dict[tuple[object, ...], PythonFound] = {}
    for one in looked:
        if one is not None and (one.can_make or one.has_engine):
            kept.setdefault((os.path.realpath(one.path), one.xflow, one.torch), one)
    return tuple(sorted(kept.values(), key=_rank))


def _rank(found: PythonFound) -> tuple[object, ...]:
    release = found.version[:2]
    place = _BEST.index(release) if release in _BEST else len(_BEST)
    return (not found.has_engine, place, tuple(-part for part in found.version), str(found.path))


def _matching(pattern: str) -> list[Path]:
    pattern = os.path.expanduser(os.path.expandvars(pattern))
    anchor = Path(pattern).anchor
    if not anchor or "$" in pattern:
        return []
    found = Path(anchor).glob(str(Path(pattern).relative_to(anchor)))
    return sorted(path for path in found if re.fullmatch(r"python(3(\.\d+)?)?(\.exe)?", path.name))


def _by_launcher(variables: Mapping[str, str]) -> list[Path]:
    """Those that Windows' ``py`` knows."""
    launcher = shutil.which("py", path=variables.get("PATH")) if sys.platform == "win32" else None
    if launcher is None:
        return []
    try:
        said = subprocess.run([launcher, "-0p"], capture_output=True, text=True, timeout=15, **no_window())
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [Path(path) for path in re.findall(r"\S:\\.*?python\.exe", said.stdout, re.IGNORECASE)]


def _is_slicer(path: Path, own: str) -> bool:
    return path.name.lower().startswith("pythonslicer") or (
        "slicer" in Path(own).name.lower() and os.path.realpath(path) == own
    )


def slicer_python() -> str:
    """The program of this process's Python; in Slicer that is ``PythonSlicer``."""
    return sys.executable or ""


def no_window() -> dict[str, Any]:
    """What keeps Windows from showing a console for a child process."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NO_WINDOW}
    return {}
