"""``python -m training measure-segmenter --data SETS --rows INSTRUCTIONS --segmenter FOLDER --side N --out DIR``

A segmenter's folder alone, measured as ``evaluate-prompts`` measures a bundle's: each true component of a split's
radiographs asked for by its box, moved as pi_rev's are (``--jitter``), and then by up to four oracle clicks. Writes
``metrics.json`` (the mean IoU after 0 .. 4 clicks; and what the first click, and the three after it, bring, with
standard errors over radiographs) and ``per_row.csv``. For fresh cases, take the rows of a miniature that nothing was
trained on. Not for clinical use.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.curation.division import VAL
from training.curation.paper import PAPER, read_settings
from training.curation.sources.problems import Problems
from training.evaluation.evaluate_prompts import Component, Prompted, by_finding, figures, prompted, table
from training.segmenter.examples import Examples, components_on, marked_radiographs, whole
from xflow_core import NOT_FOR_CLINICAL_USE
from xflow_core.bundles.foundation_backend import choose_device
from xflow_core.domain.errors import NotWritten
from xflow_core.domain.geometry import Box
from xflow_core.export.files import write_whole
from xflow_core.segmenters.protocol import PromptableSegmenter
from xflow_core.segmenters.sam3 import Sam3Segmenter

LOG = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the folder under which the sets lie")
    parser.add_argument("--rows", type=Path, required=True, help="what `python -m training instructions` wrote")
    parser.add_argument("--segmenter", type=Path, required=True, help="a folder of SAM3 or of its tracker")
    parser.add_argument("--side", type=int, required=True, help="pixels of its picture")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--split", default=VAL)
    parser.add_argument("--limit", type=int, help="radiographs, from the first on")
    parser.add_argument("--config", type=Path, default=PAPER)
    parser.add_argument("--recipe", default="mimic-cxr-jpg")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0, help="of the jitter")
    parser.add_argument("--jitter", type=float, help="in shares of a box's side (the configuration's of revision)")
    parser.add_argument("--threads", type=int, default=2)


def run(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    settings = read_settings(arguments.config)
    sources = settings.sources.under(arguments.data)
    marked = whole(marked_radiographs(arguments.rows, arguments.split), sources, Problems())[: arguments.limit]
    segmenter = Sam3Segmenter.load(
        arguments.segmenter, side=arguments.side, recipe=arguments.recipe, device=choose_device(arguments.device)
    )
    examples = Examples(marked, sources, arguments.recipe, arguments.side)
    jitter = settings.revision.jitter if arguments.jitter is None else arguments.jitter
    found = list(measured(segmenter, examples, arguments.seed, jitter))
    report = {
        "segmenter": arguments.segmenter.name,
        "split": arguments.split,
        "seed": arguments.seed,
        "jitter": jitter,
        "notice": NOT_FOR_CLINICAL_USE,
        **figures(found),
        "gains": gains(found),
        "by_finding": by_finding(found),
    }
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise NotWritten(f"{arguments.out} cannot be made: {problem.strerror or problem}.") from None
    write_whole(arguments.out / "per_row.csv", table(found).encode())
    write_whole(arguments.out / "metrics.json", (json.dumps(report, indent=1) + "\n").encode())
    LOG.info("IoU after 0 to 4 clicks: %s, over %d components; gains %s", report["iou"], len(found), report["gains"])


def measured(segmenter: PromptableSegmenter, examples: Examples, seed: int, jitter: float) -> Iterator[Prompted]:
    """Each component, asked for as ``evaluate-prompts`` does."""
    for number, marked in enumerate(examples.marked):
        image = examples.read(number)
        for component in components_on(marked, image.radiograph.size, examples.sources, Problems()):
            box = Box.around(component.mask)
            assert box is not None
            asked = Component(component.mask, box, component.findings)
            yield prompted(segmenter, image, Path(marked.image), asked, seed, jitter)


def gains(found: Sequence[Prompted]) -> dict[str, Any]:
    """``[mean, standard error]`` of what the first click adds to the box's IoU, and the later ones to that.

    The error is over radiographs: components of one are not independent.
    """
    iou = np.array([row.iou for row in found])
    images = [row.image for row in found]
    return {
        "first_click": _mean_and_error(iou[:, 1] - iou[:, 0], images),
        "further_clicks": _mean_and_error(iou[:, -1] - iou[:, 1], images),
    }


def _mean_and_error(values: np.ndarray, groups: Sequence[str]) -> list[float]:
    """The mean, and its standard error with whole groups as what was drawn (the ratio of sums, linearised)."""
    mean = float(values.mean())
    names, which = np.unique(groups, return_inverse=True)
    residual = np.bincount(which, weights=values - mean)
    count = len(names)
    error = float(np.sqrt(count / max(count - 1, 1) * (residual**2).sum())) / len(values)
    return [round(mean, 5), round(error, 5)]
