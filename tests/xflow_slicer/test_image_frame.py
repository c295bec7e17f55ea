"""The engine's image, the volume's array and the patient: one place in three frames, exactly."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from XFlowSlicerLib.image_frame import Along, ImageFrame

from xflow_core.domain.errors import RadiographRefused, ValueRefused, XFlowError
from xflow_core.domain.geometry import Box, Point


def matrix(columns: np.ndarray, rows: np.ndarray, thin: np.ndarray, origin: np.ndarray, thin_axis: int) -> np.ndarray:
    """A volume's matrix whose in-plane axes are, in order, ``columns`` and ``rows``."""
    place = np.eye(4)
    first, second = (axis for axis in range(3) if axis != thin_axis)
    place[:3, first], place[:3, second], place[:3, thin_axis] = columns, rows, thin
    place[:3, 3] = origin
    return place


def rotation(angles: tuple[float, float, float]) -> np.ndarray:
    turned = np.eye(3)
    for axis, angle in enumerate(angles):
        first, second = (other for other in range(3) if other != axis)
        step = np.eye(3)
        step[first, first] = step[second, second] = np.cos(angle)
        step[first, second], step[second, first] = -np.sin(angle), np.sin(angle)
        turned = step @ turned
    return turned


lengths = st.floats(0.05, 3.0)
places = st.floats(-500.0, 500.0)
angles = st.floats(-3.2, 3.2)


@st.composite
def volumes(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, int, int]]:
    """Any one-slice volume: any orientation, either hand, any spacing, any thin axis."""
    axes = rotation((draw(angles), draw(angles), draw(angles)))
    axes = axes[:, draw(st.permutations([0, 1, 2]))] * [draw(st.sampled_from([-1, 1])) for _ in range(3)]
    spacing = [draw(lengths) for _ in range(3)]
    place = np.eye(4)
    place[:3, :3] = axes * spacing
    place[:3, 3] = [draw(places) for _ in range(3)]
    dimensions = [draw(st.integers(1, 40)) for _ in range(3)]
    dimensions[draw(st.integers(0, 2))] = 1
    return place, (dimensions[0], dimensions[1], dimensions[2])


@st.composite
def frames(draw: st.DrawFn) -> ImageFrame:
    """Any frame of such a volume, also those that neither `stored` nor `shown` would choose."""
    place, dimensions = draw(volumes())
    thin = draw(st.sampled_from([axis for axis in range(3) if dimensions[axis] == 1]))
    column, row = draw(st.permutations([axis for axis in range(3) if axis != thin]))
    along = Along(column, draw(st.booleans())), Along(row, draw(st.booleans()))
    return ImageFrame(tuple(map(tuple, place)), dimensions, *along)


unit = st.floats(0.0, 1.0)


@st.composite
def boxes(draw: st.DrawFn, frame: ImageFrame) -> Box:
    """A box at least a pixel wide and high."""
    height, width = frame.size
    x1, y1 = draw(st.floats(0.0, 1.0 - 1.0 / width)), draw(st.floats(0.0, 1.0 - 1.0 / height))
    x2, y2 = draw(st.floats(x1 + 1.0 / width, 1.0)), draw(st.floats(y1 + 1.0 / height, 1.0))
    return Box(x1, y1, x2, y2)


