"""Boxes and clicks in a real MRML scene: where they belong, and what a drag reports."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

slicer = pytest.importorskip("slicer", reason="slicer-core is not installed")

from XFlowSlicerLib import marks as marks_module  # noqa: E402
from XFlowSlicerLib import nodes, volumes  # noqa: E402
from XFlowSlicerLib.marks import BOX, CLICKS, LABELS, Marks  # noqa: E402
from XFlowSlicerLib.steps import Picture, ShownBox, ShownClick  # noqa: E402

from tests.slicer_host import hands  # noqa: E402
from xflow_core.domain.geometry import Box, Point  # noqa: E402

SIZE = (40, 50)
LUNG = ShownBox("left lung", Box(0.5, 0.1, 0.9, 0.8), "lung", 0, editable=False)
LESION = ShownBox("effusion", Box(0.6, 0.5, 0.85, 0.75), "lesion", 0, component=0)
PLUS = ShownClick("positive", Point(0.7, 0.6), 0, 1, 4)
MINUS = ShownClick("negative", Point(0.65, 0.72), 0, 2, 6)


def picture(*shown: ShownBox | ShownClick) -> Picture:
    boxes = tuple(one for one in shown if isinstance(one, ShownBox))
    clicks = tuple(one for one in shown if isinstance(one, ShownClick))
    return Picture(boxes, clicks, None, "step", 3)


@pytest.fixture
def volume(scene: Any) -> Any:
    return slicer.util.addVolumeFromArray(np.zeros((1, *SIZE), np.int16), np.diag([-0.3, -0.2, 1.0, 1.0]), "chest")


@pytest.fixture
def marks(volume: Any) -> Iterator[Marks]:
    shown = Marks(volume, volumes.frame_of(volume))
    yield shown
    shown.clear()


def rois(volume: Any) -> list[Any]:
    found = nodes.find(volume, "vtkMRMLMarkupsROINode", BOX)
    return [node for node in found if node.GetDisplayNode().GetVisibility()]


def lists(volume: Any) -> tuple[Any, Any]:
    """The positive and the negative point list."""
    found = {node.GetName(): node for node in nodes.find(volume, "vtkMRMLMarkupsFiducialNode", CLICKS)}
    return found["positive clicks"], found["negative clicks"]


def dropped(node: Any) -> None:
    """The end of a drag, as the view tells it."""
    node.InvokeCustomModifiedEvent(node.PointEndInteractionEvent)


def corners_of(roi: Any) -> np.ndarray:
    return marks_module._corners(roi)


class TestWhatIsShown:
    def test_boxes_are_regions_of_interest_around_the_right_pixels(self, marks: Marks, volume: Any) -> None:
        marks.show(picture(LUNG, LESION))
        frame = volumes.frame_of(volume)
        for roi, shown in zip(rois(volume), (LUNG, LESION), strict=True):
            assert roi.GetName() == shown.name
            assert np.allclose(frame.box(corners_of(roi)).to_json(), shown.box.to_json())
            assert roi.GetLocked() != shown.editable
            assert roi.GetDisplayNode().GetHandlesInteractive() == shown.editable
            low, high = corners_of(roi).min(axis=0), corners_of(roi).max(axis=0)
            assert low[2] < 0.0 < high[2], "it straddles the slice"

    def test_a_box_is_named_beside_it_and_not_over_the_finding(self, marks: Marks, volume: Any) -> None:
        marks.show(picture(LUNG, LESION))
        frame = volumes.frame_of(volume)
        names = {}
        for node in nodes.find(volume, "vtkMRMLMarkupsFiducialNode", LABELS):
            assert node.GetLocked()
            for n in range(node.GetNumberOfControlPoints()):
                names[node.GetNthControlPointLabel(n)] = frame.xy(node.GetNthControlPointPosition(n))
        assert set(names) == {"left lung", "effusion"}
        assert names["left lung"][0] == pytest.approx(LUNG.box.x1) and names["left lung"][1] < LUNG.box.y1
        assert names["effusion"][0] == pytest.approx(LESION.box.x1) and names["effusion"][1] > LESION.box.y2
        assert not any(roi.GetDisplayNode().GetPropertiesLabelVisibility() for roi in rois(volume))

    def test_clicks_are_two_lists_that_differ_in_shape_and_colour(self, marks: Marks, volume: Any) -> None:
        marks.show(picture(PLUS, MINUS))
        frame = volumes.frame_of(volume)
        looks = set()
        for node, click, label in zip(lists(volume), (PLUS, MINUS), ("+1", "−2"), strict=True):
            assert node.GetNumberOfControlPoints() == 1
            assert np.allclose(node.GetNthControlPointPosition(0), frame.ras(click.point))
            assert node.GetNthControlPointLabel(0) == label
            looks.add((node.GetDisplayNode().GetGlyphType(), node.GetDisplayNode().GetSelectedColor()))
        assert len({glyph for glyph, _ in looks}) == len({colour for _, colour in looks}) == 2

    def test_of_several_components_clicks_say_whose_they_are(self, marks: Marks, volume: Any) -> None:
        other = ShownClick("positive", Point(0.2, 0.2), 1, 1, 9, editable=False)
        marks.show(picture(PLUS, other))
        positive, _ = lists(volume)
        assert [positive.GetNthControlPointLabel(n) for n in range(2)] == ["1: +1", "2: +1"]
        assert [positive.GetNthControlPointLocked(n) for n in range(2)] == [False, True]

    def test_the_next_picture_takes_the_place_of_the_last(self, marks: Marks, volume: Any, scene: Any) -> None:
        marks.show(picture(LUNG, LESION, PLUS))
        made = scene.GetNumberOfNodes()
        marks.show(picture(LESION, MINUS))
        assert [roi.GetName() for roi in rois(volume)] == ["effusion"]
        assert [node.GetNumberOfControlPoints() for node in lists(volume)] == [0, 1]
        marks.show(picture(LUNG, LESION, PLUS))
        assert [roi.GetName() for roi in rois(volume)] == ["left lung", "effusion"]
        assert scene.GetNumberOfNodes() == made, "nodes are moved, not made anew"

    def test_the_same_picture_again_changes_nothing(self, marks: Marks, volume: Any) -> None:
        marks.show(picture(LUNG, LESION, PLUS))
        seen = [node.GetMTime() for node in (*rois(volume), *lists(volume))]
        marks.show(picture(LUNG, LESION, PLUS))
        assert [node.GetMTime() for node in (*rois(volume), *lists(volume))] == seen

    def test_the_same_picture_again_takes_back_what_was_dragged_or_deleted(self, marks: Marks, volume: Any) -> None:
        marks.show(picture(LESION, PLUS))
        frame = volumes.frame_of(volume)
        rois(volume)[0].SetCenter(0.0, 0.0, 0.0)
        marks.show(picture(LESION, PLUS))
        assert np.allclose(frame.box(corners_of(rois(volume)[0])).to_json(), LESION.box.to_json())
        lists(volume)[0].SetNthControlPointPosition(0, 0.0, 0.0, 0.0)
        marks.show(picture(LESION, PLUS))
        assert np.allclose(lists(volume)[0].GetNthControlPointPosition(0), frame.ras(PLUS.point))
        volume.GetScene().RemoveNode(rois(volume)[0])
        volume.GetScene().RemoveNode(lists(volume)[1])
        marks.show(picture(LESION, PLUS))
        assert len(rois(volume)) == 1 and len(lists(volume)) == 2

    def test_the_user_can_neither_add_nor_delete_a_point_by_other_means(self, marks: Marks, volume: Any) -> None:
        marks.show(picture(PLUS, MINUS))
        for node in lists(volume):
            assert node.GetFixedNumberOfControlPoints()

    def test_the_next_click_of_the_user_goes_where_it_would_have_gone(
        self, marks: Marks, volume: Any, scene: Any
    ) -> None:
        theirs = scene.AddNewNodeByClass("vtkMRMLMarkupsFiducialNode", "mine")
        selection = scene.GetFirstNodeByClass("vtkMRMLSelectionNode")
        selection.SetActivePlaceNodeID(theirs.GetID())
        marks.show(picture(LESION, PLUS))
        assert selection.GetActivePlaceNodeID() == theirs.GetID()
        assert selection.GetActivePlaceNodeClassName() == "vtkMRMLMarkupsFiducialNode"

    def test_none_of_it_is_saved_or_offered_to_editors(
        self, marks: Marks, volume: Any, scene: Any, tmp_path: Path
    ) -> None:
        marks.show(picture(LUNG, LESION, PLUS))
        for node in (*rois(volume), *lists(volume)):
            assert node.GetHideFromEditors() and not node.GetSaveWithScene()
        assert scene.WriteToMRB(str(tmp_path / "scene.mrb"))
        scene.Clear(0)
        assert scene.ReadFromMRB(str(tmp_path / "scene.mrb"), True)
        assert scene.GetNumberOfNodesByClass("vtkMRMLMarkupsNode") == 0
        assert scene.GetNumberOfNodesByClass("vtkMRMLMarkupsDisplayNode") == 0

    def test_it_moves_with_the_volume(self, marks: Marks, volume: Any, scene: Any) -> None:
        transform = scene.AddNewNodeByClass("vtkMRMLTransformNode")
        volume.SetAndObserveTransformNodeID(transform.GetID())
        marks.show(picture(LESION, PLUS))
        assert all(node.GetParentTransformNode() is transform for node in (*rois(volume), *lists(volume)))
        volume.SetAndObserveTransformNodeID(None)
        marks.show(picture(LESION, PLUS))
        assert all(node.GetParentTransformNode() is None for node in (*rois(volume), *lists(volume)))

    def test_a_volume_moved_for_good_takes_its_marks_along(self, marks: Marks, volume: Any) -> None:
        marks.show(picture(LESION))
        volume.SetOrigin(5.0, 6.0, 7.0)
        marks.show(picture(LESION))
        frame = volumes.frame_of(volume)
        assert np.allclose(rois(volume)[0].GetCenter(), frame.roi(LESION.box).centre)
        assert rois(volume)[0].GetCenter()[2] == pytest.approx(7.0)


class TestADrag:
    def test_of_a_box_is_reported_when_it_ends(self, marks: Marks, volume: Any) -> None:
        told: list[tuple[ShownBox, Box]] = []
        marks.show(picture(LUNG, LESION), on_box=lambda shown, box: told.append((shown, box)))
        roi = rois(volume)[1]
        frame = volumes.frame_of(volume)
        roi.SetCenter(*(np.array(roi.GetCenter()) + frame.ras(Point(0.1, 0.05)) - frame.ras(Point(0.0, 0.0))))
        assert not told, "not for each move, and not for a change by a program"
        dropped(roi)
        ((shown, box),) = told
        assert shown is LESION
        assert np.allclose(box.to_json(), [0.7, 0.55, 0.95, 0.8])

    def test_of_a_click_is_reported_when_it_ends(self, marks: Marks, volume: Any) -> None:
        told: list[tuple[ShownClick, Point]] = []
        other = ShownClick("negative", Point(0.2, 0.3), 0, 3, 8)
        marks.show(picture(PLUS, MINUS, other), on_click=lambda shown, point: told.append((shown, point)))
        _, negative = lists(volume)
        negative.SetNthControlPointPosition(1, *volumes.frame_of(volume).ras(Point(0.4, 0.5)))
        assert not told
        dropped(negative)
        ((shown, point),) = told
        assert shown is other
        assert np.allclose(point.to_json(), [0.4, 0.5])

    def test_that_moves_nothing_reports_nothing(self, marks: Marks, volume: Any) -> None:
        told: list[object] = []
        marks.show(picture(LESION, PLUS), lambda *mark: told.append(mark), lambda *mark: told.append(mark))
        dropped(rois(volume)[0])
        dropped(lists(volume)[0])
        assert not told

    def test_out_of_the_image_is_cut_at_its_edge(self, marks: Marks, volume: Any) -> None:
        told: list[Box] = []
        marks.show(picture(LESION), on_box=lambda _, box: told.append(box))
        roi, frame = rois(volume)[0], volumes.frame_of(volume)
        roi.SetCenter(*(np.array(roi.GetCenter()) + frame.ras(Point(0.3, 0.0)) - frame.ras(Point(0.0, 0.0))))
        dropped(roi)
        assert np.allclose(told[0].to_json(), [0.9, 0.5, 1.0, 0.75])
        assert np.allclose(roi.GetCenter(), frame.roi(told[0]).centre), "and shown so"
        roi.SetCenter(*np.add(roi.GetCenter(), [0.0, 500.0, 30.0]))
        dropped(roi)
        assert np.allclose(told[1].to_json(), [0.9, 0.0, 1.0, 0.25]), "moved inside, with its size"
        assert roi.GetCenter()[2] == pytest.approx(0.0), "on the slice"

    def test_of_a_click_out_of_the_image_ends_at_its_edge(self, marks: Marks, volume: Any) -> None:
        told: list[Point] = []
        marks.show(picture(PLUS), on_click=lambda _, point: told.append(point))
        positive, frame = lists(volume)[0], volumes.frame_of(volume)
        positive.SetNthControlPointPosition(0, *np.add(frame.ras(Point(1.0, 0.5)), [-40.0, 0.0, 9.0]))
        dropped(positive)
        assert np.allclose(told[0].to_json(), [1.0, 0.5])
        assert np.allclose(positive.GetNthControlPointPosition(0), frame.ras(told[0]))

    def test_of_what_is_not_editable_is_taken_back(self, marks: Marks, volume: Any) -> None:
        told: list[object] = []
        locked = ShownClick("positive", Point(0.1, 0.1), 0, 1, 4, editable=False)
        marks.show(picture(LUNG, locked), lambda *mark: told.append(mark), lambda *mark: told.append(mark))
        rois(volume)[0].SetCenter(0.0, 0.0, 0.0)
        dropped(rois(volume)[0])
        lists(volume)[0].SetNthControlPointPosition(0, 0.0, 0.0, 0.0)
        dropped(lists(volume)[0])
        frame = volumes.frame_of(volume)
        assert not told
        assert np.allclose(rois(volume)[0].GetCenter(), frame.roi(LUNG.box).centre)
        assert np.allclose(lists(volume)[0].GetNthControlPointPosition(0), frame.ras(locked.point))

    def test_may_show_the_next_picture_at_once(self, marks: Marks, volume: Any) -> None:
        moved = ShownBox("effusion", Box(0.1, 0.1, 0.2, 0.2), "lesion", 0, component=0)
        marks.show(picture(LUNG, LESION), on_box=lambda *_: marks.show(picture(moved)))
        rois(volume)[1].SetCenter(-10.0, -5.0, 0.0)
        dropped(rois(volume)[1])
        assert [roi.GetName() for roi in rois(volume)] == ["effusion"]

    @pytest.mark.parametrize("flips", [(1, 1), (1, -1), (-1, 1), (-1, -1)])
    @pytest.mark.parametrize("turned", [False, True])
    def test_is_right_whatever_the_volumes_direction(self, scene: Any, flips: tuple[int, int], turned: bool) -> None:
        matrix = np.eye(4)
        columns, rows = [-0.3 * flips[0], 0.0, 0.0], [0.0, 0.0, -0.2 * flips[1]]
        matrix[:3, 0], matrix[:3, 1], matrix[:3, 2] = (
            (rows, columns, [0, 1, 0]) if turned else (columns, rows, [0, 1, 0])
        )
        volume = slicer.util.addVolumeFromArray(np.zeros((1, *SIZE), np.int16), matrix, "coronal")
        frame = volumes.frame_of(volume)
        marks = Marks(volume, frame)
        told: list[object] = []
        marks.show(picture(LESION, PLUS), lambda _, box: told.append(box), lambda _, point: told.append(point))
        roi, (positive, _) = rois(volume)[0], lists(volume)
        # To the patient's left is to the image's right, and inferior is down.
        roi.SetCenter(*np.add(roi.GetCenter(), [-0.5, 0.0, -0.4]))
        positive.SetNthControlPointPosition(0, *np.add(positive.GetNthControlPointPosition(0), [-0.5, 0.0, -0.4]))
        dropped(roi)
        dropped(positive)
        height, width = frame.size
        step = np.array([0.5 / frame.spacing_mm[1] / width, 0.4 / frame.spacing_mm[0] / height])
        assert np.allclose(told[0].to_json(), np.array(LESION.box.to_json()) + np.tile(step, 2))
        assert np.allclose(told[1].to_json(), np.array(PLUS.point.to_json()) + step)
        marks.clear()


class TestWhenNodesGo:
    def test_clear_leaves_nothing(self, scene: Any, volume: Any) -> None:
        before = scene.GetNumberOfNodes()
        marks = Marks(volume, volumes.frame_of(volume))
        marks.show(picture(LUNG, LESION, PLUS))
        marks.clear()
        assert scene.GetNumberOfNodes() == before
        kept = weakref.ref(marks)
        del marks
        gc.collect()
        assert kept() is None, "an observer would keep it"

    def test_clear_and_show_again(self, marks: Marks, volume: Any) -> None:
        marks.clear()
        marks.show(picture(LESION, PLUS))
        marks.clear()
        marks.show(picture(LESION, PLUS))
        assert len(rois(volume)) == 1

    def test_a_deleted_volume_takes_its_marks_along(self, scene: Any, marks: Marks, volume: Any) -> None:
        marks.show(picture(LUNG, LESION, PLUS))
        scene.RemoveNode(volume)
        assert scene.GetNumberOfNodesByClass("vtkMRMLMarkupsNode") == 0
        assert scene.GetNumberOfNodesByClass("vtkMRMLMarkupsDisplayNode") == 0
        marks.show(picture(LUNG))
        assert scene.GetNumberOfNodesByClass("vtkMRMLMarkupsNode") == 0

    def test_a_closed_scene_is_closed(self, scene: Any, marks: Marks) -> None:
        marks.show(picture(LUNG, LESION, PLUS))
        scene.Clear(0)
        marks.show(picture(LUNG))
        marks.clear()
        assert scene.GetNumberOfNodesByClass("vtkMRMLMarkupsNode") == 0

    def test_one_that_the_user_deletes_takes_its_display_along(self, scene: Any, marks: Marks, volume: Any) -> None:
        marks.show(picture(LUNG, LESION, PLUS))
        for node in slicer.util.getNodesByClass("vtkMRMLMarkupsNode"):
            scene.RemoveNode(node)
        assert scene.GetNumberOfNodesByClass("vtkMRMLMarkupsDisplayNode") == 0, "the views would still draw it"
        marks.show(picture(LESION))
        assert len(rois(volume)) == 1

    def test_the_users_markups_are_left_alone(self, scene: Any, marks: Marks) -> None:
        theirs = scene.AddNewNodeByClass("vtkMRMLMarkupsROINode", "effusion")
        marks.show(picture(LESION))
        marks.clear()
        assert nodes.alive(theirs)


class TestInASliceView:
    """Real drags: a mouse, a slice view with Slicer's displayable managers."""

    @pytest.fixture
    def shown(self, slice_viewer: Any) -> Any:
        noise = np.random.default_rng(0).integers(0, 1000, (1, 300, 320)).astype(np.int16)
        volume = slicer.util.addVolumeFromArray(noise, np.diag([0.5, -0.5, 1.0, 1.0]), "chest")
        slicer.util.setSliceViewerLayers(background=volume, fit=True)
        slice_viewer.run_for(0.1)
        marks = Marks(volume, volumes.frame_of(volume))
        yield slice_viewer, volume, marks
        marks.clear()

    def test_an_edge_a_corner_and_a_click_are_dragged(self, shown: Any) -> None:
        viewer, volume, marks = shown
        frame = volumes.frame_of(volume)
        told: list[Any] = []
        marks.show(picture(LUNG, LESION, PLUS, MINUS), lambda *mark: told.append(mark), lambda *mark: told.append(mark))
        viewer.run_for(0.1)

        def drag(start: tuple[float, float], end: tuple[float, float]) -> list[Any]:
            told.clear()
            hands.drag(viewer.slice, frame.ras(Point(*start)), frame.ras(Point(*end)))
            return list(told)

        near = {"atol": 0.01}  # a pixel of the screen or two
        ((box, moved),) = drag((0.85, 0.625), (0.95, 0.625))
        assert box is LESION and np.allclose(moved.to_json(), [0.6, 0.5, 0.95, 0.75], **near)
        assert (moved.x1, moved.y1, moved.y2) == (0.6, 0.5, 0.75), "the other sides stay exactly"
        ((box, moved),) = drag((0.6, 0.5), (0.5, 0.4))
        assert box is LESION and np.allclose(moved.to_json(), [0.5, 0.4, 0.95, 0.75], **near)
        ((click, point),) = drag((0.7, 0.6), (0.3, 0.2))
        assert click is PLUS and np.allclose(point.to_json(), [0.3, 0.2], **near)
        ((click, point),) = drag((0.65, 0.72), (0.65, 0.99))
        assert click is MINUS and np.allclose(point.to_json(), [0.65, 0.99], **near)
        assert drag((0.9, 0.2), (0.95, 0.2)) == [], "the lung's box is locked"

    def test_a_drag_may_be_followed_by_another_picture_at_once(self, shown: Any) -> None:
        viewer, volume, marks = shown
        frame = volumes.frame_of(volume)
        marks.show(picture(LUNG, LESION, PLUS), lambda *_: marks.show(picture(MINUS)))
        viewer.run_for(0.1)
        hands.drag(viewer.slice, frame.ras(Point(0.85, 0.625)), frame.ras(Point(0.95, 0.625)))
        viewer.run_for(0.1)
        assert rois(volume) == []
        marks.show(picture(LESION))
        viewer.run_for(0.1)
        assert np.allclose(frame.box(corners_of(rois(volume)[0])).to_json(), LESION.box.to_json())
