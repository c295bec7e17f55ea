"""Emulation of PythonQt's modules ``qt`` and ``ctk`` over qtpy (PySide6). See :func:`install`.

What a script sees in Slicer, and here:

- A property is an attribute (``button.text``, ``combo.currentIndex = 2``); setters and other methods are called.
- ``connect("clicked(bool)", slot)`` takes a C++ signature. Arguments that the slot has no room for are cut off. An
  unknown signal returns False. ``connect("clicked()", receiver, "hide()")`` connects two Qt objects.
- An exception in a slot is printed, not raised. Here it is kept, too: see :mod:`tests.slicer_host.swallowed`.
- ``name`` is ``objectName``; ``className()``, ``delete()``; dynamic properties can be read as attributes.
- A new attribute on an object that no Python class derives is an AttributeError.

Known gap: objects that Qt makes for itself (a table's header, a spin box's line edit) are PySide's own; of the above
they have ``connect``, ``disconnect``, ``delete``, ``className`` and ``name`` when reached through the methods in
``_GIVES_OBJECTS``. The four properties in ``_VIRTUAL`` can be set like any other, but are read by calling them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, ClassVar

from qtpy import QtCore, QtGui, QtNetwork, QtSvg, QtUiTools, QtWidgets

from tests.slicer_host import swallowed

_SOURCES = (QtCore, QtGui, QtWidgets, QtNetwork, QtSvg, QtUiTools)
_GIVES_OBJECTS = (
    *("actions", "addAction", "addMenu", "button", "children", "completer", "findChild", "findChildren", "focusWidget"),
    *("header", "horizontalHeader", "horizontalScrollBar", "itemAt", "layout", "lineEdit", "menu", "model", "parent"),
    *("parentWidget", "popup", "selectionModel", "sender", "tabBar", "topLevelWidgets", "verticalHeader"),
    *("verticalScrollBar", "view", "viewport", "widget", "window"),
)
# Properties whose getter Qt calls as a virtual function: an attribute of that name would be taken for its override.
_VIRTUAL = ("sizeHint", "minimumSizeHint", "spacing", "duration")
_classes: dict[type, type] = {}


class _Property:
    """A Qt property as PythonQt shows it: a value on an instance; on the class, whatever has that name there."""

    def __init__(self, name: str, writable: bool, on_class: Any) -> None:
        self._name = name
        self._writable = writable
        self._on_class = on_class

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self._on_class
        return QtCore.QObject.property(instance, self._name)

    def __set__(self, instance: Any, value: Any) -> None:
        if not self._writable:
            raise AttributeError(f"Property '{self._name}' of type '{type(instance).__name__}' is not writable")
        if not QtCore.QObject.setProperty(instance, self._name, value):
            raise TypeError(f"Property '{self._name}' of {type(instance).__name__} cannot be {value!r}")


# C++ signatures of signals whose PySide name or argument types differ: signature -> (signal, conversion of arguments).
Aliases = dict[str, tuple[str, Callable[[Any], Any] | None]]


class PythonQtObject:
    """What PythonQt adds to every QObject."""

    signal_aliases: ClassVar[Aliases] = {}

    def __init_subclass__(cls, **named: Any) -> None:
        # PySide looks for a class's own connect and disconnect only, and finds QObject's static ones otherwise.
        super().__init_subclass__(**named)
        for method in ("connect", "disconnect"):
            if method not in vars(cls):
                setattr(cls, method, vars(PythonQtObject)[method])

    def connect(self, signal: str, slot: Any, method: str | None = None) -> bool:
        return _connect(self, signal, slot, method)

    def disconnect(self, signal: str, slot: Any = None, method: str | None = None) -> bool:
        return _disconnect(self, signal, slot, method)

    def delete(self) -> None:
        _delete(self)

    def className(self) -> str:
        return _class_name(self)

    @property
    def name(self) -> str:
        return QtCore.QObject.objectName(self)

    @name.setter
    def name(self, value: str) -> None:
        QtCore.QObject.setObjectName(self, value)

    def __setattr__(self, name: str, value: Any) -> None:
        kind = type(self)
        if _Loading.now and not name.startswith("_") and isinstance(value, QtCore.QObject):
            return
        if name in _VIRTUAL and QtCore.QObject.setProperty(self, name, value):
            return
        if not name.startswith("_") and kind.__dict__.get("_emulates") is not None:
            known = inspect.getattr_static(kind, name, None)
            if known is None:
                raise AttributeError(
                    f"'{name}' does not exist on {kind.__name__} and creating new attributes on C++ objects is not "
                    "allowed"
                )
            if not (hasattr(type(known), "__set__") or isinstance(known, QtCore.Property)):
                raise AttributeError(f"Slot '{name}' can not be overwritten on {kind.__name__}")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name.encode() in QtCore.QObject.dynamicPropertyNames(self):
            return QtCore.QObject.property(self, name)
        raise AttributeError(f"{type(self).__name__} has no attribute named '{name}'")


def _connect(sender: Any, signal: str, slot: Any, method: str | None = None) -> bool:
    if method is not None:
        slot = getattr(slot, method.partition("(")[0])
    signature = _signature(signal)
    alias, convert = getattr(sender, "signal_aliases", {}).get(signature, (None, None))
    if alias is None and _meta_object(sender).indexOfSignal(signature) < 0:
        return False
    target = _target(sender, signature, slot, _room(slot) if method is None else _count(method), convert)
    if alias is not None:
        getattr(sender, alias).connect(target)
    else:
        QtCore.QObject.connect(sender, QtCore.SIGNAL(signature), target)
    sender.__dict__.setdefault("_connections", []).append((signature, slot, target))
    return True


def _disconnect(sender: Any, signal: str, slot: Any = None, method: str | None = None) -> bool:
    signature = _signature(signal)
    if method is not None:
        slot = getattr(slot, method.partition("(")[0])
    connections = sender.__dict__.get("_connections", [])
    found = [one for one in connections if one[0] == signature and (slot is None or one[1] == slot)]
    for one in found:
        alias, _ = getattr(sender, "signal_aliases", {}).get(signature, (None, None))
        if alias is not None:
            getattr(sender, alias).disconnect(one[2])
        else:
            QtCore.QObject.disconnect(sender, QtCore.SIGNAL(signature), one[2])
        connections.remove(one)
    return bool(found)


def _delete(subject: Any) -> None:
    from shiboken6 import delete

    delete(subject)


def _class_name(subject: Any) -> str:
    return _meta_object(subject).className()


def _meta_object(subject: Any) -> Any:
    if not isinstance(subject, PythonQtObject) and type(subject).__module__.startswith("PySide6"):
        # PySide lets go of a class's own meta-object with the first object that was asked for it: read it before.
        emulate(type(subject))
    return subject.metaObject()


def _signature(signal: str) -> str:
    normal = QtCore.QMetaObject.normalizedSignature(signal)
    return normal.data().decode() if isinstance(normal, QtCore.QByteArray) else str(normal)


def _room(slot: Any) -> int | None:
    """How many arguments PythonQt gives a slot at most: a function's own count, defaults included; None: all."""
    function = slot.__func__ if isinstance(slot, MethodType) else slot
    if not isinstance(function, FunctionType) or function.__code__.co_flags & inspect.CO_VARARGS:
        return None
    return function.__code__.co_argcount - isinstance(slot, MethodType)


