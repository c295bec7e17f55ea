"""The miniature's policies still learn: in minutes, each stage from a small checkpoint of the stage before it.

What moves is held against its own noise, over fixed seeds: a stage that has stopped learning fails here. How far each
comes in an hour, `make reproduce-mini` shows (docs/reproduction.md).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset
from safetensors.torch import load_file

from tests.training.reproduction.checkpoints import GRID, LORA, write_new_adapter, write_policy, write_segmenter
from training.__main__ import main
from training.compact.prompts import jittered
from training.curation.division import EVAL, RL, SFT
from training.curation.oracle import oracle_click
from training.curation.paper import read_settings
from training.curation.sources.layout import Sources
from training.curation.sources.problems import Problems
from training.curation.trajectories import Trajectories
from training.mini.gemma import write_mini_gemma
from training.policies.dense import InitDense, RevisionDense
from training.policies.dialogues import Radiographs, Tokens, init_dialogue, revision_dialogue
from training.policies.episodes import InitEpisodes, RevisionEpisodes
from training.policies.from_scratch import FromScratchLoss
from training.policies.grpo import grpo_trainer, train_grpo
from training.policies.measure import Player, measure_init
from training.policies.models import load_to_train
from training.policies.rewards import box_reward, gain_reward, repetition_reward
from training.policies.settings import FromScratch, LoraSettings
from training.policies.sft import RunSettings, teachable, train_sft
from training.policies.targets import InitTarget
from training.policies.train import rows_of
from training.run import MINI
from xflow_core.domain import rle
from xflow_core.domain.geometry import Box
from xflow_core.domain.trace import Click, Verdict
from xflow_core.policies.transcript import Answer
from xflow_core.segmenters.protocol import Prediction, Prompt
from xflow_core.segmenters.sam3 import Sam3Segmenter

SETTINGS = read_settings(MINI)
POLICIES = SETTINGS.policies
RECIPE = "mimic-cxr-jpg"


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty-eight drawn chests, curated by the same commands as the real sets."""
    root = tmp_path_factory.mktemp("mini")
    findings = [word for name in ("opacity", "effusion", "cardiomegaly") for word in ("--finding", name)]
    config = ["--config", str(MINI)]
    data = ["--data", str(root / "sets")]
    main(
        ["miniature", "--studies", "80", "--side", "96", "--reviewed", "0.6", "--flawed", "0", "--seed", "77",
         *findings, "--out", str(root / "sets")]
    )  # fmt: skip
    main(["splits", *data, "--out", str(root / "splits"), *config])
    main(
        ["instructions", *data, "--splits", str(root / "splits"), "--out", str(root / "rows"), "--evaluation", *config]
    )
    return root


def images(sets: Path) -> Sources:
    return SETTINGS.sources.under(sets / "sets")


def parts(base: Path, sets: Path, start: Path | None, lora: LoraSettings, *, tower: bool) -> tuple[Any, ...]:
    torch.manual_seed(0)
    model, gemma = load_to_train(base, start, lora, tower=tower)
    radiographs = Radiographs(images(sets).images, RECIPE, gemma.picture_side, GRID)
    return model, gemma, Tokens(gemma), radiographs


def fell(values: Sequence[float], ends: int = 5) -> None:
    """The last values lie below the first ones by more than twice the noise of their means."""
    first, last = np.array(values[:ends]), np.array(values[-ends:])
    noise = np.sqrt((first.var(ddof=1) + last.var(ddof=1)) / ends)
    assert first.mean() - last.mean() > 2 * noise, f"from {first.mean():.3f} to {last.mean():.3f}, noise {noise:.3f}"


def logged(trainer: Any, name: str) -> list[float]:
    return [float(entry[name]) for entry in trainer.state.log_history if name in entry]


# pi_init -----------------------------------------------------------------------------------------------------------


