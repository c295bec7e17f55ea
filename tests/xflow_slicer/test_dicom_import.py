"""What comes back into the scene: segmentations of radiographs, XFlow's and others', reports, and PNG masks."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import highdicom as hd
import numpy as np
import pydicom
import pytest
from export.dicom_answers import CHEST_SOURCES, answer, consolidation, disc, effusion, no_pneumonia
from export.dicom_headers import IN_SPACE, blob, header
from PIL import Image
from pydicom.sr.codedict import codes
from pydicom.uid import CTImageStorage, generate_uid

from xflow_core.domain.codes import FINDING_CODES
from xflow_core.domain.errors import ExportError
from xflow_core.domain.trace import ResultStep, Trace
from xflow_core.export import write_result
from xflow_core.export.dicom import write_dicom
from xflow_core.export.dicom_source import SourceInstance, read_source

slicer = pytest.importorskip("slicer", reason="slicer-core is not installed")
vtk = pytest.importorskip("vtk")

from XFlowSlicerLib import dicom_import, record, terminology, volumes  # noqa: E402
from XFlowSlicerLib.history import History, Version, session_json  # noqa: E402
from XFlowSlicerLib.segments import RadiographSegments  # noqa: E402

from tests.xflow_slicer.radiographs import SIZE, dicom_file, loaded, masks_of, picture, pixels, segment  # noqa: E402

DETECTOR = {"ImagerPixelSpacing": [0.2, 0.3]}


@pytest.fixture
def database(scene: Any) -> Any:
    slicer.dicomDatabase.initializeDatabase()
    return slicer.dicomDatabase


@pytest.fixture
def cr(database: Any, tmp_path: Path) -> Any:
    """A CR in the scene and in the database, of pixels that are not square."""
    return loaded(dicom_file(tmp_path / "cr.dcm", **DETECTOR))


def source_of(tmp_path: Path) -> SourceInstance:
    return read_source(tmp_path / "cr.dcm")


def exported(folder: Path, source: SourceInstance, *traces: Trace, geometry: str = "none") -> Path:
    """A call's DICOM results, in the database; the folder."""
    for path in write_dicom(folder, traces, source, geometry=geometry).paths:
        slicer.dicomDatabase.insert(str(path))
    return folder


def foreign(
    path: Path,
    source: pydicom.Dataset | list[pydicom.Dataset],
    array: np.ndarray,
    kind: str = "BINARY",
    **options: Any,
) -> Path:
    """A SEG as another program writes it: ``array`` is ``[images, H, W]``, or with segments last."""
    labels = options.pop("labels", ("Nodule",))
    descriptions = [
        hd.seg.SegmentDescription(
            number,
            label,
            codes.SCT.MorphologicallyAbnormalStructure,
            codes.SCT.Nodule,
            "MANUAL",
            anatomic_regions=[codes.SCT.Lung],
            display_color=hd.color.CIELabColor.from_rgb(10, 200, 30),
        )
        for number, label in enumerate(labels, start=1)
    ]
    images = source if isinstance(source, list) else [source]
    uids = generate_uid(), generate_uid()
    made = hd.seg.Segmentation(
        images, array, kind, descriptions, uids[0], 1, uids[1], 1, "Another", "Another", "1", "1",
        series_description="Manual reading", **options,
    )  # fmt: skip
    made.save_as(path)
    return path


def number_of_nodes() -> int:
    return slicer.mrmlScene.GetNumberOfNodes()


# XFlow's own segmentations.


@pytest.mark.parametrize("geometry", ["none", "synthetic"])
def test_an_exported_segmentation_lies_exactly_where_it_lay(geometry: str, cr: Any, tmp_path: Path) -> None:
    source = source_of(tmp_path)
    traces = (effusion(source), consolidation(source))
    folder = exported(tmp_path / "out", source, *traces, geometry=geometry)
    (node,) = dicom_import.load_segmentation(folder / "seg.dcm")
    found = masks_of(node, cr)
    assert list(found) == ["Effusion, left lung", "Consolidation, right upper zone lung, left upper zone lung"]
    for mask, trace in zip(found.values(), traces, strict=True):
        assert np.array_equal(mask[0], trace.last(ResultStep).mask.array)
    made = segment(node, "Effusion, left lung")
    assert made.GetTerminology() == terminology.entry("effusion", ("left lung",))
    assert terminology.finding_of(segment(node, list(found)[1])) == "consolidation"
    assert np.allclose(made.GetColor(), np.array(FINDING_CODES["effusion"].colour) / 255, atol=0.01)
    assert node.GetAttribute("XFlow.role") == "imported"
    assert node.GetDescription().startswith("AI result, not reviewed; not for clinical use.")


