"""``python -m training baselines list [--system NAME] [--checkouts DIR]``: the other systems that can be compared.

One line each: licence, weights, what it needs, whether it runs here. With ``--system`` all of one: how it is installed
and run, what it is given, what it writes, and what it does when the finding is absent."""

from __future__ import annotations

import argparse
from pathlib import Path

from training.baselines.catalogue import SYSTEMS, System, system


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", default=None)
    parser.add_argument("--checkouts", type=Path, default=Path("baselines"), help="where their repositories are cloned")


def run(arguments: argparse.Namespace) -> None:
    memory = gpu_memory()
    if arguments.system is not None:
        print(described(system(arguments.system), arguments.checkouts, memory))
        return
    rows = [("name", "system", "licence", "weights", "needs", "runs here")]
    for one in SYSTEMS:
        needs = f"GPU, {one.gpu} GiB" if one.gpu else "processor"
        rows.append((one.name, one.title, one.licence, one.weights, needs, one.runs_here(arguments.checkouts, memory)))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def described(one: System, checkouts: Path, memory: float) -> str:
    """All that is known of a system, as text."""
    told = (
        "the truth's boxes" if one.boxes else "the picture and its prompt" if one.gives == "lesion" else "the picture"
    )
    lines = {
        "system": one.title, "repository": one.repository, "licence": one.licence, "weights": one.weights,
        "runs here": one.runs_here(checkouts, memory), "install": one.install, "run": one.run, "is given": told,
        "writes": one.writes, "absent": one.absent,
    }  # fmt: skip
    return "\n".join(f"{name + ':':<12} {value}" for name, value in lines.items())


def gpu_memory() -> float:
    """GiB of the largest GPU; 0 without one."""
    import torch

    if not torch.cuda.is_available():
        return 0.0
    count = torch.cuda.device_count()
    return max(torch.cuda.get_device_properties(k).total_memory for k in range(count)) / 2**30
