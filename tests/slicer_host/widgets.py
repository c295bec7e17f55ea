"""Emulation of the CTK and qMRML widgets that a module's panel uses, with the names and signals of the real ones.

Imported by :func:`tests.slicer_host.pythonqt.install`, once there is a QApplication.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import slicer
import vtk
from qtpy import QtCore, QtGui, QtWidgets
from shiboken6 import isValid

from tests.slicer_host.pythonqt import Aliases, emulate, register

_Widget = emulate(QtWidgets.QWidget)


def _stored(name: str, kind: Any, default: Any, changed: str | None = None) -> tuple[Any, Callable[[Any, Any], None]]:
    """A Qt property kept on the instance and its setter; ``changed`` names the method called after a change."""
    key = f"_{name}"

    def get(self: Any) -> Any:
        return self.__dict__.get(key, default)

    def assign(self: Any, value: Any) -> None:
        if get(self) != value:
            self.__dict__[key] = value
            if changed is not None:
                getattr(self, changed)()

    return QtCore.Property(kind, get, assign), assign


# CTK


@register
class ctkCollapsibleButton(_Widget):
    """A titled section that folds. ``contentsCollapsed(bool)`` tells when."""

    contentsCollapsed = QtCore.Signal(bool)
    clicked = QtCore.Signal(bool)
    toggled = QtCore.Signal(bool)

    text, setText = _stored("text", str, "", "_redraw")
    collapsed, setCollapsed = _stored("collapsed", bool, False, "_fold")
    collapsedHeight, setCollapsedHeight = _stored("collapsedHeight", int, 10)
    contentsFrameShape, setContentsFrameShape = _stored("contentsFrameShape", int, 0)
    flat, setFlat = _stored("flat", bool, False, "_redraw")
    checkable, setCheckable = _stored("checkable", bool, True)

    def __init__(self, *arguments: Any) -> None:
        title = next((one for one in arguments if isinstance(one, str)), "")
        super().__init__(*(one for one in arguments if not isinstance(one, str)))
        self._text = title
        self._hidden: list[Any] = []
        self._header = _FoldHeader(self)
        self.setFocusPolicy(QtCore.Qt.FocusPolicy.TabFocus)
        self._make_room()

    @QtCore.Property(bool)
    def checked(self) -> bool:
        return not self.collapsed

    @checked.setter
    def checked(self, checked: bool) -> None:
        self.setCollapsed(not checked)

    def setChecked(self, checked: bool) -> None:
        self.setCollapsed(not checked)

    def click(self) -> None:
        self.setCollapsed(not self.collapsed)
        self.clicked.emit(not self.collapsed)

    def toggle(self) -> None:
        self.click()

    def keyPressEvent(self, event: Any) -> None:
        if event.key() in (QtCore.Qt.Key.Key_Space, QtCore.Qt.Key.Key_Select):
            self.click()
        else:
            super().keyPressEvent(event)

    def resizeEvent(self, event: Any) -> None:
        self._header.setGeometry(0, 0, QtWidgets.QWidget.width(self), self._header_height())
        super().resizeEvent(event)

    def childEvent(self, event: Any) -> None:
        child = event.child()
        if event.type() == QtCore.QEvent.Type.ChildAdded and child.isWidgetType() and self.collapsed:
            child.setVisible(False)
        super().childEvent(event)

    def changeEvent(self, event: Any) -> None:
        if event.type() in (QtCore.QEvent.Type.FontChange, QtCore.QEvent.Type.StyleChange) and hasattr(self, "_header"):
            self._make_room()
        super().changeEvent(event)

    def sizeHint(self) -> QtCore.QSize:
        hint = QtWidgets.QWidget.sizeHint(self)
        return QtCore.QSize(hint.width(), self._header_height()) if self.collapsed else hint

    def minimumSizeHint(self) -> QtCore.QSize:
        hint = QtWidgets.QWidget.minimumSizeHint(self)
        return QtCore.QSize(hint.width(), self._header_height()) if self.collapsed else hint

    def _header_height(self) -> int:
        return self.fontMetrics().height() + 10

    def _make_room(self) -> None:
        self.setContentsMargins(0, self._header_height(), 0, 0)
        self.setMinimumHeight(self._header_height())

    def _fold(self) -> None:
        widgets = [one for one in QtWidgets.QWidget.children(self) if one.isWidgetType() and one is not self._header]
        if self.collapsed:
            self._hidden = [one for one in widgets if one.isHidden()]
        for one in widgets:
            if one not in self._hidden:
                one.setVisible(not self.collapsed)
        self.setMaximumHeight(self._header_height() if self.collapsed else 16777215)
        self.updateGeometry()
        self._redraw()
        self.contentsCollapsed.emit(self.collapsed)
        self.toggled.emit(not self.collapsed)

    def _redraw(self) -> None:
        self._header.update()


class _FoldHeader(QtWidgets.QWidget):
    """The line that one clicks to fold a section."""

    def __init__(self, section: ctkCollapsibleButton) -> None:
        super().__init__(section)
        self._section = section
        self.setObjectName("foldHeader")

    def mouseReleaseEvent(self, event: Any) -> None:
        if event.button() == QtCore.Qt.MouseButton.LeftButton and self.rect().contains(event.position().toPoint()):
            self._section.click()

    def mousePressEvent(self, event: Any) -> None:
        event.accept()

    def paintEvent(self, event: Any) -> None:
        section = self._section
        painter = QtGui.QPainter(self)
        palette = self.palette()
        painter.fillRect(self.rect(), palette.color(QtGui.QPalette.ColorRole.Button))
        painter.setPen(palette.color(QtGui.QPalette.ColorRole.Mid))
        painter.drawLine(0, self.height() - 1, self.width(), self.height() - 1)
        option = QtWidgets.QStyleOption()
        option.initFrom(self)
        option.rect = QtCore.QRect(6, (self.height() - 12) // 2, 12, 12)
        arrow = QtWidgets.QStyle.PrimitiveElement
        self.style().drawPrimitive(
            arrow.PE_IndicatorArrowRight if section.collapsed else arrow.PE_IndicatorArrowDown, option, painter, self
        )
        painter.setPen(palette.color(QtGui.QPalette.ColorRole.ButtonText))
        room = self.rect().adjusted(24, 0, -6, 0)
        painter.drawText(room, QtCore.Qt.AlignmentFlag.AlignVCenter | QtCore.Qt.TextFlag.TextShowMnemonic, section.text)
        if section.hasFocus():
            option.rect = self.rect().adjusted(2, 2, -2, -2)
            self.style().drawPrimitive(arrow.PE_FrameFocusRect, option, painter, self)


@register
class ctkCollapsibleGroupBox(emulate(QtWidgets.QGroupBox)):
    """A group box that folds with its check box."""

    collapsed, setCollapsed = _stored("collapsed", bool, False, "_fold")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.setCheckable(True)
        QtWidgets.QGroupBox.setChecked(self, True)
        QtWidgets.QGroupBox.toggled.__get__(self, type(self)).connect(lambda checked: self.setCollapsed(not checked))

    def _fold(self) -> None:
        QtWidgets.QGroupBox.setChecked(self, not self.collapsed)
        for child in QtWidgets.QWidget.children(self):
            if child.isWidgetType():
                child.setVisible(not self.collapsed)


@register
class ctkComboBox(emulate(QtWidgets.QComboBox)):
    """A combo box that shows ``defaultText`` while nothing is chosen."""

    defaultText, setDefaultText = _stored("defaultText", str, "", "_show_default")
    forceDefault, setForceDefault = _stored("forceDefault", bool, False)
    scrollWheelEnabled, setScrollWheelEnabled = _stored("scrollWheelEnabled", bool, True)

    def _show_default(self) -> None:
        self.setPlaceholderText(self.defaultText)

    def wheelEvent(self, event: Any) -> None:
        if self.scrollWheelEnabled:
            super().wheelEvent(event)
        else:
            event.ignore()


@register
class ctkCheckBox(emulate(QtWidgets.QCheckBox)):
    """A check box."""


@register
class ctkPushButton(emulate(QtWidgets.QPushButton)):
    """A push button."""


@register
class ctkExpandableWidget(emulate(QtWidgets.QFrame)):
    """A frame that a user may resize."""


@register
class ctkDynamicSpacer(_Widget):
    """A spacer that is a widget."""


@register
class ctkFittedTextBrowser(emulate(QtWidgets.QTextBrowser)):
    """A text browser as high as its text."""

    collapsed, setCollapsed = _stored("collapsed", bool, False)

    def sizeHint(self) -> QtCore.QSize:
        return QtCore.QSize(200, int(self.document().size().height()) + 8)


@register
class ctkSearchBox(emulate(QtWidgets.QLineEdit)):
    """A line edit for searching."""


@register
class ctkDoubleSpinBox(emulate(QtWidgets.QDoubleSpinBox)):
    """A spin box for numbers."""


@register
class ctkMessageBox(emulate(QtWidgets.QMessageBox)):
    """A message box that can be told not to come again."""

    dontShowAgainVisible, setDontShowAgainVisible = _stored("dontShowAgainVisible", bool, False)
    dontShowAgain, setDontShowAgain = _stored("dontShowAgain", bool, False)
    dontShowAgainSettingsKey, setDontShowAgainSettingsKey = _stored("dontShowAgainSettingsKey", str, "")


@register
class ctkSliderWidget(_Widget):
    """A slider with a spin box. ``valueChanged(double)``."""

    valueChanged = QtCore.Signal(float)

    def __init__(self, parent: Any = None) -> None:
        super().__init__(parent)
        row = QtWidgets.QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        self._slider = QtWidgets.QSlider(QtCore.Qt.Orientation.Horizontal)
        self._spin = QtWidgets.QDoubleSpinBox()
        self._spin.setRange(0.0, 99.0)
        row.addWidget(self._slider)
        row.addWidget(self._spin)
        self._slider.setRange(0, 1000)
        self._slider.valueChanged.connect(self._from_slider)
        self._spin.valueChanged.connect(self._from_spin)

    def _from_slider(self, position: int) -> None:
        low, high = self._spin.minimum(), self._spin.maximum()
        if self._slider.hasFocus() or self._slider.isSliderDown():
            self._spin.setValue(low + (high - low) * position / 1000)

    def _from_spin(self, value: float) -> None:
        low, high = self._spin.minimum(), self._spin.maximum()
        self._slider.setValue(round(1000 * (value - low) / (high - low)) if high > low else 0)
        self.valueChanged.emit(value)

    value = QtCore.Property(float, lambda self: self._spin.value(), lambda self, value: self._spin.setValue(value))
    minimum = QtCore.Property(float, lambda self: self._spin.minimum(), lambda self, low: self._spin.setMinimum(low))
    maximum = QtCore.Property(float, lambda self: self._spin.maximum(), lambda self, high: self._spin.setMaximum(high))
    singleStep = QtCore.Property(
        float, lambda self: self._spin.singleStep(), lambda self, step: self._spin.setSingleStep(step)
    )
    decimals = QtCore.Property(
        int, lambda self: self._spin.decimals(), lambda self, decimals: self._spin.setDecimals(decimals)
    )
    suffix = QtCore.Property(str, lambda self: self._spin.suffix(), lambda self, suffix: self._spin.setSuffix(suffix))

    def setValue(self, value: float) -> None:
        self._spin.setValue(value)


@register
class ctkPathLineEdit(_Widget):
    """A line for a path with a button that opens a file dialogue. ``currentPathChanged(QString)``."""

    Files, Dirs = 0x002, 0x001
    currentPathChanged = QtCore.Signal(str)

    filters, setFilters = _stored("filters", int, 0x002)
    nameFilters, setNameFilters = _stored("nameFilters", "QStringList", [])
    settingKey, setSettingKey = _stored("settingKey", str, "")
    showHistoryButton, setShowHistoryButton = _stored("showHistoryButton", bool, True)
    showBrowseButton, setShowBrowseButton = _stored("showBrowseButton", bool, True, "_show_button")

    def __init__(self, parent: Any = None) -> None:
        super().__init__(parent)
        row = QtWidgets.QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        self._line = QtWidgets.QLineEdit()
        self._button = QtWidgets.QToolButton()
        self._button.setText("...")
        row.addWidget(self._line)
        row.addWidget(self._button)
        self.setFocusProxy(self._line)
        self._line.textChanged.connect(self.currentPathChanged)
        self._button.clicked.connect(self.browse)

    currentPath = QtCore.Property(
        str, lambda self: self._line.text(), lambda self, path: self._line.setText(path), notify=currentPathChanged
    )

    def setCurrentPath(self, path: str) -> None:
        self._line.setText(str(path))

    def addCurrentPathToHistory(self) -> None:
        """The emulation keeps no history."""

    def browse(self) -> None:
        dialogue = QtWidgets.QFileDialog
        if self.filters & self.Dirs and not self.filters & self.Files:
            path = dialogue.getExistingDirectory(self, "Choose a folder", self._line.text())
        else:
            path, _ = dialogue.getOpenFileName(self, "Choose a file", self._line.text(), ";;".join(self.nameFilters))
        if path:
            self._line.setText(path)

    def _show_button(self) -> None:
        self._button.setVisible(self.showBrowseButton)


@register
class ctkDirectoryButton(emulate(QtWidgets.QPushButton)):
    """A button that shows a folder and asks for another. ``directoryChanged(QString)``."""

    directoryChanged = QtCore.Signal(str)
    directory, setDirectory = _stored("directory", str, "", "_changed")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        QtWidgets.QPushButton.clicked.__get__(self, type(self)).connect(self._ask)

    def _changed(self) -> None:
        self.setText(self.directory)
        self.directoryChanged.emit(self.directory)

    def _ask(self) -> None:
        found = QtWidgets.QFileDialog.getExistingDirectory(self, "Choose a folder", self.directory)
        if found:
            self.setDirectory(found)


# qMRML


@register
class qMRMLWidget(_Widget):
    """A widget that knows the scene."""

    mrmlSceneChanged = QtCore.Signal(object)
    signal_aliases: ClassVar[Aliases] = {"mrmlSceneChanged(vtkMRMLScene*)": ("mrmlSceneChanged", None)}

    def setMRMLScene(self, scene: Any) -> None:
        self._scene = scene
        for child in QtWidgets.QWidget.children(self):
            if isinstance(child, qMRMLWidget | qMRMLNodeComboBox):
                child.setMRMLScene(scene)
        self.mrmlSceneChanged.emit(scene)

    def mrmlScene(self) -> Any:
        return self.__dict__.get("_scene")


@register
class qMRMLNodeComboBox(_Widget):
    """The scene's nodes of some types to choose from, kept up to date by the scene's events.

    Without ``noneEnabled`` there is always a current node while there is any, as in Slicer.
    """

    currentNodeChanged = QtCore.Signal(object)
    currentNodeIDChanged = QtCore.Signal(str)
    nodeActivated = QtCore.Signal(object)
    nodeAdded = QtCore.Signal(object)
    nodeAddedByUser = QtCore.Signal(object)
    nodeAboutToBeRemoved = QtCore.Signal(object)
    signal_aliases: ClassVar[Aliases] = {
        "currentNodeChanged(vtkMRMLNode*)": ("currentNodeChanged", None),
        "currentNodeChanged(bool)": ("currentNodeChanged", lambda node: node is not None),
        "nodeActivated(vtkMRMLNode*)": ("nodeActivated", None),
        "nodeAdded(vtkMRMLNode*)": ("nodeAdded", None),
        "nodeAddedByUser(vtkMRMLNode*)": ("nodeAddedByUser", None),
        "nodeAboutToBeRemoved(vtkMRMLNode*)": ("nodeAboutToBeRemoved", None),
    }

    nodeTypes, setNodeTypes = _stored("nodeTypes", "QStringList", [], "_refresh")
    hideChildNodeTypes, setHideChildNodeTypes = _stored("hideChildNodeTypes", "QStringList", [], "_refresh")
    showChildNodeTypes, setShowChildNodeTypes = _stored("showChildNodeTypes", bool, True, "_refresh")
    showHidden, setShowHidden = _stored("showHidden", bool, False, "_refresh")
    noneEnabled, setNoneEnabled = _stored("noneEnabled", bool, False, "_refresh")
    noneDisplay, setNoneDisplay = _stored("noneDisplay", str, "None", "_refresh")
    addEnabled, setAddEnabled = _stored("addEnabled", bool, True, "_refresh")
    removeEnabled, setRemoveEnabled = _stored("removeEnabled", bool, True, "_refresh")
    renameEnabled, setRenameEnabled = _stored("renameEnabled", bool, False, "_refresh")
    editEnabled, setEditEnabled = _stored("editEnabled", bool, False)
    selectNodeUponCreation, setSelectNodeUponCreation = _stored("selectNodeUponCreation", bool, True)
    baseName, setBaseName = _stored("baseName", str, "")

    def __init__(self, parent: Any = None) -> None:
        super().__init__(parent)
        self._scene: Any = None
        self._current: Any = None
        self._nodes: list[Any] = []
        self._attributes: list[tuple[str, str, str | None]] = []
        self._observed: list[tuple[Any, int]] = []
        self._observed_nodes: list[tuple[Any, int]] = []
        row = QtWidgets.QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        self._box = QtWidgets.QComboBox()
        self._box.setSizePolicy(QtWidgets.QSizePolicy.Policy.Expanding, QtWidgets.QSizePolicy.Policy.Fixed)
        self._box.setSizeAdjustPolicy(QtWidgets.QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self._box.setMinimumContentsLength(12)
        row.addWidget(self._box)
        self.setFocusProxy(self._box)
        self._box.activated.connect(self._chosen)
        observers = (self._observed, self._observed_nodes)
        self.destroyed.connect(lambda: [_unobserve(one) for one in observers])

    # The scene

    def setMRMLScene(self, scene: Any) -> None:
        _unobserve(self._observed)
        self._scene = scene
        if scene is not None:
            kind = slicer.vtkMRMLScene
            for event in (kind.EndBatchProcessEvent, kind.EndCloseEvent, kind.EndImportEvent, kind.EndRestoreEvent):
                self._observe(event, self._on_scene)
            self._observe(kind.NodeAddedEvent, self._on_added)
            self._observe(kind.NodeAboutToBeRemovedEvent, self._on_leaving)
            self._observe(kind.NodeRemovedEvent, self._on_scene)
        self._refresh()

    def mrmlScene(self) -> Any:
        return self._scene

    def _observe(self, event: int, method: Callable[..., None]) -> None:
        self._observed.append((self._scene, self._scene.AddObserver(event, method)))

    @vtk.calldata_type(vtk.VTK_OBJECT)
    def _on_added(self, scene: Any, event: str, node: Any) -> None:
        if not isValid(self) or self._scene.IsBatchProcessing():
            return
        if self._shows(node):
            self._refresh()
            self.nodeAdded.emit(node)

    @vtk.calldata_type(vtk.VTK_OBJECT)
    def _on_leaving(self, scene: Any, event: str, node: Any) -> None:
        if isValid(self) and node in self._nodes:
            self.nodeAboutToBeRemoved.emit(node)

    def _on_scene(self, *_: Any) -> None:
        if isValid(self) and not self._scene.IsBatchProcessing():
            self._refresh()

    def _on_node(self, node: Any, event: str) -> None:
        if not isValid(self) or node not in self._nodes:
            return
        row = self._nodes.index(node) + self.noneEnabled
        if self._box.itemText(row) != node.GetName():
            self._box.setItemText(row, node.GetName() or "")

    # What is offered

    def addAttribute(self, kind: str, attribute: str, value: Any = None) -> None:
        self._attributes.append((kind, attribute, None if value is None else str(value)))
        self._refresh()

    def removeAttribute(self, kind: str, attribute: str) -> None:
        self._attributes = [one for one in self._attributes if one[:2] != (kind, attribute)]
        self._refresh()

    def _shows(self, node: Any) -> bool:
        types = list(self.nodeTypes)
        if self.showChildNodeTypes:
            fits = any(node.IsA(one) for one in types)
        else:
            fits = node.GetClassName() in types
        if not fits or any(node.IsA(one) for one in self.hideChildNodeTypes):
            return False
        if node.GetHideFromEditors() and not self.showHidden:
            return False
        for kind, attribute, value in self._attributes:
            found = node.GetAttribute(attribute)
            if node.IsA(kind) and (found is None or (value is not None and found != value)):
                return False
        return True

    def _refresh(self) -> None:
        _unobserve(self._observed_nodes)
        scene = self._scene
        every = [scene.GetNthNode(i) for i in range(scene.GetNumberOfNodes())] if scene is not None else []
        self._nodes = [node for node in every if self._shows(node)]
        for node in self._nodes:
            self._observed_nodes.append((node, node.AddObserver(vtk.vtkCommand.ModifiedEvent, self._on_node)))
        self._box.blockSignals(True)
        self._box.clear()
        if self.noneEnabled:
            self._box.addItem(self.noneDisplay)
        for node in self._nodes:
            self._box.addItem(node.GetName() or "")
        self._extras: list[tuple[str, Callable[[], None]]] = []
        if self.addEnabled:
            for kind in self.nodeTypes:
                self._extras.append((f"Create new {_spoken(kind)}", partial(self.addNode, kind)))
        if self.renameEnabled and self._current is not None:
            self._extras.append((f"Rename current {_spoken(self._current.GetClassName())}", self.renameCurrentNode))
        if self.removeEnabled and self._current is not None:
            self._extras.append((f"Delete current {_spoken(self._current.GetClassName())}", self.removeCurrentNode))
        if self._extras:
            self._box.insertSeparator(self._box.count())
            for text, _ in self._extras:
                self._box.addItem(text)
        self._box.blockSignals(False)
        current = self._current if self._current in self._nodes else None
        if current is None and not self.noneEnabled and self._nodes:
            current = self._nodes[0]
        self._set(current)

    def _set(self, node: Any) -> None:
        changed = node is not self._current
        self._current = node
        if node is not None:
            row = self._nodes.index(node) + self.noneEnabled
        else:
            row = 0 if self.noneEnabled else -1
        self._box.setCurrentIndex(row)
        if changed:
            self.currentNodeChanged.emit(node)
            self.currentNodeIDChanged.emit(node.GetID() if node is not None else "")

    def _chosen(self, row: int) -> None:
        first_extra = self._box.count() - len(self._extras)
        if row >= first_extra:
            self._set(self._current)
            self._extras[row - first_extra][1]()
            return
        row -= self.noneEnabled
        node = self._nodes[row] if 0 <= row < len(self._nodes) else None
        self._set(node)
        self.nodeActivated.emit(node)

    # The current node

    def currentNode(self) -> Any:
        return self._current

    def setCurrentNode(self, node: Any) -> None:
        if isinstance(node, str):
            node = self._scene.GetNodeByID(node) if self._scene is not None else None
        self._set(node if node in self._nodes else None)

    def setCurrentNodeID(self, node_id: str | None) -> None:
        self.setCurrentNode(node_id or "")

    def _current_id(self) -> str:
        return self._current.GetID() if self._current is not None else ""

    currentNodeID = QtCore.Property(str, _current_id, setCurrentNodeID, notify=currentNodeIDChanged)
    currentNodeId = QtCore.Property(str, _current_id, setCurrentNodeID)

    def setCurrentNodeIndex(self, index: int) -> None:
        self._set(self._nodes[index] if 0 <= index < len(self._nodes) else None)

    def nodeCount(self) -> int:
        return len(self._nodes)

    def nodeFromIndex(self, index: int) -> Any:
        return self._nodes[index] if 0 <= index < len(self._nodes) else None

    def nodes(self) -> list[Any]:
        return list(self._nodes)

    def addNode(self, kind: str | None = None) -> Any:
        node_class = kind or self.nodeTypes[0]
        name = self._scene.GenerateUniqueName(self.baseName or _spoken(node_class))
        node = self._scene.AddNewNodeByClass(node_class, name)
        if self.selectNodeUponCreation:
            self.setCurrentNode(node)
        self.nodeAddedByUser.emit(node)
        return node

    def removeCurrentNode(self) -> None:
        if self._current is not None:
            self._scene.RemoveNode(self._current)

    def renameCurrentNode(self) -> None:
        if self._current is None:
            return
        name, accepted = QtWidgets.QInputDialog.getText(self, "Rename", "New name:", text=self._current.GetName())
        if accepted:
            self._current.SetName(name)


def _unobserve(observed: list[tuple[Any, int]]) -> None:
    for subject, tag in observed:
        subject.RemoveObserver(tag)
    observed.clear()


def _spoken(node_class: str) -> str:
    return node_class.removeprefix("vtkMRML").removesuffix("Node")
