"""How two policies lie in memory: two merged models, one base with two adapters, or that base in four bits.

``merged``   each policy is a model of its own, its LoRA weights added into the base's. Fastest: no second product for
             each layer. Two bases: about 17 GB of weights at full size, a 24 GB card.
``adapters`` one base, each policy's LoRA weights and vision tower beside it, switched exactly. About 11 GB, a 16 GB
             card.
``nf4``      the same, the base's language layers in four bits (NF4, bitsandbytes); towers, projector, embeddings and
             adapters stay as they are. About 6 GB, a 12 GB card. Four bits round: the answers are near those of the
             other layouts, not equal to them.

The weights are counted in the files' own headers; a fixed share is kept for the key-value caches, the activations and
the segmenter. Where the memory does not suffice after all, while loading or in a run, the next layout is taken, once,
and the log says so (:class:`LaidOutPolicies`).
"""

from __future__ import annotations

import gc
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from safetensors import safe_open

from xflow_core.domain.errors import CallError, EngineError
from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import Click, GroundedLung, LesionBox, Verdict
from xflow_core.radiograph.encoded import EncodedRadiograph

from .medgemma_model import PLAIN, MedGemma
from .protocols import Decision, Done, InitPolicy, RevisionPolicy

T = TypeVar("T")
LOG = logging.getLogger(__name__)

MERGED, ADAPTERS, NF4 = "merged", "adapters", "nf4"
LAYOUTS = (MERGED, ADAPTERS, NF4)
"""From the most memory to the least."""

BESIDE_WEIGHTS = 9 << 29
"""Keys and values of four conversations of each policy, 2112 places at 139 KB each (2.3 GB), SAM3 in bfloat16 and its
activations (1.5 GB), the language model's and its recorded passes (0.8 GB, not measured)."""

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes for each number in four bits: a scale of one byte for 64 numbers, and one of four for 256 such scales."""

_IN_FOUR_BITS = re.compile(r"language_model\..*\.(q|k|v|o|gate|up|down)_proj\.weight$")


def numbers_in(folder: Path, names: re.Pattern[str] | None = None) -> int:
    """Numbers in the safetensors files of a folder, read from their headers; of the arrays with ``names`` in them."""
    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as weights:
            counted = [name for name in weights.keys() if names is None or names.search(name)]  # noqa: SIM118
            count += sum(prod(weights.get_slice(name).get_shape()) for name in counted)
    return count


def bytes_needed(layout: str, base: Path, adapters: Mapping[str, Path], *, bytes_per_number: int = 2) -> int:
    """Memory that the policies take in a layout, with :data:`BESIDE_WEIGHTS`."""
    beside = 0 if layout == MERGED else sum(map(numbers_in, adapters.values()))
    models = numbers_in(base) * (2 if layout == MERGED and adapters else 1)
    small = numbers_in(base, _IN_FOUR_BITS) if layout == NF4 else 0
    return (models + beside - small) * bytes_per_number + round(small * NF4_BYTES) + BESIDE_WEIGHTS


def layouts_here(device: str) -> tuple[str, ...]:
    """The layouts that can be loaded on a device: four bits need bitsandbytes, which is not for MPS."""
    four_bits = device != "mps" and find_spec("bitsandbytes") is not None
    return LAYOUTS if four_bits else LAYOUTS[:-1]


def check_layout(layout: str, device: str) -> None:
    """Raise :class:`CallError` for a layout that is none, or that cannot be had on the device."""
    if layout not in (*LAYOUTS, "auto"):
        raise CallError(f"There is no memory layout {layout!r}; choose auto, {', '.join(LAYOUTS)}.")
    if layout == NF4 and layout not in layouts_here(device):
        raise CallError(
            f"The memory layout {NF4!r} does not run on {device}; choose another."
            if device == "mps"
            else f"The memory layout {NF4!r} needs bitsandbytes, which is not installed: pip install bitsandbytes."
        )


def check_memory(layout: str, base: Path, adapters: Mapping[str, Path], device: str) -> None:
    """Raise :class:`CallError` where the policies compute in the machine's own memory, in float32, and their weights
    are larger than all of it; on CUDA the next layout is taken instead."""
    has = machine_memory()
    if device == "cuda" or has is None:
        return
    name = ADAPTERS if layout == "auto" else layout
    needed = bytes_needed(name, base, adapters, bytes_per_number=4) - BESIDE_WEIGHTS
    if needed > has:
        raise CallError(
            f"The policies take {needed / 2**30:.1f} GiB on {device} in the layout {name!r}, and this machine has "
            f"{has / 2**30:.1f} GiB; run them on a GPU."
        )


def machine_memory() -> int | None:
    """Bytes of this machine's memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # Windows has no sysconf
        return None


def choose_layout(device: str, base: Path, adapters: Mapping[str, Path]) -> str:
    """The first layout that fits the CUDA device's free memory, else the smallest that can be had; on other devices
    ``adapters``."""
    if device != "cuda":
        return ADAPTERS
    free, _ = torch.cuda.mem_get_info()
    here = layouts_here(device)
    return next((name for name in here if bytes_needed(name, base, adapters) <= free), here[-1])


def layout_and_next(layout: str, base: Path, adapters: Mapping[str, Path], device: str) -> tuple[str, ...]:
    """The layout to load, and the one to fall to, where there is one that can be had.

    Raises:
        CallError: no such layout, or not on this device.
    """
    check_layout(layout, device)
    first = choose_layout(device, base, adapters) if layout == "auto" else layout
    smaller = [name for name in layouts_here(device) if LAYOUTS.index(name) > LAYOUTS.index(first)]
    return first, *smaller[:1]


