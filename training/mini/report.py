"""``python -m training reproduction --run WORK [--run WORK2 ..] --out docs/reproduction.md``: what the runs showed.

Each WORK is a finished ``python -m training run mini``, a seed each. The page says what had to be shown and whether it
was, Table 2's rows at this scale with their intervals, each policy's figures by finding, greedy and sampled, the
learning curves and pictures. What stands in the page below the heading ``## Notes`` is kept as it is. Not for clinical
use.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.run import ROWS
from training.stages import STATE
from xflow_core.domain.errors import CallError
from xflow_core.export.files import write_whole

LOG = logging.getLogger(__name__)

NOTES = "## Notes"
POLICIES = {
    "pi_init_sft": "pi_init, SFT",
    "pi_init": "pi_init, RL",
    "pi_rev_sft": "pi_rev, SFT",
    "pi_rev": "pi_rev, RL",
}
SEGMENTER = "segmenter"
_CURVES = {
    "pi_init_sft": ("loss/answer", "loss/patches"),
    "pi_init": ("reward", "rewards/R_box/mean"),
    "pi_rev_sft": ("loss/answer", "loss/patches"),
    "pi_rev": ("reward", "rewards/R_gain/mean"),
}
_WIDEST = 900
Measured = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", type=Path, action="append", required=True, dest="runs", help="may be repeated")
    parser.add_argument("--out", type=Path, required=True, help="a Markdown file; pictures go to images/ beside it")


def run(arguments: argparse.Namespace) -> None:
    runs = [Run.read(folder) for folder in arguments.runs]
    images = arguments.out.parent / "images"
    images.mkdir(parents=True, exist_ok=True)
    write_whole(images / "reproduction-curves.png", curves(runs))
    for name in POLICIES:
        picture = arguments.runs[0] / "measured" / f"{name}.png"
        if picture.is_file():
            write_whole(images / f"reproduction-{name.replace('_', '-')}.jpg", jpeg(picture))
    old = arguments.out.read_text(encoding="utf-8") if arguments.out.is_file() else ""
    notes = old[old.index(NOTES) :] if NOTES in old else f"{NOTES}\n"
    write_whole(arguments.out, f"{page(runs)}\n{notes}".encode())
    LOG.info("%s; not for clinical use", arguments.out)


@dataclass(frozen=True)
class Run:
    """One seed's run. seconds: by stage; whole: from its first stage's beginning to its last one's end. measured: by
    policy, and of the segmenter. table_2: lines of the measured rows, the header first. evaluated: by such a row's
    bundle. logs: by policy."""

    seconds: Mapping[str, float]
    whole: float
    measured: Mapping[str, Measured]
    table_2: Sequence[Sequence[str]]
    evaluated: Mapping[str, Measured]
    logs: Mapping[str, Sequence[Mapping[str, Any]]]

    @classmethod
    def read(cls, folder: Path) -> Run:
        """From its folder.

        Raises:
            CallError: the run is not finished.
        """
        try:
            state = json.loads((folder / STATE).read_text())
            measured = {name: json.loads((folder / "measured" / f"{name}.json").read_text()) for name in POLICIES}
            measured[SEGMENTER] = json.loads((folder / "measured" / SEGMENTER / "metrics.json").read_text())
            logs = {
                name: json.loads((folder / name / "trainer_state.json").read_text())["log_history"] for name in POLICIES
            }
            table = folder / "figures" / "tables" / "table_2.csv"
            lines = list(csv.reader(table.read_text().splitlines())) if table.is_file() else []
            figures = {name: folder / "figures" / name / "metrics.json" for name in ROWS}
            evaluated = {name: json.loads(path.read_text()) for name, path in figures.items() if path.is_file()}
        except (OSError, ValueError, KeyError) as problem:
            raise CallError(f"{folder} holds no finished run of the miniature: {problem}.") from None
        kept = [line for line in lines[1:] if line[1].startswith("measured")]
        return cls(
            {name: stage["seconds"] for name, stage in state.items()},
            max(each["began"] + each["seconds"] for each in state.values())
            - min(each["began"] for each in state.values()),
            measured,
            [*lines[:1], *kept] if lines else [],
            evaluated,
            logs,
        )


# What had to be shown ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """What must be shown of a run, its figure, and whether it holds."""

    stage: str
    words: str
    figure: Callable[[Mapping[str, Measured]], tuple[str, bool]]


def _at_least(stage: str, path: str, least: float) -> Callable[[Mapping[str, Measured]], tuple[str, bool]]:
    def figure(measured: Mapping[str, Measured]) -> tuple[str, bool]:
        value = _number(measured[stage], path)
        return f"{value:.3f}", value >= least

    return figure


def _number(measured: Measured, path: str) -> float:
    """A figure by its path, ``greedy/all/gain``; of a mean with its error, the mean. 0 where there is none."""
    found: Any = measured
    for key in path.split("/"):
        found = found.get(key) if isinstance(found, Mapping) else None
    if isinstance(found, list):
        found = found[0]
    return 0.0 if found is None else float(found)


def _error(measured: Measured, path: str) -> float:
    found: Any = measured
    for key in path.split("/"):
        found = found[key]
    return float(found[1])


def _shuffled(measured: Mapping[str, Measured]) -> tuple[str, bool]:
    of = measured["pi_init_sft"]
    lungs = [_number(of, f"{how}/all/lung_iou") for how in ("greedy", "shuffled")]
    f1 = [_number(of, f"{how}/all/f1") for how in ("greedy", "shuffled")]
    falls = lungs[1] < lungs[0] - 0.1 and f1[1] < f1[0] - 0.2
    return f"lungs {lungs[0]:.3f} to {lungs[1]:.3f}, F1 {f1[0]:.3f} to {f1[1]:.3f}", falls


def _reward(measured: Mapping[str, Measured]) -> tuple[str, bool]:
    before, after = (_number(measured[name], "sampled/all/reward") for name in ("pi_init_sft", "pi_init"))
    return f"{before:.3f} to {after:.3f}", after >= before + 0.04


def _greedy_f1(measured: Mapping[str, Measured]) -> tuple[str, bool]:
    before, after = (_number(measured[name], "greedy/all/f1") for name in ("pi_init_sft", "pi_init"))
    return f"{before:.3f} to {after:.3f}", after >= before - 0.02 and after > 0


def _recalls(measured: Mapping[str, Measured]) -> tuple[str, bool]:
    told, holds = [], True
    for finding in _findings(measured["pi_init"]):
        before, after = (_number(measured[name], f"greedy/{finding}/recall") for name in ("pi_init_sft", "pi_init"))
        told.append(f"{finding} {before:.2f} to {after:.2f}")
        holds = holds and after >= 0.8 * before and after > 0
    return ", ".join(told), holds


def _cases(measured: Mapping[str, Measured]) -> tuple[str, bool]:
    of = [measured[name] for name in ("pi_init_sft", "pi_rev_sft")]
    told = [f"{each['rows']} on {each['radiographs']} radiographs" for each in of]
    return f"questions: {told[0]}; starting masks: {told[1]}", all(each["rows"] >= 600 for each in of)


def _first_click(measured: Mapping[str, Measured]) -> tuple[str, bool]:
    gain, error = measured[SEGMENTER]["gains"]["first_click"]
    return f"{gain:+.4f} ± {error:.4f}", gain > 2 * error


def _gain(measured: Mapping[str, Measured]) -> tuple[str, bool]:
    of = measured["pi_rev_sft"]
    gain, error = _number(of, "greedy/all/gain"), _error(of, "greedy/all/gain")
    return f"{gain:+.4f} ± {error:.4f}", gain > 2 * error


def _above(other: str) -> Callable[[Mapping[str, Measured]], tuple[str, bool]]:
    def figure(measured: Mapping[str, Measured]) -> tuple[str, bool]:
        of = measured["pi_rev_sft"]
        gain, beside = (_number(of, f"{how}/all/gain") for how in ("greedy", other))
        over, error = of["beside"][other]
        told = f"{gain:+.4f}, {beside:+.4f}; case by case {over:+.4f} ± {error:.4f}"
        return told, over > 0 and _clicks(of) > 0

    return figure


def _clicks(measured: Measured) -> int:
    """Cases in which a click was made."""
    return int(measured["greedy"]["all"]["clicked"]["n"])


def _gain_up(measured: Mapping[str, Measured]) -> tuple[str, bool]:
    before, after = (_number(measured[name], "greedy/all/gain") for name in ("pi_rev_sft", "pi_rev"))
    return f"{before:+.4f} to {after:+.4f}", after >= before + 0.015


def _worsened(path: str) -> Callable[[Mapping[str, Measured]], tuple[str, bool]]:
    def figure(measured: Mapping[str, Measured]) -> tuple[str, bool]:
        before, after = (_number(measured[name], f"greedy/all/{path}") for name in ("pi_rev_sft", "pi_rev"))
        # Who never clicks worsens nothing.
        return f"{before:.3f} to {after:.3f}", after <= before / 2 and _clicks(measured["pi_rev"]) > 0

    return figure


def _clicked(measured: Mapping[str, Measured]) -> tuple[str, bool]:
    before, after = (_number(measured[name], "greedy/all/clicked/gain") for name in ("pi_rev_sft", "pi_rev"))
    count = _clicks(measured["pi_rev"])
    return f"{before:+.4f} to {after:+.4f} (n = {count})", count > 0 and after > before


CLAIMS = (
    Claim("all", "at least 600 cases of D_eval", _cases),
    Claim("F_seg", "an oracle's first click helps, by two standard errors", _first_click),
    Claim("pi_init, SFT", "lung IoU at least 0.90", _at_least("pi_init_sft", "greedy/all/lung_iou", 0.9)),
    Claim("pi_init, SFT", "presence F1 at least 0.80", _at_least("pi_init_sft", "greedy/all/f1", 0.8)),
    Claim(
        "pi_init, SFT", "box IoU, effusion, at least 0.65", _at_least("pi_init_sft", "greedy/effusion/box_iou", 0.65)
    ),
    Claim(
        "pi_init, SFT",
        "box IoU, cardiomegaly, at least 0.65",
        _at_least("pi_init_sft", "greedy/cardiomegaly/box_iou", 0.65),
    ),
    Claim("pi_init, SFT", "box IoU, opacity, at least 0.40", _at_least("pi_init_sft", "greedy/opacity/box_iou", 0.4)),
    Claim("pi_init, SFT", "format at least 0.99", _at_least("pi_init_sft", "greedy/all/format", 0.99)),
    Claim("pi_init, SFT", "on other radiographs, lung IoU and F1 fall", _shuffled),
    Claim("pi_init, RL", "sampled reward up by 0.04", _reward),
    Claim("pi_init, RL", "greedy F1 not down by more than 0.02", _greedy_f1),
    Claim("pi_init, RL", "no finding's recall falls by a fifth", _recalls),
    Claim("pi_rev, SFT", "greedy gain above zero by two standard errors", _gain),
    Claim("pi_rev, SFT", "above as many random clicks", _above("random_clicks")),
    Claim("pi_rev, SFT", "above a second pass without a click", _above("second_pass")),
    Claim("pi_rev, RL", "greedy gain up by 0.015", _gain_up),
    Claim("pi_rev, RL", "share worsened at least halved", _worsened("worsened")),
    Claim("pi_rev, RL", "among clicked cases, gain up", _clicked),
    Claim("pi_rev, RL", "among clicked cases, share worsened at least halved", _worsened("clicked/worsened")),
)


def _findings(measured: Measured) -> list[str]:
    return [name for name in measured["greedy"] if name != "all"]


# The page ----------------------------------------------------------------------------------------------------------


def page(runs: Sequence[Run]) -> str:
    parts = [
        "# The paper's training, reproduced in miniature",
        "",
        "The very code of the full run, on models of a million weights and drawn chests: what the paper says each part",
        "learns (4.3, 4.4, 5.1), shown where anyone can watch it. It says nothing about patients.",
        "**Not for clinical use.**",
        "",
        "    make reproduce-mini            # SEEDS=3 for three seeds",
        "    python -m training run mini --out build/mini --list        # the commands, one after the other",
        "",
        "`training/configs/mini.yaml` names every departure from the paper's configuration. This page was written by",
        f"`python -m training reproduction` from {_counted(len(runs), 'run')}; each has its own chests, weights",
        "and samples. Nothing was trained on the rows that are measured here.",
        "",
        "## What had to be shown",
        "",
        *claims(runs),
        "",
        "## Table 2 at this scale",
        "",
        "By `python -m training evaluate` with the bundles that the run made: constrained decoding, levels averaged",
        "with equal weight, 95 % bootstrap intervals over radiographs. Not to be compared with the paper's numbers.",
        "",
    ]
    for number, one in enumerate(runs):
        parts += [
            *([f"Run {number + 1}:", ""] if len(runs) > 1 else []),
            *table_2(one),
            "",
            *table_2_by_finding(one),
            "",
        ]
    parts += ["## By finding", "", "Greedy, and sampled at temperature 1; nothing constrains what is written.", ""]
    for number, one in enumerate(runs):
        parts += [
            *([f"Run {number + 1}:", ""] if len(runs) > 1 else []),
            *(*of_init(one), "", *of_revision(one), ""),
            *(*of_segmenter(one), ""),
        ]
    parts += [
        "## Learning curves",
        "",
        "![Loss and reward by step](images/reproduction-curves.png)",
        "",
        "In the first steps of SFT the tower learns alone, and the answer's loss is 0. A point of RL is ten steps,",
        "each on other questions, so that it jumps; what RL changed, the tables say.",
        "",
        "## Pictures",
        "",
        "pi_init: lungs in green, the true boxes in yellow, those written in red. A greedy line, then the same",
        "questions sampled.",
        "",
        *(
            f"![{POLICIES[name]}](images/reproduction-{name.replace('_', '-')}.jpg)\n"
            for name in ("pi_init_sft", "pi_init")
        ),
        "pi_rev: the mask in red, the truth's outline in yellow, the next click in green (adds) or blue (takes away).",
        "",
        *(
            f"![{POLICIES[name]}](images/reproduction-{name.replace('_', '-')}.jpg)\n"
            for name in ("pi_rev_sft", "pi_rev")
        ),
        "## Time",
        "",
        "Seconds by the clock, by stage, on the machine that ran it; two stages side by side, a core each.",
        "",
        *times(runs),
        "",
    ]
    return "\n".join(parts)


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def of_segmenter(one: Run) -> list[str]:
    """The IoU after the box and after each of an oracle's clicks."""
    of = one.measured[SEGMENTER]
    lines = [["finding", "components", "box", *(f"{number + 1} clicks" for number in range(len(of["iou"]) - 1))]]
    for name, found in (("all", of), *of["by_finding"].items()):
        lines.append([name, str(found["n"]), *(f"{iou:.3f}" for iou in found["iou"])])
    return [f"F_seg and an oracle, from boxes moved by {of['jitter']:g} of their sides; IoU.", "", *_table(lines)]