@pytest.mark.parametrize("name", CHEST_SOURCES)
def test_every_radiograph_of_the_pack_gets_its_segmentation_back(
    name: str, database: Any, pack: Path, tmp_path: Path
) -> None:
    path = pack / "dicom" / name
    volume = loaded(path)
    source = read_source(path)
    mask = disc(source.size, 0.7, 0.8, 0.05)
    mask[0, 0] = mask[-1, -1] = True
    folder = exported(tmp_path, source, answer(source, "effusion", ("left lung",), mask=mask, level="lung"))
    (node,) = dicom_import.load_segmentation(folder / "seg.dcm")
    (found,) = masks_of(node, volume).values()
    assert np.array_equal(found[0], mask)


def test_a_radiograph_that_lies_in_space_keeps_its_pixels_too(database: Any, tmp_path: Path) -> None:
    volume = loaded(dicom_file(tmp_path / "cr.dcm", **IN_SPACE))
    source = source_of(tmp_path)
    folder = exported(tmp_path / "out", source, effusion(source))
    (node,) = dicom_import.load_segmentation(folder / "seg.dcm")
    (found,) = masks_of(node, volume).values()
    assert np.array_equal(found[0], effusion(source).last(ResultStep).mask.array)


def test_what_the_report_states_as_absent_is_seen_after_loading(cr: Any, tmp_path: Path) -> None:
    source = source_of(tmp_path)
    folder = exported(tmp_path / "out", source, effusion(source), no_pneumonia(source))
    (node,) = dicom_import.load_segmentation(folder / "seg.dcm")
    absent = "Absent: effusion (right lung); pneumonia (right lung, left lung)."
    assert absent in node.GetDescription()
    assert list(masks_of(node, cr)) == ["Effusion, left lung"]  # and no empty segment for what is absent
    (text,) = slicer.util.getNodesByClass("vtkMRMLTextNode")
    assert "Pneumonia is absent in both lungs (right lung 0.90)." in text.GetText().splitlines()
    assert "AI result, not reviewed; not for clinical use." in text.GetText()
    assert text.GetDescription() == absent
    assert dicom_import.load_report(folder / "sr.dcm") is text  # once in the scene


def test_a_report_without_a_segmentation_is_loaded_by_itself(cr: Any, tmp_path: Path) -> None:
    source = source_of(tmp_path)
    folder = exported(tmp_path / "out", source, no_pneumonia(source))
    node = dicom_import.load_report(folder / "sr.dcm")
    assert node.GetText().splitlines()[-1] == "Absent: pneumonia (right lung, left lung)."
    assert "not for clinical use" in node.GetName()
    with pytest.raises(ExportError, match=r"^cr\.dcm is not a DICOM report of XFlow\.$"):
        dicom_import.load_report(tmp_path / "cr.dcm")


# Others' segmentations.


@pytest.mark.parametrize("kind", ["BINARY", "FRACTIONAL", "LABELMAP"])
def test_other_writers_segmentations_are_loaded_in_every_type(kind: str, cr: Any, tmp_path: Path) -> None:
    mask = blob(SIZE, 1)
    array = mask[None].astype(np.float32 if kind == "FRACTIONAL" else np.uint8)
    path = foreign(tmp_path / "seg.dcm", header(SIZE, **DETECTOR), array, kind)
    (node,) = dicom_import.load_segmentation(path)
    assert node.GetName() == "Manual reading"
    assert np.array_equal(masks_of(node, cr)["Nodule"][0], mask)
    made = segment(node, "Nodule")
    entry = slicer.vtkSlicerTerminologyEntry()
    logic = slicer.modules.terminologies.logic()
    assert logic.DeserializeTerminologyEntry(made.GetTerminology(), entry)
    assert entry.GetTypeObject().GetCodeValue() == "27925004"
    assert entry.GetAnatomicRegionObject().GetCodeMeaning() == "Lung"
    if kind != "LABELMAP":
        assert np.allclose(made.GetColor(), np.array([10, 200, 30]) / 255, atol=0.01)
    tag = vtk.reference("")
    assert made.GetTag("DICOM.SegmentAlgorithmType", tag)
    assert str(tag) == "MANUAL"