class TestAnyFrame:
    @settings(deadline=None)
    @given(frames(), unit, unit)
    def test_brings_a_point_to_the_patient_and_back(self, frame: ImageFrame, x: float, y: float) -> None:
        ras = frame.ras(Point(x, y))
        assert np.allclose(frame.xy(ras), (x, y), atol=1e-9)
        assert np.allclose(frame.point(ras).to_json(), (x, y), atol=1e-9)
        assert frame.holds(ras)

    @settings(deadline=None)
    @given(frames(), st.data())
    def test_puts_a_pixel_on_the_voxel_that_holds_its_value(self, frame: ImageFrame, data: st.DataObject) -> None:
        height, width = frame.size
        row, column = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
        array = np.arange(np.prod(frame.dimensions)).reshape(frame.dimensions[::-1])
        value = frame.to_image(array)[row, column]
        (k,), (j,), (i,) = np.nonzero(array == value)
        there = np.array(frame.ijk_to_ras) @ (i, j, k, 1)
        assert np.allclose(frame.ras(Point.of_pixel(row, column, frame.size)), there[:3], atol=1e-6)

    @settings(deadline=None)
    @given(frames())
    def test_brings_an_array_to_the_image_and_back(self, frame: ImageFrame) -> None:
        array = np.arange(np.prod(frame.dimensions)).reshape(frame.dimensions[::-1])
        image = frame.to_image(array)
        assert image.shape == frame.size
        assert np.array_equal(frame.to_volume(image), array)
        assert np.shares_memory(image, array), "a view, not a copy"

    @settings(deadline=None)
    @given(frames(), st.data())
    def test_brings_a_part_to_its_block_and_back(self, frame: ImageFrame, data: st.DataObject) -> None:
        height, width = frame.size
        top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
        bottom, right = data.draw(st.integers(top + 1, height)), data.draw(st.integers(left + 1, width))
        image = np.arange(height * width).reshape(height, width)
        part = image[top:bottom, left:right]
        block, extent = frame.part_of_volume(part, top, left)
        i0, i1, j0, j1, k0, k1 = extent
        assert np.array_equal(frame.to_volume(image)[k0 : k1 + 1, j0 : j1 + 1, i0 : i1 + 1], block)
        again, its_top, its_left = frame.part_of_image(block, extent)
        assert (its_top, its_left) == (top, left)
        assert np.array_equal(again, part)

    @settings(deadline=None)
    @given(frames(), st.data())
    def test_brings_a_box_to_a_region_of_interest_and_back(self, frame: ImageFrame, data: st.DataObject) -> None:
        box = data.draw(boxes(frame))
        roi = frame.roi(box)
        assert np.allclose(roi.axes.T @ roi.axes, np.eye(3), atol=1e-9), "orthonormal"
        assert np.linalg.det(roi.axes) == pytest.approx(1.0), "a rotation, which a region of interest must have"
        assert (roi.size > 0).all()
        corners = np.array(list(product((-0.5, 0.5), repeat=3))) * roi.size @ roi.axes.T + roi.centre
        assert np.allclose(frame.box(corners).to_json(), box.to_json(), atol=1e-7)
        depths = np.linalg.solve(np.array(frame.ijk_to_ras), np.c_[corners, np.ones(8)].T)[frame.thin]
        assert depths.min() == pytest.approx(-1.0) and depths.max() == pytest.approx(1.0), "it straddles the slice"

    @settings(deadline=None)
    @given(frames(), st.lists(st.tuples(*[st.floats(-2000.0, 2000.0)] * 3), min_size=2, max_size=8))
    def test_cuts_whatever_is_dragged_to_a_box_inside(self, frame: ImageFrame, corners: list[tuple]) -> None:
        box = frame.box(np.array(corners))
        height, width = frame.size
        assert box.width * width >= 1.0 - 1e-6 and box.height * height >= 1.0 - 1e-6

    @settings(deadline=None)
    @given(frames(), st.tuples(*[st.floats(-2000.0, 2000.0)] * 3))
    def test_finds_the_nearest_point_of_a_place_outside(self, frame: ImageFrame, ras: tuple) -> None:
        x, y = frame.xy(ras)
        point = frame.point(ras)
        assert (point.x, point.y) == (min(max(x, 0.0), 1.0), min(max(y, 0.0), 1.0))
        assert frame.holds(ras) or (point.x, point.y) != (x, y)

    @settings(deadline=None)
    @given(frames())
    def test_knows_its_spacing(self, frame: ImageFrame) -> None:
        height, width = frame.size
        assume(height > 1 and width > 1)
        first = frame.ras(Point.of_pixel(0, 0, frame.size))
        row_mm = np.linalg.norm(frame.ras(Point.of_pixel(1, 0, frame.size)) - first)
        column_mm = np.linalg.norm(frame.ras(Point.of_pixel(0, 1, frame.size)) - first)
        assert frame.spacing_mm == pytest.approx((row_mm, column_mm))


