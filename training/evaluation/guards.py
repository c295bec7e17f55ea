"""``python -m training guards --data PACK --bundle NAME --out DIR [--page FILE.md]``

What is refused and what is warned of, on sets made from the open chest X-ray pack and on pictures of other things,
through the product's own path: the bytes of a file are read, and the engine admits the radiograph or refuses it
(:meth:`xflow_core.workflow.engine.Engine.admit`). Writes ``metrics.json`` and ``table.md`` into DIR, and with
``--page`` the documentation's page, so that its figures are those that were measured.

Each set has an expectation: "pass", "refuse", "warn", or none where opinions may differ. Changed pictures are made from
the dev split alone, which the networks did not learn from. Evidence is told apart: ``reading`` (the file itself is
refused, as colour is), ``header``, ``pixels`` (simple measures), ``learned`` (the bundle's guard)."""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from training.compact.guard_pictures import frontal_projections, lateral_projections, other_pictures
from training.evaluation.cases import Case, as_dicom, as_png, read_cases
from training.evaluation.printed import percent
from training.evaluation.rates import Rate
from xflow_core.bundles.loading import load_engine
from xflow_core.domain.errors import CallError, RadiographError, RadiographRefused
from xflow_core.export.files import write_whole
from xflow_core.radiograph.guards import inspect_header_and_pixels
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.workflow.engine import Engine

LOG = logging.getLogger(__name__)

EVIDENCE = ("reading", "header", "pixels", "learned")
# Far from the seeds of any training run of the guard, which count up from 0.
_SEED = 77_000
_ACCEPTED = "Run against the guards"


@dataclass(frozen=True)
class Judged:
    """What happened to one picture. ``evidence``: all that spoke for the refusal; ``signs``: what the header
    or the learned guard warned of without refusing."""

    refused: bool
    evidence: frozenset[str]
    signs: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class PictureSet:
    """Files that should all fare alike.

    group: the table's part. expected: "pass", "refuse", "warn" (passed, with a warning), or None.
    files: the bytes of each, made when asked for.
    """

    group: str
    name: str
    expected: str | None
    files: Callable[[], Iterable[bytes]]
    accept_image: bool = False


def judge(engine: Engine, data: bytes, accept_image: bool = False) -> Judged:
    """One file on the product's path, up to the first question.

    With ``accept_image``, ``refused`` means that what would have been refused is run and says so in its warnings.
    """
    try:
        radiograph = read_radiograph(data, accept_image=accept_image)
    except RadiographError:
        return Judged(True, frozenset({"reading"}))
    against, doubts = inspect_header_and_pixels(radiograph)
    # The same picture from a file without a header: what is left speaks from the pixels.
    bare = replace(radiograph, record=replace(radiograph.record, source="png"))
    by_pixels = inspect_header_and_pixels(bare)[0]
    evidence = {"pixels"} if by_pixels else set()
    if set(against) - set(by_pixels):
        evidence.add("header")
    try:
        image = engine.admit(radiograph, accept_image=accept_image)
    except RadiographRefused as refusal:
        if str(refusal) != " ".join(against):
            evidence.add("learned")
        return Judged(True, frozenset(evidence))
    at_reading = radiograph.record.warnings
    said = [warning for warning in image.radiograph.record.warnings if warning not in at_reading]
    by_engine = [warning for warning in said if warning.startswith(_ACCEPTED)]
    by_reading = [warning for warning in at_reading if warning.startswith(_ACCEPTED)]
    if by_reading:
        evidence.add("reading")
    if any(not warning.endswith(against) for warning in by_engine):
        evidence.add("learned")
    # That a file without a header says nothing is said of all of them.
    usual = doubts if radiograph.record.source != "dicom" else ()
    signs = tuple(warning for warning in said if warning not in by_engine and warning not in usual)
    return Judged(bool(by_engine or by_reading), frozenset(evidence), signs)


def figures_of(judged: Iterable[Judged]) -> dict[str, Any]:
    """n, refused, warned of (and not refused), and refused by each kind of evidence (more than one may have spoken)."""
    known = list(judged)
    return {
        "n": len(known),
        "refused": Rate.of(j.refused for j in known).to_json(),
        "warned": Rate.of(not j.refused and bool(j.signs) for j in known).to_json(),
        "by": {kind: sum(kind in j.evidence for j in known) for kind in EVIDENCE},
    }


