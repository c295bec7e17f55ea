"""``xflow doctor``: what runs here."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import typer

from xflow_core import NOT_FOR_CLINICAL_USE, __version__
from xflow_core.bundles.manifest import list_bundles
from xflow_core.domain.errors import BundleError, CallError

# Module, distribution, what it is for.
PARTS = (
    ("torch", "torch", "the engine"),
    ("SimpleITK", "SimpleITK", "NIfTI, NRRD and MHA images"),
    ("gdcm", "python-gdcm", "DICOM in JPEG, JPEG lossless, JPEG-LS and RLE"),
    ("openjpeg", "pylibjpeg-openjpeg", "DICOM in JPEG 2000 and HTJ2K"),
    ("highdicom", "highdicom", "DICOM SEG, SR and PR"),
    ("dicomweb_client", "dicomweb-client", "a PACS over DICOMweb"),
    ("starlette", "starlette", "xflow serve"),
    ("uvicorn", "uvicorn", "xflow serve"),
    ("transformers", "transformers", "the foundation bundle"),
    ("peft", "peft", "the foundation bundle's adapters"),
    ("accelerate", "accelerate", "the foundation bundle"),
    ("bitsandbytes", "bitsandbytes", "the foundation bundle in four bits (memory layout nf4)"),
    ("trl", "trl", "training the policies"),
    ("pyarrow", "pyarrow", "the table of a batch"),
    ("ray", "ray", "batches over many machines"),
)


def run_doctor(as_json: bool) -> int:
    report = _report()
    if as_json:
        typer.echo(json.dumps(report))
    else:
        for line in _words(report):
            typer.echo(line)
    return 0 if report["ready"] else 4


def _report() -> dict[str, Any]:
    bundles: list[dict[str, Any]] = []
    try:
        for bundle in list_bundles():
            state: dict[str, Any] = {
                "name": bundle.name,
                "version": bundle.version,
                "backend": bundle.backend,
                "problem": None,
            }
            try:
                bundle.verify()
                folders = bundle.locate_models()
                unread = sum(model.unread(folders[role]) for role, model in bundle.models.items())
                if unread:
                    state["to_verify_gb"] = round(unread / 1e9, 1)
                if bundle.backend == "foundation" and find_spec("transformers") and find_spec("peft"):
                    from xflow_core.bundles.foundation_backend import layout_here

                    state["layout"], state["layouts_gib"], state["decoding"] = layout_here(bundle)
            except (BundleError, CallError) as problem:
                state["problem"] = str(problem)
            bundles.append(state)
    except BundleError as problem:
        bundles.append({"name": "?", "version": "?", "backend": "?", "problem": str(problem)})
    parts = []
    for module, distribution, purpose in PARTS:
        present = find_spec(module) is not None
        try:
            version = metadata.version(distribution) if present else None
        except metadata.PackageNotFoundError:
            version = "?"
        parts.append({"part": distribution, "version": version, "for": purpose})
    devices = _devices()
    usable = any(bundle["problem"] is None for bundle in bundles)
    return {
        "xflow": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "devices": devices,
        "bundles": bundles,
        "parts": parts,
        "ready": bool(devices) and usable,
        "notice": NOT_FOR_CLINICAL_USE,
    }


def _devices() -> list[str]:
    if find_spec("torch") is None:
        return []
    import torch

    found = ["cpu"]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            found.append(f"cuda:{index} {properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def _memory_gib() -> float | None:
    if sys.platform == "win32":
        return None
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _words(report: dict[str, Any]) -> list[str]:
    lines = [
        f"xflow {report['xflow']} on Python {report['python']}, {report['system']}, {report['notice']}",
        f"cores: {report['cores']}; memory: {report['memory_gib']} GiB",
        f"devices: {'; '.join(report['devices']) or 'none (torch is not installed: pip install xflow-core[engine])'}",
    ]
    for bundle in report["bundles"]:
        layout = ""
        if "layout" in bundle:
            needed = ", ".join(f"{name} needs {size} GiB" for name, size in bundle["layouts_gib"].items())
            layout = f", memory layout {bundle['layout']} ({needed} on a GPU; --layout overrides it)"
            layout += f", decoding {bundle['decoding']}"
        unread = f", {bundle['to_verify_gb']} GB to be read once at the next load" if "to_verify_gb" in bundle else ""
        state = bundle["problem"] or f"sound{layout}{unread}"
        lines.append(f"bundle {bundle['name']} {bundle['version']} ({bundle['backend']}): {state}")
    for part in report["parts"]:
        lines.append(f"{part['part']} {part['version'] or 'not installed'}: {part['for']}")
    lines.append("ready." if report["ready"] else "not ready: see above.")
    return lines
