"""The report states what was found, where, how sure the model was and how much of it there is: as others read it."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import highdicom as hd
import numpy as np
import pydicom
import pytest
from export.dicom_answers import (
    CHEST_SOURCES,
    SIZE,
    UPPER_ZONES,
    a_call,
    answer,
    consolidation,
    disc,
    effusion,
    no_pneumonia,
    record,
    source_of,
    unanswered,
)
from export.dicom_headers import BUNDLE, header, validated
from pydicom.sr.codedict import codes

from xflow_core.domain.codes import ABSENT, FINDING_CODES, PRESENCE, PRESENT, region_codes
from xflow_core.domain.errors import CallError, ExportError
from xflow_core.domain.trace import PresenceStep, Trace, Verdict
from xflow_core.export.dicom_source import SourceInstance, read_source
from xflow_core.export.equipment import dicom_code
from xflow_core.export.seg import write_seg
from xflow_core.export.sr import AREA, CERTAINTY, CLICKS, LESION_BOX, PIXEL_COUNT, PLANES, write_sr

DETECTOR = {"ImagerPixelSpacing": [0.8, 0.8]}
PATIENT = {"PixelSpacing": [0.7, 0.7], "PixelSpacingCalibrationType": "FIDUCIAL", "ImagerPixelSpacing": [0.8, 0.8]}


def written(path: Path, traces: list[Trace], source: SourceInstance, seg: bool = True, **options: Any) -> Any:
    """The report of a call, read back as highdicom's own class."""
    made = write_seg(path / "seg.dcm", traces, source) if seg else None
    return hd.sr.srread(write_sr(path / "sr.dcm", traces, source, seg=made, **options))


def groups(report: Any) -> list[Any]:
    content = hd.sr.MeasurementReport.from_sequence(list(report.content))
    return [*content.get_planar_roi_measurement_groups(), *content.get_image_measurement_groups()]


def site(group: Any) -> tuple[str, ...]:
    (found,) = group.finding_sites
    return tuple(code.value for code in (found.value, found.laterality, found.topographical_modifier) if code)


def presence(group: Any) -> str:
    (stated,) = group.get_qualitative_evaluations(name=dicom_code(PRESENCE))
    return str(stated.value.value)


def measured(group: Any, what: str) -> list[tuple[float, str, str]]:
    """Value, unit and method of a group's measurements of a kind."""
    return [
        (float(found.value), found.unit.value, found.method.value)
        for found in group.get_measurements()
        if found.name.value == what
    ]


def coordinates(group: Any, name: str) -> list[list[list[float]]]:
    return [
        np.array(item.GraphicData).reshape(-1, 2).tolist()
        for item in group[0].ContentSequence
        if item.ValueType == "SCOORD" and item.ConceptNameCodeSequence[0].CodeValue == name
    ]


def texts(report: Any) -> list[str]:
    """The comments of the qualitative evaluations."""
    (holder,) = (
        item
        for item in report.ContentSequence
        if item.ValueType == "CONTAINER" and item.ConceptNameCodeSequence[0].CodeValue == "C0034375"
    )
    return [item.TextValue for item in holder.ContentSequence]


def every_value(dataset: pydicom.Dataset) -> str:
    return "\n".join(str(element.value) for element in dataset.iterall() if element.VR != "SQ")


def test_each_finding_and_region_has_one_group_with_its_presence(tmp_path: Path) -> None:
    source = source_of()
    found = groups(written(tmp_path, a_call(source), source))
    stated = {(group.finding_type.value, site(group), presence(group)) for group in found}

    def place(region: str) -> tuple[str, ...]:
        coded = region_codes(region)
        return (coded.anatomy.value, *(code.value for code in coded.all_modifiers))

    opacity = FINDING_CODES["consolidation"].code.value
    assert len(found) == 6
    assert stated == {
        ("60046008", place("left lung"), PRESENT.value),
        ("60046008", place("right lung"), ABSENT.value),
        (opacity, place(UPPER_ZONES[0]), PRESENT.value),
        (opacity, place(UPPER_ZONES[1]), PRESENT.value),
        ("pneumonia", place("right lung"), ABSENT.value),
        ("pneumonia", place("left lung"), ABSENT.value),
    }


def test_an_absent_finding_is_never_coded_as_the_absence_of_something_wider(tmp_path: Path) -> None:
    """Pneumonia's best verified code is "disorder of lung"; who has no pneumonia may have another one."""
    source = source_of()
    for group in groups(written(tmp_path, [no_pneumonia(source)], source)):
        assert (group.finding_type.scheme_designator, group.finding_type.meaning) == ("99XFLOW", "Pneumonia")


