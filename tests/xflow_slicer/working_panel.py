"""The module's panel at work in the host's viewer, as a test drives it: by clicks and keys."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import slicer

TABLE_COLUMNS = ("sign", "step", "confidence", "area", "iou", "time", "by")


def use_engine(environment: Mapping[str, str] | None = None, bundle: str = "", python: str = sys.executable) -> None:
    """Settings as a user's who pointed the Engine section to this very Python.

    Args:
        environment: the variables that Slicer would have been started with.
    """
    import qt

    variables = dict(os.environ if environment is None else environment)
    slicer.util.startupEnvironment = lambda: variables
    settings = qt.QSettings()
    settings.clear()
    for name, value in {"engine": "this_computer", "python": python, "bundle": bundle, "device": "cpu"}.items():
        settings.setValue(f"XFlow/engine/{name}", value)


class WorkingPanel:
    """A viewer with the module in it.

    Attributes:
        viewer: the host's window.
        ui: the panel's widgets by name.
        presenter: what the panel shows.
    """

    def __init__(self, viewer: Any) -> None:
        from tests.slicer_host import hands

        self.hands = hands
        self.viewer = viewer
        self.panel = viewer.panel.panel
        self.ui = viewer.panel.ui
        self.presenter = self.panel.presenter

    # What the user sees.

    def rows(self) -> list[dict[str, str]]:
        """The step table as it stands."""
        table = self.ui.stepsTable
        return [
            {name: table.item(row, column).text().strip() for column, name in enumerate(TABLE_COLUMNS)}
            for row in range(table.rowCount)
        ]

    def steps(self) -> list[str]:
        return [row["step"] for row in self.rows()]

    @property
    def status(self) -> str:
        """The sentence under the question."""
        return self.ui.statusLabel.text.replace("\u200b", "")

    def shown(self, *names: str) -> bool:
        return all(getattr(self.ui, name).visible for name in names)

    # What the user does.

    def load(self, path: Path) -> Any:
        """Load an image and have it chosen, sent and checked."""
        volume = self.viewer.load(path)
        self.until(lambda: self.ui.volumeSelector.currentNode() is volume, 10, "the radiograph to be chosen")
        self.until(lambda: self.presenter.phase in ("ready", "failed"), 90, "the engine to have the image")
        return volume

    def ask(self, text: str, seconds: float = 60) -> None:
        """Type a question, press Enter, and wait for the end of its run."""
        self.type_question(text)
        self.enter()
        self.finish(seconds)

    def type_question(self, text: str) -> None:
        self.ui.questionEdit.clear()
        self.hands.type(self.ui.questionEdit, text)

    def enter(self) -> None:
        self.hands.key(self.ui.questionEdit, "Return")

    def finish(self, seconds: float = 60) -> None:
        self.until(lambda: self.presenter.phase not in ("waiting", "running"), seconds, "the run to end")
        self.settle()

    def settle(self) -> None:
        """Wait until what is shown in the panel is shown in the scene, too."""
        self.until(lambda: not self.panel._soon.active, 10, "the scene to follow")
        self.viewer.run_for(0.02)  # what appeared or went has moved the rest of the panel

    def click(self, name: str) -> None:
        self.hands.click(getattr(self.ui, name))
        self.settle()

    def key(self, keys: str) -> None:
        """A key with the focus in the slice view, as after a look at the image."""
        self.hands.key(self.viewer.slice, keys)
        self.settle()

    def select(self, part: str) -> int:
        """Click the first row whose step has ``part`` in its words; its number."""
        row = next(row for row, step in enumerate(self.steps()) if part in step)
        table = self.ui.stepsTable
        table.scrollToItem(table.item(row, 1))
        self.viewer.run_for(0.02)
        self.hands.click(table.viewport(), table.visualItemRect(table.item(row, 1)).center())
        self.settle()
        return row

    def until(self, holds: Any, seconds: float, what: str) -> float:
        return self.viewer.wait(holds, seconds, what)


def write_volume(path: Path, discs: Sequence[tuple[float, float, float]], behaviour: str = "answers") -> Path:
    """The phantom's picture as an NRRD file, which Slicer loads without a DICOM source; see ``phantom_backend``."""
    import SimpleITK
    from phantom_backend import picture

    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(picture(discs, behaviour)[None]), str(path))
    return path


def nodes(kind: str, role: str | None = None) -> list[Any]:
    """XFlow's nodes of a class in the scene."""
    found = slicer.util.getNodesByClass(kind)
    return [
        node for node in found if node.GetAttribute("XFlow.role") and role in (None, node.GetAttribute("XFlow.role"))
    ]