class TestWhatIsShown:
    @settings(deadline=None)
    @given(volumes())
    def test_is_the_slice_views_way_up(self, volume: tuple[np.ndarray, tuple[int, int, int]]) -> None:
        place, dimensions = volume
        frame = ImageFrame.shown(place, dimensions)
        x0, y0 = frame.ras(Point(0.0, 0.0)), frame.ras(Point(1.0, 1.0))
        right, down = frame.ras(Point(1.0, 0.0)) - x0, frame.ras(Point(0.0, 1.0)) - x0
        normal = np.cross(right / np.linalg.norm(right), down / np.linalg.norm(down))
        plane = int(np.argmax(np.abs(normal)))
        assume(np.sort(np.abs(normal))[-2] < np.abs(normal)[plane] - 1e-3)
        screen = {0: ((0, -1, 0), (0, 0, -1)), 1: ((-1, 0, 0), (0, 0, -1)), 2: ((-1, 0, 0), (0, -1, 0))}[plane]
        fit = right @ screen[0] / np.linalg.norm(right) + down @ screen[1] / np.linalg.norm(down)
        swapped = down @ screen[0] / np.linalg.norm(down) + right @ screen[1] / np.linalg.norm(right)
        assert fit >= -1e-6 and fit >= swapped - 1e-5, "no other way of turning it is nearer"
        assert y0.shape == (3,)

    @pytest.mark.parametrize("thin_axis", [0, 1, 2])
    @pytest.mark.parametrize("swap", [False, True])
    @pytest.mark.parametrize("signs", list(product((1, -1), repeat=2)))
    @pytest.mark.parametrize(
        ("right", "down", "through"),
        [
            ((-1, 0, 0), (0, -1, 0), (0, 0, 1)),
            ((-1, 0, 0), (0, 0, -1), (0, 1, 0)),
            ((0, -1, 0), (0, 0, -1), (1, 0, 0)),
        ],
        ids=["axial", "coronal", "sagittal"],
    )
    def test_is_the_same_picture_however_the_volume_is_stored(
        self, right: tuple, down: tuple, through: tuple, signs: tuple[int, int], swap: bool, thin_axis: int
    ) -> None:
        """All eight orientations of the array, each of the three axes thin."""
        eye = np.arange(6 * 4).reshape(6, 4)  # rows down, columns to the right
        stored = eye[:: signs[1], :: signs[0]]
        columns = np.array(right) * 0.3 * signs[0]
        rows = np.array(down) * 0.2 * signs[1]
        if swap:
            stored, columns, rows = stored.T, rows, columns
        place = matrix(columns, rows, np.array(through) * 2.0, np.array([3.0, 4.0, 5.0]), thin_axis)
        array = np.expand_dims(stored, 2 - thin_axis)
        frame = ImageFrame.shown(place, array.shape[::-1])
        assert frame.size == (6, 4)
        assert np.array_equal(frame.to_image(array), eye)
        assert frame.spacing_mm == pytest.approx((0.2, 0.3))
        across = frame.ras(Point(1.0, 0.5)) - frame.ras(Point(0.0, 0.5))
        below = frame.ras(Point(0.5, 1.0)) - frame.ras(Point(0.5, 0.0))
        assert np.allclose(across, np.array(right) * 4 * 0.3)
        assert np.allclose(below, np.array(down) * 6 * 0.2)

    def test_is_what_slicers_slice_nodes_say(self) -> None:
        slicer = pytest.importorskip("slicer", reason="slicer-core is not installed")
        vtk = pytest.importorskip("vtk")
        for name, thin in (("Axial", (0, 0, 1)), ("Coronal", (0, 1, 0)), ("Sagittal", (1, 0, 0))):
            screen = vtk.vtkMatrix3x3()
            getattr(slicer.vtkMRMLSliceNode, f"Get{name}SliceToRASMatrix")(screen)
            right = np.array([screen.GetElement(row, 0) for row in range(3)])
            up = np.array([screen.GetElement(row, 1) for row in range(3)])
            in_plane = [np.eye(3)[axis] for axis in range(3) if not thin[axis]]
            frame = ImageFrame.shown(matrix(*in_plane, np.array(thin), np.zeros(3), 2), (5, 7, 1))
            across = frame.ras(Point(1.0, 0.0)) - frame.ras(Point(0.0, 0.0))
            below = frame.ras(Point(0.0, 1.0)) - frame.ras(Point(0.0, 0.0))
            assert across @ right > 0 and below @ up < 0, name

    def test_under_a_transform_is_what_is_seen_through_it(self) -> None:
        mirrored = np.diag([-1.0, 1.0, 1.0, 1.0])
        place = np.diag([-0.5, -0.5, 1.0, 1.0])
        assert ImageFrame.shown(place, (4, 6, 1)).is_stored
        seen = ImageFrame.shown(place, (4, 6, 1), mirrored)
        assert (seen.columns, seen.rows) == (Along(0, False), Along(1))
        assert seen.ijk_to_ras == ImageFrame.stored(place, (4, 6, 1)).ijk_to_ras, "places stay the volume's own"


