"""The open chest X-ray pack as arrays: pictures as the engine sees them, and what was contoured on them as bits.

The pack (``manifest.csv``, one row per image and finding) mixes sources that annotate different things; what a source
does not annotate is unknown there, never absent:

- ``nih_chestxdet_*``: polygons of ChestX-Det's 13 classes; ``none_annotated`` means that none of them was seen;
- ``montgomery_lung_512``, ``v7_covid_lung``: lungs, merged in one mask; split here into right and left;
- ``nih_bbox_1024``: radiologists' boxes; ``nih_normal_1024``, ``nih_edema_label_1024``: report labels alone.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import numpy as np
from scipy import ndimage

from xflow_core.domain.errors import CallError
from xflow_core.radiograph.square import to_square

BITS = (
    "right lung",
    "left lung",
    "consolidation",
    "effusion",
    "atelectasis",
    "cardiomegaly",
    "fibrosis",
    "pleural_thickening",
    "nodule_mass",
    "pneumothorax",
    "emphysema",
    "calcification",
    # Never contoured in the pack; boxes and drawn lesions are kept under these.
    "pneumonia",
    "edema",
)
# "Opacity" on data that annotate finer classes is the union of these.
OPACITY = ("consolidation", "atelectasis", "nodule_mass")
MERGED = {"nodule": "nodule_mass", "mass": "nodule_mass", "diffuse_nodule": "nodule_mass"}
_VERSION = 1


def bit(name: str) -> int:
    """The value of a named bit in :attr:`Pack.masks`."""
    return 1 << BITS.index(name)


@dataclass(frozen=True)
class Record:
    """One image of the pack.

    findings: what the manifest says of it, in the manifest's words ("consolidation", "none_annotated", "lung", ..).
    boxes: per finding, ``(x1, y1, x2, y2)`` normalised to the image.
    size: ``(height, width)`` of the file.
    """

    id: str
    source: str
    split: str
    patient: str
    findings: tuple[str, ...]
    nih_labels: tuple[str, ...]
    view: str
    boxes: dict[str, tuple[tuple[float, float, float, float], ...]]
    size: tuple[int, int]
    file: str

    @property
    def contoured(self) -> bool:
        """ChestX-Det's 13 classes were looked for and drawn; a class without a contour is absent."""
        return self.source.startswith("nih_chestxdet")

    @property
    def normal(self) -> bool:
        """A report says that nothing is wrong with this chest."""
        return self.source == "nih_normal_1024" or "normal" in self.nih_labels

    @property
    def has_lungs(self) -> bool:
        """Both lungs were drawn by a person and could be told apart."""
        return "lung" in self.findings


@dataclass(frozen=True, eq=False)
class Pack:
    """The pack in memory.

    images: uint8 ``[N, S, S]``, stretched to the square as at run time.
    masks: uint16 ``[N, S, S]``, :data:`BITS`.
    sha256: of the manifest.
    """

    records: tuple[Record, ...]
    images: np.ndarray
    masks: np.ndarray
    sha256: str

    def where(self, split: str) -> list[int]:
        """Indices of a split's records ("train" or "dev", apart by patient)."""
        return [index for index, record in enumerate(self.records) if record.split == split]

    def mask(self, index: int, name: str) -> np.ndarray:
        """bool ``[S, S]`` of one named bit; ``opacity`` is the union of :data:`OPACITY`."""
        value = sum(bit(part) for part in OPACITY) if name == "opacity" else bit(name)
        return (self.masks[index] & value) > 0


def stretch(grey: np.ndarray) -> np.ndarray:
    """The engine's grey of an 8-bit picture: linear between its 0.5 and 99.5 percentiles, uint8."""
    low, high = np.percentile(grey, (0.5, 99.5))
    if high <= low:
        return np.zeros_like(grey, np.uint8)
    return np.clip(np.rint((grey.astype(np.float32) - low) * (255.0 / (high - low))), 0, 255).astype(np.uint8)


