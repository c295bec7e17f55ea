"""Steps and results in plain words, one line a step: for the terminal, the overlay's caption and Slicer.

Components are numbered from 1 for the reader (the trace counts from 0). A number in brackets after a statement is the
probability that the model gave to that statement; what the user decided says so and has none. An area in mm² is given
only with a known pixel spacing, and one measured at the detector is called so: it is magnified and not the patient's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from xflow_core.domain.findings import CHEST, HEART, LUNGS, verdict_regions
from xflow_core.domain.trace import (
    BoxesStep,
    ClickStep,
    ImageRecord,
    LungsStep,
    MaskStep,
    PresenceStep,
    ResultStep,
    Step,
    StopStep,
    Trace,
    Verdict,
)

_PLANES = {"detector": "detector plane, uncalibrated", "patient": "patient-calibrated spacing"}
_STOPS = {
    "satisfied": "no further click needed",
    "limit": "stopped at the limit of clicks",
    "no_progress": "stopped, further clicks do not help",
    "user": "stopped by the user",
}
_DECISIONS = {
    "lungs": "the lung boxes",
    "presence": "the presence",
    "boxes": "the lesion boxes",
    "mask": "a mask",
    "click": "a click",
    "stop": "a stop",
    "result": "the result",
}
# Boxes named one by one in a caption, and its notes; the trace holds them all.
_SHOWN = 8


def step_in_words(step: Step, trace: Trace) -> str:
    """One line for a step, with its notes.

    Args:
        trace: the trace that the step belongs to; it may still be growing or hold no step yet (its image and
            instruction are read, and for an absent result the confidences of a presence step that is there).
    """
    line = _line(step, trace)
    if step.origin == "user" and not (isinstance(step, StopStep) and step.reason == "user"):
        line += " (by the user)"
    if step.notes:
        line += f" (note: {' '.join(step.notes)})"
    return line


def result_in_words(trace: Trace) -> str:
    """The answer in one or two sentences; no answer (refused, unsupported, failed) never reads like an absence."""
    if trace.result is None:
        return "No answer yet."
    finding, status = trace.instruction.finding, trace.result.status
    if trace.result.present is None:
        reason = {
            "refused": "No answer: the image was refused.",
            "unsupported": f"No answer: {finding} is not supported by the bundle.",
            "failed": f"No answer: the engine failed, which does not mean that {finding} is absent.",
        }[status]
        return " ".join(filter(None, (reason, trace.result.message)))
    name, verdicts = finding.capitalize(), _verdicts(trace)
    by_user = ", as the user decided" if _decided_by_user(trace) else ""
    if status == "absent":
        return f"{name} is absent{_where(trace, False)}{_bracketed(verdicts)}{by_user}."
    sentence = f"{name} is present{_where(trace, True)}{_bracketed([v for v in verdicts if v.present])}"
    absent = [v for v in verdicts if not v.present]
    if absent:
        sentence += f" and absent{_in(tuple(v.region for v in absent))}{_bracketed(absent)}"
    return f"{sentence}{by_user}. Segmented area: {area_in_words(result_area(trace), trace.image)}."


def verdicts_in_words(trace: Trace) -> str:
    """``effusion: left lung present (0.91), right lung absent (0.97)``; the finding alone before any verdict."""
    finding = trace.instruction.finding
    parts = [
        f"{'' if verdict.region in (HEART, CHEST) else verdict.region + ' '}{_state(verdict)}"
        for verdict in _verdicts(trace)
    ]
    by_user = " (decided by the user)" if parts and _decided_by_user(trace) else ""
    return f"{finding}: {', '.join(parts)}{by_user}" if parts else finding


def decided_by_user(trace: Trace) -> str:
    """``the presence, a mask``: what the user decided, in the order of the steps; nothing when all is the model's."""
    return ", ".join(dict.fromkeys(_DECISIONS[step.kind] for step in trace.steps if step.origin == "user"))


def area_in_words(area_px: int, image: ImageRecord) -> str:
    """``12,345 px``, and with a known spacing the area in mm² with the plane that it was measured in."""
    area = image.area_mm2(area_px)
    if area is None:
        return f"{area_px:,} px"
    return f"{area_px:,} px, {area:,.{0 if area >= 10 else 2}f} mm² ({_PLANES[image.spacing_kind]})"


def confidence_in_words(confidence: float) -> str:
    """Two digits; a probability that is not quite 0 or 1 is not rounded to them."""
    if 0.995 <= confidence < 1:
        return ">0.99"
    return "<0.01" if 0 < confidence < 0.005 else f"{confidence:.2f}"


def headline(trace: Trace) -> str:
    """``Effusion present in the left lung``, for a trace whose result is an answer."""
    present = trace.result is not None and trace.result.present is True
    return f"{trace.instruction.finding.capitalize()} {'present' if present else 'absent'}{_where(trace, present)}"


