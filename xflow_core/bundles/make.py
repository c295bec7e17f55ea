"""Making a foundation bundle: a manifest over folders of weights that were looked at, hashed and found to fit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import Sam3TrackerConfig

from xflow_core import NOT_FOR_CLINICAL_USE
from xflow_core.domain.errors import CallError
from xflow_core.domain.findings import FINDINGS
from xflow_core.radiograph.recipes import MIMIC_CXR_JPG, check_recipe
from xflow_core.segmenters.sam3_checkpoint import import_checkpoint

from .checkpoints import LANGUAGE_MODELS, SEGMENTERS, adapter_file_names, check_adapter, model_file_names
from .manifest import MANIFEST, SCHEMA, Bundle, read_bundle
from .model_files import ModelFiles, file_sha256, hub_page, id_of_snapshot

LANGUAGE_ID = "google/medgemma-1.5-4b-it"
SEGMENTER_ID = "facebook/sam3"
_LICENCES = {
    LANGUAGE_ID: "MedGemma 1.5: Health AI Developer Foundations terms of use",
    SEGMENTER_ID: "SAM 3: SAM License",
}


@dataclass(frozen=True)
class ModelSource:
    """A folder of a model, and what it is called.

    name: ``ID`` or ``ID@REVISION``; by default what the Hugging Face cache calls the folder, else ``usual``.
    """

    folder: Path
    name: str | None = None

    def named(self, usual: str) -> tuple[str, str]:
        """Id and revision."""
        if self.name:
            model_id, _, revision = self.name.partition("@")
            return model_id, revision or "local"
        return id_of_snapshot(self.folder) or (usual, "local")


@dataclass(frozen=True)
class FoundationParts:
    """What a foundation bundle is made from.

    Attributes:
        language: the base of both policies, or a merged model of theirs.
        segmenter: a ``Sam3TrackerModel`` or all of SAM3, or Meta's own checkpoint, a ``.pt`` file, which is converted
            into the bundle; a fine-tune is named by ``ID``.
        init_adapter, revision_adapter: PEFT adapters on ``language``; without any this is a zero-shot bundle, which
            asks the base in its own words and makes no click.
        side: of the segmenter's picture: 1008 is SAM3's own, 1024 the paper's fine-tune's.
        policies: settings of the policies; ``answers`` is filled in by whether there is an adapter.
        segmenter_config: of a checkpoint of Meta's that is not of SAM3's own size.
    """

    language: ModelSource
    segmenter: ModelSource
    init_adapter: ModelSource | None = None
    revision_adapter: ModelSource | None = None
    side: int = 1008
    recipe: str = MIMIC_CXR_JPG
    policies: Mapping[str, Any] = field(default_factory=dict)
    segmenter_config: Sam3TrackerConfig | None = None


def make_bundle(
    folder: Path,
    name: str,
    parts: FoundationParts,
    *,
    version: str = "1",
    findings: Sequence[str] = FINDINGS,
    quality: Mapping[str, Any] | None = None,
    licences: Sequence[str] = (),
    copy: bool = False,
) -> Bundle:
    """Write the manifest of a foundation bundle into the new folder ``folder``.

    The models stay where they are and are named by id, revision and sha256; with ``copy`` they are copied into the
    bundle. Every check that loading makes is made here first, and the folder appears whole or not at all.

    Args:
        quality: what was measured, with n and where; without it the manifest says that nothing was.

    Raises:
        BundleError: a part is missing, damaged, pickled, or does not fit the others.
        CallError: the folder is there already, or cannot be written.
    """
    if folder.exists():
        raise CallError(f"{folder} is there already; choose another folder for the bundle.")
    check_recipe(parts.recipe)
    new = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        new.mkdir(parents=True)
        bases, adapters = _models(new, name, parts, copy=copy)
        manifest = {
            "schema": SCHEMA,
            "name": name,
            "version": version,
            "backend": "foundation",
            "findings": [*findings],
            "preprocessing": parts.recipe,
            "files": {},
            "bases": {role: model.to_json() for role, model in bases.items()},
            "adapters": {role: model.to_json() for role, model in adapters.items()},
            "settings": {
                "policies": {"answers": "transcript" if adapters else "box_2d", **parts.policies},
                "segmenter": {"side": parts.side},
            },
            "quality": dict(quality or {"measured": "nothing yet"}),
            "licences": [*licences, *(_LICENCES[base.id] for base in bases.values() if base.id in _LICENCES)],
            "notice": NOT_FOR_CLINICAL_USE,
        }
        (new / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        read_bundle(new)  # what it refuses is refused here
        new.rename(folder)
    except OSError as problem:
        raise CallError(f"The bundle {folder} cannot be written: {problem.strerror or problem}.") from problem
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return read_bundle(folder)


def _models(
    new: Path, name: str, parts: FoundationParts, *, copy: bool
) -> tuple[dict[str, ModelFiles], dict[str, ModelFiles]]:
    """Bases and adapters, checked; those that the bundle is to hold lie in the folder ``new``."""

    def described(role: str, source: ModelSource, usual: str, files: Sequence[str]) -> ModelFiles:
        model_id, revision = source.named(usual)
        inside = Path("models") / role
        if copy and source.folder != new / inside:
            (new / inside).mkdir(parents=True)
            for file in files:
                shutil.copyfile(source.folder / file, new / inside / file)
        held = (new / inside).is_dir()
        where = new / inside if held else source.folder
        return ModelFiles(
            id=model_id,
            revision=revision,
            folder=str(inside) if held else str(source.folder.absolute()),
            files={file: file_sha256(where / file) for file in files},
            page=hub_page(model_id),
        )

    segmenter = parts.segmenter
    if segmenter.folder.is_file():
        model_id, revision = segmenter.named(SEGMENTER_ID)
        if revision == "local":
            revision = f"{segmenter.folder.name}, sha256 {file_sha256(segmenter.folder)}"
        converted = import_checkpoint(segmenter.folder, new / "models" / "segmenter", parts.segmenter_config)
        segmenter = ModelSource(converted, f"{model_id}@{revision}")
    language_files = model_file_names(parts.language.folder, LANGUAGE_MODELS)
    segmenter_files = model_file_names(segmenter.folder, SEGMENTERS)
    bases = {"language": described("language", parts.language, LANGUAGE_ID, language_files)}
    adapters: dict[str, ModelFiles] = {}
    for role, source in (("init", parts.init_adapter), ("revision", parts.revision_adapter)):
        if source is not None:
            files = adapter_file_names(source.folder)
            towers = check_adapter(source.folder, parts.language.folder, bases["language"].id)
            adapters[role] = replace(described(role, source, f"{name}-{role}", files), towers=towers)
    bases["segmenter"] = described("segmenter", segmenter, SEGMENTER_ID, segmenter_files)
    return bases, adapters
