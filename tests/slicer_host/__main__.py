"""``python -m tests.slicer_host [IMAGE]``: XFlowSlicer in a window, without 3D Slicer. Not for clinical use."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from tests.slicer_host.display import ensure_display


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slicer_host", description=__doc__)
    parser.add_argument(
        "image", nargs="?", type=Path, help="a radiograph (DICOM, PNG, NRRD, NIfTI) or a folder of DICOM files"
    )
    parser.add_argument("--module", default="XFlowSlicer", help="the module's folder in this project")
    parser.add_argument("--screenshot", type=Path, help="save a picture of the window and quit (needs no display)")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    missing = ensure_display(own=arguments.screenshot is not None)
    if missing is not None:
        print(f"No window can be opened: {missing}.", file=sys.stderr)
        return 1
    from qtpy import QtCore

    from tests.slicer_host import boot
    from tests.slicer_host.viewer import Viewer

    boot(qt=True)
    # As a user does in the module's Engine section: the Python that has XFlow is this one.
    settings = QtCore.QSettings()
    settings.setValue("XFlow/engine/engine", "this_computer")
    settings.setValue("XFlow/engine/python", sys.executable)
    viewer = Viewer(arguments.module)
    viewer.application.setTestingEnabled(False)
    viewer.show()
    if arguments.image is not None:
        viewer.load(arguments.image)
    if arguments.screenshot is not None:
        viewer.run_for(2)
        viewer.screenshot(arguments.screenshot)
    else:
        viewer.wait(lambda: not viewer.window.isVisible(), float("inf"))
        print(f"The longest event: {viewer.watch.longest_event}")
    viewer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
