"""The words that a policy writes (DESIGN.md, "Transcript grammar"), both ways: from decisions to text and back.

Each part of a transcript is a *plan*: a generator that says what comes next, either fixed words (a string) or a place
where the writer decides (:class:`Choice`, :class:`Number`), and that is sent what was decided there. One plan serves
three readers, so they cannot drift apart: :func:`write` answers it with known decisions, :func:`read` matches it with a
text, and constrained decoding (:mod:`.medgemma_decoding`) lets a model answer it.

Whole numbers are positions on the picture padded with black to a square, 0 at its left or upper edge and ``grid`` at
the other one (:class:`SquareFrame`). What is written is read back exactly: ``read(plan, text)`` succeeds only on the
one text that :func:`write` would write for the decisions that it returns.

Several lesion boxes stand one on a line: region after region in the order of the verdicts. The text names no region for
a box; :func:`regions_of_boxes` says which it is. Markers are plain text, no tokens of their own. numpy and the standard
library only: training uses it, too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from xflow_core.domain.errors import EngineError, ValueRefused
from xflow_core.domain.findings import check_finding, check_region
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.trace import Click, GroundedLung, Verdict

from .protocols import Done

T = TypeVar("T")

GRID = 1000
BOXES_PER_REGION = 4
"""Lesion boxes that a region may get, unless a bundle says otherwise."""

END = ""
"""The end of the writer's turn, where a plan says it: no text, one token."""

THOUGHTS = {"positive": "The mask misses part of the lesion.", "negative": "The mask covers more than the lesion."}
"""What stands between ``<think>`` and ``</think>`` before a click, unless a bundle says otherwise."""

VERDICTS = (" absent", " present")
_SIGNS = {"positive": "+", "negative": "-"}
_NUMBER = re.compile(r"0|[1-9][0-9]*")
_THOUGHT = re.compile(r"<think>([^<\n]*)</think>[+-]")
_THINKING = re.compile(r"^\s*<unused94>.*?<unused95>", re.DOTALL)
_FENCE = re.compile(r"^```(?:json)?\s*\n(.*?)\n?```$", re.DOTALL)


class TranscriptError(EngineError):
    """A text is not a transcript: ``position`` is the character at which it departs, ``text`` the whole of it.

    It is a failure of the policy, and never means "absent".
    """

    def __init__(self, text: str, position: int, why: str) -> None:
        super().__init__(f"The policy's words cannot be read at character {position}: {why}. It wrote: {text!r}")
        self.text = text
        self.position = position
        self.why = why

    def __reduce__(self) -> tuple[type[TranscriptError], tuple[str, int, str]]:
        return TranscriptError, (self.text, self.position, self.why)  # for the workers of a batch


@dataclass(frozen=True)
class Choice:
    """One of several wordings, then ``then``. Sent back: the wording chosen.

    verdict: the second of the two wordings states presence.
    """

    options: tuple[str, ...]
    then: str = ""
    verdict: bool = False


@dataclass(frozen=True)
class Number:
    """A whole number from ``low`` to ``high`` (both included), then ``then``. Sent back: its digits."""

    low: int
    high: int
    then: str

    @property
    def options(self) -> tuple[str, ...]:
        return tuple(str(number) for number in range(self.low, self.high + 1))


Plan: TypeAlias = Generator[str | Choice | Number, str, T]


