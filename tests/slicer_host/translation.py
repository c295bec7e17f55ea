"""Emulation of ``slicer.i18n``: the texts are English, so a translation is the text itself."""

from __future__ import annotations

from types import ModuleType


class Translation(ModuleType):
    """The module object that ``import slicer.i18n`` gives."""

    def __init__(self) -> None:
        super().__init__("slicer.i18n", __doc__)

    @staticmethod
    def tr(text: str) -> str:
        return text

    @staticmethod
    def translate(context: str, text: str) -> str:
        return text
