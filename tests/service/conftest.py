"""A server for a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from service.phantom_server import Served, serving


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as server:
        yield server
