"""What the XFlow module of 3D Slicer is made of; importing this package makes ``xflow_core`` importable.

The light half of ``xflow_core`` (domain, export, the service's client) travels with the module. Two layouts:

- In the built extension it lies in ``XFlowSlicerLib/light/xflow_core``. Not beside the module: that folder is on the
  path of Slicer's own Python, too, where a light ``xflow_core`` would hide a whole one that is installed there.
- In a checkout whose ``XFlowSlicer`` folder was added to Slicer's module paths it is the checkout's ``xflow_core``.

Either way that one package is loaded by its place. ``sys.path`` stays as it is, so nothing else of the folder comes in.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_CORE_PLACES = (_HERE / "light" / "xflow_core", _HERE.parents[1] / "xflow_core")
_VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Handshake:
    """Whether the module and an engine go together.

    Attributes:
        ok: they can talk to each other.
        sentence: which side to update; None when both are of one version.
    """

    ok: bool
    sentence: str | None


def resource(name: str) -> Path:
    """A file of the module's ``Resources`` folder, such as ``UI/XFlowSlicer.ui``."""
    return _HERE.parent / "Resources" / name


def handshake(engine_version: str, protocols: tuple[int, int]) -> Handshake:
    """Compare the module with an engine.

    What decides is the protocol. With a protocol in common, versions may differ in their last number; if they differ
    before it, the two still talk, and the sentence says which of them is the older.

    Args:
        engine_version: as ``/health`` and ``/capabilities`` say it.
        protocols: the oldest and the newest that the engine speaks.
    """
    from xflow_core.service.protocol import PROTOCOL

    oldest, newest = protocols
    both = f"the module is XFlow {__version__}, the engine is XFlow {engine_version}"
    if oldest > PROTOCOL:
        return Handshake(False, f"The module is too old for this engine ({both}); update the XFlow extension.")
    if newest < PROTOCOL:
        return Handshake(False, f"The engine is too old for this module ({both}); update xflow-core where it runs.")
    ours, theirs = _release(__version__), _release(engine_version)
    if ours is None or theirs is None or ours == theirs:
        return Handshake(True, None)
    older = "the engine: update xflow-core where it runs" if theirs < ours else "the module: update the XFlow extension"
    return Handshake(True, f"They work together, but {both}; the older is {older}.")


def _release(version: str) -> tuple[int, int] | None:
    """The first two numbers of a version."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))


def _load_core() -> str:
    """Make the ``xflow_core`` of this extension or checkout importable; its version.

    Raises:
        ImportError: it is not there, or another one of a different version was loaded before it.
    """
    place = next((place for place in _CORE_PLACES if (place / "__init__.py").is_file()), None)
    if place is None:
        raise ImportError("The XFlow extension is incomplete: its xflow_core is missing. Install the extension again.")
    written = _VERSION.search((place / "__init__.py").read_text(encoding="utf-8"))
    if written is None:
        raise ImportError("The XFlow extension is damaged: its xflow_core has no version. Install the extension again.")
    loaded = sys.modules.get("xflow_core")
    if loaded is None:
        spec = importlib.util.spec_from_file_location(
            "xflow_core", place / "__init__.py", submodule_search_locations=[str(place)]
        )
        assert spec is not None and spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        sys.modules["xflow_core"] = loaded
        try:
            spec.loader.exec_module(loaded)
        except BaseException:
            del sys.modules["xflow_core"]
            raise
    if loaded.__version__ != written[1]:
        raise ImportError(
            f"Slicer has loaded another xflow_core ({loaded.__version__}) than the extension's ({written[1]}); restart "
            "Slicer, and open the XFlow module before anything else uses xflow_core."
        )
    return written[1]


__version__ = _load_core()