def _target(
    sender: Any, signal: str, slot: Any, room: int | None, convert: Callable[[Any], Any] | None
) -> Callable[..., None]:
    """What is connected in place of the slot: cuts the arguments, keeps an exception."""
    where = f"the slot of {_class_name(sender)}.{signal}"
    declared = _count(signal)

    def call(*arguments: Any) -> None:
        given = tuple(_adopted(one) for one in arguments[:declared])
        if convert is not None:
            given = tuple(convert(one) for one in given)
        try:
            slot(*(given if room is None else given[:room]))
        except Exception as error:  # noqa: BLE001  PythonQt prints whatever a slot raises
            swallowed.record(where, error)

    return call


def _count(signature: str) -> int:
    return len([one for one in signature.partition("(")[2].rstrip(")").split(",") if one.strip()])


def _adopted(value: Any) -> Any:
    """Objects of Qt's own making, given ``connect`` and the like."""
    if isinstance(value, list | tuple):
        for one in value:
            _adopted(one)
    elif isinstance(value, QtCore.QObject) and not isinstance(value, PythonQtObject):
        for name, function in _FOR_ADOPTED.items():
            if name not in value.__dict__:
                value.__dict__[name] = MethodType(function, value)
        value.__dict__["name"] = value.objectName()
    return value


_FOR_ADOPTED = {"connect": _connect, "disconnect": _disconnect, "delete": _delete, "className": _class_name}


def _gives_objects(base: type, name: str) -> Callable[..., Any]:
    method = getattr(base, name)

    def call(*arguments: Any, **named: Any) -> Any:
        return _adopted(method(*arguments, **named))

    call.__name__ = name
    return staticmethod(call) if name == "topLevelWidgets" else call