# Where numbers lie -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SquareFrame:
    """A source image of ``size`` ``(height, width)`` in the middle of the black square that the model sees.

    A whole number ``k`` stands for the place ``k / grid`` along the square's side. Numbers of the picture run from
    ``lows`` to ``highs`` (each ``(x, y)``); those of the black margins are never written, and refused when read.

    Raises:
        ValueRefused: the picture is so narrow that not two numbers lie across it.
    """

    size: tuple[int, int]
    grid: int = GRID

    def __post_init__(self) -> None:
        if min(self.size) < 1 or self.grid < 2:
            raise ValueRefused(f"There is no square frame of {self.grid} steps around an image of {self.size} pixels.")
        if min(high - low for low, high in zip(self.lows, self.highs, strict=True)) < 2:
            raise ValueRefused(f"An image of {self.size} pixels is too narrow for a frame of {self.grid} steps.")

    @property
    def side(self) -> int:
        """Pixels of the square's side."""
        return max(self.size)

    @property
    def margins(self) -> tuple[int, int]:
        """Black columns on the left and black rows above; a single odd one is on the right, or below."""
        return (self.side - self.size[1]) // 2, (self.side - self.size[0]) // 2

    @property
    def lows(self) -> tuple[int, int]:
        return self._number(0.0, 0), self._number(0.0, 1)

    @property
    def highs(self) -> tuple[int, int]:
        return self._number(1.0, 0), self._number(1.0, 1)

    def _number(self, value: float, axis: int) -> int:
        length = self.size[1 - axis]
        return math.floor((value * length + self.margins[axis]) / self.side * self.grid + 0.5)

    def _value(self, number: int, axis: int) -> float:
        length = self.size[1 - axis]
        # The outermost numbers are the nearest to the picture's edge and stand for it.
        return min(max((number / self.grid * self.side - self.margins[axis]) / length, 0.0), 1.0)

    def numbers_of_point(self, point: Point) -> tuple[int, int]:
        return self._number(point.x, 0), self._number(point.y, 1)

    def point(self, x: int, y: int) -> Point:
        """The exact inverse of :meth:`numbers_of_point` for numbers of the picture."""
        return Point(self._value(x, 0), self._value(y, 1))

    def numbers_of_box(self, box: Box) -> tuple[int, int, int, int]:
        """``(x1, y1, x2, y2)`` with ``x1 < x2`` and ``y1 < y2``: a side thinner than a step is one step long."""
        edges = []
        for axis, (first, last) in enumerate(((box.x1, box.x2), (box.y1, box.y2))):
            low, high = self._number(first, axis), self._number(last, axis)
            if low == high:
                low, high = (low, high + 1) if high < self.highs[axis] else (low - 1, high)
            edges.append((low, high))
        (x1, x2), (y1, y2) = edges
        return x1, y1, x2, y2

    def box(self, x1: int, y1: int, x2: int, y2: int) -> Box:
        """The exact inverse of :meth:`numbers_of_box` for numbers of the picture."""
        return Box(self._value(x1, 0), self._value(y1, 1), self._value(x2, 0), self._value(y2, 1))


# The first stage -------------------------------------------------------------------------------------------------


def lungs_plan(lungs: Sequence[str], frame: SquareFrame, *, least: int = 1) -> Plan[tuple[GroundedLung, ...]]:
    """``<think>`` and a line for each lung.

    Args:
        least: steps that a lung's box is wide and high at least.
    """
    yield "<think>\n"
    found = []
    for lung in lungs:
        yield _opening(lung)
        box = yield from _box_plan(frame, (_whole(frame),), ")<|box_end|>\n", least)
        found.append(GroundedLung(lung, box))
    return tuple(found)


def verdicts_plan(regions: Sequence[str]) -> Plan[tuple[Verdict, ...]]:
    """A line for each region: present or absent; then ``</think>``."""
    verdicts = []
    for region in regions:
        yield f"{check_region(region)}:"
        words = yield Choice(VERDICTS, "\n", verdict=True)
        verdicts.append(Verdict(region, words == " present"))
    yield "</think>\n"
    return tuple(verdicts)


def absent_plan() -> Plan[tuple[Box, ...]]:
    """The answer when every verdict is absent."""
    yield "absent"
    yield END
    return ()


def boxes_plan(
    finding: str, frame: SquareFrame, *, bands: Sequence[Box] | None = None, most: int = BOXES_PER_REGION
) -> Plan[tuple[Box, ...]]:
    """One line a lesion box.

    Args:
        bands: where each region that was judged present lies, in the order of the verdicts. With them every region gets
            at least one box and at most ``most``, region after region, each overlapping its region's band; without, any
            boxes may stand.
    """
    boxes: list[Box] = []
    regions: list[int] = []
    while True:
        yield _opening(check_finding(finding))
        if bands is None:
            places: tuple[_Numbers, ...] = (_whole(frame),)
        else:
            current = max(regions, default=0)
            full = regions.count(current) >= most
            last = min(current + 1, len(bands) - 1) if regions else 0
            places = tuple(frame.numbers_of_box(band) for band in bands[current + full : last + 1])
        box = yield from _box_plan(frame, places, ")<|box_end|>")
        boxes.append(box)
        if bands is not None:
            regions = list(regions_of_boxes(boxes, bands, most=most))
            complete = max(regions) == len(bands) - 1
            full = complete and regions.count(len(bands) - 1) >= most
            # Bands thinner than a step may take boxes without end; the count ends them.
            full = full or len(boxes) >= most * len(bands)
            options = (END,) if full else ("\n", END) if complete else ("\n",)
        else:
            options = ("\n", END)
        if (yield Choice(options)) == END:
            return tuple(boxes)


