"""Folders of weights that a bundle is made on: a gated base model, adapters, a fine-tuned segmenter.

They are too large, or not ours, to be copied into every bundle. The manifest names each by id and revision and pins
every file of it by sha256; where the folder is, is found anew at each load, and never over the network.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xflow_core.domain.errors import BundleError

from .known_files import LARGE_BYTES, known_sha256, sha256_once

MODELS_VARIABLE = "XFLOW_MODELS"
"""Folders that hold models by id: ``<folder>/google/medgemma-1.5-4b-it``."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class ModelFiles:
    """One folder of a model's files.

    Attributes:
        id: the name under which it is published, ``owner/name``; or any name for what is not.
        revision: of that publication; "local" where there is none.
        folder: where it lay when the bundle was made; relative to the bundle's folder when it lies in there.
        files: sha256 by file name.
        page: where its terms are accepted and it is had; empty for what is not published.
        towers: for an adapter, the parts of the base that it replaces whole (a vision tower).
    """

    id: str
    revision: str
    folder: str
    files: dict[str, str]
    page: str = ""
    towers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        outside = [name for name in self.files if Path(name).is_absolute() or ".." in Path(name).parts]
        if outside:
            raise ValueError(f"a file outside its folder: {outside[0]!r}")
        if not self.files:
            raise ValueError(f"{self.id} has no files")

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"id": self.id, "revision": self.revision, "folder": self.folder, "files": self.files}
        return data | ({"page": self.page} if self.page else {}) | ({"towers": [*self.towers]} if self.towers else {})

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ModelFiles:
        """Raises KeyError, TypeError or ValueError for what is none."""
        return cls(
            id=str(data["id"]),
            revision=str(data["revision"]),
            folder=str(data["folder"]),
            files={str(name): str(digest) for name, digest in data["files"].items()},
            page=str(data.get("page", "")),
            towers=tuple(str(tower) for tower in data.get("towers", ())),
        )

    def locate(self, bundle_name: str, bundle_folder: Path) -> Path:
        """The folder on this machine that holds all its files; their contents are not looked at.

        Raises:
            BundleError: there is none; the message says where it is had.
        """
        for folder in self._places(bundle_folder):
            if all((folder / name).is_file() for name in self.files):
                return folder
        raise BundleError(self._missing(bundle_name, bundle_folder))

    def verify(self, bundle_name: str, bundle_folder: Path, *, anew: bool = True) -> Path:
        """The same, once every file was compared with the manifest's sha256.

        Args:
            anew: read every file; else large ones that were read before and have not changed since are taken as they
                are (:mod:`.known_files`).

        Raises:
            BundleError: it is not here, or a file is not the one that the bundle was made with.
        """
        folder = self.locate(bundle_name, bundle_folder)
        for name, expected in self.files.items():
            if (file_sha256 if anew else sha256_once)(folder / name) != expected:
                raise BundleError(
                    f"{folder / name} is not the file of {self.id} (revision {self.revision}) that the bundle "
                    f"{bundle_name!r} was made with; get that revision again."
                )
        return folder

    def unread(self, folder: Path) -> int:
        """Bytes of its large files in ``folder`` that the next load will read to compare them with their sha256."""
        sizes = {name: (folder / name).stat().st_size for name in self.files}
        large = [name for name, size in sizes.items() if size >= LARGE_BYTES]
        return sum(sizes[name] for name in large if known_sha256(folder / name) is None)

    def _places(self, bundle_folder: Path) -> Iterator[Path]:
        yield bundle_folder / self.folder
        if not is_hub_id(self.id):
            return
        for parent in os.environ.get(MODELS_VARIABLE, "").split(os.pathsep):
            if parent:
                yield Path(parent) / self.id
        yield hub_cache() / f"models--{self.id.replace('/', '--')}" / "snapshots" / self.revision

    def _missing(self, bundle_name: str, bundle_folder: Path) -> str:
        folder = bundle_folder / self.folder
        lacking = next((name for name in self.files if not (folder / name).is_file()), "") if folder.is_dir() else ""
        what = f"The bundle {bundle_name!r} needs {self.id} (revision {self.revision}), which is not on this machine"
        what += f" ({folder} lacks {lacking})" if lacking else ""
        if not self.page:
            return f"{what}; put it back at {folder}."
        return (
            f"{what}: accept its terms at {self.page}, download that revision, and name the folder that holds "
            f"{self.id} in {MODELS_VARIABLE}."
        )


def is_hub_id(name: str) -> bool:
    """Whether ``name`` has the form ``owner/name``."""
    return _HUB_ID.fullmatch(name) is not None


def hub_page(model_id: str) -> str:
    """The page of a published model; empty for a name that is none's."""
    return f"https://huggingface.co/{model_id}" if is_hub_id(model_id) else ""


def hub_cache() -> Path:
    """Where the Hugging Face client keeps what it downloaded."""
    if "HF_HUB_CACHE" in os.environ:
        return Path(os.environ["HF_HUB_CACHE"])
    return Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface")) / "hub"


def id_of_snapshot(folder: Path) -> tuple[str, str] | None:
    """Id and revision of a folder of that cache (``models--owner--name/snapshots/REVISION``); None for any other."""
    parts = folder.absolute().parts
    if len(parts) < 3 or parts[-2] != "snapshots" or not parts[-3].startswith("models--"):
        return None
    return parts[-3].removeprefix("models--").replace("--", "/", 1), parts[-1]


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