def test_overlapping_segments_stay_whole(cr: Any, tmp_path: Path) -> None:
    array = np.stack([blob(SIZE, 1), blob(SIZE, 2), np.ones(SIZE, bool)], axis=-1)[None]
    path = foreign(tmp_path / "seg.dcm", header(SIZE), array, labels=("One", "Two", "All"))
    (node,) = dicom_import.load_segmentation(path)
    for number, mask in enumerate(masks_of(node, cr).values()):
        assert np.array_equal(mask[0], array[0, ..., number])


def test_a_segmentation_of_two_radiographs_is_loaded_onto_each(database: Any, tmp_path: Path) -> None:
    # Both in one Frame of Reference: highdicom writes no other SEG of two images.
    places = [IN_SPACE | {"SliceThickness": 1, "SOPInstanceUID": f"2.25.4{n}"} for n in range(2)]
    places[1]["ImagePositionPatient"] = [10.0, 5.0, 30.0]
    images = [header(SIZE, **place) for place in places]
    volumes = [loaded(dicom_file(tmp_path / f"{n}.dcm", **places[n])) for n in range(2)]
    array = np.stack([blob(SIZE, 1), blob(SIZE, 2)])
    path = foreign(tmp_path / "seg.dcm", images, array)
    nodes = dicom_import.load_segmentation(path)
    for node, volume, mask in zip(nodes, volumes, array, strict=True):
        assert node.GetNodeReferenceID("XFlow.volume") == volume.GetID()
        assert np.array_equal(masks_of(node, volume)["Nodule"][0], mask)
    slicer.mrmlScene.RemoveNode(volumes[1])
    (tmp_path / "1.dcm").unlink()
    (node,) = dicom_import.load_segmentation(path)
    assert node.GetNodeReferenceID("XFlow.volume") == volumes[0].GetID()


def test_an_empty_segment_is_not_dropped(cr: Any, tmp_path: Path) -> None:
    array = np.stack([blob(SIZE, 1), np.zeros(SIZE, bool)], axis=-1)[None]
    path = foreign(tmp_path / "seg.dcm", header(SIZE), array, labels=("One", "Nothing"), omit_empty_frames=False)
    (node,) = dicom_import.load_segmentation(path)
    assert segment(node, "Nothing") is not None
    assert "Segment 2 (Nothing) is empty." in node.GetDescription()


def test_the_radiograph_comes_from_the_database_when_it_is_not_in_the_scene(database: Any, tmp_path: Path) -> None:
    slicer.dicomDatabase.insert(str(dicom_file(tmp_path / "cr.dcm")))
    path = foreign(tmp_path / "seg.dcm", header(SIZE), blob(SIZE, 1)[None])
    (node,) = dicom_import.load_segmentation(path)
    volume = dicom_import.find_radiograph("2.25.1001")
    assert volume is not None
    assert np.array_equal(slicer.util.arrayFromVolume(volume)[0], pixels(SIZE))
    assert np.array_equal(masks_of(node, volume)["Nodule"][0], blob(SIZE, 1))


def test_a_radiograph_that_was_dropped_into_slicer_as_a_file_is_found(database: Any, tmp_path: Path) -> None:
    volume = slicer.util.loadVolume(str(dicom_file(tmp_path / "cr.dcm")), {"singleFile": True})
    path = foreign(tmp_path / "seg.dcm", header(SIZE), blob(SIZE, 1)[None])
    (node,) = dicom_import.load_segmentation(path)
    assert node.GetNodeReferenceID("XFlow.volume") == volume.GetID()


