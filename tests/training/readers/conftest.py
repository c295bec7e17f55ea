"""A reader study of two small radiographs, made through its command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from training.__main__ import main
from training.evaluation.predictions import PredictionWriter
from xflow_core.export.files import write_mask

SIZE = (120, 100)
SYSTEMS = ("xflow", "rosalia")


def write_answers(folder: Path, masks: dict[str, np.ndarray]) -> None:
    with PredictionWriter(folder) as writer:
        for row, mask in masks.items():
            writer.add(row, mask)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Six positive questions about effusion, two of each level; xflow misses the row "missed", one more is negative."""
    rng = np.random.default_rng(3)
    lines, answers = [], {name: {} for name in SYSTEMS}
    places = {"chest": ["chest"], "lung": ["left lung"], "zone": ["left lung base"]}
    kinds = [(level, k) for level in places for k in range(2)]
    for number, (level, k) in enumerate([*kinds, ("chest", "missed"), ("chest", "negative")]):
        identity = f"{level}-{k}"
        Image.fromarray(rng.integers(60, 200, SIZE, dtype=np.uint8)).save(tmp_path / f"{identity}.png")
        mask = np.zeros(SIZE, bool)
        mask[40 + number : 90, 55:80] = True
        negative = k == "negative"
        if not negative:
            write_mask(tmp_path / f"{identity}-truth.png", mask)
        answers["xflow"][identity] = np.roll(mask, 2, axis=0) & (k != "missed")
        answers["rosalia"][identity] = np.roll(mask, 9, axis=1)
        lines.append(
            {
                "id": identity,
                "image": f"{identity}.png",
                "instruction": f"Segment the effusion in the {places[level][0]}.",
                "finding": "effusion",
                "regions": places[level],
                "level": level,
                "mask": None if negative else f"{identity}-truth.png",
                "lungs": None,
                "source": "SECRETHOSPITAL",
            }
        )
    for name in SYSTEMS:
        write_answers(tmp_path / name, answers[name])
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def study(rows: Path, tmp_path: Path) -> Path:
    """The folder of the study: all six cases, three readers."""
    out = tmp_path / "study"
    systems = [word for name in SYSTEMS for word in ("--system", f"{name}={tmp_path / name}")]
    call = ["readers", "prepare", "--set", str(rows), *systems, "--per-cell", "2", "--allow-fewer", "--seed", "1"]
    main([*call, "--out", str(out)])
    return out
