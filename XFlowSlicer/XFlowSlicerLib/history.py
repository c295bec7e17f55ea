"""The questions asked of one radiograph, their answers, and the branches that edits made of them.

Nothing is thrown away: a replay adds a branch, and the one that it left can be returned to. The whole is kept as JSON
(schema ``xflow.session/1``), which the scene saves:

    {"schema": "xflow.session/1", "notice": "not for clinical use", "image": {"sha256", "size": [H, W]},
     "answers": [{"branches": [{"title", "trace": {xflow.trace/1}}], "selected": j}], "selected": i | null}

All of it is values; a change makes a new :class:`History`. Making a trace's JSON takes some milliseconds (it is hashed
for its name), so a :class:`Version` carries its own text, made in a worker thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.instruction import Instruction, describe
from xflow_core.domain.trace import BoxesStep, ClickStep, MaskStep, ResultStep, StopStep, Trace
from xflow_core.export.words import result_in_words

SCHEMA = "xflow.session/1"
RUNNING, CUT_OFF = "running", "cancelled"

OTHER_FILE = (
    "The session was made on this radiograph's original file, which is not at hand here: check that the steps fit."
)


@dataclass(frozen=True)
class Version:
    """A branch of an answer.

    Attributes:
        title: what was changed to make it; "as asked" for the first one.
        trace: what was decided; it grows while it is made.
        text: the trace as JSON, and ``sentence`` its result in words: both made once, when it ended; None until then.
    """

    title: str
    trace: Trace
    text: str | None = field(default=None, compare=False)
    sentence: str | None = field(default=None, compare=False)

    @property
    def ended(self) -> bool:
        return self.text is not None

    @property
    def status(self) -> str:
        """``present``, ``absent``, ``refused``, ``unsupported``, ``failed``; ``running`` while it is made, and
        ``cancelled`` when it was cut off before there was an answer."""
        if not self.ended:
            return RUNNING
        return CUT_OFF if self.trace.result is None else self.trace.result.status

    def finished(self) -> Version:
        """With its text and sentence; not for the user interface's thread."""
        sentence = "Cancelled before there was an answer." if self.trace.result is None else result_in_words(self.trace)
        return replace(self, text=json.dumps(self.trace.to_json(), allow_nan=False), sentence=sentence)


@dataclass(frozen=True)
class Answer:
    """A question and the branches of its answer, one of which is shown.

    Two questions are the same when they ask for one finding in the same regions.
    """

    branches: tuple[Version, ...]
    selected: int = 0

    def __post_init__(self) -> None:
        if not self.branches:
            raise ValueRefused("An answer has at least one branch.")
        if not 0 <= self.selected < len(self.branches):
            raise ValueRefused(f"There is no branch {self.selected}; the answer has {len(self.branches)}.")

    @property
    def version(self) -> Version:
        return self.branches[self.selected]

    @property
    def instruction(self) -> Instruction:
        return self.branches[0].trace.instruction

    @property
    def title(self) -> str:
        """``effusion, patient's left lung``."""
        return describe(replace(self.instruction, negated=False))

    @property
    def status(self) -> str:
        return self.version.status

    @property
    def sentence(self) -> str:
        return self.version.sentence or ""

    @property
    def question(self) -> tuple[str, tuple[str, ...]]:
        return question_of(self.instruction)


def question_of(instruction: Instruction) -> tuple[str, tuple[str, ...]]:
    """What makes two questions the same: the finding and the regions."""
    return instruction.finding, instruction.regions


