"""The overlay: a radiograph with what was decided about it, as a picture for a colleague.

Nothing but the decisions is drawn over the radiograph; the patient's sides stand in the margins, and the scale, the
legend and the words stand below. Colours are told apart by people with any colour vision and are never the only sign.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from xflow_core import NOT_FOR_CLINICAL_USE
from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.geometry import Box
from xflow_core.domain.trace import BoxesStep, ClickStep, LungsStep, Mask, ResultStep, Trace

from .words import caption, headline

LONGEST_SIDE = 1200
"""Pixels of the radiograph's longer side in the picture."""
MARGIN = 40
"""Pixels left, right and above the radiograph."""

Colour = tuple[int, int, int]
Rectangle = tuple[float, float, float, float]

_PAGE: Colour = (18, 20, 24)
_TEXT: Colour = (236, 238, 242)
_FAINT: Colour = (160, 168, 180)
_DARK: Colour = (0, 0, 0)
# Light on the dark halo that every line has: readable over lung and over bone.
_MASK: Colour = (64, 224, 255)
_BOX: Colour = (255, 186, 48)
_LUNG: Colour = (205, 214, 226)
_POSITIVE: Colour = (84, 230, 140)
_NEGATIVE: Colour = (255, 104, 92)

_NARROWEST = 760
_LABEL = 18
_BODY = 19
_HEADLINE = 30
_CLICK_RADIUS = 12
_LINES_OF_A_PARAGRAPH = 6
_PLAIN = str.maketrans({"–": "-", "—": "-", "−": "-", "‘": "'", "’": "'", "×": "x"})
_NAMED_BOXES = 8  # more are numbered only
# The mask is drawn on a grid this much finer than the picture and then averaged: smooth edges.
_FINER = 3


def draw_overlay(display: np.ndarray, trace: Trace) -> Image.Image:
    """The picture of an answer, RGB.

    The radiograph fills the rectangle that :func:`radiograph_rectangle` gives, at the pixels' true proportions.

    Args:
        display: the radiograph as shown, uint8 ``[H, W]``, bones bright, of the trace's image size.
        trace: with a result that is an answer (present or absent).

    Raises:
        ValueRefused: display and trace do not fit each other, or there is no answer to draw.
    """
    _check(display, trace)
    left, top, right, bottom = radiograph_rectangle(trace)
    size = (right - left, bottom - top)
    picture = Image.fromarray(display).resize(size, Image.Resampling.BICUBIC).convert("RGB")
    _annotate(picture, trace)

    width = size[0] + 2 * left
    foot = _foot(trace, width, size)
    page = Image.new("RGB", (width, bottom + foot.height), _PAGE)
    page.paste(picture, (left, top))
    page.paste(foot, (0, bottom))
    draw = ImageDraw.Draw(page)
    # The patient faces the reader.
    draw.text((left - MARGIN / 2, top), "R", _TEXT, _font(_HEADLINE), anchor="mt")
    draw.text((right + MARGIN / 2, top), "L", _TEXT, _font(_HEADLINE), anchor="mt")
    return page


