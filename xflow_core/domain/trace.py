"""The trace: every decision of a run, as frozen values and as JSON (schema ``xflow.trace/1``).

A step is what the reader sees happen and may replace: the lungs, a verdict for each region, the lesion boxes, a mask,
a click, a stop, the result. Coordinates are normalised to the source image; masks are of the source size and travel as
COCO run lengths. "Confidence" is the probability that the model gave to what the step states (for a verdict, to the
stated presence or absence), or None where the model computed none.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np

from . import rle
from .errors import ValueRefused
from .findings import FINDINGS, HEART, LEVELS, LUNGS, check_finding, check_region
from .geometry import Box, Point
from .instruction import Instruction

SCHEMA = "xflow.trace/1"
ORIGINS = ("model", "user")
STOP_REASONS = ("satisfied", "limit", "no_progress", "user")
TIMED = ("read", "stage1", "segmenter", "stage2", "total")
STATUSES = ("present", "absent", "refused", "unsupported", "failed")
SPACING_KINDS = ("patient", "detector", "none")
POLARITIES = ("positive", "negative")


def _confidence(value: float | None) -> float | None:
    if value is None:
        return None
    number = _number("A confidence", value)
    if number > 1.0:
        raise ValueRefused(f"A confidence is a probability between 0 and 1, not {value}.")
    return number


def _number(name: str, value: float) -> float:
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise ValueRefused(f"{name} is {value!r}; it must be a finite number, 0 or more.")
    return number


def _flag(name: str, value: bool) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise ValueRefused(f"{name} is {value!r}; it must be true or false.")
    return bool(value)


def _one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ValueRefused(f"{name} is {value!r}; it must be one of {', '.join(allowed)}.")
    return value


def _count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise ValueRefused(f"{name} is {value!r}; it must be a whole number, 0 or more.")
    return int(value)


@dataclass(frozen=True)
class Mask:
    """A binary mask of the source size, kept as COCO run lengths; equal when the pixels are equal."""

    size: tuple[int, int]
    counts: str

    def __post_init__(self) -> None:
        rle.check(self.counts, self.size)

    @classmethod
    def of(cls, array: np.ndarray) -> Mask:
        """From a ``[H, W]`` bool or 0/1 array."""
        array = np.asarray(array)
        if array.ndim != 2 or array.size == 0:
            raise ValueRefused(f"A mask is a [rows, columns] array, not one of shape {array.shape}.")
        return cls((int(array.shape[0]), int(array.shape[1])), rle.encode(array.astype(bool)))

    @property
    def array(self) -> np.ndarray:
        """The ``[H, W]`` bool array, made anew at each call."""
        return rle.decode(self.counts, self.size)

    @property
    def area(self) -> int:
        """True pixels."""
        return rle.area(self.counts)

    def to_json(self) -> dict[str, Any]:
        return {"size": list(self.size), "counts": self.counts}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Mask:
        height, width = data["size"]
        return cls((int(height), int(width)), str(data["counts"]))


@dataclass(frozen=True)
class GroundedLung:
    """A lung and the box around it."""

    label: str
    box: Box
    confidence: float | None = None

    def __post_init__(self) -> None:
        _one_of("A lung's label", self.label, LUNGS)
        object.__setattr__(self, "confidence", _confidence(self.confidence))


@dataclass(frozen=True)
class Verdict:
    """Whether the finding is present in a region; ``confidence`` is the probability of what is stated."""

    region: str
    present: bool
    confidence: float | None = None

    def __post_init__(self) -> None:
        check_region(self.region)
        object.__setattr__(self, "present", _flag("present", self.present))
        object.__setattr__(self, "confidence", _confidence(self.confidence))


@dataclass(frozen=True)
class LesionBox:
    """A component of the lesion: its number, the finding, its box and the region it lies in."""

    component: int
    label: str
    box: Box
    region: str
    confidence: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "component", _count("component", self.component))
        check_finding(self.label)
        check_region(self.region)
        object.__setattr__(self, "confidence", _confidence(self.confidence))


@dataclass(frozen=True)
class Click:
    """A positive click asks for more around the point, a negative one for less (paper, section 4.1)."""

    polarity: str
    point: Point

    def __post_init__(self) -> None:
        _one_of("A click's polarity", self.polarity, POLARITIES)


@dataclass(frozen=True, kw_only=True)
class Step(ABC):
    """What all steps share: who decided it, how long it took, the words a model wrote, and notes for the reader."""

    kind: ClassVar[str]
    origin: str = "model"
    seconds: float = field(default=0.0, compare=False)
    text: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _one_of("A step's origin", self.origin, ORIGINS)
        object.__setattr__(self, "seconds", _number("A step's seconds", self.seconds))

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """The keys of this kind of step, as JSON."""

    def to_json(self, index: int) -> dict[str, Any]:
        data: dict[str, Any] = {"index": index, "kind": self.kind, **self.body()}
        data["origin"] = self.origin
        data["seconds"] = round(self.seconds, 4)
        if self.text is not None:
            data["text"] = self.text
        if self.notes:
            data["notes"] = list(self.notes)
        return data


@dataclass(frozen=True, kw_only=True)
class LungsStep(Step):
    kind: ClassVar[str] = "lungs"
    lungs: tuple[GroundedLung, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        labels = [lung.label for lung in self.lungs]
        if not labels or len(set(labels)) != len(labels):
            raise ValueRefused(f"A lungs step names each lung once and at least one; got {labels}.")

    def box_of(self, lung: str) -> Box | None:
        return next((found.box for found in self.lungs if found.label == lung), None)

    def body(self) -> dict[str, Any]:
        return {
            "lungs": [
                {"label": lung.label, "box": lung.box.to_json(), "confidence": lung.confidence} for lung in self.lungs
            ]
        }


@dataclass(frozen=True, kw_only=True)
class PresenceStep(Step):
    kind: ClassVar[str] = "presence"
    verdicts: tuple[Verdict, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        regions = [verdict.region for verdict in self.verdicts]
        if not regions or len(set(regions)) != len(regions):
            raise ValueRefused(f"A presence step gives each region one verdict, and at least one; got {regions}.")

    @property
    def present(self) -> bool:
        return any(verdict.present for verdict in self.verdicts)

    def body(self) -> dict[str, Any]:
        return {
            "verdicts": [
                {"region": verdict.region, "present": verdict.present, "confidence": verdict.confidence}
                for verdict in self.verdicts
            ]
        }


@dataclass(frozen=True, kw_only=True)
class BoxesStep(Step):
    kind: ClassVar[str] = "boxes"
    boxes: tuple[LesionBox, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = [box.component for box in self.boxes]
        if numbers != list(range(len(numbers))) or not numbers:
            raise ValueRefused(f"Components are numbered 0, 1, .. in order, at least one; got {numbers}.")

    def body(self) -> dict[str, Any]:
        return {
            "boxes": [
                {
                    "component": box.component,
                    "label": box.label,
                    "box": box.box.to_json(),
                    "region": box.region,
                    "confidence": box.confidence,
                }
                for box in self.boxes
            ]
        }


@dataclass(frozen=True, kw_only=True)
class MaskStep(Step):
    """The mask of one component; turn 0 follows the box, turn n the n-th click."""

    kind: ClassVar[str] = "mask"
    component: int
    turn: int
    mask: Mask
    predicted_iou: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "component", _count("component", self.component))
        object.__setattr__(self, "turn", _count("turn", self.turn))
        object.__setattr__(self, "predicted_iou", _confidence(self.predicted_iou))

    def body(self) -> dict[str, Any]:
        return {
            "component": self.component,
            "turn": self.turn,
            "mask": self.mask.to_json(),
            "area_px": self.mask.area,
            "predicted_iou": self.predicted_iou,
        }


@dataclass(frozen=True, kw_only=True)
class ClickStep(Step):
    """The ``turn``-th click on a component, counted from 1."""

    kind: ClassVar[str] = "click"
    component: int
    turn: int
    click: Click

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "component", _count("component", self.component))
        object.__setattr__(self, "turn", _count("turn", self.turn))
        if self.turn < 1:
            raise ValueRefused(f"A click's turn is counted from 1, not {self.turn}.")

    def body(self) -> dict[str, Any]:
        return {
            "component": self.component,
            "turn": self.turn,
            "polarity": self.click.polarity,
            "point": self.click.point.to_json(),
        }


@dataclass(frozen=True, kw_only=True)
class StopStep(Step):
    """Why no further click was made on a component."""

    kind: ClassVar[str] = "stop"
    component: int
    reason: str

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "component", _count("component", self.component))
        _one_of("A stop's reason", self.reason, STOP_REASONS)

    def body(self) -> dict[str, Any]:
        return {"component": self.component, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class ResultStep(Step):
    """The union of the components' last masks, or the statement that the finding is absent."""

    kind: ClassVar[str] = "result"
    present: bool
    mask: Mask | None = None
    area_mm2: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "present", _flag("present", self.present))
        if self.area_mm2 is not None:
            object.__setattr__(self, "area_mm2", _number("area_mm2", self.area_mm2))
        if self.present != (self.mask is not None and self.mask.area > 0):
            raise ValueRefused("A present result has a mask with pixels, and an absent one has none.")

    def body(self) -> dict[str, Any]:
        return {
            "present": self.present,
            "mask": None if self.mask is None else self.mask.to_json(),
            "area_px": 0 if self.mask is None else self.mask.area,
            "area_mm2": self.area_mm2,
        }


