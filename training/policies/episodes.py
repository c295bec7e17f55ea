"""What the policies do in reinforcement learning: an episode is a question, answered in one turn or click by click.

An answer counts as readable when its *tokens* are those that training writes for what it says: the same text in other
tokens is never written at inference, where decoding is constrained to them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from training.policies.dialogues import MAX_CLICKS, Radiographs, Tokens, Turn, opening
from training.policies.rewards import box_reward, format_reward, gain_reward, repetition_reward
from training.policies.targets import InitTarget
from xflow_core.domain import rle
from xflow_core.domain.geometry import Box
from xflow_core.domain.trace import Click
from xflow_core.policies.medgemma_pictures import overlaid
from xflow_core.policies.protocols import Done
from xflow_core.policies.transcript import (
    Answer,
    TranscriptError,
    click_plan,
    read,
    read_answer,
    write_boxes,
    write_click,
    write_lungs,
    write_verdicts,
)
from xflow_core.segmenters.protocol import Prediction, Prompt, PromptableSegmenter


class Episode(Protocol):
    """One trajectory."""

    opening: Turn

    def rewards(self) -> dict[str, float]:
        """By the paper's names, once it has ended."""
        ...


class Episodes(Protocol):
    """Makes episodes of rows, and moves many of them on together.

    rewards: the names that every episode's rewards have. turns: the most that an episode has.
    answer_tokens: the most that an answer has. segmenter_seconds: spent in the frozen segmenter; who asks may set it
    to 0.
    """

    rewards: tuple[str, ...]
    turns: int
    answer_tokens: int
    segmenter_seconds: float

    def begin(self, row: Mapping[str, Any]) -> Episode: ...

    def move(self, episodes: Sequence[Any], answers: Sequence[Sequence[int]]) -> list[Turn | None]:
        """Hear each episode's answer, in tokens; what it is shown next, or None where it has ended."""
        ...


# pi_init ----------------------------------------------------------------------------------------------------------


class InitEpisode:
    def __init__(self, row: Mapping[str, Any], radiographs: Radiographs) -> None:
        image = radiographs.read(row["image"])
        self.opening = Turn((radiographs.square(image),), row["instruction"])
        self.target = InitTarget.of_row(row)
        self.frame = radiographs.frame(image)
        self.answer: Answer | None = None
        self.text = ""

    def hear(self, said: Sequence[int], tokens: Tokens) -> None:
        self.text = tokens.pieces.text(said)
        try:
            answer = read_answer(
                self.text,
                finding=self.target.finding,
                lungs=[lung.label for lung in self.target.lungs],
                regions=[verdict.region for verdict in self.target.verdicts],
                frame=self.frame,
            )
        except TranscriptError:
            return
        pieces = [
            *write_lungs(answer.lungs, self.frame),
            *write_verdicts(answer.verdicts),
            *write_boxes(self.target.finding, answer.boxes, self.frame),
        ]
        if tokens.pieces.encode(pieces) == list(said):
            self.answer = answer

    def rewards(self) -> dict[str, float]:
        return {
            "R_box": box_reward(self.answer, self.target),
            "R_format": format_reward(self.answer is not None),
            "R_rep": repetition_reward(self.answer, self.text),
        }


class InitEpisodes:
    """pi_init's: one answer each."""

    rewards = ("R_box", "R_format", "R_rep")
    turns = 1
    segmenter_seconds = 0.0

    def __init__(self, radiographs: Radiographs, tokens: Tokens, answer_tokens: int = 512) -> None:
        self.radiographs, self.answer_tokens = radiographs, answer_tokens
        self._tokens = tokens

    def begin(self, row: Mapping[str, Any]) -> InitEpisode:
        return InitEpisode(row, self.radiographs)

    def move(self, episodes: Sequence[InitEpisode], answers: Sequence[Sequence[int]]) -> list[Turn | None]:
        for episode, said in zip(episodes, answers, strict=True):
            episode.hear(said, self._tokens)
        return [None] * len(episodes)


# pi_rev -----------------------------------------------------------------------------------------------------------


class RevisionEpisode:
    def __init__(self, row: Mapping[str, Any], radiographs: Radiographs) -> None:
        size = tuple(row["size"])
        self.image = radiographs.read(row["image"])
        self.square, self.frame = radiographs.square(self.image), radiographs.frame(self.image)
        self.truth = rle.decode(row["truth"], size)
        self.first = rle.decode(row["masks"][0], size)
        self.box = Box(*(min(max(float(number), 0.0), 1.0) for number in row["box"]))
        self.current = Prediction(self.first)
        self.clicks: list[Click] = []
        self.masks = [self.first]
        self.readable = True
        self.opening = opening(self.square, self.first, row["instruction"])

    def hear(self, said: Sequence[int], tokens: Tokens) -> Prompt | None:
        """The click's prompt for the segmenter; None at ``done`` and at what cannot be read: the episode has ended."""
        move = self._read(said, tokens)
        if move is None:
            self.readable = False
        if not isinstance(move, Click):
            return None
        self.clicks.append(move)
        return Prompt(self.box, tuple(self.clicks), self.current)

    def _read(self, said: Sequence[int], tokens: Tokens) -> Click | Done | None:
        try:
            move = read(click_plan(self.frame), tokens.pieces.text(said))
        except TranscriptError:
            return None
        return move if tokens.pieces.encode(write_click(move, self.frame)) == list(said) else None

    def rewards(self) -> dict[str, float]:
        return {
            "R_gain": gain_reward(self.first, self.current.mask, self.truth),
            "R_format": format_reward(self.readable),
        }


class RevisionEpisodes:
    """pi_rev's, with the frozen segmenter in the loop: at most four clicks, and the mask after each.

    The clicks of all episodes on one radiograph go to the segmenter together.
    """

    rewards = ("R_gain", "R_format")
    turns = MAX_CLICKS

    def __init__(
        self, radiographs: Radiographs, tokens: Tokens, segmenter: PromptableSegmenter, answer_tokens: int = 64
    ) -> None:
        self._radiographs, self._tokens, self.segmenter = radiographs, tokens, segmenter
        self.answer_tokens = answer_tokens
        self.segmenter_seconds = 0.0

    def begin(self, row: Mapping[str, Any]) -> RevisionEpisode:
        return RevisionEpisode(row, self._radiographs)

    def move(self, episodes: Sequence[RevisionEpisode], answers: Sequence[Sequence[int]]) -> list[Turn | None]:
        following: list[Turn | None] = [None] * len(episodes)
        asked: dict[int, list[tuple[int, Prompt]]] = {}
        for number, (episode, said) in enumerate(zip(episodes, answers, strict=True)):
            prompt = episode.hear(said, self._tokens)
            if prompt is not None:
                asked.setdefault(id(episode.image), []).append((number, prompt))
        for group in asked.values():
            image = episodes[group[0][0]].image
            begun = time.perf_counter()
            found = self.segmenter.segment(image, [prompt for _, prompt in group])
            self.segmenter_seconds += time.perf_counter() - begun
            for (number, _), prediction in zip(group, found, strict=True):
                episode = episodes[number]
                episode.current = prediction
                episode.masks.append(prediction.mask)
                if len(episode.clicks) < self.turns:
                    following[number] = Turn((overlaid(episode.square, prediction.mask),))
        return following
