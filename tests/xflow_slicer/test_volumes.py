"""What the engine gets of a volume: the DICOM file itself, or pixels with what they mean; never a guess unsaid."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

slicer = pytest.importorskip("slicer", reason="slicer-core is not installed")

import SimpleITK as sitk  # noqa: E402
import vtk  # noqa: E402
from pydicom import dcmread  # noqa: E402
from vtk.util.numpy_support import numpy_to_vtk  # noqa: E402
from XFlowSlicerLib import volumes  # noqa: E402

from tests.xflow_slicer.radiographs import SIZE, dicom_file, loaded, pixels  # noqa: E402
from xflow_core.domain.errors import RadiographError, RadiographRefused, ValueRefused, XFlowError  # noqa: E402
from xflow_core.radiograph.reading import read_radiograph  # noqa: E402
from xflow_core.service.images import read_upload  # noqa: E402
from xflow_core.service.protocol import ArrayImage  # noqa: E402


def volume_of(array: np.ndarray, matrix: np.ndarray | None = None) -> Any:
    place = np.diag([-0.2, -0.2, 1.0, 1.0]) if matrix is None else matrix
    return slicer.util.addVolumeFromArray(array, place, "chest")


def picture_volume() -> Any:
    """The volume of a PNG as Slicer reads it: columns to the left, rows to posterior, 1 mm. slicer-core reads none."""
    return volume_of((pixels(SIZE) >> 4).astype(np.uint8)[np.newaxis], np.diag([-1.0, -1.0, 1.0, 1.0]))


def saved_by_itk(path: Path, values: np.ndarray, spacing: tuple[float, ...], direction: tuple[float, ...]) -> Any:
    image = sitk.GetImageFromArray(values)
    image.SetSpacing(spacing)
    image.SetDirection(direction)
    sitk.WriteImage(image, str(path))
    return slicer.util.loadVolume(str(path))


class TestAVolumeFromDicom:
    def test_is_sent_as_its_file(self, radiograph: Any, rg1: Path) -> None:
        image = volumes.engine_image(radiograph)
        assert isinstance(image.source, Path)
        assert image.source.samefile(rg1)
        assert image.frame.is_stored and image.frame.size == (1955, 1841)
        assert image.notes == ()
        assert volumes.source_file(radiograph) == image.source
        assert volumes.frame_of(radiograph) == image.frame

    def test_without_a_database_is_found_through_its_storage_node(self, scene: Any, rg1: Path) -> None:
        volume = slicer.util.loadVolume(str(rg1), {"singleFile": True})
        assert volumes.source_file(volume).samefile(rg1)

    def test_with_a_closed_database_is_found_through_its_storage_node(
        self, radiograph: Any, rg1: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(slicer.dicomDatabase, "isOpen", False)
        assert volumes.source_file(radiograph).samefile(rg1)

    def test_without_the_part_10_preamble_is_dicom_still(self, scene: Any, tmp_path: Path) -> None:
        path = dicom_file(tmp_path / "image.dcm")
        plain = tmp_path / "IM0001"
        plain.write_bytes(path.read_bytes()[132:])
        volume = loaded(path)
        volume.RemoveAttribute("DICOM.instanceUIDs")
        volume.GetStorageNode().SetFileName(str(plain))
        assert volumes.source_file(volume) == plain

    def test_whose_file_is_gone_is_sent_as_pixels_of_the_same_matrix(self, scene: Any, tmp_path: Path) -> None:
        path = dicom_file(tmp_path / "image.dcm")
        volume = loaded(path)
        before = volumes.frame_of(volume)
        path.unlink()
        image = volumes.engine_image(volume)
        assert isinstance(image.source, ArrayImage)
        assert np.array_equal(image.source.values, pixels(SIZE))
        assert image.frame == before
        assert "The DICOM file is not at hand" in image.notes[0]
        assert volumes.source_file(volume) is None

    @pytest.mark.parametrize("photometric", ["MONOCHROME2", "MONOCHROME1"])
    def test_whose_file_is_gone_is_never_inverted_twice(self, scene: Any, tmp_path: Path, photometric: str) -> None:
        """GDCM has inverted MONOCHROME1 while reading; the engine's own reading of the file says the same."""
        path = dicom_file(tmp_path / "image.dcm", PhotometricInterpretation=photometric)
        volume = loaded(path)
        by_file = read_radiograph(path).values
        path.unlink()
        image = volumes.engine_image(volume)
        by_pixels = image.source.values.astype(float) * (1 if image.source.dense_is_bright else -1)
        assert np.corrcoef(by_file.ravel(), by_pixels.ravel())[0, 1] > 0.999

    def test_that_was_cropped_is_sent_as_its_pixels(self, radiograph: Any) -> None:
        cropped = volume_of(slicer.util.arrayFromVolume(radiograph)[:, 100:900, 200:1000])
        cropped.SetAttribute("DICOM.instanceUIDs", radiograph.GetAttribute("DICOM.instanceUIDs"))
        image = volumes.engine_image(cropped)
        assert isinstance(image.source, ArrayImage) and image.source.values.shape == (800, 800)
        assert "not its DICOM file's whole image" in image.notes[0]

    def test_that_was_changed_is_sent_as_its_pixels(self, radiograph: Any) -> None:
        array = slicer.util.arrayFromVolume(radiograph)
        array[:] = array[:, :, ::-1].copy()
        slicer.util.arrayFromVolumeModified(radiograph)
        image = volumes.engine_image(radiograph)
        assert np.array_equal(image.source.values, array[0])
        assert "were changed after loading" in image.notes[0]

    def test_looked_at_and_renamed_was_not_changed(self, radiograph: Any) -> None:
        radiograph.SetName("PA")
        radiograph.CreateDefaultDisplayNodes()
        radiograph.GetDisplayNode().SetAutoWindowLevel(False)
        radiograph.GetDisplayNode().SetWindowLevel(1000, 500)
        radiograph.GetImageData().GetScalarRange()
        radiograph.SetSpacing(0.143, 0.143, 1.0)
        assert volumes.source_file(radiograph) is not None

    def test_of_another_image_in_the_database_is_not_taken(self, scene: Any, tmp_path: Path) -> None:
        volume = loaded(dicom_file(tmp_path / "one.dcm"))
        volume.SetAttribute("DICOM.instanceUIDs", "2.25.1 2.25.2")
        volume.GetStorageNode().ResetFileNameList()
        volume.GetStorageNode().SetFileName("")
        assert volumes.source_file(volume) is None

    def test_reopened_with_the_scene_finds_its_file_again(self, radiograph: Any, scene: Any, tmp_path: Path) -> None:
        before = volumes.engine_image(radiograph)
        name = radiograph.GetName()
        assert scene.WriteToMRB(str(tmp_path / "scene.mrb"))
        scene.Clear(0)
        assert scene.ReadFromMRB(str(tmp_path / "scene.mrb"), True)
        again = volumes.engine_image(slicer.util.getNode(name))
        assert (again.source, again.key, again.notes) == (before.source, before.key, ())


