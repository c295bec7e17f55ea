"""``python -m training counts --data ROOT``: Tables 5, 6 and 8 of what lies under ROOT, next to the paper's numbers.

The sets are read and divided as by ``splits``; nothing is kept but what the reports were read as, in ``--parses``,
where given. The revision policy's examples need masks and the segmenter: they are counted where ``--trajectories``
names what `trajectories` wrote. Not for clinical use.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.curation.curate import Curated, curate
from training.curation.division import EVAL, RL, SFT, VAL
from training.curation.paper import PAPER, Settings, read_settings
from training.curation.sources.problems import Problems
from xflow_core.domain.errors import CallError
from xflow_core.domain.findings import FINDINGS, LEVELS

_WIDTH = 58


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the folder under which the sets lie")
    parser.add_argument("--config", type=Path, default=PAPER)
    parser.add_argument("--parses", type=Path, help="a file for the reports' parses; a stopped run goes on from it")
    parser.add_argument("--trajectories", type=Path, help="what `python -m training trajectories` wrote")
    parser.add_argument("--json", action="store_true", help="print the tables as one JSON object")


def run(arguments: argparse.Namespace) -> None:
    settings = read_settings(arguments.config)
    problems = Problems()
    revision = None if arguments.trajectories is None else rows_of(arguments.trajectories)
    with tempfile.TemporaryDirectory() as scratch:
        parses = arguments.parses or Path(scratch) / "parses.jsonl"
        curated = curate(settings.sources.under(arguments.data), settings, problems, parses)
    if arguments.json:
        print(json.dumps(tables(curated, revision)))
    else:
        print("\n".join([*text(curated, settings, revision), "", *problems.lines()]))


def rows_of(trajectories: Path) -> dict[str, int]:
    """The rows of finished trajectories by split.

    Raises:
        CallError: there are none.
    """
    try:
        counts = json.loads((trajectories / "manifest.json").read_bytes())["counts"]
        return {split: int(counts[split]["rows"]) for split in (SFT, VAL, RL)}
    except (OSError, ValueError, LookupError, TypeError) as problem:
        raise CallError(
            f"{trajectories} holds no finished trajectories ({problem}); `python -m training trajectories` makes them."
        ) from None


def tables(curated: Curated, revision: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The numbers of Tables 5, 6 and 8 under the configuration's names; None where nothing is counted here.

    Args:
        revision: the revision policy's examples by split, where they have been made.
    """
    made: Mapping[str, int | None] = revision or {}
    by_split = Counter(entry.split for entry in curated.radiographs)
    agreed = [entry for side in (RL, EVAL) for entry in curated.agreed[side]]
    studies = {entry.study: entry.subject for entry in agreed}
    per_patient = Counter(studies.values())
    several = [count for count in per_patient.values() if count > 1]
    asked = {side: Counter(question.present for question in curated.questions(side)) for side in (RL, EVAL)}
    table_8 = {finding: {level: [0, 0] for level in LEVELS} for finding in FINDINGS}
    for question in curated.questions(EVAL):
        table_8[question.finding][question.level][0 if question.present else 1] += 1
    return {
        "table_5": {
            "mimic_ils_train": curated.in_set["train"],
            "chexpercept": curated.reviewed,
            "sft_train": by_split[SFT],
            "sft_val": by_split[VAL],
            "agreed": len(studies),
            "rl": by_split[RL],
            "eval": by_split[EVAL],
            "agreed_patients": len(per_patient),
            "patients_with_several": len(several),
            "radiographs_of_those": sum(several),
            "unilateral_pairs": sum(entry.unilateral for entry in agreed),
        },
        "table_6": {
            "init_sft_train": curated.instructions[SFT],
            "init_sft_val": curated.instructions[VAL],
            "init_rl_positive": asked[RL][True],
            "init_rl_negative": asked[RL][False],
            "rev_sft_train": made.get(SFT),
            "rev_sft_val": made.get(VAL),
            "rev_rl": made.get(RL),
        },
        "table_8": table_8,
    }