def test_a_radiograph_whose_file_is_gone_still_gets_its_segmentation(cr: Any, tmp_path: Path) -> None:
    slicer.dicomDatabase.initializeDatabase()
    (tmp_path / "cr.dcm").unlink()
    path = foreign(tmp_path / "seg.dcm", header(SIZE), blob(SIZE, 1)[None])
    (node,) = dicom_import.load_segmentation(path)
    assert np.array_equal(masks_of(node, cr)["Nodule"][0], blob(SIZE, 1))


# What is refused leaves the scene as it is.


def test_a_segmentation_without_its_radiograph_names_it(database: Any, tmp_path: Path) -> None:
    path = foreign(tmp_path / "seg.dcm", header(SIZE), blob(SIZE, 1)[None])
    before = number_of_nodes()
    with pytest.raises(ExportError) as problem:
        dicom_import.load_segmentation(path)
    assert str(problem.value) == (
        "seg.dcm is a segmentation of the image 2.25.1001, which is neither in the scene nor in Slicer's DICOM "
        "database; load that radiograph first."
    )
    assert number_of_nodes() == before


def test_a_segmentation_of_another_image_is_refused(cr: Any, tmp_path: Path) -> None:
    path = foreign(tmp_path / "seg.dcm", header(SIZE, SOPInstanceUID="2.25.7"), blob(SIZE, 1)[None])
    before = number_of_nodes()
    with pytest.raises(ExportError, match=r"segmentation of the image 2\.25\.7, not of 2\.25\.1001"):
        dicom_import.load_segmentation(path, cr)
    assert number_of_nodes() == before


def test_a_segmentation_in_another_matrix_is_refused(cr: Any, tmp_path: Path) -> None:
    path = foreign(tmp_path / "seg.dcm", header((30, 20)), blob((30, 20), 1)[None])
    before = number_of_nodes()
    with pytest.raises(ExportError, match="masks of 20 x 30 pixels"):
        dicom_import.load_segmentation(path)
    assert number_of_nodes() == before


def test_a_cropped_copy_of_the_radiograph_is_not_taken_for_it(cr: Any, tmp_path: Path) -> None:
    path = foreign(tmp_path / "seg.dcm", header(SIZE), blob(SIZE, 1)[None])
    slicer.mrmlScene.RemoveNode(cr)
    cropped = slicer.util.addVolumeFromArray(np.ones((1, 20, 30), np.int16), np.eye(4), "cropped")
    cropped.SetAttribute("DICOM.instanceUIDs", "2.25.1001")
    before = number_of_nodes()
    with pytest.raises(ExportError, match="the volume cropped has 30 x 20; load the whole radiograph"):
        dicom_import.load_segmentation(path)
    assert number_of_nodes() == before
    whole = loaded(tmp_path / "cr.dcm")
    (node,) = dicom_import.load_segmentation(path)
    assert node.GetNodeReferenceID("XFlow.volume") == whole.GetID()


@pytest.mark.parametrize("length", [0, 200, 900])
def test_a_damaged_file_is_one_sentence(length: int, cr: Any, tmp_path: Path) -> None:
    whole = foreign(tmp_path / "seg.dcm", header(SIZE), blob(SIZE, 1)[None]).read_bytes()
    path = tmp_path / "cut.dcm"
    path.write_bytes(whole[:length])
    before = number_of_nodes()
    with pytest.raises(ExportError, match=r"^cut\.dcm "):
        dicom_import.load_segmentation(path)
    with pytest.raises(ExportError, match=r"missing\.dcm cannot be read"):
        dicom_import.load_segmentation(tmp_path / "missing.dcm")
    assert number_of_nodes() == before


def test_nothing_else_in_the_scene_changes(cr: Any, tmp_path: Path) -> None:
    mine = slicer.mrmlScene.AddNewNodeByClass("vtkMRMLSegmentationNode", "Manual reading")
    mine.SetReferenceImageGeometryParameterFromVolumeNode(cr)
    identity = mine.GetSegmentation().AddEmptySegment("", "Nodule")
    slicer.util.updateSegmentBinaryLabelmapFromArray(np.ones((1, *SIZE), np.uint8), mine, identity, cr)
    path = foreign(tmp_path / "seg.dcm", header(SIZE), blob(SIZE, 1)[None])
    (node,) = dicom_import.load_segmentation(path)
    assert node is not mine
    assert node.GetName() != mine.GetName()
    assert masks_of(mine, cr)["Nodule"].all()


