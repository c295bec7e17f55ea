"""The phantom of :mod:`phantom` as a bundle on disk and a backend by entry point, for an engine in another process.

:func:`phantom_bundle` writes what an installed third backend would have: a bundle, and a distribution that names its
loader. The bundle's settings make it slow, or make its process end in the middle of a run.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

from phantom import PhantomParts, phantom_engine

from xflow_core.bundles.manifest import MANIFEST, SCHEMA, SEARCH_VARIABLE, Bundle
from xflow_core.workflow.engine import Engine

FINDINGS = ("opacity", "effusion", "cardiomegaly")
STEPS = ("ground_lungs", "judge", "localise", "segment", "revise")


def phantom_bundle(
    folder: Path, *, seconds_per_call: float = 0.0, crash_at: str | None = None, crashes: int = 1
) -> dict[str, str]:
    """Write the bundle ``phantom`` and its backend under ``folder``; returns the environment that finds them.

    Args:
        seconds_per_call: what each call of a model takes.
        crash_at: one of :data:`STEPS`, in which the process ends as if it had been killed, ``crashes`` times in all.
    """
    bundle = folder / "bundles" / "phantom"
    bundle.mkdir(parents=True, exist_ok=True)
    left = folder / "crashes_left"
    left.write_text(str(crashes))
    settings = {"seconds_per_call": seconds_per_call, "crash_at": crash_at, "crashes_left": str(left)}
    manifest = {"schema": SCHEMA, "name": "phantom", "version": "1", "backend": "phantom", "findings": FINDINGS}
    (bundle / MANIFEST).write_text(json.dumps({**manifest, "files": {}, "settings": settings}))

    distribution = folder / "site" / "phantom_backend-1.dist-info"
    distribution.mkdir(parents=True, exist_ok=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: phantom-backend\nVersion: 1\n")
    (distribution / "entry_points.txt").write_text("[xflow.backends]\nphantom = phantom_backend:load\n")
    paths = [str(folder / "site"), str(Path(__file__).parent), str(Path(__file__).parents[1])]
    return {**os.environ, SEARCH_VARIABLE: str(folder / "bundles"), "PYTHONPATH": os.pathsep.join(paths)}


def load(bundle: Bundle, device: str) -> Engine:
    """The backend's loader, as its entry point names it."""
    engine, parts = phantom_engine(FINDINGS)
    for name in STEPS:
        setattr(parts, name, _burdened(parts, name, bundle.settings))
    return replace(engine, identity=bundle.identity)


def _burdened(parts: PhantomParts, name: str, settings: dict) -> object:
    plain = getattr(parts, name)

    def call(*arguments: object, **named: object) -> object:
        time.sleep(settings["seconds_per_call"])
        left = Path(settings["crashes_left"])
        if name == settings["crash_at"] and (crashes := int(left.read_text())) > 0:
            left.write_text(str(crashes - 1))
            os._exit(137)
        return plain(*arguments, **named)

    return call
