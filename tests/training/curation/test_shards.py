"""Shards: the same bytes whoever makes them, gone on with after a stop, and read by ``datasets``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from brush import Brush
from ray_here import ray_here

from training.__main__ import main
from training.curation import instructions as instructions_stage
from training.curation import trajectories as trajectories_stage
from training.curation.paper import PAPER, RevisionSettings
from training.curation.ray_shards import takes
from training.curation.shards import Row, Span, Stage, Workers, cut, write_shards
from training.curation.sources.problems import Problems
from training.curation.trajectories import Trajectories, pieces_of, write_trajectories
from xflow_core.domain.errors import CallError, EngineError

if TYPE_CHECKING:
    from conftest import Miniature

REVISION = RevisionSettings(clicks=2, guard_px=25, jitter=0.1, starts=2)
SCHEMA = pa.schema([("number", pa.int64())])


# Interpreters and Ray's own processes start slowly on a busy machine.
SLOW = pytest.mark.timeout(900)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def instruct(drawn: Miniature, splits: Path) -> Callable[..., Path]:
    """Runs the stage with shards of forty questions."""

    def run(out: Path, *options: str) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(instructions_stage, "ASKED_TOGETHER", 40)
            main(["instructions", "--data", str(drawn.root), "--splits", str(splits), "--out", str(out), *options])
        return out

    return run


@pytest.fixture(scope="module")
def instructions(instruct: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return instruct(tmp_path_factory.mktemp("instructions") / "made")


@pytest.fixture(scope="module")
def few(instructions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The instructions about six radiographs, in two files."""
    folder, shards = tmp_path_factory.mktemp("few"), []
    rows = [row for path in sorted(instructions.glob("sft-*")) for row in pq.read_table(path).to_pylist()]
    images = sorted({row["image"] for row in rows if row["present"]})[:6]
    rows = [row for row in rows if row["image"] in images]
    schema = pq.read_schema(next(instructions.glob("sft-*"))).remove_metadata()
    for number, held in enumerate((rows[: len(rows) // 2], rows[len(rows) // 2 :])):
        name = f"{'sft' if number == 0 else 'rl'}-00000.parquet"
        pq.write_table(pa.Table.from_pylist(held, schema=schema), folder / name)
        shards.append({"file": name, "rows": len(held)})
    (folder / "manifest.json").write_text(json.dumps({"shards": shards}))
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Ray, whose workers find the tests' parts."""
    paths = [str(Path(__file__).parents[2]), str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        with ray_here():
            yield


# The same bytes ---------------------------------------------------------------------------------------------------


def test_two_processes_write_the_bytes_of_one(
    instruct: Callable[..., Path], instructions: Path, tmp_path: Path
) -> None:
    one, two = contents(instructions), contents(instruct(tmp_path / "made", "--processes", "2"))
    assert two == one
    assert len([name for name in one if name.startswith("sft-")]) > 3
    assert one["problems.jsonl"]


@SLOW
def test_a_cluster_writes_the_bytes_of_one_process(
    cluster: None, instruct: Callable[..., Path], instructions: Path, tmp_path: Path
) -> None:
    assert contents(instruct(tmp_path / "made", "--ray", "local")) == contents(instructions)


@SLOW
def test_trajectories_are_alike_from_one_process_from_two_and_from_a_cluster(
    cluster: None, drawn: Miniature, few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trajectories_stage, "_RADIOGRAPHS_EACH", 2)
    make, made = partial(Trajectories, drawn.sources, Brush(), REVISION, 0), []
    for name, workers in (("one", Workers()), ("two", Workers(2)), ("cluster", Workers(1, "local"))):
        problems = Problems()
        report = write_trajectories(few, tmp_path / name, make, "key", problems, workers)
        made.append((report, problems.counts, contents(tmp_path / name)))
    assert made[0] == made[1] == made[2]
    assert len(made[0][0]["shards"]) > 3 and made[0][0]["counts"]["rl"]["rows"] > 0


@SLOW
def test_a_bundles_segmenter_is_loaded_where_the_shards_are_made(drawn: Miniature, few: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(PAPER.read_text().replace("clicks: 4", "clicks: 1").replace("starts: 20", "starts: 2"))
    for name, processes in (("one", "1"), ("two", "2")):
        main([
            "trajectories", "--data", str(drawn.root), "--instructions", str(few), "--out", str(tmp_path / name),
            "--processes", processes, "--device", "cpu", "--config", str(config),
        ])  # fmt: skip
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    assert manifest["segmenter"]["name"] == "compact" and manifest["counts"]["sft"]["rows"] > 0
    assert "(the paper: 469,011)" in (tmp_path / "one" / "report.txt").read_text()


# Going on ---------------------------------------------------------------------------------------------------------


class Doubling:
    """Doubles a number; odd ones are dropped, and named."""

    def __init__(self, made: Path, problems: Problems) -> None:
        self._made, self._problems = made, problems

    def rows(self, split: str, drafts: Iterator[Row]) -> Iterator[Row | str]:
        for draft in drafts:
            with open(self._made, "a") as file:
                file.write(f"{draft['number']}\n")
            if draft["number"] == 13:
                raise EngineError("13 cannot be made.")
            if draft["number"] % 2:
                self._problems.add("mask_empty", "numbers", str(draft["number"]))
                yield "odd"
            else:
                yield {"number": draft["number"] * 2}


def numbers(path: Path, count: int) -> Path:
    pq.write_table(pa.table({"number": list(range(count))}, schema=SCHEMA), path, row_group_size=3)
    return path


def test_a_stopped_run_makes_only_what_is_missing_and_names_all_problems(tmp_path: Path) -> None:
    made = tmp_path / "made.txt"
    stage = Stage(tmp_path / "out", SCHEMA, partial(Doubling, made), "key")
    pieces = {"sft": cut("sft", [numbers(tmp_path / "numbers.parquet", 20)], 5)}
    with pytest.raises(EngineError, match="13 cannot"):
        write_shards(stage, pieces, Problems())
    assert sorted(path.name for path in stage.folder.glob("*")) == [
        "problems",
        "sft-00000.parquet",
        "sft-00001.parquet",
    ]
    made.unlink()
    pieces = {"sft": cut("sft", [numbers(tmp_path / "numbers.parquet", 13)], 5)}
    problems = Problems()
    counts, shards = write_shards(stage, pieces, problems)
    assert made.read_text().split() == ["10", "11", "12"]
    assert counts == {"sft": {"dropped: odd": 6, "rows": 7}} and problems.counts == {"mask_empty": 6}
    rows = [row["number"] for shard in shards for row in pq.read_table(stage.folder / shard["file"]).to_pylist()]
    assert rows == [0, 4, 8, 12, 16, 20, 24]


def test_shards_of_another_run_are_refused_before_any_is_made(tmp_path: Path) -> None:
    made = tmp_path / "made.txt"
    pieces = {"sft": cut("sft", [numbers(tmp_path / "numbers.parquet", 8)], 4)}
    write_shards(Stage(tmp_path / "out", SCHEMA, partial(Doubling, made), "key"), pieces, Problems())
    (tmp_path / "out" / "sft-00000.parquet").unlink()
    made.unlink()
    with pytest.raises(CallError, match=r"sft-00001\.parquet is of another run"):
        write_shards(Stage(tmp_path / "out", SCHEMA, partial(Doubling, made), "other"), pieces, Problems())
    assert not made.exists()


def test_a_span_is_read_across_row_groups(tmp_path: Path) -> None:
    path = numbers(tmp_path / "numbers.parquet", 10)
    for start in range(10):
        for stop in range(start, 11):
            assert [row["number"] for row in Span(path, start, stop).rows()] == list(range(start, stop))
    with pytest.raises(CallError, match=r"none\.parquet cannot be read"):
        list(Span(tmp_path / "none.parquet", 0, 1).rows())


def test_what_is_asked_of_one_radiograph_stays_in_one_shard(tmp_path: Path) -> None:
    schema = pa.schema([("image", pa.string()), ("present", pa.bool_())])
    asked = [("a", True), ("a", False), ("b", False), ("c", True), ("c", True)], [("c", True), ("d", True), ("e", True)]
    paths = []
    for number, rows in enumerate(asked):
        paths.append(tmp_path / f"sft-{number:05d}.parquet")
        pq.write_table(pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows]), paths[-1])
    pieces = pieces_of("sft", paths, each=2)
    held = [[row["image"] for row in piece.drafts() if row["present"]] for piece in pieces]
    assert held == [["a", "c", "c", "c"], ["d", "e"]]
    assert [piece.name for piece in pieces] == ["sft-00000", "sft-00001"]
    assert pieces_of("rl", [], each=2) == []


def test_an_error_in_a_process_is_told_as_in_this_one(
    instruct: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, said = tmp_path / "config.yaml", []
    text = PAPER.read_text().replace("source: chexmask", "source: bundle").replace("bundle: compact", "bundle: none")
    config.write_text(text)
    for processes in ("1", "2"):
        with pytest.raises(SystemExit) as ended:
            instruct(tmp_path / processes, "--processes", processes, "--config", str(config))
        said.append((ended.value.code, capsys.readouterr().err))
    assert said[0] == said[1] and said[0][0] == 2 and "none" in said[0][1]


def test_actors_take_gpus_where_models_run_and_there_are_some() -> None:
    assert takes({"CPU": 8.0, "GPU": 2.0}, gpu=True) == ("GPU", 2)
    assert takes({"CPU": 8.0, "GPU": 2.0}, gpu=False) == ("CPU", 8)
    assert takes({"CPU": 8.0}, gpu=True) == ("CPU", 8)


# Readers of the shards --------------------------------------------------------------------------------------------


def test_datasets_reads_the_shards(
    drawn: Miniature, instructions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("HF_HUB_OFFLINE", "1"), ("HF_DATASETS_CACHE", str(tmp_path / "cache"))):
        monkeypatch.setenv(name, value)
    from datasets import load_dataset

    files = {split: [str(path) for path in sorted(instructions.glob(f"{split}-*"))] for split in ("sft", "rl")}
    loaded = load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))
    manifest = json.loads((instructions / "manifest.json").read_text())
    for split in ("sft", "rl"):
        rows = [row for path in files[split] for row in pq.read_table(path).to_pylist()]
        assert loaded[split].num_rows == len(rows) == manifest["counts"][split]["rows"]
        for read, row in zip(loaded[split], rows, strict=True):
            assert read == row
    row: dict[str, Any] = next(row for row in loaded["sft"] if row["present"] and len(row["verdicts"]) == 2)
    assert [lung["label"] for lung in row["lungs"]] == ["right lung", "left lung"]
    assert all(len(lung["box"]) == 4 for lung in row["lungs"]) and len(row["boxes"][0]) == 4
    from PIL import Image

    for row in loaded["sft"].select(range(20)):
        if row["present"]:  # its mask was read, so the radiograph is there
            assert Image.open(drawn.sources.images / row["image"]).size[0] > 0
            assert (drawn.sources.mimic_ils / row["mask"]).is_file()
