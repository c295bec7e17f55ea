"""Sets of small files that come as one archive: read from it, or from the folder that it unpacks to."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from types import TracebackType

from xflow_core.domain.errors import CallError


class Archive:
    """The files of a ``.zip`` or of a folder, by their names inside.

    Raises:
        CallError: neither an archive nor a folder is there, or the archive is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._zip: zipfile.ZipFile | None = None
        if path.is_dir():
            self._folder = path
        elif path.is_file():
            try:
                self._zip = zipfile.ZipFile(path)
            except (zipfile.BadZipFile, OSError) as problem:
                raise CallError(f"{path} is no whole zip archive ({problem}); download it again.") from None
        elif path.suffix == ".zip" and path.with_suffix("").is_dir():
            self._folder = path.with_suffix("")
        else:
            raise CallError(f"{path} is not there, nor the folder that it unpacks to.")

    def read(self, name: str) -> bytes | None:
        """The bytes of a file, found with or without the archive's top folder; None where there is none.

        Raises:
            OSError: it is there and cannot be read.
        """
        short = name.split("/", 1)[1] if "/" in name else name
        if self._zip is None:
            for candidate in (name, short):
                if (self._folder / candidate).is_file():
                    return (self._folder / candidate).read_bytes()
            return None
        for candidate in (name, short):
            try:
                return self._zip.read(candidate)
            except KeyError:
                continue
            # Damaged data, a password, a method that zipfile does not know.
            except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as problem:
                raise OSError(f"damaged in the archive: {problem}") from None
        return None

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._zip is not None:
            self._zip.close()
