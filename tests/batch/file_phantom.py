"""The phantom of ``tests/phantom.py`` as an installed backend that reads files, and fails as real ones do.

Worker processes find it as any other package's backend: by an entry point. A picture says by its first pixel how the
engine behaves at it (see :func:`picture`)."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from phantom import LESION, PhantomParts, phantom
from PIL import Image

from xflow_core.bundles.manifest import Bundle
from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import GroundedLung
from xflow_core.policies.protocols import Decision
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import Radiograph
from xflow_core.workflow.engine import Engine

FINDINGS = ("opacity", "effusion", "cardiomegaly")
BEHAVIOURS = ("answers", "kills its process", "raises", "takes a second", "takes long")
SEEN_VARIABLE = "XFLOW_TEST_SEEN"


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


class FilePhantom(PhantomParts):
    """The phantom's parts over 8-bit pictures. Each image that it is asked about leaves a line in the file that
    ``XFLOW_TEST_SEEN`` names, so that a test can say what was computed."""

    def _bright(self, image: EncodedRadiograph) -> np.ndarray:
        def encode(radiograph: Radiograph) -> np.ndarray:
            return radiograph.values > LESION * 255

        return image.feature("phantom.bright", encode)

    def ground_lungs(
        self, image: EncodedRadiograph, instruction: Instruction, lungs: Sequence[str], *, seed: int
    ) -> Decision[tuple[GroundedLung, ...]]:
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


def load(bundle: Bundle, device: str) -> Engine:
    parts = FilePhantom()
    return Engine(bundle.identity, bundle.findings, init_policy=parts, revision_policy=parts, segmenter=parts)


def install(folder: Path) -> Path:
    """An entry point for the backend in ``folder``, which has to be on the path, and a bundle; gives the bundle."""
    info = folder / "file_phantom-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: file-phantom\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[xflow.backends]\nphantom = batch.file_phantom:load\n")
    bundle = folder / "phantom"
    write_bundle(bundle)
    return bundle


def write_bundle(folder: Path, version: str = "1") -> None:
    folder.mkdir(exist_ok=True)
    weights = b"no weights"
    (folder / "weights.safetensors").write_bytes(weights)
    manifest = {
        "schema": "xflow.bundle/1",
        "name": "phantom",
        "version": version,
        "backend": "phantom",
        "findings": list(FINDINGS),
        "files": {"weights.safetensors": hashlib.sha256(weights).hexdigest()},
        "notice": "not for clinical use",
    }
    (folder / "bundle.json").write_text(json.dumps(manifest))
