"""The panel's Export section: the answers into a folder, and into Slicer's DICOM database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import qt

from xflow_core.domain.errors import XFlowError
from xflow_core.domain.trace import Trace

from . import dicom_export, remembered
from .background import Background
from .engine_section import say
from .words import translator

_ = translator(__file__)


class ExportSection:
    """Widgets: ``exportFolderEdit``, ``exportButton``, ``reviewedCheck``, ``databaseCheck``, ``exportLabel``.

    Args:
        ui: the panel's widgets by name.
        what: the volume node, its current answers and its segments; None while there is no radiograph.
    """

    def __init__(self, ui: Any, what: Callable[[], tuple[Any, Sequence[Trace], Any] | None]) -> None:
        self._ui = ui
        self._what = what
        self._background = Background("XFlow export")
        folder = remembered.read("export/folder") or qt.QStandardPaths.writableLocation(
            qt.QStandardPaths.DocumentsLocation
        )
        ui.exportFolderEdit.currentPath = folder
        ui.databaseCheck.checked = remembered.read_flag("export/database", True)
        ui.exportLabel.visible = False
        ui.exportButton.connect("clicked(bool)", lambda _on: self.export())
        ui.databaseCheck.connect("toggled(bool)", lambda on: remembered.keep("export/database", on))
        # Whether a person stands by the results is said anew for each export.
        ui.reviewedCheck.checked = False

    @property
    def busy(self) -> bool:
        return self._background.busy

    def poll(self) -> None:
        self._background.poll()

    def close(self) -> None:
        self._background.close()

    def export(self) -> None:
        """Write the answers; the files are made in a thread, and the section says where they are."""
        ui = self._ui
        folder = ui.exportFolderEdit.currentPath.strip()
        if self._background.busy:
            return
        found = self._what()
        if found is None:
            self._say(_("There is no answer to export; choose a radiograph and ask."), "warning")
            return
        if not folder:
            self._say(_("Choose the folder to write to."), "warning")
            return
        try:
            collected = dicom_export.collect(*found)
        except XFlowError as problem:
            self._say(str(problem), "warning")
            return
        remembered.keep("export/folder", folder)
        reviewed, database = ui.reviewedCheck.checked, ui.databaseCheck.checked
        ui.exportButton.enabled = False
        self._say(_("Writing…"))
        self._background.start(
            lambda: dicom_export.write(collected, Path(folder), reviewed=reviewed),
            lambda done: self._written(done, database),
            self._not_written,
        )

    def _written(self, done: Any, database: bool) -> None:
        ui = self._ui
        ui.exportButton.enabled = True
        ui.reviewedCheck.checked = False
        lines = [_("Written to {folder}: {count} files.").format(folder=done.folder, count=len(done.files))]
        lines += done.sentences
        self._say("\n".join(lines))
        if database and done.dicom:
            self._add(list(done.dicom), lines, 0)

    def _add(self, paths: list[Path], lines: list[str], taken: int) -> None:
        """Give the database one file, and the next when the events between have been handled."""
        refusal = dicom_export.add_to_database(paths.pop(0))
        if refusal is not None:
            self._say("\n".join([*lines, refusal]), "warning")
        elif paths:
            qt.QTimer.singleShot(0, lambda: self._add(paths, lines, taken + 1))
        else:
            self._say("\n".join([*lines, _("{count} files are in the DICOM database.").format(count=taken + 1)]))

    def _not_written(self, problem: Exception) -> None:
        self._ui.exportButton.enabled = True
        if not isinstance(problem, XFlowError):
            self._say(_("The export failed: {problem!r}").format(problem=problem), "error")
            raise problem
        self._say(str(problem), "error")

    def _say(self, text: str, tone: str = "") -> None:
        say(self._ui.exportLabel, text, tone)
