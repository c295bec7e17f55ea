"""The benchmark of the measures draws Table 8's questions and says where the time goes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.metrics import main, write_set
from training.curation.paper import read_settings


def test_the_drawn_set_has_the_shares_of_table_8(tmp_path: Path) -> None:
    total = sum(sum(counts) for levels in read_settings().table_8.values() for counts in levels.values())
    assert total == 5921
    rows, _ = write_set(tmp_path / "set", 600, 32)
    positive = [row for row in rows if row.mask is not None]
    assert len(positive) == pytest.approx(600 * 1141 / total, abs=8)
    assert sum(row.instruction.level == "zone" for row in positive) == pytest.approx(600 * 330 / total, abs=8)


def test_every_part_of_the_time_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ["metrics", "--rows", "60", "--side", "64", "--workers", "1", "--work", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", call)
    main()
    printed = capsys.readouterr().out
    assert printed.startswith("60 rows at 64 x 64, 1 processes")
    for part in (
        "read and count",
        "metrics, with intervals",
        "two systems compared",
        "truth's PNG",
        "load of the machine",
    ):
        assert part in printed
    assert not list(tmp_path.iterdir())
