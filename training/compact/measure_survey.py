"""Measures the trained survey networks as they run in the product, and fits what turns their numbers into statements.

    python -m training compact measure-survey --data ../shared/data --weights DIR/0/survey.safetensors .. --work OUT

Writes ``survey.safetensors`` (the bundle's file: the given networks, whose logits are averaged),
``survey-settings.json`` (calibrations, thresholds, box rules, guard limits: the bundle's settings) and
``survey-quality.json`` (what was measured, with n).

A picture of the train split is seen by the network that has not learned from it, where one of the given left it out,
the dev split by all of them together, which is what ships. Calibrations and box rules are fitted on both. Each fold of
patients is measured with what was fitted without it; figures are given for the dev split alone ("dev") and for all
these patients ("unseen"). Lungs are split by the midline between the lungs that the network sees. A lung holds a
finding when at least 15 % of the finding's area lies on its side; slivers are left out.

What is true of a picture, by finding (:func:`truth_of`): contours, and for those that have none
pneumonia: radiologists' boxes, and the consolidation of contoured pictures whose report says pneumonia; without that
word, a lung with consolidation is not counted. Edema: the report's word, for both lungs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import ndimage, optimize

from training.evaluation.metrics import area_under_roc
from xflow_core.domain.findings import HEART, LUNGS, lung_of, region_band
from xflow_core.domain.geometry import Box, mask_iou
from xflow_core.policies.calibration import Calibration
from xflow_core.policies.compact import (
    BoxRule,
    CompactSettings,
    CompactSurvey,
    FindingSettings,
    GuardSettings,
    Seen,
    boxes_in,
    evidence_in,
    find_lung,
    ground_lung,
    kept_boxes,
    lesion_of,
)
from xflow_core.policies.lungs import largest_piece, midline
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.segmenters.weights import join_members

from .pack import Pack, Record, load_pack
from .plausible import plausible_lungs
from .survey import FOLDS, fold_of

log = logging.getLogger(__name__)

FINDINGS = ("consolidation", "effusion", "opacity", "cardiomegaly", "atelectasis", "pneumonia", "edema")
_ZONES = ("upper zone lung", "mid zone lung", "lung base")
_FOLDS = 5
_SPECK = 0.0008  # share of the picture; smaller contours are no component
_HIT = 0.3
_SAID = ("pneumonia", "edema", "atelectasis")  # findings for which a report's word is learned from
_KEEPS = (0.2, 0.35, 0.5, 0.7)
_SEVERAL = (3, 4, 5)
_HEART_LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9)
_MANY = ("opacity", "consolidation", "pneumonia")  # findings that may lie in several places of a lung


@dataclass(frozen=True, eq=False)
class Case:
    """One radiograph with what the network sees on it."""

    index: int
    record: Record
    seen: Seen
    lungs: dict[str, Box]
    middle: int

    @property
    def fold(self) -> int:
        return int(hashlib.md5(self.record.patient.encode(), usedforsecurity=False).hexdigest(), 16) // FOLDS % _FOLDS


@dataclass(frozen=True)
class Asked:
    """One region of one case: is the finding there (None: unsure), and the evidence."""

    case: Case
    region: str
    present: bool | None
    evidence: float

    @property
    def known(self) -> bool:
        return self.present is not None


def see(survey: CompactSurvey, data: Path, pack: Pack, indices: Iterable[int]) -> list[Case]:
    cases = []
    for index in indices:
        record = pack.records[index]
        seen = survey.of(EncodedRadiograph(read_radiograph(data / record.file)))
        lungs = {label: ground_lung(seen, label).box for label in LUNGS}
        middle = midline(seen.map("right lung") > 0.5, seen.map("left lung") > 0.5)
        cases.append(Case(index, record, seen, lungs, round(middle * pack.images.shape[1] / seen.maps.shape[1])))
    return cases


def fit_line(evidence: Sequence[float], truth: Sequence[bool]) -> tuple[float, float]:
    """Platt scaling with its own softened targets (Platt 1999), so that four hits of four are no certainty, and a light
    pull of the slope towards 1: there are few positives."""
    x, known = np.asarray(evidence, float), np.asarray(truth, bool)
    y = np.where(known, (known.sum() + 1) / (known.sum() + 2), 1 / ((~known).sum() + 2))

    def cost(line: np.ndarray) -> float:
        z = line[0] * x + line[1]
        return float(np.logaddexp(0, z).sum() - (y * z).sum() + 2.0 * np.log(line[0]) ** 2)

    best = optimize.minimize(cost, np.array([1.0, 0.0]), bounds=[(0.05, 10), (-20, 20)], method="L-BFGS-B")
    return float(best.x[0]), float(best.x[1])


def fit_calibration(asked: Sequence[Asked]) -> Calibration:
    """Line and threshold. With calibrated probabilities F1 is best at half of the F1 reached there (Lipton et al. 2014,
    arXiv:1402.1892), which is steadier on few positives than counting."""
    known = [a for a in asked if a.known]
    slope, offset = fit_line([a.evidence for a in known], [bool(a.present) for a in known])
    p = np.sort([Calibration(slope, offset, 0.5).probability(a.evidence) for a in known])[::-1]
    reached = 2 * np.cumsum(p) / (np.arange(1, p.size + 1) + p.sum())
    return Calibration(slope, offset, float(np.clip(reached.max() / 2, 0.1, 0.6)))


def truth_of(pack: Pack, case: Case, finding: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Where a finding is, and where that is not known, bool ``[S, S]`` each; None when the picture says nothing.

    Edema is everywhere or nowhere: the report does not say where.
    """
    record, shape = case.record, pack.masks.shape[1:]
    nowhere = np.zeros(shape, bool)
    if finding == "edema":
        if record.contoured or record.source in ("nih_bbox_1024", "nih_edema_label_1024"):
            return np.full(shape, "Edema" in record.nih_labels), nowhere
        return None
    if finding == "pneumonia" and "pneumonia" in record.findings:
        boxed = nowhere.copy()
        for box in record.boxes["pneumonia"]:
            boxed |= Box(*np.clip(box, 0, 1).tolist()).mask(shape)
        return boxed, nowhere
    if not record.contoured:
        return None
    if finding != "pneumonia":
        return pack.mask(case.index, finding), nowhere
    dense = pack.mask(case.index, "consolidation")
    if "Pneumonia" in record.nih_labels:
        return dense, nowhere if dense.any() else ~nowhere
    return nowhere, dense


