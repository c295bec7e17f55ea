"""The configuration: one YAML file, typed. ``training/configs/paper.yaml`` holds the paper's numbers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from training.curation.sources.layout import Sources
from training.policies.settings import PolicyTraining
from training.segmenter.settings import SegmenterTraining
from xflow_core.domain.errors import CallError
from xflow_core.domain.findings import FINDINGS, LEVELS

PAPER = Path(__file__).parents[1] / "configs" / "paper.yaml"


@dataclass(frozen=True)
class SplitSettings:
    """How the splits are made (Table 5). See the file for what ``hold_out`` means."""

    rl_share: float
    hold_out: Literal["radiograph", "patient"]
    seed: int

    def __post_init__(self) -> None:
        if not 0 < self.rl_share < 1:
            raise ValueError(f"splits.rl_share is {self.rl_share}; it lies between 0 and 1")


@dataclass(frozen=True)
class ReportSettings:
    """Who reads the reports. url: of the endpoint. model: the endpoint's, or MedGemma's here. at_once: side by side."""

    parser: Literal["rules", "medgemma", "endpoint"]
    url: str
    model: str
    at_once: int

    def __post_init__(self) -> None:
        if self.at_once < 1:
            raise ValueError(f"reports.at_once is {self.at_once}; it is one at least")


@dataclass(frozen=True)
class LungSettings:
    """Where lung boxes come from. bundle: the one that grounds them where ``source`` is bundle."""

    source: Literal["chexmask", "cxas", "run", "bundle"]
    bundle: str
    least_quality: float


@dataclass(frozen=True)
class RevisionSettings:
    """Algorithm 1's numbers. guard_px: on the 1024-pixel frame. starts: starting states for RL, a component.

    left_alone: share of the trajectories that click without improving their masks which are shown all the same, as a
    mask that is to be left as it is; 0 drops them all, as A.3 says. least_gain: IoU. A trajectory ends with the first
    mask to which its later clicks add less, and improves where it has a click then; 0 shows every click, as A.3 does.
    """

    clicks: int
    guard_px: float
    jitter: float
    starts: int
    left_alone: float = 0.0
    least_gain: float = 0.0


@dataclass(frozen=True)
class Table5:
    """Radiographs; the last four are A.1's."""

    mimic_ils_train: int
    chexpercept: int
    sft_train: int
    sft_val: int
    agreed: int
    rl: int
    eval: int
    agreed_patients: int
    patients_with_several: int
    radiographs_of_those: int
    unilateral_pairs: int


@dataclass(frozen=True)
class Table6:
    """Examples."""

    init_sft_train: int
    init_sft_val: int
    init_rl_positive: int
    init_rl_negative: int
    rev_sft_train: int
    rev_sft_val: int
    rev_rl: int


@dataclass(frozen=True)
class Settings:
    """All of the file. table_8: finding -> level -> (positive, negative)."""

    sources: Sources
    splits: SplitSettings
    reports: ReportSettings
    lungs: LungSettings
    revision: RevisionSettings
    table_5: Table5
    table_6: Table6
    table_8: dict[str, dict[str, tuple[int, int]]]
    segmenter: SegmenterTraining
    policies: PolicyTraining

    def to_json(self) -> dict[str, Any]:
        """As plain values, for a manifest of curation: without what only training reads."""
        data = dataclasses.asdict(self)
        del data["policies"], data["segmenter"]
        data["sources"] = {name: path.as_posix() for name, path in data["sources"].items()}
        return data


def read_settings(path: Path = PAPER) -> Settings:
    """The configuration in a file.

    Raises:
        CallError: no such file, not YAML, or a key that is missing, unknown or of the wrong type; the message names it.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise CallError(f"The configuration {path} cannot be read: {problem.strerror or problem}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise CallError(f"The configuration {path} is not YAML: {' '.join(str(problem).split())}.") from None
    try:
        settings = _typed(Settings, data, "")
        for finding, levels in settings.table_8.items():
            if finding not in FINDINGS or not set(levels) <= set(LEVELS):
                raise ValueError(f"table_8.{finding} names no finding, or a level that is none of {', '.join(LEVELS)}")
    except ValueError as problem:
        raise CallError(f"The configuration {path} is wrong: {problem}.") from None
    return settings


def _typed(kind: Any, value: Any, place: str) -> Any:
    """``value`` as ``kind``, or a ValueError that names the place."""
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ValueError(f"{place or 'the file'} should hold keys and values")
        made: Any = kind
        hints = get_type_hints(kind)
        for key in value:
            if key not in hints:
                raise ValueError(f"{_under(place, key)} is unknown; known are {', '.join(hints)}")
        for key in hints:
            if key not in value:
                raise ValueError(f"{_under(place, key)} is missing")
        return made(**{key: _typed(hint, value[key], _under(place, key)) for key, hint in hints.items()})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{place} should hold keys and values")
        return {str(key): _typed(arguments[1], entry, _under(place, key)) for key, entry in value.items()}
    if origin is tuple:
        if not isinstance(value, list) or len(value) != len(arguments):
            raise ValueError(f"{place} should be a list of {len(arguments)}")
        return tuple(_typed(hint, entry, place) for hint, entry in zip(arguments, value, strict=True))
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{place} is {value!r}; it is one of {', '.join(map(str, arguments))}")
        return value
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and type(value) in (int, float):
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{place} is {value!r}; it should be {kind.__name__}")
    return value


def _under(place: str, key: object) -> str:
    return f"{place}.{key}" if place else str(key)