def regions_of_boxes(boxes: Sequence[Box], bands: Sequence[Box], *, most: int = BOXES_PER_REGION) -> tuple[int, ...]:
    """Which of ``bands`` each box belongs to: region after region, in the order in which the boxes were written.

    A box belongs to the last box's region (until that has ``most`` boxes) or to the next one, whichever it overlaps
    more; where it overlaps neither, to any that it overlaps, else to the one whose centre is nearest.
    """
    found: list[int] = []
    for box in boxes:
        current = max(found, default=-1)
        room = found.count(current) < most
        following = [index for index in ((current, current + 1) if room else (current + 1,)) if 0 <= index < len(bands)]
        for candidates in (following, list(range(len(bands)))):
            shared = {index: _shared(box, bands[index]) for index in candidates}
            if any(shared.values()):
                found.append(max(candidates, key=lambda index: shared[index]))
                break
        else:
            found.append(min(range(len(bands)), key=lambda index: _apart(box, bands[index])))
    return tuple(found)


def _shared(a: Box, b: Box) -> float:
    common = a.intersect(b)
    return 0.0 if common is None else common.area


def _apart(a: Box, b: Box) -> float:
    return math.hypot(a.centre.x - b.centre.x, a.centre.y - b.centre.y)


_Numbers: TypeAlias = tuple[int, int, int, int]


def _whole(frame: SquareFrame) -> _Numbers:
    return (*frame.lows, *frame.highs)


def _opening(label: str) -> str:
    return f"<|ref_start|>{label}<|ref_end|><|box_start|>("


def _box_plan(frame: SquareFrame, places: tuple[_Numbers, ...], then: str, least: int = 1) -> Plan[Box]:
    """A box of the picture, ``least`` steps wide and high, that overlaps at least one of ``places``."""
    high_x, high_y = frame.highs
    x1 = int((yield Number(frame.lows[0], min(max(p[2] for p in places) - 1, high_x - least), ",")))
    places = tuple(p for p in places if p[2] > x1)
    y1 = int((yield Number(frame.lows[1], min(max(p[3] for p in places) - 1, high_y - least), "),(")))
    places = tuple(p for p in places if p[3] > y1)
    x2 = int((yield Number(max(x1 + least, min(p[0] for p in places) + 1), high_x, ",")))
    places = tuple(p for p in places if p[0] < x2)
    y2 = int((yield Number(max(y1 + least, min(p[1] for p in places) + 1), high_y, then)))
    return frame.box(x1, y1, x2, y2)


# The second stage ------------------------------------------------------------------------------------------------


def click_plan(frame: SquareFrame, thoughts: Mapping[str, str] = THOUGHTS) -> Plan[Click | Done]:
    """A click, or ``done``.

    Args:
        thoughts: what stands in ``<think>``, by polarity; words without ``<`` and line breaks.
    """
    openings = {
        polarity: f"<think>{thoughts[polarity]}</think>{sign}<|point_start|>(" for polarity, sign in _SIGNS.items()
    }
    words = yield Choice((*openings.values(), "done"))
    if words == "done":
        yield END
        return Done()
    x = int((yield Number(frame.lows[0], frame.highs[0], ",")))
    y = int((yield Number(frame.lows[1], frame.highs[1], ")<|point_end|>")))
    yield END
    polarity = next(polarity for polarity, opening in openings.items() if opening == words)
    return Click(polarity, frame.point(x, y))


# Writing ---------------------------------------------------------------------------------------------------------


def write(plan: Plan[T], answers: Iterable[str]) -> list[str]:
    """The pieces of text that a plan gives with these answers; joined, they are the text.

    A tokenizer is given each piece by itself (:class:`~.medgemma_decoding.PieceTokens`): pieces end beside a digit, at
    a line break or before a space, where tokens end, too.

    Raises:
        ValueRefused: an answer that the plan does not allow, or none where it needs one.
    """
    remaining = iter(answers)
    pieces: list[str] = []
    try:
        step = next(plan)
        while True:
            if isinstance(step, str):
                pieces.append(step)
                step = plan.send("")
                continue
            answer = next(remaining, None)
            if answer is None or not _allowed(step, answer):
                raise ValueRefused(f"{answer!r} cannot stand after {''.join(pieces)[-60:]!r} in a transcript.")
            pieces.append(answer)
            if step.then:
                pieces.append(step.then)
            step = plan.send(answer)
    except StopIteration:
        pass
    return pieces


