"""``xflow bundles``: list, show, verify."""

from __future__ import annotations

import json
from typing import Any

import typer

from xflow_core import NOT_FOR_CLINICAL_USE
from xflow_core.bundles.manifest import MANIFEST, find_bundle, list_bundles


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
    for title, part in (("measured", bundle.quality), ("training", bundle.training)):
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
    typer.echo(f"{bundle.name} {bundle.version}: {len(bundle.files)} files, all as the manifest says.")
