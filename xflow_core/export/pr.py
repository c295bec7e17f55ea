"""What was decided, drawn over the source: a Grayscale Softcopy Presentation State (PS3.3 A.33.1).

A viewer that opens it shows the source as its own header asks (modality LUT, VOI, polarity), the whole image, and the
decisions in layers that can be switched off one by one: lungs, lesion boxes, positive clicks, negative clicks, final
contour, and a notice. The source stays as it is. One that is in colour gets a Color Softcopy Presentation State
(A.33.2), which is the same without the grey stages.

- Coordinates (PIXEL) are ``column\\row`` as PS3.3 C.10.5 has them: the outer corner of the top left pixel is 0\\0,
  the centre of that pixel 0.5\\0.5, and the opposite corner of the image Columns\\Rows. Contours run along pixel edges.
- The polarity is stated, not inherited: a presentation state overrides the source's Photometric Interpretation (PS3.4
  N.2.1.4), so MONOCHROME1 becomes Presentation LUT Shape INVERSE. An image that states no VOI gets none.
- A presentation's own spacing takes the place of the image's when people measure on it (C.10.4), so only a spacing that
  is calibrated for the patient is stated; else the proportions of the pixels alone are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import highdicom as hd
import numpy as np
import pydicom
from PIL import ImageCms
from pydicom.uid import generate_uid
from pydicom.valuerep import format_number_as_ds

from xflow_core import NOT_FOR_CLINICAL_USE
from xflow_core.domain.geometry import Box
from xflow_core.domain.quiet import quiet_python
from xflow_core.domain.trace import BoxesStep, ClickStep, LungsStep, ResultStep, Trace

from .dicom_source import SourceInstance, check_traces, unusable, write_object
from .equipment import MANUFACTURER, REVIEW_STATES, equipment
from .outline import outlines

SERIES_NUMBER = 9003

LUNGS = "LUNGS"
CONTOUR = "FINAL CONTOUR"
BOXES = "LESION BOXES"
NEGATIVE = "NEGATIVE CLICKS"
POSITIVE = "POSITIVE CLICKS"
NOTICE = "NOTICE"

# In the order of drawing, with what each is and its colour: the overlay's, but no white, since there is no dark halo.
_LAYERS: dict[str, tuple[str, tuple[int, int, int]]] = {
    LUNGS: ("Boxes around the lungs", (120, 160, 255)),
    CONTOUR: ("Outline of the final mask", (64, 224, 255)),
    BOXES: ("Boxes around the lesions", (255, 186, 48)),
    NEGATIVE: ("Clicks that asked for less", (255, 104, 92)),
    POSITIVE: ("Clicks that asked for more", (84, 230, 140)),
    NOTICE: ("What this is, and the answers", (120, 160, 255)),
}
_SIGNS = {"positive": (POSITIVE, "+"), "negative": (NEGATIVE, "-")}

# Graphic Data is FL, and explicit VR gives that 65,534 bytes: 8,191 points (PS3.5 7.1.2).
_POINTS_OF_A_LINE = 8000
_LINES_OF_A_CONTOUR = 1000
_CLICK_RADIUS = 0.008  # of the image's longer side
_LINE_HEIGHT = 0.025  # of the displayed area

_CIRCLE, _POINT, _POLYLINE = (
    hd.pr.GraphicTypeValues.CIRCLE,
    hd.pr.GraphicTypeValues.POINT,
    hd.pr.GraphicTypeValues.POLYLINE,
)


def write_pr(
    path: str | Path,
    traces: Sequence[Trace],
    source: SourceInstance,
    *,
    reviewed: bool = False,
    uids: Callable[[], str] = generate_uid,
) -> Path:
    """Write the presentation state of a call; one without any decision to draw holds the notice alone.

    Args:
        traces: one per finding, all of the source image.
        reviewed: whether a person has looked at the result and stands by it.
        uids: where new UIDs come from.

    Raises:
        ExportError: the traces are not of the source image, or its header cannot be used.
        CallError: the file cannot be written.
    """
    check_traces(traces, source)
    path = Path(path)
    photometric = str(source.dataset.get("PhotometricInterpretation", ""))
    grey = photometric.startswith("MONOCHROME")
    header = _without_grey_stages(source.dataset)
    header.SamplesPerPixel = 1 if grey else 3
    kind = hd.pr.GrayscaleSoftcopyPresentationState if grey else hd.pr.ColorSoftcopyPresentationState
    more: dict[str, Any] = {"presentation_lut_transformation": _polarity(source)} if grey else {"icc_profile": _srgb()}
    layers = _layers(traces, source.size, reviewed)
    try:
        with quiet_python():
            graphic_layers = [
                hd.pr.GraphicLayer(name, order, description, hd.color.CIELabColor.from_rgb(*colour))
                for order, (name, (description, colour)) in enumerate(_LAYERS.items(), start=1)
                if name in layers
            ]
            made = kind(
                referenced_images=[header],
                series_instance_uid=uids(),
                series_number=SERIES_NUMBER,
                sop_instance_uid=uids(),
                instance_number=1,
                manufacturer=MANUFACTURER,
                content_label="XFLOW",
                content_description=REVIEW_STATES[reviewed],
                series_description=f"XFlow AI presentation, {NOT_FOR_CLINICAL_USE}",
                graphic_layers=graphic_layers,
                graphic_annotations=[layers[layer.GraphicLayer].on(header, layer) for layer in graphic_layers],
                **equipment(traces[0].bundle),
                **more,
            )
            made.BodyPartExamined = "CHEST"  # where all findings lie; unpaired, so no Laterality is wanted (C.7.3.1)
            made.DisplayedAreaSelectionSequence = [_displayed_area(source)]
            if grey:
                _add_modality_lut(made, source.dataset)
                voi = _voi(source.dataset)
                if voi is not None:
                    made.SoftcopyVOILUTSequence = [voi]
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise unusable(source, problem) from problem
    write_object(path, made, source)
    return path


# --- what is drawn --------------------------------------------------------------------------------------------------


@dataclass
class _Drawn:
    """What is drawn in a layer."""

    graphics: list[hd.pr.GraphicObject] = field(default_factory=list)
    texts: list[hd.pr.TextObject] = field(default_factory=list)

    def on(self, header: pydicom.Dataset, layer: hd.pr.GraphicLayer) -> hd.pr.GraphicAnnotation:
        return hd.pr.GraphicAnnotation(
            [header], layer, graphic_objects=self.graphics or None, text_objects=self.texts or None
        )

    def line(self, points: np.ndarray) -> None:
        """A line through ``[n, 2]`` points, in pieces where it is too long for one."""
        for start in range(0, len(points) - 1, _POINTS_OF_A_LINE - 1):
            piece = points[start : start + _POINTS_OF_A_LINE].astype(float)
            self.graphics.append(hd.pr.GraphicObject(_POLYLINE, piece, hd.pr.AnnotationUnitsValues.PIXEL))

    def box(self, box: Box, label: str, size: tuple[int, int]) -> None:
        height, width = size
        x1, y1, x2, y2 = box.x1 * width, box.y1 * height, box.x2 * width, box.y2 * height
        self.line(np.array([(x1, y1), (x2, y1), (x2, y2), (x1, y2), (x1, y1)]))
        self.label(label, (x1, y1))

    def label(self, text: str, anchor: tuple[float, float]) -> None:
        """Text beside a point; the viewer places it."""
        self.texts.append(
            hd.pr.TextObject(text, hd.pr.AnnotationUnitsValues.PIXEL, anchor_point=anchor, anchor_point_visible=False)
        )


def _layers(traces: Sequence[Trace], size: tuple[int, int], reviewed: bool) -> dict[str, _Drawn]:
    """What each layer holds; a layer that would hold nothing is left out."""
    layers = {name: _Drawn() for name in _LAYERS}
    lungs: dict[tuple[str, Box], None] = {}
    for trace in traces:
        step: LungsStep | None = trace.last(LungsStep)
        lungs |= dict.fromkeys((lung.label, lung.box) for lung in (() if step is None else step.lungs))
        _draw_contour(layers[CONTOUR], trace)
        boxes: BoxesStep | None = trace.last(BoxesStep)
        found = () if boxes is None else boxes.boxes
        for box in found:
            number = f"{box.component + 1} " if len(found) > 1 else ""
            layers[BOXES].box(box.box, f"{number}{box.label}", size)
        for click in (step for step in trace.steps if isinstance(step, ClickStep)):
            name, sign = _SIGNS[click.click.polarity]
            number = f"{click.component + 1}.{click.turn}" if len(found) > 1 else f"{click.turn}"
            _draw_click(layers[name], click, f"{sign}{number}", size)
    for label, around in lungs:
        layers[LUNGS].box(around, label, size)
    layers[NOTICE].texts.append(_notice(traces, reviewed))
    return {name: drawn for name, drawn in layers.items() if drawn.graphics or drawn.texts}


def _draw_contour(drawn: _Drawn, trace: Trace) -> None:
    step: ResultStep | None = trace.last(ResultStep)
    if step is None or step.mask is None or trace.result is None or not trace.result.present:
        return
    lines = outlines(step.mask.array)
    for line in lines[:_LINES_OF_A_CONTOUR]:
        drawn.line(line)
    more = len(lines) - _LINES_OF_A_CONTOUR
    left_out = f" ({more} smaller outlines are not drawn)" if more > 0 else ""
    x, y = lines[0][lines[0][:, 1].argmax()]  # the lesion box is named at its top
    drawn.label(f"{trace.instruction.finding}{left_out}", (float(x), float(y)))


def _draw_click(drawn: _Drawn, step: ClickStep, label: str, size: tuple[int, int]) -> None:
    height, width = size
    x, y = step.click.point.x * width, step.click.point.y * height
    units = hd.pr.AnnotationUnitsValues.PIXEL
    radius = max(_CLICK_RADIUS * max(size), 1.0)
    # A circle is its centre and a point on it, which has to lie in the image.
    rim = x + radius if x + radius <= width else max(x - radius, 0.0)
    drawn.graphics.append(hd.pr.GraphicObject(_POINT, np.array([(x, y)]), units))
    drawn.graphics.append(hd.pr.GraphicObject(_CIRCLE, np.array([(x, y), (rim, y)]), units))
    drawn.label(label, (min(x + 1.5 * radius, width), y))


def _notice(traces: Sequence[Trace], reviewed: bool) -> hd.pr.TextObject:
    """The review state and each answer in short, at the lower left of whatever is displayed."""
    bundle = traces[0].bundle
    lines = [
        REVIEW_STATES[reviewed],
        f"XFlow {bundle.name} {bundle.version}"[:64],
        *(f"{trace.instruction.finding}: {_status(trace)}" for trace in traces),
    ]
    top = max(0.98 - _LINE_HEIGHT * len(lines), 0.0)
    return hd.pr.TextObject(
        "\r\n".join(lines)[:1024],  # ST
        hd.pr.AnnotationUnitsValues.DISPLAY,
        bounding_box=(0.02, top, 0.98, 0.98),
        text_justification=hd.pr.TextJustificationValues.LEFT,
    )


def _status(trace: Trace) -> str:
    if trace.result is None:
        return "no answer yet"
    answered = trace.result.present is not None
    return trace.result.status if answered else f"no answer ({trace.result.status})"


# --- how the source is displayed ------------------------------------------------------------------------------------


def _displayed_area(source: SourceInstance) -> pydicom.Dataset:
    """The whole image, as large as fits (C.10.4); these corners are pixels, counted from 1."""
    rows, columns = source.size
    area = pydicom.Dataset()
    area.DisplayedAreaTopLeftHandCorner = [1, 1]
    area.DisplayedAreaBottomRightHandCorner = [columns, rows]
    area.PresentationSizeMode = "SCALE TO FIT"
    if source.spacing_mm is not None and source.spacing_kind == "patient":
        area.PresentationPixelSpacing = [format_number_as_ds(mm) for mm in source.spacing_mm]
    else:
        area.PresentationPixelAspectRatio = list(_aspect_ratio(source))
    return area


def _aspect_ratio(source: SourceInstance) -> tuple[int, int]:
    """A pixel's height to its width, in whole numbers."""
    if source.spacing_mm is not None:
        row, column = source.spacing_mm
        return Fraction(row / column).limit_denominator(1000).as_integer_ratio()
    stated = _numbers(source.dataset.get("PixelAspectRatio"))
    if len(stated) == 2 and all(side >= 1 and side == int(side) for side in stated):
        return int(stated[0]), int(stated[1])
    return 1, 1


