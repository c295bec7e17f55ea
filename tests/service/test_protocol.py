"""The wire contract: what goes in comes out, and nothing that cannot be gets through."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import (
    BundleIdentity,
    Click,
    ClickStep,
    GroundedLung,
    ImageRecord,
    LungsStep,
    Mask,
    MaskStep,
    Result,
    Trace,
)
from xflow_core.service.protocol import (
    ARRAY_START,
    KINDS,
    PROTOCOL,
    Activity,
    AliveLine,
    ArrayImage,
    Ask,
    BundleInfo,
    Capabilities,
    CheckLine,
    Continue,
    DoneLine,
    EditMask,
    EndLine,
    ErrorLine,
    Health,
    ImageCheck,
    ImageInfo,
    Listening,
    ReplaceStep,
    RunLine,
    ServerLimits,
    StepLine,
    TraceLine,
    protocol_mismatch,
    read_line,
    run_request_from_json,
    write_line,
)

SHA = "a" * 64
IDENTITY = BundleIdentity("b", "1", "phantom", "f" * 64)
MASK = Mask.of(np.eye(6, dtype=bool))
RECORD = ImageRecord(SHA, "array", (6, 6), spacing_mm=(0.1, 0.2), spacing_kind="detector", warnings=("one",))
LUNGS = LungsStep(lungs=(GroundedLung("left lung", Box(0.1, 0.2, 0.3, 0.4), 0.5),))
TRACE = Trace(RECORD, parse_instruction("Segment the effusion in the left lung")[0], IDENTITY, (LUNGS,))


def through_json(data: object) -> object:
    return json.loads(json.dumps(data, allow_nan=False))


@pytest.mark.parametrize(
    "value",
    [
        Health("1.0", "loading", "loading the bundle"),
        Listening("127.0.0.1", 4, "http://127.0.0.1:4", "/a/token", 7),
        Capabilities(
            "1.0", (BundleInfo(IDENTITY, ("effusion",), True),), "cpu", None, ServerLimits(1, 2, 3, 4), Activity(1, 2)
        ),
        ImageInfo(RECORD),
        ImageCheck(("It may be a lateral view.",), "It is blank."),
        ImageCheck(),
    ],
)
def test_what_is_sent_is_what_is_read(value: Health) -> None:
    data = through_json(value.to_json())
    assert type(value).from_json({**data, "of a later version": 1}) == value


@pytest.mark.parametrize(
    "asked",
    [
        Ask(SHA, "Segment the effusion", "b", 1, 7, True),
        Continue(TRACE),
        Continue(TRACE, ReplaceStep(0, replace(LUNGS, origin="user"))),
        Continue(TRACE, EditMask(2, MASK, revise=False)),
    ],
)
def test_a_request_is_what_is_read(asked: Ask) -> None:
    assert run_request_from_json(through_json(asked.to_json())) == asked


@pytest.mark.parametrize(
    "line",
    [
        RunLine("r", 3),
        TraceLine(TRACE),
        StepLine(4, MaskStep(component=0, turn=1, mask=MASK, predicted_iou=0.25, notes=("cut",))),
        StepLine(5, ClickStep(component=0, turn=1, click=Click("negative", Point(0.1, 0.9)), text="<think>")),
        EndLine(Result("present", 0.5, area_px=3), {"read": 0.5}),
        EndLine(Result("present", 0.5, area_px=3), {"read": 0.5}, "nf4"),
        EndLine(None, {}),
        CheckLine(ImageCheck(("one", "two"))),
        DoneLine(True),
        ErrorLine("It failed.", "internal"),
        AliveLine(),
    ],
)
def test_a_line_is_what_is_read(line: RunLine) -> None:
    text = write_line(line)
    assert text.count(b"\n") == 1
    assert text.endswith(b"\n")
    assert read_line(text) == line


def test_a_line_of_a_later_version_is_passed_over() -> None:
    assert read_line(b'{"kind": "weather"}') is None
    with pytest.raises(ValueRefused):
        read_line(b'{"kind": "mask"}')
    with pytest.raises(ValueRefused):
        read_line(b'{"kind": "check", "warnings": [1], "refused": null}')
    with pytest.raises(ValueRefused):
        read_line(b"not json")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"image": "A" * 64}, "sha256"),
        ({"image": 3}, "sha256"),
        ({"instruction": None}, "instruction"),
        ({"instruction": "x" * 1001}, "1000"),
        ({"stages": 3}, "stages"),
        ({"stages": True}, "stages"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"seed": "1"}, "seed"),
        ({"accept_image": 1}, "accept_image"),
        ({"bundle": ["b"]}, "bundle"),
    ],
)
def test_a_question_that_cannot_be_is_refused_by_name(change: dict[str, object], word: str) -> None:
    with pytest.raises(ValueRefused, match=word):
        run_request_from_json({**Ask(SHA, "Segment the effusion").to_json(), **change})


@pytest.mark.parametrize("data", [None, [], "x", 3, {}, {"trace": 3}, {"trace": {}}, {"image": SHA}])
def test_what_is_no_request_is_refused(data: object) -> None:
    with pytest.raises(ValueRefused):
        run_request_from_json(data)


VALUES = hnp.arrays(
    st.sampled_from(["uint8", "uint16", "int16", "int32", "float32", "float64"]),
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=7),
    elements={"allow_nan": False, "allow_infinity": False},
)


@settings(max_examples=60, deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([(None, "none"), ((0.1, 0.2), "detector"), ((1.0, 1.0), "patient")]))
def test_an_array_travels_with_its_meaning(values: np.ndarray, bright: bool, spacing: tuple) -> None:
    image = ArrayImage(values, bright, *spacing)
    again = ArrayImage.from_bytes(image.to_bytes())
    assert again.values.dtype == values.dtype
    assert (again.values == values).all()
    assert (again.dense_is_bright, again.spacing_mm, again.spacing_kind) == (bright, *spacing)
    assert again.to_bytes() == image.to_bytes()


def test_an_arrays_meaning_is_part_of_its_name() -> None:
    values = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert ArrayImage(values, True).to_bytes() != ArrayImage(values, False).to_bytes()
    assert ArrayImage(np.asfortranarray(values), True).to_bytes() == ArrayImage(values, True).to_bytes()


@pytest.mark.parametrize(
    "values",
    [np.zeros(3, np.uint8), np.zeros((0, 3), np.uint8), np.full((2, 2), np.nan), np.zeros((2, 2), complex)],
)
def test_an_array_that_is_no_image_is_refused(values: np.ndarray) -> None:
    with pytest.raises(ValueRefused):
        ArrayImage(values, True)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_damaged_bytes_are_no_array_and_say_so(data: st.DataObject) -> None:
    whole = bytearray(ArrayImage(np.arange(12, dtype=np.uint16).reshape(3, 4), True).to_bytes())
    place = data.draw(st.integers(0, len(whole) - 30))
    whole[place] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    for damaged in (cut, ARRAY_START + cut):
        try:
            ArrayImage.from_bytes(damaged)
        except ValueRefused as problem:
            assert str(problem).endswith(".")


def test_a_huge_size_with_few_bytes_allocates_nothing() -> None:
    meaning = {
        "size": [10**9, 10**9], "dtype": "uint8", "dense_is_bright": True, "spacing_mm": None, "spacing_kind": "none",
    }  # fmt: skip
    with pytest.raises(ValueRefused, match="wrong number of bytes"):
        ArrayImage.from_bytes(ARRAY_START + json.dumps(meaning).encode() + b"\n" + b"\0" * 10)


def test_versions_are_negotiated_with_a_sentence_that_names_the_side_to_update() -> None:
    assert protocol_mismatch(PROTOCOL) is None
    assert protocol_mismatch(3, (2, 4)) is None
    assert "protocols 2 to 4; update XFlow on the client's side" in protocol_mismatch(1, (2, 4))
    assert "protocol 2; update XFlow on the server's side" in protocol_mismatch(3, (2, 2))


def test_every_error_has_a_status_of_an_error() -> None:
    assert all(400 <= status < 600 for status in KINDS.values())


def test_the_client_loads_neither_torch_nor_a_heavy_room() -> None:
    heavy = ("torch", "scipy", "pydicom", "PIL", "xflow_core.workflow", "xflow_core.radiograph", "xflow_core.bundles")
    code = (
        "import sys, xflow_core.service.client;"
        f"print([name for name in {heavy} if name in sys.modules]);"
        "print(sorted(n for n in sys.modules if n.startswith('xflow_core.') and '.domain' not in n))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0] == "[]"
    assert said[1] == "['xflow_core.service', 'xflow_core.service.client', 'xflow_core.service.protocol']"
