"""``python -m training baselines rosalia-training --data ROOT --splits DIR --out DIR2``: ROSALIA on XFlow's cases
(5.3).

The paper retrains ROSALIA on exactly the cases that XFlow uses. ``mimic_ils_instruction_answer.json`` in DIR2 is
MIMIC-ILS's own file with the studies of D_SFT and D_RL alone: ``train`` holds D_SFT's and D_RL's, ``val`` D_SFT's
validation. Records stand as they are, so ROSALIA's loader reads them with its own image and mask folders; of a study
that stands there twice the first is kept. ``train.sh`` is its launch command with the paths filled in. The output is as
restricted as its source. Not for clinical use.
"""

from __future__ import annotations

import argparse
import json
import logging
import shlex
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from training.curation.division import RL, SFT, VAL
from training.curation.paper import PAPER, read_settings
from training.curation.sources.json_stream import members
from training.curation.sources.layout import Sources
from xflow_core.domain.errors import CallError, NotWritten
from xflow_core.export.files import open_whole, write_whole

LOG = logging.getLogger(__name__)

INSTRUCTIONS = "mimic_ils_instruction_answer.json"
_ROSALIAS = {SFT: "train", RL: "train", VAL: "val"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the folder under which the sets lie")
    parser.add_argument("--splits", type=Path, required=True, help="what `python -m training splits` wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=PAPER)


def run(arguments: argparse.Namespace) -> None:
    sources = read_settings(arguments.config).sources.under(arguments.data)
    counts = write_rosalia_training(sources, arguments.splits, arguments.out)
    LOG.info("%s studies in %s; run train.sh in a checkout of ROSALIA", dict(counts), arguments.out)


def write_rosalia_training(sources: Sources, splits: Path, out: Path) -> Counter[str]:
    """Write the file and the command; counts the studies by ROSALIA's split.

    Raises:
        CallError: the splits or MIMIC-ILS cannot be read, or lack a study of each other.
    """
    try:
        listed = pq.read_table(splits / "radiographs.parquet", columns=["study", "split"]).to_pylist()
    except (OSError, pa.ArrowInvalid, KeyError) as problem:
        raise CallError(
            f"{splits} holds no finished splits ({problem}); `python -m training splits` makes them."
        ) from None
    wanted = {row["study"]: _ROSALIAS[row["split"]] for row in listed if row["split"] in _ROSALIAS}
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise NotWritten(f"{out} cannot be made: {problem.strerror or problem}.") from None

    counts: Counter[str] = Counter(train=0, val=0)
    with open_whole(out / INSTRUCTIONS) as file:
        # Two passes over the source: its splits are not XFlow's, and its records do not fit in memory.
        for number, split in enumerate(counts):
            file.write(f"{', ' if number else '{'}{json.dumps(split)}: {{".encode())
            seen: set[str] = set()
            for (_, study), record in members(sources.instructions, depth=2):
                if wanted.get(study) == split and study not in seen:
                    file.write(f"{', ' if seen else ''}{json.dumps(study)}: {json.dumps(record)}".encode())
                    seen.add(study)
            file.write(b"}")
            counts[split] = len(seen)
        file.write(b', "test": {}}\n')
    missing = len(wanted) - counts.total()
    if missing:
        (out / INSTRUCTIONS).unlink()
        raise CallError(f"{sources.instructions} lacks {missing} studies of {splits}; they are of another release.")
    write_whole(out / "train.sh", launch_command(sources, out).encode())
    return counts


def launch_command(sources: Sources, out: Path) -> str:
    """ROSALIA's ``train.sh`` with the paths filled in, but for ``--debug``, which would cut the cases."""
    options = {
        "--epoch": "2",
        "--log_base_dir": str((out / "runs").resolve()),
        "--cache_dir": str((out / "cache").resolve()),
        "--base_image_dir": str(sources.images.resolve()),
        "--base_mask_dir": str(sources.lesion_masks.resolve()),
        "--json_dir": str((out / INSTRUCTIONS).resolve()),
        "--batch_size": "16",
        "--exp_name": "rosalia_on_xflow_cases",
        "--grad_accumulation_steps": "1",
        "--lora_r": "8",
        "--lora_alpha": "16",
        "--vision_pretrained": "sam_vit_h_4b8939.pth",
    }
    lines = [f"  {name} {shlex.quote(value)} \\\n" for name, value in options.items()]
    start = "#!/bin/sh\n# In a checkout of ROSALIA, in its environment.\ndeepspeed --master_port=24999 train_ds.py \\\n"
    return start + "".join(lines) + "  --batch_balance\n"
