"""The line in which a question is typed, its completion, the chips and the region picker, and how it was understood.

There is one way to ask: the chips and the picker write a sentence into the line, and follow what is typed there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import qt

from xflow_core.domain.findings import CHEST, FINDINGS, HEART

from .engine_section import say
from .question import complete, region_choices, sentence_for, understood
from .words import translator

_ = translator(__file__)


class QuestionLine:
    """Widgets: ``questionEdit``, a ``<finding>Chip`` for each finding, ``regionCombo``, ``understoodLabel``.

    Args:
        ui: the panel's widgets by name.
        asked: called when the user asks what stands in the line (Enter).
        changed: called when another sentence stands there.
    """

    def __init__(self, ui: Any, asked: Callable[[], None], changed: Callable[[], None]) -> None:
        self._ui = ui
        self._changed = changed
        self._regions: tuple[str, ...] = ()
        self._chips = {finding: getattr(ui, f"{finding}Chip") for finding in FINDINGS}
        self._suggestions = qt.QStringListModel()
        self._completer = qt.QCompleter(self._suggestions, ui.questionEdit)
        self._completer.setCompletionMode(qt.QCompleter.UnfilteredPopupCompletion)
        self._completer.setMaxVisibleItems(8)
        ui.questionEdit.setCompleter(self._completer)
        ui.understoodLabel.setMinimumHeight(ui.understoodLabel.fontMetrics().height())
        self._offer_regions((), CHEST)
        ui.questionEdit.connect("textEdited(QString)", self._suggest)
        ui.questionEdit.connect("textChanged(QString)", lambda _text: self._read())
        ui.questionEdit.connect("returnPressed()", asked)
        for finding, chip in self._chips.items():
            chip.toolTip = _("Ask for {finding}.").format(finding=finding)
            chip.connect("clicked(bool)", lambda _on: self._write())
        ui.regionCombo.connect("activated(int)", lambda _index: self._write())
        self._read()

    @property
    def text(self) -> str:
        return self._ui.questionEdit.text.strip()

    @property
    def ok(self) -> bool:
        """Whether the line can be asked."""
        return understood(self.text).ok

    def _suggest(self, text: str) -> None:
        # Called before the line shows its list, which is this one, whole.
        self._suggestions.setStringList(list(complete(text)))

    def _write(self) -> None:
        """Put the sentence of the chips and the picker into the line."""
        findings = [finding for finding, chip in self._chips.items() if chip.checked]
        region = self._regions[self._ui.regionCombo.currentIndex]
        self._ui.questionEdit.text = sentence_for(findings, region) if findings else ""

    def _read(self) -> None:
        """Say how the line is understood, and have the chips and the picker show the same."""
        read = understood(self.text)
        words = f"{_('Understood as')}: {read.sentence}." if read.ok else read.sentence
        say_line(self._ui.understoodLabel, "\n".join((words, *read.notes)) if read.notes else words, not read.ok)
        if read.ok or not self.text:
            asked = {instruction.finding for instruction in read.instructions}
            for finding, chip in self._chips.items():
                chip.checked = finding in asked
            places = {r for instruction in read.instructions for r in instruction.regions if r != HEART}
            region = next(iter(places)) if len(places) == 1 else (HEART if asked == {"cardiomegaly"} else CHEST)
            self._offer_regions(tuple(finding for finding in FINDINGS if finding in asked), region)
        self._changed()

    def _offer_regions(self, findings: tuple[str, ...], region: str) -> None:
        combo = self._ui.regionCombo
        choices = region_choices(findings)
        names = tuple(choice.name for choice in choices)
        blocked = combo.blockSignals(True)
        try:
            if names != self._regions:
                self._regions = names
                combo.clear()
                for choice in choices:
                    combo.addItem(choice.label)
            combo.setCurrentIndex(names.index(region) if region in names else 0)
        finally:
            combo.blockSignals(blocked)


def say_line(label: Any, text: str, warning: bool) -> None:
    """As :func:`.engine_section.say`, but an empty label keeps its place, so that nothing below it jumps."""
    say(label, text, "warning" if warning and text else "")
    label.visible = True