_GREY_STAGES = (
    "ModalityLUTSequence", "RescaleIntercept", "RescaleSlope", "RescaleType", "VOILUTSequence", "WindowCenter",
    "WindowWidth", "WindowCenterWidthExplanation", "VOILUTFunction", "PresentationLUTShape",
)  # fmt: skip


def _without_grey_stages(dataset: pydicom.Dataset) -> pydicom.Dataset:
    """A header from which highdicom copies no grey stage: it refuses a window beside a VOI LUT, and impossible ones."""
    return pydicom.Dataset(
        {element.tag: element for element in dataset if element.keyword not in (*_GREY_STAGES, "SamplesPerPixel")}
    )


def _polarity(source: SourceInstance) -> hd.PresentationLUTTransformation:
    """Where either of the two asks for it, one inversion: as XFlow reads the image."""
    dataset = source.dataset
    shape = str(dataset.get("PresentationLUTShape", ""))
    inverse = str(dataset.get("PhotometricInterpretation", "")) == "MONOCHROME1" or shape == "INVERSE"
    return hd.PresentationLUTTransformation("INVERSE" if inverse else "IDENTITY")


def _add_modality_lut(made: pydicom.Dataset, dataset: pydicom.Dataset) -> None:
    """The source's Modality LUT, else its slope and intercept (C.11.1)."""
    for item in dataset.get("ModalityLUTSequence") or ():
        table = _table(item, signed=dataset.get("PixelRepresentation") == 1, spread=False)
        if table is not None:
            table.ModalityLUTType = str(item.get("ModalityLUTType") or "US")
            made.ModalityLUTSequence = [table]
            return
    slope, intercept = _numbers(dataset.get("RescaleSlope")), _numbers(dataset.get("RescaleIntercept"))
    if len(slope) == 1 and len(intercept) == 1 and slope[0] != 0:
        made.RescaleSlope = format_number_as_ds(slope[0])
        made.RescaleIntercept = format_number_as_ds(intercept[0])
        made.RescaleType = str(dataset.get("RescaleType") or "US")


