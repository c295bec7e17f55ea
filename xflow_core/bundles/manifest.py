"""What a model bundle says of itself: ``bundle.json`` beside its weights.

    {"schema": "xflow.bundle/1", "name", "version", "backend", "findings": [..],
     "files": {file name: sha256}, "settings": {..}, "preprocessing": "..", "quality": {..},
     "licences": [..], "training": {..}, "notice": "not for clinical use",
     "bases": {role: model}, "adapters": {role: model}}

``settings`` is the backend's own (calibration, thresholds); ``quality`` is what was measured, with n, and where.
``files`` lie in the bundle's folder; ``bases`` and ``adapters`` are weights that it is made on and that may lie
elsewhere, each ``{"id", "revision", "folder", "files": {file name: sha256}, "page", "towers"}`` (:mod:`.model_files`).
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xflow_core.domain.errors import BundleError
from xflow_core.domain.findings import FINDINGS
from xflow_core.domain.trace import BundleIdentity

from .model_files import ModelFiles
from .model_files import file_sha256 as file_sha256  # other rooms take it from here

SCHEMA = "xflow.bundle/1"
MANIFEST = "bundle.json"
EMBEDDED = Path(__file__).parent
SEARCH_VARIABLE = "XFLOW_BUNDLES"


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk: its manifest and its folder."""

    folder: Path
    name: str
    version: str
    backend: str
    findings: tuple[str, ...]
    files: dict[str, str]
    sha256: str
    settings: dict[str, Any] = field(default_factory=dict)
    preprocessing: str = ""
    quality: dict[str, Any] = field(default_factory=dict)
    licences: tuple[str, ...] = ()
    training: dict[str, Any] = field(default_factory=dict)
    bases: dict[str, ModelFiles] = field(default_factory=dict)
    adapters: dict[str, ModelFiles] = field(default_factory=dict)

    @property
    def identity(self) -> BundleIdentity:
        return BundleIdentity(self.name, self.version, self.backend, self.sha256)

    def file(self, name: str) -> Path:
        """The path of one of the bundle's files.

        Raises:
            BundleError: the manifest names no such file.
        """
        if name not in self.files:
            raise BundleError(f"The bundle {self.name!r} in {self.folder} has no {name!r} in its manifest.")
        return self.folder / name

    def verify(self) -> None:
        """Compare every file with the manifest's sha256.

        Raises:
            BundleError: a file is missing or altered; the message names it.
        """
        for name, expected in self.files.items():
            path = self.folder / name
            if not path.is_file():
                raise BundleError(f"The bundle {self.name!r} lacks its file {path}; install it anew.")
            if file_sha256(path) != expected:
                raise BundleError(
                    f"{path} is not the file that the bundle {self.name!r} was made with; install it anew."
                )

    def locate_models(self) -> dict[str, Path]:
        """Where its bases and adapters lie on this machine, by role; their contents are not looked at.

        Raises:
            BundleError: one is not here; the message says where it is had.
        """
        return {role: model.locate(self.name, self.folder) for role, model in self.models.items()}

    def verify_models(self, *, anew: bool = True) -> dict[str, Path]:
        """The same, once every file of them was compared with the manifest's sha256.

        Args:
            anew: see :meth:`ModelFiles.verify`.

        Raises:
            BundleError: one is not here, or is altered.
        """
        self.locate_models()  # says what is missing before gigabytes are read
        return {role: model.verify(self.name, self.folder, anew=anew) for role, model in self.models.items()}

    @property
    def models(self) -> dict[str, ModelFiles]:
        """Bases and adapters by role."""
        return {**self.bases, **self.adapters}


def read_bundle(folder: Path) -> Bundle:
    """The bundle in ``folder``; its files are not read yet.

    Raises:
        BundleError: no manifest, or one that is not well formed.
    """
    path = folder / MANIFEST
    try:
        raw = path.read_bytes()
    except OSError:
        raise BundleError(f"{folder} holds no model bundle (no {MANIFEST} in it).") from None
    try:
        data = json.loads(raw)
        if data["schema"] != SCHEMA:
            raise BundleError(f"{path} has the schema {data['schema']!r}; this version reads {SCHEMA!r}.")
        findings = tuple(data["findings"])
        files = dict(data["files"])
        unknown = [finding for finding in findings if finding not in FINDINGS]
        if unknown or not findings:
            raise BundleError(f"{path} names findings that XFlow does not know: {unknown or 'none at all'}.")
        outside = [name for name in files if Path(name).is_absolute() or ".." in Path(name).parts]
        if outside:
            raise BundleError(f"{path} names a file outside its folder: {outside[0]!r}.")
        return Bundle(
            folder=folder,
            name=str(data["name"]),
            version=str(data["version"]),
            backend=str(data["backend"]),
            findings=findings,
            files=files,
            sha256=hashlib.sha256(raw).hexdigest(),
            settings=dict(data.get("settings", {})),
            preprocessing=str(data.get("preprocessing", "")),
            quality=dict(data.get("quality", {})),
            licences=tuple(data.get("licences", ())),
            training=dict(data.get("training", {})),
            bases=_models(data.get("bases", {})),
            adapters=_models(data.get("adapters", {})),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise BundleError(f"{path} is not a well formed bundle manifest: {problem!r}.") from None


def _models(data: dict[str, Any]) -> dict[str, ModelFiles]:
    return {str(role): ModelFiles.from_json(model) for role, model in data.items()}


def search_folders() -> list[Path]:
    """Where bundles are looked for by name: the folders of ``XFLOW_BUNDLES``, then the package's own."""
    own = [Path(part) for part in os.environ.get(SEARCH_VARIABLE, "").split(os.pathsep) if part]
    return [*own, EMBEDDED]


def list_bundles() -> list[Bundle]:
    """All bundles in the search folders; of equal names the first found."""
    found: dict[str, Bundle] = {}
    for parent in search_folders():
        for manifest in sorted(parent.glob(f"*/{MANIFEST}")):
            bundle = read_bundle(manifest.parent)
            found.setdefault(bundle.name, bundle)
    return list(found.values())


def find_bundle(name: str) -> Bundle:
    """A bundle by its name, or by the folder that holds it.

    Raises:
        BundleError: there is none; the message lists those that are.
    """
    for parent in search_folders():
        folder = parent / name
        if Path(name).name == name and (folder / MANIFEST).is_file():
            return read_bundle(folder)
    if Path(name).is_dir():
        return read_bundle(Path(name))
    known = ", ".join(bundle.name for bundle in list_bundles()) or "none"
    raise BundleError(f"There is no bundle {name!r}, neither by name nor as a folder; known: {known}.")