def _table(lines: Sequence[Sequence[str]]) -> list[str]:
    header, *rest = lines
    return ["| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rest)]


def claims(runs: Sequence[Run]) -> list[str]:
    names = [f"run {number + 1}" for number in range(len(runs))] if len(runs) > 1 else ["found"]
    lines = [["stage", "what", *names, "holds"]]
    for claim in CLAIMS:
        found = [claim.figure(one.measured) for one in runs]
        held = sum(holds for _, holds in found)
        verdict = ("yes" if held else "**no**") if len(runs) == 1 else f"{held} of {len(runs)}"
        lines.append([claim.stage, claim.words, *(told for told, _ in found), verdict])
    return _table(lines)


def table_2(one: Run) -> list[str]:
    if not one.table_2:
        return ["Not evaluated."]
    header, *rows = one.table_2
    place = {name: number for number, name in enumerate(header)}
    lines = [["Model", "n", "gIoU", "cIoU", "F1"]]
    for row in rows:
        cells = [row[place["Model"]], row[place["Source"]].removeprefix("measured, n = ")]
        for measure in ("gIoU", "cIoU", "F1"):
            column = f"CheXpercept {measure}"
            value, low, high = (
                row[place[name]] if name in place else "" for name in (column, f"{column} low", f"{column} high")
            )
            between = f" ({float(low):.3f} to {float(high):.3f})" if low else ""
            cells.append(f"{float(value):.3f}{between}" if value else "")
        lines.append(cells)
    return _table(lines)


def table_2_by_finding(one: Run) -> list[str]:
    lines = [["bundle", "finding", "n (positive)", "gIoU", "cIoU", "F1"]]
    for name, of in one.evaluated.items():
        for finding, found in of["by_finding"].items():
            cells = [name, finding, f"{found['n']} ({found['n_positive']})"]
            for measure in ("gIoU", "cIoU", "F1"):
                low, high = found["intervals"][measure]
                cells.append(f"{found[measure]:.3f} ({low:.3f} to {high:.3f})")
            lines.append(cells)
    return _table(lines) if len(lines) > 1 else []


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value[0]:.3f} ± {value[1]:.3f}" if isinstance(value, list) else f"{value:.3f}"


