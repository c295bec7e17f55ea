"""The table of steps: one row per decision, with its sign, what it says, what it changed and who made it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import qt

from xflow_core.export.words import confidence_in_words

from .colours import ink
from .words import translator

if TYPE_CHECKING:
    from .steps import Row

_ = translator(__file__)

SIGN, STEP, CONFIDENCE, AREA, IOU, TIME, BY = range(7)
_COLUMNS = 7
_INDENT = "\u2003"
_ROOM = {TIME: 56, IOU: 46}
"""A column is shown in a table of at least so many letters' width: what a step is comes before how long it took."""
_COMPONENT = re.compile(r"Component (\d+): (.+)")


class StepTable:
    """Shows rows in a QTableWidget, writing only what changed, and tells which one the user selects."""

    def __init__(self, table: Any, on_select: Callable[[Row], None]) -> None:
        self._table = table
        self._on_select = on_select
        self._shown: list[Row] = []
        self._several = False
        self._items: list[list[Any]] = []  # PythonQt items live as long as Python holds them
        header = table.horizontalHeader()
        for column in range(_COLUMNS):
            header.setSectionResizeMode(
                column, qt.QHeaderView.Stretch if column == STEP else qt.QHeaderView.ResizeToContents
            )
        header.setMinimumSectionSize(8)
        table.verticalHeader().setDefaultSectionSize(table.fontMetrics().height() + 6)
        table.connect("itemSelectionChanged()", self._selected)

    @property
    def selected(self) -> Row | None:
        """The row that the user selected; None when there is none."""
        place = self._table.currentRow()
        return self._shown[place] if 0 <= place < len(self._shown) else None

    def show(self, rows: Sequence[Row], step: int | None) -> None:
        """Show ``rows``, one of those of ``step`` selected: the one that is, or else its first."""
        several = any(row.component for row in rows)
        if several != self._several:
            self._several, self._shown = several, []
        self.fit()
        blocked = self._table.blockSignals(True)
        try:
            if len(rows) != self._table.rowCount:
                del self._items[len(rows) :]
                self._table.setRowCount(len(rows))
            for place, row in enumerate(rows):
                if place >= len(self._shown) or self._shown[place] != row:
                    self._write(place, row)
            self._shown = list(rows)
            self._select(step)
        finally:
            self._table.blockSignals(blocked)

    def fit(self) -> None:
        """Leave out columns that the table has no room for."""
        letters = self._table.width / max(1, self._table.fontMetrics().averageCharWidth())
        for column, needed in _ROOM.items():
            if self._table.isColumnHidden(column) != (letters < needed):
                self._table.setColumnHidden(column, letters < needed)

    def _select(self, step: int | None) -> None:
        now = self._table.currentRow()
        if 0 <= now < len(self._shown) and self._shown[now].step == step:
            place: int | None = now
        else:
            place = next((place for place, row in enumerate(self._shown) if row.step == step), None)
        if place is None:
            self._table.clearSelection()
            self._table.setCurrentCell(-1, -1)
        elif place != now or not self._items[place][STEP].isSelected():
            self._table.setCurrentCell(place, STEP)
            self._table.scrollToItem(self._items[place][STEP])

    def _selected(self) -> None:
        row = self.selected
        if row is not None:
            self._on_select(row)

    def _write(self, place: int, row: Row) -> None:
        while len(self._items) <= place:
            items = [qt.QTableWidgetItem() for _column in range(_COLUMNS)]
            for column in (CONFIDENCE, AREA, IOU, TIME):
                items[column].setTextAlignment(qt.Qt.AlignRight | qt.Qt.AlignVCenter)
            items[SIGN].setTextAlignment(qt.Qt.AlignCenter)
            for column, item in enumerate(items):
                self._table.setItem(len(self._items), column, item)
            self._items.append(items)
        tip = tooltip(row)
        for item, text in zip(self._items[place], cells(row, self._several), strict=True):
            item.setText(text)
            item.setToolTip(tip)
        colour = {"+": "positive", "−": "negative"}.get(row.sign)
        brush = qt.QBrush() if colour is None else qt.QBrush(qt.QColor(ink(self._table, colour)))
        bold = qt.QFont(self._table.font)
        bold.setBold(True)
        self._items[place][SIGN].setFont(bold)
        self._items[place][SIGN].setForeground(brush)
        by = qt.QFont(self._table.font)
        by.setBold(by_user(row))
        self._items[place][BY].setFont(by)
        for item in self._items[place][STEP:BY]:
            item.setFont(_slanted(self._table.font, row.pending or row.stale))


def cells(row: Row, several: bool = True) -> tuple[str, ...]:
    """The texts of a row's cells, column by column.

    Args:
        several: whether the answer has more than one component; the number of the only one is left out.
    """
    named = _COMPONENT.match(row.text)
    if named is None:
        text = row.text
    elif several:
        text = f"{named[1]}: {named[2]}"
    else:
        text = named[2][:1].upper() + named[2][1:]
    if row.kind == "presence":
        sign = "●" if row.text.endswith("present") else "○"
    else:
        sign = {"+": "⊕", "−": "⊟"}.get(row.sign, "")
    return (
        sign,
        _INDENT * row.indent + text,
        "" if row.confidence is None else confidence_in_words(row.confidence),
        "" if row.area_px is None else f"{row.area_px:,}",
        "" if row.predicted_iou is None else f"{row.predicted_iou:.2f}",
        "" if row.seconds is None or row.origin == "user" else seconds_in_words(row.seconds),
        _("you") if by_user(row) else _("model"),
    )


def by_user(row: Row) -> bool:
    """Whether the user decided what the row says. Of a step that he changed, the boxes and verdicts that he left alone
    keep the model's confidence; what he decided has none."""
    return row.origin == "user" and row.confidence is None


def tooltip(row: Row) -> str:
    """Everything that the row says, unshortened, a line each."""
    lines = [row.text, row.detail, row.area_text, *row.notes]
    if row.changed_px is not None:
        added, removed = row.changed_px
        lines.append(_("{added:,} px added, {removed:,} px taken away").format(added=added, removed=removed))
    return "\n".join(dict.fromkeys(filter(None, lines)))


def seconds_in_words(seconds: float) -> str:
    """``80 ms`` or ``1.2 s``."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _slanted(font: Any, slanted: bool) -> Any:
    font = qt.QFont(font)
    font.setItalic(slanted)
    return font
