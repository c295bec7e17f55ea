"""What leaves the scene: the answers as they stand in it, as DICOM of a DICOM radiograph, as pictures of any other."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from export.dicom_answers import answer, consolidation, disc, effusion, no_pneumonia, unanswered
from export.dicom_headers import validated
from PIL import Image

from xflow_core.domain.errors import ExportError, NotWritten
from xflow_core.domain.geometry import Box
from xflow_core.domain.trace import BoxesStep, LesionBox, Mask, MaskStep, PresenceStep, ResultStep, Trace, Verdict
from xflow_core.export import read_trace
from xflow_core.export.dicom_source import SourceInstance, read_source
from xflow_core.export.seg_reading import read_seg

slicer = pytest.importorskip("slicer", reason="slicer-core is not installed")
vtk = pytest.importorskip("vtk")

from XFlowSlicerLib import dicom_export, dicom_import, record, volumes  # noqa: E402
from XFlowSlicerLib.history import History, Version, session_json  # noqa: E402
from XFlowSlicerLib.segments import RadiographSegments  # noqa: E402

from tests.xflow_slicer.radiographs import SIZE, dicom_file, loaded, picture  # noqa: E402  after the check for Slicer


@pytest.fixture
def database(scene: Any) -> Any:
    slicer.dicomDatabase.initializeDatabase()
    return slicer.dicomDatabase


class Session:
    """A radiograph in the scene and the answers about it, as the panel has them."""

    def __init__(self, volume: Any, *traces: Trace) -> None:
        self.volume = volume
        self.traces = list(traces)
        self.segments = RadiographSegments(volume, volumes.frame_of(volume))
        for trace in traces:
            if trace.result is not None:
                self.segments.write(trace)

    def collect(self) -> dicom_export.Collected:
        return dicom_export.collect(self.volume, self.traces, self.segments)

    def export(self, folder: Path, **options: Any) -> dicom_export.Exported:
        return dicom_export.write(self.collect(), folder, **options)

    def paint(self, trace: Trace, mask: np.ndarray) -> None:
        """Replace a segment's pixels as the Segment Editor's effects do: through its logic."""
        identity = self.segments.segment_of(trace)
        assert identity is not None
        array = volumes.frame_of(self.volume).to_volume(mask).astype(np.uint8)
        slicer.util.updateSegmentBinaryLabelmapFromArray(array, self.segments.node, identity, self.volume)


@pytest.fixture
def source(tmp_path: Path) -> SourceInstance:
    return read_source(dicom_file(tmp_path / "cr.dcm", SIZE))


@pytest.fixture
def cr(database: Any, source: SourceInstance, tmp_path: Path) -> Any:
    """A CR in the scene, of the DICOM database."""
    return loaded(tmp_path / "cr.dcm")


@pytest.fixture
def png(database: Any, tmp_path: Path) -> Any:
    return picture(tmp_path / "chest.png")


def of_png(trace: Trace) -> Trace:
    """The same answer, of an image that is no DICOM."""
    return replace(trace, image=replace(trace.image, source="png", sop_instance_uid=None))


def said(report: Path) -> list[str]:
    """The comments of an SR."""
    found = dicom_import.read_report(report)
    assert found is not None
    return list(found.sentences)


def pixel_areas(report: pydicom.Dataset) -> list[float]:
    """The areas in pixels that a report gives, in its order."""
    found = []
    for item in report.get("ContentSequence") or ():
        if item.ValueType == "NUM" and item.ConceptNameCodeSequence[0].CodeValue == "42798000":
            (measured,) = item.MeasuredValueSequence
            if measured.MeasurementUnitsCodeSequence[0].CodeValue == "{pixels}":
                found.append(float(measured.NumericValue))
        found += pixel_areas(item)
    return found


# DICOM.


def test_the_answers_of_a_dicom_radiograph_leave_as_segmentation_report_and_presentation_state(
    radiograph: Any, rg1: Path, tmp_path: Path
) -> None:
    image = read_source(rg1)
    session = Session(radiograph, effusion(image), consolidation(image), no_pneumonia(image))
    done = session.export(tmp_path)
    assert sorted(path.name for path in done.files) == ["pr.dcm", "seg.dcm", "sr.dcm"]
    assert sorted(done.dicom) == sorted(done.files)
    assert done.folder.parent == tmp_path
    segments = read_seg(done.folder / "seg.dcm", image).segments
    assert [segment.finding for segment in segments] == ["effusion", "consolidation"]
    for segment, trace in zip(segments, session.traces, strict=False):
        assert np.array_equal(segment.mask, trace.last(ResultStep).mask.array)
    assert "Pneumonia is absent in both lungs (right lung 0.90)." in said(done.folder / "sr.dcm")


def test_the_files_are_made_in_another_thread_that_leaves_the_scene_alone(
    cr: Any, source: SourceInstance, tmp_path: Path
) -> None:
    collected = Session(cr, effusion(source)).collect()
    before = slicer.mrmlScene.GetMTime(), slicer.mrmlScene.GetNumberOfNodes()
    made: list[dicom_export.Exported] = []
    thread = threading.Thread(target=lambda: made.append(dicom_export.write(collected, tmp_path)))
    thread.start()
    thread.join()
    assert len(made[0].dicom) == 3
    assert (slicer.mrmlScene.GetMTime(), slicer.mrmlScene.GetNumberOfNodes()) == before


def test_reading_a_large_radiographs_answers_from_the_scene_holds_nothing_up(database: Any, tmp_path: Path) -> None:
    size = (3000, 2500)
    volume = loaded(dicom_file(tmp_path / "cr.dcm", size))
    image = read_source(tmp_path / "cr.dcm")
    masks = {"edema": disc(size, 0.3, 0.5, 0.2), "opacity": disc(size, 0.6, 0.5, 0.3), "effusion": np.ones(size, bool)}
    session = Session(volume, *(answer(image, finding, ("chest",), mask=mask) for finding, mask in masks.items()))
    began = time.thread_time()
    collected = session.collect()
    assert time.thread_time() - began < 0.05
    assert [int(one.mask.sum()) for one in collected.answers] == [int(mask.sum()) for mask in masks.values()]


def test_making_the_modules_known_to_slicer_loads_neither_highdicom_nor_torch() -> None:
    code = (
        "import sys\nfrom tests.slicer_host import boot\nboot()\nimport XFlowDICOMPlugin\n"
        "from XFlowSlicerLib import dicom_export, dicom_import\n"
        "print([name for name in ('highdicom', 'torch') if name in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    places = os.pathsep.join(map(str, (root, root / "XFlowSlicer")))
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines()[-1] == "[]"


def test_a_mask_that_the_user_edited_leaves_as_edited_and_says_whose_it_is(
    cr: Any, source: SourceInstance, tmp_path: Path
) -> None:
    touched, untouched = effusion(source), consolidation(source)
    session = Session(cr, touched, untouched)
    mine = disc(SIZE, 0.7, 0.7, 0.15)
    session.paint(touched, mine)
    done = session.export(tmp_path)
    first, second = read_seg(done.folder / "seg.dcm", source).segments
    assert np.array_equal(first.mask, mine)
    assert np.array_equal(second.mask, untouched.last(ResultStep).mask.array)
    made = pydicom.dcmread(done.folder / "seg.dcm").SegmentSequence
    assert [item.SegmentAlgorithmType for item in made] == ["SEMIAUTOMATIC", "AUTOMATIC"]
    assert ["the user" in item.SegmentDescription for item in made] == [True, False]
    assert validated(done.folder / "seg.dcm") == validated(done.folder / "sr.dcm") == []
    words = said(done.folder / "sr.dcm")
    assert any(text.startswith("Effusion: decided by the user: a mask") for text in words)
    assert any(f"Segmented area: {mine.sum():,} px." in text for text in words)
    assert done.sentences[0].startswith(f"Effusion: the mask is as you edited it, {mine.sum():,} px; ")


def test_a_hardened_edit_with_the_segment_editors_own_logic_is_exported(
    cr: Any, source: SourceInstance, tmp_path: Path
) -> None:
    trace = effusion(source)
    session = Session(cr, trace)
    node, identity = session.segments.node, session.segments.segment_of(trace)
    brush = slicer.vtkOrientedImageData()
    matrix = vtk.vtkMatrix4x4()
    cr.GetIJKToRASMatrix(matrix)
    brush.SetGeometryFromImageToWorldMatrix(matrix)
    brush.SetExtent(5, 20, 10, 30, 0, 0)
    brush.AllocateScalars(vtk.VTK_UNSIGNED_CHAR, 1)
    brush.GetPointData().GetScalars().Fill(1)
    merge = slicer.vtkSlicerSegmentationsModuleLogic.MODE_MERGE_MAX
    assert slicer.vtkSlicerSegmentationsModuleLogic.SetBinaryLabelmapToSegment(brush, node, identity, merge)
    expected = trace.last(ResultStep).mask.array
    expected[10:31, 5:21] = True
    (segment,) = read_seg(session.export(tmp_path).folder / "seg.dcm", source).segments
    assert np.array_equal(segment.mask, expected)


def test_overlapping_segments_both_leave_whole(cr: Any, source: SourceInstance, tmp_path: Path) -> None:
    session = Session(cr, effusion(source))
    wide = disc(SIZE, 0.74, 0.72, 0.2)
    session.traces.append(answer(source, "opacity", ("chest",), mask=wide))
    session.segments.write(session.traces[1])
    segments = read_seg(session.export(tmp_path).folder / "seg.dcm", source).segments
    assert np.array_equal(segments[0].mask, session.traces[0].last(ResultStep).mask.array)
    assert np.array_equal(segments[1].mask, wide)
    assert (segments[0].mask & segments[1].mask).any()


@pytest.mark.parametrize("geometry", ["synthetic", "none"])
def test_the_geometry_is_the_callers_choice(geometry: str, cr: Any, source: SourceInstance, tmp_path: Path) -> None:
    done = Session(cr, effusion(source)).export(tmp_path, geometry=geometry, reviewed=True)
    made = pydicom.dcmread(done.folder / "seg.dcm")
    assert ("FrameOfReferenceUID" in made) == (geometry == "synthetic")
    assert made.ContentDescription == "AI result, reviewed; not for clinical use"


def test_what_is_absent_everywhere_is_a_report_without_an_empty_segmentation(
    cr: Any, source: SourceInstance, tmp_path: Path
) -> None:
    done = Session(cr, no_pneumonia(source), unanswered(source, "unsupported")).export(tmp_path)
    assert sorted(path.name for path in done.files) == ["pr.dcm", "sr.dcm"]
    report = dicom_import.read_report(done.folder / "sr.dcm")
    assert report is not None
    assert report.absent == "Absent: pneumonia (right lung, left lung)."
    assert any(text.startswith("Edema: unsupported.") for text in report.sentences)


@pytest.mark.parametrize("state", ["is no longer in the scene", "is empty"])
def test_an_answer_whose_segment_is_gone_or_emptied_is_left_out_and_said(
    state: str, cr: Any, source: SourceInstance, tmp_path: Path
) -> None:
    gone, stays = effusion(source), consolidation(source)
    session = Session(cr, gone, stays)
    if state == "is empty":
        session.paint(gone, np.zeros(SIZE, bool))
    else:
        session.segments.node.GetSegmentation().RemoveSegment(session.segments.segment_of(gone))
    done = session.export(tmp_path)
    (segment,) = read_seg(done.folder / "seg.dcm", source).segments
    assert segment.finding == "consolidation"
    assert done.sentences[0].startswith(f"Effusion: its segment {state}, so it is left out.")
    assert not any("ffusion" in text for text in said(done.folder / "sr.dcm"))
    session.traces = [gone]
    with pytest.raises(ExportError, match=rf"^There is no answer to export yet. Effusion: its segment {state}"):
        session.collect()


def test_without_a_finished_answer_there_is_nothing_to_export(cr: Any, source: SourceInstance) -> None:
    running = replace(effusion(source), result=None)
    for traces in ([], [running]):
        with pytest.raises(ExportError, match="There is no answer to export yet"):
            Session(cr, *traces).collect()


def test_an_edit_of_several_components_is_shared_among_them(source: SourceInstance) -> None:
    trace = consolidation(source)  # a component in each upper zone
    masks = [step.mask.array for step in trace.steps if isinstance(step, MaskStep)]
    near_the_left = disc(SIZE, 0.72, 0.32, 0.03)
    mine = (masks[0] & disc(SIZE, 0.28, 0.25, 0.03)) | masks[-1] | near_the_left
    made = dicom_export.edited(trace, mine)
    drawn = {step.component: step.mask.array for step in made.steps if isinstance(step, MaskStep)}
    assert np.array_equal(drawn[0], masks[0] & mine)
    assert np.array_equal(drawn[1], masks[-1] | near_the_left)
    assert np.array_equal(made.last(ResultStep).mask.array, mine)
    assert made.result is not None
    assert (made.result.status, made.result.area_px) == ("present", int(mine.sum()))
    assert made.branch_of is not None
    assert made.branch_of.trace == trace.id
    by_user = [step.kind for step in made.steps if step.origin == "user"]
    assert by_user == ["mask", "mask", "stop", "stop"]


def test_a_component_that_the_edit_left_alone_stays_the_models(source: SourceInstance) -> None:
    trace = consolidation(source)
    right, left = disc(SIZE, 0.28, 0.25, 0.05), disc(SIZE, 0.72, 0.2, 0.04)
    made = dicom_export.edited(trace, right | (left & disc(SIZE, 0.72, 0.2, 0.02)))
    assert [(step.component, step.origin) for step in made.steps if isinstance(step, MaskStep)] == [
        (0, "model"),
        (1, "model"),
        (1, "user"),
    ]


def test_the_report_measures_the_edited_mask_by_region(cr: Any, source: SourceInstance, tmp_path: Path) -> None:
    regions = ("right lung", "left lung")
    parts = [disc(SIZE, 0.25, 0.5, 0.05), disc(SIZE, 0.75, 0.5, 0.05)]
    boxes = (Box(0.15, 0.4, 0.35, 0.6), Box(0.65, 0.4, 0.85, 0.6))
    trace = answer(
        source,
        "effusion",
        ("chest",),
        PresenceStep(verdicts=tuple(Verdict(region, True, 0.9) for region in regions)),
        BoxesStep(boxes=tuple(LesionBox(n, "effusion", boxes[n], regions[n]) for n in range(2))),
        *(MaskStep(component=n, turn=0, mask=Mask.of(parts[n])) for n in range(2)),
        mask=parts[0] | parts[1],
    )
    session = Session(cr, trace)
    more = disc(SIZE, 0.75, 0.55, 0.08)
    session.paint(trace, parts[0] | parts[1] | more)
    report = pydicom.dcmread(session.export(tmp_path).folder / "sr.dcm")
    assert pixel_areas(report) == [parts[0].sum(), (parts[1] | more).sum()]


def test_the_name_of_the_folder_tells_radiographs_apart_and_nothing_is_replaced(
    cr: Any, source: SourceInstance, tmp_path: Path
) -> None:
    cr.SetName("5: Chest / PA")
    session = Session(cr, effusion(source))
    first, second = session.export(tmp_path), session.export(tmp_path)
    assert first.folder.name == "5_ Chest _ PA-efefefef"
    assert second.folder.name == "5_ Chest _ PA-efefefef-2"
    uids = {str(pydicom.dcmread(done.folder / "seg.dcm").SOPInstanceUID) for done in (first, second)}
    assert len(uids) == 2


# Images that are no DICOM.


def test_the_answers_of_a_picture_leave_as_masks_overlays_and_traces_with_the_reason(
    png: Any, source: SourceInstance, tmp_path: Path
) -> None:
    session = Session(png, of_png(effusion(source)), of_png(no_pneumonia(source)))
    mine = disc(SIZE, 0.7, 0.7, 0.15)
    session.paint(session.traces[0], mine)
    done = session.export(tmp_path)
    names = sorted(str(path.relative_to(done.folder)) for path in done.files)
    assert names == [
        "effusion/mask.png", "effusion/overlay.png", "effusion/trace.json", "pneumonia/overlay.png",
        "pneumonia/trace.json",
    ]  # fmt: skip
    assert done.dicom == ()
    assert (
        "The image did not come from a DICOM file: the masks, overlays and traces are PNG and JSON files instead of "
        "DICOM." in done.sentences
    )
    assert np.array_equal(np.asarray(Image.open(done.folder / "effusion" / "mask.png")), mine * np.uint8(255))
    trace = read_trace(done.folder / "effusion" / "trace.json")
    assert np.array_equal(trace.last(ResultStep).mask.array, mine)
    assert {step.kind for step in trace.steps if step.origin == "user"} == {"mask", "stop"}


def test_one_finding_that_was_asked_twice_has_two_folders(png: Any, source: SourceInstance, tmp_path: Path) -> None:
    first = of_png(effusion(source))
    second = of_png(answer(source, "effusion", ("left lung",), mask=disc(SIZE, 0.7, 0.7, 0.1), level="lung"))
    done = Session(png, first, second).export(tmp_path)
    assert {path.parent.name for path in done.files} == {"effusion", "effusion-2"}


def test_the_overlay_shows_the_picture_as_the_slice_view_does() -> None:
    values = np.array([[0, 50, 100, 150, 200]], np.int16)
    assert dicom_export.Shown(values, (50.0, 150.0)).display().tolist() == [[0, 0, 127, 255, 255]]
    assert dicom_export.Shown(values, (150.0, 50.0)).display().tolist() == [[255, 255, 127, 0, 0]]
    assert dicom_export.Shown(values, None).display().tolist() == [[0, 63, 127, 191, 255]]
    assert dicom_export.Shown(np.full((1, 2), 7), None).display().tolist() == [[0, 0]]


def test_a_radiograph_whose_dicom_file_is_gone_leaves_as_pictures(
    cr: Any, source: SourceInstance, tmp_path: Path
) -> None:
    session = Session(cr, effusion(source))
    (tmp_path / "cr.dcm").unlink()
    done = session.export(tmp_path)
    assert done.dicom == ()
    assert done.sentences[-1].startswith("The radiograph's DICOM file is not in Slicer's DICOM database: the masks")
    assert (done.folder / "effusion" / "mask.png").is_file()


def test_a_header_that_cannot_carry_results_is_named_and_pictures_are_written(database: Any, tmp_path: Path) -> None:
    path = dicom_file(tmp_path / "cr.dcm", SIZE, SeriesInstanceUID=None)
    volume = loaded(path)
    trace = effusion(read_source(dicom_file(tmp_path / "complete.dcm", SIZE)))
    done = Session(volume, trace).export(tmp_path)
    assert done.dicom == ()
    assert "cr.dcm has no Series Instance UID (0020,000E)" in done.sentences[-1]
    assert (done.folder / "effusion" / "mask.png").is_file()


# Where nothing can be written.


def test_a_folder_that_cannot_be_written_is_one_sentence_and_leaves_nothing(
    cr: Any, source: SourceInstance, tmp_path: Path
) -> None:
    collected = Session(cr, effusion(source)).collect()
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(NotWritten, match=rf"^Nothing was exported to {blocked}: Not a directory. Choose another"):
        dicom_export.write(collected, blocked)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cr.dcm", "file"]


@pytest.mark.parametrize("kind", ["dicom", "png"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing_half_written(
    kind: str, cr: Any, source: SourceInstance, tmp_path: Path
) -> None:
    trace = effusion(source) if kind == "dicom" else of_png(effusion(source))
    collected = Session(cr, trace).collect()
    folder = tmp_path / "out"
    folder.mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(NotWritten) as problem:
            dicom_export.write(collected, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(problem.value) == (
        f"Nothing was exported to {folder}: File too large. Choose another folder or make room there."
    )
    assert list(folder.iterdir()) == []


# Slicer's DICOM database, and its own export.


def test_the_dicom_database_takes_the_files_one_by_one(cr: Any, source: SourceInstance, tmp_path: Path) -> None:
    done = Session(cr, effusion(source)).export(tmp_path)
    assert [dicom_export.add_to_database(path) for path in done.dicom] == [None, None, None]
    study = slicer.dicomDatabase.seriesForStudy(source.study_uid)
    assert len(study) == 4  # the radiograph, SEG, SR and PR


def test_without_a_dicom_database_the_folder_is_all_and_it_says_so(
    cr: Any, source: SourceInstance, tmp_path: Path
) -> None:
    done = Session(cr, effusion(source)).export(tmp_path)
    slicer.dicomDatabase.isOpen = False
    try:
        sentence = dicom_export.add_to_database(done.dicom[0])
    finally:
        slicer.dicomDatabase.isOpen = True
    assert sentence == "Slicer has no DICOM database open, so the results are in the folder only."


def test_the_session_that_the_scene_keeps_can_be_exported_from_its_segmentation(
    cr: Any, source: SourceInstance, tmp_path: Path
) -> None:
    trace = effusion(source)
    session = Session(cr, trace)
    node = session.segments.node
    with pytest.raises(ExportError, match="The scene keeps no XFlow session"):
        dicom_export.collect_saved(node)
    history, _ = History().with_version(Version("as asked", trace).finished())
    record.save(cr, session_json(history))
    (kept,) = dicom_export.collect_saved(node).answers
    assert kept.trace == trace
    assert np.array_equal(kept.mask, trace.last(ResultStep).mask.array)
