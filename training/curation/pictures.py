"""Example pictures for a stage's report: what a row says, drawn on its radiograph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def examples(folder: Path, splits: Sequence[str], count: int = 12) -> list[dict[str, Any]]:
    """Positive rows of the first shard of each split, another finding and study each time as long as there is one."""
    rows = []
    for split in splits:
        path = folder / f"{split}-00000.parquet"
        rows += pq.read_table(path).to_pylist() if path.is_file() else []
    by_finding: dict[str, list[dict[str, Any]]] = {}
    studies = set()
    for row in rows:
        if row.get("present", True) and (row["study"], row["finding"]) not in studies:
            studies.add((row["study"], row["finding"]))
            by_finding.setdefault(row["finding"], []).append(row)
    turns = max((len(held) for held in by_finding.values()), default=0)
    return [held[turn] for turn in range(turns) for held in by_finding.values() if turn < len(held)][:count]


def instruction_sheet(rows: Sequence[dict[str, Any]], sources: Sources) -> bytes:
    """PNG: the lungs that are grounded in green, the lesion boxes in red, the instruction above."""
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
        tiles.append(_titled(picture, row["instruction"]))
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


def trajectory_sheet(rows: Sequence[dict[str, Any]], sources: Sources, count: int = 6) -> bytes:
    """PNG, a line a trajectory: the mask in blue, the truth in yellow, the next click (green adds, red takes away)."""
    tiles: list[np.ndarray] = []
    for row in rows[:count]:
        plain = _radiograph(sources.images / row["image"])
        if plain is None:
            continue
        truth = rle.decode(row["truth"], tuple(row["size"]))
        for turn in range(5):
            if turn >= len(row["masks"]):
                tiles.append(np.zeros((_TILE, _TILE, 3), np.uint8))
                continue
            picture = plain.copy()
            _outline(picture, rle.decode(row["masks"][turn], tuple(row["size"])), _MASK)
            _outline(picture, truth, _TRUTH)
            if turn == 0:
                _box(picture, row["box"], _LESION)
            if turn < len(row["clicks"]):
                click = row["clicks"][turn]
                x, y = (round(value * side) for value, side in zip(click["point"], picture.shape[1::-1], strict=True))
                colour = _PLUS if click["polarity"] == "positive" else _MINUS
                cv2.circle(picture, (x, y), 5, (255, 255, 255), -1, cv2.LINE_AA)
                cv2.circle(picture, (x, y), 4, colour, -1, cv2.LINE_AA)
            tiles.append(_titled(picture, f"{row['finding']} IoU {row['ious'][turn]:.2f}"))
    return _png(tiles, 5)


def _radiograph(path: Path) -> np.ndarray | None:
    """The radiograph at the tile's size, colour; None where it cannot be read."""
    grey = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if grey is None:
        return None
    scale = _TILE / max(grey.shape)
    size = (round(grey.shape[1] * scale), round(grey.shape[0] * scale))
    return np.asarray(cv2.cvtColor(cv2.resize(grey, size, interpolation=cv2.INTER_AREA), cv2.COLOR_GRAY2BGR))


def _box(picture: np.ndarray, box: Sequence[float], colour: tuple[int, int, int]) -> None:
    height, width = picture.shape[:2]
    x1, y1, x2, y2 = box
    first, last = (round(x1 * width), round(y1 * height)), (round(x2 * width), round(y2 * height))
    cv2.rectangle(picture, first, last, colour, 1, cv2.LINE_AA)


def _outline(picture: np.ndarray, mask: np.ndarray, colour: tuple[int, int, int]) -> None:
    small = cv2.resize(mask.astype(np.uint8), picture.shape[1::-1], interpolation=cv2.INTER_NEAREST)
    found, _ = cv2.findContours(small, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(picture, found, -1, colour, 1)


def _titled(picture: np.ndarray, words: str) -> np.ndarray:
    tile = np.zeros((_TILE, _TILE, 3), np.uint8)
    tile[: picture.shape[0], : picture.shape[1]] = picture
    for number, line in enumerate(wrap(words, 44)):
        place = (4, 13 + 14 * number)
        cv2.putText(tile, line, place, cv2.FONT_HERSHEY_SIMPLEX, 0.38, (0, 255, 255), 1, cv2.LINE_AA)
    return tile


def _png(tiles: list[np.ndarray], across: int) -> bytes:
    if not tiles:
        tiles = [_titled(np.zeros((_TILE, _TILE, 3), np.uint8), "no example")]
    while len(tiles) % across:
        tiles.append(np.zeros_like(tiles[0]))
    lines = [np.hstack(tiles[start : start + across]) for start in range(0, len(tiles), across)]
    _, encoded = cv2.imencode(".png", np.vstack(lines))
    return encoded.tobytes()