def test_sft_teaches_a_fresh_base_to_see_and_to_answer(sets: Path, tmp_path: Path) -> None:
    base = write_mini_gemma(tmp_path / "base", grid=GRID)
    model, gemma, tokens, radiographs = parts(base, sets, None, POLICIES.lora, tower=True)
    rows = teachable(rows_of(sets / "rows", SFT))
    helps = replace(POLICIES.init_sft.from_scratch, dense_steps=20)
    dense = InitDense(rows, images(sets).mimic_ils, radiographs, 12)
    settings = replace(POLICIES.init_sft, batch=16, warmup=5, from_scratch=helps)
    run = RunSettings(tmp_path / "out", per_device=16, steps=50, log_every=1)
    trainer = train_sft(
        model, tokens, rows, init_dialogue, radiographs, settings, run,
        processor=gemma.processor, from_scratch=FromScratchLoss(gemma, tokens, helps, dense, GRID),
    )  # fmt: skip
    fell(logged(trainer, "loss/patches"))
    fell(logged(trainer, "loss/answer")[20:])


def test_the_trained_policy_reads_its_answers_off_the_picture(sets: Path, tmp_path: Path) -> None:
    base = write_policy(tmp_path / "base", "init")
    adapter = write_new_adapter(tmp_path / "adapter", base)
    _, gemma, tokens, radiographs = parts(base, sets, adapter, LORA, tower=False)
    rows = [dict(row) for row in teachable(rows_of(sets / "rows", EVAL))][:80]
    found, _ = measure_init(rows, InitEpisodes(radiographs, tokens, 120), Player(gemma, tokens, 40, 0))
    greedy, shuffled = found["greedy"]["all"], found["shuffled"]["all"]
    assert greedy["format"][0] >= 0.95 and greedy["lung_iou"][0] >= 0.8
    assert greedy["lung_iou"][0] - shuffled["lung_iou"][0] > 0.05
    assert greedy["f1"] - shuffled["f1"] > 0.1 and greedy["box_iou"][0] > 1.5 * shuffled["box_iou"][0]


def test_grpo_raises_pi_inits_reward(sets: Path, tmp_path: Path) -> None:
    base = write_policy(tmp_path / "base", "init")
    adapter = write_new_adapter(tmp_path / "adapter", base)
    model, gemma, tokens, radiographs = parts(base, sets, adapter, LORA, tower=False)
    rows = [dict(row) for row in teachable(rows_of(sets / "rows", RL)) if row["present"] and row["level"] == "chest"]
    (asked,) = [row for row in rows if row["finding"] == "effusion"][:1]
    episodes = InitEpisodes(radiographs, tokens, answer_tokens=80)
    before = paid(gemma, tokens, episodes, asked, 256)
    settings = replace(POLICIES.init_rl, batch=32, rate=2e-3, warmup=0)
    run = RunSettings(tmp_path / "out", per_device=32, steps=30, log_every=1)
    trainer = grpo_trainer(model, gemma, tokens, episodes, Dataset.from_list([asked] * 150), settings, run)
    train_grpo(trainer, run)
    rose(before, paid(gemma, tokens, episodes, asked, 256))


