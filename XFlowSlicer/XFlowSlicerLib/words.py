"""The panel's words in the user's language, where Slicer has them.

``slicer.i18n.tr`` finds out who calls it by looking through the whole call stack, several milliseconds at a time; a
table that is drawn at every step cannot wait for that. A translator looks a text up once, in the same context.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

try:
    from slicer.i18n import translate
except ImportError:  # Slicer's core without its application

    def translate(context: str, text: str) -> str:
        return text


def translator(file: str) -> Callable[[str], str]:
    """``_()`` for a file of this package: give ``__file__``."""
    path = Path(file)
    context = f"{path.parent.name}.{path.stem}"

    @cache
    def translated(text: str) -> str:
        return translate(context, text)

    return translated
