"""Which mask stands as A, B, C, .. for which reader, and the key that tells.

Each reader sees every order of the systems equally often, give or take one. Over as many readers as there are systems
each system stands once at each letter of a case. Each reader has the cases in a shuffled sequence of their own,
numbered from 1, so that case numbers say nothing across readers.

The key is sealed by its SHA-256, which stands in every sheet: a key that was changed after the reading no longer fits
the answers. Its random ``nonce`` keeps anyone from finding the key by trying seeds."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from training.evaluation.rows import Row
from xflow_core.domain.errors import CallError, ValueRefused

LETTERS = "ABCDEFGH"
SCHEMA = "xflow.reader-study/1"


@dataclass(frozen=True)
class Placement:
    """One case as a reader sees it: ``systems[k]`` stands at the k-th letter."""

    case: int
    row: str
    systems: tuple[str, ...]


@dataclass(frozen=True)
class Key:
    """Who saw what where. rows: row id to finding and level."""

    study: str
    nonce: str
    systems: tuple[str, ...]
    rows: dict[str, tuple[str, str]]
    readers: dict[str, tuple[Placement, ...]]

    @property
    def seal(self) -> str:
        """SHA-256 of the key, hexadecimal."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "study": self.study,
            "nonce": self.nonce,
            "systems": list(self.systems),
            "rows": {row: list(kind) for row, kind in self.rows.items()},
            "readers": {
                reader: [{"case": p.case, "row": p.row, "systems": list(p.systems)} for p in placements]
                for reader, placements in self.readers.items()
            },
        }

    @classmethod
    def read(cls, path: Path) -> Key:
        """Raises CallError: the file is missing or no key of a reader study."""
        try:
            data = json.loads(path.read_bytes())
            if data["schema"] != SCHEMA:
                raise ValueError(f"its schema is {data['schema']!r}, not {SCHEMA!r}")
            return cls(
                data["study"],
                data["nonce"],
                tuple(data["systems"]),
                {row: (kind[0], kind[1]) for row, kind in data["rows"].items()},
                {
                    reader: tuple(Placement(p["case"], p["row"], tuple(p["systems"])) for p in placements)
                    for reader, placements in data["readers"].items()
                },
            )
        except OSError as problem:
            raise CallError(f"The key {path} cannot be read: {problem.strerror}.") from None
        except (ValueError, KeyError, TypeError, IndexError) as problem:
            raise CallError(f"{path} is no key of a reader study: {problem}.") from None


def orders_of(systems: Sequence[str]) -> list[list[tuple[str, ...]]]:
    """All orders of the systems, in groups whose members are turns of one another."""
    first, *others = systems
    return [[(first, *rest)[-k:] + (first, *rest)[:-k] for k in range(len(systems))] for rest in permutations(others)]


def arrange(rows: Sequence[Row], systems: Sequence[str], readers: Sequence[str], seed: int | None = None) -> Key:
    """The key of a new study.

    Args:
        seed: of the shuffles, for tests; by default nobody knows it.

    Raises:
        ValueRefused: fewer than two systems or more than eight, or a name twice.
    """
    if not 2 <= len(systems) <= len(LETTERS):
        raise ValueRefused(f"A study compares 2 to {len(LETTERS)} systems, not {len(systems)}.")
    for names in (systems, readers, [row.id for row in rows]):
        if len(set(names)) != len(names):
            raise ValueRefused("A reader study names each system, reader and row once.")
    rng = np.random.default_rng(secrets.randbits(128) if seed is None else seed)
    groups = orders_of([systems[k] for k in rng.permutation(len(systems))])
    spread = rng.permutation(len(rows))
    turns = len(systems)
    placed: dict[str, tuple[Placement, ...]] = {}
    for r, reader in enumerate(readers):
        sequence = rng.permutation(len(rows))
        placements = []
        for case, k in enumerate(sequence, start=1):
            group, turn = divmod(int(spread[k]) % (turns * len(groups)), turns)
            order = groups[(group + r // turns) % len(groups)][(turn + r) % turns]
            placements.append(Placement(case, rows[k].id, order))
        placed[reader] = tuple(placements)
    kinds = {row.id: (row.instruction.finding, row.instruction.level) for row in rows}
    return Key(secrets.token_hex(8), secrets.token_hex(16), tuple(systems), kinds, placed)