def step_from_json(data: dict[str, Any]) -> Step:
    """A step from its JSON object; keys it does not know are ignored.

    Raises:
        ValueRefused: the kind is unknown, a key is missing or a value cannot be.
    """
    if not isinstance(data, dict):
        raise ValueRefused(f"A step of the trace is an object, not {type(data).__name__}.")
    try:
        common: dict[str, Any] = {
            "origin": data.get("origin", "model"),
            "seconds": data.get("seconds", 0.0),
            "text": data.get("text"),
            "notes": tuple(data.get("notes", ())),
        }
        kind = data["kind"]
        if kind == "lungs":
            lungs = tuple(GroundedLung(x["label"], Box(*x["box"]), x.get("confidence")) for x in data["lungs"])
            return LungsStep(lungs=lungs, **common)
        if kind == "presence":
            verdicts = tuple(Verdict(x["region"], x["present"], x.get("confidence")) for x in data["verdicts"])
            return PresenceStep(verdicts=verdicts, **common)
        if kind == "boxes":
            boxes = tuple(
                LesionBox(x["component"], x["label"], Box(*x["box"]), x["region"], x.get("confidence"))
                for x in data["boxes"]
            )
            return BoxesStep(boxes=boxes, **common)
        if kind == "mask":
            return MaskStep(
                component=data["component"],
                turn=data["turn"],
                mask=Mask.from_json(data["mask"]),
                predicted_iou=data.get("predicted_iou"),
                **common,
            )
        if kind == "click":
            click = Click(data["polarity"], Point(*data["point"]))
            return ClickStep(component=data["component"], turn=data["turn"], click=click, **common)
        if kind == "stop":
            return StopStep(component=data["component"], reason=data["reason"], **common)
        if kind == "result":
            mask = data.get("mask")
            return ResultStep(
                present=data["present"],
                mask=None if mask is None else Mask.from_json(mask),
                area_mm2=data.get("area_mm2"),
                **common,
            )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
        if isinstance(problem, ValueRefused):
            raise
        raise ValueRefused(f"Step {data.get('index', '?')} of the trace is not well formed: {problem!r}.") from None
    raise ValueRefused(f"Step {data.get('index', '?')} has the unknown kind {kind!r}.")


