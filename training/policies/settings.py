"""Numbers of Table 7 for the two policies, and the arithmetic of its effective batches."""

from __future__ import annotations

from dataclasses import dataclass

from xflow_core.domain.errors import CallError


@dataclass(frozen=True)
class LoraSettings:
    """LoRA on every linear layer of the language model."""

    r: int
    alpha: int


@dataclass(frozen=True)
class SftSettings:
    """One column of Table 7. tower_rate: the vision tower's share of the rate. batch: effective, in samples."""

    rate: float
    tower_rate: float
    weight_decay: float
    clip: float
    batch: int
    epochs: int


@dataclass(frozen=True)
class RlSettings:
    """One column of Table 7. batch: effective, in generated completions. format_weight: of R_format in the sum."""

    rate: float
    weight_decay: float
    clip: float
    batch: int
    epochs: int
    generations: int
    temperature: float
    top_p: float
    beta: float
    format_weight: float

    def __post_init__(self) -> None:
        if self.generations < 2 or self.batch % self.generations:
            raise ValueError(
                f"batch is {self.batch}; it is a multiple of generations, {self.generations}, two at least"
            )


@dataclass(frozen=True)
class PolicyTraining:
    """The policies' part of the configuration."""

    lora: LoraSettings
    init_sft: SftSettings
    init_rl: RlSettings
    rev_sft: SftSettings
    rev_rl: RlSettings


def accumulation(batch: int, devices: int, per_device: int) -> int:
    """Steps of gradient accumulation: Table 7 counts per-device batch x accumulation x devices.

    Raises:
        CallError: the effective batch is no multiple of what the devices take at once.
    """
    at_once = devices * per_device
    if min(devices, per_device) < 1 or batch % at_once:
        raise CallError(
            f"An effective batch of {batch} cannot be made of {devices} devices with {per_device} each: "
            f"choose a per-device batch so that {batch} is a multiple of it times {devices}."
        )
    return batch // at_once
