"""The segmenter's training as it is run: examples, batches, stopping and going on, what it refuses, what it leaves."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_gemma import write_tiny_adapter, write_tiny_gemma
from tiny_sam3 import SIDE
from torch import Tensor
from transformers import TrainerCallback

from training.__main__ import main
from training.curation.components import components_of, on_the_side
from training.curation.paper import PAPER, Settings
from training.curation.sources.masks import read_mask
from training.curation.sources.problems import Problems
from training.policies.settings import accumulation
from training.segmenter.examples import Examples, marked_radiographs
from training.segmenter.measure import gains
from training.segmenter.trainer import RunSettings, SegmenterTrainer, train_segmenter
from training.trainers import last_checkpoint
from xflow_core.bundles.foundation_backend import quiet_transformers
from xflow_core.bundles.loading import load_engine
from xflow_core.bundles.make import FoundationParts, ModelSource, make_bundle
from xflow_core.cli.app import main as xflow
from xflow_core.domain.errors import CallError, EngineError
from xflow_core.domain.geometry import Box
from xflow_core.export.files import read_trace
from xflow_core.segmenters.protocol import Prompt
from xflow_core.segmenters.sam3 import Sam3Segmenter, load_tracker

if TYPE_CHECKING:
    from conftest import Sets

RECIPE = "mimic-cxr-jpg"


def train(
    base: Path,
    examples: Examples,
    settings: Settings,
    out: Path,
    *callbacks: TrainerCallback,
    resume: bool = False,
    validation: Examples | None = None,
    **run: Any,
) -> SegmenterTrainer:
    given: dict[str, Any] = {"per_device": 2, "steps": 4, "save_every": 2, "log_every": 1, "check": 0, **run}
    with quiet_transformers():
        return train_segmenter(
            load_tracker(base, side=SIDE),
            examples,
            validation,
            settings.segmenter,
            replace(settings.revision, clicks=1),
            RunSettings(out, **given),
            recipe=RECIPE,
            callbacks=callbacks,
            resume=resume,
        )


def weights(out: Path) -> dict[str, Tensor]:
    return load_file(out / "model.safetensors")


def at_first(base: Path) -> dict[str, Tensor]:
    """The base's weights, under the tracker's own names."""
    with quiet_transformers():
        return dict(load_tracker(base, side=SIDE).state_dict())


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> set[str]:
    assert one.keys() == other.keys()
    return {name for name in one if not torch.equal(one[name], other[name])}


class At(TrainerCallback):  # type: ignore[misc]
    """Does something at the end of a step."""

    def __init__(self, step: int, act: Any) -> None:
        self._step, self._act = step, act

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step == self._step:
            self._act(control, model)


def stop_at(step: int) -> At:
    return At(step, lambda control, _: setattr(control, "should_training_stop", True))


# Examples.


def test_every_radiograph_stands_once_with_every_component_that_is_asked_for(sets: Sets) -> None:
    rows = [row for path in sets.rows.glob("sft-*.parquet") for row in pq.read_table(path).to_pylist()]
    positive = [row for row in rows if row["present"]]
    marked = marked_radiographs(sets.rows, "sft")
    assert [each.image for each in marked] == list(dict.fromkeys(row["image"] for row in positive))
    examples = Examples(marked[:8], sets.sources, RECIPE, SIDE)
    for number, each in enumerate(examples.marked):
        size = examples.read(number).radiograph.size
        held = {component.mask.tobytes() for component in examples[number].components}
        asked = set()
        for row in positive:
            if row["image"] == each.image:
                mask = read_mask(sets.sources.mimic_ils / row["mask"], size, Problems())
                assert mask is not None
                lungs = {lung["label"]: Box(*lung["box"]) for lung in row["lungs"]}
                asked |= {piece.tobytes() for piece in components_of(on_the_side(mask, row["regions"], lungs))}
        assert held == asked
        assert len(held) == len(examples[number].components)


def test_a_large_radiograph_is_reduced_for_the_oracle(sets: Sets, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = sets.examples(1)
    height, width = examples.read(0).radiograph.size
    assert {component.mask.shape for component in examples[0].components} == {(height, width)}
    monkeypatch.setattr("training.segmenter.examples.FRAME", 48)
    small = sets.examples(1)[0]
    assert small.picture.shape == (SIDE, SIDE)
    assert {max(component.mask.shape) for component in small.components} == {48}


def test_an_example_is_read_once_while_there_is_room(sets: Sets, monkeypatch: pytest.MonkeyPatch) -> None:
    one = sets.examples(1)[0]
    held = one.picture.nbytes + sum(component.mask.nbytes for component in one.components)
    monkeypatch.setattr("training.segmenter.examples.KEPT_BYTES", held)
    examples = sets.examples(2)
    assert examples[0] is examples[0]
    assert examples[1] is not examples[1]
    assert torch.equal(examples[0].picture, one.picture)


def test_rows_that_are_not_there_or_have_no_mask_are_refused(sets: Sets, tmp_path: Path) -> None:
    with pytest.raises(CallError, match="no finished rows"):
        marked_radiographs(tmp_path, "sft")
    table = pq.read_table(sets.rows / "sft-00000.parquet")
    masks = table.schema.get_field_index("mask")
    bare = table.set_column(masks, table.field(masks), pa.nulls(len(table), pa.string()))
    pq.write_table(bare, tmp_path / "sft-00000.parquet")
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(CallError, match="without a mask"):
        marked_radiographs(tmp_path, "sft")


# Batches.


def test_the_effective_batch_is_table_7s_on_any_number_of_gpus(paper: Settings) -> None:
    batch = paper.segmenter.batch
    assert batch == 16
    assert [accumulation(batch, devices, 2) for devices in (1, 2, 4, 8)] == [8, 4, 2, 1]
    assert accumulation(batch, devices=16, per_device=1) == 1  # two nodes
    with pytest.raises(CallError, match="multiple"):
        accumulation(batch, devices=8, per_device=4)


def test_a_batch_taken_in_parts_teaches_the_same(base: Path, sets: Sets, settings: Settings, tmp_path: Path) -> None:
    examples = sets.examples(8)
    settings = replace(settings, segmenter=replace(settings.segmenter, batch=4))
    for per_device in (4, 1):
        train(base, examples, settings, tmp_path / str(per_device), per_device=per_device, steps=2)
    start, whole, parts = at_first(base), weights(tmp_path / "4"), weights(tmp_path / "1")
    moved = max(float((whole[name] - start[name]).abs().max()) for name in whole)
    apart = max(float((whole[name] - parts[name]).abs().max()) for name in whole)
    assert moved > 1e-3
    assert apart < 0.1 * moved


def test_two_processes_teach_what_one_does(base: Path, sets: Sets, settings: Settings, tmp_path: Path) -> None:
    config = configuration(tmp_path, batch=4)
    common = [
        "train-segmenter", "--data", sets.data, "--rows", sets.rows, "--base", base, "--config", config, "--steps", 2,
        "--check", 0, "--per-device", 2,
    ]  # fmt: skip
    main([str(word) for word in [*common, "--out", tmp_path / "one"]])
    # On a CPU accelerate's own launcher starts several processes only by MPI.
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "training"]
    ended = subprocess.run(
        [*launch, *map(str, common), "--out", str(tmp_path / "two")], capture_output=True, text=True, timeout=280
    )
    assert ended.returncode == 0, ended.stderr[-9000:]
    start, one, two = at_first(base), weights(tmp_path / "one"), weights(tmp_path / "two")
    moved = max(float((one[name] - start[name]).abs().max()) for name in one)
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 0.1 * moved


def test_processes_that_find_problems_in_one_folder_do_not_take_each_others_file(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    with Problems(path) as one, Problems(path) as other:
        one.add("image_missing", "a.jpg", "1")
        other.add("image_missing", "a.jpg", "1")
    assert len(path.read_text().splitlines()) == 1 and not list(tmp_path.glob(".*"))


# Stopping and going on.


@pytest.mark.parametrize("newest", ["checkpoint-3", "checkpoint-1"])
def test_a_run_goes_on_from_any_checkpoint_to_the_same_bits(
    newest: str, base: Path, sets: Sets, settings: Settings, tmp_path: Path
) -> None:
    examples = sets.examples(6)  # three steps an epoch
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    train(base, examples, settings, whole, steps=5, save_every=1)
    train(base, examples, settings, parted, stop_at(3), steps=5, save_every=1)
    for checkpoint in parted.glob("checkpoint-*"):
        if checkpoint.name > newest:
            shutil.rmtree(checkpoint)
    (parted / "model.safetensors").unlink()
    (parted / "checkpoint-9").mkdir()  # the machine was taken away while it was being written
    found = last_checkpoint(parted)
    assert found is not None and found.name == newest
    train(base, examples, settings, parted, resume=True, steps=5, save_every=1)
    assert not differing(weights(whole), weights(parted))


def test_the_seed_decides_everything(base: Path, sets: Sets, settings: Settings, tmp_path: Path) -> None:
    examples = sets.examples(6)
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        train(base, examples, settings, tmp_path / name, seed=seed, steps=2)
    assert not differing(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert differing(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_another_runs_checkpoints_are_not_written_over(
    base: Path, sets: Sets, settings: Settings, tmp_path: Path
) -> None:
    train(base, sets.examples(2), settings, tmp_path, steps=1, save_every=1)
    with pytest.raises(CallError, match="--resume"):
        train(base, sets.examples(2), settings, tmp_path, steps=1)
    anew = tmp_path / "anew"
    train(base, sets.examples(2), settings, anew, steps=1, resume=True)  # nothing there yet: from the beginning
    assert (anew / "training.json").exists()


# What stops a run.


def poison(_: Any, model: Any) -> None:
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))


def test_a_loss_that_is_no_number_stops_it_and_the_good_checkpoint_stays(
    base: Path, sets: Sets, settings: Settings, tmp_path: Path
) -> None:
    class Poison(TrainerCallback):  # type: ignore[misc]
        def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            poison(control, model)

    with pytest.raises(EngineError, match=r"step 2: its loss is nan") as stopped:
        train(base, sets.examples(6), settings, tmp_path, Poison())
    assert "checkpoints" in str(stopped.value)
    assert not (tmp_path / "model.safetensors").exists()
    assert not (tmp_path / "training.json").exists()
    kept = load_file(tmp_path / "checkpoint-2" / "model.safetensors")
    assert all(torch.isfinite(value).all() for value in kept.values())
    train(base, sets.examples(6), settings, tmp_path, resume=True)
    assert (tmp_path / "training.json").exists()


def test_a_gradient_that_is_no_number_stops_it_before_the_weights_move(
    base: Path, sets: Sets, settings: Settings, tmp_path: Path
) -> None:
    seen: list[Any] = []

    def spoil(_: Any, model: Any) -> None:
        seen.append(model)
        parameter = model.tracker.no_memory_embedding
        parameter.register_hook(lambda gradient: gradient * float("nan"))

    with pytest.raises(EngineError, match=r"step 1: its gradient's norm is nan"):
        train(base, sets.examples(6), settings, tmp_path, At(1, spoil), save_every=1)
    assert all(torch.isfinite(value).all() for value in seen[0].state_dict().values())
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-1"


def test_memory_that_does_not_suffice_is_said(
    base: Path, sets: Sets, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scarce(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("training.segmenter.network.encode", scarce)
    with pytest.raises(EngineError, match="memory of the GPU does not suffice for 2"):
        train(base, sets.examples(2), settings, tmp_path, steps=1)


def test_an_empty_split_is_refused(base: Path, sets: Sets, settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(CallError, match="no radiographs"):
        train(base, sets.examples(0), settings, tmp_path)


# What it leaves.


def configuration(folder: Path, **segmenter: Any) -> Path:
    """The paper's configuration with a tiny model's side and other numbers."""
    data = yaml.safe_load(PAPER.read_text())
    data["segmenter"] |= {"side": SIDE, "rate": 1e-3, "batch": 2, **segmenter}
    data["revision"]["clicks"] = 1
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.fixture(scope="module")
def trained(base: Path, sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``train-segmenter`` leaves, called as a user calls it."""
    folder = tmp_path_factory.mktemp("trained")
    rows = folder / "rows"
    shutil.copytree(sets.rows, rows)
    # The miniature is too small for a validation split of its own.
    shutil.copyfile(rows / "sft-00000.parquet", rows / "sft_val-00000.parquet")
    arguments = [
        "train-segmenter", "--data", sets.data, "--rows", rows, "--base", base, "--out", folder / "out",
        "--config", configuration(folder), "--per-device", 2, "--steps", 2, "--save-every", 2, "--check", 3,
        "--log-every", 1, "--tensorboard",
    ]  # fmt: skip
    main([str(word) for word in arguments])
    return folder / "out"


