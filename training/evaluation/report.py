"""``report.html`` of an evaluation: one file, without a network, with the figures, plots and the cases to look at."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from training.evaluation.metrics import Answered
from training.evaluation.readers.panels import ring_of
from training.evaluation.rows import Row
from xflow_core import NOT_FOR_CLINICAL_USE
from xflow_core.domain.trace import ResultStep, Trace
from xflow_core.radiograph.reading import read_radiograph

EACH = 8
"""Cases shown of each kind."""
_SIDE = 420
_TRUTH, _ANSWER = (84, 230, 140), (255, 186, 48)

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 88rem; padding: 0 1rem; color: #1c2027; }
table { border-collapse: collapse; margin: .5rem 0 1.2rem; }
.wide { overflow-x: auto; }
td, th { padding: 2px 12px 2px 0; text-align: right; border-bottom: 1px solid #d5dae1; }
td, th { font-size: .85rem; white-space: nowrap; }
td:first-child, th:first-child { text-align: left; }
img { max-width: 100%; }
.cases { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 12px; }
figure { margin: 0; } figure img { width: 100%; } figcaption { font-size: .85rem; overflow-wrap: anywhere; }
.notice { font-weight: 700; } .small { font-size: .8rem; overflow-wrap: anywhere; }
"""


@dataclass(frozen=True)
class ShownCase:
    """A case of the page: what is wrong with it, its words, and a JPEG as a data address."""

    kind: str
    caption: str
    picture: str


KINDS = {
    "Least overlap": "Positive rows that were answered with a mask, the lowest IoU first.",
    "Missed": "Positive rows that were called absent, the surest first.",
    "Made up": "Negative rows that were answered with a mask, the surest first.",
    "Most specks": "Masks with the most pieces under 0.01 % of the image.",
}


def worst_of(answered: Sequence[Answered], each: int = EACH) -> dict[str, list[Answered]]:
    """The rows of each of :data:`KINDS`, the worst first."""

    def sure(row: Answered) -> float:
        return 0.5 if row.probability is None else row.probability

    kinds = {
        "Least overlap": sorted((r for r in answered if r.positive and r.returned), key=lambda r: r.iou),
        "Missed": sorted((r for r in answered if r.positive and not r.returned), key=sure),
        "Made up": sorted((r for r in answered if not r.positive and r.returned), key=sure, reverse=True),
        "Most specks": sorted((r for r in answered if r.specks), key=lambda r: -r.specks),
    }
    return {kind: list(_once(rows))[:each] for kind, rows in kinds.items()}


def _once(rows: Iterable[Answered]) -> Iterator[Answered]:
    """The first of the questions about a finding on a radiograph: the others show the same."""
    seen: set[tuple[str, str]] = set()
    for row in rows:
        if (row.image, row.finding) not in seen:
            seen.add((row.image, row.finding))
            yield row


def worst_cases(
    answered: Sequence[Answered], rows: dict[str, Row], trace_of: Callable[[Row], Trace], each: int = EACH
) -> list[ShownCase]:
    """The pictures of :func:`worst_of`: the truth's outline and the answer's."""
    cases = []
    for kind, lot in worst_of(answered, each).items():
        for one in lot:
            row = rows[one.id]
            step: ResultStep | None = trace_of(row).last(ResultStep)
            display = read_radiograph(row.image, accept_image=True).display
            size = (display.shape[0], display.shape[1])
            answer = np.zeros(size, bool) if step is None or step.mask is None else step.mask.array
            facts = [f"IoU {one.iou:.2f}"] if one.positive else []
            facts += [] if one.probability is None else [f"probability {one.probability:.2f}"]
            facts += [f"{one.specks} specks"] if one.specks else []
            caption = f"{row.id}: {row.instruction.text} ({', '.join(facts)})"
            cases.append(ShownCase(kind, caption, _picture(display, row.truth(size), answer)))
    return cases


