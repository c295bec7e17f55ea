"""What a policy wrote, drawn on the pictures that it was shown: for reports. Not for clinical use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import cv2
import numpy as np

from training.policies.dialogues import MAX_CLICKS
from training.policies.episodes import InitEpisode, RevisionEpisode
from xflow_core.domain.errors import NotWritten
from xflow_core.domain.geometry import Box, mask_iou
from xflow_core.policies.medgemma_pictures import overlaid, squared
from xflow_core.policies.transcript import SquareFrame

# Red, green, blue.
_LUNG, _SAID, _TRUE = (0, 200, 0), (255, 70, 70), (255, 220, 0)
_TILE, _BAND = 240, 22


def chosen(episodes: Sequence[Any], rows: Sequence[Mapping[str, Any]], each: int) -> list[int]:
    """The first episodes of every finding, those with something to draw, each on another radiograph."""
    first: dict[str, dict[str, int]] = {}
    for index, (row, episode) in enumerate(zip(rows, episodes, strict=True)):
        if _drawn(episode):
            first.setdefault(row["finding"], {}).setdefault(row["image"], index)
    return [index for _, of in sorted(first.items()) for index in list(of.values())[:each]]


def _drawn(episode: Any) -> bool:
    return not isinstance(episode, InitEpisode) or bool(episode.target.boxes)


def init_tile(episode: InitEpisode, title: str) -> np.ndarray:
    """Lungs in green, the true lesion boxes in yellow, those written in red; uint8 ``[H, W, 3]``."""
    tile = _enlarged(episode.opening.pictures[0])
    for box in episode.target.boxes:
        _rectangle(tile, box, episode.frame, _TRUE)
    if episode.answer is None:
        return _titled(tile, f"{title}: unreadable")
    for lung in episode.answer.lungs:
        _rectangle(tile, lung.box, episode.frame, _LUNG)
    for box in episode.answer.boxes:
        _rectangle(tile, box, episode.frame, _SAID)
    return _titled(tile, title if episode.answer.boxes else f"{title}: absent")


def revision_tiles(episode: RevisionEpisode, title: str, most: int) -> list[np.ndarray]:
    """The mask in red before and after every click, the truth's outline in yellow, the next click in green or blue."""
    tiles = []
    side = episode.square.shape[0]
    truth = (squared(episode.truth.astype(np.uint8) * 255, side)[..., 0] > 127).astype(np.uint8)
    large = cv2.resize(truth, (_TILE, _TILE), interpolation=cv2.INTER_NEAREST)
    outlines, _ = cv2.findContours(large, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    for number, mask in enumerate(episode.masks):
        tile = _enlarged(overlaid(episode.square, mask))
        cv2.drawContours(tile, outlines, -1, _TRUE, 1)
        if number < len(episode.clicks):
            click = episode.clicks[number]
            x, y = episode.frame.numbers_of_point(click.point)
            at = (round(x / episode.frame.grid * _TILE), round(y / episode.frame.grid * _TILE))
            cv2.circle(tile, at, 4, (0, 255, 0) if click.polarity == "positive" else (60, 120, 255), -1)
        said = title if number == 0 else f"click {number}"
        tiles.append(_titled(tile, f"{said}: IoU {mask_iou(mask, episode.truth):.2f}"))
    blank = np.zeros_like(tiles[0])
    return [*tiles, *[blank] * (most - len(tiles))][:most]


def rollouts(episodes: Sequence[Any], most: int) -> np.ndarray:
    """The first episodes of a step with what they were paid: pi_init's side by side, pi_rev's one under the other."""
    lines = []
    for episode in episodes[:most]:
        title = f"reward {sum(episode.rewards().values()):.2f}"
        if isinstance(episode, InitEpisode):
            lines.append([init_tile(episode, title)])
        else:
            lines.append(revision_tiles(episode, title, MAX_CLICKS + 1))
    return tiled([list(chain(*lines))] if isinstance(episodes[0], InitEpisode) else lines)


def tiled(lines: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """Tiles, one line under the other; uint8 ``[H, W, 3]``."""
    return np.vstack([np.hstack(list(line)) for line in lines])


def sheet(lines: Sequence[Sequence[np.ndarray]]) -> bytes:
    """PNG of tiles, one line under the other."""
    drawn = tiled(lines)
    done, encoded = cv2.imencode(".png", np.ascontiguousarray(drawn[..., ::-1]))
    if not done:
        raise NotWritten(f"A picture of {drawn.shape} cannot be stored as PNG.")
    return bytes(encoded.tobytes())


def _enlarged(picture: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(cv2.resize(picture, (_TILE, _TILE), interpolation=cv2.INTER_CUBIC))


def _rectangle(tile: np.ndarray, box: Box, frame: SquareFrame, colour: tuple[int, int, int]) -> None:
    x1, y1, x2, y2 = (round(number / frame.grid * _TILE) for number in frame.numbers_of_box(box))
    cv2.rectangle(tile, (x1, y1), (x2, y2), colour, 1)


def _titled(tile: np.ndarray, words: str) -> np.ndarray:
    band = np.zeros((_BAND, tile.shape[1], 3), np.uint8)
    cv2.putText(band, words, (4, 15), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (255, 255, 255), 1, cv2.LINE_AA)
    return np.vstack([band, tile])