class TestPixels:
    def test_of_a_nifti_are_sent_the_way_they_are_seen(self, scene: Any, tmp_path: Path) -> None:
        """A NIfTI's columns often run to the patient's right: the view shows it mirrored against the array."""
        eye = pixels((30, 20)).astype(np.int16)
        flipped = np.ascontiguousarray(eye[np.newaxis, ::-1, ::-1])
        volume = saved_by_itk(tmp_path / "a.nii.gz", flipped, (0.3, 0.2, 1.0), (-1, 0, 0, 0, -1, 0, 0, 0, 1))
        image = volumes.engine_image(volume)
        assert np.array_equal(image.source.values, eye)
        assert np.array_equal(image.frame.to_image(slicer.util.arrayFromVolume(volume)), eye)
        assert any("turned back" in note for note in image.notes)

    def test_with_a_spacing_say_so_and_that_its_plane_is_unknown(self, scene: Any, tmp_path: Path) -> None:
        values = pixels((300, 200)).astype(np.int16)
        volume = saved_by_itk(tmp_path / "a.nrrd", values[np.newaxis], (0.3, 0.2, 1.0), tuple(np.eye(3).ravel()))
        image = volumes.engine_image(volume)
        assert image.source.spacing_mm == pytest.approx((0.2, 0.3))
        assert image.source.spacing_kind == "detector"
        assert any("uncalibrated" in note for note in image.notes)

    @pytest.mark.parametrize("spacing", [1.0, 20.0])
    def test_with_a_spacing_that_cannot_be_real_have_none(self, scene: Any, spacing: float) -> None:
        volume = volume_of(pixels((300, 200))[np.newaxis], np.diag([-spacing, -spacing, 1.0, 1.0]))
        image = volumes.engine_image(volume)
        assert (image.source.spacing_mm, image.source.spacing_kind) == (None, "none")
        assert any("spacing" in note for note in image.notes)

    def test_of_a_picture_file_have_no_spacing_whatever_it_says(self, scene: Any) -> None:
        volume = picture_volume()
        volume.SetSpacing(0.0847, 0.0847, 1.0)
        volume.AddDefaultStorageNode("chest.nrrd")
        volume.GetStorageNode().SetFileName("Chest.PNG")
        image = volumes.engine_image(volume)
        assert (image.source.spacing_mm, image.source.spacing_kind) == (None, "none")
        assert any("picture file" in note for note in image.notes)
        assert image.frame.is_stored

    def test_state_their_polarity_and_that_it_was_assumed(self, scene: Any) -> None:
        volume = picture_volume()
        image = volumes.engine_image(volume)
        assert image.source.dense_is_bright
        assert any("does not say its polarity" in note for note in image.notes)
        volumes.state_polarity(volume, False)
        stated = volumes.engine_image(volume)
        assert not stated.source.dense_is_bright
        assert stated.key != image.key
        assert any("stated by the user: dark where dense" in note for note in stated.notes)
        volumes.state_polarity(volume, None)
        assert volumes.engine_image(volume).key == image.key

    def test_do_not_depend_on_the_window_on_the_screen(self, scene: Any) -> None:
        volume = picture_volume()
        before = volumes.engine_image(volume)
        volume.CreateDefaultDisplayNodes()
        volume.GetDisplayNode().SetAutoWindowLevel(False)
        volume.GetDisplayNode().SetWindowLevel(7, 100)
        after = volumes.engine_image(volume)
        assert np.array_equal(before.source.values, after.source.values)
        assert before.key == after.key

    def test_are_a_copy(self, scene: Any) -> None:
        volume = picture_volume()
        image = volumes.engine_image(volume)
        slicer.util.arrayFromVolume(volume)[:] = 0
        assert image.source.values.any()
        slicer.util.arrayFromVolumeModified(volume)
        assert volumes.engine_image(volume).key != image.key

    @pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64"])
    def test_of_any_type_arrive_at_the_engine(self, scene: Any, dtype: str) -> None:
        values = (pixels((80, 64)) % 120).astype(dtype)
        image = volumes.engine_image(volume_of(values[np.newaxis]))
        arrived, _ = read_upload(image.source.to_bytes())
        assert np.array_equal(arrived.values, values.astype(np.float32))

    def test_of_64_bits_arrive_at_the_engine(self, scene: Any) -> None:
        """As an NRRD of 64-bit integers has them."""
        volume = volume_of(np.zeros((1, 80, 64), np.int32))
        values = pixels((80, 64)).astype(np.int64)
        scalars = numpy_to_vtk(values.ravel(), deep=1, array_type=vtk.VTK_LONG)
        volume.GetImageData().GetPointData().SetScalars(scalars)
        arrived, _ = read_upload(volumes.engine_image(volume).source.to_bytes())
        assert np.array_equal(arrived.values, values.astype(np.float32))

    def test_that_are_no_numbers_are_refused(self, scene: Any) -> None:
        values = np.ones((1, 8, 8), np.float32)
        values[0, 3, 3] = np.nan
        with pytest.raises(ValueRefused, match="NaN"):
            volumes.engine_image(volume_of(values))

    def test_keys_tell_nothing_of_the_file(self, radiograph: Any, scene: Any) -> None:
        for volume in (radiograph, picture_volume()):
            key = volumes.engine_image(volume).key
            assert len(key) == 16 and int(key, 16) >= 0


