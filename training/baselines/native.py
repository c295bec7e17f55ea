"""What systems write, read as masks: bool ``[H, W]`` of the source size, or the prompts that a segmenter is to be
asked.

A reader takes the folder of a system's output and one request. It raises ``CallError`` where the output is missing or
is not what the system documents: that is no answer. What the system itself means by "nothing there" is an empty mask.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from training.baselines.requests import Request
from training.curation.sources.cxas import read_organ
from xflow_core.domain import rle
from xflow_core.domain.errors import CallError, EngineError, ValueRefused
from xflow_core.domain.findings import LUNGS
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.trace import Click
from xflow_core.policies.transcript import SquareFrame, read_boxes_2d
from xflow_core.segmenters.protocol import Prompt

SEG_ZERO_SIDE = 840  # its script stretches every image to a square of this side


def empty(request: Request) -> np.ndarray:
    return np.zeros(request.size, bool)


def picture(path: Path, request: Request, above: int = 127) -> np.ndarray:
    """A mask image; a colour one by its first channel."""
    stored = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    if stored is None:
        raise CallError(f"There is no readable mask of row {request.id}: {path}.")
    return _of_size((stored if stored.ndim == 2 else stored[..., 0]) > above, path, request)


def array(path: Path, request: Request, above: float) -> np.ndarray:
    """A stored array of logits, probabilities or zeros and ones, ``[.., H, W]``: the union of what lies above."""
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as problem:
        raise CallError(f"There is no readable array of row {request.id}: {path} ({problem}).") from None
    if isinstance(values, np.lib.npyio.NpzFile):
        raise CallError(f"{path} is an archive; an array (.npy) was expected.")
    if values.ndim < 2 or not np.issubdtype(values.dtype, np.number) or not np.isfinite(values).all():
        raise CallError(f"{path} of row {request.id} is no array of finite numbers over an image.")
    return _of_size((values > above).reshape(-1, *values.shape[-2:]).any(0), path, request)


def from_square(mask: np.ndarray, request: Request) -> np.ndarray:
    """A mask of an image that was stretched to a square, in the source's frame by the nearest pixel."""
    height, width = request.size
    return np.asarray(cv2.resize(mask.astype(np.uint8), (width, height), interpolation=cv2.INTER_NEAREST) > 0)


def _of_size(mask: np.ndarray, path: Path, request: Request) -> np.ndarray:
    if mask.shape != request.size:
        raise CallError(f"{path} of row {request.id} is {mask.shape}, its image {request.size}.")
    return np.asarray(mask)


def text(path: Path, request: Request) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise CallError(f"There are no words of row {request.id}: {path} ({problem}).") from None


# The LISA family --------------------------------------------------------------------------------------------------


def rosalia(folder: Path, request: Request) -> np.ndarray:
    """``<stem>.png`` as its example saves it. It always answers with [SEG]; an absent finding is an empty mask."""
    return picture(folder / f"{request.stem}.png", request)


def lisa(folder: Path, request: Request) -> np.ndarray:
    """``<stem>_mask_<k>.jpg`` of 0 and 100 (``chat.py``), and the words that it printed, in ``stdout.txt``.

    Words without a segmentation token are its "nothing there"; with one, a file must be there.
    """
    words = _spoken(folder / "stdout.txt")
    number = int(request.stem)
    if number >= len(words):
        raise CallError(f"{folder / 'stdout.txt'} holds {len(words)} answers and none of row {request.id}.")
    files = sorted(folder.glob(f"{request.stem}_mask_*.jpg"))
    if not re.search(r"\[SEG\d*\]", words[number]):
        return empty(request)
    if not files:
        raise CallError(f"Row {request.id} was answered with a mask, and {folder} holds no {request.stem}_mask_*.jpg.")
    return np.logical_or.reduce([picture(path, request, above=50) for path in files])


