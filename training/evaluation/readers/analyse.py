"""``python -m training readers analyse --key KEY.json --out DIR ANSWERS.csv ..``

Opens the key, reads the readers' answers and writes ``results.json``, ``fits.json`` for ``python -m training tables
--reader-study``, and Table 4 of the paper as ``table.md``, ``table.tex`` and ``table.csv``: log-strengths of Davidson's
and Rao and Kupper's models with 95 % bootstrap intervals over cases, mean ranks, also by finding and level, the tie
rate, and how far the readers agree."""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xflow_core.domain.errors import CallError
from xflow_core.export.files import write_whole

from .design import Key
from .models import (
    Fits,
    davidson_probabilities,
    fit_davidson,
    fit_rao_kupper,
    pairs_of,
    rao_kupper_probabilities,
)
from .rankings import Rankings, agreement, fleiss_kappa, read_rankings
from .select import TRUTH

DRAWS = 2000

MODELS: dict[str, tuple[str, Callable[[np.ndarray], Fits], Callable[[np.ndarray, float], np.ndarray]]] = {
    "Davidson": ("nu", fit_davidson, davidson_probabilities),
    "Rao-Kupper": ("theta", fit_rao_kupper, rao_kupper_probabilities),
}


def results(rankings: Rankings, draws: int = DRAWS, seed: int = 0) -> dict[str, Any]:
    """All figures of ``results.json``.

    Cases are drawn with replacement, each with all its readers' answers, since the comparisons of one ranking hang
    together.

    Raises:
        CallError: a model has no finite maximum, e.g. a system that was never ranked behind another.
    """
    outcomes = rankings.outcomes()
    cases = len(outcomes)
    weights = np.random.default_rng(seed).multinomial(cases, np.full(cases, 1 / cases), draws).astype(float)
    sampled = np.einsum("bc,cpo->bpo", weights, outcomes)
    total = outcomes.sum(axis=0)
    pairs = pairs_of(len(rankings.systems))

    models: dict[str, Any] = {}
    for name, (parameter, fit, probabilities) in MODELS.items():
        best, drawn = fit(total), fit(sampled)
        if not best.sound[0]:
            raise CallError(
                f"{name}'s model has no finite strengths for these rankings: a system always or never wins, or all are "
                "tied. Rank more cases."
            )
        strengths = best.strengths[0]
        implied = probabilities(strengths, float(best.ties[0]))[:, 2] @ total.sum(axis=1) / total.sum()
        kept = drawn.strengths[drawn.sound]
        models[name] = {
            "log_strengths": {
                system: {"value": float(strengths[k]), "interval": _interval(kept[:, k])}
                for k, system in enumerate(rankings.systems)
            },
            parameter: {"value": float(best.ties[0]), "interval": _interval(drawn.ties[drawn.sound])},
            "implied_tie_rate": float(implied),
            "log_likelihood": float(best.log_likelihood[0]),
            "preferred_times_as_often": {
                f"{rankings.systems[i]} over {rankings.systems[j]}": {
                    "value": float(np.exp(strengths[i] - strengths[j])),
                    "interval": _interval(np.exp(kept[:, i] - kept[:, j])),
                }
                for i, j in pairs
            },
            "resamples": {"drawn": draws, "without_finite_strengths": int((~drawn.sound).sum())},
        }

    answered = ~np.isnan(rankings.ranks[:, :, 0])
    rank_sums, rank_counts = np.nansum(rankings.ranks, axis=0), answered.sum(axis=0)
    drawn_counts = weights @ rank_counts
    usable = drawn_counts > 0
    drawn_ranks = (weights @ rank_sums)[usable] / drawn_counts[usable, None]
    drawn_ties = sampled[usable, :, 2].sum(axis=1) / sampled[usable].sum(axis=(1, 2))
    preferences = rankings.preferences()
    agreed = agreement(rankings)
    drawn_cases = np.random.default_rng(seed).integers(0, cases, (min(draws, 500), cases))
    kappas = [kappa for drawn in drawn_cases if (kappa := fleiss_kappa(preferences[:, drawn])) is not None]
    agreed["fleiss_kappa_interval"] = _interval(np.array(kappas)) if agreed["fleiss_kappa"] is not None else None
    return {
        "notice": "not for clinical use",
        "systems": list(rankings.systems),
        "cases": int((rank_counts > 0).sum()),
        "cases_in_the_study": cases,
        "rankings": int(answered.sum()),
        "rankings_asked_for": int(answered.size),
        "comparisons": int(total.sum()),
        "tie_rate": {"value": float(total[:, 2].sum() / total.sum()), "interval": _interval(drawn_ties)},
        "outcomes": {
            f"{rankings.systems[i]} and {rankings.systems[j]}": dict(
                zip(("first preferred", "second preferred", "tied"), map(int, total[k]), strict=True)
            )
            for k, (i, j) in enumerate(pairs)
        },
        "mean_ranks": {
            system: {"value": float(rank_sums[:, k].sum() / answered.sum()), "interval": _interval(drawn_ranks[:, k])}
            for k, system in enumerate(rankings.systems)
        },
        "models": models,
        "agreement": agreed,
    }


