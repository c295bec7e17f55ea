"""The first import of slicer-core's package ``slicer``, with this project's own ``tests/slicer`` out of its sight.

The package imports every module in every folder named ``slicer`` beside an entry of ``sys.path``. pytest puts ``tests``
on the path, and so the tests of the module would be run, and their names put into ``slicer``.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1] / "slicer"


def import_slicer() -> None:
    """Import ``slicer``; a second call does nothing.

    Raises:
        ModuleNotFoundError: slicer-core is not installed.
    """
    path = list(sys.path)
    sys.path[:] = [entry for entry in path if (Path(entry or ".") / "slicer").resolve() != _TESTS]
    try:
        importlib.import_module("slicer")
    finally:
        sys.path[:] = path