def test_the_certainty_is_what_the_model_computed_and_nothing_where_it_computed_none(tmp_path: Path) -> None:
    source = source_of()
    found = groups(written(tmp_path, [effusion(source), no_pneumonia(source)], source))
    certain = {
        (group.finding_type.value, site(group)[1]): [(value, unit) for value, unit, _ in measured(group, "111012")]
        for group in found
    }
    assert CERTAINTY.value == "111012"
    assert certain == {
        ("60046008", "7771000"): [(91.0, "%")],
        ("60046008", "24028007"): [(97.0, "%")],
        ("pneumonia", "24028007"): [(90.0, "%")],
        ("pneumonia", "7771000"): [],
    }


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, []),
        ({"ImagerPixelSpacing": [0, 0]}, []),
        (DETECTOR, [(0.64, PLANES["detector"].value)]),
        (PATIENT, [(0.49, PLANES["patient"].value)]),
    ],
    ids=["no spacing", "zero spacing", "detector", "patient"],
)
def test_an_area_has_mm2_only_with_a_spacing_and_says_in_which_plane(
    tmp_path: Path, attributes: dict[str, Any], expected: list[tuple[float, str]]
) -> None:
    source = source_of(**attributes)
    trace = effusion(source)
    (present,) = (g for g in groups(written(tmp_path, [trace], source)) if presence(g) == PRESENT.value)
    assert trace.result is not None
    pixels = trace.result.area_px
    areas = measured(present, AREA.value)
    assert areas[0] == (pixels, "{pixels}", PIXEL_COUNT.value)
    assert areas[1:] == [(pytest.approx(pixels * mm2, abs=1e-3), "mm2", plane) for mm2, plane in expected]


def test_the_synthetic_spacing_of_a_segmentation_yields_no_millimetre_in_the_report(tmp_path: Path) -> None:
    """Case C13."""
    source = source_of()
    report = written(tmp_path, a_call(source), source)
    assert pydicom.dcmread(tmp_path / "seg.dcm").get("FrameOfReferenceUID")
    assert "mm" not in every_value(report).lower().replace("comment", "")


def test_an_area_at_the_detector_is_called_so_in_words_as_well(tmp_path: Path) -> None:
    """Case C12."""
    source = source_of(**DETECTOR)
    report = written(tmp_path, [effusion(source)], source)
    assert any("mm2 (detector plane, uncalibrated)" in text for text in texts(report))


def test_in_two_regions_each_has_the_area_and_the_boxes_of_its_own_components(tmp_path: Path) -> None:
    source = source_of()
    report = written(tmp_path, [consolidation(source)], source)
    by_side = {site(group)[1]: group for group in groups(report)}
    right, left = by_side["24028007"], by_side["7771000"]
    assert measured(right, AREA.value)[0][0] == disc(SIZE, 0.28, 0.25, 0.05).sum()
    assert measured(left, AREA.value)[0][0] == disc(SIZE, 0.72, 0.2, 0.04).sum()
    assert len(coordinates(right, LESION_BOX.value)) == len(coordinates(left, LESION_BOX.value)) == 1
    assert coordinates(right, CLICKS["positive"].value) == []
    assert len(coordinates(left, CLICKS["positive"].value)) == 1


def test_boxes_and_clicks_lie_where_they_were_decided(tmp_path: Path) -> None:
    """PS3.3 C.18.6: 0\\0 is the outer corner of the first pixel, the centre of pixel (r, c) is c + 0.5 \\ r + 0.5."""
    source = source_of()
    (group,) = (g for g in groups(written(tmp_path, [effusion(source)], source)) if presence(g) == PRESENT.value)
    height, width = SIZE
    ((*corners, last),) = coordinates(group, LESION_BOX.value)
    x1, y1, x2, y2 = 0.62 * width, 0.6 * height, 0.86 * width, 0.84 * height
    assert np.allclose(corners, [(x1, y1), (x2, y1), (x2, y2), (x1, y2)], atol=1e-3)
    assert last == corners[0]
    assert np.allclose(coordinates(group, CLICKS["positive"].value), [[(175.5, 200.5)]], atol=1e-3)
    assert np.allclose(coordinates(group, CLICKS["negative"].value), [[(0.74 * width, 0.72 * height)]], atol=1e-3)


def test_coordinates_are_selected_from_the_source_image(tmp_path: Path) -> None:
    source = source_of()
    report = written(tmp_path, [effusion(source)], source)
    for group in groups(report):
        for item in group[0].ContentSequence:
            if item.ValueType == "SCOORD":
                (image,) = item.ContentSequence
                assert image.RelationshipType == "SELECTED FROM"
                assert image.ReferencedSOPSequence[0].ReferencedSOPInstanceUID == source.sop_instance_uid


