"""The miniature's policies still learn: in minutes, each stage from a small checkpoint of the stage before it.

RL of pi_rev is not among them: no policy that clicks has been trained yet that it could begin with.

What moves is held against its own noise, over fixed seeds: a stage that has stopped learning fails here. How far each
comes in an hour, `make reproduce-mini` shows (docs/reproduction.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset

from tests.training.reproduction.checkpoints import GRID, LORA, write_new_adapter, write_policy
from training.__main__ import main
from training.curation.division import EVAL, RL, SFT
from training.curation.oracle import revise
from training.curation.paper import read_settings
from training.curation.sources.layout import Sources
from training.mini.gemma import write_mini_gemma
from training.policies.dense import InitDense, RevisionDense
from training.policies.dialogues import Radiographs, Tokens, init_dialogue, revision_dialogue
from training.policies.episodes import InitEpisodes
from training.policies.from_scratch import FromScratchLoss
from training.policies.grpo import grpo_trainer, train_grpo
from training.policies.measure import Player, measure_init
from training.policies.models import load_to_train
from training.policies.settings import LoraSettings
from training.policies.sft import RunSettings, teachable, train_sft
from training.policies.train import rows_of
from training.run import MINI
from xflow_core.domain import rle
from xflow_core.domain.geometry import Box, mask_iou
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.segmenters.protocol import Prediction, Prompt

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
    found, _ = measure_init(rows, radiographs, tokens, Player(gemma, tokens, 40, 0))
    greedy, shuffled = found["greedy"]["all"], found["shuffled"]["all"]
    assert greedy["format"][0] >= 0.95 and greedy["lung_iou"][0] >= 0.8
    assert greedy["lung_iou"][0] - shuffled["lung_iou"][0] > 0.05
    assert greedy["f1"] - shuffled["f1"] > 0.1 and greedy["box_iou"][0] > 1.5 * shuffled["box_iou"][0]


def test_grpo_raises_pi_inits_reward(sets: Path, tmp_path: Path) -> None:
    base = write_policy(tmp_path / "base", "init")
    adapter = write_new_adapter(tmp_path / "adapter", base)
    model, gemma, tokens, radiographs = parts(base, sets, adapter, LORA, tower=False)
    rows = teachable(rows_of(sets / "rows", RL))
    # A few questions again and again: what they pay must rise soon.
    asked = [row for present in (True, False) for row in _spread([dict(r) for r in rows if r["present"] == present], 2)]
    episodes = InitEpisodes(radiographs, tokens, answer_tokens=80)
    settings = replace(POLICIES.init_rl, batch=32, rate=4e-4, warmup=0)
    run = RunSettings(tmp_path / "out", per_device=32, steps=24, log_every=1)
    trainer = grpo_trainer(model, gemma, tokens, episodes, Dataset.from_list(asked * 24), settings, run)
    train_grpo(trainer, run)
    fell([-reward for reward in logged(trainer, "reward")])


def _spread(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    return [rows[index] for index in np.linspace(0, len(rows) - 1, count).astype(int)]


# pi_rev ------------------------------------------------------------------------------------------------------------


class Painter:
    """A segmenter by rule: the box's ellipse; a click paints, or rubs out, a disc around it."""

    def segment(self, image: EncodedRadiograph, prompts: Sequence[Prompt]) -> list[Prediction]:
        return [Prediction(self._mask(image.radiograph.size, prompt)) for prompt in prompts]

    def _mask(self, size: tuple[int, int], prompt: Prompt) -> np.ndarray:
        rows, columns = (np.arange(side) + 0.5 for side in size)
        y, x = (rows / size[0])[:, None], (columns / size[1])[None]
        if prompt.previous is None or not prompt.clicks:
            box = prompt.box or Box(0, 0, 1, 1)
            return ((x - box.centre.x) / (box.width / 2)) ** 2 + ((y - box.centre.y) / (box.height / 2)) ** 2 < 1
        click = prompt.clicks[-1]
        disc = (x - click.point.x) ** 2 + (y - click.point.y) ** 2 < 0.08**2
        mask = prompt.previous.mask
        return mask | disc if click.polarity == "positive" else mask & ~disc


@pytest.fixture(scope="module")
def trajectories(sets: Path) -> list[dict[str, Any]]:
    """Algorithm 1 on boxes of D_SFT's positive rows that are moved by a third, so that clicks are needed."""
    folder = images(sets).images
    made = []
    radiographs = Radiographs(folder, RECIPE, 96, GRID)
    for number, row in enumerate(rows_of(sets / "rows", SFT)):
        if not row["present"] or row["level"] != "chest":
            continue
        image = radiographs.read(row["image"])
        size = image.radiograph.size
        for box in row["boxes"]:
            truth = Painter()._mask(size, Prompt(Box(*(min(max(float(v), 0.0), 1.0) for v in box))))
            wide = replace(SETTINGS.revision, jitter=0.35)
            (found,) = revise(Painter(), image, [truth], wide, [np.random.default_rng(number)])
            if found is not None and found.clicks and truth.sum() > 150:
                made.append({
                    **{name: row[name] for name in ("id", "image", "instruction", "finding")}, "size": list(size),
                    "truth": rle.encode(truth), "box": found.box.to_json(),
                    "masks": [rle.encode(mask) for mask in found.masks],
                    "clicks": [{"polarity": c.polarity, "point": c.point.to_json()} for c in found.clicks],
                    "ious": [mask_iou(mask, truth) for mask in found.masks],
                })  # fmt: skip
    return made


def test_sft_teaches_pi_rev_where_to_click(sets: Path, trajectories: list[dict[str, Any]], tmp_path: Path) -> None:
    base = write_policy(tmp_path / "base", "init")
    model, gemma, tokens, radiographs = parts(base, sets, None, LoraSettings(16, 16, whole=True), tower=True)
    helps = replace(POLICIES.rev_sft.from_scratch, dense_steps=10)
    loss = FromScratchLoss(gemma, tokens, helps, RevisionDense(radiographs, 12), GRID)
    settings = replace(POLICIES.rev_sft, batch=8, warmup=5, from_scratch=helps)
    run = RunSettings(tmp_path / "out", per_device=8, steps=40, log_every=1)
    trainer = train_sft(
        model, tokens, Dataset.from_list(trajectories * 4), revision_dialogue, radiographs, settings, run,
        processor=gemma.processor, from_scratch=loss,
    )  # fmt: skip
    fell(logged(trainer, "loss/patches"))
    fell(logged(trainer, "loss/answer")[10:])