def radiograph_rectangle(trace: Trace) -> tuple[int, int, int, int]:
    """Where the radiograph lies in the overlay: pixel edges ``(left, top, right, bottom)``."""
    height, width = (float(side) for side in trace.image.size)
    if trace.image.spacing_mm is not None:
        # Pixels that are not square are drawn at their true proportions.
        height, width = height * trace.image.spacing_mm[0], width * trace.image.spacing_mm[1]
    scale = LONGEST_SIDE / max(height, width)
    columns, rows = max(round(width * scale), 1), max(round(height * scale), 1)
    left = max(MARGIN, (_NARROWEST - columns) // 2)
    return left, MARGIN, left + columns, MARGIN + rows


def _check(display: np.ndarray, trace: Trace) -> None:
    if display.dtype != np.uint8 or display.shape != trace.image.size:
        raise ValueRefused(
            f"The overlay needs the displayed image as uint8 of {trace.image.size}, "
            f"not {display.dtype} of {display.shape}."
        )
    if trace.result is None or trace.result.present is None:
        status = "unfinished" if trace.result is None else trace.result.status
        raise ValueRefused(f"Only an answer has an overlay; this trace is {status}.")


# On the radiograph.


def _annotate(picture: Image.Image, trace: Trace) -> None:
    mask, lungs, boxes, clicks = _result_mask(trace), trace.last(LungsStep), trace.last(BoxesStep), _clicks(trace)
    if mask is not None:
        _draw_mask(picture, mask)
    labels = _Labels(picture)
    if lungs is not None:
        for lung in lungs.lungs:
            _dashed(picture, _edges(lung.box, picture.size))
    if boxes is not None:
        for box in boxes.boxes:
            _solid(picture, _edges(box.box, picture.size))
    for step in clicks:
        x, y = step.click.point.x * picture.width, step.click.point.y * picture.height
        _draw_click(picture, x, y, step.click.polarity)
        labels.keep_clear((x - _CLICK_RADIUS, y - _CLICK_RADIUS, x + _CLICK_RADIUS, y + _CLICK_RADIUS))
    count = 0 if boxes is None else len(boxes.boxes)
    for step in clicks:
        x, y = step.click.point.x * picture.width, step.click.point.y * picture.height
        number = f"{step.component + 1}.{step.turn}" if count > 1 else f"{step.turn}"
        around = (x - _CLICK_RADIUS, y - _CLICK_RADIUS, x + _CLICK_RADIUS, y + _CLICK_RADIUS)
        labels.beside(number, around, _POSITIVE if step.click.polarity == "positive" else _NEGATIVE)
    if boxes is not None:
        for box in boxes.boxes:
            name = box.label if count <= _NAMED_BOXES else ""
            text = f"{box.component + 1} {name}".rstrip() if count > 1 else name
            labels.at_edge(text, _edges(box.box, picture.size), _BOX)
    if lungs is not None:
        for lung in lungs.lungs:
            labels.at_edge(lung.label, _edges(lung.box, picture.size), _LUNG)


def _result_mask(trace: Trace) -> Mask | None:
    step: ResultStep | None = trace.last(ResultStep)
    return None if step is None else step.mask


def _clicks(trace: Trace) -> list[ClickStep]:
    return [step for step in trace.steps if isinstance(step, ClickStep)]


def _edges(box: Box, size: tuple[int, int]) -> Rectangle:
    """The box's outermost pixels in a picture of ``size`` ``(width, height)``."""
    width, height = size
    x1, y1 = round(box.x1 * width), round(box.y1 * height)
    return x1, y1, max(min(round(box.x2 * width), width) - 1, x1), max(min(round(box.y2 * height), height) - 1, y1)


def _draw_mask(picture: Image.Image, mask: Mask) -> None:
    """A thin bright outline on the mask's edge, dark lines beside it, and a fill so faint that the anatomy shows."""
    array = mask.array
    box = Box.around(array)
    if box is None:
        return
    width, height = picture.size
    # Work on the mask's surroundings only; the pad holds the outline and its halo.
    pad = 6
    left, top = max(int(box.x1 * width) - pad, 0), max(int(box.y1 * height) - pad, 0)
    right, bottom = min(int(box.x2 * width) + pad + 1, width), min(int(box.y2 * height) + pad + 1, height)
    rows, columns = mask.size
    cover = np.asarray(
        Image.fromarray(array.astype(np.uint8) * np.uint8(255)).resize(
            ((right - left) * _FINER, (bottom - top) * _FINER),
            Image.Resampling.BOX,
            box=(left * columns / width, top * rows / height, right * columns / width, bottom * rows / height),
        )
    )
    inside = cover >= 128
    # What is finer than the grid would vanish; a mask that is there is seen.
    inside |= (cover > 0) & ~_grown(inside, 2)
    # Beyond the picture nothing is inside, so that a mask at the border is closed by a line along it.
    inside = np.pad(inside, 4)
    outer, inner = _grown(inside, 3), ~_grown(~inside, 4)
    line = (outer & ~inner)[4:-4, 4:-4]
    halo = (_grown(outer, 4) & ~outer)[4:-4, 4:-4] | (inner & _grown(~inner, 3))[4:-4, 4:-4]
    region = (left, top, right, bottom)
    patch = np.asarray(picture.crop(region), np.float32)
    for part, colour, alpha in ((inside[4:-4, 4:-4], _MASK, 0.12), (halo, _DARK, 0.5), (line, _MASK, 1.0)):
        share = part.reshape(bottom - top, _FINER, right - left, _FINER).mean(axis=(1, 3), dtype=np.float32)
        share = (share * np.float32(alpha))[..., None]
        patch = patch * (1 - share) + np.array(colour, np.float32) * share
    picture.paste(Image.fromarray(np.round(patch).astype(np.uint8)), region)


def _grown(mask: np.ndarray, steps: int) -> np.ndarray:
    """Grown by ``steps`` pixels, by crosses and squares in turn (an octagon, nearly a disc)."""
    grown = mask.copy()
    for step in range(steps):
        before = grown.copy()
        grown[1:] |= before[:-1]
        grown[:-1] |= before[1:]
        if step % 2:
            before = grown.copy()
        grown[:, 1:] |= before[:, :-1]
        grown[:, :-1] |= before[:, 1:]
    return grown


def _solid(picture: Image.Image, edges: Rectangle) -> None:
    draw = ImageDraw.Draw(picture, "RGBA")
    x1, y1, x2, y2 = edges
    draw.rectangle((x1 - 1, y1 - 1, x2 + 1, y2 + 1), outline=(*_DARK, 130), width=4)
    draw.rectangle(edges, outline=_BOX, width=2)


def _dashed(picture: Image.Image, edges: Rectangle, dash: int = 9, gap: int = 8) -> None:
    draw = ImageDraw.Draw(picture, "RGBA")
    x1, y1, x2, y2 = edges
    for width, grow, colour in ((3, 1, (*_DARK, 120)), (1, 0, (*_LUNG, 235))):
        for start in range(int(x1), int(x2) + 1, dash + gap):
            stop = min(start + dash, x2)
            for y in (y1, y2):
                draw.rectangle((start - grow, y - width // 2, stop + grow, y + width // 2), fill=colour)
        for start in range(int(y1), int(y2) + 1, dash + gap):
            stop = min(start + dash, y2)
            for x in (x1, x2):
                draw.rectangle((x - width // 2, start - grow, x + width // 2, stop + grow), fill=colour)


def _draw_click(picture: Image.Image, x: float, y: float, polarity: str) -> None:
    """A ring with its sign, its centre at ``(x, y)``; the ring is open, so that the place itself is seen."""
    tile = _click_tile(polarity)
    corner = (round(x - tile.width / 2), round(y - tile.height / 2))
    picture.paste(tile, corner, tile)


@cache
def _click_tile(polarity: str) -> Image.Image:
    fine = 4
    side = 2 * (_CLICK_RADIUS + 3)
    tile = Image.new("RGBA", (side * fine, side * fine), (*_DARK, 0))
    draw = ImageDraw.Draw(tile)
    centre, radius, arm = side * fine / 2, (_CLICK_RADIUS - 1) * fine, 5 * fine
    colour = _POSITIVE if polarity == "positive" else _NEGATIVE
    arms = [(arm, 0)] if polarity == "negative" else [(arm, 0), (0, arm)]
    # First all that is dark, then the colour, so that the arms of a cross do not cut each other.
    for half, ink in ((2.2 * fine, (*_DARK, 200)), (1.1 * fine, (*colour, 255))):
        reach = radius + half
        ring = (centre - reach, centre - reach, centre + reach, centre + reach)
        draw.ellipse(ring, outline=ink, width=round(2 * half))
        for dx, dy in arms:
            x, y = dx + half, dy + half
            draw.rectangle((centre - x, centre - y, centre + x - 1, centre + y - 1), fill=ink)
    return tile.resize((side, side), Image.Resampling.BOX)


class _Labels:
    """Places words on the picture where they cover no other word and no click, if there is such a place."""

    def __init__(self, picture: Image.Image) -> None:
        self._picture = picture
        self._draw = ImageDraw.Draw(picture, "RGBA")
        self._taken: list[Rectangle] = []

    def keep_clear(self, rectangle: Rectangle) -> None:
        self._taken.append(rectangle)

    def at_edge(self, text: str, edges: Rectangle, colour: Colour) -> None:
        """At a corner of the rectangle: above, else below, else inside."""
        x1, y1, x2, y2 = edges
        self._put(text, colour, lambda w, h: [
            (x1, y1 - h - 4), (x2 - w, y1 - h - 4), (x1, y2 + 4), (x2 - w, y2 + 4),
            (x1 + 5, y1 + 4), (x2 - w - 5, y1 + 4), (x1 + 5, y2 - h - 4), (x2 - w - 5, y2 - h - 4),
        ])  # fmt: skip

    def beside(self, text: str, around: Rectangle, colour: Colour) -> None:
        """Right of the rectangle, else left, above or below."""
        x1, y1, x2, y2 = around
        self._put(text, colour, lambda w, h: [
            (x2 + 4, (y1 + y2 - h) / 2), (x1 - w - 4, (y1 + y2 - h) / 2),
            ((x1 + x2 - w) / 2, y1 - h - 4), ((x1 + x2 - w) / 2, y2 + 4),
        ])  # fmt: skip

    def _put(self, text: str, colour: Colour, places: Callable[[float, float], list[tuple[float, float]]]) -> None:
        font = _font(_LABEL)
        width, height = font.getlength(text) + 8, _LABEL + 4.0
        limit_x, limit_y = self._picture.width - width - 2, self._picture.height - height - 2
        candidates = places(width, height)
        pushed = [(max(min(x, limit_x), 2.0), max(min(y, limit_y), 2.0)) for x, y in candidates]
        fitting = [place for place, inside in zip(candidates, pushed, strict=True) if place == inside]
        ranked = [*fitting, *pushed]
        free = (place for place in ranked if not self._touches((*place, place[0] + width, place[1] + height)))
        x, y = next(free, ranked[0])
        self._taken.append((x, y, x + width, y + height))
        self._draw.rounded_rectangle((round(x), round(y), round(x + width), round(y + height)), 4, fill=(*_DARK, 185))
        self._draw.text((round(x) + 4, round(y + height / 2)), text, colour, font, anchor="lm")

    def _touches(self, place: Rectangle) -> bool:
        x1, y1, x2, y2 = place
        return any(x1 < right and left < x2 and y1 < bottom and top < y2 for left, top, right, bottom in self._taken)


# Below the radiograph.


def _foot(trace: Trace, width: int, size: tuple[int, int]) -> Image.Image:
    """The band under the radiograph: scale, legend, words."""
    left, right = MARGIN, width - MARGIN
    lines = [
        (line, _BOX if paragraph.startswith("warning:") else _TEXT)
        for paragraph in (*caption(trace), "R and L: the patient's sides, as in a standard frontal view")
        for line in _wrapped(paragraph, _BODY, right - left)
    ]
    # Tall enough for scale, legend and the longest headline; cut to what was used.
    foot = Image.new("RGB", (width, 500 + 26 * len(lines)), _PAGE)
    draw = ImageDraw.Draw(foot)
    y = 14
    if trace.image.spacing_mm is not None:
        y = _draw_scale(draw, (width - size[0]) // 2, y, trace, size)
    y = _draw_legend(foot, left, right, y, trace)

    notice = _font(_BODY)
    notice_width = notice.getlength(NOT_FOR_CLINICAL_USE)
    draw.rounded_rectangle((right - notice_width - 20, y, right, y + 32), 6, outline=_BOX, width=2)
    draw.text((right - 10, y + 16), NOT_FOR_CLINICAL_USE, _BOX, notice, anchor="rm")
    for line in _wrapped(headline(trace), _HEADLINE, right - left - notice_width - 40):
        draw.text((left, y + 16), line, _TEXT, _font(_HEADLINE), anchor="lm")
        y += 38
    y += 4
    for line, colour in lines:
        draw.text((left, y + 12), line, colour, _font(_BODY), anchor="lm")
        y += 26
    return foot.crop((0, 0, width, y + 16))


def _draw_scale(draw: ImageDraw.ImageDraw, left: int, y: int, trace: Trace, size: tuple[int, int]) -> int:
    """A bar of a round length, at most half the radiograph wide; the lower end of what it took."""
    assert trace.image.spacing_mm is not None
    width_mm = trace.image.spacing_mm[1] * trace.image.size[1]
    length = next((mm for mm in (50, 20, 10, 5, 2, 1) if mm <= width_mm / 2), None)
    if length is None:
        return y
    words = f"{length // 10} cm" if length >= 10 else f"{length} mm"
    if trace.image.spacing_kind == "detector":
        words += " at the detector"
    pixels = round(length / width_mm * size[0])
    draw.line((left, y + 12, left + pixels, y + 12), _TEXT, 3)
    for x in (left, left + pixels):
        draw.line((x, y + 5, x, y + 19), _TEXT, 3)
    draw.text((left + pixels + 14, y + 12), words, _TEXT, _font(_BODY), anchor="lm")
    return y + 36


def _draw_legend(foot: Image.Image, left: int, right: int, y: int, trace: Trace) -> int:
    """What each mark means, for the marks that are there; the lower end of what it took."""
    draw = ImageDraw.Draw(foot)
    polarities = {step.click.polarity for step in _clicks(trace)}
    shown = {
        "segmented": _result_mask(trace) is not None,
        "lesion box": trace.last(BoxesStep) is not None,
        "lung box": trace.last(LungsStep) is not None,
        "click to add": "positive" in polarities,
        "click to remove": "negative" in polarities,
    }
    x = float(left)
    font = _font(_LABEL)
    drawn = [words for words, there in shown.items() if there]
    for words in drawn:
        needed = 36 + font.getlength(words)
        if x > left and x + needed > right:
            x, y = float(left), y + 32
        if words == "segmented":
            draw.rounded_rectangle((x, y + 5, x + 26, y + 21), 6, fill=(24, 45, 52), outline=_MASK, width=2)
        elif words == "lesion box":
            draw.rectangle((x, y + 5, x + 26, y + 21), outline=_BOX, width=2)
        elif words == "lung box":
            for start in (0, 10, 20):
                draw.line((x + start, y + 13, x + start + 6, y + 13), _LUNG, 1)
        else:
            polarity = "positive" if words == "click to add" else "negative"
            _draw_click(foot, x + 13, y + 13, polarity)
        draw.text((x + 34, y + 13), words, _FAINT, font, anchor="lm")
        x += needed + 26
    return y + 44 if drawn else y


def _wrapped(text: str, size: int, width: float) -> list[str]:
    """Lines no wider than ``width``, at most a handful; the last one then says with dots that there was more."""
    text = text[:2000]  # more than the lines hold
    font = _font(size)
    lines: list[str] = []
    line = ""
    for word in _pieces(_drawable(text).split(), font, width):
        longer = f"{line} {word}" if line else word
        if font.getlength(longer) <= width:
            line = longer
        else:
            lines.append(line)
            line = word
    lines.append(line)
    if len(lines) > _LINES_OF_A_PARAGRAPH:
        lines = lines[:_LINES_OF_A_PARAGRAPH]
        last = lines[-1]
        while last and font.getlength(last + " …") > width:
            last = last[:-1]
        lines[-1] = last + " …"
    return lines


def _pieces(words: Iterable[str], font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: float) -> Iterable[str]:
    """The words, those wider than a line cut."""
    for word in words:
        while font.getlength(word) > width:
            keep = max(next(n for n in range(len(word), 0, -1) if n == 1 or font.getlength(word[:n]) <= width), 1)
            yield word[:keep]
            word = word[keep:]
        if word:
            yield word


def _drawable(text: str) -> str:
    """The text in the letters that Pillow's built-in font has: accents are dropped, what it lacks becomes ``?``."""
    text = unicodedata.normalize("NFKD", text).translate(_PLAIN)
    plain = (char for char in text if not unicodedata.combining(char))
    return "".join(char if (char.isascii() and char.isprintable()) or char in "“”·°" else "?" for char in plain)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
