"""``python -m training honesty --data PACK --bundle NAME --out DIR``

Whether a bundle fools its reader, on the contoured and normal radiographs of the open pack's dev split:

- sides: a question about a lung is answered in that lung;
- distinct: two findings are not one mask under two names (an opacity contains consolidation by definition);
- normals: what is found on radiographs whose report says "No Finding";
- stable: the same answer to the same radiograph with one grey level of noise, in another file format, 5 % lighter or
  darker;
- specks: no piece of a mask is smaller than 0.01 % of the image.

Writes ``metrics.json``, ``table.md`` and, question by question, what changed under a change (``unstable.json``)."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from training.evaluation.cases import Case, as_dicom, as_png, read_cases
from training.evaluation.metrics import pieces_of
from training.evaluation.pack_set import sides_of
from training.evaluation.printed import cut
from training.evaluation.rates import Rate
from xflow_core.bundles.loading import load_engine
from xflow_core.domain.errors import CallError, EngineError
from xflow_core.domain.findings import HEART, LUNGS
from xflow_core.domain.geometry import mask_iou
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import LungsStep, PresenceStep, ResultStep, Trace
from xflow_core.export.files import write_whole
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.workflow.engine import Engine
from xflow_core.workflow.session import Limits, Session, answer

LOG = logging.getLogger(__name__)

STABLE = 0.9  # mask IoU from which on an answer counts as the same
SAME_MASK = 0.9  # two findings above it are one mask under two names
_BEYOND = 0.05  # share of a mask beyond the midline that a reader would notice
_NESTED = frozenset({"opacity", "consolidation"})


@dataclass(frozen=True)
class Sided:
    """One question about a lung. truth: whether the finding is there, None where it is not known; other: the same of
    the other lung; present: what was answered; beyond: share of the mask's pixels on the other lung's side of the
    midline, None without a mask."""

    case: str
    finding: str
    lung: str
    truth: bool | None
    other: bool | None
    present: bool
    beyond: float | None


@dataclass(frozen=True)
class Pair:
    """The masks of two findings on one radiograph. inside: share of the first that lies in the second."""

    case: str
    first: str
    second: str
    iou: float
    inside: float


@dataclass(frozen=True)
class Compared:
    """One question asked of a radiograph and of a variant of it. iou: of the two masks, None unless both are there."""

    case: str
    finding: str
    variant: str
    before: bool
    after: bool
    iou: float | None


def noisy(grey: np.ndarray) -> np.ndarray:
    """One grey level up, down or none at every pixel, the same for equal sizes: uint8 ``[H, W]``."""
    noise = np.random.default_rng(0).integers(-1, 2, grey.shape)
    return np.clip(grey.astype(np.int16) + noise, 0, 255).astype(np.uint8)


def exposed(grey: np.ndarray, factor: float) -> np.ndarray:
    """Every value times ``factor``, cut at 255 as a detector is: uint8 ``[H, W]``."""
    return np.clip(np.rint(grey * factor), 0, 255).astype(np.uint8)


VARIANTS: dict[str, Callable[[np.ndarray], bytes]] = {
    "one grey level of noise": lambda grey: as_png(noisy(grey)),
    "DICOM, 12 bits": as_dicom,
    "DICOM, MONOCHROME1": lambda grey: as_dicom(grey, PhotometricInterpretation="MONOCHROME1"),
    "exposure x 1.05": lambda grey: as_png(exposed(grey, 1.05)),
    "exposure x 0.95": lambda grey: as_png(exposed(grey, 0.95)),
}


def ask(engine: Engine, image: EncodedRadiograph, finding: str, lung: str | None = None) -> Trace:
    """The answer to a plain question.

    Raises:
        EngineError: there is none.
    """
    words = f"Segment the {finding}." if lung is None else f"Segment the {finding} in the {lung}."
    trace = answer(engine, image, parse_instruction(words)[0])
    if trace.result is None or trace.result.present is None:
        raise EngineError(f"No answer to {words!r}: {trace.result and trace.result.message}")
    return trace


def ask_all(engine: Engine, image: EncodedRadiograph) -> dict[str, Trace]:
    return {finding: ask(engine, image, finding) for finding in engine.findings}


def forced(engine: Engine, image: EncodedRadiograph, finding: str) -> Trace:
    """The first masks of a finding that a reader states to be present in every region asked about."""
    (instruction,) = parse_instruction(f"Segment the {finding}.")
    session = Session(engine, image, instruction, stages=1)
    list(session.run())
    k = next(k for k, step in enumerate(session.steps) if isinstance(step, PresenceStep))
    step = session.steps[k]
    assert isinstance(step, PresenceStep)
    stated = tuple(replace(verdict, present=True, confidence=None) for verdict in step.verdicts)
    branch = session.replace(k, PresenceStep(verdicts=stated))
    list(branch.run())
    return branch.trace()


def mask_of(trace: Trace) -> np.ndarray | None:
    """bool ``[H, W]``; None for an absence."""
    step: ResultStep | None = trace.last(ResultStep)
    return None if step is None or step.mask is None else step.mask.array


def midline(trace: Trace) -> float:
    """Between the two grounded lungs, as a share of the width."""
    step: LungsStep = trace.last(LungsStep)
    right, left = (step.box_of(label) for label in LUNGS)
    assert right is not None and left is not None
    return (right.x2 + left.x1) / 2


def beyond(mask: np.ndarray, lung: str, middle: float) -> float:
    """Share of the mask's pixels on the other side of the midline; the right lung is on the picture's left."""
    column = round(middle * mask.shape[1])
    wrong = mask[:, column:] if lung == LUNGS[0] else mask[:, :column]
    return float(np.count_nonzero(wrong) / max(1, np.count_nonzero(mask)))


def sided(engine: Engine, image: EncodedRadiograph, case: Case, chest: dict[str, Trace]) -> Iterator[Sided]:
    for finding, whole in chest.items():
        if HEART in whole.instruction.regions:
            continue
        truth = case.truth(finding)
        sides = None if truth is None else sides_of(truth)
        there = None if sides is None else {label: bool(side.any()) for label, side in sides.items()}
        for lung, other in (LUNGS, LUNGS[::-1]):
            mask = mask_of(ask(engine, image, finding, lung))
            yield Sided(
                case.id,
                finding,
                lung,
                None if there is None else there[lung],
                None if there is None else there[other],
                mask is not None,
                None if mask is None else beyond(mask, lung, midline(whole)),
            )


def pairs(case: Case, traces: dict[str, Trace]) -> Iterator[Pair]:
    masks = {finding: mask for finding, trace in traces.items() if (mask := mask_of(trace)) is not None}
    for first, second in combinations(sorted(masks), 2):
        a, b = masks[first], masks[second]
        inside = float(np.count_nonzero(a & b) / np.count_nonzero(a))
        yield Pair(case.id, first, second, mask_iou(a, b), inside)


def compared(engine: Engine, case: Case, chest: dict[str, Trace]) -> Iterator[Compared]:
    grey = case.grey()
    for variant, dress in VARIANTS.items():
        image = engine.admit(read_radiograph(dress(grey)), accept_image=True)
        for finding, before in chest.items():
            one, other = mask_of(before), mask_of(ask(engine, image, finding))
            iou = None if one is None or other is None else mask_iou(one, other)
            yield Compared(case.id, finding, variant, one is not None, other is not None, iou)


# Figures.


def side_figures(asked: Sequence[Sided]) -> dict[str, Any]:
    """confused: of all questions, those answered by a mask that lies mostly in the other lung, or "absent" for the lung
    that holds the finding while the other lung, which does not, is called present."""
    by_place = {(a.case, a.finding, a.lung): a for a in asked}
    masks = [a for a in asked if a.beyond is not None]
    misplaced = {(a.case, a.finding, a.lung) for a in masks if (a.beyond or 0) > 0.5}
    swapped: set[tuple[str, str, str]] = set()
    # On radiographs that hold the finding in one lung alone.
    verdicts = dict.fromkeys(("true lung only", "both", "wrong lung only", "neither"), 0)
    words = {(True, False): "true lung only", (True, True): "both", (False, True): "wrong lung only"}
    for a in asked:
        if a.truth is True and a.other is False:
            opposite = by_place[a.case, a.finding, LUNGS[1 - LUNGS.index(a.lung)]]
            word = words.get((a.present, opposite.present), "neither")
            verdicts[word] += 1
            if word == "wrong lung only":
                swapped.add((a.case, a.finding, a.lung))
    return {
        "questions": len(asked),
        "confused": Rate(len(swapped | misplaced), len(asked)).to_json(),
        "masks_mostly_in_the_other_lung": Rate(len(misplaced), len(masks)).to_json(),
        "masks_beyond_the_midline": Rate.of((a.beyond or 0) > _BEYOND for a in masks).to_json(),
        "mean_share_beyond_the_midline": _mean([a.beyond or 0 for a in masks]),
        "one_sided_cases": verdicts,
    }


def pair_figures(found: Sequence[Pair]) -> dict[str, Any]:
    figures = {}
    for names in sorted({(p.first, p.second) for p in found}):
        lot = [p for p in found if (p.first, p.second) == names]
        ious = [p.iou for p in lot]
        figures[" and ".join(names)] = {
            "n": len(lot),
            "mean_iou": _mean(ious),
            "greatest_iou": max(ious),
            "same_mask": Rate.of(iou > SAME_MASK for iou in ious).to_json(),
            "mean_share_of_first_in_second": _mean([p.inside for p in lot]),
            "by_definition": set(names) == _NESTED,
        }
    return figures


def stability_figures(found: Sequence[Compared]) -> dict[str, Any]:
    """Per variant, over all findings and per finding."""

    def of(lot: Sequence[Compared]) -> dict[str, Any]:
        ious = [c.iou for c in lot if c.iou is not None]
        return {
            "n": len(lot),
            "same_verdict": Rate.of(c.before == c.after for c in lot).to_json(),
            "present_before": sum(c.before for c in lot),
            "lost": sum(c.before and not c.after for c in lot),
            "gained": sum(c.after and not c.before for c in lot),
            "masks": len(ious),
            "mean_iou": _mean(ious),
            "least_iou": min(ious) if ious else None,
            "stable": Rate.of(iou > STABLE for iou in ious).to_json(),
        }

    findings = list(dict.fromkeys(c.finding for c in found))
    return {
        variant: {
            "all": of(lot),
            "by_finding": {name: of([c for c in lot if c.finding == name]) for name in findings},
        }
        for variant in dict.fromkeys(c.variant for c in found)
        if (lot := [c for c in found if c.variant == variant])
    }


def normal_figures(normals: Sequence[tuple[Case, dict[str, Trace]]]) -> dict[str, Any]:
    """Per finding, how many normal radiographs were called positive."""
    findings = list(normals[0][1]) if normals else []
    return {
        finding: Rate.of(mask_of(traces[finding]) is not None for _, traces in normals).to_json()
        for finding in findings
    }


def has_speck(mask: np.ndarray) -> bool:
    return pieces_of(mask, Limits().speck_share, mask)[1] > 0


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def measure(engine: Engine, cases: Iterable[Case]) -> dict[str, Any]:
    """All figures of ``metrics.json``, and ``unstable``: each question whose answer changed under a change.

    Raises:
        EngineError: a question got no answer.
    """
    asked: list[Sided] = []
    stated: list[Pair] = []
    made_up: list[Pair] = []
    found: list[Compared] = []
    normals: list[tuple[Case, dict[str, Trace]]] = []
    specks: list[bool] = []
    order: list[bool] = []
    for number, case in enumerate(cases, start=1):
        image = engine.admit(read_radiograph(case.path), accept_image=True)
        chest = ask_all(engine, image)
        if case.normal:
            normals.append((case, chest))
        asked += sided(engine, image, case, chest)
        stated += pairs(case, chest)
        made_up += pairs(case, {finding: forced(engine, image, finding) for finding in engine.findings})
        found += compared(engine, case, chest)
        specks += [has_speck(mask) for trace in chest.values() if (mask := mask_of(trace)) is not None]
        lungs: LungsStep = next(iter(chest.values())).last(LungsStep)
        right, left = (lungs.box_of(label) for label in LUNGS)
        order.append(right is not None and left is not None and right.centre.x < left.centre.x)
        if number % 10 == 0:
            LOG.info("%d radiographs", number)
    return {
        "bundle": engine.identity.to_json(),
        "notice": "not for clinical use",
        "radiographs": len(order),
        "right_lung_on_the_pictures_left": Rate.of(order).to_json(),
        "sides": {
            "all": side_figures(asked),
            "by_finding": {
                name: side_figures([a for a in asked if a.finding == name])
                for name in dict.fromkeys(a.finding for a in asked)
            },
        },
        "distinct": {"as_answered": pair_figures(stated), "all_stated_present": pair_figures(made_up)},
        "normals_called_present": normal_figures(normals),
        "stability": stability_figures(found),
        "masks_with_specks": Rate.of(specks).to_json(),
        "unstable": [asdict(c) for c in found if c.before != c.after or (c.iou is not None and c.iou <= STABLE)],
    }


def table(figures: dict[str, Any]) -> str:
    """The figures as a page of Markdown."""
    bundle = figures["bundle"]
    title = f"# Honesty of {bundle['name']} {bundle['version']}, {figures['radiographs']} dev radiographs"
    notice = "Not for clinical use. Shares with 95 % Wilson intervals."
    return "\n".join([title, "", notice, "", *sections(figures)])


def sections(figures: dict[str, Any], deeper: str = "##") -> list[str]:
    """The figures as lines of Markdown, a headed table for each question."""

    def rate(part: dict[str, Any]) -> str:
        return str(Rate(part["count"], part["n"]))

    sides = figures["sides"]["all"]
    lines = [
        f"{deeper} Left and right, on questions about a lung",
        "",
        "| finding | questions | confused | masks mostly in the other lung | masks over 5 % beyond the midline | "
        "finding in one lung: true lung only, both, wrong lung only, neither |",
        "|---|---|---|---|---|---|",
    ]
    for name, part in {"all": sides, **figures["sides"]["by_finding"]}.items():
        verdicts = part["one_sided_cases"]
        cells = [rate(part[key]) for key in ("confused", "masks_mostly_in_the_other_lung", "masks_beyond_the_midline")]
        counts = ", ".join(str(verdicts[key]) for key in ("true lung only", "both", "wrong lung only", "neither"))
        lines.append(f"| {name} | {part['questions']} | {' | '.join(cells)} | {counts} |")
    lines += ["", f"{deeper} Two findings on one radiograph", ""]
    titles = {"as_answered": "as answered", "all_stated_present": "every finding stated present by the reader"}
    lines += [
        "| findings | asked | n | mean IoU | greatest | over 0.9 | first inside second |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, title in titles.items():
        for names, part in figures["distinct"][key].items():
            note = " (contains it by definition)" if part["by_definition"] else ""
            overlap = [cut(part["mean_iou"]), cut(part["greatest_iou"])]
            cells = [title, str(part["n"]), *overlap, rate(part["same_mask"])]
            lines.append(f"| {names}{note} | {' | '.join(cells)} | {cut(part['mean_share_of_first_in_second'], 2)} |")
    lines += ["", f'{deeper} Called present on radiographs whose report says "No Finding"', ""]
    lines += ["| finding | |", "|---|---|"]
    lines += [f"| {name} | {rate(part)} |" for name, part in figures["normals_called_present"].items()]
    lines += ["", f"{deeper} Stability", ""]
    lines += ["| change | finding | same verdict | lost, gained | both masks | mean IoU | IoU over 0.9 |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for variant, part in figures["stability"].items():
        for name, one in {"all": part["all"], **part["by_finding"]}.items():
            cells = [rate(one["same_verdict"]), f"{one['lost']}, {one['gained']}", str(one["masks"])]
            mean = "-" if one["mean_iou"] is None else cut(one["mean_iou"])
            lines.append(f"| {variant} | {name} | {' | '.join(cells)} | {mean} | {rate(one['stable'])} |")
    return [*lines, "", f"Masks with a speck: {rate(figures['masks_with_specks'])}.", ""]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the open chest X-ray pack (holds manifest.csv)")
    parser.add_argument("--bundle", default="compact")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1, help="take each n-th radiograph: a quick look")
    parser.add_argument("--threads", type=int, default=1)


def run(arguments: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(arguments.threads)
    if arguments.every < 1:
        raise CallError(f"--every is {arguments.every}; it counts from 1.")
    cases = [case for case in read_cases(arguments.data) if case.contoured or case.normal]
    figures = measure(load_engine(arguments.bundle, "cpu"), cases[:: arguments.every])
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise CallError(f"The folder {arguments.out} cannot be made: {problem.strerror}.") from None
    unstable = figures.pop("unstable")
    write_whole(arguments.out / "unstable.json", (json.dumps(unstable, indent=1, allow_nan=False) + "\n").encode())
    write_whole(arguments.out / "metrics.json", (json.dumps(figures, indent=1, allow_nan=False) + "\n").encode())
    write_whole(arguments.out / "table.md", table(figures).encode())
