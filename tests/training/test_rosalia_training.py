"""ROSALIA's training layout holds exactly the studies of D_SFT and D_RL, as MIMIC-ILS has them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.__main__ import main

RECORD = {"image_path": "p10/x.jpg", "instruction_answer_pairs": {"positive_pairs": [], "negative_pairs": []}}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "mimic-cxr-ext-ils" / "1.0.0"
    folder.mkdir(parents=True)
    train = {f"s{k}": {**RECORD, "k": k} for k in range(4)}
    (folder / "mimic_ils_instruction_answer.json").write_text(
        json.dumps({"train": train, "val": {"s4": RECORD}, "test": {"s5": RECORD}})
    )
    return tmp_path / "data"


def splits(tmp_path: Path, of: dict[str, str]) -> Path:
    folder = tmp_path / "splits"
    folder.mkdir()
    table = pa.Table.from_pylist([{"study": study, "split": split} for study, split in of.items()])
    pq.write_table(table, folder / "radiographs.parquet")
    return folder


SPLITS = {"s0": "sft", "s1": "rl", "s2": "eval", "s4": "sft_val"}


def test_evaluation_and_test_studies_are_not_in_it(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    folder = splits(tmp_path, SPLITS)
    main(["baselines", "rosalia-training", "--data", str(data), "--splits", str(folder), "--out", str(out)])
    made = json.loads((out / "mimic_ils_instruction_answer.json").read_text())
    assert {split: set(studies) for split, studies in made.items()} == {
        "train": {"s0", "s1"},
        "val": {"s4"},
        "test": set(),
    }
    assert made["train"]["s1"] == {**RECORD, "k": 1}
    script = (out / "train.sh").read_text()
    assert str(out / "mimic_ils_instruction_answer.json") in script and "--debug" not in script
    subprocess.run(["sh", "-n", str(out / "train.sh")], check=True)


def test_a_study_that_mimic_ils_lacks_is_an_error(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = splits(tmp_path, {**SPLITS, "s9": "rl"}), tmp_path / "out"
    with pytest.raises(SystemExit):
        main(["baselines", "rosalia-training", "--data", str(data), "--splits", str(folder), "--out", str(out)])
    assert "lacks 1 studies" in capsys.readouterr().err
    assert not (out / "mimic_ils_instruction_answer.json").exists()
