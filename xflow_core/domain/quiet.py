"""Keeping third-party libraries quiet: their warnings quote the values that they complain about, which may be a
patient's. Python's warning filters are process-wide, hence one lock for all of XFlow."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()
_LOGGERS = ("pydicom", "highdicom")


@contextmanager
def quiet_python() -> Iterator[None]:
    """No Python warnings, and nothing from the loggers of pydicom and highdicom."""
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loggers = [logging.getLogger(name) for name in _LOGGERS]
        before = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)