@dataclass(frozen=True)
class ImageRecord:
    """What the trace says of the image: identity, shape and how its spacing may be read; no patient data."""

    sha256: str
    source: str
    size: tuple[int, int]
    sop_instance_uid: str | None = None
    view: str | None = None
    photometric: str | None = None
    spacing_mm: tuple[float, float] | None = None
    spacing_kind: str = "none"
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _one_of("spacing_kind", self.spacing_kind, SPACING_KINDS)
        if (self.spacing_mm is None) != (self.spacing_kind == "none"):
            raise ValueRefused("A spacing has a kind, and without a spacing the kind is 'none'.")
        if min(self.size) < 1:
            raise ValueRefused(f"An image of {self.size} pixels cannot be.")
        if self.spacing_mm is not None and not all(math.isfinite(mm) and mm > 0 for mm in self.spacing_mm):
            raise ValueRefused(f"A pixel spacing is positive, not {self.spacing_mm}; zero spacing counts as none.")

    def area_mm2(self, area_px: int) -> float | None:
        """The area in mm2, in the plane that ``spacing_kind`` names; None without a spacing."""
        if self.spacing_mm is None:
            return None
        return area_px * self.spacing_mm[0] * self.spacing_mm[1]

    def to_json(self) -> dict[str, Any]:
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        data["size"] = list(self.size)
        data["spacing_mm"] = None if self.spacing_mm is None else list(self.spacing_mm)
        data["warnings"] = list(self.warnings)
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ImageRecord:
        known = {item.name: data[item.name] for item in fields(cls) if item.name in data}
        known["size"] = tuple(known["size"])
        known["spacing_mm"] = None if known.get("spacing_mm") is None else tuple(known["spacing_mm"])
        known["warnings"] = tuple(known.get("warnings", ()))
        return cls(**known)


