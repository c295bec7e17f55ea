"""A whole working session by real clicks and keys: the real engine, its compact models, a real radiograph (RG1)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def working(application: Any, tmp_path: Path) -> Iterator[Any]:
    import slicer

    from tests.slicer_host import clear_faults, faults
    from tests.slicer_host.viewer import Viewer
    from tests.xflow_slicer.working_panel import WorkingPanel, use_engine

    slicer.mrmlScene.Clear(0)
    slicer.dicomDatabase.initializeDatabase()
    clear_faults()
    use_engine()
    viewer = Viewer()
    viewer.show()
    clear_faults()
    yield WorkingPanel(viewer)
    viewer.close()
    slicer.mrmlScene.Clear(0)
    found = faults()
    clear_faults()
    assert not found, "\n".join(str(one) for one in found)


@pytest.fixture
def requests_made(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads in which a request was sent to the engine."""
    import requests

    plain, made = requests.Session.request, []

    def request(self: requests.Session, *arguments: Any, **named: Any) -> Any:
        made.append(threading.current_thread())
        return plain(self, *arguments, **named)

    monkeypatch.setattr(requests.Session, "request", request)
    return made


@pytest.mark.timeout(600)
def test_a_radiologist_asks_looks_corrects_saves_and_exports(
    working: Any, rg1: Path, tmp_path: Path, requests_made: list[threading.Thread], capsys: pytest.CaptureFixture[str]
) -> None:
    import slicer

    from tests.slicer_host import hands
    from tests.xflow_slicer.working_panel import nodes
    from xflow_core.domain.geometry import Point

    ui, view = working.ui, working.viewer.slice

    def ras(x: float, y: float) -> tuple[float, ...]:
        from XFlowSlicerLib import volumes

        return tuple(float(one) for one in volumes.frame_of(ui.volumeSelector.currentNode()).ras(Point(x, y)))

    # Load, and ask.
    volume = working.load(rg1)
    working.viewer.watch.reset()
    working.ask("Segment the opacity")
    assert working.steps()[0] == "Lungs" and working.steps()[-1] == "Result: opacity present"
    (results,) = nodes("vtkMRMLSegmentationNode", "results")
    assert results.GetSegmentation().GetNumberOfSegments() == 1

    # Step through.
    for _ in working.steps():
        working.key("[")
    assert working.presenter.step == 0
    for _ in working.steps():
        working.key("]")
    assert working.presenter.rows[-1].step == working.presenter.step

    # Drag a box, and replay from there.
    working.select("box in the left lung")
    box = next(b for b in working.presenter.picture.boxes if b.role == "lesion" and b.region == "left lung").box
    hands.drag(view, ras(box.x2, box.y2), ras(box.x2 - 0.03, box.y2 - 0.06))
    working.until(lambda: working.presenter.pending is not None, 10, "the edit to be staged")
    working.click("replayButton")
    working.finish()
    assert ui.branchCombo.count == 2 and any(row["by"] == "you" for row in working.rows())

    # Turn a verdict.
    working.select("Left lung: present")
    working.click("flipButton")
    working.key("Ctrl+Return")
    working.finish()
    assert "Left lung: absent" in working.steps() and ui.branchCombo.count == 3

    # Return to the branch with both lungs, and add a click.
    hands.choose(ui.branchCombo, ui.branchCombo.itemText(1))
    working.select("2: mask")
    hands.hover(view, ras(box.x1 + 0.02, box.y1 + 0.02))
    working.key("-")
    assert working.presenter.pending is not None, working.status
    working.key("Ctrl+Return")
    working.finish()
    assert any(row["sign"] == "⊟" and row["by"] == "you" for row in working.rows())

    # Edit the mask, and continue from it.
    segment = working.panel._segments.segment_of(working.presenter.trace)
    drawn = slicer.util.arrayFromSegmentBinaryLabelmap(results, segment, volume)
    drawn[0, 60:160, 60:160] = 1
    slicer.util.updateSegmentBinaryLabelmapFromArray(drawn, results, segment, volume)
    working.click("continueButton")
    working.finish()
    assert any("drawn" in step for step in working.steps()), working.status
    kept = slicer.util.arrayFromSegmentBinaryLabelmap(results, segment, volume)
    assert np.array_equal(kept, drawn), "what the user drew was changed"

    # Save the scene, close it, open it, and go on.
    before, branches = working.steps(), ui.branchCombo.count
    assert slicer.util.saveScene(str(tmp_path / "scene.mrb"))
    slicer.mrmlScene.Clear(0)
    assert working.rows() == []
    slicer.util.loadScene(str(tmp_path / "scene.mrb"))
    working.until(lambda: working.steps() == before, 30, "the steps to come back")
    assert ui.branchCombo.count == branches
    working.until(lambda: working.presenter.phase == "ready", 60, "the engine to have the image")
    working.select("Right lung: present")
    working.click("flipButton")
    working.click("replayButton")
    working.finish()
    assert "Right lung: absent" in working.steps()

    # Export.
    ui.exportSection.collapsed = False
    ui.exportFolderEdit.currentPath = str(tmp_path / "export")
    working.click("exportButton")
    working.until(lambda: ui.exportButton.enabled, 60, "the export to end")
    working.viewer.run_for(0.5)
    written = sorted(path.name for path in (tmp_path / "export").rglob("*") if path.is_file())
    assert {"sr.dcm", "pr.dcm"} <= set(written), (written, ui.exportLabel.text)
    assert not ui.exportLabel.text.startswith("⚠") or "spacing" in ui.exportLabel.text, ui.exportLabel.text

    # What held meanwhile.
    assert requests_made and threading.main_thread() not in requests_made
    with capsys.disabled():
        print(f"\nlongest event of the whole session: {working.viewer.watch.longest_event}")
    assert json.loads(working.presenter.to_json())["notice"] == "not for clinical use"
