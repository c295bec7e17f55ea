"""``python -m training pack-set --data PACK --split dev --out FOLDER``: the open pack as an evaluation set.

Rows at chest and lung level for the findings that ChestX-Det's radiologists contoured (consolidation, effusion,
atelectasis, cardiomegaly, and opacity as DESIGN.md defines it), on the contoured images, plus all of them as
negatives on images whose report says "No Finding" (noisy: about one in eight looks abnormal; ``source`` tells the
rows apart). Each row also says the patient, the view, the age and the sex, as far as the pack's manifest does. On
images whose lungs a person drew, one question per image is asked for the lung boxes alone (its ``mask`` is unknown:
they go to a set of their own, ``lungs.jsonl``). A piece of a contour belongs to the lung in whose half of the image its
centre lies; where it reaches far into both halves the lung-level rows of that image and finding are left out."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy import ndimage

from training.compact.pack import MERGED, OPACITY, manifest_rows, split_lungs
from training.evaluation.rows import write_rows
from xflow_core.domain.findings import LUNGS
from xflow_core.domain.geometry import Box
from xflow_core.export.files import write_mask

LOG = logging.getLogger(__name__)

FINDINGS = ("consolidation", "effusion", "atelectasis", "opacity", "cardiomegaly")
_SPECK = 1e-4
_STRADDLES = 0.25  # share of a piece in the smaller half from which on its side is not clear


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the open chest X-ray pack (holds manifest.csv)")
    parser.add_argument("--split", choices=("train", "dev"), default="dev")
    parser.add_argument("--out", type=Path, required=True, help="a folder for the sets and their masks")


def sides_of(mask: np.ndarray) -> dict[str, np.ndarray] | None:
    """The mask's pieces by lung; None where a piece lies in both halves of the image."""
    sides = {label: np.zeros_like(mask) for label in LUNGS}
    labels, _ = ndimage.label(mask, np.ones((3, 3)))
    middle = mask.shape[1] // 2
    for number, place in enumerate(ndimage.find_objects(labels), start=1):
        piece = np.zeros_like(mask)
        piece[place] = labels[place] == number
        left_half = piece[:, :middle].sum() / piece.sum()
        if piece.mean() < _SPECK:
            continue
        if _STRADDLES < left_half < 1 - _STRADDLES:
            return None
        sides[LUNGS[0] if left_half > 0.5 else LUNGS[1]] |= piece
    return sides


def run(arguments: argparse.Namespace) -> None:
    data, out = arguments.data.resolve(), arguments.out.resolve()
    (out / "masks").mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for (source, name), entries in manifest_rows(data).items():
        contoured = source.startswith("nih_chestxdet")
        if entries[0]["split"] != arguments.split or not (contoured or source == "nih_normal_1024"):
            continue
        image = data / entries[0]["file"]
        drawn: dict[str, np.ndarray] = {}
        for entry in entries:
            if entry["mask_file"]:
                finding = MERGED.get(entry["finding"], entry["finding"])
                mask = np.asarray(Image.open(data / entry["mask_file"]).convert("L")) > 127
                drawn[finding] = drawn[finding] | mask if finding in drawn else mask
        parts = [drawn[finding] for finding in OPACITY if finding in drawn]
        if parts:
            drawn["opacity"] = np.logical_or.reduce(parts)
        for finding in FINDINGS:
            asked = _rows_of(finding, drawn.get(finding), f"{source}-{name}", image, source, out)
            rows += [{**row, **_radiograph(entries[0])} for row in asked]
    write_rows(out / "set.jsonl", rows)
    positive = sum(row["mask"] is not None for row in rows)
    LOG.info("%d rows, %d positive, in %s", len(rows), positive, out / "set.jsonl")

    lungs = []
    for (source, name), entries in manifest_rows(data).items():
        pair = None
        for entry in entries:
            if entry["finding"] == "lung" and entry["split"] == arguments.split:
                merged = np.asarray(Image.open(data / entry["mask_file"]).convert("L")) > 127
                pair = split_lungs(merged)
        if pair is not None:
            boxes = {label: box.to_json() for label, mask in zip(LUNGS, pair, strict=True) if (box := Box.around(mask))}
            lungs.append({"id": f"{source}-{name}", "image": _relative(data / entries[0]["file"], out), "lungs": boxes})
            lungs[-1]["source"] = source
    write_rows(out / "lungs.jsonl", lungs)
    LOG.info("%d images with drawn lungs in %s", len(lungs), out / "lungs.jsonl")


def _radiograph(entry: dict[str, str]) -> dict[str, Any]:
    """What the pack's manifest says of the radiograph; what it leaves blank is left out."""
    known: dict[str, Any] = {key: entry[key] for key in ("patient", "view", "sex") if entry[key]}
    return known | ({"age": float(entry["age"])} if entry["age"] else {})


def _relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path, folder)


def _rows_of(
    finding: str, mask: np.ndarray | None, name: str, image: Path, source: str, out: Path
) -> list[dict[str, Any]]:
    places: dict[tuple[str, ...], np.ndarray | None] = {("chest",): mask}
    if finding == "cardiomegaly":
        places = {("heart",): mask}
    elif mask is None:
        places |= {(lung,): None for lung in LUNGS}
    elif (sides := sides_of(mask)) is not None:
        places |= {(lung,): side if side.any() else None for lung, side in sides.items()}
    rows = []
    for regions, truth in places.items():
        level = "lung" if regions[0] in LUNGS else "chest"
        words = f"Segment the {finding}." if level == "chest" else f"Segment the {finding} in the {regions[0]}."
        identity = f"{name}-{finding}-{regions[0].replace(' ', '_')}"
        file = None
        if truth is not None:
            file = f"masks/{identity}.png"
            write_mask(out / file, truth)
        rows.append(
            {
                "id": identity,
                "image": _relative(image, out),
                "instruction": words,
                "finding": finding,
                "regions": list(regions),
                "level": level,
                "mask": file,
                "lungs": None,
                "source": source,
            }
        )
    return rows