def test_it_leaves_a_segmenter_that_makes_a_bundle_that_runs(
    trained: Path, base: Path, sets: Sets, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert differing(at_first(base), weights(trained))
    with quiet_transformers():
        language = write_tiny_gemma(tmp_path / "language")
        adapters = [
            write_tiny_adapter(tmp_path / role, language, seed) for seed, role in ((1, "init"), (2, "revision"))
        ]
        parts = FoundationParts(
            ModelSource(language, "google/medgemma-1.5-4b-it@0"),
            ModelSource(trained, "xflow-segmenter@1"),
            *(ModelSource(adapter, f"xflow-{adapter.name}@1") for adapter in adapters),
            side=SIDE,
        )
        bundle = make_bundle(tmp_path / "bundle", "tiny", parts)
    assert set(bundle.bases["segmenter"].files) == {"config.json", "model.safetensors", "training.json"}
    examples = sets.examples(1)
    image = sets.sources.images / examples.marked[0].image
    words = ["segment", image, "-i", "Segment the edema", "-o", tmp_path / "out", "--bundle", bundle.folder]
    with pytest.raises(SystemExit) as ended:
        xflow([str(word) for word in words])
    assert not ended.value.code, capsys.readouterr().err
    trace = read_trace(next((tmp_path / "out").glob("*/edema/trace.json")))
    assert trace.bundle.sha256 == bundle.sha256
    # Whether the untrained policies ask it for a mask is chance; what it would answer is not.
    prompt = Prompt(Box(0.1, 0.2, 0.7, 0.9))
    own = Sam3Segmenter.load(trained, side=SIDE, recipe=RECIPE)
    engine = load_engine(str(bundle.folder), "cpu")
    used, alone = (each.segment(examples.read(0), [prompt])[0] for each in (engine.segmenter, own))
    assert np.array_equal(used.mask, alone.mask)
    assert used.predicted_iou == alone.predicted_iou


def test_it_says_what_it_was_made_with_and_how_it_did(trained: Path) -> None:
    report = json.loads((trained / "training.json").read_text())
    assert report["settings"]["side"] == SIDE
    assert report["steps"] == 2
    assert "not for clinical use" in report["notice"].lower()
    (checked,) = report["validation_iou"]
    assert checked["step"] == 2
    assert len(checked["iou"]) == 2
    assert all(0 <= iou <= 1 for iou in checked["iou"])


def test_tensorboard_holds_losses_ious_and_trajectories(trained: Path) -> None:
    (folder,) = (trained / "runs").iterdir()
    events = EventAccumulator(str(folder), size_guidance={"images": 0})
    events.Reload()
    scalars = set(events.Tags()["scalars"])
    wanted = {
        "loss", "grad_norm", "focal", "dice", "iou_error", "iou/0", "iou/1", "radiographs_per_second",
        "share_outside_network",
    }  # fmt: skip
    assert {f"train/{name}" for name in wanted} | {"eval/iou/0", "eval/iou/1"} <= scalars
    (picture,) = events.Images("trajectories")
    assert picture.height > 300 and picture.width > 300
    assert 0 <= events.Scalars("train/share_outside_network")[-1].value < 1


def test_it_is_measured_on_a_split_like_a_bundles_segmenter(trained: Path, sets: Sets, tmp_path: Path) -> None:
    arguments = [
        "measure-segmenter", "--data", sets.data, "--rows", sets.rows, "--segmenter", trained, "--side", SIDE,
        "--split", "sft", "--limit", 3, "--out", tmp_path / "measured", "--threads", 1,
    ]  # fmt: skip
    main([str(word) for word in arguments])
    report = json.loads((tmp_path / "measured" / "metrics.json").read_text())
    assert len(report["iou"]) == 5
    assert report["images"] <= 3 <= report["n"]
    mean, error = report["gains"]["first_click"]
    assert mean == pytest.approx(report["iou"][1] - report["iou"][0], abs=1e-4)
    assert error > 0
    lines = (tmp_path / "measured" / "per_row.csv").read_text().splitlines()
    assert len(lines) == report["n"] + 1


def test_components_of_one_radiograph_count_as_one_draw() -> None:
    from training.evaluation.evaluate_prompts import Prompted

    def row(image: str, gain: float) -> Prompted:
        return Prompted(image, ("edema",), Box(0, 0, 1, 1), 1, 0.5, (0.5, 0.5 + gain, 0.5, 0.5, 0.5 + gain), (0.0,))

    rng = np.random.default_rng(0)
    values = rng.normal(0.1, 0.05, 50)
    single = gains([row(str(k), value) for k, value in enumerate(values)])["first_click"]
    double = gains([row(str(k), value) for k, value in enumerate(values) for _ in range(4)])["first_click"]
    assert single == double
    assert single == pytest.approx([values.mean(), values.std(ddof=1) / 50**0.5], abs=1e-4)


def test_it_learns_what_it_is_shown(base: Path, sets: Sets, settings: Settings, tmp_path: Path) -> None:
    """Two radiographs again and again: the loss falls by more than half its noise-free start."""
    settings = replace(settings, segmenter=replace(settings.segmenter, rate=3e-3, encoder_rate=1.0, clip=1.0))
    examples = sets.examples(2)
    trainer = train(base, examples, settings, tmp_path, steps=30, save_every=100)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