def caption(trace: Trace) -> tuple[str, ...]:
    """What stands under an overlay's headline, a line each; nothing of the patient."""
    lines = [f"Asked: “{' '.join(trace.instruction.text.split())}”", verdicts_in_words(trace)]
    if trace.result is not None and trace.result.present:
        lines.append(f"area: {area_in_words(result_area(trace), trace.image)}")
    boxes: BoxesStep | None = trace.last(BoxesStep)
    found = () if boxes is None else boxes.boxes
    if any(box.confidence is not None for box in found):
        several = len(found) > 1
        named = [f"{f'{b.component + 1} ' if several else ''}{b.region}{_known(b.confidence)}" for b in found]
        lines.append(f"lesion {'boxes' if several else 'box'}: {_listed(named, ', ')}")
    if by_user := decided_by_user(trace):
        lines.append(f"decided by the user: {by_user}")
    lines += [f"warning: {warning}" for warning in trace.image.warnings]
    notes = list(dict.fromkeys(chain(trace.instruction.notes, *(step.notes for step in trace.steps))))
    if notes:
        lines.append(f"notes: {_listed(notes, '; ')}")
    stages = ", stage 1 only" if trace.stages == 1 else ""
    lines.append(f"bundle {trace.bundle.name} {trace.bundle.version}{stages}, image sha256 {trace.image.sha256[:12]}")
    confidences = [verdict.confidence for verdict in _verdicts(trace)] + [box.confidence for box in found]
    if any(confidence is not None for confidence in confidences):
        lines.append("in brackets: the probability that the model gave to the statement")
    return tuple(lines)


def result_area(trace: Trace) -> int:
    """True pixels of the result's mask, 0 without one."""
    step: ResultStep | None = trace.last(ResultStep)
    return 0 if step is None or step.mask is None else step.mask.area


def _line(step: Step, trace: Trace) -> str:
    if isinstance(step, LungsStep):
        return f"lungs: {', '.join(lung.label + _known(lung.confidence) for lung in step.lungs)}"
    if isinstance(step, PresenceStep):
        names = {HEART: trace.instruction.finding, CHEST: trace.instruction.finding}
        return "; ".join(f"{names.get(v.region, v.region)}: {_state(v)}" for v in step.verdicts)
    if isinstance(step, BoxesStep):
        return "; ".join(
            f"component {box.component + 1}: box {'at' if box.region == HEART else 'in'} the {box.region}, "
            f"{box.box.width:.2f} x {box.box.height:.2f} of the image{_known(box.confidence)}"
            for box in step.boxes
        )
    if isinstance(step, MaskStep):
        after = f" after click {step.turn}" if step.turn else ""
        return f"component {step.component + 1}: mask of {step.mask.area:,} px{after}"
    if isinstance(step, ClickStep):
        point = step.click.point
        place = f"({point.x:.2f}, {point.y:.2f})"
        return f"component {step.component + 1}: click {step.turn}, {step.click.polarity} at {place}"
    if isinstance(step, StopStep):
        return f"component {step.component + 1}: {_STOPS[step.reason]}"
    if isinstance(step, ResultStep):
        finding = trace.instruction.finding
        if step.mask is not None:
            return f"result: {finding} present, {area_in_words(step.mask.area, trace.image)}"
        return f"result: {finding} absent{_where(trace, False)}{_bracketed(_verdicts(trace))}"
    return step.kind


def _verdicts(trace: Trace) -> tuple[Verdict, ...]:
    step: PresenceStep | None = trace.last(PresenceStep)
    return () if step is None else step.verdicts


def _decided_by_user(trace: Trace) -> bool:
    step: PresenceStep | None = trace.last(PresenceStep)
    return step is not None and step.origin == "user"


def _where(trace: Trace, present: bool) -> str:
    """``in the left lung``: the regions whose verdict is ``present``, or before any verdict those asked about."""
    verdicts = _verdicts(trace)
    regions = tuple(v.region for v in verdicts if v.present == present)
    return _in(regions if verdicts else verdict_regions(trace.instruction.regions))


def _in(regions: Sequence[str]) -> str:
    # "Cardiomegaly in the heart" says nothing more than "cardiomegaly".
    named = [region for region in regions if region != HEART]
    if not named:
        return ""
    if set(named) == set(LUNGS):
        return " in both lungs"
    places = [f"the {region}" for region in named]
    return f" in {' and '.join(filter(None, (', '.join(places[:-1]), places[-1])))}"


def _bracketed(verdicts: Sequence[Verdict]) -> str:
    """The confidences behind a statement: one number for one region, each by name for several."""
    if len(verdicts) == 1:
        return _known(verdicts[0].confidence)
    known = [f"{v.region} {confidence_in_words(v.confidence)}" for v in verdicts if v.confidence is not None]
    return f" ({', '.join(known)})" if known else ""


def _state(verdict: Verdict) -> str:
    return f"{'present' if verdict.present else 'absent'}{_known(verdict.confidence)}"


def _known(confidence: float | None) -> str:
    return "" if confidence is None else f" ({confidence_in_words(confidence)})"


def _listed(items: Sequence[str], joint: str) -> str:
    more = len(items) - _SHOWN
    return joint.join(items[:_SHOWN]) + (f"{joint}and {more} more" if more > 0 else "")
