"""``python -m training train-policy STAGE --data ROOT --rows DIR --base DIR --out DIR2``: one stage of the policies.

Stages, in the paper's order: ``init-sft``, ``init-rl``, ``rev-sft`` (both from init-sft's adapter), ``rev-rl`` (from
rev-sft's). Rows are those of ``python -m training instructions`` for pi_init, ``trajectories`` for pi_rev. Under
``accelerate launch`` it runs on many GPUs; the effective batch stays Table 7's. With ``--resume`` it goes on from the
newest checkpoint in ``--out``. What comes out is a PEFT folder for ``xflow bundles make``. Not for clinical use.
"""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import set_seed

from training.curation.division import RL, SFT
from training.curation.paper import PAPER, read_settings
from training.policies.dense import Dense, InitDense, RevisionDense
from training.policies.dialogues import MAX_CLICKS, Radiographs, Tokens, init_dialogue, revision_dialogue
from training.policies.episodes import Episodes, InitEpisodes, RevisionEpisodes
from training.policies.from_scratch import FromScratchLoss
from training.policies.grpo import grpo_trainer, train_grpo
from training.policies.models import load_to_train
from training.policies.sft import RunSettings, teachable, train_sft
from xflow_core.bundles.loading import load_engine
from xflow_core.domain.errors import CallError

LOG = logging.getLogger(__name__)

STAGES = ("init-sft", "init-rl", "rev-sft", "rev-rl")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--data", type=Path, required=True, help="the folder under which the sets lie")
    parser.add_argument("--rows", type=Path, required=True, help="what `instructions` or `trajectories` wrote")
    parser.add_argument("--base", type=Path, required=True, help="MedGemma's folder")
    parser.add_argument("--start", type=Path, help="the adapter of the stage before; init-sft has none")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=PAPER)
    parser.add_argument("--recipe", default="mimic-cxr-jpg", help="how a radiograph becomes the picture")
    parser.add_argument("--bundle", default="compact", help="whose segmenter stands for F_seg (rev-rl)")
    parser.add_argument("--per-device", type=int, default=1, help="examples, or completions, that a GPU takes at once")
    parser.add_argument("--steps", type=int, help="stop there, whatever the configuration says")
    parser.add_argument("--save-every", type=int, default=500)
    parser.add_argument("--keep", type=int, default=3, help="checkpoints that stay")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tensorboard", action="store_true")
    parser.add_argument("--resume", action="store_true")


def run(arguments: argparse.Namespace) -> None:
    stage, start = arguments.stage, arguments.start
    if (start is None) != (stage == "init-sft"):
        raise CallError("init-sft starts from the base alone; every other stage needs --start, an adapter's folder.")
    if torch.cuda.is_available():
        # Before anything is loaded: "cuda" is then each process's own GPU.
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    settings = read_settings(arguments.config)
    if settings.revision.clicks != MAX_CLICKS:
        raise CallError(f"revision.clicks is {settings.revision.clicks}; a policy in use makes at most {MAX_CLICKS}.")
    policies = settings.policies
    numbers: Any = getattr(policies, stage.replace("-", "_"))
    running = RunSettings(
        out=arguments.out,
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        per_device=arguments.per_device,
        seed=arguments.seed,
        steps=arguments.steps or numbers.steps or None,
        save_every=arguments.save_every,
        keep=arguments.keep,
        tensorboard=arguments.tensorboard,
    )
    if running.devices > 1 and stage.endswith("sft") and numbers.from_scratch.dense:
        raise CallError("from_scratch.dense trains a head that no device shares with another; use one device.")
    # A new adapter's weights, and a fresh head's, are drawn.
    set_seed(arguments.seed)
    rows = rows_of(arguments.rows, SFT if stage.endswith("sft") else RL)
    if stage.startswith("init"):
        rows = teachable(rows)
    model, gemma = load_to_train(arguments.base, start, policies.lora, tower=stage.endswith("sft"))
    tokens = Tokens(gemma)
    sources = settings.sources.under(arguments.data)
    radiographs = Radiographs(sources.images, arguments.recipe, gemma.picture_side, policies.grid)
    if stage.endswith("sft"):
        first = stage == "init-sft"
        draw = init_dialogue if first else revision_dialogue
        helps = None
        if numbers.from_scratch.helps:
            vision = gemma.gemma.config.vision_config
            patches = vision.image_size // vision.patch_size
            dense: Dense | None = None
            if numbers.from_scratch.dense:
                dense = (
                    InitDense(rows, sources.mimic_ils, radiographs, patches)
                    if first
                    else RevisionDense(radiographs, patches)
                )
            helps = FromScratchLoss(gemma, tokens, numbers.from_scratch, dense, policies.grid)
        train_sft(
            model, tokens, rows, draw, radiographs, numbers, running,
            processor=gemma.processor, from_scratch=helps, resume=arguments.resume,
        )  # fmt: skip
    else:
        episodes: Episodes
        if stage == "init-rl":
            episodes = InitEpisodes(radiographs, tokens, numbers.answer_tokens)
        else:
            engine: Any = load_engine(arguments.bundle, "auto")
            episodes = RevisionEpisodes(radiographs, tokens, engine.segmenter, numbers.answer_tokens)
        trainer = grpo_trainer(model, gemma, tokens, episodes, rows, numbers, running)
        train_grpo(trainer, running, resume=arguments.resume)
    LOG.info("%s is done: %s; not for clinical use", stage, arguments.out)


def rows_of(folder: Path, split: str) -> Dataset:
    """A split's rows, from the shards of ``instructions`` or ``trajectories``.

    Raises:
        CallError: there are none.
    """
    shards = sorted(str(path) for path in folder.glob(f"{split}-*.parquet"))
    if not shards or not (folder / "manifest.json").exists():
        raise CallError(f"{folder} holds no finished rows of the split {split!r}.")
    return Dataset.from_parquet(shards)