@dataclass(frozen=True)
class History:
    """The answers of one image, in the order of their questions, one of them selected when there is any."""

    answers: tuple[Answer, ...] = ()
    selected: int | None = None

    @property
    def answer(self) -> Answer | None:
        return None if self.selected is None else self.answers[self.selected]

    @property
    def version(self) -> Version | None:
        return None if self.answer is None else self.answer.version

    def place_of(self, instruction: Instruction) -> int | None:
        """Which answer a question has already."""
        question = question_of(instruction)
        return next((i for i, answer in enumerate(self.answers) if answer.question == question), None)

    def ended(self) -> History:
        """Without the branches that are still made; where one of these was shown, the last of the others is."""
        answers: list[Answer] = []
        chosen: int | None = None
        for i, answer in enumerate(self.answers):
            kept = [j for j, version in enumerate(answer.branches) if version.ended]
            if kept:
                shown = kept.index(answer.selected) if answer.selected in kept else len(kept) - 1
                chosen = len(answers) if i == self.selected else chosen
                answers.append(Answer(tuple(answer.branches[j] for j in kept), shown))
        if answers and chosen is None:
            chosen = len(answers) - 1
        return History(tuple(answers), chosen)

    def with_version(self, version: Version, *, show: bool = True) -> tuple[History, tuple[int, int]]:
        """With one branch more; and its place ``(answer, branch)``.

        Args:
            show: select it.
        """
        i = self.place_of(version.trace.instruction)
        if i is None:
            answers = (*self.answers, Answer((version,)))
            i = len(answers) - 1
            return History(answers, i if show or self.selected is None else self.selected), (i, 0)
        old = self.answers[i]
        j = len(old.branches)
        answers = self._put(i, Answer((*old.branches, version), j if show else old.selected))
        return History(answers, i if show else self.selected), (i, j)

    def with_changed(self, place: tuple[int, int], version: Version) -> History:
        """With another value for the branch at ``place``."""
        i, j = place
        answer = self.answers[i]
        branches = (*answer.branches[:j], version, *answer.branches[j + 1 :])
        return replace(self, answers=self._put(i, replace(answer, branches=branches)))

    def with_answer_selected(self, i: int) -> History:
        if not 0 <= i < len(self.answers):
            raise ValueRefused(f"There is no answer {i}; there are {len(self.answers)}.")
        return replace(self, selected=i)

    def with_branch_selected(self, j: int) -> History:
        if self.selected is None:
            raise ValueRefused("No answer is selected.")
        return replace(self, answers=self._put(self.selected, replace(self.answers[self.selected], selected=j)))

    def _put(self, i: int, answer: Answer) -> tuple[Answer, ...]:
        return (*self.answers[:i], answer, *self.answers[i + 1 :])


def session_json(history: History) -> str | None:
    """The session as JSON, in a moment: every branch that ended; None when there is none."""
    ended = history.ended()
    if not ended.answers:
        return None
    answers = []
    for answer in ended.answers:
        branches = ", ".join(f'{{"title": {json.dumps(v.title)}, "trace": {v.text}}}' for v in answer.branches)
        answers.append(f'{{"branches": [{branches}], "selected": {answer.selected}}}')
    image = ended.answers[0].version.trace.image
    of = {"sha256": image.sha256, "size": list(image.size)}
    about = json.dumps({"schema": SCHEMA, "notice": "not for clinical use", "image": of})
    return f'{about[:-1]}, "answers": [{", ".join(answers)}], "selected": {json.dumps(ended.selected)}}}'


@dataclass(frozen=True)
class Restored:
    """A session that was read; ``lost`` says in sentences what of it could not be."""

    history: History
    sha256: str
    lost: tuple[str, ...] = ()