def ask(
    pack: Pack, cases: Iterable[Case], finding: str, level: str, share: float, heart_level: float = 0.5
) -> list[Asked]:
    """The rows of a finding; of normals too, as absent, when ``cases`` holds some and nothing else."""
    asked: list[Asked] = []
    for case in cases:
        told = truth_of(pack, case, finding)
        if told is None:
            if not case.record.normal:
                continue
            told = (np.zeros(pack.masks.shape[1:], bool), np.zeros(pack.masks.shape[1:], bool))
        truth, unknown = told
        if finding == "cardiomegaly":
            stated: bool | None = finding in case.record.findings
            asked.append(Asked(case, HEART, stated, evidence_in(case.seen, finding, HEART, None, share, heart_level)))
            continue
        least = max(_SPECK * truth.size, 0.15 * int(truth.sum()))
        for label in LUNGS:
            side, unsure = (on_side(truth, case.middle, label), on_side(unknown, case.middle, label))
            places = [(label, case.lungs[label], side, unsure, least)]
            if level == "zone":
                places = []
                for zone in _ZONES:
                    region = f"{label.split()[0]} {zone}"
                    band = region_band(region, case.lungs[label])
                    inside = band.mask(side.shape)
                    enough = max(_SPECK * truth.size, 0.15 * int(side.sum()))
                    places.append((region, band, side & inside, unsure & inside, enough))
            for region, box, part, open_, enough in places:
                area = int(part.sum())
                present = True if area >= enough else (False if area == 0 and not open_.any() else None)
                asked.append(Asked(case, region, present, evidence_in(case.seen, finding, region, box, share)))
    return asked


def on_side(mask: np.ndarray, middle: int, label: str) -> np.ndarray:
    half = np.zeros_like(mask)
    columns = slice(None, middle) if label == "right lung" else slice(middle, None)
    half[:, columns] = mask[:, columns]
    return half


Row = tuple[Asked, float, bool]
"""A known row with its probability and verdict."""


def rows_of_fold(asked: Sequence[Asked], fold: int) -> list[Row]:
    """The known rows of a fold of patients, by a calibration fitted without it."""
    calibration = fit_calibration([a for a in asked if a.case.fold != fold])
    rows = []
    for a in asked:
        if a.case.fold == fold and a.known:
            p = calibration.probability(a.evidence)
            rows.append((a, p, p >= calibration.threshold))
    return rows


