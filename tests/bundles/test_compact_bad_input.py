"""What no one should ask of the bundle that ships: each ends with a sentence or a stated answer, never with a NaN."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from xflow_core.bundles.loading import load_engine
from xflow_core.cli.app import main
from xflow_core.domain.errors import EngineError, RadiographRefused, ValueRefused, XFlowError
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.instruction import Instruction, parse_instruction
from xflow_core.domain.trace import (
    BoxesStep,
    Click,
    ClickStep,
    GroundedLung,
    LesionBox,
    LungsStep,
    Mask,
    MaskStep,
    PresenceStep,
    StopStep,
    Trace,
    Verdict,
    step_from_json,
)
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import Radiograph, engine_grey, read_radiograph
from xflow_core.workflow.engine import Engine
from xflow_core.workflow.session import Session

NAN, INFINITY = math.nan, math.inf


def strict(text: str) -> Any:
    """JSON by its standard (RFC 8259), which has no NaN and no Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} stands in the JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load_engine("compact", "cpu")


@pytest.fixture(scope="module")
def grey(rg1: Path) -> np.ndarray:
    """The demo's radiograph at a quarter of its size, uint8."""
    whole = engine_grey(read_radiograph(rg1))[:1952, :1840]
    return np.rint(whole.reshape(488, 4, 460, 4).mean(axis=(1, 3)) * 255).astype(np.uint8)


@pytest.fixture(scope="module")
def radiograph(grey: np.ndarray) -> Radiograph:
    file = io.BytesIO()
    Image.fromarray(grey).save(file, "PNG")
    return read_radiograph(file.getvalue())


@pytest.fixture(scope="module")
def image(engine: Engine, radiograph: Radiograph) -> EncodedRadiograph:
    return engine.admit(radiograph)


@pytest.fixture
def asked(engine: Engine, image: EncodedRadiograph) -> Any:
    """A finished session in which the opacity stands as present."""

    def ask(words: str = "Segment the opacity.") -> Session:
        session = Session(engine, image, parse_instruction(words)[0])
        list(session.run())
        step = session.steps[1]
        assert isinstance(step, PresenceStep)
        stated = tuple(Verdict(verdict.region, True) for verdict in step.verdicts)
        branch = session.replace(1, PresenceStep(verdicts=stated))
        list(branch.run())
        return branch

    return ask


def ended(session: Session) -> Trace:
    """The trace of a session run to its end, or to the error of the family that says why there is none; sound JSON."""
    try:
        list(session.run())
        trace = session.trace()
    except EngineError as problem:
        trace = session.trace(failure=problem)
        assert "\n" not in str(problem)
    assert trace.result is not None
    assert Trace.from_json(strict(json.dumps(trace.to_json()))) == trace
    return trace


# Regions.


