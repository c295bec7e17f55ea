"""The panel in the viewer, by clicks and keys; behind it a real engine process with the tests' phantom models."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from phantom_backend import phantom_bundle

DISCS = ((0.25, 0.5, 12), (0.7, 0.3, 9), (0.75, 0.7, 10))
SENTENCE = "Segment the opacity"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return phantom_bundle(tmp_path_factory.mktemp("phantom"))


class Shared:
    """One viewer for many tests, with an engine that lives on between them. There is one viewer at a time."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._open: Any = None

    def panel(self) -> Any:
        from tests.slicer_host.viewer import Viewer
        from tests.xflow_slicer.working_panel import WorkingPanel, use_engine

        if self._open is None:
            use_engine(self._environment, "phantom")
            viewer = Viewer()
            viewer.show()
            self._open = WorkingPanel(viewer)
        return self._open

    def close(self) -> None:
        if self._open is not None:
            self._open.viewer.close()
            self._open = None


@pytest.fixture(scope="module")
def shared(application: Any, environment: dict[str, str]) -> Iterator[Shared]:
    one = Shared(environment)
    yield one
    one.close()


@pytest.fixture
def clean(application: Any) -> Iterator[None]:
    """An empty scene; whatever a slot, observer or thread swallowed fails the test."""
    import slicer

    from tests.slicer_host import clear_faults, faults

    slicer.mrmlScene.Clear(0)
    clear_faults()
    yield
    slicer.mrmlScene.Clear(0)
    slicer.app.processEvents()
    found = faults()
    clear_faults()
    assert not found, "\n".join(str(one) for one in found)


@pytest.fixture
def working(clean: None, shared: Shared) -> Any:
    """The panel with an empty scene."""
    working = shared.panel()
    working.ui.questionEdit.clear()
    working.viewer.run_for(0.05)
    return working


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    from tests.xflow_slicer.working_panel import write_volume

    return write_volume(tmp_path / "phantom.nrrd", DISCS)


@pytest.fixture
def asked(working: Any, picture: Path) -> Any:
    """The panel after one question and its answer."""
    working.load(picture)
    working.ask(SENTENCE)
    return working