def _allowed(step: Choice | Number, answer: str) -> bool:
    if isinstance(step, Choice):
        return answer in step.options
    return _NUMBER.fullmatch(answer) is not None and step.low <= int(answer) <= step.high


def write_lungs(lungs: Sequence[GroundedLung], frame: SquareFrame) -> list[str]:
    numbers = [number for lung in lungs for number in frame.numbers_of_box(lung.box)]
    return write(lungs_plan([lung.label for lung in lungs], frame), map(str, numbers))


def write_verdicts(verdicts: Sequence[Verdict]) -> list[str]:
    return write(verdicts_plan([v.region for v in verdicts]), [VERDICTS[v.present] for v in verdicts])


def write_boxes(finding: str, boxes: Sequence[Box], frame: SquareFrame) -> list[str]:
    """The lesion boxes in the order given, or ``absent`` when there are none."""
    if not boxes:
        return write(absent_plan(), ())
    answers: list[str] = []
    for box in boxes:
        answers += [*map(str, frame.numbers_of_box(box)), "\n"]
    return write(boxes_plan(finding, frame), [*answers[:-1], END])


def write_click(click: Click | Done, frame: SquareFrame, thoughts: Mapping[str, str] = THOUGHTS) -> list[str]:
    if isinstance(click, Done):
        return write(click_plan(frame, thoughts), ["done"])
    opening = f"<think>{thoughts[click.polarity]}</think>{_SIGNS[click.polarity]}<|point_start|>("
    return write(click_plan(frame, thoughts), [opening, *map(str, frame.numbers_of_point(click.point))])


# Reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """A whole first-stage transcript."""

    lungs: tuple[GroundedLung, ...]
    verdicts: tuple[Verdict, ...]
    boxes: tuple[Box, ...]


def read_answer(text: str, *, finding: str, lungs: Sequence[str], regions: Sequence[str], frame: SquareFrame) -> Answer:
    """The first-stage transcript of one question.

    Args:
        lungs, regions: what was asked for; the text names the same, in the same order.

    Raises:
        TranscriptError: it is anything else; boxes where all is absent, or none where something is present.
    """

    def plan() -> Plan[Answer]:
        grounded = yield from lungs_plan(lungs, frame)
        verdicts = yield from verdicts_plan(regions)
        present = any(verdict.present for verdict in verdicts)
        boxes = yield from boxes_plan(finding, frame) if present else absent_plan()
        return Answer(grounded, verdicts, boxes)

    return read(plan(), text)


def read_click(text: str, frame: SquareFrame) -> Click | Done:
    """A click, or ``done``; any thought of one line without ``<`` may stand before it.

    Raises:
        TranscriptError: it is neither.
    """
    thought = _THOUGHT.match(text)
    thoughts = THOUGHTS if thought is None else dict.fromkeys(_SIGNS, thought[1])
    return read(click_plan(frame, thoughts), text)


def read(plan: Plan[T], text: str) -> T:
    """What a text says, if it is one that the plan can give, from its first character to its last.

    Raises:
        TranscriptError: it is not; the message says at which character, and why.
    """
    position = 0

    def expect(words: str) -> int:
        if not text.startswith(words, position):
            raise TranscriptError(text, position, f"{words!r} must follow, there is {text[position : position + 20]!r}")
        return position + len(words)

    try:
        step = next(plan)
        while True:
            if isinstance(step, str):
                position = expect(step)
                step = plan.send("")
                continue
            answer = _answer(step, text, position)
            position += len(answer)
            position = expect(step.then)
            step = plan.send(answer)
    except StopIteration as end:
        if position != len(text):
            raise TranscriptError(text, position, f"{text[position : position + 20]!r} is too much") from None
        value: T = end.value
        return value


def _answer(step: Choice | Number, text: str, position: int) -> str:
    rest = text[position : position + 20]
    if isinstance(step, Choice):
        # The longest first: END is no text at all, and stands only at the end.
        for option in sorted(step.options, key=len, reverse=True):
            if text.startswith(option, position) and (option != END or position == len(text)):
                return option
        expected = " or ".join(repr(option) if option else "the end" for option in step.options)
        raise TranscriptError(text, position, f"{expected} must follow, there is {rest!r}")
    found = _NUMBER.match(text, position)
    if found is None:
        raise TranscriptError(text, position, f"a whole number must follow, there is {rest!r}")
    # int() of thousands of digits is refused by Python itself; no number of a frame has more than these.
    if len(found[0]) > 9 or not step.low <= int(found[0]) <= step.high:
        raise TranscriptError(text, position, f"the number {found[0][:20]} must lie from {step.low} to {step.high}")
    return found[0]


