"""The phantom of :mod:`phantom` as an installed backend, for engines in other processes, which fails as real ones do.

:func:`phantom_bundle` writes what an installed third backend would have: a bundle, and a distribution that names its
loader. The bundle's settings make it slow, or make its process end in the middle of a run. A picture of
:func:`write_picture` says by its first pixel how the engine behaves at it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from phantom import LESION, PhantomParts, phantom
from PIL import Image

from xflow_core.bundles.manifest import MANIFEST, SCHEMA, SEARCH_VARIABLE, Bundle
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import Radiograph
from xflow_core.workflow.engine import Engine

FINDINGS = ("opacity", "effusion", "cardiomegaly")
STEPS = ("ground_lungs", "judge", "localise", "segment", "revise")
BEHAVIOURS = ("answers", "kills its process", "raises", "takes a second", "takes long")
SEEN_VARIABLE = "XFLOW_TEST_SEEN"
"""A file in which each question leaves a line, so that a test can say what was computed."""


def phantom_bundle(
    folder: Path, *, seconds_per_call: float = 0.0, crash_at: str | None = None, crashes: int = 1
) -> dict[str, str]:
    """Write the bundle ``phantom`` and its backend under ``folder``; returns the environment that finds them.

    Args:
        seconds_per_call: what each call of a model takes.
        crash_at: one of :data:`STEPS`, in which the process ends as if it had been killed, ``crashes`` times in all.
    """
    settings: dict[str, Any] = {}
    if seconds_per_call or crash_at:
        left = folder / "crashes_left"
        left.write_text(str(crashes))
        settings = {"seconds_per_call": seconds_per_call, "crash_at": crash_at, "crashes_left": str(left)}
    write_manifest(folder / "bundles" / "phantom", settings)

    distribution = folder / "site" / "phantom_backend-1.dist-info"
    distribution.mkdir(parents=True, exist_ok=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: phantom-backend\nVersion: 1\n")
    (distribution / "entry_points.txt").write_text("[xflow.backends]\nphantom = phantom_backend:load\n")
    paths = [str(folder / "site"), str(Path(__file__).parent), str(Path(__file__).parents[1])]
    return {**os.environ, SEARCH_VARIABLE: str(folder / "bundles"), "PYTHONPATH": os.pathsep.join(paths)}


def write_manifest(bundle: Path, settings: dict[str, Any] | None = None, version: str = "1") -> None:
    bundle.mkdir(parents=True, exist_ok=True)
    manifest = {"schema": SCHEMA, "name": "phantom", "version": version, "backend": "phantom", "findings": FINDINGS}
    (bundle / MANIFEST).write_text(json.dumps({**manifest, "files": {}, "settings": settings or {}}))


def picture(discs: Sequence[tuple[float, float, float]], behaviour: str = "answers") -> np.ndarray:
    """uint8 ``[200, 240]``: the phantom with enough shades for the guards, and its behaviour in the first pixel."""
    values = phantom(discs).values * 255
    rows, columns = np.indices(values.shape)
    shaded = values + 20 * np.sin(rows / 17) * np.cos(columns / 23) * (values < 200)
    pixels = np.clip(shaded, 8, 255).astype(np.uint8)
    pixels[0, 0] = BEHAVIOURS.index(behaviour)
    return pixels


def write_picture(path: Path, discs: Sequence[tuple[float, float, float]] = (), behaviour: str = "answers") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(discs, behaviour)).save(path)
    return path


def load(bundle: Bundle, device: str) -> Engine:
    """The backend's loader, as its entry point names it."""
    parts = InstalledPhantom()
    if bundle.settings:
        for name in STEPS:
            setattr(parts, name, _burdened(getattr(parts, name), name, bundle.settings))
    return Engine(bundle.identity, bundle.findings, init_policy=parts, revision_policy=parts, segmenter=parts)


class InstalledPhantom(PhantomParts):
    """The phantom's parts, for values from 0 to 1 and for 8-bit pictures."""

    def _bright(self, image: EncodedRadiograph) -> np.ndarray:
        def encode(radiograph: Radiograph) -> np.ndarray:
            return radiograph.values > LESION * (255 if radiograph.values.max() > 1 else 1)

        return image.feature("phantom.bright", encode)

    def ground_lungs(self, image, instruction, lungs, *, seed):  # type: ignore[no-untyped-def]
        if os.environ.get(SEEN_VARIABLE):
            with open(os.environ[SEEN_VARIABLE], "a") as seen:
                seen.write(f"{image.radiograph.record.sha256} {instruction.finding}\n")
        behaviour = BEHAVIOURS[int(image.radiograph.values[0, 0])]
        if behaviour == "kills its process":
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        if behaviour == "raises":
            raise RuntimeError("out of memory")
        if behaviour.startswith("takes"):
            time.sleep({"takes a second": 1.0, "takes long": 30.0}[behaviour])
        return super().ground_lungs(image, instruction, lungs, seed=seed)


def _burdened(plain: Callable[..., Any], name: str, settings: dict[str, Any]) -> Callable[..., Any]:
    def call(*arguments: object, **named: object) -> object:
        time.sleep(settings["seconds_per_call"])
        left = Path(settings["crashes_left"])
        if name == settings["crash_at"] and (crashes := int(left.read_text())) > 0:
            left.write_text(str(crashes - 1))
            os._exit(137)
        return plain(*arguments, **named)

    return call