@dataclass(frozen=True)
class BundleIdentity:
    """Which models gave the answer."""

    name: str
    version: str
    backend: str
    sha256: str

    def to_json(self) -> dict[str, str]:
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BundleIdentity:
        return cls(**{item.name: str(data[item.name]) for item in fields(cls)})


@dataclass(frozen=True)
class Result:
    """The answer in short. ``confidence`` is the probability of what is stated (see the module's words)."""

    status: str
    confidence: float | None = None
    mask_file: str | None = None
    area_px: int = 0
    area_mm2: float | None = None
    message: str | None = None

    def __post_init__(self) -> None:
        _one_of("A result's status", self.status, STATUSES)
        object.__setattr__(self, "confidence", _confidence(self.confidence))
        object.__setattr__(self, "area_px", _count("area_px", self.area_px))
        if self.area_mm2 is not None:
            object.__setattr__(self, "area_mm2", _number("area_mm2", self.area_mm2))

    @property
    def present(self) -> bool | None:
        """True or False for an answer, None where there is none (refused, unsupported, failed)."""
        return {"present": True, "absent": False}.get(self.status)

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "status": self.status,
            "present": self.present,
            "confidence": self.confidence,
            "mask_file": self.mask_file,
            "area_px": self.area_px,
            "area_mm2": self.area_mm2,
        }
        if self.message is not None:
            data["message"] = self.message
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        return cls(**{item.name: data[item.name] for item in fields(cls) if item.name in data})


@dataclass(frozen=True)
class Branch:
    """Where a replay left the trace that it came from: before step ``step`` of ``trace``."""

    trace: str
    step: int