def of_init(one: Run) -> list[str]:
    names = ("format", "lung_iou", "f1", "recall", "precision", "box_iou", "reward")
    lines = [["policy", "how", "finding", "n (positive)", *names]]
    for policy in ("pi_init_sft", "pi_init"):
        for how in ("greedy", "sampled", "shuffled"):
            for finding, found in one.measured[policy][how].items():
                counted = f"{found['n']} ({found['n_positive']})"
                lines.append([POLICIES[policy], how, finding, counted, *(_shown(found[name]) for name in names)])
    return _table(lines)


def of_revision(one: Run) -> list[str]:
    names = ("first_iou", "gain", "improved", "worsened", "clicks", "format")
    lines = [["policy", "how", "finding", "n", *names, "clicked: n", "gain", "worsened"]]
    for policy in ("pi_rev_sft", "pi_rev"):
        for how in (
            "greedy",
            "sampled",
            *(("random_clicks", "second_pass", "oracle") if policy == "pi_rev_sft" else ()),
        ):
            for finding, found in one.measured[policy][how].items():
                clicked = found["clicked"]
                lines.append([
                    POLICIES[policy] if how in ("greedy", "sampled") else "",
                    how.replace("_", " "), finding, str(found["n"]),
                    *(_shown(found[name]) for name in names),
                    str(clicked["n"]), _shown(clicked["gain"]), _shown(clicked["worsened"]),
                ])  # fmt: skip
    return _table(lines)


