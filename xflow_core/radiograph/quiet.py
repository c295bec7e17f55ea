"""Keeping third-party readers quiet: their C code writes to the process's standard error, where a command's one line of
error belongs, and may quote a patient's values there."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from xflow_core.domain.quiet import quiet_python


@contextmanager
def quiet_native() -> Iterator[list[str]]:
    """What C code writes to standard error meanwhile; the list is filled when the block ends, by an error too."""
    lines: list[str] = []
    with quiet_python(), tempfile.TemporaryFile() as kept:
        try:
            if sys.stderr is not None:
                sys.stderr.flush()
            before = os.dup(2)
        except OSError:  # a process without a standard error
            yield lines
            return
        os.dup2(kept.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(before, 2)
            os.close(before)
            kept.seek(0)
            lines += kept.read(65_536).decode(errors="replace").splitlines()