def emulate(base: type) -> type:
    """The class that stands for a PySide class (QObject or derived) in ``qt``."""
    if base not in _classes:
        meta = base.staticMetaObject
        members: dict[str, Any] = {}
        for index in range(meta.propertyCount()):
            one = meta.property(index)
            if one.name() in _VIRTUAL:
                continue
            members[one.name()] = _Property(one.name(), one.isWritable(), getattr(base, one.name(), None))
        for method in _GIVES_OBJECTS:
            if hasattr(base, method) and method not in members:
                members[method] = _gives_objects(base, method)
        members["_emulates"] = base
        members["__doc__"] = f"{base.__name__} with PythonQt's ways (emulation)."
        _classes[base] = type(base.__name__, (PythonQtObject, base), members)
    return _classes[base]


def register(kind: type) -> type:
    """Let a widget class written in Python (an emulated CTK or qMRML widget) look like a C++ class. A decorator."""
    kind._emulates = kind
    _custom[kind.__name__] = kind
    return kind


_custom: dict[str, type] = {}


class QtModule(ModuleType):
    """``qt`` (or ``PythonQt.QtCore`` and the like): every Q class of Qt, emulated when first asked for."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("Q"):
            raise AttributeError(f"module 'qt' has no attribute '{name}'")
        for source in _SOURCES:
            found = getattr(source, name, None)
            if found is not None:
                break
        else:
            raise AttributeError(f"module 'qt' has no attribute '{name}'")
        if name == "QUiLoader":
            found = _ui_loader()
        elif name not in ("QApplication", "QGuiApplication", "QCoreApplication") and _is_object(found):
            found = emulate(found)
        setattr(self, name, found)
        return found


def _is_object(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, QtCore.QObject)


class _Loading:
    """While a .ui file loads, PySide sets each child as an attribute of the root; PythonQt does not."""

    now = False


def _ui_loader() -> type:
    class QUiLoader(emulate(QtUiTools.QUiLoader)):
        """Builds ``.ui`` files from the emulated classes."""

        def load(self, file: Any, parent: Any = None) -> Any:
            _Loading.now = True
            try:
                return super().load(file, parent)
            finally:
                _Loading.now = False

        def createWidget(self, kind: str, parent: Any = None, name: str = "") -> Any:
            made = _custom.get(kind) or getattr(qt_module(), kind, None)
            if made is None:
                swallowed.record(f"loading a .ui file (widget {name})", RuntimeError(f"this host has no widget {kind}"))
                made = qt_module().QWidget
            widget = made(parent)
            widget.setObjectName(name)
            return widget

        def createLayout(self, kind: str, parent: Any = None, name: str = "") -> Any:
            made = getattr(qt_module(), kind)
            # A layout in a layout gets its parent when it is added.
            layout = made(parent) if isinstance(parent, QtWidgets.QWidget) and parent.layout() is None else made()
            layout.setObjectName(name)
            return layout

    return QUiLoader


class CtkModule(ModuleType):
    """``ctk``: the emulated CTK widgets."""

    def __getattr__(self, name: str) -> Any:
        if name in _custom and name.startswith("ctk"):
            return _custom[name]
        raise AttributeError(f"this host has no {name}")


class HostApplication(emulate(QtWidgets.QApplication)):
    """The one QApplication. A watch, if there is one, delivers its events: ``around(receiver, event, deliver)``."""

    watch: Any = None

    def notify(self, receiver: Any, event: Any) -> bool:
        if HostApplication.watch is None:
            return QtWidgets.QApplication.notify(self, receiver, event)
        return HostApplication.watch.around(receiver, event, self._deliver)

    def _deliver(self, receiver: Any, event: Any) -> bool:
        return QtWidgets.QApplication.notify(self, receiver, event)


def qt_module() -> ModuleType:
    return sys.modules["qt"]


def application() -> HostApplication | None:
    return QtWidgets.QApplication.instance()


def install(settings_file: str | Path) -> HostApplication:
    """Make the QApplication, and ``qt`` and ``ctk`` importable. Idempotent.

    Args:
        settings_file: where ``qt.QSettings()`` lives, the run's own Slicer.ini: ``<folder>/<name>.ini``.
    """
    if "qt" not in sys.modules:
        sys.modules["qt"] = QtModule("qt", __doc__)
        sys.modules["ctk"] = CtkModule("ctk", CtkModule.__doc__)
        folder = Path(settings_file).parent
        QtCore.QSettings.setDefaultFormat(QtCore.QSettings.Format.IniFormat)
        QtCore.QSettings.setPath(QtCore.QSettings.Format.IniFormat, QtCore.QSettings.Scope.UserScope, str(folder))
        QtCore.QCoreApplication.setOrganizationName("NA-MIC")
        QtCore.QCoreApplication.setApplicationName("Slicer")
    if application() is None:
        global _kept
        _kept = HostApplication(["xflow-host"])
        _kept.setStyle("Fusion")
        from tests.slicer_host import widgets  # noqa: F401  registers the CTK and qMRML classes
    return application()


_kept: HostApplication | None = None