def times(runs: Sequence[Run]) -> list[str]:
    names = [f"run {number + 1}" for number in range(len(runs))]
    lines = [["stage", *names]]
    for stage in runs[0].seconds:
        lines.append([stage, *(f"{one.seconds.get(stage, 0.0):.0f}" for one in runs)])
    lines.append(["from beginning to end", *(f"{one.whole:.0f}" for one in runs)])
    return _table(lines)


def jpeg(picture: Path) -> bytes:
    """A sheet of pictures as a page shows it: at most 900 pixels wide."""
    from PIL import Image

    with Image.open(picture) as opened:
        sheet = opened.convert("RGB")
    if sheet.width > _WIDEST:
        sheet = sheet.resize((_WIDEST, round(sheet.height * _WIDEST / sheet.width)), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    sheet.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


def curves(runs: Sequence[Run]) -> bytes:
    """PNG: for each policy what its trainer logged, one line a run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 4, figsize=(15, 6), layout="constrained")
    for column, (name, series) in enumerate(_CURVES.items()):
        for line, key in enumerate(series):
            place = axes[line, column]
            for number, one in enumerate(runs):
                points = [(log["step"], float(log[key])) for log in one.logs[name] if key in log]
                if points:
                    place.plot(*zip(*points, strict=True), label=f"run {number + 1}", linewidth=1)
            place.set_title(f"{POLICIES[name]}: {key}", fontsize=9)
            place.tick_params(labelsize=8)
            place.grid(alpha=0.3)
    figure.supxlabel("step", fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    pyplot.close(figure)
    return buffer.getvalue()
