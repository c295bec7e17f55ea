"""The sha256 of large files, computed once for each file and remembered outside the bundle.

A foundation bundle's weights are 12 GB, which take a good while to read, and an engine is loaded for every call of the
command. So at a load a large file that was read before and has not changed since is not read again: its path, device,
inode, size and the times of its last change (contents, and inode) must be what they were. Small files are always read.
``xflow bundles verify`` reads every file anew, and so do programs that ask for it.

The memory is a JSON file in the user's cache folder (``XFLOW_CACHE``, else ``XDG_CACHE_HOME``, else ``~/.cache``). It
is as good as whoever may write there: somebody who can set back a file's times and write to that folder could hide a
change. Where it cannot be read or written, files are read each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any

LOG = logging.getLogger(__name__)

CACHE_VARIABLE = "XFLOW_CACHE"
LARGE_BYTES = 64 << 20
"""From this size on a file's sha256 is remembered."""

_SCHEMA = "xflow.known-files/1"
_SETTLED_NS = 2_000_000_000
"""A file changed within the last two seconds is not remembered: a further change might bear the same time."""


def memory_file() -> Path:
    """Where the sums are kept."""
    if os.environ.get(CACHE_VARIABLE):
        return Path(os.environ[CACHE_VARIABLE]) / "known-files.json"
    parent = os.environ.get("XDG_CACHE_HOME")
    return (Path(parent) if parent else Path.home() / ".cache") / "xflow" / "known-files.json"


def known_sha256(path: Path) -> str | None:
    """The remembered sha256 of a file that has not changed since; None where it must be read."""
    try:
        state = path.stat()
        entry = _entries().get(str(path.resolve()))
    except OSError:
        return None
    if state.st_size < LARGE_BYTES or entry is None or entry.get("state") != _state(state):
        return None
    digest = entry.get("sha256")
    return digest if isinstance(digest, str) else None


def sha256_once(path: Path) -> str:
    """The sha256 of a file, read only where it is not known. The log says when a large file is read.

    Raises:
        OSError: it cannot be read.
    """
    known = known_sha256(path)
    if known is not None:
        LOG.info("%s was compared before and has not changed; it is not read again.", path.name)
        return known
    before = path.stat()
    large = before.st_size >= LARGE_BYTES
    if large:
        LOG.info(
            "Reading %s (%.1f GB) to compare it with its sha256; later loads will not.", path, before.st_size / 1e9
        )
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    after = path.stat()
    settled = time.time_ns() - max(after.st_mtime_ns, after.st_ctime_ns) > _SETTLED_NS
    if large and settled and _state(before) == _state(after):
        _remember(path, {"sha256": digest, "state": _state(after)})
    return digest


def _state(found: os.stat_result) -> list[int]:
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _entries() -> dict[str, Any]:
    try:
        data = json.loads(memory_file().read_bytes())
        files = data["files"] if data["schema"] == _SCHEMA else {}
        return {str(name): entry for name, entry in files.items() if isinstance(entry, dict)}
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _remember(path: Path, entry: dict[str, Any]) -> None:
    """Of two processes at a time one's entry may be lost; that file is read once more, nothing else."""
    files = {name: old for name, old in _entries().items() if Path(name).is_file()} | {str(path.resolve()): entry}
    try:
        target = memory_file()
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".known-files")
        try:
            with os.fdopen(handle, "w") as stream:
                json.dump({"schema": _SCHEMA, "files": files}, stream)
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except (OSError, RuntimeError) as problem:  # RuntimeError: no home folder
        LOG.info("The sums of large files cannot be remembered (%s); they are read at each load.", problem)
