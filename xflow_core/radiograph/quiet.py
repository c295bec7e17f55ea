"""Keeping third-party readers quiet.

Their warnings quote the values that they complain about, which may be a patient's, and their C code writes to the
process's standard error, where a command's one line of error belongs. Both are process-wide, hence one lock.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()


@contextmanager
def quiet_python() -> Iterator[None]:
    """No Python warnings, and nothing from pydicom's logger."""
    logger = logging.getLogger("pydicom")
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before, logger.disabled = logger.disabled, True
        try:
            yield
        finally:
            logger.disabled = before


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
