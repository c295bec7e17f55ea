"""The compact backend: small networks on a CPU (or a GPU), no download.

``settings`` of its manifest: ``survey`` (calibration, box rules, guard limits of the first stage), ``quality`` (the
line from the segmenter's estimate to the IoU it stands for) and ``revision`` (when a click is worth making)."""

from __future__ import annotations

import torch

from xflow_core.domain.errors import BundleError, CallError
from xflow_core.policies.compact import load_survey
from xflow_core.policies.compact_revision import CompactRevisionPolicy, RevisionSettings
from xflow_core.segmenters.compact import CompactSegmenter
from xflow_core.workflow.engine import Engine

from .manifest import Bundle


def load(bundle: Bundle, device: str) -> Engine:
    """The engine of a compact bundle whose files were verified.

    Raises:
        BundleError: its settings or weights are not a compact bundle's.
        CallError: ``cuda`` was asked for, and there is none; or ``mps``, which these networks were not tried on.
    """
    if device == "mps":
        raise CallError(f"The bundle {bundle.name!r} runs on cpu and cuda, not on mps; use --device cpu.")
    if device == "cuda" and not torch.cuda.is_available():
        raise CallError("There is no CUDA device here; use --device cpu.")
    # On a GPU the small networks gain little; the CPU is what they were made for.
    place = "cuda" if device == "cuda" else "cpu"
    try:
        survey = bundle.settings["survey"]
        slope, offset = (float(value) for value in bundle.settings["quality"])
        revision = RevisionSettings(**bundle.settings["revision"])
    except (KeyError, TypeError, ValueError) as problem:
        raise BundleError(f"The settings of the bundle {bundle.name!r} are not well formed: {problem!r}.") from None
    init_policy, guard = load_survey(bundle.file("survey.safetensors"), survey, place)
    segmenter = CompactSegmenter.load(bundle.file("segmenter.safetensors"), (slope, offset), place)
    revision_policy = CompactRevisionPolicy.load(bundle.file("revision.safetensors"), segmenter, revision, place)
    return Engine(
        identity=bundle.identity,
        findings=bundle.findings,
        init_policy=init_policy,
        revision_policy=revision_policy,
        segmenter=segmenter,
        guard=guard,
    )