def test_a_stored_matrix_is_taken_as_it_is() -> None:
    place = np.diag([0.2, 0.3, 1.0, 1.0])
    frame = ImageFrame.stored(place, (4, 6, 1))
    array = np.arange(24).reshape(1, 6, 4)
    assert np.array_equal(frame.to_image(array), array[0])
    assert frame.is_stored and frame.size == (6, 4) and frame.spacing_mm == pytest.approx((0.3, 0.2))
    assert np.allclose(frame.ras(Point.of_pixel(0, 0, (6, 4))), 0.0)


@pytest.mark.parametrize("dimensions", [(4, 5, 6), (512, 512, 120)])
def test_a_volume_of_several_slices_is_refused_with_what_to_do(dimensions: tuple[int, int, int]) -> None:
    for make in (ImageFrame.stored, ImageFrame.shown):
        with pytest.raises(
            RadiographRefused, match="slices, and XFlow reads single radiographs; choose a volume of one"
        ):
            make(np.eye(4), dimensions)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ijk_to_ras": np.zeros((4, 4)).tolist()},
        {"ijk_to_ras": np.eye(3).tolist()},
        {"ijk_to_ras": (np.eye(4) * np.nan).tolist()},
        {"ijk_to_ras": [[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]},
        {"dimensions": (0, 4, 1)},
        {"rows": Along(0)},
    ],
)
def test_a_frame_that_cannot_be_is_refused(wrong: dict) -> None:
    right = {"ijk_to_ras": np.eye(4).tolist(), "dimensions": (5, 4, 1), "columns": Along(0), "rows": Along(1)}
    ImageFrame(**right)
    with pytest.raises(XFlowError):
        ImageFrame(**{**right, **wrong})


def test_an_image_of_another_size_is_refused() -> None:
    frame = ImageFrame.stored(np.eye(4), (5, 4, 1))
    for call in (
        lambda: frame.to_image(np.zeros((1, 5, 4))),
        lambda: frame.to_volume(np.zeros((5, 4))),
        lambda: frame.part_of_volume(np.zeros((2, 2)), 3, 4),
        lambda: Along(3),
    ):
        with pytest.raises(ValueRefused):
            call()


@settings(max_examples=20, deadline=None)
@given(st.floats(1e-6, 1e6))
def test_no_spacing_is_too_small_or_too_large(spacing: float) -> None:
    frame = ImageFrame.shown(np.diag([-spacing, -spacing, spacing, 1.0]), (30, 20, 1))
    assert np.allclose(frame.point(frame.ras(Point(0.3, 0.7))).to_json(), (0.3, 0.7))


def test_equal_frames_are_equal() -> None:
    frames = [ImageFrame.stored(np.diag([x, 1.0, 1.0, 1.0]), (3, 3, 1)) for x in (1.0, 1.0, 2.0)]
    assert frames[0] == frames[1] != frames[2]
    assert len(set(frames)) == 2
