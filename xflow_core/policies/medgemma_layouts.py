"""How two policies lie in memory: two merged models, or one base with two adapters.

``merged``   each policy is a model of its own, its LoRA weights added into the base's. Fastest: no second product for
             each layer. Two bases: about 17 GB of weights at full size, a 24 GB card.
``adapters`` one base, each policy's LoRA weights and vision tower beside it, switched exactly. About 11 GB, a 16 GB
             card.

The weights are counted in the files' own headers; a fixed share is kept for the key-value caches, the activations and
the segmenter. A card under 16 GB would need a language model in four bits, which is not built.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import prod
from pathlib import Path

import torch
from safetensors import safe_open

from xflow_core.domain.errors import CallError, EngineError

from .medgemma_model import MedGemma

LOG = logging.getLogger(__name__)

LAYOUTS = ("merged", "adapters")
"""From the most memory to the least."""

BESIDE_WEIGHTS = 3 << 30
"""Two caches of 3000 tokens at 139 KB (0.8 GB), SAM3 in bfloat16 and its activations (1.5 GB), the language model's."""


def numbers_in(folder: Path) -> int:
    """Numbers in the safetensors files of a folder, read from their headers."""
    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as weights:
            count += sum(prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    return count


def bytes_needed(layout: str, base: Path, adapters: Mapping[str, Path], *, bytes_per_number: int = 2) -> int:
    """Memory that the policies take in a layout, with :data:`BESIDE_WEIGHTS`."""
    beside = sum(map(numbers_in, adapters.values()))
    models = numbers_in(base) * (2 if layout == "merged" and adapters else 1)
    return (models + (0 if layout == "merged" else beside)) * bytes_per_number + BESIDE_WEIGHTS


def choose_layout(device: str, base: Path, adapters: Mapping[str, Path]) -> str:
    """The first layout that fits the CUDA device's free memory, else the smallest; on other devices the smallest."""
    if device != "cuda":
        return LAYOUTS[-1]
    free, _ = torch.cuda.mem_get_info()
    return next((name for name in LAYOUTS if bytes_needed(name, base, adapters) <= free), LAYOUTS[-1])


def load_in_layout(
    layout: str, base: Path, adapters: Mapping[str, Path], *, device: str, dtype: torch.dtype
) -> dict[str, MedGemma]:
    """A model for each policy, ``init`` and ``revision``; with ``adapters`` it is one and the same.

    Args:
        layout: one of :data:`LAYOUTS`, or ``auto``. Where the memory does not suffice after all, the next one is
            loaded, once, and the log says so.

    Raises:
        CallError: no such layout.
        BundleError: a part is missing, damaged, or made for another model.
        EngineError: the memory suffices for none.
    """
    if layout not in (*LAYOUTS, "auto"):
        raise CallError(f"There is no memory layout {layout!r}; choose auto, {', '.join(LAYOUTS)}.")
    first = choose_layout(device, base, adapters) if layout == "auto" else layout
    following = LAYOUTS[LAYOUTS.index(first) : LAYOUTS.index(first) + 2]
    for name in following:
        try:
            return _load(name, base, adapters, device, dtype)
        except torch.OutOfMemoryError:
            if name != following[-1]:
                LOG.warning("The memory does not suffice for the layout %r; the next one is loaded.", name)
    raise EngineError(
        f"The policies do not fit the memory of {device}, not even in the layout {following[-1]!r}; "
        "free some of it, or use another device."
    )


def _load(
    layout: str, base: Path, adapters: Mapping[str, Path], device: str, dtype: torch.dtype
) -> dict[str, MedGemma]:
    if layout == "merged" and adapters:
        return {
            role: MedGemma.load(
                base, {role: adapters[role]} if role in adapters else {}, device=device, dtype=dtype, merge=True
            )
            for role in ("init", "revision")
        }
    return dict.fromkeys(("init", "revision"), MedGemma.load(base, adapters, device=device, dtype=dtype))