@pytest.fixture
def another(clean: None, shared: Shared, environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens a panel with an engine of its own kind, and closes it."""
    from tests.slicer_host.viewer import Viewer
    from tests.xflow_slicer.working_panel import WorkingPanel, use_engine

    shared.close()
    opened = []

    def opening(bundle: str = "phantom", python: str = sys.executable, **behaviour: Any) -> Any:
        (tmp_path / "own").mkdir(exist_ok=True)
        own = phantom_bundle(tmp_path / "own", **behaviour) if behaviour else environment
        use_engine(own, bundle, python)
        viewer = Viewer()
        viewer.show()
        opened.append(viewer)
        return WorkingPanel(viewer)

    yield opening
    for viewer in opened:
        viewer.close()


def ras(working: Any, x: float, y: float) -> tuple[float, float, float]:
    """The place of a normalised image point in the slice view."""
    from XFlowSlicerLib import volumes

    from xflow_core.domain.geometry import Point

    return tuple(float(one) for one in volumes.frame_of(working.ui.volumeSelector.currentNode()).ras(Point(x, y)))


def segments_of(working: Any) -> list[str]:
    """The names of the result segments in the scene."""
    from tests.xflow_slicer.working_panel import nodes

    found = nodes("vtkMRMLSegmentationNode", "results")
    if not found:
        return []
    segmentation = found[0].GetSegmentation()
    return [segmentation.GetNthSegment(n).GetName() for n in range(segmentation.GetNumberOfSegments())]


def shown_rois() -> int:
    from tests.xflow_slicer.working_panel import nodes

    return sum(bool(node.GetDisplayNode().GetVisibility()) for node in nodes("vtkMRMLMarkupsROINode"))


def lateral_copy(source: Path, path: Path) -> Path:
    """A radiograph as another one of its study, whose header calls it lateral."""
    from pydicom import dcmread
    from pydicom.uid import generate_uid

    lateral = dcmread(source)
    lateral.ViewPosition = "LL"
    lateral.SOPInstanceUID, lateral.SeriesInstanceUID = generate_uid(), generate_uid()
    lateral.file_meta.MediaStorageSOPInstanceUID = lateral.SOPInstanceUID
    lateral.save_as(path)
    return path


class TestAsking:
    def test_how_the_words_are_understood_stands_there_before_anything_runs(self, working: Any) -> None:
        working.type_question("plueral efusion, LLL")
        assert "effusion, patient's left lung base" in working.ui.understoodLabel.text
        assert "plueral" in working.ui.understoodLabel.text
        working.type_question("Segment the pneumothorax")
        assert "cardiomegaly" in working.ui.understoodLabel.text
        assert not working.ui.askButton.enabled

    def test_chips_and_the_region_write_the_sentence(self, working: Any) -> None:
        from tests.slicer_host import hands

        working.click("effusionChip")
        assert working.ui.questionEdit.text == "Segment the effusion"
        hands.choose(working.ui.regionCombo, "left lung")
        assert working.ui.questionEdit.text == "Segment the effusion in the left lung"
        working.click("opacityChip")
        assert "the opacity and the effusion in the left lung" in working.ui.questionEdit.text
        working.click("effusionChip")
        working.click("opacityChip")
        assert working.ui.questionEdit.text == ""

    def test_chips_and_the_region_follow_what_is_typed(self, working: Any) -> None:
        working.type_question("RLL consolidation")
        assert working.ui.consolidationChip.checked and not working.ui.effusionChip.checked
        assert working.ui.regionCombo.currentText == "right lung base"

    def test_a_half_typed_word_is_completed(self, working: Any) -> None:
        from tests.slicer_host import hands

        working.type_question("effu")
        popup = working.ui.questionEdit.completer().popup()
        working.until(popup.isVisible, 5, "the list of suggestions")
        hands.key(popup, "Down")
        hands.key(popup, "Return")
        assert working.ui.questionEdit.text == "effusion"

    def test_enter_runs_and_the_steps_come_one_by_one(self, asked: Any) -> None:
        steps = asked.steps()
        assert steps, (asked.status, asked.presenter.phase, asked.presenter.engine)
        assert steps[0] == "Lungs" and steps[-1] == "Result: opacity present"
        assert any("present" in step for step in steps[1:3])
        assert segments_of(asked) == ["Opacity"] or len(segments_of(asked)) == 1
        assert "Opacity is present" in asked.status

    def test_each_row_says_what_it_changed_and_who_decided_it(self, asked: Any) -> None:
        rows = asked.rows()
        assert all(row["by"] == "model" for row in rows)
        mask = next(row for row in rows if "mask" in row["step"])
        assert int(mask["area"].replace(",", "")) > 100 and 0 < float(mask["iou"]) <= 1
        verdict = next(row for row in rows if row["step"].endswith(": present"))
        assert verdict["confidence"]
        assert rows[0]["time"].endswith("s")

    def test_a_survey_asks_for_all_seven(self, working: Any, picture: Path) -> None:
        working.load(picture)
        working.click("surveyButton")
        working.finish()
        assert working.ui.answerCombo.count == 7

    def test_keys_that_are_typed_into_the_question_do_nothing_else(self, asked: Any) -> None:
        before = asked.presenter.step
        asked.type_question("[[+-")
        assert asked.ui.questionEdit.text == "[[+-"
        assert asked.presenter.step == before and asked.presenter.pending is None


class TestSteps:
    def test_brackets_step_through_the_image_as_it_stood(self, asked: Any) -> None:
        from tests.xflow_slicer.working_panel import nodes

        last = asked.presenter.step
        asked.key("[")
        assert asked.presenter.step == last - 1
        while asked.presenter.step:
            asked.key("[")
        assert shown_rois() == 2  # the lungs
        (preview,) = nodes("vtkMRMLSegmentationNode", "preview")
        assert preview.GetDisplayNode().GetVisibility()
        while asked.presenter.step < last:
            asked.key("]")
        assert not preview.GetDisplayNode().GetVisibility()

    def test_a_click_or_an_arrow_in_the_table_selects_the_step(self, asked: Any) -> None:
        from tests.slicer_host import hands

        row = asked.select("box in the left lung")
        assert asked.presenter.rows[row].kind == "boxes"
        hands.key(asked.ui.stepsTable, "Down")
        assert asked.presenter.rows[row + 1].step == asked.presenter.step

    def test_boxes_are_not_shown_over_another_image_and_a_step_brings_the_radiograph_back(
        self, asked: Any, tmp_path: Path
    ) -> None:
        from tests.xflow_slicer.working_panel import nodes, write_volume

        radiograph = asked.ui.volumeSelector.currentNode()
        boxes = [node for node in nodes("vtkMRMLMarkupsROINode") if node.GetDisplayNode().GetVisibility()]
        assert boxes
        asked.viewer.load(write_volume(tmp_path / "other.nrrd", DISCS[:1]))
        asked.until(lambda: "another image" in asked.status, 5, "the panel to say so")
        asked.settle()
        assert nodes("vtkMRMLMarkupsROINode") == []
        assert asked.ui.volumeSelector.currentNode() is radiograph
        asked.select("Lungs")
        asked.until(lambda: nodes("vtkMRMLMarkupsROINode"), 5, "the boxes to come back")
        assert "another image" not in asked.status

    def test_the_panel_fits_a_narrow_window(self, asked: Any) -> None:
        from qtpy import QtWidgets

        asked.ui.exportSection.collapsed = asked.ui.engineSection.collapsed = False
        asked.viewer.run_for(0.1)
        narrow = asked.ui.stepsTable.fontMetrics().averageCharWidth() * 55
        root = asked.ui.noticeLabel.parentWidget()
        width = QtWidgets.QWidget.minimumSizeHint(root).width()
        assert width <= narrow, f"{width} of {narrow} px: Slicer's module panel does not scroll sideways"
        asked.ui.exportSection.collapsed = asked.ui.engineSection.collapsed = True

    def test_leaving_the_module_leaves_the_results_alone_in_view(self, asked: Any) -> None:
        from tests.xflow_slicer.working_panel import nodes

        asked.select("Lungs")
        asked.viewer.panel.exit()
        assert not nodes("vtkMRMLMarkupsROINode") or shown_rois() == 0
        assert not any(n.GetDisplayNode().GetVisibility() for n in nodes("vtkMRMLSegmentationNode", "preview"))
        asked.viewer.panel.enter()
        asked.settle()
        assert shown_rois() == 2


class TestEditing:
    def test_a_dragged_box_waits_to_be_replayed_and_the_old_branch_stays(self, asked: Any) -> None:
        from tests.slicer_host import hands

        asked.select("box in the left lung")
        box = next(b for b in asked.presenter.picture.boxes if b.role == "lesion" and b.region == "left lung").box
        corner, outer = ras(asked, box.x2, box.y2), ras(asked, box.x2 + 0.05, box.y2 + 0.05)
        hands.drag(asked.viewer.slice, corner, outer)
        asked.until(lambda: asked.presenter.pending is not None, 5, "the edit to be staged")
        assert "moved" in asked.ui.pendingLabel.text
        asked.click("replayButton")
        asked.finish()
        assert asked.ui.branchCombo.count == 2 and asked.ui.branchCombo.currentIndex == 1
        assert any(row["by"] == "you" for row in asked.rows())
        hands.choose(asked.ui.branchCombo, asked.ui.branchCombo.itemText(0))
        assert all(row["by"] == "model" for row in asked.rows())

    def test_a_flipped_verdict_is_replayed(self, asked: Any) -> None:
        asked.select("Left lung: present")
        asked.click("flipButton")
        assert "left lung turned to absent" in asked.ui.pendingLabel.text.lower()
        asked.select("Right lung: ")
        if "present" in asked.rows()[asked.ui.stepsTable.currentRow()]["step"]:
            asked.click("flipButton")
        asked.key("Ctrl+Return")
        asked.finish()
        assert asked.steps()[-1] == "Result: opacity absent"
        assert segments_of(asked) == []

    def test_discarding_an_edit_changes_nothing(self, asked: Any) -> None:
        before = asked.rows()
        asked.select("Left lung: present")
        asked.click("flipButton")
        assert asked.shown("pendingFrame")
        asked.click("discardButton")
        assert not asked.shown("pendingFrame") and asked.rows() == before

    @pytest.mark.parametrize(("key", "sign"), [("+", "⊕"), ("-", "⊟")])
    def test_plus_and_minus_click_where_the_mouse_is(self, asked: Any, key: str, sign: str) -> None:
        from tests.slicer_host import hands

        asked.select("mask")
        hands.hover(asked.viewer.slice, ras(asked, 0.7, 0.34))
        asked.key(key)
        assert asked.presenter.pending is not None, asked.status
        point = asked.presenter.pending.step.click.point
        assert abs(point.x - 0.7) < 0.01 and abs(point.y - 0.34) < 0.01
        asked.key("Ctrl+Return")
        asked.finish()
        mine = [row for row in asked.rows() if row["by"] == "you"]
        assert [row["sign"] for row in mine if row["sign"]] == [sign]

    def test_a_key_with_the_mouse_elsewhere_says_what_to_do(self, asked: Any) -> None:
        from tests.slicer_host import hands

        asked.select("mask")
        hands.hover(asked.viewer.slice, ras(asked, 0.7, 0.34))
        hands.click(asked.ui.noticeLabel)
        hands.key(asked.ui.stepsTable, "+")
        assert asked.presenter.pending is not None or "mouse" in asked.status

    def test_the_button_awaits_one_click_in_the_image(self, asked: Any) -> None:
        from tests.slicer_host import hands

        asked.select("mask")
        assert asked.ui.addPositiveButton.enabled, (asked.presenter.offers, asked.presenter.step, asked.status)
        asked.click("addPositiveButton")
        assert "Click in the image" in asked.status
        hands.click_at(asked.viewer.slice, ras(asked, 0.72, 0.3))
        asked.until(lambda: asked.presenter.pending is not None, 5, "the click to be staged")
        assert not asked.ui.addPositiveButton.checked

    def test_escape_ends_the_awaiting(self, asked: Any) -> None:
        from tests.slicer_host import hands

        asked.select("mask")
        asked.click("addNegativeButton")
        asked.key("Esc")
        assert not asked.ui.addNegativeButton.checked
        hands.click_at(asked.viewer.slice, ras(asked, 0.72, 0.3))
        assert asked.presenter.pending is None

    def test_a_click_can_be_deleted(self, asked: Any) -> None:
        from tests.slicer_host import hands

        row = asked.select("click 1")
        hands.key(asked.ui.stepsTable, "Del")
        assert asked.presenter.pending is not None and "deleted" in asked.ui.pendingLabel.text
        asked.click("replayButton")
        asked.finish()
        assert row < len(asked.rows()) and asked.presenter.trace.result is not None

    def test_what_the_user_drew_goes_on(self, asked: Any) -> None:
        import slicer

        from tests.xflow_slicer.working_panel import nodes

        (node,) = nodes("vtkMRMLSegmentationNode", "results")
        volume = asked.ui.volumeSelector.currentNode()
        segment = node.GetSegmentation().GetNthSegmentID(0)
        drawn = slicer.util.arrayFromSegmentBinaryLabelmap(node, segment, volume)
        drawn[0, 90:110, 60:80] = 1
        slicer.util.updateSegmentBinaryLabelmapFromArray(drawn, node, segment, volume)
        edited = int(drawn.sum())
        asked.ui.reviseCheck.checked = False
        asked.click("continueButton")
        asked.finish()
        asked.ui.reviseCheck.checked = True
        assert any("drawn" in step for step in asked.steps()), asked.status
        after = slicer.util.arrayFromSegmentBinaryLabelmap(node, segment, volume)
        assert int(after.sum()) == edited, "what the user drew was changed"

    def test_an_answer_as_it_was_drawn_is_not_gone_on_from(self, asked: Any) -> None:
        asked.click("continueButton")
        assert "as XFlow drew it" in asked.status

    def test_results_are_taken_back_and_put_back_by_name(self, asked: Any) -> None:
        assert asked.ui.undoButton.toolTip.startswith("Undo: ")
        asked.click("undoButton")
        assert segments_of(asked) == [] and "Taken back" in asked.status
        asked.click("redoButton")
        assert len(segments_of(asked)) == 1


class TestCancelling:
    def test_cancel_stops_before_the_next_step_and_try_again_goes_on(
        self, another: Callable[..., Any], picture: Path
    ) -> None:
        working = another(seconds_per_call=0.4)
        working.load(picture)
        working.type_question(SENTENCE)
        working.enter()
        working.until(lambda: len(working.rows()) >= 1, 30, "the first step")
        working.click("cancelButton")
        working.finish(20)
        cut = working.steps()
        assert not any(step.startswith("Result") for step in cut) and "Cancelled" in working.status
        working.until(lambda: working.shown("tryAgainButton"), 10, "the engine to have stopped")
        working.click("tryAgainButton")
        working.finish()
        assert working.steps()[: len(cut)] == cut and working.steps()[-1].startswith("Result")

    def test_escape_cancels(self, another: Callable[..., Any], picture: Path) -> None:
        working = another(seconds_per_call=0.4)
        working.load(picture)
        working.type_question(SENTENCE)
        working.enter()
        working.until(lambda: len(working.rows()) >= 1, 30, "the first step")
        working.key("Esc")
        working.finish(20)
        assert "Cancelled" in working.status


class TestTheScene:
    def test_closing_the_scene_in_the_middle_of_a_run(self, another: Callable[..., Any], picture: Path) -> None:
        import slicer

        working = another(seconds_per_call=0.3)
        working.load(picture)
        working.type_question(SENTENCE)
        working.enter()
        working.until(lambda: len(working.rows()) >= 1, 30, "the first step")
        slicer.mrmlScene.Clear(0)
        working.viewer.run_for(1.5)
        assert working.rows() == [] and working.presenter.phase == "no_image"
        assert working.ui.volumeSelector.currentNode() is None

    def test_deleting_the_radiograph_in_the_middle_of_a_run(self, another: Callable[..., Any], picture: Path) -> None:
        import slicer

        from tests.xflow_slicer.working_panel import nodes

        working = another(seconds_per_call=0.3)
        volume = working.load(picture)
        working.type_question(SENTENCE)
        working.enter()
        working.until(lambda: len(working.rows()) >= 1, 30, "the first step")
        slicer.mrmlScene.RemoveNode(volume)
        working.viewer.run_for(1.0)
        assert working.presenter.phase == "no_image" and nodes("vtkMRMLMarkupsROINode") == []

    def test_another_radiograph_in_the_middle_of_a_run(self, another: Callable[..., Any], tmp_path: Path) -> None:
        from tests.xflow_slicer.working_panel import write_volume

        working = another(seconds_per_call=0.3)
        first = working.load(write_volume(tmp_path / "first.nrrd", DISCS))
        working.type_question(SENTENCE)
        working.enter()
        working.until(lambda: len(working.rows()) >= 1, 30, "the first step")
        second = working.viewer.load(write_volume(tmp_path / "second.nrrd", DISCS[:1]))
        working.ui.volumeSelector.setCurrentNode(second)
        assert working.rows() == []
        working.until(lambda: working.presenter.phase == "ready", 30, "the other image to be there")
        working.ask(SENTENCE)
        assert working.steps()[-1].startswith("Result")
        assert working.ui.volumeSelector.currentNode() is second and first is not second

    def test_a_scene_that_was_saved_goes_on_where_it_was(self, asked: Any, tmp_path: Path) -> None:
        import slicer

        before = asked.steps()
        path = tmp_path / "scene.mrb"
        assert slicer.util.saveScene(str(path))
        slicer.mrmlScene.Clear(0)
        assert asked.rows() == []
        slicer.util.loadScene(str(path))
        asked.until(lambda: asked.steps() == before, 20, "the steps to come back")
        assert len(segments_of(asked)) == 1
        asked.until(lambda: asked.presenter.phase == "ready", 30, "the engine to have the image")
        asked.select("Left lung: present")
        asked.click("flipButton")
        asked.click("replayButton")
        asked.finish()
        assert asked.ui.branchCombo.count == 2

    def test_of_a_study_the_frontal_view_is_chosen_and_it_says_so(
        self, working: Any, rg1: Path, tmp_path: Path
    ) -> None:
        working.viewer.load(lateral_copy(rg1, tmp_path / "lateral.dcm"))
        frontal = working.viewer.load(rg1)
        working.until(lambda: working.ui.volumeSelector.currentNode() is not None, 10, "a view to be chosen")
        assert working.ui.volumeSelector.currentNode() is frontal
        assert "frontal" in working.status.lower() or "PA" in working.status


class TestBadInput:
    def count(self) -> int:
        import slicer

        return slicer.mrmlScene.GetNumberOfNodes()

    def add(self, values: np.ndarray, kind: str = "vtkMRMLScalarVolumeNode") -> Any:
        import slicer

        volume = slicer.mrmlScene.AddNewNodeByClass(kind, "Volume")
        slicer.util.updateVolumeFromArray(volume, values)
        volume.CreateDefaultDisplayNodes()
        return volume

    @pytest.mark.parametrize(
        ("values", "kind", "said"),
        [
            (np.zeros((40, 64, 64), np.int16), "vtkMRMLScalarVolumeNode", "slices"),
            (np.zeros((1, 64, 64, 3), np.uint8), "vtkMRMLVectorVolumeNode", "colour"),
        ],
        ids=["a 3D CT", "a colour photo"],
    )
    def test_what_is_no_radiograph_is_said_and_the_scene_is_as_it_was(
        self, working: Any, values: np.ndarray, kind: str, said: str
    ) -> None:
        volume = self.add(values, kind)
        before = self.count()
        working.ui.volumeSelector.setCurrentNode(volume)
        working.viewer.run_for(0.3)
        assert said in working.ui.imageLabel.text.lower(), working.ui.imageLabel.text
        working.type_question(SENTENCE)
        working.enter()
        assert not working.ui.askButton.enabled and working.rows() == []
        assert self.count() == before

    def test_an_image_that_the_guards_refuse_is_said_so_before_anything_runs_and_can_be_asked_all_the_same(
        self, working: Any, rg1: Path, tmp_path: Path
    ) -> None:
        volume = working.viewer.load(lateral_copy(rg1, tmp_path / "lateral.dcm"))
        working.until(lambda: "lateral" in working.status, 10, "the view to be named")
        working.ui.volumeSelector.setCurrentNode(volume)
        working.until(lambda: working.shown("acceptCheck"), 30, "the guards' word")
        assert "lateral" in working.ui.warningLabel.text
        working.ask(SENTENCE)
        assert "refused" in working.steps()[-1].lower() and segments_of(working) == []
        working.click("acceptCheck")
        working.ask(SENTENCE)
        trace = working.presenter.trace  # the phantom's models are asked, and have no answer about a real radiograph
        assert trace.result.status != "refused" and any("lateral" in warning for warning in trace.image.warnings)

    def test_an_empty_scene_says_what_to_do(self, working: Any) -> None:
        working.type_question(SENTENCE)
        working.enter()
        assert "radiograph" in working.status

    def test_no_engine_says_what_to_do(self, another: Callable[..., Any], picture: Path) -> None:
        working = another(python="/nowhere/bin/python")
        working.load(picture)
        before = self.count()
        working.type_question(SENTENCE)
        working.enter()
        working.finish()
        assert "/nowhere/bin/python" in working.status and self.count() == before
        assert not working.ui.engineSection.collapsed

    def test_an_engine_that_dies_again_and_again_is_given_up_with_a_sentence(
        self, another: Callable[..., Any], picture: Path
    ) -> None:
        import slicer

        working = another(crash_at="localise", crashes=50)
        working.load(picture)
        before = set(slicer.util.getNodesByClass("vtkMRMLNode"))
        working.type_question(SENTENCE)
        working.enter()
        working.finish(120)
        assert "lost" in working.status and "log" in working.status
        assert working.steps()[0] == "Lungs", "what was decided stays"
        assert working.shown("tryAgainButton") and segments_of(working) == []
        kept = [node for node in slicer.util.getNodesByClass("vtkMRMLNode") if node.GetSaveWithScene()]
        kept = [node for node in kept if not node.IsA("vtkMRMLSubjectHierarchyNode")]  # Slicer's own, made when needed
        assert set(kept) <= before, "the scene that would be saved is as it was"

    def test_an_engine_that_dies_once_is_not_even_noticed(self, another: Callable[..., Any], picture: Path) -> None:
        working = another(crash_at="localise", crashes=1)
        working.load(picture)
        working.ask(SENTENCE, 90)
        assert working.steps()[-1] == "Result: opacity present"

    def test_a_folder_that_cannot_be_written(self, asked: Any, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        asked.ui.exportSection.collapsed = False
        asked.ui.exportFolderEdit.currentPath = str(tmp_path / "file" / "out")
        asked.click("exportButton")
        asked.until(lambda: asked.ui.exportButton.enabled, 20, "the export to end")
        assert asked.ui.exportLabel.text.startswith("⚠"), asked.ui.exportLabel.text


class TestPolarity:
    def test_pixels_without_a_file_can_be_said_to_be_inverted(self, asked: Any) -> None:
        assert asked.shown("darkBoneCheck")
        before = asked.presenter.image_key
        asked.click("darkBoneCheck")
        asked.until(lambda: asked.presenter.phase == "ready", 30, "the other image to be sent")
        assert asked.presenter.image_key != before and asked.rows() == []
        assert asked.ui.darkBoneCheck.checked


class TestExport:
    def test_the_answers_are_written_to_a_new_folder(self, asked: Any, tmp_path: Path) -> None:
        asked.ui.exportSection.collapsed = False
        asked.ui.exportFolderEdit.currentPath = str(tmp_path / "out")
        asked.click("exportButton")
        asked.until(lambda: asked.ui.exportButton.enabled, 30, "the export to end")
        assert list((tmp_path / "out").rglob("mask.png")), asked.ui.exportLabel.text


class TestLife:
    def test_settings_are_remembered(self, another: Callable[..., Any]) -> None:
        import qt

        first = another()
        first.ui.engineSection.collapsed = False
        first.ui.deviceCombo.setCurrentIndex(1)
        first.ui.placeCombo.setCurrentIndex(2)
        first.ui.urlEdit.text = "http://127.0.0.1:9"
        first.ui.tokenEdit.text = "secret-token"
        first.ui.urlEdit.setFocus()
        first.ui.questionEdit.setFocus()
        first.viewer.run_for(0.1)
        kept = {key: qt.QSettings().value(key) for key in qt.QSettings().allKeys()}
        assert kept["XFlow/engine/engine"] == "server" and kept["XFlow/engine/url"] == "http://127.0.0.1:9"
        assert not any("secret-token" in str(value) for value in kept.values())

    def test_nothing_runs_before_a_radiograph_is_there(self, another: Callable[..., Any]) -> None:
        working = another()
        working.viewer.run_for(0.5)
        assert working.presenter.engine.stage == "none"

    def test_taking_the_module_down_ends_its_engine_and_threads(
        self, another: Callable[..., Any], picture: Path
    ) -> None:
        before = set(threading.enumerate())
        working = another()
        working.load(picture)
        engine = working.panel._work._engine.pid
        began = time.perf_counter()
        working.viewer.panel.cleanup()
        assert time.perf_counter() - began < 0.5
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline and (_alive(engine) or set(threading.enumerate()) - before):
            time.sleep(0.05)
        assert not _alive(engine)
        assert not [t.name for t in set(threading.enumerate()) - before if t.name.startswith("XFlow")]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_no_request_is_made_in_the_user_interface_s_thread(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import requests

    plain, made = requests.Session.request, []

    def request(self: requests.Session, *arguments: Any, **named: Any) -> Any:
        made.append(threading.current_thread())
        return plain(self, *arguments, **named)

    monkeypatch.setattr(requests.Session, "request", request)
    asked.ask("Segment the effusion")
    asked.select("Left lung")
    asked.click("flipButton")
    asked.click("replayButton")
    asked.click("cancelButton") if asked.ui.cancelButton.enabled else None
    asked.finish()
    assert made and threading.main_thread() not in made
