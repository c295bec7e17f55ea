"""A foundation bundle of tiny models of the real classes, made as a user makes one of full size."""

from __future__ import annotations

from pathlib import Path

from tiny_gemma import write_tiny_adapter, write_tiny_gemma
from tiny_sam3 import SIDE, write_tiny_sam3

from xflow_core.bundles.foundation_backend import quiet_transformers
from xflow_core.bundles.make import FoundationParts, ModelSource, make_bundle
from xflow_core.bundles.manifest import Bundle


def tiny_models(folder: Path) -> Path:
    """``language``, ``segmenter``, ``init`` and ``revision`` under ``folder``."""
    with quiet_transformers():
        write_tiny_gemma(folder / "language")
        write_tiny_sam3(folder / "segmenter")
        for seed, role in enumerate(("init", "revision"), 1):
            write_tiny_adapter(folder / role, folder / "language", seed)
    return folder


def tiny_parts(models: Path, *, zero_shot: bool = False) -> FoundationParts:
    return FoundationParts(
        language=ModelSource(models / "language", "google/medgemma-1.5-4b-it@0123abcd"),
        segmenter=ModelSource(models / "segmenter", "facebook/sam3@4567ef01"),
        init_adapter=None if zero_shot else ModelSource(models / "init", "xflow-init@1"),
        revision_adapter=None if zero_shot else ModelSource(models / "revision", "xflow-revision@1"),
        side=SIDE,
    )


def tiny_bundle(folder: Path, models: Path, **options: object) -> Bundle:
    """The bundle ``tiny`` in ``folder``, of what :func:`tiny_models` wrote."""
    with quiet_transformers():
        return make_bundle(folder, "tiny", tiny_parts(models), **options)  # type: ignore[arg-type]
