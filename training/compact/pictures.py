"""Two contact sheets for the model card: where a bundle does well and where it fails, on the pack's dev split.

    python -m training compact pictures --data ../shared/data --bundle compact --out docs/images

Writes ``compact-good.png`` and ``compact-bad.png``. Every chest-level question whose true answer is known is asked, on
the NIH radiographs alone (their use is not restricted; the sheets name the source), and a rule chooses:

- good: of each finding's positive questions the best quarter by IoU, its middle one first, then the best, then the
  rest from the best down; the findings take turns.
- bad: four kinds of failure take turns: a miss (largest contour first), a false alarm (surest first), a box that meets
  no contour at IoU 0.3 (worst IoU first), and the worst IoU of all others. Within a kind the findings take turns.

No radiograph is shown twice on a sheet, and none is left out for how it looks.
"""

from __future__ import annotations

import argparse
import io
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from training.evaluation.cases import Case, read_cases
from training.evaluation.metrics import boxes_of
from xflow_core import NOT_FOR_CLINICAL_USE
from xflow_core.bundles.loading import load_engine
from xflow_core.domain.errors import CallError
from xflow_core.domain.findings import FINDINGS
from xflow_core.domain.geometry import Box, mask_iou
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import BoxesStep, ResultStep
from xflow_core.export.files import write_whole
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.workflow.engine import Engine
from xflow_core.workflow.session import Limits, answer

LOG = logging.getLogger(__name__)

PANEL = 256
COLUMNS = 4
PANELS = 8
MOST_BYTES = 350_000
_CAPTION = 40
_HEAD = 58
_FOOT = 50
_HIT = 0.3
_KINDS = ("miss", "false alarm", "wrong box", "poor mask")

Colour = tuple[int, int, int]
_PAGE: Colour = (18, 20, 24)
_TEXT: Colour = (236, 238, 242)
_FAINT: Colour = (160, 168, 180)
# As in the overlay: the answer in light blue and its boxes in orange; the radiologist's contour in magenta.
_ANSWER: Colour = (64, 224, 255)
_TRUTH: Colour = (255, 92, 205)
_BOX: Colour = (255, 186, 48)
CREDIT = (
    "Radiographs: NIH Clinical Center, ChestX-ray14 (Wang et al., CVPR 2017). Contours: ChestX-Det (Lian et al.). "
    "Boxes: NIH's list of boxes.",
    'Reports are noisy: about one in eight with "No Finding" looks abnormal. Contours are loose.',
)


@dataclass(frozen=True, eq=False)
class Shown:
    """One question with its answer and the truth.

    truth: bool ``[H, W]``, all false where the finding is absent. source: what the truth rests on, "contour", "box" or
    "report". mask: bool ``[H, W]``, None for "absent". confidence: of what was stated. hit: whether a box of the answer
    meets a true one.
    """

    case: str
    finding: str
    grey: np.ndarray
    truth: np.ndarray
    source: str
    mask: np.ndarray | None
    boxes: tuple[Box, ...]
    confidence: float | None
    hit: bool

    @property
    def positive(self) -> bool:
        return bool(self.truth.any())

    @property
    def iou(self) -> float:
        return 0.0 if self.mask is None else mask_iou(self.mask, self.truth)

    @property
    def kind(self) -> str | None:
        """How it failed, if it did; a positive with a mask in the right place is a "poor mask" at worst."""
        if not self.positive:
            return None if self.mask is None else "false alarm"
        if self.mask is None:
            return "miss"
        return "poor mask" if self.hit else "wrong box"


def show_all(engine: Engine, cases: Iterable[Case]) -> list[Shown]:
    """Every known chest-level question on every case."""
    shown = []
    for case in cases:
        known = {finding: case.truth(finding) for finding in engine.findings}
        if all(truth is None for truth in known.values()):
            continue
        radiograph = read_radiograph(case.path)
        image = EncodedRadiograph(radiograph)
        for finding, truth in known.items():
            if truth is None:
                continue
            trace = answer(engine, image, parse_instruction(f"Segment the {finding}.")[0])
            if trace.result is None or trace.result.present is None:
                raise CallError(f"{case.id} got no answer about {finding}: {trace.result and trace.result.message}")
            step: ResultStep = trace.last(ResultStep)
            located: BoxesStep | None = trace.last(BoxesStep)
            boxes = () if located is None else tuple(found.box for found in located.boxes)
            true = boxes_of(truth, Limits().speck_share)
            shown.append(
                Shown(
                    case=case.id,
                    finding=finding,
                    grey=radiograph.display,
                    truth=truth,
                    source="report" if case.normal else "contour" if case.contoured else "box",
                    mask=None if step.mask is None else step.mask.array,
                    boxes=boxes,
                    confidence=trace.result.confidence,
                    hit=any(t.iou(box) >= _HIT for t in true for box in boxes),
                )
            )
    return shown


