"""The module as Slicer finds it: its files, its widgets, its self-test; and what PythonQt would not forgive."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "XFlowSlicer"
LIB = MODULE / "XFlowSlicerLib"
UI = MODULE / "Resources" / "UI" / "XFlowSlicer.ui"
WITH_QT = {
    "colours", "engine_section", "export_section", "panel", "question_line", "remembered", "step_table",
}  # fmt: skip
PURE = {
    "background", "engine_setup", "engine_work", "history", "image_frame", "presenter", "question", "steps",
}  # fmt: skip


def files() -> list[Path]:
    return [MODULE / "XFlowSlicer.py", *sorted(LIB.glob("*.py"))]


def imported(path: Path) -> set[str]:
    """The packages that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return found


def widgets() -> dict[str, ElementTree.Element]:
    root = ElementTree.parse(UI).getroot()
    return {widget.get("name", ""): widget for widget in root.iter("widget")}


def prop(widget: ElementTree.Element, name: str) -> str:
    found = widget.find(f"property[@name='{name}']/string")
    return "" if found is None or found.text is None else found.text


class TestRooms:
    """Who may know of Qt and of Slicer."""

    @pytest.mark.parametrize("path", sorted(LIB.glob("*.py")), ids=lambda path: path.stem)
    def test_only_the_panel_s_files_know_qt(self, path: Path) -> None:
        assert "qt" not in imported(path) or path.stem in WITH_QT

    @pytest.mark.parametrize("name", sorted(PURE))
    def test_what_needs_no_slicer_knows_none(self, name: str) -> None:
        assert not imported(LIB / f"{name}.py") & {"slicer", "vtk", "qt", "ctk"}

    @pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
    def test_no_torch_and_no_pyside(self, path: Path) -> None:
        assert not imported(path) & {"torch", "PySide6", "qtpy", "PyQt5", "PyQt6"}


class TestPythonQt:
    """What PySide takes and PythonQt of Slicer 5.12 does not, or takes differently."""

    @pytest.mark.parametrize("path", [*sorted(LIB / f"{name}.py" for name in WITH_QT)], ids=lambda path: path.stem)
    def test_signals_are_connected_by_their_signature(self, path: Path) -> None:
        engines = ("engine_setup", "self._engine", "self.settings", "remembered_settings()")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "connect":
                if node.args and isinstance(node.args[0], ast.Constant):
                    assert re.fullmatch(r"\w+\(.*\)", str(node.args[0].value)), f"line {node.lineno}"
                else:
                    assert ast.unparse(node.func.value) in engines, f"line {node.lineno}"

    @pytest.mark.parametrize("path", [*sorted(LIB / f"{name}.py" for name in WITH_QT)], ids=lambda path: path.stem)
    def test_properties_are_attributes(self, path: Path) -> None:
        properties = {
            *(
                "text",
                "checked",
                "enabled",
                "visible",
                "currentIndex",
                "currentText",
                "count",
                "currentPath",
                "toolTip",
            ),
            *("isVisible", "isEnabled", "isChecked", "collapsed", "palette", "font"),
        }
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
                assert node.func.attr not in properties, f"line {node.lineno}: {ast.unparse(node)}"


class TestWidgets:
    def test_each_widget_that_the_code_names_is_in_the_ui_file(self) -> None:
        known = widgets()
        for name in WITH_QT:
            text = (LIB / f"{name}.py").read_text(encoding="utf-8")
            for used in re.findall(r"\bui\.(\w+)", text):
                assert used in known, f"{name}.py uses ui.{used}"

    def test_whatever_can_be_clicked_or_typed_into_says_what_it_does(self) -> None:
        kinds = ("QPushButton", "QToolButton", "QCheckBox", "QLineEdit", "QComboBox", "ctkPathLineEdit")
        set_in_code = re.compile(r"Chip$|^(undo|redo|install|databaseCheck|bundleCombo)")
        for name, widget in widgets().items():
            if widget.get("class") in kinds and not set_in_code.search(name):
                assert prop(widget, "toolTip"), f"{name} has no tooltip"

    def test_each_field_has_a_label_with_a_key(self) -> None:
        found = widgets()
        buddies = {w.find("property[@name='buddy']/cstring") for w in found.values()}
        names = {buddy.text for buddy in buddies if buddy is not None}
        for name, widget in found.items():
            if widget.get("class") in ("QLineEdit", "QComboBox", "qMRMLNodeComboBox", "ctkPathLineEdit"):
                assert name in names, f"{name} has no label"
        labels = [w for w in found.values() if w.find("property[@name='buddy']") is not None]
        assert all("&" in prop(label, "text") for label in labels)

    def test_the_tab_key_goes_through_all_fields_in_the_order_of_the_panel(self) -> None:
        root = ElementTree.parse(UI).getroot()
        stops = [stop.text for stop in root.findall("tabstops/tabstop")]
        kinds = (
            *("QPushButton", "QToolButton", "QCheckBox", "QLineEdit", "QComboBox", "QTableWidget", "QPlainTextEdit"),
            *("qMRMLNodeComboBox", "ctkPathLineEdit", "ctkCollapsibleButton"),
        )
        assert sorted(filter(None, stops)) == sorted(n for n, w in widgets().items() if w.get("class") in kinds)
        assert len(set(stops)) == len(stops)

    def test_it_says_that_it_is_not_for_clinical_use(self) -> None:
        assert "Not for clinical use" in prop(widgets()["noticeLabel"], "text")


def sentences(path: Path) -> list[tuple[int, str]]:
    """Texts for the reader that are not handed to ``_()``: what a label, button or message is given as a literal."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    shown = {"_say", "say", "say_line", "_say_install", "addItem", "setText", "confirmOkCancelDisplay", "XFlowError"}
    found = []
    for node in ast.walk(tree):
        name = ""
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in shown:
            found += [
                (argument.lineno, argument.value)
                for argument in node.args
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and " " in argument.value
            ]
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and target.attr in ("text", "toolTip", "placeholderText"):
                    found.append((node.lineno, node.value.value))
    return [(line, text) for line, text in found if text]


@pytest.mark.parametrize("name", sorted(WITH_QT))
def test_every_sentence_can_be_translated(name: str) -> None:
    assert sentences(LIB / f"{name}.py") == []


def test_the_module_s_self_test_passes_here(scene: Any, application: Any) -> None:
    from tests.slicer_host.scripted_module import load_module

    load_module(MODULE / "XFlowSlicer.py")
    import XFlowSlicer

    XFlowSlicer.XFlowSlicerTest().runTest()
