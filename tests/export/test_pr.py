"""The presentation state shows the source as its own header asks, and draws what was decided where it was decided."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from export.dicom_answers import (
    CHEST_SOURCES,
    SIZE,
    a_call,
    answer,
    consolidation,
    disc,
    effusion,
    no_pneumonia,
    source_of,
    unanswered,
)
from export.dicom_headers import BUNDLE, header, validated
from export.test_outline import filled
from pydicom.dataset import Dataset

from xflow_core.domain.errors import CallError, ExportError
from xflow_core.domain.trace import Trace
from xflow_core.export.dicom_source import SourceInstance, read_source
from xflow_core.export.pr import BOXES, CONTOUR, LUNGS, NEGATIVE, NOTICE, POSITIVE, write_pr
from xflow_core.radiograph.reading import read_radiograph


def written(path: Path, traces: list[Trace], source: SourceInstance, **options: Any) -> Dataset:
    return pydicom.dcmread(write_pr(path / "pr.dcm", traces, source, **options))


def drawn(state: Dataset, layer: str, kind: str) -> list[np.ndarray]:
    """The ``[n, 2]`` points of each graphic of a kind in a layer."""
    return [
        np.array(graphic.GraphicData).reshape(-1, 2)
        for annotation in state.GraphicAnnotationSequence
        if annotation.GraphicLayer == layer
        for graphic in annotation.get("GraphicObjectSequence", [])
        if graphic.GraphicType == kind
    ]


def labels(state: Dataset, layer: str) -> list[str]:
    return [
        text.UnformattedTextValue
        for annotation in state.GraphicAnnotationSequence
        if annotation.GraphicLayer == layer
        for text in annotation.get("TextObjectSequence", [])
    ]


def area_of(state: Dataset) -> Dataset:
    (area,) = state.DisplayedAreaSelectionSequence
    return area


def looked_up(item: Dataset, values: np.ndarray) -> np.ndarray:
    """Through a LUT, to [0, 1]; explicit VR tells the sign of its first input."""
    entries, first, bits = (int(value) for value in item.LUTDescriptor)
    table = np.frombuffer(item.LUTData, "<u2")
    assert len(table) == (entries & 0xFFFF or 65536)
    return table[np.clip(values - first, 0, len(table) - 1).astype(int)] / (2**bits - 1)


def displayed(state: Dataset, stored: np.ndarray) -> np.ndarray:
    """What a viewer makes of the stored values by the presentation state alone (PS3.4 N.2), uint8."""
    values = stored.astype(float)
    if "ModalityLUTSequence" in state:
        values = looked_up(state.ModalityLUTSequence[0], values)
    elif "RescaleSlope" in state:
        values = values * float(state.RescaleSlope) + float(state.RescaleIntercept)
    if "SoftcopyVOILUTSequence" in state:
        (voi,) = state.SoftcopyVOILUTSequence
        if "VOILUTSequence" in voi:
            values = looked_up(voi.VOILUTSequence[0], values)
        else:
            centre, width = float(voi.WindowCenter), float(voi.WindowWidth)
            values = (values - (centre - 0.5)) / (width - 1) + 0.5
    else:
        values = (values - values.min()) / np.ptp(values)
    values = np.clip(values, 0, 1)
    return np.rint(255 * (1 - values if state.PresentationLUTShape == "INVERSE" else values)).astype(np.uint8)


def test_every_kind_of_decision_has_its_layer_in_the_order_of_drawing(tmp_path: Path) -> None:
    source = source_of()
    state = written(tmp_path, a_call(source), source)
    layers = [(layer.GraphicLayer, layer.GraphicLayerOrder) for layer in state.GraphicLayerSequence]
    assert layers == [(LUNGS, 1), (CONTOUR, 2), (BOXES, 3), (NEGATIVE, 4), (POSITIVE, 5), (NOTICE, 6)]
    assert {annotation.GraphicLayer for annotation in state.GraphicAnnotationSequence} == {name for name, _ in layers}


def test_an_absent_finding_has_its_lungs_and_the_notice_alone(tmp_path: Path) -> None:
    source = source_of()
    state = written(tmp_path, [no_pneumonia(source)], source)
    assert [layer.GraphicLayer for layer in state.GraphicLayerSequence] == [LUNGS, NOTICE]


def test_the_contours_filled_are_the_mask(tmp_path: Path) -> None:
    """Holes and components included; PS3.3 C.10.5: 0\\0 is the outer corner of the top left pixel."""
    source = source_of()
    for trace in (effusion(source), consolidation(source)):
        state = written(tmp_path, [trace], source)
        lines = [line.astype(int) for line in drawn(state, CONTOUR, "POLYLINE")]
        assert len(lines) == 2
        assert np.array_equal(filled(lines, SIZE), trace.steps[-1].mask.array)


def test_an_outline_too_long_for_one_line_is_drawn_in_pieces(tmp_path: Path) -> None:
    size = (60, 400)
    source = source_of(size)
    comb = np.zeros(size, bool)
    comb[0] = comb[:, ::4] = comb[::2, 1::4] = True  # a row of saws
    state = written(tmp_path, [answer(source, "effusion", ("chest",), mask=comb)], source)
    lines = drawn(state, CONTOUR, "POLYLINE")
    assert [len(line) <= 8000 for line in lines] == [True, True]
    assert np.array_equal(lines[0][-1], lines[1][0])
    assert np.array_equal(filled([np.concatenate([lines[0], lines[1][1:]]).astype(int)], size), comb)


def test_boxes_and_clicks_lie_where_they_were_decided(tmp_path: Path) -> None:
    source = source_of()
    state = written(tmp_path, [effusion(source)], source)
    height, width = SIZE
    ((*corners, last),) = drawn(state, BOXES, "POLYLINE")
    x1, y1, x2, y2 = 0.62 * width, 0.6 * height, 0.86 * width, 0.84 * height
    assert np.allclose(corners, [(x1, y1), (x2, y1), (x2, y2), (x1, y2)], atol=1e-3)
    assert np.array_equal(last, corners[0])
    assert np.allclose(drawn(state, POSITIVE, "POINT"), [[(175.5, 200.5)]], atol=1e-3)  # of pixel (200, 175)
    assert np.allclose(drawn(state, NEGATIVE, "POINT"), [[(0.74 * width, 0.72 * height)]], atol=1e-3)
    assert len(drawn(state, LUNGS, "POLYLINE")) == 2


def test_labels_name_the_lungs_the_findings_and_the_clicks(tmp_path: Path) -> None:
    source = source_of()
    state = written(tmp_path, a_call(source), source)
    assert labels(state, LUNGS) == ["right lung", "left lung"], "lungs that the traces share are drawn once"
    assert labels(state, BOXES) == ["effusion", "1 consolidation", "2 consolidation"]
    assert labels(state, CONTOUR) == ["effusion", "consolidation"]
    assert (labels(state, POSITIVE), labels(state, NEGATIVE)) == (["+1", "+2.1"], ["-2"])


def test_the_notice_says_what_this_is_and_how_each_question_was_answered(tmp_path: Path) -> None:
    source = source_of()
    traces = [*a_call(source), replace(unanswered(source, "failed"), instruction=effusion(source).instruction)]
    state = written(tmp_path, traces, source)
    (notice,) = labels(state, NOTICE)
    assert notice.splitlines() == [
        "AI result, not reviewed; not for clinical use",
        f"XFlow {BUNDLE.name} {BUNDLE.version}",
        "effusion: present",
        "consolidation: present",
        "pneumonia: absent",
        "edema: no answer (unsupported)",
        "effusion: no answer (failed)",
    ]
    assert state.ContentDescription == "AI result, not reviewed; not for clinical use"
    assert "not for clinical use" in state.SeriesDescription
    assert state.DeviceSerialNumber == BUNDLE.sha256
    assert written(tmp_path, traces, source, reviewed=True).ContentDescription.startswith("AI result, reviewed")


def test_what_is_drawn_holds_nothing_of_the_patient(tmp_path: Path) -> None:
    source = source_of(PatientName="Doe^Jane", PatientID="SECRET-17", AccessionNumber="ACC-4711")
    state = written(tmp_path, a_call(source), source)
    said = "\n".join(text for layer in state.GraphicLayerSequence for text in labels(state, layer.GraphicLayer))
    assert not any(value in said for value in ("Doe", "Jane", "SECRET", "ACC"))


def test_the_whole_image_is_displayed(tmp_path: Path) -> None:
    source = source_of()
    area = area_of(written(tmp_path, [effusion(source)], source))
    assert (list(area.DisplayedAreaTopLeftHandCorner), list(area.DisplayedAreaBottomRightHandCorner)) == (
        [1, 1],
        [SIZE[1], SIZE[0]],
    )
    assert area.PresentationSizeMode == "SCALE TO FIT"


@pytest.mark.parametrize(
    ("attributes", "ratio"),
    [
        ({}, [1, 1]),
        ({"ImagerPixelSpacing": [0, 0]}, [1, 1]),
        ({"PixelAspectRatio": [2, 1]}, [2, 1]),
        ({"PixelAspectRatio": [0, 1]}, [1, 1]),
        ({"ImagerPixelSpacing": [0.8, 0.8]}, [1, 1]),
        ({"ImagerPixelSpacing": [0.4, 0.8]}, [1, 2]),
        ({"ImagerPixelSpacing": [0.9, 0.6], "PixelSpacing": [0.9, 0.6]}, [3, 2]),
    ],
)
def test_without_a_calibrated_spacing_the_proportions_of_the_pixels_are_stated_and_no_millimetre(
    tmp_path: Path, attributes: dict[str, Any], ratio: list[int]
) -> None:
    source = source_of(**attributes)
    area = area_of(written(tmp_path, [effusion(source)], source))
    assert list(area.PresentationPixelAspectRatio) == ratio
    assert "PresentationPixelSpacing" not in area


def test_a_calibrated_spacing_is_stated(tmp_path: Path) -> None:
    source = source_of(PixelSpacing=[0.7, 0.35], PixelSpacingCalibrationType="FIDUCIAL")
    area = area_of(written(tmp_path, [effusion(source)], source))
    assert [float(mm) for mm in area.PresentationPixelSpacing] == [0.7, 0.35]
    assert "PresentationPixelAspectRatio" not in area


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ({}, "IDENTITY"),
        ({"PhotometricInterpretation": "MONOCHROME1"}, "INVERSE"),
        ({"PhotometricInterpretation": "MONOCHROME1", "PresentationLUTShape": "INVERSE"}, "INVERSE"),
        ({"PresentationLUTShape": "INVERSE"}, "INVERSE"),
    ],
)
def test_the_polarity_is_stated_since_a_presentation_state_overrides_the_photometric_interpretation(
    tmp_path: Path, attributes: dict[str, Any], shape: str
) -> None:
    source = source_of(**attributes)
    assert written(tmp_path, [effusion(source)], source).PresentationLUTShape == shape


@pytest.mark.parametrize("name", ["derived/m2_12bit_narrow_window.dcm", "real/mlut_18.dcm", "real/vlut_04.dcm"])
def test_the_source_looks_as_its_own_header_asks(pack: Path, tmp_path: Path, name: str) -> None:
    """The first of several windows, a modality LUT with negative inputs, a VOI LUT: as XFlow itself displays them."""
    path = pack / "dicom" / name
    source = read_source(path)
    state = written(tmp_path, a_call(source), source)
    shown = displayed(state, pydicom.dcmread(path).pixel_array)
    expected = read_radiograph(path).display
    assert np.abs(shown.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.parametrize(
    ("attributes", "window"),
    [
        ({}, None),
        ({"WindowCenter": "2048", "WindowWidth": "0"}, None),
        ({"WindowCenter": ["1500", "2600"], "WindowWidth": ["1200", "3000"]}, (1500, 1200, None)),
        ({"WindowCenter": ["7", "2600"], "WindowWidth": ["0", "3000"]}, (2600, 3000, None)),
        ({"WindowCenter": "0.5", "WindowWidth": "0.9", "VOILUTFunction": "SIGMOID"}, (0.5, 0.9, "SIGMOID")),
    ],
)
def test_the_first_usable_window_is_taken_and_none_is_invented(
    tmp_path: Path, attributes: dict[str, Any], window: tuple[float, float, str | None] | None
) -> None:
    source = source_of(**attributes)
    state = written(tmp_path, [effusion(source)], source)
    if window is None:
        assert "SoftcopyVOILUTSequence" not in state
        return
    (voi,) = state.SoftcopyVOILUTSequence
    assert (float(voi.WindowCenter), float(voi.WindowWidth), voi.get("VOILUTFunction")) == window


@pytest.mark.parametrize("implicit", [False, True], ids=["explicit VR", "implicit VR"])
def test_a_voi_lut_comes_before_a_window_whatever_its_entries_are_written_as(tmp_path: Path, implicit: bool) -> None:
    item = Dataset()
    item.add_new("LUTDescriptor", "US", [4, 65534, 8])
    item.add_new("LUTData", "OW", bytes([0, 80, 160, 255]))  # 8-bit entries, two in a word
    made = header(
        SIZE,
        VOILUTSequence=[item],
        WindowCenter="2048",
        WindowWidth="4096",
        RescaleSlope="2",
        RescaleIntercept="-10",
    )
    stream = io.BytesIO()
    pydicom.dcmwrite(stream, made, implicit_vr=implicit, little_endian=True)
    source = read_source(stream.getvalue())
    state = written(tmp_path, [effusion(source)], source)
    (voi,) = state.SoftcopyVOILUTSequence
    assert "WindowCenter" not in voi
    (table,) = voi.VOILUTSequence
    assert list(table.LUTDescriptor) == [4, -2, 16], "below zero where the values it maps are"
    assert (np.frombuffer(table.LUTData, "<u2") / 65535).tolist() == [0, 80 / 255, 160 / 255, 1]
    assert (state.RescaleSlope, state.RescaleIntercept, state.RescaleType) == (2, -10, "US")


def test_a_source_in_colour_gets_a_colour_presentation_state(tmp_path: Path) -> None:
    source = source_of(SamplesPerPixel=3, PhotometricInterpretation="RGB", PlanarConfiguration=0)
    state = written(tmp_path, [effusion(source)], source)
    assert state.SOPClassUID.name == "Color Softcopy Presentation State Storage"
    assert drawn(state, CONTOUR, "POLYLINE")
    assert validated(tmp_path / "pr.dcm") == []


def test_an_image_of_one_pixel_can_be_presented(tmp_path: Path) -> None:
    source = source_of((1, 1))
    state = written(tmp_path, [answer(source, "effusion", ("chest",), mask=disc((1, 1), 0.5, 0.5, 1))], source)
    assert [line.tolist() for line in drawn(state, CONTOUR, "POLYLINE")] == [[[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]]


def test_a_trace_of_another_image_is_refused(tmp_path: Path) -> None:
    trace = effusion(source_of(SOPInstanceUID="2.25.99"))
    with pytest.raises(ExportError, match=r"2\.25\.99"):
        write_pr(tmp_path / "pr.dcm", [trace], source_of())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    source = source_of()
    with pytest.raises(CallError, match="cannot be written"):
        write_pr(tmp_path / "none" / "pr.dcm", [effusion(source)], source)


@pytest.mark.parametrize("name", CHEST_SOURCES)
def test_dciodvfy_finds_no_error_for_the_packs_sources(pack: Path, tmp_path: Path, name: str) -> None:
    source = read_source(pack / "dicom" / name)
    written(tmp_path, a_call(source), source)
    assert validated(tmp_path / "pr.dcm") == []


def test_dciodvfy_finds_no_error_for_the_demos_source(rg1: Path, tmp_path: Path) -> None:
    source = read_source(rg1)
    written(tmp_path, a_call(source), source)
    assert validated(tmp_path / "pr.dcm") == []