_NAMES = {
    "mimic_ils_train": "MIMIC-ILS train, before the exclusion",
    "chexpercept": "CheXpercept, inside MIMIC-ILS train",
    "sft_train": "D_SFT: MIMIC-ILS train without CheXpercept",
    "sft_val": "D_SFT: MIMIC-ILS val, only ever for validation",
    "agreed": "of CheXpercept, three sources agree on",
    "rl": "D_RL",
    "eval": "D_eval",
    "agreed_patients": "patients of the agreed set",
    "patients_with_several": "of them with several radiographs",
    "radiographs_of_those": "radiographs of those",
    "unilateral_pairs": "unilateral (radiograph, finding) pairs",
    "init_sft_train": "pi_init SFT, train (instructions)",
    "init_sft_val": "pi_init SFT, val (instructions)",
    "init_rl_positive": "pi_init RL, positive (instructions)",
    "init_rl_negative": "pi_init RL, negative (instructions)",
    "rev_sft_train": "pi_rev SFT, train (trajectories)",
    "rev_sft_val": "pi_rev SFT, val (trajectories)",
    "rev_rl": "pi_rev RL (starting states)",
}


def text(curated: Curated, settings: Settings, revision: Mapping[str, int] | None = None) -> list[str]:
    """The tables for people, here beside the paper's."""
    here = tables(curated, revision)
    lines = [f"{'Table 5: radiographs':{_WIDTH}}{'here':>10}{'paper':>10}"]
    lines += _rows(here["table_5"], vars(settings.table_5))
    if curated.shared:
        told = " and ".join(f"{count} with {split}" for split, count in sorted(curated.shared.items()))
        lines.append(
            f"Patients that D_SFT shares: {told} (other studies of theirs; splits.hold_out: patient leaves them out)."
        )
    lines += [
        "",
        f"{'Table 6: examples':{_WIDTH}}{'here':>10}{'paper':>10}",
        *_rows(here["table_6"], vars(settings.table_6)),
    ]
    if revision is None:
        lines.append("-: needs masks and the segmenter (`trajectories`); counted with --trajectories.")
    lines += [
        "",
        "Table 8: rows of D_eval, positive / negative, here (paper)",
        f"{'':16}" + "".join(f"{x:>24}" for x in LEVELS),
    ]
    totals = {level: ([0, 0], [0, 0]) for level in LEVELS}
    for finding, levels in here["table_8"].items():
        cells = []
        for level, mine in levels.items():
            theirs = settings.table_8.get(finding, {}).get(level)
            for total, numbers in zip(totals[level], (mine, theirs or (0, 0)), strict=True):
                total[0] += numbers[0]
                total[1] += numbers[1]
            cells.append("-" if theirs is None and not any(mine) else _cell(mine, theirs or (0, 0)))
        lines.append(f"{finding:16}" + "".join(f"{cell:>24}" for cell in cells))
    lines.append(f"{'total':16}" + "".join(f"{_cell(*totals[level]):>24}" for level in LEVELS))
    read_by = f"{settings.reports.parser}, {settings.reports.model}"
    if settings.reports.parser == "rules":
        read_by = "rules (sentence rules; the paper asks MedGemma: reports.parser: medgemma)"
    lines += ["", f"Reports read by: {read_by}"]
    lines.append(f"Triples admitted: {curated.admitted}; dropped: {sum(curated.dropped.values())}")
    lines += [f"    {count} x {reason}" for reason, count in curated.dropped.most_common()]
    return [*lines, "Not for clinical use."]


def _rows(here: dict[str, int | None], paper: dict[str, int]) -> list[str]:
    return [
        f"{_NAMES[key]:{_WIDTH}}{'-' if value is None else f'{value:,}':>10}{paper[key]:>10,}"
        for key, value in here.items()
    ]


def _cell(mine: list[int] | tuple[int, int], theirs: list[int] | tuple[int, int]) -> str:
    return f"{mine[0]:,}/{mine[1]:,} ({theirs[0]:,}/{theirs[1]:,})"
