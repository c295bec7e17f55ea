"""``python -m training lungs --data ROOT --splits DIR --tool cxas|chexmask-u``: lung boxes by the paper's tools (A.3).

Runs CXAS or CheXmask-U on the splits' radiographs and keeps the tight box around each lung, for ``lungs.source: run``.
Neither is part of XFlow, and neither is fetched:

- ``cxas``: ``cxas_segment``, which ``pip install cxas`` puts on the path (its weights are CC BY-NC-SA 4.0);
- ``chexmask-u``: a clone of https://github.com/mcosarinsky/CheXmask-U (``--folder``), its weights (``--weights``) and a
  Python that has its requirements (``--python``).

The boxes go, a batch of radiographs a file, into the folder that ``sources.lung_boxes`` names; a run that was stopped
goes on at the next batch. ``report.txt`` and ``examples.png`` say how it went. Radiographs that cannot be read, and
those in which a tool finds no lung, are named in ``problems.jsonl``. Not for clinical use.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from training.curation.curate import progress
from training.curation.paper import PAPER, read_settings
from training.curation.pictures import lung_sheet
from training.curation.sources.cxas import read_lungs
from training.curation.sources.layout import Sources
from training.curation.sources.mimic_cxr import check_image, read_sizes
from training.curation.sources.problems import Problems
from xflow_core.domain.errors import CallError, EngineError, NotWritten
from xflow_core.domain.findings import LUNGS
from xflow_core.domain.geometry import Box
from xflow_core.export.files import write_whole

LOG = logging.getLogger(__name__)

Size = tuple[int, int]
Boxes = dict[str, Box]

# CheXmask-U's: the folders in its script's text, its square, and which landmarks are a lung's.
_IN, _OUT = Path("Outputs/Images/FinalDatabase/Images"), Path("Outputs/Predictions/FinalDatabase")
_SIDE = 1024
_NODES = {"right lung": slice(0, 44), "left lung": slice(44, 94)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the folder under which the sets lie")
    parser.add_argument("--splits", type=Path, required=True, help="what `python -m training splits` wrote")
    parser.add_argument("--tool", choices=("cxas", "chexmask-u"), required=True)
    parser.add_argument("--gpu", default="0", help="cxas: a GPU's number, or cpu (0)")
    parser.add_argument("--folder", type=Path, help="chexmask-u: its clone")
    parser.add_argument("--weights", type=Path, help="chexmask-u: its weights, a .pt file")
    parser.add_argument("--python", default=sys.executable, help="chexmask-u: the Python that runs it")
    parser.add_argument("--batch", type=int, default=200, help="radiographs a call of the tool (200)")
    parser.add_argument("--config", type=Path, default=PAPER)


def run(arguments: argparse.Namespace) -> None:
    settings = read_settings(arguments.config)
    sources = settings.sources.under(arguments.data)
    tool: Tool = (
        Cxas.found(arguments.gpu)
        if arguments.tool == "cxas"
        else CheXmaskU.found(arguments.folder, arguments.weights, arguments.python)
    )
    try:
        table = pq.read_table(arguments.splits / "radiographs.parquet", columns=["dicom_id", "image"]).to_pylist()
    except (OSError, pa.ArrowInvalid) as problem:
        raise CallError(
            f"{arguments.splits} holds no finished splits ({problem}); `python -m training splits` makes them."
        ) from None
    images = {row["dicom_id"]: row["image"] for row in sorted(table, key=lambda row: row["dicom_id"])}
    out = sources.lung_boxes
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise NotWritten(f"{out} cannot be made: {problem.strerror or problem}.") from None
    with Problems(out / "problems.jsonl") as problems:
        counts = write_lung_boxes(tool, images, sources, out, problems, arguments.batch)
    lines = [f"Lung boxes by {tool.name}", "Not for clinical use.", ""]
    lines += [f"{count:,} x {name}" for name, count in sorted(counts.items())]
    write_whole(out / "report.txt", ("\n".join([*lines, "", *problems.lines()]) + "\n").encode())
    shown = [row for row in read_rows(out) if row["lungs"] is not None][:12]
    write_whole(out / "examples.png", lung_sheet(shown, images, sources))
    LOG.info("%s, in %s; not for clinical use", dict(counts), out)


class Tool(Protocol):
    """A program that segments lungs. name: as the rows have it."""

    name: str

    def command(self, work: Path) -> list[str]:
        """What is run, with ``work`` as its folder."""
        ...

    def prepare(self, dicom_id: str, image: Path, work: Path) -> None:
        """Lay a radiograph out as the program expects it."""
        ...

    def lungs(self, dicom_id: str, size: Size, work: Path, problems: Problems) -> Boxes | None:
        """What the program found; None, and a problem, where it found no lung."""
        ...


@dataclass(frozen=True)
class Cxas:
    """``cxas_segment`` of the package cxas: a flat folder of pictures in, a folder of one-bit PNGs a picture out."""

    executable: str
    gpu: str
    name: str = "cxas, run"

    @classmethod
    def found(cls, gpu: str) -> Cxas:
        executable = shutil.which("cxas_segment")
        if executable is None:
            raise CallError(
                "CXAS is not installed here (no cxas_segment on the path): pip install cxas, or set lungs.source to "
                "chexmask or bundle."
            )
        try:
            version = f"cxas {importlib.metadata.version('cxas')}, run"
        except importlib.metadata.PackageNotFoundError:  # of another environment
            version = cls.name
        return cls(executable, gpu, version)

    def command(self, work: Path) -> list[str]:
        return [self.executable, "-i", str(work / "in"), "-o", str(work / "out"), "-ot", "png", "-g", self.gpu]

    def prepare(self, dicom_id: str, image: Path, work: Path) -> None:
        (work / "in").mkdir(exist_ok=True)
        # It reads a single folder and names its own after the file.
        (work / "in" / f"{dicom_id}.jpg").symlink_to(image.resolve())

    def lungs(self, dicom_id: str, size: Size, work: Path, problems: Problems) -> Boxes | None:
        return read_lungs(work / "out", dicom_id, problems, size)


@dataclass(frozen=True)
class CheXmaskU:
    """``HybridGNet/inferenceWithSampling.py`` of CheXmask-U: the mean of 50 sampled outlines, in a 1024-pixel square.

    Its folders are fixed in its text, relative to where it is run. Pictures are prepared as its authors do: black edges
    cut off, padded to a square in the middle, scaled to 1024. Of 120 landmarks, 44 are the right lung's and the next 50
    the left one's.
    """

    script: Path
    weights: Path
    python: str
    name: str = "chexmask-u, run"

    @classmethod
    def found(cls, folder: Path | None, weights: Path | None, python: str) -> CheXmaskU:
        script = (folder or Path()) / "HybridGNet" / "inferenceWithSampling.py"
        if folder is None or not script.is_file():
            raise CallError(
                f"CheXmask-U is not at {folder or '--folder'} (no HybridGNet/inferenceWithSampling.py): clone "
                "https://github.com/mcosarinsky/CheXmask-U, or set lungs.source to chexmask or bundle."
            )
        if weights is None or not weights.is_file():
            raise CallError(
                f"CheXmask-U's weights are not at {weights or '--weights'}; they are on its page at Hugging Face."
            )
        return cls(script.resolve(), weights.resolve(), python)

    def command(self, work: Path) -> list[str]:
        return [self.python, str(self.script), "--skip_connections", "--weights_path", str(self.weights)]

    def prepare(self, dicom_id: str, image: Path, work: Path) -> None:
        (work / _IN).mkdir(parents=True, exist_ok=True)
        grey = cv2.imread(str(image), cv2.IMREAD_GRAYSCALE)
        if grey is None:
            return  # it is then missed among what comes out
        left, top, width, height, side = _square_of(grey)
        square = np.zeros((side, side), np.uint8)
        down, across = (side - height) // 2, (side - width) // 2
        square[down : down + height, across : across + width] = grey[top : top + height, left : left + width]
        cv2.imwrite(str(work / _IN / f"{dicom_id}.png"), cv2.resize(square, (_SIDE, _SIDE)))
        # A landmark's place in the radiograph: times the scale, plus these.
        scale, moved = side / _SIDE, (left - across, top - down)
        (work / f"{dicom_id}.json").write_text(json.dumps([scale, *moved]))

    def lungs(self, dicom_id: str, size: Size, work: Path, problems: Problems) -> Boxes | None:
        path = work / _OUT / f"{dicom_id}.csv"
        try:
            nodes = np.loadtxt(path, delimiter=",", skiprows=1, usecols=(1, 2), ndmin=2)
            scale, right, down = json.loads((work / f"{dicom_id}.json").read_text())
        except (OSError, ValueError) as problem:
            problems.add("lungs_missing", path.name, dicom_id, str(problem))
            return None
        if len(nodes) < _NODES["left lung"].stop or not np.isfinite(nodes).all():
            problems.add("lungs_missing", path.name, dicom_id, f"{len(nodes)} landmarks")
            return None
        places = np.rint(nodes * scale + (right, down)).astype(int).clip(0, (size[1] - 1, size[0] - 1))
        boxes = {}
        for label in LUNGS:
            (x1, y1), (x2, y2) = places[_NODES[label]].min(0), places[_NODES[label]].max(0)
            boxes[label] = Box.of_pixels((int(x1), int(y1), int(x2) + 1, int(y2) + 1), size)
        return boxes


def _square_of(grey: np.ndarray) -> tuple[int, int, int, int, int]:
    """What is left without black edges: left, top, width, height; and the side of the square around it."""
    left, top, width, height = cv2.boundingRect((grey > 1).astype(np.uint8))
    if not width or not height:
        left, top, (height, width) = 0, 0, grey.shape
    return left, top, width, height, max(width, height)


def write_lung_boxes(
    tool: Tool, images: dict[str, str], sources: Sources, out: Path, problems: Problems, batch: int
) -> Counter[str]:
    """Run the tool batch by batch; a file a batch, written whole. Gives counts.

    Raises:
        CallError: ``out`` holds boxes of another tool or of other radiographs. EngineError: the tool failed.
    """
    if batch < 1:
        raise CallError(f"--batch is {batch}; it is one at least.")
    names = list(images)
    sizes = read_sizes(sources.metadata, problems, set(names))
    counts: Counter[str] = Counter()
    batches = [names[start : start + batch] for start in range(0, len(names), batch)]
    for number, taken in enumerate(progress(batches, tool.name)):
        path = out / f"{number:05d}.jsonl"
        if path.is_file():
            rows = _lines(path)
            if [row["dicom_id"] for row in rows] != taken or {row["source"] for row in rows} != {tool.name}:
                raise CallError(f"{path} is of another run; choose another sources.lung_boxes or remove it.")
        else:
            rows = _segmented(tool, taken, images, sizes, sources, problems)
            write_whole(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
        counts["radiographs with both lungs"] += sum(row["lungs"] is not None for row in rows)
        counts["radiographs without"] += sum(row["lungs"] is None for row in rows)
    return counts


def _segmented(
    tool: Tool,
    names: Sequence[str],
    images: dict[str, str],
    sizes: dict[str, Size],
    sources: Sources,
    problems: Problems,
) -> list[dict[str, Any]]:
    found: dict[str, Boxes | None] = dict.fromkeys(names)
    with tempfile.TemporaryDirectory(prefix="xflow-lungs-") as folder:
        work = Path(folder)
        # A single picture that cannot be read would end the tool's whole run.
        whole = [n for n in names if n in sizes and check_image(sources.images / images[n], sizes[n], problems)]
        for name in whole:
            tool.prepare(name, sources.images / images[name], work)
        if whole:
            command = tool.command(work)
            try:
                ended = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
            except OSError as problem:
                raise EngineError(f"{command[0]} cannot be run: {problem.strerror or problem}.") from None
            if ended.returncode:
                said = (ended.stderr.strip() or ended.stdout.strip() or "it said nothing").splitlines()[-1]
                raise EngineError(f"{tool.name} failed ({' '.join(command)}): {said}")
        for name in whole:
            found[name] = tool.lungs(name, sizes[name], work, problems)
    return [
        {
            "dicom_id": name,
            "lungs": None if boxes is None else {label: box.to_json() for label, box in boxes.items()},
            "source": tool.name,
        }
        for name, boxes in found.items()
    ]


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """What a run wrote.

    Raises:
        CallError: there is nothing, or a file is damaged.
    """
    files = sorted(folder.glob("*[0-9].jsonl"))
    if not files:
        raise CallError(f"{folder} holds no lung boxes; `python -m training lungs` makes them.")
    return [row for path in files for row in _lines(path)]


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not all({"dicom_id", "lungs", "source"} <= set(row) for row in rows):
            raise ValueError("a line is not a radiograph's lungs")
        return rows
    except (OSError, ValueError, TypeError) as problem:
        raise CallError(f"{path} cannot be read ({problem}); remove it and run `python -m training lungs`.") from None
