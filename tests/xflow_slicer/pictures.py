"""The pictures of docs/slicer.md and the README, made anew in the host: ``python -m tests.xflow_slicer.pictures``.

The radiograph is RG1 of pydicom-data, the engine a real one with the compact bundle.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.xflow_slicer.pictures", description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    folder = parser.parse_args().folder
    from tests.slicer_host.display import ensure_display

    missing = ensure_display()
    if missing is not None:
        print(f"No picture was made: {missing}.", file=sys.stderr)
        return 1
    from tests.slicer_host import boot

    boot(qt=True)
    from tests.slicer_host.viewer import Viewer
    from tests.xflow_slicer.working_panel import WorkingPanel, use_engine

    use_engine()
    viewer = Viewer(size=(1280, 900))
    viewer.show()
    working = WorkingPanel(viewer)
    try:
        for name, (wide, picture) in session(working).items():
            save(working, folder / f"slicer-{name}.png", wide, picture)
    finally:
        viewer.close()
    return 0


def session(working: Any) -> dict[str, tuple[bool, Any]]:
    """What each picture shows: whether the slice view is in it, and what is done before it is taken."""
    from pydicom.data import get_testdata_file

    from tests.slicer_host import hands

    ui = working.ui

    def ras(x: float, y: float) -> tuple[float, ...]:
        from XFlowSlicerLib import volumes

        from xflow_core.domain.geometry import Point

        return tuple(float(one) for one in volumes.frame_of(ui.volumeSelector.currentNode()).ras(Point(x, y)))

    def answer() -> None:
        volume = working.load(Path(get_testdata_file("RG1_J2KI.dcm", download=False)))
        volume.SetName("RG1")
        working.viewer.slice.mrmlSliceNode().Modified()
        working.ask("Segment the opacity")

    def steps() -> None:
        working.select("3: box in the left lung")

    def edit() -> None:
        # The third opacity is rounder than its box: the box is drawn out to the opacity's own edge.
        box = [b for b in working.presenter.picture.boxes if b.role == "lesion"][2].box
        hands.drag(working.viewer.slice, ras(box.x1, box.y2), ras(box.x1 - 0.03, box.y2 + 0.005))
        working.until(lambda: working.presenter.pending is not None, 10, "the edit to be staged")

    def branch() -> None:
        working.click("replayButton")
        working.finish()
        working.select("1: mask")
        hands.hover(working.viewer.slice, ras(0.29, 0.3))  # aerated lung inside the mask
        working.key("-")
        working.key("Ctrl+Return")
        working.finish()
        working.select("1: mask after")

    def engine() -> None:
        ui.engineSection.collapsed = False
        working.viewer.run_for(0.3)
        working.click("testButton")
        working.until(lambda: "Device" in ui.engineLabel.text, 30, "the engine's answer")
        ui.pythonEdit.blockSignals(True)
        ui.pythonEdit.currentPath = ""  # the picture is not of this machine

    def export() -> None:
        ui.engineSection.collapsed = True
        ui.exportSection.collapsed = False
        ui.exportFolderEdit.currentPath = "results"

    return {
        "answer": (True, answer),
        "steps": (True, steps),
        "edit": (True, edit),
        "branch": (True, branch),
        "engine": (False, engine),
        "export": (False, export),
    }


def save(working: Any, path: Path, wide: bool, prepare: Any) -> None:
    """Take a picture of the window, or of one section of the panel; 256 colours are enough for it."""
    from PIL import Image

    prepare()
    working.viewer.run_for(0.5)
    if wide:
        working.viewer.screenshot(path)
    else:
        section = working.ui.engineSection if "engine" in path.name else working.ui.exportSection
        section.grab().save(str(path))
    with Image.open(path) as picture:
        shrunk(picture.convert("RGB")).save(path, optimize=True)


def shrunk(picture: Any) -> Any:
    """The picture in 256 colours: greys for the radiograph, what is frequent and what is rare of the coloured."""
    import numpy as np
    from PIL import Image

    pixels = np.asarray(picture).reshape(-1, 3)
    coloured = Image.fromarray(pixels[np.ptp(pixels, axis=1) > 6][None])
    greys = np.repeat(np.linspace(0, 255, 86).round().astype(np.uint8)[:, None], 3, axis=1)
    frequent = coloured.quantize(120, method=Image.Quantize.MEDIANCUT).getpalette()[: 3 * 120]
    rare = coloured.quantize(50, method=Image.Quantize.MAXCOVERAGE).getpalette()[: 3 * 50]
    palette = Image.new("P", (1, 1))
    palette.putpalette([*greys.reshape(-1).tolist(), *frequent, *rare])
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


if __name__ == "__main__":
    sys.exit(main())
