"""What the workflow asks of the two policies and of a bundle's guard (paper, section 4.1).

Everything is in the source image frame: boxes and points normalised to [0, 1], masks bool ``[H, W]``. A policy that
writes text returns the words it wrote beside the parsed decision; text that does not parse raises
:class:`~xflow_core.domain.errors.EngineError` and is never read as "absent".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import Click, GroundedLung, LesionBox, Verdict
from xflow_core.radiograph.encoded import EncodedRadiograph

T = TypeVar("T")


@dataclass(frozen=True)
class Decision(Generic[T]):
    """A policy's decision and, for a policy that writes text, its raw words."""

    value: T
    text: str | None = None


@dataclass(frozen=True)
class Done:
    """The revision policy makes no further click: ``satisfied``, or ``no_progress`` when no click would help."""

    reason: str = "satisfied"


class InitPolicy(Protocol):
    """pi_init: the lungs, then a verdict per region, then the lesion boxes; each call is given what stands before it,
    which may be the user's."""

    def ground_lungs(
        self, image: EncodedRadiograph, instruction: Instruction, lungs: Sequence[str], *, seed: int
    ) -> Decision[tuple[GroundedLung, ...]]:
        """A box for each of the named ``lungs``, in that order.

        Raises:
            EngineError: a lung cannot be found.
        """
        ...

    def judge(
        self,
        image: EncodedRadiograph,
        instruction: Instruction,
        regions: Sequence[str],
        lungs: Sequence[GroundedLung],
        *,
        seed: int,
    ) -> Decision[tuple[Verdict, ...]]:
        """One verdict per region of ``regions``, in that order, judged inside the grounded ``lungs``."""
        ...

    def localise(
        self,
        image: EncodedRadiograph,
        instruction: Instruction,
        lungs: Sequence[GroundedLung],
        verdicts: Sequence[Verdict],
        *,
        seed: int,
    ) -> Decision[tuple[LesionBox, ...]]:
        """At least one box for every region whose verdict is present, numbered 0, 1, .. in reading order.

        A verdict may be the user's against the model's own: the best place in that region is boxed all the same.
        """
        ...


class RevisionPolicy(Protocol):
    """pi_rev: one click at a time on one component, or done."""

    def revise(
        self,
        image: EncodedRadiograph,
        instruction: Instruction,
        component: LesionBox,
        masks: Sequence[np.ndarray],
        clicks: Sequence[Click],
        *,
        seed: int,
    ) -> Decision[Click | Done]:
        """The next click on the component, or that none is needed.

        masks: the component's masks so far, bool ``[H, W]``, the newest last; ``len(masks) == len(clicks) + 1``
            unless the user drew one.
        clicks: the clicks so far, oldest first.
        """
        ...


@dataclass(frozen=True)
class GuardReport:
    """What a bundle's guard sees in the pixels: reasons to refuse, and weaker signs to warn of."""

    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class ImageGuard(Protocol):
    """A learned look at the picture before any question is answered."""

    def inspect(self, image: EncodedRadiograph) -> GuardReport:
        """Is this one upright frontal chest radiograph, bones bright? Never raises for an odd picture."""
        ...