def test_a_present_finding_refers_to_its_segment_and_shares_its_identity(tmp_path: Path) -> None:
    source = source_of()
    traces = a_call(source)
    seg = write_seg(tmp_path / "seg.dcm", traces, source)
    assert seg is not None
    report = hd.sr.srread(write_sr(tmp_path / "sr.dcm", traces, source, seg=seg))
    content = hd.sr.MeasurementReport.from_sequence(list(report.content))
    segment = seg.segment_of("effusion")
    assert segment is not None
    (group,) = content.get_planar_roi_measurement_groups(tracking_uid=segment.tracking_uid)
    frame = group.referenced_segmentation_frame
    assert frame.referenced_sop_instance_uid == seg.sop_instance_uid
    assert frame.referenced_segment_numbers == [segment.number]
    assert frame.referenced_frame_numbers is None, "dciodvfy and PS3.3 allow one of the two"
    assert frame.source_image_for_segmentation.referenced_sop_instance_uid == source.sop_instance_uid
    referenced = {uid for _, _, uid, _ in report.get_evidence()}
    assert referenced == {source.sop_instance_uid, seg.sop_instance_uid}


def test_two_regions_of_one_segment_are_told_apart_by_their_tracking_uid(tmp_path: Path) -> None:
    source = source_of()
    (trace,) = (t for t in a_call(source) if t.instruction.level == "zone")
    seg = write_seg(tmp_path / "seg.dcm", [trace], source)
    assert seg is not None and len(seg.segments) == 1
    report = hd.sr.srread(write_sr(tmp_path / "sr.dcm", [trace], source, seg=seg))
    groups = hd.sr.MeasurementReport.from_sequence(list(report.content)).get_planar_roi_measurement_groups()
    present = sum(verdict.present for verdict in trace.last(PresenceStep).verdicts)
    assert present == len(groups) > 1
    assert len({group.tracking_uid for group in groups}) == len(groups)
    assert {tuple(g.referenced_segmentation_frame.referenced_segment_numbers) for g in groups} == {(1,)}


def test_two_questions_about_one_finding_refer_to_a_segment_each(tmp_path: Path) -> None:
    source = source_of()
    report = written(tmp_path, [effusion(source), no_pneumonia(source), effusion(source)], source)
    content = hd.sr.MeasurementReport.from_sequence(list(report.content))
    frames = [group.referenced_segmentation_frame for group in content.get_planar_roi_measurement_groups()]
    assert [frame.referenced_segment_numbers for frame in frames] == [[1], [2]]


def test_a_segmentation_of_other_traces_is_refused(tmp_path: Path) -> None:
    source = source_of()
    seg = write_seg(tmp_path / "seg.dcm", [effusion(source)], source)
    for traces in ([no_pneumonia(source)], [consolidation(source)]):
        with pytest.raises(ExportError, match="not of the report's traces"):
            write_sr(tmp_path / "sr.dcm", traces, source, seg=seg)


def test_without_a_segmentation_the_group_refers_to_the_image(tmp_path: Path) -> None:
    source = source_of()
    for group in groups(written(tmp_path, [effusion(source)], source, seg=False)):
        (image,) = group.source_images
        assert image.referenced_sop_instance_uid == source.sop_instance_uid


@pytest.mark.parametrize("status", ["refused", "failed", "unsupported"])
def test_no_answer_is_stated_as_text_and_never_as_an_absence(tmp_path: Path, status: str) -> None:
    source = source_of()
    report = written(tmp_path, [unanswered(source, status)], source)
    assert groups(report) == []
    (said,) = (text for text in texts(report) if text.startswith("Edema"))
    assert said.startswith(f"Edema: {status}. No answer:")
    assert "The reason." in said
    assert ABSENT.value not in every_value(report)
    assert report.CompletionFlag == "PARTIAL"


def test_a_report_of_answers_alone_is_complete_and_never_verified(tmp_path: Path) -> None:
    source = source_of()
    report = written(tmp_path, [effusion(source)], source, reviewed=True)
    assert (report.CompletionFlag, report.VerificationFlag, report.PreliminaryFlag) == (
        "COMPLETE",
        "UNVERIFIED",
        "PRELIMINARY",
    )


@pytest.mark.parametrize(("reviewed", "state"), [(False, "not reviewed"), (True, "AI result, reviewed")])
def test_the_report_says_whether_a_person_has_looked_and_that_it_is_not_for_clinical_use(
    tmp_path: Path, reviewed: bool, state: str
) -> None:
    source = source_of()
    report = written(tmp_path, a_call(source), source, reviewed=reviewed)
    assert state in texts(report)[0]
    assert "not for clinical use" in texts(report)[0]
    assert "not for clinical use" in report.SeriesDescription


