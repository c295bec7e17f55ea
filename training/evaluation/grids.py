"""Figures 3 and 6: cases in rows, systems in columns, masks as contours on the radiograph."""

from __future__ import annotations

import io
import logging
import random
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from training.evaluation.predictions import mask_file, read_mask
from training.evaluation.rows import Row
from xflow_core.domain.findings import FINDINGS
from xflow_core.export.files import write_whole
from xflow_core.export.outline import outlines
from xflow_core.radiograph.reading import read_radiograph

LOG = logging.getLogger(__name__)

FIGURES = {"figure_3": 4, "figure_6": 8}  # cases in each
_TRUTH, _ANSWER = "#38d46a", "#40e0ff"


def choose_cases(rows: Sequence[Row], count: int, seed: int = 0) -> list[Row]:
    """Positive rows, drawn without a look at any answer: the findings take turns, no image comes twice."""
    drawing = random.Random(seed)
    by_finding = {
        finding: [row for row in rows if row.mask and row.instruction.finding == finding] for finding in FINDINGS
    }
    for some in by_finding.values():
        drawing.shuffle(some)
    chosen: list[Row] = []
    while len(chosen) < count and any(by_finding.values()):
        for some in by_finding.values():
            while some and some[-1].image in {row.image for row in chosen}:
                some.pop()
            if some and len(chosen) < count:
                chosen.append(some.pop())
    return chosen


def draw_grids(rows: Sequence[Row], systems: Mapping[str, Path], titles: Mapping[str, str], out: Path) -> None:
    """``figure_3.png`` and ``figure_6.png``, of different cases.

    systems: the folders of their predictions, in the columns' order.
    """
    cases = choose_cases(rows, sum(FIGURES.values()))
    for name, count in FIGURES.items():
        mine, cases = cases[:count], cases[count:]
        if mine:
            draw_grid(out / f"{name}.png", mine, systems, titles)
            LOG.info("%s: %s", name, ", ".join(row.id for row in mine))


def draw_grid(path: Path, cases: Sequence[Row], systems: Mapping[str, Path], titles: Mapping[str, str]) -> None:
    """One figure. The truth is green in its own column and dotted in the systems', whose masks are blue."""
    from matplotlib.figure import Figure

    columns = ["Radiograph", "Ground truth", *(titles[name] for name in systems)]
    figure = Figure(figsize=(1.9 * len(columns), 2.1 * len(cases) + 0.6), layout="constrained")
    grid = figure.subplots(len(cases), len(columns), squeeze=False)
    for line, row in zip(grid, cases, strict=True):
        picture = read_radiograph(row.image).display
        size = (picture.shape[0], picture.shape[1])
        truth = row.truth(size)
        step = max(1, max(size) // 512)
        for axes in line:
            axes.imshow(picture[::step, ::step], cmap="gray", extent=(0, size[1], size[0], 0))
            axes.set_axis_off()
        line[0].set_title(textwrap.fill(row.instruction.text, 34), fontsize=7, loc="left")
        _contour(line[1], truth, _TRUTH)
        for axes, folder in zip(line[2:], systems.values(), strict=True):
            file = mask_file(folder, row.id)
            answer = read_mask(file, row.id) if file.is_file() else None
            _contour(axes, truth, _TRUTH, dashed=True)
            if answer is None or not answer.any():
                words = "no prediction" if answer is None else "absent"
                ground = {"facecolor": "black", "edgecolor": "none", "pad": 2.5}
                axes.text(
                    0.5, 0.06, words, color="white", ha="center", fontsize=8, transform=axes.transAxes, bbox=ground
                )
            else:
                _contour(axes, answer, _ANSWER)
    for axes, title in zip(grid[0][1:], columns[1:], strict=True):
        axes.set_title(title, fontsize=8)
    told = "Green: the truth (dotted beside an answer). Blue: the answer. Drawn at random among positive rows."
    figure.supxlabel(f"{told} Not for clinical use.", fontsize=7)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    write_whole(path, buffer.getvalue())


def _contour(axes: object, mask: np.ndarray, colour: str, dashed: bool = False) -> None:
    for line in outlines(mask):
        axes.plot(line[:, 0], line[:, 1], color=colour, linewidth=0.8, linestyle=":" if dashed else "-")  # type: ignore[attr-defined]