# PNG masks.


@pytest.fixture
def png(database: Any, tmp_path: Path) -> Any:
    return picture(tmp_path / "chest.png")


def saved_as(kind: str, labels: np.ndarray) -> Image.Image:
    """Labels 0, 1, 2, .. as a PNG of a kind; where it knows two values, every label is the one that is set."""
    mask = labels > 0
    colours = np.array([[0, 0, 0], [230, 0, 0], [0, 0, 240], [0, 240, 0]], np.uint8)
    if kind == "0 and 255":
        return Image.fromarray(mask * np.uint8(255))
    if kind == "0 and 1":
        return Image.fromarray(mask.astype(np.uint8))
    if kind == "one bit":
        return Image.fromarray(mask)
    if kind == "labels":
        return Image.fromarray(labels.astype(np.uint8))
    if kind == "labels of 16 bits":
        return Image.fromarray(labels.astype(np.uint16) * 300)
    if kind == "palette":
        made = Image.fromarray(labels.astype(np.uint8), "P")
        made.putpalette(colours.ravel().tolist())
        return made
    if kind == "colours":
        return Image.fromarray(colours[labels])
    if kind == "transparent":
        return Image.fromarray(np.dstack([np.full((*labels.shape, 3), 200, np.uint8), mask * np.uint8(128)]))
    raise AssertionError(kind)


@pytest.mark.parametrize(
    "kind",
    ["0 and 255", "0 and 1", "one bit", "labels", "labels of 16 bits", "palette", "colours", "transparent"],
)
def test_a_png_mask_is_loaded_as_a_segmentation(kind: str, png: Any, tmp_path: Path) -> None:
    labels = np.zeros(SIZE, np.int64)
    labels[5:20, 3:9] = 1
    labels[30:50, 20:44] = 2
    labels[-1, -1] = 3
    path = tmp_path / "reading.png"
    saved_as(kind, labels).save(path)
    node = dicom_import.load_mask(path, png)
    found = list(masks_of(node, png).values())
    several = kind in ("labels", "labels of 16 bits", "palette", "colours")
    wanted = [labels == number for number in (1, 2, 3)] if several else [labels > 0]
    assert len(found) == len(wanted)
    for mask in wanted:
        assert any(np.array_equal(other[0], mask) for other in found)
    names = [node.GetSegmentation().GetNthSegment(n).GetName() for n in range(len(found))]
    assert names[0].startswith("reading")
    assert (names == ["reading"]) == (not several)
    if kind in ("palette", "colours"):
        shades = {node.GetSegmentation().GetNthSegment(n).GetColor() for n in range(3)}
        assert {tuple(round(255 * channel) for channel in shade) for shade in shades} == {
            (230, 0, 0),
            (0, 0, 240),
            (0, 240, 0),
        }


def test_a_mask_lies_on_its_picture_also_where_the_volume_is_flipped(png: Any, tmp_path: Path) -> None:
    mask = blob(SIZE, 3)
    Image.fromarray(mask * np.uint8(255)).save(tmp_path / "mask.png")
    array = slicer.util.arrayFromVolume(png)[:, ::-1, ::-1].copy()
    flipped = slicer.util.addVolumeFromArray(array, ijkToRAS=np.diag([1.0, 1.0, 1.0, 1.0]))
    node = dicom_import.load_mask(tmp_path / "mask.png", flipped)
    (found,) = masks_of(node, flipped).values()
    assert np.array_equal(found[0, ::-1, ::-1], mask)


def test_an_exported_mask_gets_its_findings_name_codes_and_colour(cr: Any, tmp_path: Path) -> None:
    trace = effusion(source_of(tmp_path))
    written = write_result(tmp_path / "out", trace, np.zeros(SIZE, np.uint8))
    assert written.mask is not None
    node = dicom_import.load_mask(written.mask, cr)
    assert np.array_equal(masks_of(node, cr)["Effusion, left lung"][0], trace.last(ResultStep).mask.array)
    made = segment(node, "Effusion, left lung")
    assert made.GetTerminology() == terminology.entry("effusion", ("left lung",))


