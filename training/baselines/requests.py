"""What a system is given: one picture and one sentence a row of an evaluation set.

    FOLDER/images/<stem>.png    the radiograph as shown, 8-bit grey, source size
    FOLDER/requests.jsonl       {"stem", "id", "image", "size": [H, W], "prompt", "boxes": [[x1, y1, x2, y2], ..]}
    FOLDER/stdin.txt            prompt and picture, line by line, for systems that ask for them at a terminal

A stem is the row's number in the set ("000012"): several systems name their output after the picture and cut the name
at its first dot. ``boxes`` are those of the truth's components in pixels, for systems that need a box and are told one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from training.evaluation.metrics import boxes_of
from training.evaluation.rows import Row
from xflow_core.domain.errors import CallError, NotWritten
from xflow_core.domain.findings import CHEST, HEART
from xflow_core.domain.instruction import Instruction
from xflow_core.export.files import write_whole
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.workflow.session import Limits

REQUESTS = "requests.jsonl"
IMAGES = "images"


@dataclass(frozen=True)
class Request:
    """One row as a system gets it. size: ``(height, width)``; boxes: ``(x1, y1, x2, y2)`` in pixels."""

    stem: str
    id: str
    image: str
    size: tuple[int, int]
    prompt: str
    boxes: tuple[tuple[int, int, int, int], ...] = ()


def place_of(instruction: Instruction) -> str:
    """The finding and where it is asked for, as a phrase: "effusion in the left lung"."""
    if instruction.regions in ((CHEST,), (HEART,)):
        return instruction.finding
    return f"{instruction.finding} in the {' and '.join(instruction.regions)}"


def write_requests(
    rows: Sequence[Row], folder: Path, prompt: Callable[[Instruction], str], boxes: bool = False
) -> list[Request]:
    """Write the pictures and the requests.

    Args:
        boxes: tell the truth's boxes, one a component; negative rows have none.

    Raises:
        CallError: an image or mask is missing, or the folder cannot be written.
    """
    try:
        (folder / IMAGES).mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise NotWritten(f"{folder / IMAGES} cannot be made: {problem.strerror or problem}.") from None
    requests = []
    shown: dict[Path, np.ndarray] = {}
    for number, row in enumerate(rows):
        if row.image not in shown:
            shown = {row.image: read_radiograph(row.image).display}  # sets ask an image's rows one after the other
        picture = shown[row.image]
        size = (picture.shape[0], picture.shape[1])
        stem = f"{number:06d}"
        Image.fromarray(picture).save(folder / IMAGES / f"{stem}.png", compress_level=1)
        told = boxes_of(row.truth(size), Limits().speck_share) if boxes else []
        requests.append(
            Request(
                stem, row.id, f"{IMAGES}/{stem}.png", size, prompt(row.instruction), tuple(b.pixels(size) for b in told)
            )
        )
    lines = [
        json.dumps({
            "stem": r.stem, "id": r.id, "image": r.image, "size": list(r.size), "prompt": r.prompt,
            "boxes": [list(box) for box in r.boxes],
        })
        + "\n"
        for r in requests
    ]  # fmt: skip
    write_whole(folder / REQUESTS, "".join(lines).encode())
    asked = "".join(f"{r.prompt}\n{(folder / r.image).resolve()}\n" for r in requests)
    write_whole(folder / "stdin.txt", asked.encode())
    return requests


def read_requests(folder: Path) -> list[Request]:
    """The requests in a folder that :func:`write_requests` wrote.

    Raises:
        CallError: there are none, or a line is not well formed.
    """
    path = folder / REQUESTS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as problem:
        raise CallError(
            f"{path} cannot be read: {problem.strerror}; `python -m training baselines write` makes it."
        ) from None
    try:
        return [
            Request(d["stem"], d["id"], d["image"], (d["size"][0], d["size"][1]), d["prompt"],
                    tuple(tuple(box) for box in d["boxes"]))
            for d in map(json.loads, lines)
        ]  # fmt: skip
    except (ValueError, KeyError, TypeError) as problem:
        raise CallError(f"{path} is no list of requests: {problem}.") from None
