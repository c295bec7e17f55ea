"""Two miniatures, made once: a drawn one in which everything is flawed, and one of annotations alone; and what the
stages make of the drawn one."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from brush import Brush

from training.__main__ import main
from training.curation.miniature import write_miniature
from training.curation.paper import read_settings
from training.curation.sources.layout import Sources
from training.curation.sources.problems import Problems
from training.curation.synthetic.study import Plan
from training.curation.trajectories import Trajectories, write_trajectories


@dataclass(frozen=True)
class Miniature:
    """A miniature on disk and what is true of it."""

    root: Path
    plan: Plan

    @property
    def sources(self) -> Sources:
        return Sources().under(self.root)

    @property
    def studies(self) -> list[dict[str, Any]]:
        return _lines(self.root / "truth" / "studies.jsonl")

    @property
    def flaws(self) -> list[dict[str, Any]]:
        return _lines(self.root / "truth" / "flaws.jsonl")


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Miniature:
    """64 studies with pictures; every study outside CheXpercept has a dirty record."""
    plan = Plan(64, seed=3, images=True, side=128, flawed=1.0)
    root = tmp_path_factory.mktemp("drawn") / "sets"
    write_miniature(plan, root)
    return Miniature(root, plan)


@pytest.fixture(scope="session")
def annotated(tmp_path_factory: pytest.TempPathFactory) -> Miniature:
    """700 studies without pictures; two hundred or so reviewed, a fifth of which have a flaw."""
    plan = Plan(700, seed=5, images=False, side=96, flawed=0.2)
    root = tmp_path_factory.mktemp("annotated") / "sets"
    write_miniature(plan, root)
    return Miniature(root, plan)


@pytest.fixture(scope="session")
def splits(drawn: Miniature, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("splits") / "splits"
    main(["splits", "--data", str(drawn.root), "--out", str(out)])
    return out


@pytest.fixture(scope="session")
def instructions(drawn: Miniature, splits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("instructions") / "instructions"
    main(["instructions", "--data", str(drawn.root), "--splits", str(splits), "--out", str(out)])
    return out


@dataclass(frozen=True)
class Revised:
    """The trajectories with a segmenter of a few lines, and what that was asked."""

    folder: Path
    report: dict[str, Any]
    brush: Brush
    starts: int


@pytest.fixture(scope="session")
def revised(drawn: Miniature, instructions: Path, tmp_path_factory: pytest.TempPathFactory) -> Revised:
    out, brush = tmp_path_factory.mktemp("trajectories"), Brush()
    revision = replace(read_settings().revision, starts=3)
    make = partial(Trajectories, drawn.sources, brush, revision, 0)
    report = write_trajectories(instructions, out, make, "key", Problems())
    return Revised(out, report, brush, revision.starts)