def test_an_exported_mask_of_another_image_is_refused(cr: Any, tmp_path: Path) -> None:
    trace = effusion(source_of(tmp_path))
    trace = replace(trace, image=replace(trace.image, sop_instance_uid="2.25.7"))
    written = write_result(tmp_path / "out", trace, np.zeros(SIZE, np.uint8))
    with pytest.raises(ExportError, match=r"mask\.png is a mask of the image 2\.25\.7, not of 2\.25\.1001"):
        dicom_import.load_mask(written.mask, cr)


def test_the_name_of_the_file_says_the_finding_where_nothing_else_does(png: Any, tmp_path: Path) -> None:
    path = tmp_path / "Edema_2.png"
    Image.fromarray(blob(SIZE, 1) * np.uint8(255)).save(path)
    node = dicom_import.load_mask(path, png)
    assert terminology.finding_of(segment(node, "Edema")) == "edema"


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (
            np.ones((20, 30), np.uint8),
            r"^bad\.png has 30 x 20 pixels, and the radiograph 191 x 223; a mask has a pixel for each",
        ),
        (np.zeros(SIZE, np.uint8), r"^No pixel of bad\.png is set"),
        (pixels(SIZE), r"^bad\.png has \d+ different values, so it is no mask"),
    ],
)
def test_a_picture_that_is_no_mask_of_the_radiograph_is_refused(
    array: np.ndarray, sentence: str, png: Any, tmp_path: Path
) -> None:
    Image.fromarray(array).save(tmp_path / "bad.png")
    before = number_of_nodes()
    with pytest.raises(ExportError, match=sentence):
        dicom_import.load_mask(tmp_path / "bad.png", png)
    assert number_of_nodes() == before


