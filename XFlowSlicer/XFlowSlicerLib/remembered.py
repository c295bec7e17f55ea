"""What the panel remembers between two sessions of Slicer (``qt.QSettings``, group ``XFlow``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import qt

_GROUP = "XFlow"


def read(name: str, default: str = "") -> str:
    """A remembered text; what is no text gives the default."""
    value = qt.QSettings().value(f"{_GROUP}/{name}", default)
    return value if isinstance(value, str) else default


def read_flag(name: str, default: bool) -> bool:
    """A remembered choice. It comes back as true or false in one session and as a word in the next."""
    value = qt.QSettings().value(f"{_GROUP}/{name}", default)
    return value.lower() == "true" if isinstance(value, str) else bool(value)


def read_all(group: str, names: tuple[str, ...]) -> dict[str, str]:
    """The remembered texts of a group, those that are there."""
    found = {name: read(f"{group}/{name}", "\0") for name in names}
    return {name: value for name, value in found.items() if value != "\0"}


def keep(name: str, value: str | bool) -> None:
    qt.QSettings().setValue(f"{_GROUP}/{name}", value)


def keep_all(group: str, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        keep(f"{group}/{name}", value)