@dataclass(frozen=True)
class Trace:
    """Everything that was decided about one instruction on one image.

    Attributes:
        memory_layout: how the bundle's models lay in memory at the last step, where that may change what they answer.
    """

    image: ImageRecord
    instruction: Instruction
    bundle: BundleIdentity
    steps: tuple[Step, ...] = ()
    result: Result | None = None
    branch_of: Branch | None = None
    seed: int = 0
    stages: int = 2
    seconds: dict[str, float] = field(default_factory=dict, compare=False)
    memory_layout: str | None = None

    def __post_init__(self) -> None:
        check_finding(self.instruction.finding)
        object.__setattr__(self, "seconds", {**dict.fromkeys(TIMED, 0.0), **self.seconds})

    @property
    def id(self) -> str:
        """A name for the trace made from what it says; timings, the memory layout and the file that the mask went to
        are left out."""
        text = json.dumps(self._json(id_only=True), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def last(self, kind: type[Step]) -> Any:
        """The last step of a kind, or None."""
        return next((step for step in reversed(self.steps) if isinstance(step, kind)), None)

    def with_mask_file(self, name: str | None) -> Trace:
        assert self.result is not None
        return replace(self, result=replace(self.result, mask_file=name))

    def _json(self, id_only: bool = False) -> dict[str, Any]:
        steps = [step.to_json(index) for index, step in enumerate(self.steps)]
        data: dict[str, Any] = {
            "schema": SCHEMA,
            "notice": "not for clinical use",
            "image": self.image.to_json(),
            "instruction": {
                "text": self.instruction.text,
                "finding": self.instruction.finding,
                "regions": list(self.instruction.regions),
                "level": self.instruction.level,
                "negated": self.instruction.negated,
                "notes": list(self.instruction.notes),
            },
            "bundle": self.bundle.to_json(),
            "branch_of": None if self.branch_of is None else asdict(self.branch_of),
            "seed": self.seed,
            "stages": self.stages,
            "steps": steps,
            "result": None if self.result is None else self.result.to_json(),
        }
        if id_only:
            for step in steps:
                step.pop("seconds")
            if data["result"] is not None:
                data["result"].pop("mask_file")
        else:
            data["id"] = self.id
            if self.memory_layout is not None:
                data["memory_layout"] = self.memory_layout
            data["seconds"] = {name: round(value, 4) for name, value in self.seconds.items()}
        return data

    def to_json(self) -> dict[str, Any]:
        return self._json()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Trace:
        """A trace from its JSON object.

        Raises:
            ValueRefused: another schema, or something is missing or cannot be.
        """
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise ValueRefused(f"This is no {SCHEMA} trace (its schema is {found!r}).")
        try:
            asked = data["instruction"]
            instruction = Instruction(
                text=asked["text"],
                finding=asked["finding"],
                regions=tuple(asked["regions"]),
                level=_one_of("level", asked["level"], LEVELS),
                negated=_flag("negated", asked["negated"]),
                notes=tuple(asked.get("notes", ())),
            )
            branch = data.get("branch_of")
            result = data.get("result")
            return cls(
                image=ImageRecord.from_json(data["image"]),
                instruction=instruction,
                bundle=BundleIdentity.from_json(data["bundle"]),
                steps=tuple(step_from_json(step) for step in data["steps"]),
                result=None if result is None else Result.from_json(result),
                branch_of=None if branch is None else Branch(str(branch["trace"]), int(branch["step"])),
                seed=int(data.get("seed", 0)),
                stages=int(data.get("stages", 2)),
                seconds=dict(data.get("seconds", {})),
                memory_layout=None if data.get("memory_layout") is None else str(data["memory_layout"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
            if isinstance(problem, ValueRefused):
                raise
            raise ValueRefused(f"The trace is not well formed: {problem!r}.") from None


__all__ = [
    "FINDINGS", "HEART", "SCHEMA", "BoxesStep", "Branch", "BundleIdentity", "Click", "ClickStep", "GroundedLung",
    "ImageRecord", "LesionBox", "LungsStep", "Mask", "MaskStep", "PresenceStep", "Result", "ResultStep", "Step",
    "StopStep", "Trace", "Verdict", "step_from_json",
]  # fmt: skip
