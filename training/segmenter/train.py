"""``python -m training train-segmenter --data SETS --rows INSTRUCTIONS --base SAM3 --out OUT`` (paper, 4.3, A.4).

Fine-tunes SAM3's tracker on the true components of D_SFT: each radiograph is encoded once, each of its components asked
for by a jittered box and then by the clicks of Algorithm 1's oracle. Rows are those of ``python -m training
instructions``; ``--base`` is a folder of SAM3 or of its tracker, and what comes out is one for ``xflow bundles make
--segmenter OUT --side N`` with the ``segmenter.side`` of the configuration. ``training.json`` is written last.

Under ``accelerate launch`` it runs on many GPUs; the effective batch stays Table 7's. With ``--resume`` it goes on from
the newest checkpoint in ``--out``, or starts where there is none. Not for clinical use.
"""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

import torch

from training.curation.division import SFT, VAL
from training.curation.paper import PAPER, read_settings
from training.curation.sources.problems import Problems
from training.segmenter.examples import Examples, marked_radiographs, whole
from training.segmenter.trainer import RunSettings, train_segmenter
from xflow_core.bundles.foundation_backend import quiet_transformers
from xflow_core.domain.errors import CallError, NotWritten
from xflow_core.segmenters.sam3 import load_tracker

LOG = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the folder under which the sets lie")
    parser.add_argument("--rows", type=Path, required=True, help="what `python -m training instructions` wrote")
    parser.add_argument("--base", type=Path, required=True, help="a folder of SAM3")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=PAPER)
    parser.add_argument("--recipe", default="mimic-cxr-jpg", help="how a radiograph becomes the picture")
    parser.add_argument("--per-device", type=int, default=1, help="radiographs that a GPU takes at once")
    parser.add_argument("--steps", type=int, help="stop there, whatever the epochs")
    parser.add_argument("--save-every", type=int, default=500)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--keep", type=int, default=3, help="checkpoints that stay")
    parser.add_argument("--check", type=int, default=64, help="validation components measured at every save; 0: none")
    parser.add_argument("--workers", type=int, default=0, help="processes that read radiographs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tensorboard", action="store_true")
    parser.add_argument("--resume", action="store_true")


def run(arguments: argparse.Namespace) -> None:
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    settings = read_settings(arguments.config)
    sources, side = settings.sources.under(arguments.data), settings.segmenter.side
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise NotWritten(f"{arguments.out} cannot be made: {problem.strerror or problem}.") from None
    with Problems(arguments.out / "problems.jsonl") as problems:
        marked = marked_radiographs(arguments.rows, SFT)
        kept = whole(marked, sources, problems)
        LOG.info("%d radiographs with a contour; %d files cannot be used", len(kept), len(marked) - len(kept))
        validation = None
        if arguments.check:
            try:
                seen = whole(marked_radiographs(arguments.rows, VAL), sources, problems)
            except CallError as problem:
                raise CallError(f"{problem} Without a validation split, say --check 0.") from None
            validation = Examples(seen, sources, arguments.recipe, side)
    with quiet_transformers():
        tracker = load_tracker(arguments.base, side=side)
    train_segmenter(
        tracker,
        Examples(kept, sources, arguments.recipe, tracker.prompt_encoder.input_image_size),
        validation,
        settings.segmenter,
        settings.revision,
        RunSettings(
            out=arguments.out,
            devices=int(os.environ.get("WORLD_SIZE", "1")),
            per_device=arguments.per_device,
            seed=arguments.seed,
            steps=arguments.steps,
            save_every=arguments.save_every,
            log_every=arguments.log_every,
            keep=arguments.keep,
            check=arguments.check,
            workers=arguments.workers,
            tensorboard=arguments.tensorboard,
        ),
        recipe=arguments.recipe,
        resume=arguments.resume,
    )
    LOG.info("The segmenter is trained: %s; not for clinical use", arguments.out)