class TestWhatIsNoRadiograph:
    def test_is_refused_with_what_to_do(self, scene: Any) -> None:
        def labels() -> Any:
            return slicer.util.addVolumeFromArray(
                np.zeros((1, 5, 5), np.uint8), nodeClassName="vtkMRMLLabelMapVolumeNode"
            )

        def colour() -> Any:
            return slicer.util.addVolumeFromArray(
                np.zeros((1, 5, 5, 3), np.uint8), nodeClassName="vtkMRMLVectorVolumeNode"
            )

        def empty() -> Any:
            return scene.AddNewNodeByClass("vtkMRMLScalarVolumeNode")

        cases = (
            (lambda: volume_of(np.zeros((120, 64, 64), np.int16)), "120 slices.*choose a volume of one slice"),
            (lambda: volume_of(np.zeros((3, 64, 80), np.int16)), "3 slices"),
            (colour, "3 values a pixel.*Vector to Scalar Volume"),
            (labels, "label map.*choose the radiograph"),
            (empty, "empty; load the radiograph again"),
            (lambda: None, "No volume is chosen; load a frontal chest radiograph"),
            (lambda: scene.AddNewNodeByClass("vtkMRMLModelNode"), "No volume is chosen"),
        )
        for make, words in cases:
            node = make()
            for call in (volumes.engine_image, volumes.frame_of):
                with pytest.raises(RadiographError, match=words) as refused:
                    call(node)
                assert isinstance(refused.value, XFlowError)
                assert str(refused.value).count(".") == 1, "one sentence"

    def test_a_stack_of_two_views_says_how_to_load_them(self, scene: Any, tmp_path: Path) -> None:
        """PA and lateral of one size in one series: Slicer makes a volume of two slices."""
        uids = ("2.25.11", "2.25.12")
        for uid in uids:
            slicer.dicomDatabase.insert(dicom_file(tmp_path / f"{uid}.dcm", SOPInstanceUID=uid))
        stacked = volume_of(np.stack([pixels(SIZE)] * 2))
        stacked.SetAttribute("DICOM.instanceUIDs", " ".join(uids))
        with pytest.raises(RadiographRefused, match="stacks 2 radiographs of one series; load them one at a time"):
            volumes.engine_image(stacked)