@lru_cache(maxsize=4)
def _spoken(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as problem:
        raise CallError(f"{path}, what the system printed, cannot be read: {problem}.") from None
    # The prompt stands before it on the same line, for input() ends no line when it reads from a file.
    return tuple(line.split("text_output:", 1)[1] for line in lines if "text_output:" in line)


# Masks as text ----------------------------------------------------------------------------------------------------


def text4seg(folder: Path, request: Request, grid: int = 24) -> np.ndarray:
    """``<stem>/0_sam_mask.png`` of its evaluation (refined by SAM), else ``<stem>.txt``: the words alone."""
    refined = folder / request.stem / "0_sam_mask.png"
    if refined.is_file():
        return picture(refined, request)
    return from_square(text4seg_mask(text(folder / f"{request.stem}.txt", request), grid), request)


def text4seg_mask(words: str, grid: int) -> np.ndarray:
    """Row-wise run lengths of labels ``<seg>others *14| effusion *10\\n others *24\\n ..</seg>`` as bool ``[grid,
    grid]``.

    As in its own evaluation: "others" is outside, a short text goes on with its last label, a long one is cut, and
    words without such a text are an empty mask.
    """
    body = re.search(r"<seg>(.*?)(</seg>|$)", words, re.DOTALL)
    runs = re.findall(r"([^|\n*]+?)\s*\*\s*(\d{1,4})", "" if body is None else body[1])
    labels = [label.strip() != "others" for label, count in runs for _ in range(min(int(count), grid * grid))]
    if not labels:
        return np.zeros((grid, grid), bool)
    labels = (labels + [labels[-1]] * (grid * grid))[: grid * grid]
    return np.array(labels).reshape(grid, grid)


# Text prompts and masks -------------------------------------------------------------------------------------------


def imis_net(folder: Path, request: Request) -> np.ndarray:
    """``<stem>.npy``: the predictor's masks, 0 and 1, or with ``return_logits`` probabilities, ``[1, 1, H, W]``."""
    return array(folder / f"{request.stem}.npy", request, above=0.5)


def biomedparse(folder: Path, request: Request) -> np.ndarray:
    """``<stem>.npy``: ``interactive_infer_image``'s probabilities ``[prompts, H, W]``."""
    return array(folder / f"{request.stem}.npy", request, above=0.5)


def reclmis(folder: Path, request: Request) -> np.ndarray:
    """``<stem>.npy``: ``pred_class`` of its test, zeros and ones on the 224-pixel square that it stretches images
    to."""
    path = folder / f"{request.stem}.npy"
    square = Request(request.stem, request.id, request.image, (224, 224), request.prompt)
    return from_square(array(path, square, above=0.5), request)


def sam3_text(folder: Path, request: Request) -> np.ndarray:
    """``<stem>.npz`` with ``masks`` ``[N, 1, H, W]`` and ``scores`` ``[N]`` of ``set_text_prompt``: their union.

    The processor keeps masks whose score times the concept's presence is over 0.5: N = 0 is "nothing there".
    """
    path = folder / f"{request.stem}.npz"
    masks = _archive(path, request, "masks")
    return empty(request) if not len(masks) else _of_size(masks.reshape(-1, *masks.shape[-2:]).any(0), path, request)


# Clicks -----------------------------------------------------------------------------------------------------------


def ibis_agent(folder: Path, request: Request) -> np.ndarray:
    """``<stem>/final_segmentation.png``: the image with the mask in forest green (34, 139, 34) at 40 %.

    On a grey image green less red is 42 inside and 0 outside. Terminating before any click leaves the image bare.
    """
    path = folder / request.stem / "final_segmentation.png"
    shown = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if shown is None:
        raise CallError(f"There is no readable overlay of row {request.id}: {path}.")
    _, green, red = cv2.split(shown.astype(np.int16))
    return _of_size(green - red > 21, path, request)


def seg_agent(folder: Path, request: Request) -> np.ndarray:
    """Its predictions' JSON files, one a list of requests: of the record of this picture, the mask before the click
    whose words state the highest IoU ("Current IOU: .."), as its own evaluation chooses."""
    record = _segagent_records(folder).get(request.stem)
    if record is None:
        raise CallError(f"The JSON files of {folder} hold no record of row {request.id}.")
    tried = record["pred_list"]
    if not tried:
        raise CallError(f"The record of row {request.id} has no click; SegAgent always clicks.")
    stated = [re.search(r"Current IOU:\s*([0-9.]+)", one.get("outputs") or "") for one in tried]
    best = int(np.argmax([0.0 if match is None else float(match[1].rstrip(".")) for match in stated]))
    mask = tried[max(best - 1, 0)]["mask"]
    size = (int(mask["size"][0]), int(mask["size"][1]))
    try:
        return _of_size(rle.decode(mask["counts"], size), folder, request)
    except ValueRefused as problem:
        raise CallError(f"The mask of row {request.id} is no run-length text: {problem}") from None


@lru_cache(maxsize=4)
def _segagent_records(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            records = json.loads(path.read_text(encoding="utf-8"))
            found |= {Path(record["img_path"]).stem: record for record in records}
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise CallError(f"{path} is no list of SegAgent's predictions: {problem}.") from None
    return found


# Boxes and points, for a segmenter --------------------------------------------------------------------------------


def seg_zero(folder: Path, request: Request) -> np.ndarray | list[Prompt]:
    """``<stem>.png`` where its own SAM2 was run, else its words in ``<stem>.txt``: the prompts for a segmenter."""
    if (folder / f"{request.stem}.png").is_file():
        return picture(folder / f"{request.stem}.png", request)
    return seg_zero_prompts(text(folder / f"{request.stem}.txt", request), request)


def seg_zero_prompts(words: str, request: Request) -> list[Prompt]:
    """``<answer>[{"bbox_2d": [x1, y1, x2, y2], "point_2d": [x, y]}, ..]</answer>`` on a square of 840. An empty list is
    "nothing there"; anything else that cannot be read is no answer."""
    body = re.search(r"<answer>\s*(.*?)\s*</answer>", words, re.DOTALL)
    if body is None:
        raise CallError(f"The words of row {request.id} hold no <answer>.")
    try:
        prompts = []
        for entry in json.loads(body[1]):
            x1, y1, x2, y2 = (min(max(float(v) / SEG_ZERO_SIDE, 0.0), 1.0) for v in entry["bbox_2d"])
            x, y = (min(max(float(v) / SEG_ZERO_SIDE, 0.0), 1.0) for v in entry["point_2d"])
            prompts.append(Prompt(Box(x1, y1, x2, y2), (Click("positive", Point(x, y)),)))
    except (ValueError, KeyError, TypeError) as problem:
        raise CallError(f"The answer of row {request.id} is no list of boxes and points: {problem}.") from None
    return prompts


def medgemma(folder: Path, request: Request) -> list[Prompt]:
    """``<stem>.txt``: ``[{"box_2d": [y0, x0, y1, x1], "label"}, ..]`` on 0 to 1000 of the padded square; [] is
    absent."""
    try:
        boxes = read_boxes_2d(text(folder / f"{request.stem}.txt", request), SquareFrame(request.size))
    except EngineError as problem:
        raise CallError(f"The answer of row {request.id} cannot be read: {problem}") from None
    return [Prompt(box) for _, box in boxes]


def medsam(folder: Path, request: Request) -> np.ndarray:
    """``seg_<stem>_<k>.png`` of 0 and 1 for the k-th box that it was told. No box: it was not asked."""
    masks = [picture(folder / f"seg_{request.stem}_{k}.png", request, above=0) for k in range(len(request.boxes))]
    return np.logical_or.reduce(masks) if masks else empty(request)


def medsam2(folder: Path, request: Request) -> np.ndarray:
    """``<stem>.npz`` with ``segs`` ``[1, H, W]``, a label for each box that it was told. No box: it was not asked."""
    if not request.boxes:
        return empty(request)
    path = folder / f"{request.stem}.npz"
    segs = _archive(path, request, "segs")
    return _of_size((segs > 0).reshape(-1, *segs.shape[-2:]).any(0), path, request)


def _archive(path: Path, request: Request, name: str) -> np.ndarray:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return np.asarray(stored[name])
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as problem:
        raise CallError(f"There is no {name!r} of row {request.id} in {path}: {problem}.") from None


# Lungs ------------------------------------------------------------------------------------------------------------


def cxas_lungs(folder: Path, request: Request) -> dict[str, np.ndarray]:
    """``<stem>/right lung.png`` and ``left lung.png``, one bit, source size."""
    lungs = {}
    for label in LUNGS:
        mask = read_organ(folder, request.stem, label)
        if mask is None:
            raise CallError(f"{folder / request.stem} holds no readable {label} of row {request.id}.")
        lungs[label] = _of_size(mask, folder / request.stem, request)
    return lungs


def chexmask_u_lungs(folder: Path, request: Request) -> dict[str, np.ndarray]:
    """``<stem>.txt``: landmarks "x y" on the image stretched to 1024 pixels, 44 of the right lung, 50 of the left, then
    the heart's."""
    path = folder / f"{request.stem}.txt"
    try:
        points = np.array([[float(v) for v in line.split()] for line in text(path, request).splitlines()])
    except ValueError:
        points = np.empty((0, 2))
    if points.ndim != 2 or points.shape[1:] != (2,) or len(points) < 94:
        raise CallError(f"{path} holds no landmarks of both lungs: 94 lines of x and y, and the heart's.")
    lungs = {}
    for label, outline in zip(LUNGS, (points[:44], points[44:94]), strict=True):
        square = np.zeros((1024, 1024), np.uint8)
        cv2.fillPoly(square, [outline.round().astype(np.int32)], 1)
        lungs[label] = from_square(square > 0, request)
    return lungs
