"""Emulation of ``slicer.packaging``: what would be installed is written down, nothing is installed.

``calls`` holds each call's requirements; ``refuse`` may be set to a sentence that the next call raises as RuntimeError,
as pip does without a network.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType


class Packaging(ModuleType):
    """The module object that ``import slicer.packaging`` gives."""

    def __init__(self) -> None:
        super().__init__("slicer.packaging", __doc__)
        self.calls: list[tuple[str, ...]] = []
        self.refuse: str | None = None

    def pip_ensure(self, requirements: str | Sequence[str], *args: object, **options: object) -> None:
        self.pip_install(requirements)

    def pip_install(self, requirements: str | Sequence[str], *args: object, **options: object) -> None:
        listed = requirements.split() if isinstance(requirements, str) else requirements
        wanted = tuple(str(one) for one in listed)
        self.calls.append(wanted)
        if self.refuse is not None:
            raise RuntimeError(self.refuse)

    def pip_uninstall(self, requirements: str | Sequence[str], *args: object, **options: object) -> None:
        self.pip_install(requirements)

    @staticmethod
    def pip_check(*args: object, **options: object) -> bool:
        """Whether everything asked for is there: never, here."""
        return False

    @staticmethod
    def executable() -> str:
        return sys.executable