def crossed(asked: Sequence[Asked]) -> list[Row]:
    """The known rows, each by what was fitted without its fold."""
    return [row for fold in range(_FOLDS) for row in rows_of_fold(asked, fold)]


def best_level(hearts: Mapping[float, Sequence[Asked]]) -> float:
    """Where the heart's map is cut to measure its width: the level with the best F1 across folds."""

    def across(level: float) -> float:
        rows = crossed(hearts[level])
        return f1([bool(a.present) for a, _, _ in rows], [verdict for _, _, verdict in rows])

    return max(hearts, key=across)


def crossed_hearts(hearts: Mapping[float, Sequence[Asked]]) -> list[Row]:
    """As :func:`crossed`, the level too being chosen without the fold."""
    rows = []
    for fold in range(_FOLDS):
        others = {level: [a for a in asked if a.case.fold != fold] for level, asked in hearts.items()}
        rows += rows_of_fold(hearts[best_level(others)], fold)
    return rows


def f1(truth: Sequence[bool], stated: Sequence[bool]) -> float:
    both = sum(t and s for t, s in zip(truth, stated, strict=True))
    return 2 * both / max(1, sum(truth) + sum(stated))


def interval(rows: Sequence[Row], measure: Callable[[list[Row]], float | None]) -> list[float] | None:
    """95 % bootstrap interval over patients."""
    rng = np.random.default_rng(0)
    by_patient: dict[str, list[Row]] = {}
    for row in rows:
        by_patient.setdefault(row[0].case.record.patient, []).append(row)
    patients = list(by_patient)
    values = []
    for _ in range(500):
        drawn = [row for name in rng.choice(patients, len(patients)) for row in by_patient[name]]
        value = measure(drawn)
        if value is not None:
            values.append(value)
    return [float(v) for v in np.percentile(values, (2.5, 97.5))] if values else None


def brier(rows: Sequence[Row]) -> float:
    return float(np.mean([(p - float(bool(a.present))) ** 2 for a, p, _ in rows]))


def verdict_figures(rows: Sequence[Row]) -> dict[str, Any]:
    truth = [bool(a.present) for a, _, _ in rows]
    stated = [verdict for _, _, verdict in rows]
    hits = sum(t and s for t, s in zip(truth, stated, strict=True))
    return {
        "n": len(rows),
        "positive": sum(truth),
        "auc": area_under_roc(truth, [a.evidence for a, _, _ in rows]),
        "auc_95": interval(
            rows, lambda d: area_under_roc([bool(a.present) for a, _, _ in d], [a.evidence for a, _, _ in d])
        ),
        "f1": f1(truth, stated),
        "f1_95": interval(rows, lambda d: f1([bool(a.present) for a, _, _ in d], [s for _, _, s in d])),
        "precision": hits / max(1, sum(stated)),
        "recall": hits / max(1, sum(truth)),
        "brier": brier(rows),
    }


def presence_figures(asked: Sequence[Asked], normals: Sequence[Asked], rows: Sequence[Row]) -> dict[str, Any]:
    """rows: the known of ``asked``, each by what was fitted without it; ``normals`` by what is fitted on all."""
    calibration = fit_calibration(asked)
    return {
        "dev": verdict_figures([row for row in rows if row[0].case.record.split == "dev"]),
        "unseen": verdict_figures(rows),
        "normals_called_present": float(
            np.mean([calibration.probability(a.evidence) >= calibration.threshold for a in normals])
        ),
        "normals_n": len(normals),
    }


def lessons(pack: Pack, finding: str) -> dict[str, int]:
    """How many pictures of the train split tell of a finding: contoured, else boxed, else named in the report."""
    counts = {"contoured": 0, "boxed": 0, "report": 0}
    for index in pack.where("train"):
        record = pack.records[index]
        if record.contoured and finding not in ("pneumonia", "edema") and pack.mask(index, finding).any():
            counts["contoured"] += 1
        elif finding in record.boxes and not record.contoured:
            counts["boxed"] += 1
        elif finding in _SAID and finding.capitalize() in record.nih_labels:
            counts["report"] += 1
    return counts


def components(mask: np.ndarray) -> list[Box]:
    """Boxes of the 8-connected pieces that are no specks."""
    labels, _ = ndimage.label(mask, np.ones((3, 3)))
    found = []
    for number, place in enumerate(ndimage.find_objects(labels), start=1):
        if (labels[place] == number).sum() >= _SPECK * mask.size:
            rows, columns = place
            found.append(Box.of_pixels((columns.start, rows.start, columns.stop, rows.stop), mask.shape))
    return found


