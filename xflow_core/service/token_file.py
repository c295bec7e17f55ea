"""The token that a client shows: in a file that its owner alone can read."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path

from xflow_core.domain.errors import CallError

_TOKEN = re.compile(r"[\x21-\x7e]{16,512}")


def token_from(path: Path) -> str:
    """The token in a file; a new one where there is no file, which is then made whole with mode 0600.

    On Windows the folder's permissions say who may read it.

    Raises:
        CallError: the file cannot be read or made, others can read it, or it holds no token.
    """
    try:
        if not path.exists():
            with contextlib.suppress(FileExistsError):  # another server was quicker; its token is as good
                _create(path)
        if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise CallError(f"Others than its owner can use the token file {path}; chmod 600 it, or name another.")
        token = path.read_text("ascii").strip()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "not a text file"
        raise CallError(f"The token file {path} cannot be used: {reason}.") from None
    if not _TOKEN.fullmatch(token):
        raise CallError(f"The token file {path} holds no token (16 to 512 characters); remove it for a new one.")
    return token


def temporary_token_file() -> Path:
    """Where a token goes that is for this server's life alone: a new folder that its owner alone can enter."""
    return Path(tempfile.mkdtemp(prefix="xflow-")) / "token"


def _create(path: Path) -> None:
    """All of the file appears under its name at once, and never in place of another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}.part")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if os.name == "posix":
            os.link(new, path)
        else:
            os.rename(new, path)  # here a rename does not replace
    finally:
        new.unlink(missing_ok=True)
