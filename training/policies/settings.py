"""Numbers of Table 7 for the two policies, and the arithmetic of its effective batches."""

from __future__ import annotations

from dataclasses import dataclass

from xflow_core.domain.errors import CallError


@dataclass(frozen=True)
class LoraSettings:
    """LoRA on every linear layer of the language model.

    whole: the embeddings, the output layer and the projector belong to the adapter too and are trained in SFT, as the
    tower is. A trained base has good ones; one made from scratch has none.
    """

    r: int
    alpha: int
    whole: bool = False


@dataclass(frozen=True)
class FromScratch:
    """What SFT does for a base that was never trained, and not for MedGemma: all of it off by default.

    dense: weight of a loss on every patch of the tower (what lies there: lungs, findings; for pi_rev the mask, what it
        misses, what it has too much of). The answer's few tokens alone tell a fresh tower too little.
    dense_steps: first steps on that loss alone.
    verdict_weight: of the tokens that say present or absent, in the loss.
    spread: a coordinate's target is a bell of this width in steps of the grid; 0 is that number alone.
    """

    dense: float = 0.0
    dense_steps: int = 0
    verdict_weight: float = 1.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        if min(self.dense, self.dense_steps, self.spread) < 0 or self.verdict_weight <= 0:
            raise ValueError("from_scratch's weights, steps and width are not negative")
        if self.dense_steps and not self.dense:
            raise ValueError("from_scratch.dense_steps needs a weight, from_scratch.dense")

    @property
    def helps(self) -> bool:
        return self != FromScratch()


@dataclass(frozen=True)
class SftSettings:
    """One column of Table 7. tower_rate: the vision tower's share of the rate. batch: effective, in samples.

    warmup: steps in which the rate rises; it then falls to nothing along a line. steps: the end, in place of the
    epochs; 0 for the epochs.
    """

    rate: float
    tower_rate: float
    weight_decay: float
    clip: float
    batch: int
    epochs: int
    warmup: int = 0
    steps: int = 0
    from_scratch: FromScratch = FromScratch()


@dataclass(frozen=True)
class RlSettings:
    """One column of Table 7. batch: effective, in generated completions. format_weight: of R_format in the sum.

    answer_tokens: the most that one answer takes; the paper gives no number. steps: as in :class:`SftSettings`.
    advantage: by what a reward's distance from its group's mean is divided: the deviation within the ``group``, as GRPO
    does, or in the whole ``batch``.
    """

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
    warmup: int = 0
    steps: int = 0
    answer_tokens: int = 512
    advantage: str = "group"

    def __post_init__(self) -> None:
        if self.advantage not in ("group", "batch"):
            raise ValueError(f"advantage is {self.advantage!r}; it is 'group' or 'batch'")
        if self.generations < 2 or self.batch % self.generations:
            raise ValueError(
                f"batch is {self.batch}; it is a multiple of generations, {self.generations}, two at least"
            )


@dataclass(frozen=True)
class PolicyTraining:
    """The policies' part of the configuration. grid: whole numbers along the square's side."""

    grid: int
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