class TestTheFrontalOfAStudy:
    @pytest.fixture
    def study(self, scene: Any, tmp_path: Path) -> Any:
        def make(**attributes: Any) -> Any:
            number = len(list(tmp_path.iterdir()))
            path = dicom_file(tmp_path / f"{number}.dcm", (23, 19), SOPInstanceUID=f"2.25.{number + 1}")
            made = dcmread(path)
            for name in ("ViewPosition", "PatientOrientation", "SeriesDescription"):
                if name in made:
                    delattr(made, name)
            for name, value in attributes.items():
                setattr(made, name, value)
            made.save_as(path)
            return loaded(path)

        return make

    @pytest.mark.parametrize("lateral", ["LL", "RL", "LATERAL"])
    @pytest.mark.parametrize("frontal", ["PA", "AP"])
    def test_is_chosen_by_its_view_position(self, study: Any, lateral: str, frontal: str) -> None:
        side, front = study(ViewPosition=lateral), study(ViewPosition=frontal)
        chosen, sentence = volumes.frontal_of([side, front])
        assert chosen is front
        assert sentence == f"Of 2 radiographs the one named {frontal} is used. Left out: lateral."

    def test_goes_pa_before_ap_before_unnamed(self, study: Any) -> None:
        unnamed, ap, pa = study(), study(ViewPosition="AP"), study(ViewPosition="PA")
        assert volumes.frontal_of([unnamed, ap, pa])[0] is pa
        assert volumes.frontal_of([unnamed, ap])[0] is ap
        both = [study(ViewPosition="PA"), pa]
        chosen, sentence = volumes.frontal_of(both)
        assert chosen is both[0] and "the first one named PA" in sentence

    def test_that_is_unnamed_is_what_is_left_beside_a_lateral(self, study: Any) -> None:
        side, unnamed = study(ViewPosition="LL"), study()
        chosen, sentence = volumes.frontal_of([side, unnamed])
        assert chosen is unnamed
        assert sentence == "The view is not named; check that it is the frontal one. Left out: lateral."

    def test_is_the_first_where_none_is_named_and_it_says_so(self, study: Any, scene: Any) -> None:
        some = [study(), study(), picture_volume()]
        chosen, sentence = volumes.frontal_of(some)
        assert chosen is some[0]
        assert sentence == "None of 3 radiographs names its view; the first is used: check that it is frontal."

    @pytest.mark.parametrize(
        ("named", "frontal"),
        [
            ({"SeriesDescription": "Chest lat"}, False),
            ({"SeriesDescription": "THORAX p.a."}, None),
            ({"SeriesDescription": "Chest PA"}, True),
            ({"SeriesDescription": "CHEST PA AND LATERAL"}, None),
            ({"PatientOrientation": ["A", "F"]}, False),
            ({"PatientOrientation": ["L", "F"]}, None),
            ({"ViewPosition": "LLD", "SeriesDescription": "left lateral decubitus"}, True),
            ({"ViewPosition": "RAO"}, False),
            ({"ViewPosition": "POSTERO_ANTERIOR"}, True),
        ],
    )
    def test_is_known_by_what_the_header_says(self, study: Any, named: dict[str, Any], frontal: bool | None) -> None:
        unnamed, volume = study(), study(**named)
        if frontal is False:
            with pytest.raises(RadiographRefused, match="load the frontal view"):
                volumes.frontal_of([volume])
            assert volumes.frontal_of([volume, unnamed])[0] is unnamed
        else:
            assert volumes.frontal_of([unnamed, volume])[0] is (volume if frontal else unnamed)

    def test_leaves_out_what_is_no_radiograph(self, study: Any, scene: Any) -> None:
        ct = volume_of(np.zeros((20, 8, 8), np.int16))
        pa = study(ViewPosition="PA")
        assert volumes.frontal_of([ct, pa]) == (pa, "The radiograph is named as PA.")
        with pytest.raises(RadiographRefused, match="There is no radiograph"):
            volumes.frontal_of([ct])
        with pytest.raises(RadiographRefused, match="There is no radiograph"):
            volumes.frontal_of([])

    def test_is_refused_when_all_are_laterals(self, study: Any) -> None:
        some = [study(ViewPosition="LL"), study(ViewPosition="RL")]
        with pytest.raises(RadiographRefused, match="All radiographs are named as 2 lateral; XFlow reads frontal ones"):
            volumes.frontal_of(some)

    def test_repeats_no_free_text_of_the_header(self, study: Any) -> None:
        volume = study(SeriesDescription="MILLER^ANNA chest PA")
        assert "MILLER" not in volumes.frontal_of([volume])[1]


def test_a_large_volume_does_not_stop_the_window(scene: Any, radiograph: Any) -> None:
    """3000 x 3000, flipped; and a DICOM file: each under 50 ms of this thread's own work."""
    flipped = volume_of(np.ones((1, 3000, 3000), np.int16), np.diag([0.14, 0.14, 1.0, 1.0]))

    def seconds(volume: Any) -> float:
        taken = []
        for _ in range(3):
            start = time.thread_time()
            volumes.engine_image(volume)
            taken.append(time.thread_time() - start)
        return min(taken)

    by_pixels, by_file = seconds(flipped), seconds(radiograph)
    print(f"pixels {by_pixels * 1e3:.0f} ms, file {by_file * 1e3:.0f} ms")
    assert max(by_pixels, by_file) < 0.05
