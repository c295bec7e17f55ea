"""``python -m training mini-base --out DIR --config training/configs/mini.yaml``: the miniature's base, untrained.

A Gemma3 of a million weights with its processor (:mod:`training.mini.gemma`), in the files of MedGemma's folder. Not
for clinical use.
"""

from __future__ import annotations

import argparse
import logging
import shutil
from pathlib import Path

from training.curation.paper import PAPER, read_settings
from training.mini.gemma import write_mini_gemma
from xflow_core.domain.errors import CallError

LOG = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="a folder that does not exist yet")
    parser.add_argument("--config", type=Path, default=PAPER)
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> None:
    out = arguments.out
    if out.exists():
        raise CallError(f"{out} is there already; choose another folder.")
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    write_mini_gemma(part, arguments.seed, grid=read_settings(arguments.config).policies.grid)
    part.rename(out)
    LOG.info("an untrained base in %s; not for clinical use", out)
