"""Ray on this machine, for tests of what runs on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def ray_here() -> Iterator[None]:
    """Ray with two CPUs, whose workers inherit the environment; the one of another module's tests where it runs."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'xflow-core[ray]'")
    if ray.is_initialized():
        yield
        return
    for attempt in (1, 2, 3):
        try:
            ray.init(
                address="local",
                num_cpus=2,
                object_store_memory=200 * 2**20,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
            )
            break
        except Exception:  # Ray's own, and no kinder: on a busy machine a node may miss its 30 s to start
            ray.shutdown()
            if attempt == 3:
                raise
    yield
    ray.shutdown()