def _voi(dataset: pydicom.Dataset) -> pydicom.Dataset | None:
    """The source's first VOI LUT, else its first usable window (C.11.8); None when it states neither."""
    intercept = _numbers(dataset.get("RescaleIntercept"))
    signed = bool(intercept and intercept[0] < 0) or dataset.get("PixelRepresentation") == 1
    if dataset.get("ModalityLUTSequence"):
        signed = False  # its output is not
    for item in dataset.get("VOILUTSequence") or ():
        table = _table(item, signed, spread=True)
        if table is not None:
            voi = pydicom.Dataset()
            voi.VOILUTSequence = [table]
            return voi
    function = str(dataset.get("VOILUTFunction") or "LINEAR")
    if function not in ("LINEAR", "LINEAR_EXACT", "SIGMOID"):
        function = "LINEAR"
    windows = zip(_numbers(dataset.get("WindowCenter")), _numbers(dataset.get("WindowWidth")), strict=False)
    for centre, width in windows:
        if width >= 1 or (width > 0 and function != "LINEAR"):
            voi = pydicom.Dataset()
            voi.WindowCenter, voi.WindowWidth = format_number_as_ds(centre), format_number_as_ds(width)
            if function != "LINEAR":
                voi.VOILUTFunction = function
            return voi
    return None