def _placed(case: Case, region: str) -> Box | None:
    lung = lung_of(region)
    return None if lung is None else case.lungs[lung]


@dataclass(frozen=True)
class Holding:
    """A region that truly holds the finding, and the boxes of its components."""

    asked: Asked
    components: tuple[Box, ...]

    @property
    def place(self) -> Box | None:
        return _placed(self.asked.case, self.asked.region)


def holding(pack: Pack, asked: Sequence[Asked], finding: str) -> list[Holding]:
    found = []
    for a in asked:
        if a.present:
            told = truth_of(pack, a.case, finding)
            assert told is not None
            side = told[0] if a.region == HEART else on_side(told[0], a.case.middle, a.region)
            found.append(Holding(a, tuple(components(side))))
    return found


def box_counts(true: Sequence[Box], made: Sequence[Box]) -> tuple[int, int, int, int]:
    """Components, those that a box meets (IoU 0.3), boxes, those that meet a component."""
    overlaps = np.array([[t.iou(box) >= _HIT for box in made] for t in true]).reshape(len(true), len(made))
    return len(true), int(overlaps.any(1).sum()), len(made), int(overlaps.any(0).sum())


def _score(counts: Sequence[tuple[int, int, int, int]]) -> float:
    true, met, made, right = np.sum(counts, axis=0)
    recall, precision = met / max(1, true), right / max(1, made)
    return float(2 * recall * precision / max(1e-9, recall + precision))


def box_figures(counts: Sequence[tuple[int, int, int, int]]) -> dict[str, Any]:
    true, met, made, right = (int(v) for v in np.sum(counts, axis=0)) if counts else (0, 0, 0, 0)
    return {
        "regions": len(counts),
        "components": true,
        "recall_at_0.3": met / max(1, true),
        "boxes": made,
        "precision_at_0.3": right / max(1, made),
    }


def choose_rule(held: Sequence[Holding], finding: str) -> tuple[BoxRule, dict[str, Any]]:
    """The rule for the boxes of regions that hold the finding, and its figures across folds.

    The best F1 of boxes. For findings that may lie in several places: among the rules within five hundredths of it one
    that tells lesions apart, the fewer of them the better, since the contours of the open data join what lies close
    together and many small opacities are rare in them.
    """
    heart = finding == "cardiomegaly"
    table: dict[BoxRule, list[tuple[int, int, int, int]]] = {}
    for share, floor in product((0.15, 0.25, 0.35, 0.5), (0.03, 0.1)):
        one = BoxRule(share, floor, most=1)
        whole = [boxes_in(h.asked.case.seen, finding, h.place, one) for h in held]
        table[one] = [box_counts(h.components, [b for b, _ in found]) for h, found in zip(held, whole, strict=True)]
        if heart:
            continue
        many = finding in _MANY
        every = BoxRule(share, floor, most=8, split=0.8 if many else 0.0)
        apart = [boxes_in(h.asked.case.seen, finding, h.place, every) for h in held]
        for most, keep, several in product((8,) if many else (3, 8), _KEEPS, _SEVERAL if many else (1,)):
            rule = replace(every, most=most, keep=keep, several=several)
            table[rule] = [
                box_counts(h.components, [box for box, _ in kept_boxes(found, strongest, rule)])
                for h, found, strongest in zip(held, apart, whole, strict=True)
            ]

    def choice(indices: Sequence[int]) -> BoxRule:
        scores = {rule: _score([counts[i] for i in indices]) for rule, counts in table.items()}
        good = [rule for rule, score in scores.items() if score >= max(scores.values()) - 0.05]
        return max(good, key=lambda rule: (rule.split > 0, -rule.several, scores[rule]))

    best = choice(range(len(held)))
    across: list[tuple[Asked, tuple[int, int, int, int]]] = []
    for fold in range(_FOLDS):
        outside = [i for i, h in enumerate(held) if h.asked.case.fold != fold]
        chosen = choice(outside)
        across += [(h.asked, table[chosen][i]) for i, h in enumerate(held) if h.asked.case.fold == fold]
    peaks, hits = [], []
    for h in held:
        for box, peak in boxes_in(h.asked.case.seen, finding, h.place, best):
            peaks.append(float(np.log(max(peak, 1e-5) / max(1 - peak, 1e-5))))
            hits.append(any(t.iou(box) >= _HIT for t in h.components))
    slope, offset = fit_line(peaks, hits)
    figures = {
        "dev": box_figures([c for a, c in across if a.case.record.split == "dev"]),
        "unseen": box_figures([c for _, c in across]),
    }
    return replace(best, slope=slope, offset=offset), figures


