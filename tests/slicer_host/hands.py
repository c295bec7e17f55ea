"""What a person does, given to Qt as a window system would: the event goes to a window and finds its own widget.

So a button that is hidden or disabled cannot be clicked here either. Every call lets Qt handle what follows from it.
Positions in a slice view are patient coordinates (RAS, mm).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qtpy import QtCore, QtGui, QtWidgets
from qtpy.QtTest import QTest

from tests.slicer_host.loop import in_event_loop, work_off
from tests.slicer_host.pythonqt import HostApplication

_BUTTONS = {
    "left": QtCore.Qt.MouseButton.LeftButton,
    "middle": QtCore.Qt.MouseButton.MiddleButton,
    "right": QtCore.Qt.MouseButton.RightButton,
}
_PLAIN = QtCore.Qt.KeyboardModifier.NoModifier


def click(widget: Any, at: QtCore.QPoint | None = None, button: str = "left") -> None:
    """Click a widget, in its middle (a check box at its mark) or at a position in it.

    Raises:
        RuntimeError: nobody could click it, because it is hidden or disabled.
    """
    window, position = _place(widget, at if at is not None else _natural(widget))
    _move(window, position)
    _do(lambda: QTest.mouseClick(window, _BUTTONS[button], _PLAIN, position), f"a click on {_called(widget)}")


def double_click(widget: Any, at: QtCore.QPoint | None = None) -> None:
    window, position = _place(widget, at if at is not None else _natural(widget))
    _do(lambda: QTest.mouseDClick(window, _BUTTONS["left"], _PLAIN, position), f"a double click on {_called(widget)}")


def choose(combo: Any, text: str) -> None:
    """Open a combo box (or qMRMLNodeComboBox) and choose an entry.

    Raises:
        LookupError: naming what it offers instead.
    """
    box = combo if isinstance(combo, QtWidgets.QComboBox) else combo.focusProxy()
    row = box.findText(text)
    if row < 0:
        offered = [box.itemText(i) for i in range(QtWidgets.QComboBox.count(box))]
        raise LookupError(f"{_called(combo)} offers {offered}, not {text!r}")
    click(box)
    view = QtWidgets.QComboBox.view(box)
    view.setCurrentIndex(QtWidgets.QAbstractItemView.model(view).index(row, QtWidgets.QComboBox.modelColumn(box)))
    _do(lambda: QTest.keyClick(view, QtCore.Qt.Key.Key_Return), f"choosing {text!r} in {_called(combo)}")


def click_row(table: Any, row: int, column: int = 0) -> None:
    """Click a cell of a table, scrolled to if need be."""
    index = QtWidgets.QAbstractItemView.model(table).index(row, column)
    table.scrollTo(index)
    work_off()
    click(QtWidgets.QAbstractScrollArea.viewport(table), table.visualRect(index).center())


def type(widget: Any, text: str) -> None:
    """Click into a widget and type."""
    click(widget)
    window, _ = _window_of(widget, QtCore.QPoint(0, 0))
    for letter in text:
        _strike(window, QtCore.Qt.Key.Key_unknown, letter, _PLAIN)


def key(widget: Any, keys: str) -> None:
    """Press keys, such as ``"Return"`` or ``"Ctrl+Z"``, with the focus in a widget; shortcuts act as they would."""
    if not QtWidgets.QWidget.hasFocus(widget):
        QtWidgets.QWidget.setFocus(widget)
        work_off()
    window, _ = _window_of(widget, QtCore.QPoint(0, 0))
    combination = QtGui.QKeySequence(keys)[0]
    letter = keys if len(keys) == 1 else ""
    _strike(window, combination.key(), letter, combination.keyboardModifiers())


def hover(view: Any, ras: Sequence[float]) -> None:
    """Move the mouse to a point of the slice."""
    window, position = _place(view, view.position_of(ras))
    # A mouse arrives; it is not there at once.
    _move(window, position + QtCore.QPoint(3, 3))
    _move(window, position)


def click_at(view: Any, ras: Sequence[float], button: str = "left") -> None:
    """Click a point of the slice."""
    hover(view, ras)
    window, position = _place(view, view.position_of(ras))
    _do(lambda: QTest.mouseClick(window, _BUTTONS[button], _PLAIN, position), "a click in the slice view")


def drag(view: Any, start: Sequence[float], end: Sequence[float], steps: int = 12, button: str = "left") -> None:
    """Press at a point of the slice, move in steps, let go at another."""
    hover(view, start)
    window, first = _place(view, view.position_of(start))
    _, last = _place(view, view.position_of(end))
    _do(lambda: QTest.mousePress(window, _BUTTONS[button], _PLAIN, first), "the start of a drag")
    for step in range(1, steps + 1):
        _move(window, first + (last - first) * (step / steps))
    _do(lambda: QTest.mouseRelease(window, _BUTTONS[button], _PLAIN, last), "the end of a drag")


def _do(action: Callable[[], None], what: str) -> None:
    """Do something as a person does: Qt's answers to it are what the watch times."""

    def act() -> None:
        if HostApplication.watch is None:
            action()
            return
        with HostApplication.watch.by_hand(what):
            action()

    in_event_loop(act, what)


def _move(window: Any, position: QtCore.QPoint) -> None:
    _do(lambda: QTest.mouseMove(window, position), "a mouse move")


def _strike(window: Any, code: Any, letter: str, modifiers: Any) -> None:
    pressed = QtGui.QKeySequence(code).toString() if letter == "" else letter
    _do(lambda: QTest.sendKeyEvent(QTest.KeyAction.Click, window, code, letter, modifiers), f"the key {pressed}")


def _natural(widget: Any) -> QtCore.QPoint:
    rectangle = QtWidgets.QWidget.rect(widget)
    if isinstance(widget, QtWidgets.QCheckBox | QtWidgets.QRadioButton):
        return QtCore.QPoint(10, rectangle.center().y())
    return rectangle.center()


def _place(widget: Any, at: QtCore.QPoint) -> tuple[Any, QtCore.QPoint]:
    """Where to click: the native window that shows a position of a widget, and the position in that window."""
    if not QtWidgets.QWidget.isVisible(widget):
        raise RuntimeError(f"{_called(widget)} is not visible: nobody could click it")
    if not QtWidgets.QWidget.isEnabled(widget):
        raise RuntimeError(f"{_called(widget)} is disabled: nobody could click it")
    parent = QtWidgets.QWidget.parentWidget(widget)
    while parent is not None:
        if isinstance(parent, QtWidgets.QScrollArea):
            parent.ensureWidgetVisible(widget)
            work_off()
        parent = QtWidgets.QWidget.parentWidget(parent)
    return _window_of(widget, at)


def _window_of(widget: Any, at: QtCore.QPoint) -> tuple[Any, QtCore.QPoint]:
    native = widget
    if not widget.testAttribute(QtCore.Qt.WidgetAttribute.WA_NativeWindow) and not widget.isWindow():
        native = widget.nativeParentWidget()
    return QtWidgets.QWidget.windowHandle(native), QtWidgets.QWidget.mapTo(widget, native, at)


def _called(widget: Any) -> str:
    return f"{widget.__class__.__name__} {QtCore.QObject.objectName(widget)}"