def split_lungs(merged: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Right and left lung of a merged mask: its two largest pieces; None when they hang together."""
    labels, count = ndimage.label(merged)
    if count < 2:
        return None
    sizes = ndimage.sum(merged, labels, range(1, count + 1))
    first, second = np.argsort(-sizes)[:2]
    if sizes[second] < 0.01 * merged.size:
        return None
    pieces = sorted((labels == first + 1, labels == second + 1), key=lambda m: float(np.flatnonzero(m.any(0)).mean()))
    return pieces[0], pieces[1]


def _read_grey(path: Path) -> np.ndarray:
    picture = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if picture is None:
        raise CallError(f"{path} is not a readable picture; is the pack complete?")
    return picture


def _read_mask(path: Path, side: int) -> np.ndarray:
    return to_square(_read_grey(path), side) > 0.5


def _manifest(data: Path) -> bytes:
    try:
        return (data / "manifest.csv").read_bytes()
    except OSError as problem:
        raise CallError(f"{data} is not the pack of radiographs: {problem.strerror} (manifest.csv).") from None


def manifest_rows(data: Path) -> dict[tuple[str, str], list[dict[str, str]]]:
    """The manifest's rows of tier A and A2 in both splits, by (source, image id), in order.

    Raises:
        CallError: the folder is no pack.
    """
    every = csv.DictReader(io.StringIO(_manifest(data).decode(), newline=""))
    rows = [row for row in every if row["split"] in ("train", "dev") and row["tier"] in ("A", "A2")]
    images: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        images.setdefault((row["source"], row["id"]), []).append(row)
    return dict(sorted(images.items()))


def _build(data: Path, side: int) -> tuple[list[Record], np.ndarray, np.ndarray]:
    groups = manifest_rows(data)
    images = np.zeros((len(groups), side, side), np.uint8)
    masks = np.zeros((len(groups), side, side), np.uint16)
    records = []
    for index, ((source, name), rows) in enumerate(groups.items()):
        first = rows[0]
        grey = _read_grey(data / first["file"])
        height, width = grey.shape
        images[index] = np.rint(to_square(stretch(grey), side) * 255)
        findings: set[str] = set()
        boxes: dict[str, tuple[tuple[float, float, float, float], ...]] = {}
        for row in rows:
            finding = row["finding"]
            if row["boxes"]:
                boxes[finding] = tuple(
                    (x1 / width, y1 / height, x2 / width, y2 / height) for x1, y1, x2, y2 in json.loads(row["boxes"])
                )
            if not row["mask_file"]:
                findings.add(finding)
                continue
            mask = _read_mask(data / row["mask_file"], side)
            if finding == "lung":
                lungs = split_lungs(mask)
                if lungs is None:
                    findings.add("lung_unsplit")
                    continue
                for lung, label in zip(lungs, ("right lung", "left lung"), strict=True):
                    masks[index][lung] |= np.uint16(bit(label))
            elif (bit_name := MERGED.get(finding, finding)) in BITS:
                masks[index][mask] |= np.uint16(bit(bit_name))
            findings.add(finding)
        records.append(
            Record(
                id=name,
                source=source,
                split=first["split"],
                patient=first["patient"],
                findings=tuple(sorted(findings)),
                nih_labels=tuple(label for label in first["nih_labels"].split("|") if label),
                view=first["view"],
                boxes=boxes,
                size=(height, width),
                file=first["file"],
            )
        )
    return records, images, masks


def load_pack(data: Path, cache: Path, side: int = 512) -> Pack:
    """The pack's tier A and A2 images of both splits, as arrays.

    Args:
        data: the pack's folder, which holds ``manifest.csv``.
        cache: a folder outside the project; the arrays are kept there and read again while the manifest is the same.
        side: pixels of the square's side.

    Raises:
        CallError: the folder is no pack, or a file that the manifest names is not there.
    """
    sha256 = hashlib.sha256(_manifest(data)).hexdigest()
    stem = f"pack-{side}-{sha256[:12]}-v{_VERSION}"
    index, pictures, bits = (cache / f"{stem}{end}" for end in (".json", "-images.npy", "-masks.npy"))
    if not index.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        built, images, masks = _build(data, side)
        np.save(pictures, images)
        np.save(bits, masks)
        # The index is written last: while it is missing, the arrays do not count.
        index.write_text(json.dumps([asdict(record) for record in built]))
    records = tuple(
        Record(
            **{
                **entry,
                "findings": tuple(entry["findings"]),
                "nih_labels": tuple(entry["nih_labels"]),
                "boxes": {k: tuple(tuple(box) for box in v) for k, v in entry["boxes"].items()},
                "size": tuple(entry["size"]),
            }
        )
        for entry in json.loads(index.read_text())
    )
    patients = {split: {r.patient for r in records if r.split == split} for split in ("train", "dev")}
    if common := patients["train"] & patients["dev"]:
        raise ValueError(f"{len(common)} patients are in both splits of the pack.")
    return Pack(records, np.load(pictures, mmap_mode="r"), np.load(bits, mmap_mode="r"), sha256)