# The sets.


def tilted(grey: np.ndarray, degrees: float) -> np.ndarray:
    """Turned about its middle, black where nothing was."""
    height, width = grey.shape
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), degrees, 1.0)
    return np.asarray(cv2.warpAffine(grey, matrix, (width, height)))


def framed(grey: np.ndarray) -> np.ndarray:
    height, width = grey.shape
    return np.pad(grey, ((height // 6,) * 2, (width // 6,) * 2))


# Ways to spoil a radiograph as a whole: what should come of it, and the change on uint8 ``[H, W]``.
CHANGES: dict[str, tuple[str | None, Callable[[np.ndarray], np.ndarray]]] = {
    "inverted": ("refuse", lambda g: 255 - g),
    "rotated by 90 degrees, counter-clockwise": ("refuse", lambda g: np.rot90(g, 1)),
    "rotated by 180 degrees": ("refuse", lambda g: np.rot90(g, 2)),
    "rotated by 90 degrees, clockwise": ("refuse", lambda g: np.rot90(g, 3)),
    "flipped top to bottom": ("refuse", lambda g: g[::-1]),
    "inverted and rotated by 180 degrees": ("refuse", lambda g: 255 - np.rot90(g, 2)),
    "mirrored (left to right)": ("warn", lambda g: g[:, ::-1]),
    "tilted by 10 degrees": ("pass", partial(tilted, degrees=10)),
    "tilted by 20 degrees": (None, partial(tilted, degrees=20)),
    "tilted by 45 degrees": (None, partial(tilted, degrees=45)),
    "with a black frame of a sixth on each side": ("pass", framed),
    "two radiographs side by side": ("refuse", lambda g: np.hstack([g, g])),
}

# Rows and columns that a crop keeps, as shares of the picture: top, bottom, left, right.
Part = tuple[float, float, float, float]
CROPS: dict[str, tuple[str | None, tuple[Part, ...]]] = {
    "the middle 90 % of height and width": ("pass", ((0.05, 0.95, 0.05, 0.95),)),
    "the middle 80 %": ("pass", ((0.1, 0.9, 0.1, 0.9),)),
    "the middle 70 %": (None, ((0.15, 0.85, 0.15, 0.85),)),
    "the middle 50 %": ("refuse", ((0.25, 0.75, 0.25, 0.75),)),
    "one half, left or right": ("refuse", ((0.0, 1.0, 0.0, 0.5), (0.0, 1.0, 0.5, 1.0))),
    "the upper half": ("refuse", ((0.0, 0.5, 0.0, 1.0),)),
    "the lower half": ("refuse", ((0.5, 1.0, 0.0, 1.0),)),
    "a quarter": (
        "refuse",
        ((0.0, 0.5, 0.0, 0.5), (0.0, 0.5, 0.5, 1.0), (0.5, 1.0, 0.0, 0.5), (0.5, 1.0, 0.5, 1.0)),
    ),
}


def crop(picture: np.ndarray, kept: Part) -> np.ndarray:
    height, width = picture.shape
    top, bottom, left, right = kept
    return picture[round(top * height) : round(bottom * height), round(left * width) : round(right * width)]


def blanks() -> list[np.ndarray]:
    """Black, white, grey, nearly so, and noise, at four sizes."""
    rng = np.random.default_rng(_SEED)
    made: list[np.ndarray] = []
    for shape in ((128, 128), (512, 512), (1024, 1024), (2000, 1600)):
        for level in (0, 128, 255):
            noise = level + rng.integers(-1, 2, shape)
            made += [np.full(shape, level, np.uint8), np.clip(noise, 0, 255).astype(np.uint8)]
        spot, marked = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
        spot[shape[0] // 2, shape[1] // 2] = 255
        cv2.putText(marked, "R", (8, shape[0] // 6), cv2.FONT_HERSHEY_SIMPLEX, shape[0] / 256, 255, 2)
        made += [spot, marked, rng.integers(0, 256, shape, dtype=np.uint8)]
    return made


def tinted(grey: np.ndarray) -> np.ndarray:
    """A radiograph in false colours, uint8 ``[H, W, 3]``."""
    return np.asarray(cv2.applyColorMap(grey, cv2.COLORMAP_JET))


def drawn_on(grey: np.ndarray, side: float | None = None) -> np.ndarray:
    """A radiograph stored as colour, uint8 ``[H, W, 3]``, with a red frame, its side a share of the picture's, as
    annotated exports have it; None for no frame."""
    height, width = grey.shape
    picture = np.repeat(grey[..., None], 3, axis=2)
    if side is None:
        return picture
    top, left = round(height * (0.5 - side / 2)), round(width * (0.5 - side / 2))
    corner = (left + round(width * side), top + round(height * side))
    cv2.rectangle(picture, (left, top), corner, (255, 0, 0), max(1, height // 200))
    return picture


def photographs() -> list[np.ndarray]:
    """The colour photographs inside scikit-image, uint8 ``[H, W, 3]``."""
    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("The guards' colour sets need the package scikit-image.")
    folder = Path(spec.origin).parent / "data"
    paths = sorted(path for path in folder.iterdir() if path.suffix in (".png", ".jpg"))
    pictures = [cv2.imread(str(path), cv2.IMREAD_COLOR) for path in paths]
    return [picture[..., ::-1] for picture in pictures if picture is not None and np.ptp(picture, axis=2).max() > 32]


def unseen_pictures() -> list[np.ndarray]:
    """Grey pictures of pydicom-data that show no chest radiograph and were in no training: MR, CT, ultrasound, a foot;
    one file of each acquisition. None where the package is not installed."""
    import pydicom

    made: list[np.ndarray] = []
    spec = importlib.util.find_spec("data_store")
    if spec is None or spec.origin is None:
        LOG.warning("pydicom-data is not installed; its pictures are left out")
        return made
    folder = Path(spec.origin).parent / "data"
    names = ("MR2_UNCI", "MR-SIEMENS-DICOM-WithOverlays", "emri_small", "eCT_Supplemental", "RG3_UNCI")
    names += ("US1_UNCI", "OBXXXX1A", "gdcm-US-ALOKA-16", "color3d_jpeg_baseline")
    for name in names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pixels = pydicom.dcmread(folder / f"{name}.dcm").pixel_array
        if pixels.ndim == 4 or (pixels.ndim == 3 and pixels.shape[-1] != 3):
            pixels = pixels[0]
        if pixels.ndim == 3:
            pixels = pixels.mean(-1)
        values = pixels.astype(np.float32)
        span = max(float(np.ptp(values)), 1.0)
        made.append(np.rint((values - values.min()) * (255 / span)).astype(np.uint8))
    return made


def picture_sets(data: Path, every: int = 1) -> list[PictureSet]:
    """All sets; ``every`` takes each n-th picture of each, for a quick look."""
    dev = read_cases(data, ("dev",))[::every]
    header, other, accepted = "told by the header", "not a chest", "the same with --accept-image: run, and said"

    def of_dev(
        group: str, name: str, expected: str | None, make: Callable[[np.ndarray], list[bytes]], accept: bool = False
    ) -> PictureSet:
        # What a header says, and that a colour picture is run, does not hang on the picture: a fifth of them will do.
        cases = dev[::5] if accept or group == header else dev
        return PictureSet(
            group, name, expected, lambda: (file for case in cases for file in make(case.grey())), accept_image=accept
        )

    def of_pictures(
        group: str, name: str, expected: str, make: Callable[[], Sequence[np.ndarray]], accept: bool = False
    ) -> PictureSet:
        return PictureSet(group, name, expected, lambda: map(as_png, make()[::every]), accept_image=accept)

    as_they_are = [*_by_source(read_cases(data, ("train",))[::every], "train"), *_by_source(dev, "dev")]
    dressed = [
        of_dev("as it is", f"dev as a 12-bit CR, {kind}", "pass", partial(_cr, PhotometricInterpretation=kind))
        for kind in ("MONOCHROME2", "MONOCHROME1")
    ]
    told = [
        of_dev(header, "a lateral by its header", "refuse", partial(_cr, ViewPosition="LL")),
        of_dev(header, "a hand by its header", "refuse", partial(_cr, BodyPartExamined="HAND")),
        of_dev(
            header,
            "mirrored, and the header says so",
            "warn",
            lambda grey: _cr(grey[:, ::-1], PatientOrientation=["R", "F"]),
        ),
    ]
    changed = [of_dev("changed", name, wanted, partial(_changed, change)) for name, (wanted, change) in CHANGES.items()]
    cropped = [of_dev("cropped", name, wanted, partial(_cropped, parts)) for name, (wanted, parts) in CROPS.items()]
    colour = [
        of_dev("colour", "a radiograph in false colours", "refuse", partial(_changed, tinted)),
        of_dev("colour", accepted, "refuse", partial(_changed, tinted), accept=True),
        of_dev("colour", "a red frame round half of it", "refuse", partial(_changed, partial(drawn_on, side=0.7))),
        of_dev("colour", "a red side marker", "pass", partial(_changed, partial(drawn_on, side=0.02))),
        of_dev("colour", "grey stored as three channels", "pass", partial(_changed, drawn_on)),
        of_pictures("colour", "colour photographs", "refuse", photographs),
        of_pictures("colour", accepted, "refuse", photographs, accept=True),
    ]
    return [
        *as_they_are,
        *dressed,
        of_pictures("as it is", "frontal views of one CT", "pass", lambda: frontal_projections(data, 60, _SEED, 512)),
        *told,
        *changed,
        *cropped,
        of_pictures("blank", "blank, nearly blank, noise", "refuse", blanks),
        *colour,
        of_pictures(other, "lateral views of that CT", "refuse", lambda: lateral_projections(data, 60, _SEED + 1, 512)),
        of_pictures(other, "MR, CT, ultrasound, a foot: in no training", "refuse", unseen_pictures),
        of_pictures(
            other,
            "made and packaged pictures like those of the training, another seed",
            "refuse",
            lambda: list(other_pictures(data, _SEED + 2, 320)[::3]),
        ),
    ]


def _by_source(cases: Sequence[Case], split: str) -> list[PictureSet]:
    def files(source: str) -> Iterator[bytes]:
        return (case.path.read_bytes() for case in cases if case.source == source)

    sources = dict.fromkeys(case.source for case in cases)
    return [PictureSet("as it is", f"{source}, {split}", "pass", partial(files, source)) for source in sources]


def _cr(grey: np.ndarray, **attributes: Any) -> list[bytes]:
    return [as_dicom(grey, **attributes)]


def _changed(change: Callable[[np.ndarray], np.ndarray], grey: np.ndarray) -> list[bytes]:
    return [as_png(change(grey))]


def _cropped(parts: Sequence[Part], grey: np.ndarray) -> list[bytes]:
    return [as_png(crop(grey, kept)) for kept in parts]


def kept_lungs(data: Path) -> dict[str, dict[str, float]]:
    """How much of the drawn lungs each crop keeps, on the dev pictures with drawn lungs: mean and least."""
    drawn = [lungs for case in read_cases(data, ("dev",)) if (lungs := case.lungs()) is not None]
    shares = {
        name: [float(crop(lungs, kept).sum() / lungs.sum()) for lungs in drawn for kept in parts]
        for name, (_, parts) in CROPS.items()
    }
    return {
        name: {"n": len(values), "mean": float(np.mean(values)), "least": min(values)}
        for name, values in shares.items()
    }


def files_of_the_pack(engine: Engine, data: Path) -> dict[str, dict[str, Any]]:
    """The pack's own DICOM files one by one."""
    notes = {}
    with (data / "dicom" / "index.csv").open(newline="") as stream:
        notes = {Path(row["file"]).name: row["note"] for row in csv.DictReader(stream)}
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((data / "dicom").glob("*/*.*")):
        judged = judge(engine, path.read_bytes())
        found[path.name] = {
            "what": notes.get(path.name, ""),
            "refused": judged.refused,
            "by": sorted(judged.evidence),
            "warned": list(judged.signs),
        }
    return found


# What is written.


def right(entry: dict[str, Any]) -> Rate | None:
    """How many of a set fared as expected."""
    n, refused, warned = entry["n"], entry["refused"]["count"], entry["warned"]["count"]
    counts = {"pass": n - refused, "refuse": refused, "warn": refused + warned}
    return None if entry["expected"] is None else Rate(counts[entry["expected"]], n)


def table(entries: Iterable[dict[str, Any]]) -> list[str]:
    head = ["pictures", "n", "should be", "refused", "warned of", "reading", "header", "pixels", "learned"]
    words = {"pass": "passed", "refuse": "refused", "warn": "warned of", None: "-"}
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for entry in entries:
        refused, warned = (Rate(entry[key]["count"], entry["n"]) for key in ("refused", "warned"))
        by = [str(entry["by"][kind] or "") for kind in EVIDENCE]
        cells = [entry["name"], str(entry["n"]), words[entry["expected"]], refused.short, warned.short, *by]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


GROUPS = {
    "as it is": "Chest radiographs as they are",
    "told by the header": "Told by the header (the pixels are an upright frontal chest)",
    "changed": "The dev split's radiographs, changed (PNG: no header to help)",
    "cropped": "The same, cropped",
    "blank": "Blank",
    "colour": "Colour",
    "not a chest": "Not a frontal chest radiograph",
}


def tables(figures: dict[str, Any], deeper: str = "##") -> list[str]:
    lines = []
    for group, title in GROUPS.items():
        entries = [entry for entry in figures["sets"] if entry["group"] == group]
        if group == "as it is":
            for split in ("train", "dev"):
                lot = [entry for entry in entries if entry["name"].endswith(f", {split}")]
                if lot:
                    entries.append(_together(lot, f"**all of them, {split}**"))
        lines += [f"{deeper} {title}", "", *table(entries)]
        if group == "cropped":
            kept = ", ".join(
                f"{name} {percent(part['mean'])} (least {percent(part['least'])})"
                for name, part in figures["kept_lungs"].items()
            )
            lines += [f"Share of the drawn lungs that a crop keeps, on the dev pictures with drawn lungs: {kept}.", ""]
    lines += [f"{deeper} The pack's own DICOM files", "", "| file | what it is | | by |", "|---|---|---|---|"]
    for name, part in figures["files"].items():
        word = "refused" if part["refused"] else "passed"
        what = part["what"].replace("|", "/")
        lines.append(f"| {name} | {what} | {word} | {', '.join(part['by'])} |")
    return [*lines, ""]


def summary(figures: dict[str, Any]) -> list[str]:
    """One line of Markdown for each set that has an expectation: how many fared as they should; for the model card."""
    words = {"pass": "passed", "refuse": "refused", "warn": "warned of"}
    lines = ["| pictures | should be | were |", "|---|---|---|"]
    for entry in figures["sets"]:
        if entry["expected"] is not None:
            lines.append(f"| {entry['name']} | {words[entry['expected']]} | {right(entry)} |")
    return [*lines, ""]


def _together(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    n = sum(entry["n"] for entry in entries)
    return {
        "name": name,
        "expected": "pass",
        "n": n,
        "refused": {"count": sum(entry["refused"]["count"] for entry in entries)},
        "warned": {"count": sum(entry["warned"]["count"] for entry in entries)},
        "by": {kind: sum(entry["by"][kind] for entry in entries) for kind in EVIDENCE},
    }


def undetected(figures: dict[str, Any]) -> list[str]:
    """Sentences: what should be refused or warned of and often passes."""
    lines = []
    for entry in figures["sets"]:
        rate = right(entry)
        if entry["expected"] in ("refuse", "warn") and rate is not None and rate.share is not None:
            passed = rate.n - rate.count
            if passed:
                lines.append(f"- {entry['name']}: {passed} of {rate.n} pass without a word.")
    return lines or ["- Nothing in these sets."]


def write_page(figures: dict[str, Any]) -> str:
    bundle = figures["bundle"]
    evidence = ["| evidence | refuses | warns |", "|---|---|---|", *(f"| {' | '.join(kind)} |" for kind in _KINDS)]
    return PAGE.format(
        name=bundle["name"],
        version=bundle["version"],
        evidence="\n".join(evidence),
        undetected="\n".join(undetected(figures)),
        tables="\n".join(tables(figures, "###")).rstrip(),
    )


# Kind of evidence, what it refuses, what it warns of.
_KINDS = (
    (
        "reading",
        "colour (more than 0.1 % of the pixels), several frames or pages, sides under 64 or over 8192 pixels, damaged "
        "files, pixels that are no numbers",
        "an orientation tag, transparency",
    ),
    (
        "header (DICOM)",
        "another modality than radiography; another part of the body; a lateral or oblique view, by view position, "
        "view code or patient orientation",
        "a body part, view or modality that is not named or not known; decubitus; a patient orientation that is "
        "mirrored or turned",
    ),
    (
        "pixels",
        "blank; a few grey levels, large even areas, noise or fine patterns without large shapes; a shape beyond 2.5 "
        "to 1; nearly all padding",
        "-",
    ),
    (
        "learned (the bundle)",
        "not one frontal chest radiograph; inverted; rotated by 90, 180 or 270 degrees",
        "mirrored: the heart lies on the picture's left",
    ),
)

PAGE = """# Guards: what is not segmented

XFlow answers questions about one upright frontal chest radiograph, bones bright. What is plainly something else is
refused (exit status 3, trace status `refused`, no mask); what is doubtful is run with a warning, which stands in the
trace, on the overlay and on the screen. `--accept-image` runs a refused picture all the same and keeps every refusal
as a warning. The figures are of the bundle `{name}` {version}, made by `python -m training guards`.

Not for clinical use.

## What speaks against a picture

{evidence}

All four look at every picture; a header is not believed against the picture, nor the picture against its header. A
PNG, JPEG, TIFF, NIfTI, NRRD or MHA file says nothing of what it shows, and the trace says that it says nothing.

A mirrored picture is only warned of: a heart on the right is also what dextrocardia, a shift of the mediastinum or a
large effusion look like, and the reader can tell.

## What passes undetected

Of the sets below, those that should be refused or warned of and are not always:

{undetected}

Not measured, for want of pictures: real lateral radiographs (the laterals here are projections of one CT, and headers),
chests of small children, photographs of a screen or a film, abdomen or neck radiographs that show part of the lungs,
dextrocardia.

A half or a quarter of a chest is not a chest: one lung is missing. A crop that keeps four fifths of height and width
still is one and should pass; what is cut off is not looked at, and a lung's box then ends at the picture's edge.

## Rates

Shares with 95 % Wilson intervals. "reading", "header", "pixels", "learned": how many pictures each kind of evidence
refused; more than one may have. Changed pictures are made from the dev split, which the networks did not learn from;
"train" rows are pictures that they learned from.

{tables}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the open chest X-ray pack (holds manifest.csv)")
    parser.add_argument("--bundle", default="compact")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path, help="also write the documentation's page here")
    parser.add_argument("--every", type=int, default=1, help="take each n-th picture of every set: a quick look")
    parser.add_argument("--threads", type=int, default=1)


def measure(engine: Engine, data: Path, every: int = 1) -> dict[str, Any]:
    """All figures of ``metrics.json``."""
    sets = []
    for part in picture_sets(data, every):
        entry = figures_of(judge(engine, file, part.accept_image) for file in part.files())
        entry = {"group": part.group, "name": part.name, "expected": part.expected, **entry}
        rate = right(entry)
        entry["as_expected"] = None if rate is None else rate.to_json()
        sets.append(entry)
        counts = (entry["n"], entry["refused"]["count"], entry["warned"]["count"])
        LOG.info("%s: %d, refused %d, warned of %d", part.name, *counts)
    return {
        "bundle": engine.identity.to_json(),
        "notice": "not for clinical use",
        "sets": sets,
        "kept_lungs": kept_lungs(data),
        "files": files_of_the_pack(engine, data),
    }


def run(arguments: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(arguments.threads)
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise CallError(f"The folder {arguments.out} cannot be made: {problem.strerror}.") from None
    if arguments.every < 1:
        raise CallError(f"--every is {arguments.every}; it counts from 1.")
    figures = measure(load_engine(arguments.bundle, "cpu"), arguments.data, arguments.every)
    write_whole(arguments.out / "metrics.json", (json.dumps(figures, indent=1, allow_nan=False) + "\n").encode())
    write_whole(arguments.out / "table.md", "\n".join(tables(figures)).encode())
    if arguments.page is not None:
        write_whole(arguments.page, write_page(figures).encode())