def choose_good(shown: Sequence[Shown], count: int = PANELS) -> list[Shown]:
    """By the module's rule."""
    queues = []
    for finding in FINDINGS:
        ranked = sorted(
            (s for s in shown if s.finding == finding and s.positive and s.mask is not None), key=lambda s: -s.iou
        )
        positives = sum(s.finding == finding and s.positive for s in shown)
        best = [s for s in ranked[: max(1, positives // 4)] if s.hit]
        middle = best[len(best) // 2 : len(best) // 2 + 1]
        queues.append([*middle, *(s for s in best if s not in middle)])
    return _in_turn(queues, count)


def choose_bad(shown: Sequence[Shown], count: int = PANELS) -> list[Shown]:
    """By the module's rule."""

    def badness(s: Shown) -> float:
        if s.kind == "miss":
            return float(s.truth.mean())
        return (s.confidence or 0.0) if s.kind == "false alarm" else -s.iou

    kinds = []
    for kind in _KINDS:
        queues = [
            sorted((s for s in shown if s.kind == kind and s.finding == finding), key=badness, reverse=True)
            for finding in FINDINGS
        ]
        # The finding whose worst case is worst opens the turn.
        queues.sort(key=lambda queue: -badness(queue[0]) if queue else np.inf)
        kinds.append(_in_turn(queues, len(shown)))
    return _in_turn(kinds, count)


def _in_turn(queues: Sequence[Sequence[Shown]], count: int) -> list[Shown]:
    """One from each queue, again and again; no radiograph twice."""
    waiting = [list(queue) for queue in queues]
    chosen: list[Shown] = []
    while len(chosen) < count and any(waiting):
        for queue in waiting:
            while queue and any(queue[0].case == s.case for s in chosen):
                queue.pop(0)
            if queue and len(chosen) < count:
                chosen.append(queue.pop(0))
    return chosen


def verdict(s: Shown) -> tuple[str, str]:
    """A panel's two lines."""
    stated = "absent" if s.mask is None else "present"
    if s.confidence is not None:
        stated = f"{stated}, confidence {s.confidence:.2f}"
    truth = {"report": "; report: no finding", "box": "; truth: a box", "contour": ""}[s.source]
    if not s.positive:
        return f"{s.finding}: {s.kind or 'rightly absent'}", stated + (truth or "; none was drawn")
    if s.mask is None:
        return f"{s.finding}: missed", stated + truth
    return f"{s.finding}: IoU {s.iou:.2f}" + ("" if s.hit else ", wrong box"), stated + truth


def panel(s: Shown) -> Image.Image:
    """One radiograph, :data:`PANEL` pixels a side at its own proportions, with its two lines below."""
    height, width = s.grey.shape
    scale = PANEL / max(height, width)
    size = (max(round(width * scale), 1), max(round(height * scale), 1))
    picture = np.asarray(Image.fromarray(s.grey).resize(size, Image.Resampling.LANCZOS).convert("RGB")).copy()
    lines = [
        (_outline(mask, size), colour) for mask, colour in ((s.truth, _TRUTH), (s.mask, _ANSWER)) if mask is not None
    ]
    for line, _ in lines:  # all that is dark first, so that no line darkens another
        picture[ndimage.binary_dilation(line, np.ones((3, 3)))] //= 2
    for line, colour in lines:
        picture[line] = colour
    page = Image.new("RGB", (PANEL, PANEL + _CAPTION), _PAGE)
    corner = ((PANEL - size[0]) // 2, (PANEL - size[1]) // 2)
    page.paste(Image.fromarray(picture), corner)
    draw = ImageDraw.Draw(page)
    for box in s.boxes:
        x1, x2 = (corner[0] + round(x * (size[0] - 1)) for x in (box.x1, box.x2))
        y1, y2 = (corner[1] + round(y * (size[1] - 1)) for y in (box.y1, box.y2))
        draw.rectangle((x1, y1, x2, y2), outline=_BOX)
    first, second = verdict(s)
    draw.text((4, PANEL + 12), first, _TEXT, ImageFont.load_default(14), anchor="lm")
    draw.text((4, PANEL + 30), second, _FAINT, ImageFont.load_default(12), anchor="lm")
    return page


def _outline(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The inner edge, two pixels wide, in a picture of ``size`` ``(width, height)``: bool ``[height, width]``."""
    cover = np.asarray(Image.fromarray(mask.astype(np.uint8) * 255).resize(size, Image.Resampling.BOX))
    # What is finer than the picture's pixels is drawn all the same.
    inside = cover > 127 if (cover > 127).any() else cover > 0
    return inside & ~ndimage.binary_erosion(inside, iterations=2)


def sheet(chosen: Sequence[Shown], title: str) -> Image.Image:
    """Panels in rows, with the legend above and the credit below."""
    rows = -(-len(chosen) // COLUMNS)
    gap = 6
    width = COLUMNS * (PANEL + gap) + gap
    page = Image.new("RGB", (width, _HEAD + rows * (PANEL + _CAPTION + gap) + _FOOT), _PAGE)
    draw = ImageDraw.Draw(page)
    draw.text((8, 18), title, _TEXT, ImageFont.load_default(19), anchor="lm")
    draw.text((width - 8, 18), NOT_FOR_CLINICAL_USE, _BOX, ImageFont.load_default(15), anchor="rm")
    x = 8.0
    for word, colour in (("drawn by a radiologist", _TRUTH), ("the answer", _ANSWER), ("its box", _BOX)):
        draw.line((x, 44, x + 22, 44), fill=colour, width=3)
        draw.text((x + 28, 44), word, _TEXT, ImageFont.load_default(14), anchor="lm")
        x += 28 + draw.textlength(word, ImageFont.load_default(14)) + 24
    for number, s in enumerate(chosen):
        row, column = divmod(number, COLUMNS)
        page.paste(panel(s), (gap + column * (PANEL + gap), _HEAD + row * (PANEL + _CAPTION + gap)))
    for line, text in enumerate(CREDIT):
        draw.text((8, page.height - _FOOT + 14 + 20 * line), text, _FAINT, ImageFont.load_default(13), anchor="lm")
    return page


def as_small_png(page: Image.Image, most: int = MOST_BYTES) -> bytes:
    """A PNG of at most ``most`` bytes: as few colours as that takes, 128 at best.

    Raises:
        CallError: not even 16 colours are few enough.
    """
    for colours in (128, 96, 64, 48, 32, 24, 16):
        buffer = io.BytesIO()
        _with_palette(page, colours).save(buffer, "PNG", optimize=True)
        if buffer.tell() <= most:
            return buffer.getvalue()
    raise CallError(f"The sheet of {page.width} x {page.height} pixels does not fit into {most} bytes.")


def _with_palette(page: Image.Image, colours: int) -> Image.Image:
    """The page in even steps of grey and the drawn colours, which keep their hue."""
    named = (_PAGE, _TEXT, _FAINT, _ANSWER, _TRUTH, _BOX)
    greys = np.linspace(0, 255, colours - len(named)).round().astype(int)
    flat = [value for colour in (*named, *((int(g),) * 3 for g in greys)) for value in colour]
    palette = Image.new("P", (1, 1))
    palette.putpalette(flat)
    return page.quantize(palette=palette, dither=Image.Dither.NONE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the open chest X-ray pack (holds manifest.csv)")
    parser.add_argument("--bundle", default="compact")
    parser.add_argument("--out", type=Path, required=True, help="a folder for the two sheets")
    parser.add_argument("--threads", type=int, default=1)


def run(arguments: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(arguments.threads)
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise CallError(f"The folder {arguments.out} cannot be made: {problem.strerror}.") from None
    engine = load_engine(arguments.bundle, "cpu")
    cases = [case for case in read_cases(arguments.data) if case.source.startswith("nih")]
    shown = show_all(engine, cases)
    name = f"{engine.identity.name} {engine.identity.version}"
    for file, chosen, title in (
        ("compact-good.png", choose_good(shown), f"{name}: from the best quarter of each finding"),
        ("compact-bad.png", choose_bad(shown), f"{name}: misses, false alarms, wrong boxes, poor masks"),
    ):
        if not chosen:
            raise CallError(f"There is nothing to show on {file}.")
        write_whole(arguments.out / file, as_small_png(sheet(chosen, title)))
        for s in chosen:
            LOG.info("%s: %s; %s; %s", file, s.case, *verdict(s))
