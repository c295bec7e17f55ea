"""The emulated ``qt``, ``ctk`` and qMRML widgets behave as PythonQt does in Slicer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

UI = """<?xml version="1.0" encoding="UTF-8"?>
<ui version="4.0"><class>Panel</class>
<widget class="QWidget" name="Panel"><layout class="QVBoxLayout" name="column">
 <item><widget class="qMRMLNodeComboBox" name="volumeSelector">
  <property name="nodeTypes"><stringlist><string>vtkMRMLScalarVolumeNode</string></stringlist></property>
  <property name="noneEnabled"><bool>true</bool></property></widget></item>
 <item><widget class="ctkCollapsibleButton" name="engineSection">
  <property name="text"><string>Engine</string></property><property name="collapsed"><bool>true</bool></property>
  <layout class="QVBoxLayout" name="inside">
   <item><widget class="QLineEdit" name="urlEdit"/></item></layout></widget></item>
 <item><widget class="QTableWidget" name="steps"/></item>
</layout></widget></ui>"""


@pytest.fixture
def panel(application: Any, scene: Any, tmp_path: Path) -> Any:
    import slicer

    (tmp_path / "panel.ui").write_text(UI, encoding="utf-8")
    root = slicer.util.loadUI(str(tmp_path / "panel.ui"))
    yield root
    root.delete()


def test_properties_are_attributes(application: Any, scene: Any) -> None:
    import qt

    button = qt.QPushButton("Ask")
    assert (button.text, button.enabled, button.className()) == ("Ask", True, "QPushButton")
    button.checkable = True
    button.checked = True
    assert button.isChecked()
    with pytest.raises(TypeError, match="not callable"):
        button.text()


def test_name_is_object_name(application: Any, scene: Any) -> None:
    import qt

    label = qt.QLabel()
    label.name = "status"
    assert label.objectName == "status"


def test_a_new_attribute_is_refused_as_on_a_cpp_object(application: Any, scene: Any) -> None:
    import qt

    with pytest.raises(AttributeError, match="creating new attributes"):
        qt.QLabel().txt = "misspelt"
    with pytest.raises(AttributeError, match="can not be overwritten"):
        qt.QLabel().setText = print

    class Derived(qt.QLabel):
        pass

    Derived().note = "allowed in Python's own classes"


def test_a_slot_gets_as_many_arguments_as_it_has_room_for(application: Any, scene: Any) -> None:
    import qt

    class Receiver:
        def __init__(self) -> None:
            self.got: list[tuple[Any, ...]] = []

        def none(self) -> None:
            self.got.append(())

        def one(self, checked: bool = False) -> None:
            self.got.append((checked,))

        def all(self, *arguments: Any) -> None:
            self.got.append(arguments)

    receiver = Receiver()
    button = qt.QPushButton()
    button.checkable = True
    for slot in (receiver.none, receiver.one, receiver.all):
        assert button.connect("clicked(bool)", slot)
    button.click()
    assert receiver.got == [(), (True,), (True,)]
    assert button.disconnect("clicked(bool)", receiver.one)
    receiver.got.clear()
    button.click()
    assert receiver.got == [(), (False,)]


def test_an_unknown_signal_is_false(application: Any, scene: Any) -> None:
    import qt

    assert qt.QPushButton().connect("pushed(int)", print) is False


def test_two_qt_objects_are_connected_by_names(application: Any, scene: Any) -> None:
    import qt

    button, box = qt.QPushButton(), qt.QCheckBox()
    assert button.connect("clicked()", box, "toggle()")
    button.click()
    assert box.checked


def test_an_exception_in_a_slot_is_kept_not_raised(
    application: Any, scene: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    import qt

    from tests.slicer_host import clear_faults, faults

    def fail() -> None:
        raise ValueError("in a slot")

    button = qt.QPushButton()
    button.name = "askButton"
    button.connect("clicked()", fail)
    button.click()
    (fault,) = faults()
    clear_faults()
    assert fault.where == "the slot of QPushButton.clicked()"
    assert "ValueError: in a slot" in capsys.readouterr().err


def test_settings_are_this_runs_own(application: Any, scene: Any) -> None:
    import qt
    import slicer

    qt.QSettings().setValue("XFlow/server", "http://localhost:8000")
    assert slicer.util.settingsValue("XFlow/server", "") == "http://localhost:8000"
    assert slicer.app.userSettings().fileName().startswith(str(Path(slicer.app.temporaryPath).parent))


def test_a_ui_file_loads_with_the_emulated_widgets(panel: Any) -> None:
    import slicer

    ui = slicer.util.childWidgetVariables(panel)
    assert ui.volumeSelector.nodeTypes == ["vtkMRMLScalarVolumeNode"]
    assert ui.volumeSelector.noneEnabled
    assert (ui.engineSection.text, ui.engineSection.collapsed) == ("Engine", True)
    assert ui.steps.rowCount == 0
    heard: list[int] = []
    assert ui.steps.horizontalHeader().connect("sectionClicked(int)", heard.append)


def test_a_folded_section_hides_what_it_holds(panel: Any, application: Any) -> None:
    import slicer

    ui = slicer.util.childWidgetVariables(panel)
    heard: list[bool] = []
    ui.engineSection.connect("contentsCollapsed(bool)", heard.append)
    panel.show()
    application.processEvents()
    assert not ui.urlEdit.isVisible()
    ui.engineSection.collapsed = False
    assert ui.urlEdit.isVisible()
    assert heard == [False]


def test_the_node_selector_follows_the_scene(panel: Any, scene: Any) -> None:
    import slicer

    selector = slicer.util.childWidgetVariables(panel).volumeSelector
    selector.setMRMLScene(scene)
    heard: list[Any] = []
    selector.connect("currentNodeChanged(vtkMRMLNode*)", heard.append)
    first = scene.AddNewNodeByClass("vtkMRMLScalarVolumeNode", "PA")
    scene.AddNewNodeByClass("vtkMRMLTextNode", "no volume")
    assert selector.nodeCount() == 1
    assert selector.currentNode() is None
    selector.setCurrentNode(first)
    assert selector.currentNodeID == first.GetID()
    first.SetName("frontal")
    assert selector.focusProxy().currentText == "frontal" or selector.focusProxy().currentText() == "frontal"
    scene.RemoveNode(first)
    assert selector.currentNode() is None
    assert heard == [first, None]


def test_without_none_a_node_is_always_chosen(application: Any, scene: Any) -> None:
    import slicer

    selector = slicer.qMRMLNodeComboBox()
    selector.nodeTypes = ["vtkMRMLTextNode"]
    selector.setMRMLScene(scene)
    first = scene.AddNewNodeByClass("vtkMRMLTextNode", "a")
    second = scene.AddNewNodeByClass("vtkMRMLTextNode", "b")
    assert selector.currentNode() is first
    scene.RemoveNode(first)
    assert selector.currentNode() is second
    scene.Clear(0)
    assert selector.currentNode() is None
    selector.delete()
    scene.AddNewNodeByClass("vtkMRMLTextNode", "after the widget is gone")


def test_a_message_box_says_nothing_in_testing_mode(application: Any, scene: Any) -> None:
    import slicer

    slicer.util.errorDisplay("The engine did not answer.")


def test_a_question_is_answered_with_the_mouse(application: Any, scene: Any) -> None:
    import qt
    import slicer

    from tests.slicer_host import hands

    button, answers = qt.QPushButton("Replay"), []
    button.connect("clicked()", lambda: answers.append(slicer.util.confirmYesNoDisplay("Replay from here?")))
    button.show()
    qt.QTimer.singleShot(200, lambda: hands.click(application.activeModalWidget().button(qt.QMessageBox.Yes)))
    application.setTestingEnabled(False)
    try:
        hands.click(button)
    finally:
        application.setTestingEnabled(True)
    assert answers == [True]