def test_on_the_questions_of_d_rl_no_degenerate_answer_pays_more_than_a_poor_but_honest_one(sets: Path) -> None:
    rows = [dict(row) for row in teachable(rows_of(sets / "rows", RL))]
    assert {row["level"] for row in rows} == {"chest", "lung", "zone"}
    rng = np.random.default_rng(0)
    paid: dict[str, list[float]] = {}
    for row in rows * (6000 // len(rows) + 1):
        target = InitTarget.of_row(row)
        regions = [verdict.region for verdict in target.verdicts]
        bands = dict(zip(regions, target.bands_of(regions), strict=True))
        # A recall of 70 %, a specificity of 90 %, boxes off by up to 60 % of their sides.
        said = {v.region: bool(rng.random() < (0.7 if v.present else 0.1)) for v in target.verdicts}
        boxes = {region: target.in_region(region) or (part_of(bands[region], rng),) for region in bands}
        poor = {region: tuple(jittered(box, 0.6, rng) for box in held) for region, held in boxes.items()}
        answers: dict[str, dict[str, tuple[Box, ...]]] = {
            "honest": {region: held for region, held in poor.items() if said[region]},
            "always absent": {},
            "always the whole region": {region: (band,) for region, band in bands.items()},
            "always the honest boxes": poor,
            "repeated boxes": {region: held * 3 for region, held in poor.items() if said[region]},
        }
        for name, held in answers.items():
            verdicts = tuple(Verdict(region, region in held) for region in bands)
            answer = Answer((), verdicts, tuple(box for of in held.values() for box in of))
            paid.setdefault(name, []).append(box_reward(answer, target) + 1 + repetition_reward(answer, ""))
    means = {name: float(np.mean(values)) for name, values in paid.items()}
    for name in set(means) - {"honest"}:
        # The same questions: what counts is the noise of the difference.
        over = np.subtract(paid["honest"], paid[name])
        assert over.mean() > 2 * over.std() / len(over) ** 0.5, means


def part_of(band: Box, rng: np.random.Generator) -> Box:
    """A quarter of a region, anywhere in it: what an honest reader takes for a lesion that is none."""
    x, y = band.x1 + rng.uniform(0, 0.5) * band.width, band.y1 + rng.uniform(0, 0.5) * band.height
    return Box(x, y, x + band.width / 2, y + band.height / 2)


def test_for_pi_rev_neither_stopping_nor_clicking_one_place_pays_what_good_clicks_pay(
    sets: Path, segmenter: Sam3Segmenter
) -> None:
    radiographs = Radiographs(images(sets).images, RECIPE, 96, GRID)
    paid: dict[str, list[float]] = {"oracle": [], "stop": [], "one place": []}
    for row in revisions(sets, segmenter, RL, 40):
        image, truth = radiographs.read(row["image"]), rle.decode(row["truth"], tuple(row["size"]))
        first = rle.decode(row["masks"][0], tuple(row["size"]))
        for name in paid:
            clicks: list[Click] = []
            current = Prediction(first)
            for _ in range(0 if name == "stop" else SETTINGS.revision.clicks):
                click = oracle_click(current.mask, truth, clicks if name == "oracle" else (), 25)
                if name == "one place" and clicks:
                    click = clicks[0]
                if click is None:
                    break
                clicks.append(click)
                (current,) = segmenter.segment(image, [Prompt(Box(*row["box"]), tuple(clicks), current)])
            paid[name].append(gain_reward(first, current.mask, truth))
    assert len(paid["stop"]) >= 40 and set(paid["stop"]) == {0.0}
    assert np.mean(paid["oracle"]) > max(np.mean(paid["one place"]), 0.0), {k: np.mean(v) for k, v in paid.items()}


def paid(gemma: Any, tokens: Tokens, episodes: Any, row: dict[str, Any], count: int = 96) -> np.ndarray:
    """What sampled answers to one question earn; R_format apart, for it is easy."""
    gemma.gemma.eval()
    played = [episodes.begin(row) for _ in range(count)]
    Player(gemma, tokens, 32, seed=1).play(episodes, played, sampled=True)
    return np.array([sum(pay for name, pay in each.rewards().items() if name != "R_format") for each in played])


def rose(before: np.ndarray, after: np.ndarray) -> None:
    """The mean rose by more than twice its noise."""
    noise = np.sqrt(before.var(ddof=1) / len(before) + after.var(ddof=1) / len(after))
    assert after.mean() - before.mean() > 2 * noise, f"{before.mean():.3f} to {after.mean():.3f}, noise {noise:.3f}"


def test_two_processes_teach_what_one_does_and_play_together(sets: Path, tmp_path: Path) -> None:
    base = write_policy(tmp_path / "base", "init")
    asked = yaml.safe_load(MINI.read_text())
    asked["policies"]["lora"] = {"r": LORA.r, "alpha": LORA.alpha, "whole": False}
    helped = asked["policies"]["init_sft"]
    # As MedGemma is trained.
    helped |= {"batch": 8, "warmup": 0, "from_scratch": asdict(FromScratch())}
    asked["policies"]["init_rl"] |= {"batch": 32, "answer_tokens": 40}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(asked))
    common = [
        "--data", str(sets / "sets"), "--rows", str(sets / "rows"), "--base", str(base), "--config", str(config),
    ]  # fmt: skip
    # On a CPU accelerate's own launcher starts several processes only by MPI; what it does on GPUs is this.
    two = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "--", "training"]
    sft = ["train-policy", "init-sft", *common, "--steps", "3"]
    main([*sft, "--per-device", "8", "--out", str(tmp_path / "one")])
    launched([*two, *sft, "--per-device", "4", "--out", str(tmp_path / "two")])
    one, other = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("one", "two"))
    learnt = [name for name in one if "lora_B" in name]  # they begin at 0
    moved = max(float(one[name].abs().max()) for name in learnt)
    assert moved > 0 and max(float((one[name] - other[name]).abs().max()) for name in learnt) < 0.1 * moved
    rl = ["train-policy", "init-rl", *common, "--start", str(tmp_path / "two"), "--per-device", "16"]
    launched([*two, *rl, "--steps", "1", "--save-every", "1", "--out", str(tmp_path / "rl")])
    launched([*two, *rl, "--steps", "2", "--save-every", "1", "--resume", "--out", str(tmp_path / "rl")])
    state = json.loads((tmp_path / "rl" / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["global_step"] == 2 and (tmp_path / "rl" / "adapter_model.safetensors").is_file()


def launched(command: Sequence[str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert ended.returncode == 0, ended.stderr[-9000:]


# pi_rev ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory: pytest.TempPathFactory) -> Sam3Segmenter:
    return write_segmenter(tmp_path_factory.mktemp("segmenter"), RECIPE)


def revisions(sets: Path, segmenter: Sam3Segmenter, split: str, most: int) -> list[dict[str, Any]]:
    """Of the first ``most`` positive questions of a split: for D_SFT the oracle's clicks, for D_RL where they begin."""
    asked = [dict(row) for row in rows_of(sets / "rows", split) if row["present"]][:most]
    problems = Problems()
    maker = Trajectories(images(sets), segmenter, SETTINGS.revision, 0, problems)
    return [row for row in maker.rows(split, iter(asked)) if not isinstance(row, str)]


def test_sft_teaches_pi_rev_where_to_click(sets: Path, segmenter: Sam3Segmenter, tmp_path: Path) -> None:
    base = write_policy(tmp_path / "base", "init")
    model, gemma, tokens, radiographs = parts(base, sets, None, LoraSettings(16, 16, whole=True), tower=True)
    helps = replace(POLICIES.rev_sft.from_scratch, dense_steps=10)
    loss = FromScratchLoss(gemma, tokens, helps, RevisionDense(radiographs, 12), GRID)
    settings = replace(POLICIES.rev_sft, batch=8, warmup=5, from_scratch=helps)
    run = RunSettings(tmp_path / "out", per_device=8, steps=40, log_every=1)
    clicks = revisions(sets, segmenter, SFT, 60)
    trainer = train_sft(
        model, tokens, Dataset.from_list(clicks * 8), revision_dialogue, radiographs, settings, run,
        processor=gemma.processor, from_scratch=loss,
    )  # fmt: skip
    fell(logged(trainer, "loss/patches"))
    fell(logged(trainer, "loss/answer")[10:])


def test_grpo_raises_pi_revs_gain(sets: Path, segmenter: Sam3Segmenter, tmp_path: Path) -> None:
    base = write_policy(tmp_path / "base", "rev")
    adapter = write_new_adapter(tmp_path / "adapter", base)
    model, gemma, tokens, radiographs = parts(base, sets, adapter, LORA, tower=False)
    states = [row for row in revisions(sets, segmenter, RL, 60) if row["finding"] == "effusion"]
    worst = min(states, key=lambda row: float(row["ious"][0]))
    episodes = RevisionEpisodes(radiographs, tokens, segmenter, answer_tokens=POLICIES.rev_rl.answer_tokens)
    before = paid(gemma, tokens, episodes, worst)
    settings = replace(POLICIES.rev_rl, batch=16, rate=1e-3, warmup=0)
    run = RunSettings(tmp_path / "out", per_device=16, steps=16, log_every=1)
    trainer = grpo_trainer(model, gemma, tokens, episodes, Dataset.from_list([worst] * 50), settings, run)
    train_grpo(trainer, run)
    rose(before, paid(gemma, tokens, episodes, worst))
