"""Example pictures for a stage's report: what a row says, drawn on its radiograph. Not for clinical use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Any

import cv2
import numpy as np
import pyarrow.parquet as pq

from training.curation.sources.layout import Sources
from xflow_core.domain import rle

# Blue, green, red, as OpenCV has them.
_LUNG, _LESION, _TRUTH, _MASK, _PLUS, _MINUS = (
    (0, 200, 0), (60, 60, 255), (0, 220, 255), (255, 160, 0), (0, 255, 0), (0, 0, 255),
)  # fmt: skip
_TILE = 320
_CAPTION = 58  # four lines of words


def examples(folder: Path, splits: Sequence[str], count: int = 12) -> list[dict[str, Any]]:
    """Various rows of the first shard of each split."""
    rows: list[dict[str, Any]] = []
    for split in splits:
        path = folder / f"{split}-00000.parquet"
        rows += pq.read_table(path).to_pylist() if path.is_file() else []
    return various(rows, count)


def various(rows: Sequence[dict[str, Any]], count: int = 12) -> list[dict[str, Any]]:
    """Positive and negative rows at every level in turn, of as many findings and radiographs as there are."""
    kinds: dict[tuple[bool, str], list[dict[str, Any]]] = {}
    for row in rows:
        # A row of an evaluation set is negative where it has no mask; all trajectories are of what is present.
        present = row.get("present", "masks" in row or row.get("mask") is not None)
        kinds.setdefault((present, row.get("level", "")), []).append(row)
    chosen: list[dict[str, Any]] = []
    findings: Counter[str] = Counter()
    images: Counter[str] = Counter()
    while len(chosen) < count and any(kinds.values()):
        for kind in sorted(kinds, reverse=True):
            if kinds[kind] and len(chosen) < count:
                row = min(kinds[kind], key=lambda row: (images[row["image"]], findings[row["finding"]]))
                kinds[kind].remove(row)
                chosen.append(row)
                findings[row["finding"]] += 1
                images[row["image"]] += 1
    return chosen


def instruction_sheet(rows: Sequence[dict[str, Any]], sources: Sources) -> bytes:
    """PNG: the instruction and the verdicts; the lungs that are grounded in green, the lesion boxes in red."""
    tiles = []
    for row in rows:
        picture = _radiograph(sources.images / row["image"])
        if picture is None:
            continue
        for lung in row["lungs"]:
            if lung["label"] in row["grounded"]:
                _box(picture, lung["box"], _LUNG)
        for box in row["boxes"] or ():
            _box(picture, box, _LESION)
        told = (f"{verdict['region']}: {'present' if verdict['present'] else 'absent'}" for verdict in row["verdicts"])
        tiles.append(_titled(picture, row["instruction"], ", ".join(told)))
    return _png(tiles, 4)


def evaluation_sheet(rows: Sequence[dict[str, Any]], folder: Path) -> bytes:
    """PNG: questions of an evaluation set with the true mask in yellow and the lungs in green, where they are known.

    Args:
        rows: of ``set.jsonl``. folder: the one that holds it.
    """
    tiles = []
    for row in rows:
        picture = _radiograph(folder / row["image"])
        if picture is None:
            continue
        for box in (row["lungs"] or {}).values():
            _box(picture, box, _LUNG)
        mask = None if row["mask"] is None else cv2.imread(str(folder / row["mask"]), cv2.IMREAD_GRAYSCALE)
        if mask is not None:
            _outline(picture, mask > 127, _TRUTH)
        tiles.append(_titled(picture, row["instruction"], "absent" if mask is None else "present"))
    return _png(tiles, 4)


def lung_sheet(rows: Sequence[dict[str, Any]], images: Mapping[str, str], sources: Sources) -> bytes:
    """PNG: the lung boxes that ``training lungs`` found.

    Args:
        images: a radiograph's file by its DICOM id.
    """
    tiles = []
    for row in rows:
        picture = _radiograph(sources.images / images[row["dicom_id"]])
        if picture is not None:
            for box in row["lungs"].values():
                _box(picture, box, _LUNG)
            tiles.append(_titled(picture, row["source"]))
    return _png(tiles, 4)


def trajectory_sheet(
    rows: Sequence[dict[str, Any]], starts: Sequence[dict[str, Any]], sources: Sources, count: int = 6
) -> bytes:
    """PNG, a line a trajectory, and a last line of some starting states, around their component.

    The perturbed box is red, the mask blue, the truth yellow; the next click adds where green, takes away where red.
    """
    lines = [_turns(row, sources) for row in rows[:count]]
    lines.append([tile for row in starts[:5] for tile in _turns(row, sources)])
    tiles: list[np.ndarray] = []
    for line in filter(None, lines):
        tiles += [*line, *([np.zeros_like(line[0])] * (5 - len(line)))]
    return _png(tiles, 5)


def _turns(row: dict[str, Any], sources: Sources) -> list[np.ndarray]:
    grey = cv2.imread(str(sources.images / row["image"]), cv2.IMREAD_GRAYSCALE)
    if grey is None:
        return []
    size = tuple(row["size"])
    truth = rle.decode(row["truth"], size)
    left, top, side = _window(truth, row["box"])
    tiles = []
    for turn, words in enumerate(row["masks"]):
        mask = rle.decode(words, size)
        parts = [picture[top : top + side, left : left + side] for picture in (grey, mask, truth)]
        picture = _shrunk(parts[0])
        _outline(picture, parts[1], _MASK)
        _outline(picture, parts[2], _TRUTH)
        place = partial(_place, size, (left, top), max(picture.shape) / max(parts[0].shape))
        if turn == 0:
            x1, y1, x2, y2 = row["box"]
            cv2.rectangle(picture, place(x1, y1), place(x2, y2), _LESION, 1, cv2.LINE_AA)
        if turn < len(row["clicks"]):
            click = row["clicks"][turn]
            colour = _PLUS if click["polarity"] == "positive" else _MINUS
            cv2.circle(picture, place(*click["point"]), 6, (255, 255, 255), -1, cv2.LINE_AA)
            cv2.circle(picture, place(*click["point"]), 5, colour, -1, cv2.LINE_AA)
        after = "the box's mask" if turn == 0 else f"after {turn} {'click' if turn == 1 else 'clicks'}"
        tiles.append(_titled(picture, row["instruction"] if turn == 0 else "", f"{after}: IoU {row['ious'][turn]:.2f}"))
    return tiles


def _place(size: tuple[int, int], corner: tuple[int, int], scale: float, x: float, y: float) -> tuple[int, int]:
    """A normalised point of the radiograph, in a window of it."""
    return round((x * size[1] - corner[0]) * scale), round((y * size[0] - corner[1]) * scale)


def _window(truth: np.ndarray, box: Sequence[float]) -> tuple[int, int, int]:
    """Left, top and side of a square around a component and the box it was asked with."""
    height, width = truth.shape
    rows, columns = np.flatnonzero(truth.any(1)), np.flatnonzero(truth.any(0))
    x1, x2 = min(columns[0], box[0] * width), max(columns[-1] + 1, box[2] * width)
    y1, y2 = min(rows[0], box[1] * height), max(rows[-1] + 1, box[3] * height)
    side = round(min(max(1.5 * max(x2 - x1, y2 - y1), 0.2 * max(height, width)), max(height, width)))
    left, top = round((x1 + x2 - side) / 2), round((y1 + y2 - side) / 2)
    return max(min(left, width - side), 0), max(min(top, height - side), 0), side


def _radiograph(path: Path) -> np.ndarray | None:
    """The radiograph at the tile's size, colour; None where it cannot be read."""
    grey = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    return None if grey is None else _shrunk(grey)