def test_the_observer_is_a_device_with_the_bundles_identity(tmp_path: Path) -> None:
    source = source_of()
    uids = []
    for _ in range(2):
        report = written(tmp_path, [effusion(source)], source)
        content = hd.sr.MeasurementReport.from_sequence(list(report.content))
        (context,) = content.get_observer_contexts(observer_type=codes.DCM.Device)
        device = context.observer_identifying_attributes
        assert (device.name, device.model_name) == (f"XFlow {BUNDLE.name}", f"{BUNDLE.name} {BUNDLE.version}")
        assert device.serial_number == BUNDLE.sha256
        uids.append(device.uid)
    assert uids[0] == uids[1], "the same bundle is the same device"


def test_traces_of_two_bundles_name_both(tmp_path: Path) -> None:
    source = source_of()
    other = replace(no_pneumonia(source), bundle=replace(BUNDLE, name="foundation", sha256="ab" * 32))
    report = written(tmp_path, [effusion(source), other], source)
    content = hd.sr.MeasurementReport.from_sequence(list(report.content))
    names = [context.observer_identifying_attributes.name for context in content.get_observer_contexts()]
    assert names == ["XFlow compact", "XFlow foundation"]


def test_what_the_user_decided_stands_in_words(tmp_path: Path) -> None:
    source = source_of()
    trace = effusion(source)
    steps = [replace(step, origin="user") if step.kind in ("presence", "mask") else step for step in trace.steps]
    said = texts(written(tmp_path, [replace(trace, steps=tuple(steps)), no_pneumonia(source)], source))
    assert [text for text in said if "decided by the user" in text] == [
        "Effusion: decided by the user: the presence, a mask."
    ]


def test_the_instruction_stands_as_typed_in_whatever_script_and_the_patients_name_survives(tmp_path: Path) -> None:
    name = "Yamada^Tarou=山田^太郎=やまだ^たろう"
    stream = io.BytesIO()
    japanese = header(SIZE, SpecificCharacterSet=["ISO 2022 IR 6", "ISO 2022 IR 87"], PatientName=name)
    pydicom.dcmwrite(stream, japanese, implicit_vr=False, little_endian=True)
    source = read_source(stream.getvalue())
    text = "Segmentiere den Erguß: pleural effusion 胸水"
    trace = answer(
        source,
        "effusion",
        ("chest",),
        PresenceStep(verdicts=(Verdict("right lung", False), Verdict("left lung", False))),
        text=text,
    )
    report = written(tmp_path, [trace], source)
    assert f'Instruction: "{text}"' in texts(report)
    assert str(report.PatientName) == name


def test_the_sources_character_set_is_kept_where_it_holds_the_text(tmp_path: Path) -> None:
    source = source_of(SpecificCharacterSet="ISO_IR 100", PatientName="Jörg^Müller")
    report = written(tmp_path, [effusion(source)], source)
    assert (report.SpecificCharacterSet, str(report.PatientName)) == ("ISO_IR 100", "Jörg^Müller")


def test_what_the_reader_should_know_of_the_image_is_said(tmp_path: Path) -> None:
    source = source_of()
    trace = replace(effusion(source), image=record(source, warnings=("The picture may be inverted.",)))
    assert "Image: The picture may be inverted." in texts(written(tmp_path, [trace], source))


def test_a_trace_of_another_image_is_refused(tmp_path: Path) -> None:
    trace = effusion(source_of(SOPInstanceUID="2.25.99"))
    with pytest.raises(ExportError, match=r"2\.25\.99"):
        write_sr(tmp_path / "sr.dcm", [trace], source_of(), seg=None)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    source = source_of()
    with pytest.raises(CallError, match="cannot be written"):
        write_sr(tmp_path / "none" / "sr.dcm", [effusion(source)], source, seg=None)


@pytest.mark.parametrize("name", CHEST_SOURCES)
def test_dciodvfy_finds_no_error_for_the_packs_sources(pack: Path, tmp_path: Path, name: str) -> None:
    source = read_source(pack / "dicom" / name)
    written(tmp_path, a_call(source), source)
    assert validated(tmp_path / "sr.dcm") == []


@pytest.mark.parametrize("seg", [True, False])
def test_dciodvfy_finds_no_error_for_the_demos_source_nor_for_refusals_alone(
    rg1: Path, tmp_path: Path, seg: bool
) -> None:
    source = read_source(rg1)
    traces = a_call(source) if seg else [unanswered(source, "refused")]
    written(tmp_path, traces, source, seg=seg)
    assert validated(tmp_path / "sr.dcm") == []