def _table(item: pydicom.Dataset, signed: bool, spread: bool) -> pydicom.Dataset | None:
    """A LUT's descriptor and data, written anew with 16 bits an entry; None when they are missing or incomplete.

    C.11.1.1 and its odd forms in files: the entries are numbers, words or bytes, and the descriptor's second value is
    signed whatever its type.

    Args:
        signed: whether the values that it maps can be negative.
        spread: whether its entries mean shares of the brightest, so that they may be spread over the 16 bits; else
            they stay as they are.
    """
    descriptor, data = _numbers(item.get("LUTDescriptor")), item.get("LUTData")
    if len(descriptor) != 3 or data is None:
        return None
    entries = int(descriptor[0]) & 0xFFFF or 65536
    first = int(descriptor[1])
    if first > 32767 and signed:
        first -= 65536
    if isinstance(data, bytes):
        wide = len(data) >= 2 * entries
        values = np.frombuffer(data[: 2 * entries], "<u2") if wide else np.frombuffer(data, np.uint8)
    else:
        values = (np.atleast_1d(np.asarray(data, np.int64)) & 0xFFFF).astype("<u2")
        if int(descriptor[2]) <= 8 and len(values) < entries:
            values = values.view(np.uint8)
    if len(values) < entries:
        return None
    words = values[:entries].astype("<u2")
    if spread:
        bits = max(int(words.max()).bit_length(), int(descriptor[2]) if 8 <= descriptor[2] <= 16 else 8)
        words = np.rint(words * (65535 / (2**bits - 1))).astype("<u2")
    # The descriptor's values share one type, and a negative first input makes it a signed one.
    counted = entries % 65536
    table = pydicom.Dataset()
    if first < 0:
        table.add_new("LUTDescriptor", "SS", [counted - 65536 if counted > 32767 else counted, first, 16])
    else:
        table.add_new("LUTDescriptor", "US", [counted, first, 16])
    table.add_new("LUTData", "OW", words.tobytes())
    return table


def _numbers(value: Any) -> list[float]:
    """All values as finite floats; none when one is no number."""
    values: Iterable[Any]
    if value is None or value == "":
        values = ()
    elif isinstance(value, bytes):  # of a type that implicit VR leaves open (US or SS)
        values = np.frombuffer(value[: len(value) // 2 * 2], "<u2")
    else:
        values = [value] if isinstance(value, (int, float, str)) else value
    try:
        found = [float(item) for item in values]
    except (TypeError, ValueError, OverflowError):
        return []
    return found if all(math.isfinite(item) for item in found) else []


def _srgb() -> bytes:
    """sRGB as an input profile, which is what DICOM takes (C.11.15); Pillow makes it as a display's."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return profile[:12] + b"spac" + profile[16:]
