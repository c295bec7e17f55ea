"""A small miniature with the rows of ``training instructions``, and a configuration for a tiny SAM3."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tiny_sam3 import SIDE, write_tiny_sam3

from training.__main__ import main
from training.curation.paper import Settings, read_settings
from training.curation.sources.layout import Sources
from training.curation.sources.problems import Problems
from training.segmenter.examples import Examples, marked_radiographs, whole

RECIPE = "mimic-cxr-jpg"


@dataclass(frozen=True)
class Sets:
    """The miniature's folder, and the folder of its rows."""

    data: Path
    rows: Path

    @property
    def sources(self) -> Sources:
        return Sources().under(self.data)

    def examples(self, count: int | None = None, split: str = "sft") -> Examples:
        kept = whole(marked_radiographs(self.rows, split), self.sources, Problems())
        return Examples(kept[:count], self.sources, RECIPE, SIDE)


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    folder = tmp_path_factory.mktemp("segmenter-sets")
    data, splits, rows = folder / "sets", folder / "splits", folder / "rows"
    main(["miniature", "--studies", "60", "--side", "96", "--seed", "5", "--flawed", "0.3", "--out", str(data)])
    main(["splits", "--data", str(data), "--out", str(splits)])
    main(["instructions", "--data", str(data), "--splits", str(splits), "--out", str(rows)])
    return Sets(data, rows)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_sam3(tmp_path_factory.mktemp("tiny-sam3"))


@pytest.fixture(scope="session")
def paper() -> Settings:
    return read_settings()


@pytest.fixture(scope="session")
def settings(paper: Settings) -> Settings:
    """The paper's, with the tiny model's side and small batches."""
    segmenter = replace(paper.segmenter, side=SIDE, rate=1e-3, batch=2, epochs=1, components=2)
    return replace(paper, segmenter=segmenter)