def load_in_layout(
    layout: str,
    base: Path,
    adapters: Mapping[str, Path],
    *,
    device: str,
    dtype: torch.dtype,
    decoding: str = PLAIN,
) -> dict[str, MedGemma]:
    """A model for each policy, ``init`` and ``revision``; but in ``merged`` it is one and the same.

    Args:
        layout: one of :data:`LAYOUTS`. decoding: see :class:`MedGemma`.

    Raises:
        BundleError: a part is missing, damaged, or made for another model.
    """
    if layout == MERGED and adapters:
        return {
            role: MedGemma.load(
                base,
                {role: adapters[role]} if role in adapters else {},
                device=device,
                dtype=dtype,
                merge=True,
                decoding=decoding,
            )
            for role in ("init", "revision")
        }
    model = MedGemma.load(base, adapters, device=device, dtype=dtype, four_bits=layout == NF4, decoding=decoding)
    return dict.fromkeys(("init", "revision"), model)


class LaidOutPolicies:
    """The two policies in a memory layout. Out of memory, they are loaded once more, in the next one.

    A decision hangs on what it is given and on nothing that is lost with the models, so the decision that failed is
    made again, and the run goes on.

    Args:
        names: the layout, and the next one where there is one.
        load: makes the policies in a layout.
        device: for the messages.

    Raises:
        EngineError: the memory does not suffice to load them.
    """

    def __init__(
        self, names: Sequence[str], load: Callable[[str], tuple[InitPolicy, RevisionPolicy]], device: str
    ) -> None:
        self._names = list(names)
        self._load = load
        self._device = device
        self._lock = threading.RLock()
        self._pair: tuple[InitPolicy, RevisionPolicy] | None = None
        self.init: InitPolicy = _Init(self)
        self.revision: RevisionPolicy = _Revision(self)
        with self._lock:
            self._fill()

    @property
    def layout(self) -> str:
        return self._names[0]

    def decide(self, work: Callable[[InitPolicy, RevisionPolicy], T]) -> T:
        """``work`` of the two policies, done again after a fall to the next layout.

        Raises:
            EngineError: out of memory, and there is no further layout, or not there either.
        """
        held, pair = self._held()
        try:
            return work(*pair)
        except torch.OutOfMemoryError:
            pass
        # Not in the clause above: the exception holds on to what was being computed.
        del pair
        if not self.make_room(held):
            raise EngineError(self._too_small())
        _, pair = self._held()
        try:
            return work(*pair)
        except torch.OutOfMemoryError:
            raise EngineError(self._too_small()) from None

    def make_room(self, left: str | None = None) -> bool:
        """Fall from the layout ``left`` (the one held now) to the next one; False where there is none.

        Raises:
            EngineError: the memory does not suffice for the next one either.
        """
        with self._lock:
            if left is not None and left != self.layout:
                return True  # another thread has made room already
            if len(self._names) == 1:
                return False
            self._fall()
            self._fill()
            return True

    def _held(self) -> tuple[str, tuple[InitPolicy, RevisionPolicy]]:
        with self._lock:
            if self._pair is None:
                raise EngineError(self._too_small())
            return self.layout, self._pair

    def _fall(self) -> None:
        left = self._names.pop(0)
        LOG.warning(
            "The memory does not suffice for the layout %r; the policies are loaded in the layout %r%s.",
            left,
            self.layout,
            ", whose answers may differ" if self.layout == NF4 else "",
        )
        self._pair = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _fill(self) -> None:
        while True:
            try:
                self._pair = self._load(self.layout)
                return
            except torch.OutOfMemoryError:
                if len(self._names) == 1:
                    raise EngineError(self._too_small()) from None
            self._fall()

    def _too_small(self) -> str:
        return (
            f"The policies do not fit the memory of {self._device}, not even in the layout {self._names[-1]!r}; "
            "free some of it, or use another device."
        )


class _Init:
    def __init__(self, policies: LaidOutPolicies) -> None:
        self._policies = policies

    def ground_lungs(
        self, image: EncodedRadiograph, instruction: Instruction, lungs: Sequence[str], *, seed: int
    ) -> Decision[tuple[GroundedLung, ...]]:
        return self._policies.decide(lambda init, _: init.ground_lungs(image, instruction, lungs, seed=seed))

    def judge(
        self,
        image: EncodedRadiograph,
        instruction: Instruction,
        regions: Sequence[str],
        lungs: Sequence[GroundedLung],
        *,
        seed: int,
    ) -> Decision[tuple[Verdict, ...]]:
        return self._policies.decide(lambda init, _: init.judge(image, instruction, regions, lungs, seed=seed))

    def localise(
        self,
        image: EncodedRadiograph,
        instruction: Instruction,
        lungs: Sequence[GroundedLung],
        verdicts: Sequence[Verdict],
        *,
        seed: int,
    ) -> Decision[tuple[LesionBox, ...]]:
        return self._policies.decide(lambda init, _: init.localise(image, instruction, lungs, verdicts, seed=seed))


class _Revision:
    def __init__(self, policies: LaidOutPolicies) -> None:
        self._policies = policies

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
        return self._policies.decide(
            lambda _, revision: revision.revise(image, instruction, component, masks, clicks, seed=seed)
        )
