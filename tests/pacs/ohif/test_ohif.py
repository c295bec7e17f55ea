"""A real viewer: OHIF, in headless Chromium over Orthanc, opens the stored SEG on a DX and draws it in its place."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from pacs.conftest import radiograph_of
from pacs.ohif.viewer import viewer
from pacs.servers import Orthanc
from PIL import Image
from pydicom.uid import DigitalXRayImageStorageForPresentation, generate_uid

HERE = Path(__file__).parent
OHIF = Path(os.environ.get("XFLOW_OHIF", HERE.parents[2] / "build" / "ohif"))
COLOURED = 40
"""How far apart the channels of a pixel lie that is not grey, of 255."""


@pytest.fixture(scope="module")
def browser() -> tuple[str, str]:
    """Node and Chromium."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed (Debian: nodejs)")
    found = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
    if not found:
        pytest.skip("Chromium is not installed (Debian: chromium)")
    if not (OHIF / "app" / "dist" / "index.html").is_file():
        pytest.skip(f"OHIF is not at {OHIF} (tests/pacs/ohif/get.sh {OHIF}, or set XFLOW_OHIF)")
    return node, found[0]


@pytest.mark.timeout(900)
def test_ohif_shows_the_segmentation_of_a_dx_in_its_place(
    browser: tuple[str, str], orthanc: Orthanc, rg1: Path, tmp_path: Path, xflow
) -> None:
    """Case C32."""
    study, image = generate_uid(), generate_uid()
    # OHIF divides by RG1's own Pixel Spacing of zero and shows nothing.
    digital = {
        "SOPClassUID": DigitalXRayImageStorageForPresentation,
        "Modality": "DX",
        "ImagerPixelSpacing": [0.2, 0.2],
    }
    orthanc.put(radiograph_of(rg1, study, SOPInstanceUID=image, PixelSpacing=None, **digital))
    out = tmp_path / "out"
    asked = ("--study", study, "-i", "Segment the opacity", "--store", "-o", out)
    ended = xflow("segment", "--dicomweb", orthanc.url, *asked)
    assert (ended.status, ended.err) == (0, "")
    mask = np.asarray(Image.open(out / image / "opacity" / "mask.png")) > 0

    node, chromium = browser
    picture = tmp_path / "ohif.png"
    with viewer(orthanc, OHIF / "app" / "dist") as server:
        address = f"{server.site}/segmentation?StudyInstanceUIDs={study}"
        command = [node, HERE / "show.mjs", OHIF / "playwright-core", chromium, address, picture]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout.splitlines()[-1])
    assert len(seen["segments"]) == 1
    assert seen["segments"][0].startswith("Opacity")

    expected, drawn = _on_the_picture(mask, seen, picture)
    assert expected.any()
    overlap = np.count_nonzero(expected & drawn) / np.count_nonzero(expected | drawn)
    assert overlap > 0.98, "the viewer draws the mask elsewhere"


def _on_the_picture(mask: np.ndarray, seen: dict, picture: Path) -> tuple[np.ndarray, np.ndarray]:
    """Where the mask belongs on the viewer's picture, and what is coloured there: bool arrays of the image's part."""
    pixels = np.asarray(Image.open(picture).convert("RGB")).astype(int)
    (left, top), (right, bottom) = seen["first"], seen["last"]
    rows, columns = np.arange(int(top) + 1, int(bottom)), np.arange(int(left) + 1, int(right))
    y = np.rint((rows + 0.5 - top) / (bottom - top) * (mask.shape[0] - 1)).astype(int)
    x = np.rint((columns + 0.5 - left) / (right - left) * (mask.shape[1] - 1)).astype(int)
    part = pixels[np.ix_(rows, columns)]
    return mask[np.ix_(y, x)], part.max(axis=2) - part.min(axis=2) > COLOURED
