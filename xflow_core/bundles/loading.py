"""From a bundle on disk to an engine that answers."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points

from xflow_core.domain.errors import BundleError, CallError
from xflow_core.workflow.engine import Engine

from .manifest import Bundle, find_bundle

DEVICES = ("auto", "cpu", "cuda", "mps")
LAYOUT_VARIABLE = "XFLOW_LAYOUT"
"""Names how a foundation bundle's policies lie in memory; by default what fits."""

# Backends by name, as "module:function" of (Bundle, device) -> Engine; imported when first needed. Other packages add
# theirs under the entry point group "xflow.backends".
BACKENDS = {
    "compact": "xflow_core.bundles.compact_backend:load",
    "foundation": "xflow_core.bundles.foundation_backend:load",
}
_EXTRAS = {"foundation": "engine,gpu"}  # of the package; "engine" for all others


def load_engine(name: str = "compact", device: str = "auto") -> Engine:
    """Find a bundle, check every file of it, and load it.

    Args:
        name: a bundle's name or folder.
        device: ``auto`` takes a GPU where there is one and the backend can use it.

    Raises:
        BundleError: it is missing, altered, or needs a part that is not installed.
        CallError: no such device here.
    """
    if device not in DEVICES:
        raise CallError(f"There is no device {device!r}; choose {', '.join(DEVICES)}.")
    bundle = find_bundle(name)
    bundle.verify()
    return _backend(bundle)(bundle, device)


def _backend(bundle: Bundle) -> Callable[[Bundle, str], Engine]:
    offered = {entry.name: entry for entry in entry_points(group="xflow.backends")}
    try:
        if bundle.backend in BACKENDS:
            module, function = BACKENDS[bundle.backend].split(":")
            load: Callable[[Bundle, str], Engine] = getattr(import_module(module), function)
        elif bundle.backend in offered:
            load = offered[bundle.backend].load()
        else:
            known = ", ".join(sorted({*BACKENDS, *offered}))
            raise BundleError(f"The bundle {bundle.name!r} needs the backend {bundle.backend!r}; known: {known}.")
    except ImportError as problem:
        raise BundleError(
            f"The bundle {bundle.name!r} needs {problem.name or problem}, which is not installed: "
            f"pip install 'xflow-core[{_EXTRAS.get(bundle.backend, 'engine')}]'."
        ) from None
    return load
