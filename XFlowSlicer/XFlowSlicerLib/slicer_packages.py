"""XFlow in Slicer's own Python: the one place that installs packages there, and only when it is asked to."""

from __future__ import annotations

import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from xflow_core.domain.errors import CallError

from .managed_environment import TORCH, TorchBuild, XFlowSource
from .reasons import DISTRIBUTION, EngineSetupError, Reason, classify


def install_in_slicer(source: XFlowSource | None = None, torch: TorchBuild | None = None) -> str:
    """Install XFlow in Slicer's own Python, with ``slicer.packaging``: it asks, and shows how it goes on.

    Only on the user's explicit wish, and only in the thread of the user interface. Packages that came with Slicer keep
    their versions.

    Returns:
        The version of XFlow that is there now.

    Raises:
        EngineSetupError: declined, or pip failed (its log was shown).
    """
    if threading.current_thread() is not threading.main_thread():
        raise CallError("Packages are installed in Slicer's Python from its main thread only.")
    try:
        from slicer import packaging  # type: ignore[import-untyped]
    except ImportError:
        raise EngineSetupError(
            Reason("failed", "This Slicer cannot install packages for a module.", "XFlow needs Slicer 5.12 or newer.")
        ) from None
    source, torch = source or XFlowSource.index(), torch or TorchBuild()
    with tempfile.TemporaryDirectory(prefix="xflow-") as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in _came_with_slicer()))
        try:
            if torch.index and not packaging.pip_check(TORCH):
                packaging.pip_install([TORCH, "--index-url", torch.index], requester="XFlow")
            packaging.pip_ensure([TORCH, source.requirement], constraints=constraints, requester="XFlow")
        except RuntimeError as problem:
            declined = Reason("declined", "Nothing was installed.", "Choose another engine, or install later.")
            said = str(problem)
            raise EngineSetupError(declined if "declined" in said else classify(said)) from problem
        except subprocess.CalledProcessError as problem:
            said = str(problem.output or "")
            reason = classify(said) if said else Reason("failed", "pip failed in Slicer's Python.", "See its log.")
            raise EngineSetupError(reason) from problem
    installed = _installed(DISTRIBUTION)
    if installed is None:
        raise EngineSetupError(Reason("not_installed", "XFlow was not installed in Slicer's Python.", "Try again."))
    return installed


def _came_with_slicer() -> Iterator[tuple[str, str]]:
    for name in ("numpy", "pydicom", "highdicom", "SimpleITK", "scipy", "requests", "pillow"):
        version = _installed(name)
        # Slicer's own SimpleITK has a version of its own making, which is in no index and constrains nothing.
        if version is not None and re.fullmatch(r"[0-9.]+", version):
            yield name, version


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