def map_iou(pack: Pack, asked: Sequence[Asked], finding: str, rule: BoxRule) -> dict[str, Any]:
    """The map itself as a mask, cut at the box rule's level, against the contours in the lungs that hold some."""
    overlaps, unions = [], []
    for a in asked:
        if not a.present:
            continue
        told = truth_of(pack, a.case, finding)
        assert told is not None
        truth = told[0] if a.region == HEART else on_side(told[0], a.case.middle, a.region)
        stated, _ = lesion_of(a.case.seen, finding, _placed(a.case, a.region), rule, truth.shape[0])
        overlaps.append(mask_iou(stated, truth))
        one, other = Box.around(stated), Box.around(truth)
        unions.append(one.iou(other) if one and other else 0.0)
    return {"n": len(overlaps), "mask_iou": _mean(overlaps), "union_box_iou": _mean(unions)}


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def lung_figures(pack: Pack, cases: Sequence[Case]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for source in ("montgomery_lung_512", "v7_covid_lung"):
        dice, boxes = [], []
        for case in cases:
            if case.record.source != source or case.record.split != "dev" or not case.record.has_lungs:
                continue
            for label in LUNGS:
                truth = pack.mask(case.index, label)
                found = find_lung(case.seen, label)
                piece = np.zeros_like(truth)
                if found is not None:
                    enlarged = ndimage.zoom(case.seen.map(label), truth.shape[0] / case.seen.maps.shape[1], order=1)
                    piece = largest_piece(enlarged > 0.5)
                dice.append(2 * (piece & truth).sum() / max(1, piece.sum() + truth.sum()))
                outline = Box.around(truth)
                assert outline is not None
                boxes.append(case.lungs[label].iou(outline))
        figures[source] = {
            "lungs": len(dice),
            "dice": _mean(dice),
            "box_iou": _mean(boxes),
            "box_iou_p10": float(np.percentile(boxes, 10)),
            "box_iou_least": float(np.min(boxes)),
        }
    nih = [c for c in cases if c.record.source.startswith("nih") and c.record.split == "dev"]
    sick = [c for c in nih if {"effusion", "consolidation"} & set(c.record.findings)]
    for name, group in (("nih", nih), ("nih_with_effusion_or_consolidation", sick)):
        figures[name] = {
            "pictures": len(group),
            "plausible_pair": float(np.mean([plausible_lungs(c.seen.maps[:2]) is not None for c in group])),
        }
    covered = []
    for case in sick:
        dense = pack.mask(case.index, "effusion") | pack.mask(case.index, "consolidation")
        for label in LUNGS:
            side = on_side(dense, case.middle, label)
            if side.sum() >= _SPECK * side.size:
                covered.append(float((side & case.lungs[label].mask(side.shape)).sum() / side.sum()))
    figures["lesion_inside_lung_box"] = {
        "lungs": len(covered),
        "mean": _mean(covered),
        "at_least_90_percent": float(np.mean([c >= 0.9 for c in covered])),
    }
    return figures


def choose_guard(cases: Sequence[Case]) -> GuardSettings:
    """Limits that let at least 99 % of the frontal pictures pass, each sign for itself, never under one half."""
    signs = np.stack([case.seen.signs for case in cases])
    turned = np.array([1 - case.seen.turns[0] for case in cases])

    def limit(values: np.ndarray, least: float) -> float:
        return float(np.clip(np.quantile(values, 0.995) * 1.05, least, 0.97))

    return GuardSettings(
        not_frontal=limit(signs[:, 0], 0.5),
        turned=limit(turned, 0.5),
        inverted=limit(signs[:, 1], 0.5),
        mirrored=limit(signs[:, 2], 0.9),
    )


def choose_share(pack: Pack, drawn: Sequence[Case]) -> float:
    """The presence logit's share in the evidence with the best mean Brier score across folds, over the lungs."""

    def mean_brier(share: float) -> float:
        asked = (ask(pack, drawn, finding, "lung", share) for finding in ("consolidation", "effusion", "opacity"))
        return float(np.mean([brier(crossed(a)) for a in asked]))

    return min((0.0, 0.25, 0.5), key=mean_brier)


def measure(data: Path, weights: Sequence[Path], work: Path) -> None:
    pack = load_pack(data, work / "cache", 512)
    joined = work / "survey.safetensors"
    join_members(weights, joined)
    cases = see(CompactSurvey.load(joined), data, pack, pack.where("dev"))
    folds = [json.loads(p.with_name("survey-training.json").read_text())["settings"]["fold"] for p in weights]
    if len(set(folds)) < len(folds):
        raise ValueError(f"The runs left out the folds {folds}; each has to leave out another one.")
    for fold, path in zip(folds, weights, strict=True):
        alone = work / f"fold-{fold}.safetensors"
        join_members([path], alone)
        unseen = [i for i in pack.where("train") if fold_of(pack.records[i]) == fold]
        cases += see(CompactSurvey.load(alone), data, pack, unseen)
        alone.unlink()
    told = [case for case in cases if not case.record.normal]
    drawn = [case for case in cases if case.record.contoured]
    normal = [case for case in cases if case.record.source == "nih_normal_1024" and case.record.split == "dev"]
    quality: dict[str, Any] = {"lungs": lung_figures(pack, cases), "findings": {}}
    log.info("lungs: %s", json.dumps(quality["lungs"]))
    settings: dict[str, FindingSettings] = {}
    share = choose_share(pack, drawn)
    hearts = {level: ask(pack, drawn, "cardiomegaly", "lung", share, level) for level in _HEART_LEVELS}
    heart = best_level(hearts)
    for finding in FINDINGS:
        lung = ask(pack, told, finding, "lung", share, heart)
        zoned = finding not in ("cardiomegaly", "edema")  # nothing tells in which zone an edema lies
        zone = ask(pack, told, finding, "zone", share) if zoned else lung
        rows = crossed_hearts(hearts) if finding == "cardiomegaly" else crossed(lung)
        normals = ask(pack, normal, finding, "lung", share, heart)
        entry: dict[str, Any] = {"lung": presence_figures(lung, normals, rows)}
        if zoned:
            entry["zone"] = presence_figures(zone, ask(pack, normal, finding, "zone", share), crossed(zone))
        if finding == "edema":
            rule = replace(settings["opacity"].boxes, most=1, keep=0.0, split=0.0, several=1)  # it is everywhere
        else:
            rule, entry["boxes"] = choose_rule(holding(pack, lung, finding), finding)
            entry["map"] = {
                "dev": map_iou(pack, [a for a in lung if a.case.record.split == "dev"], finding, rule),
                "unseen": map_iou(pack, lung, finding, rule),
            }
        entry["learned_from"] = lessons(pack, finding)
        settings[finding] = FindingSettings(fit_calibration(lung), fit_calibration(zone), rule)
        quality["findings"][finding] = entry
        log.info("%s: %s", finding, json.dumps(entry))
    opacity, consolidation = settings["opacity"], settings["consolidation"]
    settings["opacity"] = FindingSettings(
        no_later_than(opacity.lung, consolidation.lung), no_later_than(opacity.zone, consolidation.zone), opacity.boxes
    )
    guard = choose_guard([case for case in cases if case.record.split == "dev"])
    quality["data_sha256"] = pack.sha256
    quality["weights_sha256"] = hashlib.sha256(joined.read_bytes()).hexdigest()
    runs = [json.loads(path.with_name("survey-training.json").read_text()) for path in weights]
    (work / "survey-training.json").write_text(json.dumps({"runs": runs}, indent=2))
    (work / "survey-settings.json").write_text(
        json.dumps(CompactSettings(settings, guard, share, heart).to_json(), indent=2)
    )
    (work / "survey-quality.json").write_text(json.dumps(quality, indent=2))


def no_later_than(calibration: Calibration, other: Calibration) -> Calibration:
    """The threshold lowered until it asks for no more evidence than ``other`` does."""
    evidence = (float(np.log(other.threshold / (1 - other.threshold))) - other.offset) / other.slope
    return Calibration(
        calibration.slope, calibration.offset, min(calibration.threshold, calibration.probability(evidence))
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the open chest X-ray pack (holds manifest.csv)")
    parser.add_argument("--weights", type=Path, nargs="+", required=True, help="survey.safetensors of each run")
    parser.add_argument("--work", type=Path, required=True, help="a folder outside the project")
    parser.add_argument("--threads", type=int, default=1)


def run(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    arguments.work.mkdir(parents=True, exist_ok=True)
    measure(arguments.data, arguments.weights, arguments.work)
