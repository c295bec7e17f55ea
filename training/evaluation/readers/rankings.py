"""The readers' sheets read back with the key, and what the ranks say without a model."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from training.evaluation.rates import Rate
from xflow_core.domain.errors import CallError

from .design import LETTERS, Key
from .models import pairs_of


@dataclass(frozen=True, eq=False)
class Rankings:
    """What was answered. ranks: float ``[readers, rows, systems]``, 1 best, ties share the mean of their places (so a
    ranking of three sums to 6); NaN where a reader did not answer."""

    readers: tuple[str, ...]
    rows: tuple[str, ...]
    systems: tuple[str, ...]
    ranks: np.ndarray

    def outcomes(self) -> np.ndarray:
        """Counts over readers, ``[rows, pairs, 3]``: the pair's first preferred, its second, neither."""
        return np.nansum(self.preferences(), axis=0)

    def preferences(self) -> np.ndarray:
        """The same for each reader, ``[readers, rows, pairs, 3]``, 0 or 1; NaN where there is no answer."""
        first, second = np.array(pairs_of(len(self.systems))).T
        gap = self.ranks[:, :, second] - self.ranks[:, :, first]
        found = np.stack([gap > 0, gap < 0, gap == 0], axis=3).astype(float)
        found[np.isnan(gap)] = np.nan
        return found


def read_rankings(key: Key, sheets: Sequence[Path], *, allow_incomplete: bool = False) -> Rankings:
    """The answers of all readers.

    Raises:
        CallError: a sheet cannot be used (the message says which case of which file), a reader's sheet is missing or
            given twice, or a case is not ranked (unless ``allow_incomplete``).
    """
    rows = tuple(key.rows)
    readers = tuple(key.readers)
    ranks = np.full((len(readers), len(rows), len(key.systems)), np.nan)
    came: dict[str, Path] = {}
    for path in sheets:
        reader, answers = _sheet(key, path)
        if reader in came:
            raise CallError(f"{path} and {came[reader]} are both of the reader {reader}.")
        came[reader] = path
        missing = [p.case for p in key.readers[reader] if p.case not in answers]
        if missing and not allow_incomplete:
            raise CallError(
                f"{path}: {len(missing)} cases are not ranked, the first is case {missing[0]}. "
                "Have them ranked, or pass --allow-incomplete."
            )
        for placement in key.readers[reader]:
            if placement.case in answers:
                places = [key.systems.index(name) for name in placement.systems]
                ranks[readers.index(reader), rows.index(placement.row), places] = answers[placement.case]
    absent = [reader for reader in readers if reader not in came]
    if absent and not allow_incomplete:
        raise CallError(f"There is no sheet of {', '.join(absent)}. Give it, or pass --allow-incomplete.")
    if np.isnan(ranks).all():
        raise CallError("The sheets hold no ranking.")
    return Rankings(readers, rows, key.systems, ranks)


def _sheet(key: Key, path: Path) -> tuple[str, dict[int, np.ndarray]]:
    letters = LETTERS[: len(key.systems)]
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            table = csv.DictReader(stream)
            lines = list(table)
            names = table.fieldnames or []
    except OSError as problem:
        raise CallError(f"The sheet {path} cannot be read: {problem.strerror}.") from None
    except (ValueError, csv.Error):
        raise CallError(f"The sheet {path} is not CSV in UTF-8.") from None
    lost = [name for name in ("study", "seal", "reader", "case", *letters) if name not in names]
    if lost or not lines:
        raise CallError(f"The sheet {path} lacks {'the columns ' + ', '.join(lost) if lost else 'cases'}.")
    reader = lines[0]["reader"]
    known = {placement.case for placement in key.readers.get(reader, ())}
    answers: dict[int, np.ndarray] = {}
    seen: set[int] = set()
    for line in lines:
        if line["study"] != key.study:
            raise CallError(f"The sheet {path} is of the study {line['study']}, the key of {key.study}.")
        if line["seal"] != key.seal:
            raise CallError(f"The key does not fit the seal on {path}: it was changed after the sheets were made.")
        if line["reader"] != reader or not known:
            raise CallError(f"The sheet {path} names the reader {line['reader']!r}; one of {', '.join(key.readers)}.")
        case = _whole(line["case"])
        if case not in known or case in seen:
            raise CallError(f"The sheet {path} has a case {line['case']!r} {'twice' if case in seen else 'too many'}.")
        assert case is not None
        seen.add(case)
        given = [line[letter].strip() if line[letter] else "" for letter in letters]
        if not any(given):
            continue
        values = [_whole(value) for value in given]
        if any(value is None or not 1 <= value <= len(letters) for value in values):
            raise CallError(
                f"Case {case} of {path} is ranked {', '.join(value or 'nothing' for value in given)}; every mask gets "
                f"a whole number from 1 to {len(letters)}."
            )
        answers[case] = rankdata(values)
    return reader, answers


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def fleiss_kappa(preferences: np.ndarray) -> float | None:
    """Agreement beyond chance on which of two masks is better (first, second, neither), Fleiss (1971).

    Args:
        preferences: ``[readers, rows, pairs, 3]``; comparisons that a reader did not answer are left out.

    Returns:
        None for fewer than two readers, or when all answers are alike so that chance explains everything.
    """
    items = preferences.reshape(preferences.shape[0], -1, 3)
    items = items[:, ~np.isnan(items).any(axis=(0, 2))]
    readers = items.shape[0]
    if readers < 2 or not items.shape[1]:
        return None
    counts = items.sum(axis=0)
    seen = float(((counts**2).sum(axis=1) - readers).mean() / (readers * (readers - 1)))
    expected = float((counts.mean(axis=0) / readers) @ (counts.mean(axis=0) / readers))
    return None if expected == 1 else (seen - expected) / (1 - expected)


def kendall_w(ranks: np.ndarray) -> float | None:
    """Kendall's coefficient of concordance, corrected for ties, as the mean over rows.

    Args:
        ranks: ``[readers, rows, systems]``; rows that a reader did not answer, and rows on which every reader ties
            everything, are left out.
    """
    readers, _, systems = ranks.shape
    values = []
    for k in range(ranks.shape[1]):
        row = ranks[:, k]
        if readers < 2 or np.isnan(row).any():
            continue
        spread = ((row.sum(axis=0) - readers * (systems + 1) / 2) ** 2).sum()
        ties = sum((count**3 - count) for one in row for count in np.unique(one, return_counts=True)[1])
        greatest = readers**2 * (systems**3 - systems) / 12 - readers * ties / 12
        if greatest > 0:
            values.append(spread / greatest)
    return float(np.mean(values)) if values else None


def agreement(rankings: Rankings) -> dict[str, Any]:
    """Kappa and W over all readers, and for each two readers how often they prefer the same or opposite masks."""
    preferences = rankings.preferences()
    pairs = {}
    for a, b in combinations(range(len(rankings.readers)), 2):
        both = ~np.isnan(preferences[[a, b]]).any(axis=(0, 3))
        one, other = (preferences[k][both].argmax(axis=-1) for k in (a, b))
        opposite = (one != other) & (one != 2) & (other != 2)
        pairs[f"{rankings.readers[a]} and {rankings.readers[b]}"] = {
            "same": Rate.of(one == other).to_json(),
            "opposite": Rate.of(opposite).to_json(),
        }
    return {"fleiss_kappa": fleiss_kappa(preferences), "kendall_w": kendall_w(rankings.ranks), "by_pair": pairs}
