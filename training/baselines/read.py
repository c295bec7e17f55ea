"""``python -m training baselines read --system NAME --requests FOLDER --native FOLDER2 --out FOLDER3``

Makes predictions (``training.evaluation.predictions``) of what a system wrote for the requests in FOLDER. A system that
leaves boxes and points alone gets its masks from a bundle's segmenter (``--bundle``), and the log says so. A system
that draws lungs gives ``lungs.jsonl`` instead. An output that is missing or that cannot be read is an error, never
"absent".
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

import numpy as np

from training.baselines.catalogue import LUNGS, System, system
from training.baselines.requests import Request, read_requests
from training.evaluation.predictions import PredictionWriter
from xflow_core.bundles.loading import load_engine
from xflow_core.domain.errors import CallError
from xflow_core.domain.geometry import Box
from xflow_core.export.files import write_whole
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.segmenters.protocol import Prompt, PromptableSegmenter

LOG = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", required=True)
    parser.add_argument("--requests", type=Path, required=True, help="what `baselines write` wrote")
    parser.add_argument("--native", type=Path, required=True, help="what the system wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bundle", default=None, help="whose segmenter draws masks from boxes and points")
    parser.add_argument("--device", default="auto")


def run(arguments: argparse.Namespace) -> None:
    one, requests = system(arguments.system), read_requests(arguments.requests)
    if one.gives == LUNGS:
        write_lungs(one, requests, arguments.native, arguments.out)
        LOG.info("lungs of %d images in %s", len(requests), arguments.out / "lungs.jsonl")
        return
    segmenter = None if arguments.bundle is None else load_engine(arguments.bundle, arguments.device).segmenter
    drawn = 0
    with PredictionWriter(arguments.out) as writer:
        for request in requests:
            found = one.read(arguments.native, request)
            if isinstance(found, list):
                found = masks_of(found, request, arguments.requests, segmenter)
                drawn += 1
            writer.add(request.id, found)
    if drawn:
        LOG.info("the masks of %d rows were drawn by the segmenter of %s", drawn, arguments.bundle)
    LOG.info("%d predictions of %s in %s; absent: %s", len(requests), one.title, arguments.out, one.absent)


def masks_of(
    prompts: list[Prompt], request: Request, folder: Path, segmenter: PromptableSegmenter | None
) -> np.ndarray:
    """The union of the masks that a segmenter gives for a system's prompts; empty without prompts.

    Raises:
        CallError: there is no segmenter.
    """
    mask = np.zeros(request.size, bool)
    if not prompts:
        return mask
    if segmenter is None:
        raise CallError(f"The answer of row {request.id} is boxes; give --bundle, whose segmenter draws the masks.")
    image = EncodedRadiograph(read_radiograph(folder / request.image))
    for prediction in segmenter.segment(image, prompts):
        mask |= prediction.mask
    return mask


def write_lungs(one: System, requests: list[Request], native: Path, out: Path) -> None:
    """``lungs.jsonl``: {"id", "lungs": {label: box}}, one line a request.

    Raises:
        CallError: a lung is missing or empty.
    """
    lines = []
    for request in requests:
        boxes = {label: Box.around(mask) for label, mask in one.read(native, request).items()}
        if None in boxes.values():
            raise CallError(f"A lung of row {request.id} is empty in {native}.")
        lines.append(json.dumps({"id": request.id, "lungs": {k: b.to_json() for k, b in boxes.items() if b}}) + "\n")
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "lungs.jsonl", "".join(lines).encode())