# MedGemma's own answers ------------------------------------------------------------------------------------------


def boxes_2d_plan(
    labels: Sequence[str], frame: SquareFrame, *, bands: Sequence[Box] | None = None, least: int = 1
) -> Plan[tuple[tuple[str, Box], ...]]:
    """MedGemma's own way to give one box for each of ``labels``: JSON, ``[y0, x0, y1, x1]`` on 0 to 1000.

    Args:
        bands: what each box overlaps, one for each label. least: steps that a box is wide and high at least.
    """
    found = []
    (low_x, low_y), (high_x, high_y) = frame.lows, frame.highs
    for index, label in enumerate(labels):
        left, top, right, bottom = _whole(frame) if bands is None else frame.numbers_of_box(bands[index])
        if index == 0:
            yield '[{"box_2d": ['
        y1 = int((yield Number(low_y, min(bottom - 1, high_y - least), ", ")))
        x1 = int((yield Number(low_x, min(right - 1, high_x - least), ", ")))
        y2 = int((yield Number(max(y1 + least, top + 1), high_y, ", ")))
        # One piece up to the next digit: Gemma has tokens such as "]," and "},", which a cut there would part.
        following = ', {"box_2d": [' if index + 1 < len(labels) else "]"
        then = f'], "label": {json.dumps(label)}}}{following}'
        x2 = int((yield Number(max(x1 + least, left + 1), high_x, then)))
        found.append((label, frame.box(x1, y1, x2, y2)))
    yield END
    return tuple(found)


def yes_no_plan() -> Plan[bool]:
    """The base model's verdict."""
    words = yield Choice(("no", "yes"), verdict=True)
    yield END
    return words == "yes"


def read_boxes_2d(text: str, frame: SquareFrame) -> tuple[tuple[str, Box], ...]:
    """The labels and boxes of MedGemma's own answer, perhaps after a thinking trace (``<unused94>`` .. ``<unused95>``)
    and between ```` ```json ```` fences.

    An edge in the black margin is taken back to the picture's: the base model knows nothing of the margins. An empty
    list is an answer: no boxes.

    Raises:
        TranscriptError: no such JSON, an entry without four whole numbers and a label, a box outside the picture.
    """
    thinking = _THINKING.match(text)
    start = 0 if thinking is None else thinking.end()
    if "<unused94>" in text[start:]:
        raise TranscriptError(text, text.index("<unused94>", start), "the thinking trace has no end (<unused95>)")
    body = text[start:].strip()
    fenced = _FENCE.match(body)
    try:
        entries = json.loads(body if fenced is None else fenced[1])
    except (ValueError, RecursionError) as problem:
        raise TranscriptError(text, start, f"this is no JSON ({problem})") from None
    if not isinstance(entries, list):
        raise TranscriptError(text, start, "a JSON list of boxes must stand here")
    return tuple(_entry(text, start, number, entry, frame) for number, entry in enumerate(entries, 1))


def _entry(text: str, start: int, number: int, entry: object, frame: SquareFrame) -> tuple[str, Box]:
    if not isinstance(entry, dict) or set(entry) != {"box_2d", "label"} or not isinstance(entry["label"], str):
        raise TranscriptError(text, start, f"entry {number} is not an object of box_2d and label")
    numbers = entry["box_2d"]
    whole = isinstance(numbers, list) and len(numbers) == 4 and all(type(edge) is int for edge in numbers)
    if not whole or not all(0 <= edge <= frame.grid for edge in numbers):
        raise TranscriptError(text, start, f"box_2d of entry {number} is not four whole numbers from 0 to {frame.grid}")
    (low_x, low_y), (high_x, high_y) = frame.lows, frame.highs
    y1, x1, y2, x2 = numbers
    x1, x2 = max(x1, low_x), min(x2, high_x)
    y1, y2 = max(y1, low_y), min(y2, high_y)
    if x1 >= x2 or y1 >= y2:
        raise TranscriptError(text, start, f"box_2d of entry {number} holds nothing of the picture")
    return entry["label"], frame.box(x1, y1, x2, y2)
