"""A policy's examples as conversations, and conversations as tokens: exactly those of inference.

The turns are rendered by :meth:`MedGemma.turns`, the answers cut by :class:`PieceTokens`, the pictures drawn by
:mod:`xflow_core.policies.medgemma_pictures`: the functions that the policies themselves call. So what is learnt and
what is asked cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from training.policies.targets import InitTarget
from xflow_core.domain import rle
from xflow_core.domain.geometry import Point
from xflow_core.domain.trace import Click
from xflow_core.policies.medgemma import PolicySettings
from xflow_core.policies.medgemma_decoding import PieceTokens
from xflow_core.policies.medgemma_model import MedGemma
from xflow_core.policies.medgemma_pictures import overlaid, squared
from xflow_core.policies.protocols import Done
from xflow_core.policies.transcript import GRID, THOUGHTS, SquareFrame, write_click
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.radiograph.recipes import check_recipe, recipe_grey

_KEPT = 256 << 20  # bytes of radiographs that are kept decoded, about
_KEPT_CHATS = 4096
MAX_CLICKS = PolicySettings().max_clicks


@dataclass(frozen=True, eq=False)
class Turn:
    """What the user's side says: pictures, uint8 ``[S, S, 3]``, then words."""

    pictures: tuple[np.ndarray, ...]
    words: str = ""


@dataclass(frozen=True, eq=False)
class Dialogue:
    """Turns of the user's side, each followed by the policy's answer, in pieces of a transcript."""

    turns: tuple[Turn, ...]
    answers: tuple[tuple[str, ...], ...]


class Radiographs:
    """The radiographs that rows refer to, as the policies see them.

    Args:
        folder: what the rows' ``image`` is relative to. recipe: the bundle's. side: pixels of the model's square.
        grid: whole numbers along it.
    """

    def __init__(self, folder: Path, recipe: str, side: int, grid: int = GRID) -> None:
        check_recipe(recipe)
        self._folder, self._recipe, self.side, self._grid = folder, recipe, side, grid
        # A square has three bytes a pixel, and the radiograph is at least as large.
        self.read = lru_cache(max(32, _KEPT // (6 * side**2)))(self._read)

    def _read(self, name: str) -> EncodedRadiograph:
        return EncodedRadiograph(read_radiograph(self._folder / name))

    def frame(self, image: EncodedRadiograph) -> SquareFrame:
        return SquareFrame(image.radiograph.record.size, self._grid)

    def square(self, image: EncodedRadiograph) -> np.ndarray:
        """uint8 ``[S, S, 3]``."""
        drawn: np.ndarray = image.feature(
            f"training.square.{self._recipe}.{self.side}",
            lambda _: squared(recipe_grey(image, self._recipe), self.side),
        )
        return drawn


def init_dialogue(row: Mapping[str, Any], radiographs: Radiographs) -> Dialogue:
    """One turn: a row of ``training instructions``.

    Raises:
        ValueRefused: no target can be written for the row. RadiographError: its radiograph cannot be read.
    """
    target, image = InitTarget.of_row(row), radiographs.read(row["image"])
    turn = Turn((radiographs.square(image),), row["instruction"])
    return Dialogue((turn,), (tuple(target.pieces(radiographs.frame(image))),))


def revision_dialogue(row: Mapping[str, Any], radiographs: Radiographs) -> Dialogue:
    """A trajectory of ``training trajectories``: clicks up to its best mask, then ``done``.

    The oracle goes on while a pixel is wrong, and its last clicks may harm; what is shown ends where nothing better
    came. After the last click that is allowed nothing is asked, so nothing is answered.

    Raises:
        RadiographError: its radiograph cannot be read.
    """
    image = radiographs.read(row["image"])
    square, frame = radiographs.square(image), radiographs.frame(image)
    last = int(np.argmax(row["ious"]))
    clicks = [Click(click["polarity"], Point(*map(float, click["point"]))) for click in row["clicks"][:last]]
    masks = [rle.decode(mask, tuple(row["size"])) for mask in row["masks"][: last + 1]]
    moves: list[Click | Done] = [*clicks, *([Done()] if last < MAX_CLICKS else [])]
    turns = [opening(square, masks[0], row["instruction"])]
    turns += [Turn((overlaid(square, mask),)) for mask in masks[1 : len(moves)]]
    return Dialogue(tuple(turns), tuple(tuple(write_click(move, frame, THOUGHTS)) for move in moves))


def opening(square: np.ndarray, mask: np.ndarray, words: str) -> Turn:
    """The first turn of a revision: the radiograph, the mask laid over it, the question."""
    return Turn((square, overlaid(square, mask)), words)


class Tokens:
    """Conversations as tokens of one model."""

    def __init__(self, gemma: MedGemma) -> None:
        self._gemma = gemma
        self.pieces = PieceTokens(gemma.processor.tokenizer, gemma.end)
        self.image_token = gemma.image_token
        # The same questions come again and again, and a template takes longer than a look.
        self._rendered = lru_cache(_KEPT_CHATS)(self._render)

    def turns(self, turns: Sequence[Turn]) -> list[list[int]]:
        """Each turn's tokens, up to where the policy answers; the first one holds the chat's beginning."""
        return [list(part) for part in self._rendered(tuple((len(turn.pictures), turn.words) for turn in turns))]

    def _render(self, turns: tuple[tuple[int, str], ...]) -> list[list[int]]:
        soft = [-1] * self._gemma.processor.image_seq_length
        rendered = self._gemma.turns([([soft] * pictures, words) for pictures, words in turns])
        return [[self.image_token if token < 0 else token for token in part] for part in rendered]

    def pixels(self, pictures: Sequence[np.ndarray]) -> Tensor:
        """float ``[N, 3, S, S]``."""
        images = [Image.fromarray(picture) for picture in pictures]
        processed: Tensor = self._gemma.processor.image_processor(images=images, return_tensors="pt")["pixel_values"]
        return processed

    def example(self, dialogue: Dialogue) -> tuple[list[int], list[bool]]:
        """The tokens, and which of them the policy writes."""
        ids: list[int] = []
        own: list[bool] = []
        for turn, answer in zip(self.turns(dialogue.turns), dialogue.answers, strict=True):
            said = self.pieces.encode(answer)
            ids += [*turn, *said]
            own += [False] * len(turn) + [True] * len(said)
        return ids, own

    def batch(self, dialogues: Sequence[Dialogue]) -> dict[str, Tensor]:
        """What the model is trained on, padded on the right; labels are -100 but for the policy's own tokens."""
        examples = [self.example(dialogue) for dialogue in dialogues]
        length = max(len(ids) for ids, _ in examples)
        ids = torch.zeros(len(examples), length, dtype=torch.long)
        present, own = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        for number, (tokens, written) in enumerate(examples):
            ids[number, : len(tokens)] = torch.tensor(tokens)
            present[number, : len(tokens)] = 1
            own[number, : len(tokens)] = torch.tensor(written)
        pictures = [picture for dialogue in dialogues for turn in dialogue.turns for picture in turn.pictures]
        return {
            "input_ids": ids,
            "attention_mask": present,
            "token_type_ids": (ids == self.image_token).long(),
            "pixel_values": self.pixels(pictures),
            "labels": torch.where(own, ids, -100),
        }