def session_from_json(
    text: str,
    sha256: str | None = None,
    each: Callable[[Trace], None] = lambda trace: None,
    instance: str | None = None,
    size: tuple[int, int] | None = None,
) -> Restored:
    """The session in a text that :func:`session_json` made. What is damaged is left out, and said.

    A scene is opened where the radiograph's DICOM file is not at hand: its pixels have another sha256 then. By its SOP
    Instance UID the session is taken over none the less; its traces are of these pixels from then on, and warn of it.

    Args:
        sha256: of the image that it is for; None when any will do.
        each: called with each trace that was read, for instance to decode its masks.
        instance: the SOP Instance UID of the image that it is for, where there is one.
        size: ``(H, W)`` of that image, where it is known.

    Raises:
        ValueRefused: it is no session, none of it can be read, or it is of another image.
    """
    data = _session(text)
    image = data["image"]["sha256"]
    elsewhere = sha256 is not None and image != sha256
    if elsewhere and not _is_of(data, instance, size):
        raise ValueRefused(
            "The saved session is of another image (its sha256 differs), so it was not restored; choose the radiograph "
            "that it was made on."
        )
    lost: list[str] = []
    answers: list[Answer] = []
    chosen: int | None = None
    for i, found in enumerate(data["answers"]):
        answer = _answer(found, i, image, sha256 if elsewhere else None, lost, each)
        if answer is not None:
            if i == data.get("selected"):
                chosen = len(answers)
            answers.append(answer)
    if not answers:
        why = f" {lost[0]}" if lost else ""
        raise ValueRefused(f"Nothing of the saved session can be read.{why}")
    of = sha256 if elsewhere and sha256 is not None else image
    return Restored(History(tuple(answers), 0 if chosen is None else chosen), of, tuple(lost))


def _is_of(data: dict[str, Any], instance: str | None, size: tuple[int, int] | None) -> bool:
    """Whether the session's first trace is of this SOP instance; each trace is compared with its session's image."""
    try:
        image = data["answers"][0]["branches"][0]["trace"]["image"]
        uid, of_size = image["sop_instance_uid"], tuple(image["size"])
    except (LookupError, TypeError):
        return False
    return bool(instance) and uid == instance and size in (None, of_size)


def _session(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueRefused("The saved session is damaged (it is no JSON), so it was not restored.") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise ValueRefused(f"This is no {SCHEMA} session (its schema is {found!r}), so it was not restored.")
    image, answers = data.get("image"), data.get("answers")
    if not isinstance(image, dict) or not isinstance(image.get("sha256"), str) or not isinstance(answers, list):
        raise ValueRefused("The saved session is damaged (its image or its answers are missing); it was not restored.")
    return data


def _answer(
    found: Any, i: int, sha256: str, now: str | None, lost: list[str], each: Callable[[Trace], None]
) -> Answer | None:
    branches: list[Version] = []
    selected = found.get("selected") if isinstance(found, dict) else None
    shown = 0
    saved = found.get("branches") if isinstance(found, dict) else None
    if not isinstance(saved, list) or not saved:
        lost.append(f"Answer {i + 1} of the saved session is damaged and was left out.")
        return None
    for j, branch in enumerate(saved):
        try:
            version = _version(branch, sha256, now)
            if branches and question_of(version.trace.instruction) != question_of(branches[0].trace.instruction):
                raise ValueRefused("It answers another question.")
            each(version.trace)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as problem:
            said = str(problem) if isinstance(problem, ValueRefused) else "It is not well formed."
            lost.append(f"Branch {j + 1} of answer {i + 1} of the saved session was left out: {said}")
            continue
        if j == selected:
            shown = len(branches)
        branches.append(version)
    return Answer(tuple(branches), shown) if branches else None


def _version(branch: Any, sha256: str, now: str | None) -> Version:
    """A branch of the image ``sha256``; ``now``: the sha256 that the radiograph has here, where it is another."""
    trace = Trace.from_json(branch["trace"])
    if trace.image.sha256 != sha256:
        raise ValueRefused("It is of another image.")
    boxes: BoxesStep | None = trace.last(BoxesStep)
    components = 0 if boxes is None else len(boxes.boxes)
    size = trace.image.size
    for k, step in enumerate(trace.steps):
        if isinstance(step, (MaskStep, ClickStep, StopStep)) and step.component >= components:
            raise ValueRefused(f"Step {k} is of component {step.component}, which has no box.")
        if isinstance(step, (MaskStep, ResultStep)) and step.mask is not None and step.mask.size != size:
            raise ValueRefused(f"A mask is of {step.mask.size}, the image of {size} pixels.")
    if now is not None:
        warnings = tuple(dict.fromkeys((*trace.image.warnings, OTHER_FILE)))
        trace = replace(trace, image=replace(trace.image, sha256=now, warnings=warnings))
    return Version(str(branch.get("title") or "as asked"), trace).finished()