def _picture(display: np.ndarray, truth: np.ndarray, answer: np.ndarray) -> str:
    height, width = display.shape
    factor = min(1.0, _SIDE / max(height, width))
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    shown = np.repeat(np.asarray(Image.fromarray(display).resize(size))[:, :, None], 3, axis=2).copy()
    for mask, colour in ((truth, _TRUTH), (answer, _ANSWER)):
        grey = Image.fromarray(mask.astype(np.uint8) * np.uint8(255)).resize(size, Image.Resampling.BOX)
        shown[ring_of(np.asarray(grey) >= 64)] = colour
    buffer = io.BytesIO()
    Image.fromarray(shown).save(buffer, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def page(title: str, figures: dict[str, Any], answered: Sequence[Answered], cases: Sequence[ShownCase]) -> str:
    """The whole page.

    Args:
        figures: those of ``metrics.json``.
    """
    left_out = figures.get("left_out", 0)
    patients = all(row.patient for row in answered)
    n = f"{figures['n']} rows, {figures['n_positive']} positive, of {len({row.image for row in answered})} radiographs"
    n += f" of {figures['cases']} patients" if patients else ""
    n += f"; {left_out} rows of findings that the bundle does not answer are left out" if left_out else ""
    bundle = figures.get("bundle")
    made = "" if bundle is None else f"Bundle {bundle['name']} {bundle['version']}, sha256 {bundle['sha256']}; "
    made += f"stages: {figures['stages']}; set: {figures['set']}." if "stages" in figures else ""
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>',
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">",
        f"<style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1>",
        f'<p class="notice">{NOT_FOR_CLINICAL_USE.capitalize()}.</p><p>{html.escape(n)}.</p>',
        f'<p class="small">{html.escape(made)}</p>' if made else "",
        f"<p>In brackets: 95 % bootstrap intervals over {'patients' if patients else 'radiographs'}; none where only "
        "one counts. Found: positive rows that were answered with a mask; false alarms: negative rows that were.</p>",
        "<h2>Figures</h2>",
        _table(["", "positive", "negative", *_HEAD.values()], _measure_lines(figures)),
        "<h2>By finding</h2>",
        _table(
            ["", "positive", "negative", *_HEAD.values(), "AUC", "calibration error"],
            (
                [
                    *_line(name, part),
                    _with_interval(part, "auc"),
                    _number(
                        ((figures.get("calibration") or {}).get("by_finding", {}).get(name) or {}).get(
                            "calibration_error"
                        )
                    ),
                ]
                for name, part in figures["by_finding"].items()
            ),
        ),
        "<h2>Mask noise and revision</h2>",
        _table(
            ["", "value"],
            _plain_lines(
                {
                    **{f"noise, {k}": v for k, v in figures["noise"].items()},
                    **{f"revision, {k}": v for k, v in figures["revision"].items()},
                }
            ),
        ),
        "<h2>Plots</h2>",
        *(f'<p><img alt="{html.escape(name)}" src="{address}"></p>' for name, address in plots(figures, answered)),
    ]
    for kind, words in KINDS.items():
        lot = [case for case in cases if case.kind == kind]
        parts.append(f"<h2>{kind}</h2><p>{words} Green: the truth. Orange: the answer.</p>")
        shown = "".join(
            f'<figure><img alt="" src="{case.picture}"><figcaption>{html.escape(case.caption)}</figcaption></figure>'
            for case in lot
        )
        parts.append(f'<div class="cases">{shown}</div>' if lot else "<p>None.</p>")
    return "\n".join([*parts, "</body></html>", ""])


_HEAD = {"gIoU": "gIoU", "cIoU": "cIoU", "F1": "F1", "found": "found", "false_alarms": "false alarms"}


def _measure_lines(figures: dict[str, Any]) -> Iterable[list[str]]:
    groups = {"levels with equal weight": figures, **figures["by_level"]}
    groups |= {f"{name} of the image": part for name, part in figures["by_size"].items()}
    groups |= {f"{kind}: {name}": part for kind, parts in figures["subsets"].items() for name, part in parts.items()}
    return (_line(name, part) for name, part in groups.items())


def _line(name: str, part: dict[str, Any]) -> list[str]:
    counts = [str(part["n_positive"]), str(part["n_negative"])]
    return [name, *counts, *(_with_interval(part, key) for key in _HEAD)]


def _plain_lines(values: dict[str, Any]) -> Iterable[list[str]]:
    return ([name.replace("_", " "), _number(value)] for name, value in values.items())


def _with_interval(part: dict[str, Any], key: str) -> str:
    ends = part.get("intervals", {}).get(key)
    return _number(part[key]) + ("" if not ends else f" [{ends[0]:.3f}, {ends[1]:.3f}]")


def _number(value: float | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    def cells(line: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in line) + "</tr>"

    body = "".join(cells(line, "td") for line in lines)
    return f'<div class="wide"><table>{cells(head, "th")}{body}</table></div>'


def plots(figures: dict[str, Any], answered: Sequence[Answered]) -> list[tuple[str, str]]:
    """Names and data addresses: the IoUs, IoU against the size of the lesion, the reliability diagram."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = []

    def keep(figure: Any, name: str) -> None:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110)
        pyplot.close(figure)
        found.append((name, f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"))

    positive = [row for row in answered if row.positive]
    if positive:
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
        left.hist([row.iou for row in positive], bins=np.linspace(0, 1, 21).tolist())
        left.set(xlabel="IoU", ylabel="positive rows", title="Overlap; a missed row has 0")
        sized = [row for row in positive if row.pixels]
        right.scatter([100 * row.true_area / row.pixels for row in sized], [row.iou for row in sized], s=8, alpha=0.5)
        right.set(xscale="log", xlabel="true area, % of the image", ylabel="IoU", title="By size of the lesion")
        keep(figure, "overlap")
    calibration = figures.get("calibration")
    if calibration is not None:
        bins = [part for part in calibration["reliability"] if part["n"]]
        figure, axes = pyplot.subplots(figsize=(4.6, 4.6), layout="constrained")
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        stated = [part["stated"] for part in bins]
        observed = np.array([part["observed"]["share"] for part in bins])
        ends = np.array([part["observed"]["interval"] for part in bins])
        spread = np.maximum(0, [observed - ends[:, 0], ends[:, 1] - observed])
        axes.errorbar(stated, observed, yerr=spread, fmt="o", capsize=3)
        for x, y, part in zip(stated, observed, bins, strict=True):
            axes.annotate(str(part["n"]), (x, y), textcoords="offset points", xytext=(6, 4), fontsize=7)
        error = calibration["calibration_error"]
        axes.set(xlim=(-0.03, 1.08), ylim=(-0.03, 1.08), xlabel="stated probability", ylabel="share of positive rows")
        axes.set_title(f"Reliability; calibration error {error:.3f}, n in the plot", fontsize=10)
        keep(figure, "reliability")
    return found
