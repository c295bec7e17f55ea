"""A display to draw on: the one there is, or an Xvfb of this process's own."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1
SIZE = (1920, 1200)


def ensure_display(own: bool = True) -> str | None:
    """Make sure that Qt and VTK can open windows.

    Args:
        own: start an Xvfb where there is no display; it ends with this process.

    Returns:
        None when they can; otherwise what is missing, as a sentence.
    """
    if not sys.platform.startswith("linux"):
        return None
    # VTK draws into X windows only, so Qt must make such, under Wayland too.
    os.environ["QT_QPA_PLATFORM"] = "xcb"
    if os.environ.get("DISPLAY"):
        return None
    if not own:
        return "there is no X display (DISPLAY is not set)"
    program = shutil.which("Xvfb")
    if program is None:
        return "there is no display and Xvfb is not installed (apt-get install xvfb)"
    read, write = os.pipe()
    subprocess.Popen(
        [program, "-displayfd", str(write), "-screen", "0", f"{SIZE[0]}x{SIZE[1]}x24", "-nolisten", "tcp"],
        pass_fds=(write,),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=_die_with_parent,
    )
    os.close(write)
    with os.fdopen(read) as answer:
        number = answer.readline().strip()
    if not number:
        return "Xvfb did not start"
    os.environ["DISPLAY"] = f":{number}"
    os.environ.setdefault("LIBGL_ALWAYS_SOFTWARE", "1")
    return None


def _die_with_parent() -> None:
    # Stopped earlier, at exit, the server would take Qt's connection from under it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