def _shrunk(grey: np.ndarray) -> np.ndarray:
    """At the tile's size, colour."""
    scale = _TILE / max(grey.shape)
    size = (max(round(grey.shape[1] * scale), 1), max(round(grey.shape[0] * scale), 1))
    how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    return np.asarray(cv2.cvtColor(cv2.resize(grey, size, interpolation=how), cv2.COLOR_GRAY2BGR))


def _box(picture: np.ndarray, box: Sequence[float], colour: tuple[int, int, int]) -> None:
    height, width = picture.shape[:2]
    x1, y1, x2, y2 = box
    first, last = (round(x1 * width), round(y1 * height)), (round(x2 * width), round(y2 * height))
    cv2.rectangle(picture, first, last, colour, 1, cv2.LINE_AA)


def _outline(picture: np.ndarray, mask: np.ndarray, colour: tuple[int, int, int]) -> None:
    small = cv2.resize(mask.astype(np.uint8), picture.shape[1::-1], interpolation=cv2.INTER_NEAREST)
    found, _ = cv2.findContours(small, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(picture, found, -1, colour, 1)


def _titled(picture: np.ndarray, words: str, below: str = "") -> np.ndarray:
    """The picture on a tile, the words above it, and more of them in grey."""
    tile = np.zeros((_TILE + _CAPTION, _TILE, 3), np.uint8)
    tile[_CAPTION : _CAPTION + picture.shape[0], : picture.shape[1]] = picture
    lines = [(line, (0, 255, 255)) for line in wrap(words, 48)] + [(line, (200, 200, 200)) for line in wrap(below, 48)]
    for number, (line, colour) in enumerate(lines[: _CAPTION // 14]):
        cv2.putText(tile, line, (4, 12 + 14 * number), cv2.FONT_HERSHEY_SIMPLEX, 0.38, colour, 1, cv2.LINE_AA)
    return tile


def _png(tiles: list[np.ndarray], across: int) -> bytes:
    if not tiles:
        tiles = [_titled(np.zeros((_TILE, _TILE, 3), np.uint8), "no row to show")]
    while len(tiles) % across:
        tiles.append(np.zeros_like(tiles[0]))
    lines = [np.hstack(tiles[start : start + across]) for start in range(0, len(tiles), across)]
    _, encoded = cv2.imencode(".png", np.vstack(lines))
    return encoded.tobytes()