def ranks_by_kind(
    rankings: Rankings, kinds: Mapping[str, tuple[str, str]], draws: int = DRAWS, seed: int = 0
) -> dict[str, dict[str, dict[str, Any]]]:
    """Mean ranks of the rankings of each finding and of each level, with intervals over cases; the paper has none.

    A kind has few cases (15 or so of a finding), too few for strengths of its own.

    Args:
        kinds: the finding and the level of each row.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for place, word in enumerate(("finding", "level")):
        found[word] = {}
        for name in dict.fromkeys(kinds[row][place] for row in rankings.rows):
            ranks = rankings.ranks[:, [k for k, row in enumerate(rankings.rows) if kinds[row][place] == name]]
            sums, counts = np.nansum(ranks, axis=0), (~np.isnan(ranks[:, :, 0])).sum(axis=0)
            if not counts.any():
                continue
            cases = len(counts)
            weights = np.random.default_rng(seed).multinomial(cases, np.full(cases, 1 / cases), draws)
            drawn_counts = weights @ counts
            usable = drawn_counts > 0
            drawn = (weights @ sums)[usable] / drawn_counts[usable, None]
            found[word][name] = {
                "cases": int((counts > 0).sum()),
                "rankings": int(counts.sum()),
                "mean_ranks": {
                    system: {"value": float(sums[:, k].sum() / counts.sum()), "interval": _interval(drawn[:, k])}
                    for k, system in enumerate(rankings.systems)
                },
            }
    return found


def fits_of(figures: dict[str, Any]) -> dict[str, Any]:
    """What ``python -m training tables --reader-study`` reads; the ground truth is called "truth" there."""

    def of(model: str, system: str) -> list[float]:
        part = figures["models"][model]["log_strengths"][system]
        return [part["value"], *(part["interval"] or [part["value"]] * 2)]

    return {
        "rankings": figures["rankings"],
        "systems": {
            "truth" if system == TRUTH else system: {
                "davidson": of("Davidson", system),
                "rao_kupper": of("Rao-Kupper", system),
                "mean_rank": figures["mean_ranks"][system]["value"],
            }
            for system in figures["systems"]
        },
    }


def _interval(values: np.ndarray) -> list[float] | None:
    return [float(v) for v in np.percentile(values, (2.5, 97.5))] if values.size else None


def table_rows(figures: dict[str, Any]) -> list[list[str]]:
    """Table 4: a headed row for each system."""
    lines = [["Model", *(f"{name} log-strength" for name in MODELS), "Mean rank"]]
    for system in figures["systems"]:
        cells = [system]
        for name in MODELS:
            part = figures["models"][name]["log_strengths"][system]
            cells.append(_cell(part, 3))
        lines.append([*cells, _cell(figures["mean_ranks"][system], 2)])
    return lines


def _cell(part: dict[str, Any], digits: int) -> str:
    interval = part["interval"]
    value = f"{part['value']:.{digits}f}"
    return value if interval is None else f"{value} [{interval[0]:.2f}, {interval[1]:.2f}]"


def markdown(figures: dict[str, Any]) -> str:
    head, *lines = table_rows(figures)
    nu, theta = (figures["models"][name][MODELS[name][0]] for name in MODELS)
    agreed = figures["agreement"]
    kappa, w = ("-" if agreed[key] is None else f"{agreed[key]:.3f}" for key in ("fleiss_kappa", "kendall_w"))
    n, asked = figures["rankings"], figures["rankings_asked_for"]
    text = [
        f"| {' | '.join(head)} |",
        f"|---{'|---:' * (len(head) - 1)}|",
        *(f"| {' | '.join(line)} |" for line in lines),
        "",
        f"{n} of {asked} rankings of {figures['cases']} cases, {figures['comparisons']} comparisons, "
        f"{figures['tie_rate']['value'] * 100:.1f} % tied. nu = {_cell(nu, 3)}, theta = {_cell(theta, 3)}. "
        f"Readers: Fleiss' kappa {kappa}, mean Kendall's W {w}. 95 % bootstrap intervals over cases. Lower ranks are "
        "better. Not for clinical use.",
        "",
    ]
    for word, kinds in figures.get("by_kind", {}).items():
        text += [
            f"| {word} | cases | {' | '.join(f'{system}, mean rank' for system in figures['systems'])} |",
            f"|---|---:{'|---:' * len(figures['systems'])}|",
            *(
                f"| {name} | {part['cases']} | "
                f"{' | '.join(_cell(part['mean_ranks'][system], 2) for system in figures['systems'])} |"
                for name, part in kinds.items()
            ),
            "",
        ]
    return "\n".join(text)


def latex(figures: dict[str, Any]) -> str:
    head, *lines = table_rows(figures)

    def line(cells: Sequence[str]) -> str:
        return " & ".join(cell.replace("&", r"\&").replace("_", r"\_").replace("%", r"\%") for cell in cells) + r" \\"

    body = [rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule", line(head), r"\midrule"]
    return "\n".join([*body, *map(line, lines), r"\bottomrule", r"\end{tabular}", ""])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=DRAWS, help="bootstrap resamples")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--allow-incomplete", action="store_true", help="also when readers or cases are missing")
    parser.add_argument("answers", type=Path, nargs="+", help="the readers' CSV files")


def run(arguments: argparse.Namespace) -> None:
    if arguments.draws < 1:
        raise CallError(f"--draws is {arguments.draws}; it counts from 1.")
    key = Key.read(arguments.key)
    rankings = read_rankings(key, arguments.answers, allow_incomplete=arguments.allow_incomplete)
    figures = results(rankings, arguments.draws, arguments.seed)
    figures["by_kind"] = ranks_by_kind(rankings, key.rows, arguments.draws, arguments.seed)
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise CallError(f"The folder {arguments.out} cannot be made: {problem.strerror}.") from None
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(table_rows(figures))
    write_whole(arguments.out / "results.json", (json.dumps(figures, indent=1, allow_nan=False) + "\n").encode())
    write_whole(arguments.out / "fits.json", (json.dumps(fits_of(figures), indent=1, allow_nan=False) + "\n").encode())
    write_whole(arguments.out / "table.md", markdown(figures).encode())
    write_whole(arguments.out / "table.tex", latex(figures).encode())
    write_whole(arguments.out / "table.csv", stream.getvalue().encode())
    print(markdown(figures))
