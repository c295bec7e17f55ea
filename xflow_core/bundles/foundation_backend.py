"""The foundation backend: MedGemma policies and SAM3 (the paper's system).

``bases`` of its manifest: ``language`` and ``segmenter``; ``adapters``: ``init`` and ``revision``, each optional.
``settings``: ``policies`` (see :mod:`xflow_core.policies.medgemma`) and ``segmenter``, ``{"side": 1008 | 1024}``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers.utils import logging as transformers_logging

from xflow_core.domain.errors import BundleError, CallError
from xflow_core.policies.medgemma import load_policies
from xflow_core.policies.medgemma_layouts import (
    bytes_needed,
    check_layout,
    check_memory,
    choose_layout,
    layouts_here,
)
from xflow_core.policies.medgemma_model import KEPT_CONVERSATIONS, check_decoding
from xflow_core.radiograph.recipes import check_recipe
from xflow_core.segmenters.sam3 import Sam3Segmenter
from xflow_core.workflow.engine import Engine

from .checkpoints import LANGUAGE_MODELS, SEGMENTERS, adapter_file_names, check_adapter, model_file_names
from .loading import LAYOUT_VARIABLE
from .manifest import Bundle

BASES = ("language", "segmenter")
ADAPTERS = ("init", "revision")
DECODING_VARIABLE = "XFLOW_DECODING"
"""How words are fed to the language model (:data:`xflow_core.policies.medgemma_model.DECODING`)."""


def load(bundle: Bundle, device: str) -> Engine:
    """The engine of a foundation bundle. All that can be wrong with its files is looked for before one is loaded.

    Raises:
        BundleError: its settings are not a foundation bundle's, or a model is missing, altered or of another base.
        CallError: the device is not here, or cannot do what was asked for.
    """
    place = choose_device(device)
    layout = os.environ.get(LAYOUT_VARIABLE) or "auto"
    check_layout(layout, place)
    decoding = check_decoding(os.environ.get(DECODING_VARIABLE) or "auto", place)
    side = check_settings(bundle)
    folders = bundle.verify_models(anew=False)
    model_file_names(folders["language"], LANGUAGE_MODELS)
    model_file_names(folders["segmenter"], SEGMENTERS)
    with quiet_transformers():
        for role in bundle.adapters:
            adapter_file_names(folders[role])
            check_adapter(folders[role], folders["language"], bundle.bases["language"].id)
        check_memory(layout, folders["language"], {role: folders[role] for role in bundle.adapters}, place)
        segmenter = Sam3Segmenter.load(folders["segmenter"], side=side, recipe=bundle.preprocessing, device=place)
        policies = load_policies(
            base=folders["language"],
            adapters={role: folders[role] for role in bundle.adapters},
            settings=bundle.settings["policies"],
            recipe=bundle.preprocessing,
            device=place,
            layout=layout,
            decoding=decoding,
        )
    segmenter.make_room = policies.make_room
    return Engine(
        identity=bundle.identity,
        findings=bundle.findings,
        init_policy=policies.init,
        revision_policy=policies.revision,
        segmenter=segmenter,
        components_together=KEPT_CONVERSATIONS,
        memory_layout=lambda: policies.layout,
    )


def layout_here(bundle: Bundle) -> tuple[str, dict[str, float], str]:
    """The layout that :func:`load` would take on this machine now, the GiB that each one needs at 16 bits, and the way
    of decoding.

    Raises:
        BundleError: a model is not here.
        CallError: what was asked for is none, or cannot be had here.
    """
    folders = bundle.locate_models()
    place = choose_device("auto")
    asked = os.environ.get(LAYOUT_VARIABLE) or "auto"
    check_layout(asked, place)
    decoding = check_decoding(os.environ.get(DECODING_VARIABLE) or "auto", place)
    base, adapters = folders["language"], {role: folders[role] for role in bundle.adapters}
    needed = {name: round(bytes_needed(name, base, adapters) / 2**30, 1) for name in layouts_here(place)}
    return (choose_layout(place, base, adapters) if asked == "auto" else asked), needed, decoding


def choose_device(device: str) -> str:
    """``auto`` as what is here: cuda, else mps, else cpu.

    Raises:
        CallError: a device was asked for by name, and is not here.
    """
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return next(name for name, found in here.items() if found)
    if not here[device]:
        raise CallError(f"There is no {device.upper()} device here; use --device cpu.")
    return device


def check_settings(bundle: Bundle) -> int:
    """The side of the segmenter's picture, once roles, recipe and settings were found to be a foundation bundle's.

    Raises:
        BundleError: they are not.
    """
    check_recipe(bundle.preprocessing)
    lacking = [role for role in BASES if role not in bundle.bases]
    odd = [role for role in bundle.bases if role not in BASES] + [
        role for role in bundle.adapters if role not in ADAPTERS
    ]
    if lacking or odd:
        raise BundleError(
            f"The bundle {bundle.name!r} does not name the models of a foundation bundle: "
            + (f"it lacks {lacking[0]!r}." if lacking else f"{odd[0]!r} is none of them.")
        )
    try:
        side = bundle.settings["segmenter"]["side"]
        policies = bundle.settings["policies"]
    except (KeyError, TypeError) as problem:
        raise BundleError(f"The settings of the bundle {bundle.name!r} are not well formed: {problem!r}.") from None
    if not isinstance(side, int) or not 56 <= side <= 2048 or not isinstance(policies, dict):
        raise BundleError(f"The settings of the bundle {bundle.name!r} are not well formed: side {side!r}.")
    return side


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no remarks from transformers: the command's stderr is for XFlow's own sentences."""
    # For good, and this one alone: undoing filters is not safe beside other threads. peft 0.21 asks in the old way.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