@pytest.mark.parametrize(
    "words",
    [
        "Segment the effusion in the upper zone of the heart",
        "effusion in the heart",
        "opacity in the right heart zone",
        "Segment the effusion in the heart and the left lung",
    ],
)
def test_a_zone_of_the_heart_is_no_region(words: str, rg1: Path, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        main(["segment", str(rg1), "-i", words, "-o", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.startswith("xflow: ")
    assert said.count("\n") == 1
    assert "heart" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("finding", ["effusion", "opacity", "edema"])
def test_nothing_but_cardiomegaly_is_asked_of_the_heart(finding: str) -> None:
    with pytest.raises(ValueRefused, match="heart"):
        Instruction(f"{finding} in the heart", finding, ("heart",), "chest")


@pytest.mark.parametrize("region", ["heart", "right lung", "left lung base"])
def test_a_readers_box_lies_in_a_region_that_was_asked_about(region: str, asked) -> None:
    session = asked("Segment the opacity in the left lung.")
    box = LesionBox(0, "opacity", Box(0.6, 0.4, 0.8, 0.6), region)
    with pytest.raises(ValueRefused, match=region):
        session.replace(2, BoxesStep(boxes=(box,)))


# Boxes and points.


@pytest.mark.parametrize(
    "edges",
    [
        (0.4, 0.4, 0.4, 0.6),
        (0.4, 0.4, 0.6, 0.4),
        (0.6, 0.4, 0.4, 0.6),
        (-0.1, 0.4, 0.6, 0.6),
        (0.4, 0.4, 1.1, 0.6),
        (NAN, 0.4, 0.6, 0.6),
        (0.4, 0.4, INFINITY, 0.6),
        (100, 100, 300, 300),
    ],
)
def test_a_box_that_is_empty_or_outside_is_refused_with_the_number(edges: tuple[float, ...]) -> None:
    sent = {"component": 0, "label": "opacity", "box": list(edges), "region": "left lung"}
    for make in (lambda: Box(*edges), lambda: step_from_json({"kind": "boxes", "boxes": [sent]})):
        with pytest.raises(ValueRefused) as refused:
            make()
        assert any(f"{edge}" in str(refused.value) for edge in edges)


@pytest.mark.parametrize("place", [(-0.01, 0.5), (0.5, 1.01), (NAN, 0.5), (0.5, -INFINITY), (512, 300)])
def test_a_point_outside_the_image_is_refused_with_the_number(place: tuple[float, float]) -> None:
    sent = {"kind": "click", "component": 0, "turn": 1, "polarity": "positive", "point": list(place)}
    for make in (lambda: Point(*place), lambda: step_from_json(sent)):
        with pytest.raises(ValueRefused, match=r"normalised"):
            make()


@pytest.mark.parametrize("words", ["Segment the opacity.", "Segment the opacity in the left lung."])
@pytest.mark.parametrize(
    "edges",
    [
        (0.0, 0.0, 0.05, 0.05),
        (0.97, 0.97, 1.0, 1.0),
        (0.0, 0.0, 1.0, 1.0),
        (0.5, 0.5, 0.5 + 1e-9, 0.5 + 1e-9),
    ],
    ids=["corner above", "corner below", "everything", "less than a pixel"],
)
def test_a_readers_box_outside_the_lungs_is_answered_there_or_said_to_fail(words: str, edges, asked) -> None:
    session = asked(words)
    trace = ended(session.replace(2, BoxesStep(boxes=(LesionBox(0, "opacity", Box(*edges), "left lung"),))))
    assert trace.result.status in ("present", "failed")
    if trace.result.status == "failed":
        assert "no mask has a pixel left" in trace.result.message


@pytest.mark.parametrize("polarity", ["positive", "negative"])
@pytest.mark.parametrize("place", [(0.0, 0.0), (1.0, 1.0), (0.5, 0.02)])
def test_a_click_anywhere_on_the_image_is_taken(polarity: str, place: tuple[float, float], asked) -> None:
    session = asked()
    k, stop = next((k, step) for k, step in enumerate(session.steps) if isinstance(step, StopStep))
    turn = 1 + sum(isinstance(step, ClickStep) and step.component == stop.component for step in session.steps[:k])
    click = ClickStep(component=stop.component, turn=turn, click=Click(polarity, Point(*place)))
    assert ended(session.replace(k, click)).result.status in ("present", "failed")


@pytest.mark.parametrize(
    "boxes",
    [
        {"right lung": Box(0.2, 0.2, 0.2 + 1e-9, 0.2 + 1e-9), "left lung": Box(0.999, 0.999, 1.0, 1.0)},
        {"right lung": Box(0.0, 0.0, 1.0, 1.0), "left lung": Box(0.0, 0.0, 1.0, 1.0)},
        {"right lung": Box(0.55, 0.1, 0.9, 0.8), "left lung": Box(0.1, 0.1, 0.45, 0.8)},
    ],
    ids=["points", "everything", "exchanged"],
)
@pytest.mark.parametrize("words", ["Segment the opacity.", "Segment the opacity in the lung bases."])
def test_lungs_that_no_one_has_are_judged_without_a_nan(boxes: dict[str, Box], words: str, asked) -> None:
    lungs = tuple(GroundedLung(label, box) for label, box in boxes.items())
    session = asked(words).replace(0, LungsStep(lungs=lungs))
    assert ended(session).result.status in ("present", "absent", "failed")


def test_a_mask_that_the_reader_wiped_out_is_a_failure_and_no_absence(asked) -> None:
    session = asked()
    boxes = session.steps[2]
    assert isinstance(boxes, BoxesStep)
    session = session.replace(2, BoxesStep(boxes=boxes.boxes[:1]))
    list(session.run())
    k = next(k for k, step in enumerate(session.steps) if isinstance(step, MaskStep))
    nothing = MaskStep(component=0, turn=0, mask=Mask.of(np.zeros(session.image.radiograph.size, bool)))
    session = session.replace(k, nothing)
    session.run().__next__()
    session = session.replace(k + 1, StopStep(component=0, reason="user"))
    trace = ended(session)
    assert trace.result.status == "failed"
    assert trace.result.present is None


# Pictures.


def pictures(grey: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    for name, level in (("black", 0), ("grey", 128), ("white", 255)):
        yield name, np.full_like(grey, level)
    spot = np.zeros_like(grey)
    spot[200, 200] = 255
    yield "one-pixel", spot
    yield "black-crop", grey[:8, :8].repeat(16, 0).repeat(16, 1) * 0
    half = grey.copy()
    half[grey.shape[0] // 2 :] = 0
    yield "half-black", half


def test_blank_pictures_are_refused_and_when_accepted_answered_or_said_to_fail(grey, tmp_path: Path, capsys) -> None:
    files = []
    for name, picture in pictures(grey):
        files.append(tmp_path / f"{name}.png")
        Image.fromarray(picture).save(files[-1])
    blank = [str(file) for file in files if file.stem != "half-black"]
    with pytest.raises(SystemExit) as end:
        main(["segment", *blank, "--survey", "-o", str(tmp_path / "refused"), "--json"])
    said = capsys.readouterr()
    assert end.value.code == 3
    results = strict(said.out.splitlines()[-1])["results"]
    assert {result["status"] for result in results} == {"refused"}
    assert [line[:7] for line in said.err.splitlines() if line] == ["xflow: "] * len(blank)

    with pytest.raises(SystemExit) as end:
        main(["segment", *map(str, files), "--survey", "-o", str(tmp_path / "run"), "--accept-image", "--json"])
    assert end.value.code in (0, 4)
    results = strict(capsys.readouterr().out.splitlines()[-1])["results"]
    assert {result["status"] for result in results} <= {"present", "absent", "unsupported", "failed"}
    written = [*tmp_path.rglob("*.json")]
    assert len(written) == 7 * (len(blank) + len(files))
    for path in written:
        strict(path.read_text())


def test_a_box_on_the_black_part_of_a_picture_is_answered_or_said_to_fail(engine: Engine, grey, tmp_path: Path) -> None:
    picture = dict(pictures(grey))["half-black"]
    Image.fromarray(picture).save(tmp_path / "half.png")
    image = engine.admit(read_radiograph(tmp_path / "half.png"), accept_image=True)
    session = Session(engine, image, parse_instruction("Segment the opacity.")[0])
    list(session.run())
    session = session.replace(
        1, PresenceStep(verdicts=tuple(Verdict(lung, True) for lung in ("right lung", "left lung")))
    )
    list(session.run())
    box = LesionBox(0, "opacity", Box(0.6, 0.7, 0.8, 0.9), "left lung")
    assert ended(session.replace(2, BoxesStep(boxes=(box,)))).result.status in ("present", "failed")


@pytest.mark.parametrize("bad", [NAN, INFINITY, -INFINITY])
def test_a_file_with_numbers_that_are_none_is_refused(bad: float, grey, tmp_path: Path, capsys) -> None:
    picture = grey.astype(np.float32)
    picture[100, 100] = bad
    Image.fromarray(picture).save(tmp_path / "bad.tiff")
    with pytest.raises(SystemExit) as end:
        main(["segment", str(tmp_path / "bad.tiff"), "-i", "Segment the opacity", "-o", str(tmp_path / "out")])
    assert end.value.code == 3
    assert "bad.tiff" in capsys.readouterr().err


@pytest.mark.parametrize("bad", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize("share", [1e-6, 0.2, 1.0])
def test_values_that_are_no_numbers_end_with_a_typed_error_or_sound_numbers(
    bad: float, share: float, engine: Engine, radiograph: Radiograph
) -> None:
    values = radiograph.values.copy()
    values.reshape(-1)[: max(1, round(share * values.size))] = bad
    # As a program would that builds its radiograph itself: readers refuse such values.
    try:
        with np.errstate(all="ignore"):
            image = engine.admit(replace(radiograph, values=values), accept_image=True)
            session = Session(engine, image, parse_instruction("Segment the opacity.")[0])
            list(session.run())
    except (EngineError, RadiographRefused) as problem:
        assert isinstance(problem, XFlowError)
        return
    strict(json.dumps(session.trace().to_json()))