def test_a_file_that_is_no_png_is_refused(png: Any, tmp_path: Path) -> None:
    Image.fromarray(blob(SIZE, 1) * np.uint8(255)).save(tmp_path / "mask.jpg")
    with pytest.raises(ExportError, match=r"^mask\.jpg is not a PNG picture\.$"):
        dicom_import.load_mask(tmp_path / "mask.jpg", png)
    Image.fromarray(blob(SIZE, 1) * np.uint8(255)).save(tmp_path / "mask.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "mask.png").read_bytes()[:100])
    with pytest.raises(ExportError, match=r"cut\.png"):
        dicom_import.load_mask(tmp_path / "cut.png", png)


@pytest.fixture
def plugin(database: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The plugin as Slicer makes it, beside the one for images. ``DICOMLib`` is the host's emulation."""
    monkeypatch.setattr(slicer.modules, "dicomPlugins", dict(slicer.modules.dicomPlugins))
    monkeypatch.delitem(sys.modules, "XFlowDICOMPlugin", raising=False)
    importlib.import_module("XFlowDICOMPlugin").XFlowDICOMPlugin(SimpleNamespace())
    return slicer.modules.dicomPlugins["XFlowDICOMPlugin"]()


# Slicer's "Add data".


class Handler(SimpleNamespace):
    """Emulation of qSlicerScriptedFileReader, which makes the module's reader and hands it the file."""

    def __init__(self) -> None:
        super().__init__(loadedNodes=[], messages=slicer.vtkMRMLMessageCollection())

    def userMessages(self) -> Any:
        return self.messages


@pytest.fixture
def reader(plugin: Any) -> Any:
    return sys.modules[type(plugin).__module__].XFlowDICOMPluginFileReader(Handler())


def test_a_png_mask_that_is_dropped_into_slicer_lies_on_the_radiograph_of_its_size(
    reader: Any, png: Any, tmp_path: Path
) -> None:
    loaded(dicom_file(tmp_path / "other.dcm", (40, 30)))
    mask = blob(SIZE, 1)
    Image.fromarray(mask * np.uint8(255)).save(tmp_path / "mask.PNG", "PNG")
    assert reader.canLoadFileConfidence(str(tmp_path / "mask.PNG")) > 0.54  # Slicer's reader of pictures
    assert reader.load({"fileName": str(tmp_path / "mask.PNG")})
    (identity,) = reader.parent.loadedNodes
    (found,) = masks_of(slicer.mrmlScene.GetNodeByID(identity), png).values()
    assert np.array_equal(found[0], mask)


def test_a_picture_that_is_no_mask_stays_a_picture(reader: Any, database: Any, tmp_path: Path) -> None:
    Image.fromarray((pixels(SIZE) >> 4).astype(np.uint8)).save(tmp_path / "chest.png")
    assert reader.canLoadFileConfidence(str(tmp_path / "chest.png")) == 0
    loaded(dicom_file(tmp_path / "cr.dcm"))
    assert 0 < reader.canLoadFileConfidence(str(tmp_path / "chest.png")) < 0.54
    assert reader.canLoadFileConfidence(str(tmp_path / "cr.dcm")) == 0


def test_a_mask_without_its_radiograph_is_said(reader: Any, png: Any, tmp_path: Path) -> None:
    Image.fromarray(np.ones((20, 30), np.uint8)).save(tmp_path / "mask.png")
    assert not reader.load({"fileName": str(tmp_path / "mask.png")})
    assert reader.parent.messages.GetNthMessageText(0) == (
        "mask.png has 30 x 20 pixels, and no radiograph in the scene has (191 x 223)."
    )


def test_of_two_radiographs_of_one_size_the_active_one_gets_the_mask(reader: Any, png: Any, tmp_path: Path) -> None:
    second = loaded(dicom_file(tmp_path / "cr.dcm"))
    Image.fromarray(blob(SIZE, 1) * np.uint8(255)).save(tmp_path / "mask.png")
    selection = slicer.app.applicationLogic().GetSelectionNode()
    selection.SetActiveVolumeID(None)
    assert not reader.load({"fileName": str(tmp_path / "mask.png")})
    assert reader.parent.messages.GetNthMessageText(0).startswith(
        "2 radiographs have the size of mask.png; show the one"
    )
    selection.SetActiveVolumeID(second.GetID())
    assert reader.load({"fileName": str(tmp_path / "mask.png")})
    node = slicer.mrmlScene.GetNodeByID(reader.parent.loadedNodes[0])
    assert node.GetNodeReferenceID("XFlow.volume") == second.GetID()


# The DICOM module's plugin.


def series_of(path: Path) -> list[str]:
    slicer.dicomDatabase.insert(str(path))
    return [str(path)]


@pytest.mark.parametrize("geometry", [{}, IN_SPACE | {"SliceThickness": 1}], ids=["no geometry", "its own geometry"])
def test_a_segmentation_of_a_radiograph_is_the_plugins_with_the_highest_confidence(
    geometry: dict[str, Any], plugin: Any, tmp_path: Path
) -> None:
    path = foreign(tmp_path / "seg.dcm", header(SIZE, **geometry), blob(SIZE, 1)[None])
    (loadable,) = plugin.examineForImport([series_of(path)])
    assert loadable.files == [str(path)]
    assert loadable.name == "Manual reading"
    assert loadable.selected
    assert loadable.confidence > 0.95  # QuantitativeReporting's plugin, which any DICOM SEG is offered to
    assert loadable.referencedInstanceUIDs == ["2.25.1001"]  # so that Slicer offers to load the radiograph first
    assert "neither in the scene nor in the DICOM database" in loadable.warning
    slicer.dicomDatabase.insert(str(dicom_file(tmp_path / "cr.dcm", **geometry)))
    (loadable,) = plugin.examineForImport([series_of(path)])
    assert loadable.warning == ""


def test_a_segmentation_of_a_ct_is_left_to_others(plugin: Any, tmp_path: Path) -> None:
    slices = [
        header(
            SIZE,
            **IN_SPACE
            | {
                "SOPClassUID": CTImageStorage,
                "Modality": "CT",
                "SOPInstanceUID": f"2.25.30{n}",
                "ImagePositionPatient": [0.0, 0.0, float(n)],
                "ImageOrientationPatient": [1.0, 0.0, 0.0, 0.0, 1.0, 0.0],
                "SliceThickness": 1,
            },
        )
        for n in range(2)
    ]
    made = hd.seg.Segmentation(
        slices, np.ones((2, *SIZE), np.uint8), "BINARY",
        [hd.seg.SegmentDescription(1, "Lung", codes.SCT.Organ, codes.SCT.Lung, "MANUAL")],
        generate_uid(), 1, generate_uid(), 1, "Another", "Another", "1", "1",
    )  # fmt: skip
    made.save_as(tmp_path / "seg.dcm")
    assert plugin.examineForImport([series_of(tmp_path / "seg.dcm")]) == []


def test_what_is_no_result_is_left_to_others(plugin: Any, tmp_path: Path) -> None:
    image = dicom_file(tmp_path / "cr.dcm")
    report = dicom_file(tmp_path / "sr.dcm", Modality="SR", Manufacturer="Another", SOPInstanceUID="2.25.8")
    no_report = dicom_file(tmp_path / "sr2.dcm", Modality="SR", Manufacturer="XFlow", SOPInstanceUID="2.25.9")
    no_segmentation = dicom_file(tmp_path / "seg.dcm", Modality="SEG", SOPInstanceUID="2.25.10")
    files = [series_of(path) for path in (image, report, no_report, no_segmentation)]
    assert plugin.examineForImport(files) == []


def test_the_plugin_loads_segmentation_and_report_and_their_radiograph(plugin: Any, tmp_path: Path) -> None:
    slicer.dicomDatabase.insert(str(dicom_file(tmp_path / "cr.dcm")))
    source = source_of(tmp_path)
    folder = exported(tmp_path / "out", source, effusion(source), no_pneumonia(source))
    for name in ("seg.dcm", "sr.dcm"):
        (loadable,) = plugin.examineForImport([[str(folder / name)]])
        assert plugin.load(loadable)
    volume = dicom_import.find_radiograph("2.25.1001")
    (node,) = slicer.util.getNodesByClass("vtkMRMLSegmentationNode")
    assert np.array_equal(
        masks_of(node, volume)["Effusion, left lung"][0], effusion(source).last(ResultStep).mask.array
    )
    assert len(slicer.util.getNodesByClass("vtkMRMLTextNode")) == 1
    hierarchy = slicer.vtkMRMLSubjectHierarchyNode.GetSubjectHierarchyNode(slicer.mrmlScene)
    series = hierarchy.GetItemUID(hierarchy.GetItemByDataNode(node), "DICOM")
    assert series == str(pydicom.dcmread(folder / "seg.dcm").SeriesInstanceUID)


def test_what_cannot_be_loaded_is_said_and_counts_as_not_loaded(
    plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(slicer.util, "errorDisplay", shown.append)  # a box of Qt's
    path = foreign(tmp_path / "seg.dcm", header(SIZE), blob(SIZE, 1)[None])
    (loadable,) = plugin.examineForImport([series_of(path)])
    before = number_of_nodes()
    assert plugin.load(loadable) is False
    assert "neither in the scene nor in Slicer's DICOM database" in shown[0]
    assert number_of_nodes() == before


def test_slicers_own_export_offers_xflows_results_and_writes_them(plugin: Any, tmp_path: Path) -> None:
    volume = loaded(dicom_file(tmp_path / "cr.dcm"))
    trace = effusion(source_of(tmp_path))
    segments = RadiographSegments(volume, volumes.frame_of(volume))
    segments.write(trace)
    history, _ = History().with_version(Version("as asked", trace).finished())
    record.save(volume, session_json(history))
    hierarchy = slicer.vtkMRMLSubjectHierarchyNode.GetSubjectHierarchyNode(slicer.mrmlScene)
    image, results = (hierarchy.CreateItem(hierarchy.GetSceneItemID(), node) for node in (volume, segments.node))
    assert plugin.examineForExport(image) == []
    (exportable,) = plugin.examineForExport(results)
    assert slicer.modules.dicomPlugins[exportable.pluginClass] is type(plugin)
    exportable.directory = str(tmp_path / "out")
    assert plugin.export([exportable]) == ""
    assert len(list((tmp_path / "out").rglob("*.dcm"))) == 3
    assert len(slicer.dicomDatabase.seriesForStudy("2.25.1002")) == 4
    exportable.directory = str(tmp_path / "cr.dcm")
    assert plugin.export([exportable]).startswith("Nothing was exported to")
