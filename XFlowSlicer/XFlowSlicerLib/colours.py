"""The panel's few colours: of Okabe and Ito's set, which all kinds of colour vision tell apart, in a tone that reads on
a light and on a dark window alike. Colour is never the only sign: each has a shape or a word beside it."""

from __future__ import annotations

from typing import Any

import qt

# For a light window, for a dark one.
_INKS = {
    "positive": ("#0072B2", "#56B4E9"),
    "negative": ("#B34700", "#F0A35E"),
    "warning": ("#8A5A00", "#E69F00"),
    "error": ("#B34700", "#F0A35E"),
}


def ink(widget: Any, name: str) -> str:
    """A text colour, ``#RRGGBB``, for the window that the widget stands in."""
    light, dark = _INKS[name]
    return dark if is_dark(widget) else light


def is_dark(widget: Any) -> bool:
    return widget.palette.color(qt.QPalette.Base).lightness() < 128
