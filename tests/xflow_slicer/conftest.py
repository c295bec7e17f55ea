"""Fixtures of the module's tests: a real MRML scene, the application, its window. See tests/slicer_host."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MODULE_FOLDER = Path(__file__).resolve().parents[2] / "XFlowSlicer"
_WITHOUT = "slicer-core is not installed (pip install slicer-core==5.12.4.0)"


# As Slicer does with the folder of every scripted module.
if str(MODULE_FOLDER) not in sys.path:
    sys.path.append(str(MODULE_FOLDER))


@pytest.fixture(scope="session")
def mrml() -> Any:
    """``slicer.app`` over a real MRML scene; no Qt, no display."""
    if importlib.util.find_spec("slicer_core") is None:
        pytest.skip(_WITHOUT)
    from tests.slicer_host import boot

    return boot()


@pytest.fixture
def scene(mrml: Any) -> Iterator[Any]:
    """The MRML scene, empty. An exception that an observer, slot or thread swallowed fails the test."""
    from tests.slicer_host import clear_faults, faults

    scene = mrml.mrmlScene()
    scene.Clear(0)
    clear_faults()
    yield scene
    scene.Clear(0)
    mrml.processEvents()
    found = faults()
    clear_faults()
    assert not found, "\n".join(str(fault) for fault in found)


@pytest.fixture(scope="session")
def application(mrml: Any) -> Any:
    """``slicer.app`` with Qt: one QApplication, on the display there is or on an Xvfb of the session's own."""
    if importlib.util.find_spec("PySide6") is None or importlib.util.find_spec("qtpy") is None:
        pytest.skip("PySide6 and qtpy are not installed (the slicer extra)")
    from tests.slicer_host import boot
    from tests.slicer_host.display import ensure_display

    missing = ensure_display()
    if missing is not None:
        pytest.skip(missing)
    return boot(qt=True)


@pytest.fixture
def slice_viewer(application: Any, scene: Any) -> Iterator[Any]:
    """A shown window with a slice view and no module."""
    yield from _shown(None, (900, 700))


@pytest.fixture
def viewer(application: Any, scene: Any) -> Iterator[Any]:
    """A shown window with the XFlowSlicer panel beside a slice view."""
    yield from _shown("XFlowSlicer", (1440, 980))


def _shown(module: str | None, size: tuple[int, int]) -> Iterator[Any]:
    from tests.slicer_host.viewer import Viewer

    window = Viewer(module, size)
    window.show()
    yield window
    window.close()


@pytest.fixture
def radiograph(scene: Any, rg1: Path) -> Any:
    """RG1 as Slicer's DICOM module loads it: the volume node knows its instance UIDs, the database its file."""
    import slicer
    from pydicom import dcmread

    slicer.dicomDatabase.initializeDatabase()
    slicer.dicomDatabase.insert(rg1)
    volume = slicer.util.loadVolume(str(rg1), {"singleFile": True})
    volume.SetAttribute("DICOM.instanceUIDs", str(dcmread(rg1, stop_before_pixels=True).SOPInstanceUID))
    return volume
