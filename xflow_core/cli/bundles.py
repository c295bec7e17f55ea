"""``xflow bundles``: list, show, verify, make."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from xflow_core import NOT_FOR_CLINICAL_USE
from xflow_core.bundles.manifest import MANIFEST, find_bundle, list_bundles
from xflow_core.domain.errors import BundleError, CallError
from xflow_core.domain.findings import FINDINGS


def run_list() -> None:
    for bundle in list_bundles():
        typer.echo(f"{bundle.name}\t{bundle.version}\t{bundle.backend}\t{', '.join(bundle.findings)}")


def run_show(name: str, as_json: bool) -> None:
    bundle = find_bundle(name)
    if as_json:
        typer.echo(json.dumps(json.loads((bundle.folder / MANIFEST).read_text())))
        return
    typer.echo(f"{bundle.name} {bundle.version} (backend {bundle.backend}), {NOT_FOR_CLINICAL_USE}")
    typer.echo(f"  answers: {', '.join(bundle.findings)}")
    typer.echo(f"  input: {bundle.preprocessing}")
    typer.echo(f"  sha256: {bundle.sha256}")
    for name_of_file, digest in bundle.files.items():
        size = (bundle.folder / name_of_file).stat().st_size / 1e6
        typer.echo(f"  file: {name_of_file}, {size:.1f} MB, sha256 {digest[:16]}..")
    for role, model in bundle.models.items():
        try:
            place = str(model.locate(bundle.name, bundle.folder))
        except BundleError:
            place = f"not on this machine{f', see {model.page}' if model.page else ''}"
        towers = f", with its own {', '.join(model.towers)}" if model.towers else ""
        typer.echo(f"  {role}: {model.id}, revision {model.revision}, {len(model.files)} files{towers}: {place}")
    for title, part in (("measured", bundle.quality), ("training", bundle.training)):
        if part:
            typer.echo(f"  {title}:")
        for line in _lines(part, 4):
            typer.echo(line)
    typer.echo("  licences and sources:")
    for licence in bundle.licences:
        typer.echo(f"    {licence}")


def _lines(part: dict[str, Any], indent: int) -> list[str]:
    lines = []
    for key, value in part.items():
        if isinstance(value, dict):
            lines += [f"{'':{indent}}{key}:", *_lines(value, indent + 2)]
        else:
            lines.append(f"{'':{indent}}{key}: {value}")
    return lines


def run_verify(name: str) -> None:
    bundle = find_bundle(name)
    bundle.verify()
    bundle.verify_models()
    count = len(bundle.files) + sum(len(model.files) for model in bundle.models.values())
    typer.echo(f"{bundle.name} {bundle.version}: {count} files read, all as the manifest says.")


@dataclass(frozen=True)
class MakeCall:
    """The options of ``xflow bundles make``; models as ``FOLDER`` or ``ID@REVISION=FOLDER``."""

    name: str
    out: Path
    language: str
    segmenter: str | None
    sam3_checkpoint: str | None
    init_adapter: str | None
    revision_adapter: str | None
    side: int
    recipe: str
    findings: tuple[str, ...]
    version: str
    policies: Path | None
    quality: Path | None
    licences: tuple[str, ...]
    copy: bool


def run_make(call: MakeCall) -> None:
    """Make a foundation bundle, and say where it is."""
    try:
        from xflow_core.bundles.foundation_backend import quiet_transformers
        from xflow_core.bundles.make import FoundationParts, ModelSource, make_bundle
    except ImportError as problem:
        raise CallError(
            f"xflow bundles make needs {problem.name or problem}, which is not installed: "
            "pip install 'xflow-core[engine,gpu]'."
        ) from None

    unknown = [finding for finding in call.findings if finding not in FINDINGS]
    if unknown:
        raise CallError(f"There is no finding {unknown[0]!r}; XFlow knows {', '.join(FINDINGS)}.")

    given = call.segmenter or call.sam3_checkpoint
    if given is None or (call.segmenter and call.sam3_checkpoint):
        raise CallError("Give the segmenter as one of --segmenter FOLDER and --sam3-checkpoint FILE.")

    def source(given: str) -> ModelSource:
        name, equals, folder = given.rpartition("=")
        # A folder's own name may hold an equals sign.
        return ModelSource(Path(folder), name) if equals and not Path(given).exists() else ModelSource(Path(given))

    parts = FoundationParts(
        language=source(call.language),
        segmenter=source(given),
        init_adapter=None if call.init_adapter is None else source(call.init_adapter),
        revision_adapter=None if call.revision_adapter is None else source(call.revision_adapter),
        side=call.side,
        recipe=call.recipe,
        policies={} if call.policies is None else _object_in(call.policies),
    )
    with quiet_transformers():
        bundle = make_bundle(
            call.out,
            call.name,
            parts,
            version=call.version,
            findings=call.findings or FINDINGS,
            quality=None if call.quality is None else _object_in(call.quality),
            licences=call.licences,
            copy=call.copy,
        )
    typer.echo(f"{bundle.folder}: {bundle.name} {bundle.version}, sha256 {bundle.sha256}, {NOT_FOR_CLINICAL_USE}")


def _object_in(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as problem:
        raise CallError(f"{path} cannot be read as JSON: {getattr(problem, 'strerror', None) or problem}.") from None
    if not isinstance(data, dict):
        raise CallError(f"{path} holds no JSON object.")
    return data
