"""Masks travel as COCO run lengths, decisions as JSON; both come back as they were, and nonsense is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pycocotools import mask as coco

from xflow_core.domain import rle
from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import (
    BoxesStep,
    Branch,
    BundleIdentity,
    Click,
    ClickStep,
    GroundedLung,
    ImageRecord,
    LesionBox,
    LungsStep,
    Mask,
    MaskStep,
    PresenceStep,
    Result,
    ResultStep,
    Step,
    StopStep,
    Trace,
    Verdict,
    step_from_json,
)

masks = arrays.arrays(bool, st.tuples(st.integers(1, 40), st.integers(1, 40)))


# Run lengths


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # pycocotools' own
@given(masks)
def test_run_lengths_are_those_of_pycocotools(mask: np.ndarray) -> None:
    counts = rle.encode(mask)
    theirs = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    assert counts == theirs["counts"].decode()
    assert np.array_equal(coco.decode({"size": list(mask.shape), "counts": counts.encode()}).astype(bool), mask)
    assert np.array_equal(rle.decode(counts, mask.shape), mask)
    assert rle.area(counts) == mask.sum()


def test_long_runs_of_a_full_size_radiograph_come_back() -> None:
    mask = np.zeros((3000, 2500), bool)
    mask[1000:1900, 300:1100] = True
    mask[5, 5] = True
    counts = Mask.of(mask)
    assert counts.counts == coco.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode()
    assert np.array_equal(counts.array, mask)
    assert counts.area == 900 * 800 + 1


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.float32])
def test_a_mask_of_zeros_and_ones_is_a_mask(kind: type) -> None:
    array = np.eye(5, dtype=kind)
    assert np.array_equal(Mask.of(array).array, np.eye(5, dtype=bool))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (5,), (2, 2, 2), ()])
def test_a_mask_has_rows_and_columns(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueRefused, match=r"\("):
        Mask.of(np.zeros(shape, bool))


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ("", "cover 0 pixels, the image has 12"),
        ("=", "cover 13 pixels"),
        ("\x1f", "not a COCO"),
        ("\u20ac", "not a COCO"),
        ("<\u00e9", "not a COCO"),
        ("\\", "middle of a number"),
        ("M", "negative"),
        ("o" * 40, "not a COCO"),
    ],
)
def test_run_lengths_that_do_not_fill_the_image_are_refused(counts: str, said: str) -> None:
    with pytest.raises(ValueRefused, match=said):
        Mask((3, 4), counts)
    with pytest.raises(ValueRefused, match=said):
        rle.decode(counts, (3, 4))


@pytest.mark.parametrize("size", [(0, 4), (3, -4)])
def test_a_mask_of_no_pixels_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueRefused, match=str(size[1])):
        Mask(size, "0")


@given(st.text(max_size=30), st.tuples(st.integers(1, 9), st.integers(1, 9)))
def test_any_text_is_a_mask_of_that_size_or_refused(counts: str, size: tuple[int, int]) -> None:
    try:
        mask = Mask(size, counts)
    except ValueRefused:
        return
    assert mask.array.shape == size


# The trace


def disc(row: int, column: int, radius: int, size: tuple[int, int] = (64, 48)) -> np.ndarray:
    rows, columns = np.mgrid[: size[0], : size[1]]
    return (rows - row) ** 2 + (columns - column) ** 2 <= radius**2


def present_trace() -> Trace:
    """Everything that a trace can say, once."""
    (instruction,) = parse_instruction("Is there any plural effusion on the left?")
    lesion = Mask.of(disc(50, 36, 6))
    steps: tuple[Step, ...] = (
        LungsStep(lungs=(GroundedLung("left lung", Box(0.55, 0.1, 0.95, 0.9), 0.98),), seconds=0.21),
        PresenceStep(verdicts=(Verdict("left lung", True, 0.83),), text="left lung: present"),
        BoxesStep(boxes=(LesionBox(0, "effusion", Box(0.6, 0.7, 0.9, 0.9), "left lung", 0.7),)),
        MaskStep(
            component=0, turn=0, mask=Mask.of(disc(50, 36, 5)), predicted_iou=0.71, notes=("cut at the lung box",)
        ),
        ClickStep(component=0, turn=1, click=Click("positive", Point(0.7, 0.8)), origin="user"),
        MaskStep(component=0, turn=1, mask=lesion),
        StopStep(component=0, reason="satisfied"),
        ResultStep(present=True, mask=lesion, area_mm2=12.5),
    )
    image = ImageRecord(
        "ab" * 32, "dicom", (64, 48), "1.2.3", "PA", "MONOCHROME1", (0.143, 0.143), "detector", ("shown inverted",)
    )
    return Trace(
        image=image,
        instruction=instruction,
        bundle=BundleIdentity("compact", "0.1.0", "compact", "cd" * 32),
        steps=steps,
        result=Result("present", 0.83, "mask.png", lesion.area, 12.5),
        branch_of=Branch("0123456789abcdef", 4),
        seed=7,
        seconds={"read": 0.1, "total": 1.25},
    )


def absent_trace() -> Trace:
    (instruction,) = parse_instruction("no edema")
    verdicts = (Verdict("right lung", False, 0.9), Verdict("left lung", False, None))
    return Trace(
        image=ImageRecord("ab" * 32, "png", (64, 48)),
        instruction=instruction,
        bundle=BundleIdentity("compact", "0.1.0", "compact", "cd" * 32),
        steps=(PresenceStep(verdicts=verdicts), ResultStep(present=False)),
        result=Result("absent", 0.9),
    )


def as_written(trace: Trace) -> dict[str, Any]:
    return json.loads(json.dumps(trace.to_json(), allow_nan=False))


@pytest.mark.parametrize("make", [present_trace, absent_trace])
def test_a_trace_comes_back_from_json_as_it_was(make: Any) -> None:
    trace = make()
    again = Trace.from_json(as_written(trace))
    assert again == trace
    assert again.id == trace.id
    assert as_written(again) == as_written(trace)


def test_the_json_is_that_of_the_schema() -> None:
    data = as_written(present_trace())
    assert data["schema"] == "xflow.trace/1"
    assert data["instruction"]["regions"] == ["left lung"]
    assert data["instruction"]["level"] == "lung"
    assert [step["index"] for step in data["steps"]] == list(range(8))
    assert [step["kind"] for step in data["steps"]] == [
        "lungs",
        "presence",
        "boxes",
        "mask",
        "click",
        "mask",
        "stop",
        "result",
    ]
    assert all(step["origin"] in ("model", "user") and step["seconds"] >= 0 for step in data["steps"])
    assert data["steps"][1]["text"] == "left lung: present"
    assert data["steps"][4]["point"] == [0.7, 0.8]
    assert data["steps"][5]["mask"]["size"] == [64, 48]
    assert data["steps"][7]["area_px"] == data["result"]["area_px"] == disc(50, 36, 6).sum()
    assert data["result"]["present"] is True
    assert as_written(absent_trace())["steps"][1]["mask"] is None
    assert as_written(absent_trace())["result"]["present"] is False


def test_unknown_keys_are_ignored_wherever_they_stand() -> None:
    trace = present_trace()

    def with_more(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: with_more(item) for key, item in value.items()} | {"invented": {"later": [1]}}
        return [with_more(item) for item in value] if isinstance(value, list) else value

    data = with_more(as_written(trace))
    data["seconds"].pop("invented")
    assert Trace.from_json(data) == trace


def test_the_same_trace_is_equal_but_for_the_seconds() -> None:
    trace = present_trace()
    slower = replace(trace, seconds={"total": 9.0}, steps=tuple(replace(step, seconds=3.5) for step in trace.steps))
    assert slower == trace
    assert slower.id == trace.id
    assert hash(slower) == hash(trace)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 8},
        {"stages": 1},
        {"branch_of": None},
        {"steps": ()},
        {"result": Result("present", 0.84, "mask.png", 113, 12.5)},
        {"bundle": BundleIdentity("compact", "0.1.1", "compact", "cd" * 32)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_trace_that_says_something_else_is_another(change: dict[str, Any]) -> None:
    trace = present_trace()
    other = replace(trace, **change)
    assert other != trace
    assert other.id != trace.id


def test_numbers_of_numpy_are_written_as_plain_json() -> None:
    steps = (
        PresenceStep(verdicts=(Verdict("left lung", np.bool_(True), np.float32(0.5)),), seconds=np.float32(0.25)),
        ClickStep(component=np.int64(0), turn=np.int64(1), click=Click("negative", Point(np.float32(0.5), 0.5))),
        ResultStep(present=np.bool_(True), mask=Mask.of(np.ones((2, 2), bool)), area_mm2=np.float32(4.0)),
    )
    for index, step in enumerate(steps):
        written = json.loads(json.dumps(step.to_json(index)))
        assert step_from_json(written) == step


LUNG_BOX = Box(0, 0, 0.5, 1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Verdict("left lung", True, 1.2), "1.2"),
        (lambda: Verdict("left lung", True, float("nan")), "nan"),
        (lambda: Verdict("left lung", "false", 0.5), "'false'"),
        (lambda: Verdict("left kidney", True), "left kidney"),
        (lambda: GroundedLung("heart", LUNG_BOX), "heart"),
        (lambda: GroundedLung("left lung", LUNG_BOX, "high"), "high"),
        (lambda: LesionBox(-1, "effusion", LUNG_BOX, "left lung"), "-1"),
        (lambda: LesionBox(0, "pneumothorax", LUNG_BOX, "left lung"), "pneumothorax"),
        (lambda: LungsStep(lungs=()), "at least one"),
        (lambda: LungsStep(lungs=(GroundedLung("left lung", LUNG_BOX),) * 2), "once"),
        (lambda: PresenceStep(verdicts=()), "at least one"),
        (lambda: BoxesStep(boxes=(LesionBox(1, "effusion", LUNG_BOX, "left lung"),)), "1"),
        (lambda: Click("left", Point(0.5, 0.5)), "left"),
        (lambda: ClickStep(component=0, turn=0, click=Click("positive", Point(0.5, 0.5))), "0"),
        (lambda: MaskStep(component=0, turn=1.5, mask=Mask.of(np.ones((2, 2)))), "1.5"),
        (lambda: StopStep(component=0, reason="tired"), "tired"),
        (lambda: StopStep(component=0, reason="user", origin="nurse"), "nurse"),
        (lambda: StopStep(component=0, reason="user", seconds=-0.5), "-0.5"),
        (lambda: ResultStep(present=True), "mask"),
        (lambda: ResultStep(present=True, mask=Mask.of(np.zeros((2, 2)))), "mask"),
        (lambda: ResultStep(present=False, mask=Mask.of(np.ones((2, 2)))), "mask"),
        (lambda: ResultStep(present=False, area_mm2=float("inf")), "inf"),
        (lambda: Result("maybe"), "maybe"),
        (lambda: Result("present", area_px=-3), "-3"),
        (lambda: ImageRecord("ab", "png", (0, 5)), "0"),
        (lambda: ImageRecord("ab", "png", (5, 5), spacing_mm=(0.0, 0.1), spacing_kind="detector"), "0.0"),
        (lambda: ImageRecord("ab", "png", (5, 5), spacing_mm=(0.1, 0.1)), "kind"),
        (lambda: ImageRecord("ab", "png", (5, 5), spacing_kind="patient"), "kind"),
    ],
)
def test_a_decision_that_cannot_be_is_refused_with_what_is_wrong(make: Any, said: str) -> None:
    with pytest.raises(ValueRefused) as refused:
        make()
    assert said in str(refused.value)


def test_a_step_of_no_kind_cannot_be_made() -> None:
    with pytest.raises(TypeError):
        Step()  # type: ignore[abstract]


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "trace",
        {},
        {"schema": "xflow.trace/2"},
        {"schema": "xflow.trace/1"},
        {"schema": "xflow.trace/1", "steps": 3},
    ],
    ids=repr,
)
def test_what_is_no_trace_is_refused(data: Any) -> None:
    with pytest.raises(ValueRefused):
        Trace.from_json(data)


def test_an_area_has_the_unit_of_its_spacing_or_none() -> None:
    assert ImageRecord("ab", "dicom", (5, 5), spacing_mm=(0.2, 0.5), spacing_kind="detector").area_mm2(30) == 3.0
    assert ImageRecord("ab", "png", (5, 5)).area_mm2(30) is None


def test_the_last_step_of_a_kind_is_found() -> None:
    trace = present_trace()
    assert trace.last(MaskStep).turn == 1
    assert absent_trace().last(MaskStep) is None
    assert trace.with_mask_file(None).result == replace(trace.result, mask_file=None)  # type: ignore[type-var]


WRITTEN = as_written(present_trace())
PLACES = [
    (("steps", index, *path), key)
    for index, step in enumerate(WRITTEN["steps"])
    for path, holder in [((), step), *(((k,), v) for k, v in step.items() if isinstance(v, dict))]
    for key in holder
] + [((part,), key) for part in ("image", "instruction", "bundle", "result", "branch_of") for key in WRITTEN[part]]
NONSENSE = [None, "x", -1, 1e400, float("nan"), [], {}, True, "\u20ac", [[]], 2**70, ["left lung", "left lung"]]


@given(st.sampled_from(PLACES), st.sampled_from(NONSENSE) | st.just("delete"))
@settings(max_examples=400, deadline=None)
def test_a_damaged_trace_is_read_or_refused_and_nothing_else(place: tuple[tuple[Any, ...], str], value: Any) -> None:
    data = json.loads(json.dumps(WRITTEN))
    holder = data
    for step in place[0]:
        holder = holder[step]
    if value == "delete":
        del holder[place[1]]
    else:
        holder[place[1]] = value
    try:
        trace = Trace.from_json(data)
    except ValueRefused as refused:
        assert "\n" not in str(refused)
        return
    assert isinstance(trace, Trace)
