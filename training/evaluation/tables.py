"""``python -m training tables --set chexpercept=SET.jsonl --set chexlocalize=SET2.jsonl --predictions ROOT --out DIR``

The paper's Tables 1, 2, 3, 4 and 8 and Figures 3 and 6 from stored predictions, printed, and written as Markdown, LaTeX
and CSV. ``ROOT/<system>/<set>`` holds a system's predictions of a set (``evaluate --keep``, ``baselines read``,
``chexlocalize-set``); systems are named as in ``training/configs/published.yaml``, and one that the paper does not have
gets a row of its own. Every number of the paper stands in a row marked "published"; measured rows state n, and 95 %
intervals over cases (patients where the set names them, else images). A table for which nothing is stored has published
rows alone.

``--compare xflow`` adds the differences of every other system to that one, with paired intervals and tests. Table 4
takes ``--reader-study FILE``, the fits of a reader study. Not for clinical use.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from training.baselines.catalogue import SYSTEMS
from training.curation.paper import read_settings
from training.evaluation.chexlocalize_set import HUMAN
from training.evaluation.comparison import compare
from training.evaluation.grids import draw_grids
from training.evaluation.metrics import LEVELS, MEASURES, NOISE, TRUE_NOISE, Answered, interval, over_levels
from training.evaluation.predictions import PRESENCE, answered_from
from training.evaluation.rows import Row, check_files, read_rows
from training.evaluation.table import PUBLISHED, Cell, Table, ranked
from xflow_core.domain.errors import CallError
from xflow_core.export.files import write_whole

LOG = logging.getLogger(__name__)

NUMBERS = Path(__file__).parents[1] / "configs" / "published.yaml"
SETS = {"chexpercept": "CheXpercept", "chexlocalize": "CheXlocalize"}
# Their F1 says nothing: told which finding to draw, or told the truth's boxes.
TOLD = {HUMAN, *(one.name for one in SYSTEMS if one.boxes)}
TOLD_BOXES = "told the truth's boxes"
TRAINED = {
    "rosalia": ("", "", "", ""), "xflow-1-sft": ("x", "", "", ""), "xflow-1-rl": ("x", "x", "", ""),
    "xflow-2-sft": ("x", "x", "x", ""), "xflow": ("x", "x", "x", "x"),
}  # fmt: skip

Stored = Mapping[str, Mapping[str, Sequence[Answered]]]  # system -> set -> rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", action="append", default=[], dest="sets", help="chexpercept=FILE or chexlocalize=FILE")
    parser.add_argument("--predictions", type=Path, required=True, help="ROOT/<system>/<set> holds the predictions")
    parser.add_argument("--reader-study", type=Path, help="fits of a reader study, JSON")
    parser.add_argument("--compare", default=None, metavar="SYSTEM", help="test every other system against this one")
    parser.add_argument("--partial", action="store_true", help="measure although some rows have no prediction")
    parser.add_argument("--no-figures", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=None)


def run(arguments: argparse.Namespace) -> None:
    rows = read_sets(arguments.sets)
    stored = read_stored(arguments.predictions, rows, arguments.partial, arguments.workers)
    study = None if arguments.reader_study is None else read_study(arguments.reader_study)
    tables = [table_1(stored), table_2(stored), table_3(stored), table_4(study), table_8(rows.get("chexpercept"))]
    if arguments.compare is not None:
        tables.append(differences(stored, arguments.compare))
    for table in tables:
        table.write(arguments.out)
    text = "\n".join(table.markdown() for table in tables)
    write_whole(arguments.out / "tables.md", text.encode())
    print(text)
    if not arguments.no_figures and "chexpercept" in rows:
        of_set = {
            name: arguments.predictions / name / "chexpercept" for name in stored if "chexpercept" in stored[name]
        }
        titles = {name: title_of(name) for name in of_set}
        draw_grids(rows["chexpercept"], of_set, titles, arguments.out)


def read_sets(given: Sequence[str]) -> dict[str, list[Row]]:
    """``name=FILE`` options.

    Raises:
        CallError: another name, or a set that cannot be read.
    """
    found = {}
    for one in given:
        name, _, path = one.partition("=")
        if name not in SETS or not path:
            raise CallError(f"--set {one!r} should be one of {', '.join(f'{name}=FILE' for name in SETS)}.")
        found[name] = read_rows(Path(path))
        check_files(found[name])
    if not found:
        raise CallError("Give at least one evaluation set, --set chexpercept=FILE for instance.")
    return found


def read_stored(
    root: Path, rows: Mapping[str, Sequence[Row]], partial: bool, workers: int | None
) -> dict[str, dict[str, list[Answered]]]:
    """Every system's answers that lie under the root.

    Raises:
        CallError: predictions are not whole or not consistent.
    """
    found: dict[str, dict[str, list[Answered]]] = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []:
        for name, of_set in rows.items():
            if (folder / name / PRESENCE).is_file():
                found.setdefault(folder.name, {})[name] = answered_from(folder / name, of_set, partial, workers)
                LOG.info("%s on %s: %d rows", folder.name, name, len(found[folder.name][name]))
    return found


def numbers(table: str) -> dict[str, dict[str, Any]]:
    """A table of ``published.yaml``."""
    data: dict[str, dict[str, Any]] = yaml.safe_load(NUMBERS.read_text(encoding="utf-8"))[table]
    return data


def title_of(name: str) -> str:
    """As the paper's tables call it; a system that is told the truth's boxes is marked."""
    known = numbers("table_2") | numbers("table_1")
    if name in known:
        return str(known[name]["title"])
    one = next((one for one in SYSTEMS if one.name == name), None)
    if one is None:
        return name
    return f"{one.title} ({TOLD_BOXES})" if one.boxes else one.title


def table_1(stored: Stored) -> Table:
    return _of_systems("table_1", "Table 1: comparison with prior models", numbers("table_1"), stored, {})


def table_2(stored: Stored) -> Table:
    printed = numbers("table_2")
    kept = {name: sets for name, sets in stored.items() if name in printed}
    return _of_systems("table_2", "Table 2: contribution of each stage and training", printed, kept, TRAINED)


def _of_systems(
    name: str, title: str, printed: Mapping[str, Any], stored: Stored, marks: Mapping[str, tuple[str, ...]]
) -> Table:
    columns = ["Model", "Source"]
    columns += ["stage 1 SFT", "stage 1 RL", "stage 2 SFT", "stage 2 RL"] if marks else []
    columns += [f"{label} {measure}" for label in SETS.values() for measure in MEASURES]
    rows: list[tuple[str | Cell, ...]] = []
    competing: dict[bool, list[int]] = {True: [], False: []}  # published or not: the rows' places
    for system in [*printed, *(name for name in stored if name not in printed)]:
        mark = marks.get(system, ())
        of_row = printed[system]["title"] if system in printed else title_of(system)
        if system in printed:
            values = [Cell(value) for data in SETS for value in printed[system][data]]
            rows.append((of_row, PUBLISHED, *mark, *values))
            if system not in TOLD:
                competing[True].append(len(rows) - 1)
        if system in stored:
            rows.append((of_row, _measured_on(stored[system]), *mark, *_measured(system, stored[system])))
            if system not in TOLD:
                competing[False].append(len(rows) - 1)
    for among in competing.values():
        rows = ranked(rows, among)
    note = (
        "On CheXpercept the levels are averaged with equal weight; on CheXlocalize every case is asked at chest level. "
        "F1 is not given for who was told what to draw. Bold: the best, underlined: the second, among the published "
        "and among the measured models; who was told what or where to draw is no model among them."
    )
    return Table(name, title, tuple(columns), tuple(rows), note)


def _measured_on(sets: Mapping[str, Sequence[Answered]]) -> str:
    return "measured, n = " + " + ".join(f"{len(rows):,} {SETS[name]}" for name, rows in sets.items())


def _measured(system: str, sets: Mapping[str, Sequence[Answered]]) -> list[Cell]:
    cells = []
    for data in SETS:
        for name, measure in MEASURES.items():
            rows = sets.get(data)
            if rows is None or (name == "F1" and system in TOLD):
                cells.append(Cell(None))
            else:
                cells.append(Cell(over_levels(rows, measure), interval(rows, measure, averaged=True)))
    return cells


def table_3(stored: Stored) -> Table:
    printed = numbers("table_3")
    columns = ("Model", "Source", "difference in components", "specks", "specks outside truth", "% of mask area")
    on_set = {name: sets["chexpercept"] for name, sets in stored.items() if "chexpercept" in sets}
    rows: list[tuple[str | Cell, ...]] = []
    for system in [*printed, *(name for name in on_set if name not in printed)]:
        if system in printed:
            values = [Cell(value, digits=2, signed=k == 0) for k, value in enumerate(printed[system]["values"])]
            rows.append((printed[system]["title"], PUBLISHED, *values))
        # The truth is the same for all systems that answered every row.
        answered = max(on_set.values(), key=len, default=None) if system == "truth" else on_set.get(system)
        if answered is not None:
            positive = [row for row in answered if row.positive]
            measures = TRUE_NOISE if system == "truth" else NOISE
            title = "GT" if system == "truth" else title_of(system)
            cells = [_noise(positive, measures.get(name), name) for name in NOISE]
            rows.append((title, f"measured, n = {len(positive):,}", *cells))
    note = "Over all positive rows of CheXpercept's evaluation set; a speck is under 0.01 % of the image."
    return Table("table_3", "Table 3: mask noise", columns, tuple(rows), note)


def _noise(rows: Sequence[Answered], measure: Any, name: str) -> Cell:
    if measure is None:
        return Cell(None)
    scale = 100 if name == "speck_share_of_mask" else 1
    value, ends = measure(rows), interval(rows, measure)
    return Cell(
        None if value is None else value * scale,
        None if ends is None else [end * scale for end in ends],
        digits=2,
        signed=name == "delta_components",
    )


def read_study(path: Path) -> dict[str, Any]:
    """The fits of a reader study: ``{"rankings": n, "systems": {name: {"davidson": [value, low, high], "rao_kupper":
    [..], "mean_rank": value}}}``.

    Raises:
        CallError: it cannot be read, or is something else.
    """
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for fits in data["systems"].values():
            _fits(fits)
        int(data["rankings"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise CallError(f"{path} holds no fits of a reader study: {problem}.") from None
    return data


def _fits(fits: Mapping[str, Any]) -> tuple[Cell, Cell, Cell]:
    strengths = [
        Cell(float(fits[key][0]), [float(end) for end in fits[key][1:3]]) for key in ("davidson", "rao_kupper")
    ]
    return strengths[0], strengths[1], Cell(float(fits["mean_rank"]), digits=2)


def table_4(study: Mapping[str, Any] | None) -> Table:
    printed = numbers("table_4")
    columns = ("Model", "Source", "Davidson log-strength", "Rao-Kupper log-strength", "mean rank")
    found = {} if study is None else study["systems"]
    rows: list[tuple[str | Cell, ...]] = []
    for system in [*printed, *(name for name in found if name not in printed)]:
        if system in printed:
            rows.append((printed[system]["title"], PUBLISHED, *_fits(printed[system])))
        if study is not None and system in found:
            title = "GT" if system == "truth" else title_of(system)
            rows.append((title, f"measured, {study['rankings']} rankings", *_fits(found[system])))
    note = "Log-strengths sum to zero, with 95 % bootstrap intervals over cases."
    return Table("table_4", "Table 4: expert preference", columns, tuple(rows), note)


def table_8(rows: Sequence[Row] | None) -> Table:
    printed = read_settings().table_8
    columns = ("Finding", "Source", *(f"{level} {sign}" for level in LEVELS for sign in ("positive", "negative")))
    counted: dict[str, dict[str, list[int]]] = {finding: {level: [0, 0] for level in LEVELS} for finding in printed}
    for row in rows or ():
        counted[row.instruction.finding][row.instruction.level][row.mask is None] += 1
    lines: list[tuple[str | Cell, ...]] = []
    given = {finding: {level: printed[finding].get(level, (0, 0)) for level in LEVELS} for finding in printed}
    for finding in [*printed, "total"]:
        for source, counts in ((PUBLISHED, given), ("counted", counted)):
            if source == PUBLISHED or rows is not None:
                of = [counts[finding]] if finding != "total" else list(counts.values())
                sums = [sum(one[level][k] for one in of) for level in LEVELS for k in (0, 1)]
                lines.append((finding, source, *(Cell(n, digits=0) for n in sums)))
    return Table("table_8", "Table 8: the evaluation set", columns, tuple(lines))


def differences(stored: Stored, first: str) -> Table:
    """Every other system against ``first`` on the same rows.

    Raises:
        CallError: no predictions of ``first``.
    """
    if first not in stored:
        raise CallError(f"There are no predictions of {first!r}; there are some of {', '.join(stored) or 'no system'}.")
    columns = ("Set", "Measure", "First", "Second", "difference", "p", "cases")
    lines: list[tuple[str | Cell, ...]] = []
    for data, rows in stored[first].items():
        for other in stored:
            if other == first or data not in stored[other]:
                continue
            both = {row.id for row in rows} & {row.id for row in stored[other][data]}
            sides = [[row for row in stored[name][data] if row.id in both] for name in (first, other)]
            for name, measure in MEASURES.items():
                found = None if name == "F1" and {first, other} & TOLD else compare(*sides, measure)
                if found is not None:
                    lines.append((
                        SETS[data], name, title_of(first), title_of(other),
                        Cell(found.difference, found.interval, signed=True),
                        Cell(found.p, digits=4), Cell(found.cases, digits=0),
                    ))  # fmt: skip
    note = "First minus second, paired by case: 95 % bootstrap interval; p of approximate randomisation, two-sided."
    return Table("differences", "Differences between systems", columns, tuple(lines), note)
