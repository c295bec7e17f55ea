"""The soak itself, small: every part of ``make soak`` runs, holds on the phantom, and would say so if it did not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from phantom_backend import phantom_bundle
from service.phantom_server import picture

from benchmarks.soak import MARKS, Material, Part, Settings, in_words, report, soak, write_report

SMALL = Settings(clients=4, runs=3, total_runs=30, kills=2, requests=60, connections=8, patience=0.0)


def material() -> Material:
    images = picture(), picture([])
    return Material(images, ("Segment the opacity", "Segment the effusion in the left lung"))


@pytest.mark.skipif(sys.platform == "win32", reason="the soak kills with SIGKILL and reads the memory with ps")
def test_a_small_soak_of_the_phantom_holds(tmp_path: Path) -> None:
    environment = phantom_bundle(tmp_path, seconds_per_call=0.02)
    parts = soak("phantom", material(), SMALL, environment, tmp_path / "engine.log")
    assert [failure for part in parts for failure in part.failures] == []
    figures = {name: value for part in parts for name, value in part.figures}
    assert figures["runs, all equal to the single client's"] == "12 of 12"
    assert figures["sessions restored, each trace as without the kill"] == "2 of 2"
    assert figures["requests sent"] == "60"
    assert figures["5xx"] == figures["hung"] == "0"


def test_the_report_says_what_did_not_hold_and_that_a_run_was_shortened(tmp_path: Path) -> None:
    page = tmp_path / "reliability.md"
    page.write_text(f"# Words before\n{MARKS[0]}\nold figures\n{MARKS[1]}\nwords after\n")
    part = Part("a part", [("5xx", "1")], ["one was met with 500"])
    write_report(page, report([part], "python -m benchmarks.soak", SMALL, "a machine"))
    text = page.read_text()
    assert text.startswith("# Words before\n")
    assert text.endswith("words after\n")
    assert "old figures" not in text
    assert "1 did not hold" in text
    assert "shortened run: clients 4 instead of 50" in text
    assert "DID NOT HOLD: one was met with 500" in in_words(part)
