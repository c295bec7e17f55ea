"""The panel's Engine section: where the models run, on what, and what is to be done when they do not.

The widgets' state becomes an :class:`EngineSettings`, a plain value; the worker thread that connects reads that and
nothing of Qt. Nothing is started, installed or asked over a network before the user asks a question, loads a radiograph
with a local engine, or presses one of the buttons here.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import slicer

from xflow_core.domain.errors import XFlowError
from xflow_core.service.child import default_log
from xflow_core.service.local import Progress

from . import engine_setup, remembered
from .background import Background
from .colours import ink
from .engine_setup import EngineChoice
from .managed_environment import TorchBuild, XFlowSource, make_environment, managed_folder, torch_hint
from .pythons import find_pythons
from .reasons import reason_of
from .slicer_packages import install_in_slicer
from .words import translator

_ = translator(__file__)

PLACES = ("this_computer", "this_slicer", "server")
DEVICES = ("auto", "cpu", "cuda")
TORCH_BUILDS = ("cpu", "any", "cuda")
_SETTING_NAMES = ("engine", "python", "url", "certificate", "keep_token")
_LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")
_LOG_TAIL = 16_000


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is made from; for any thread.

    Attributes:
        environment: the variables that Slicer itself was started with: its own library paths break other Pythons.
        bundle: name or folder of the models, for an engine of this computer; None for its default.
    """

    choice: EngineChoice
    device: str = "auto"
    bundle: str | None = None
    environment: dict[str, str] | None = None

    @property
    def sends_images_away(self) -> bool:
        """Whether an image leaves this computer."""
        return self.choice.kind == "server" and urlsplit(self.choice.url).hostname not in _LOCAL_HOSTS

    def connect(self, watch: Callable[[Progress], None]) -> Any:
        """An engine, in the calling thread, which waits; see :func:`.engine_setup.connect`."""
        bundles = () if self.bundle is None else (self.bundle,)
        return engine_setup.connect(
            self.choice, watch, environment=self.environment, device=self.device, bundles=bundles
        )


def remembered_settings() -> EngineSettings:
    """The settings of the last session; the defaults before the first."""
    device = remembered.read("engine/device", "auto")
    return EngineSettings(
        engine_setup.from_settings(remembered.read_all("engine", _SETTING_NAMES)),
        device if device in DEVICES else "auto",
        remembered.read("engine/bundle") or None,
        _startup_environment(),
    )


def engine_of_settings() -> Any:
    """For scripts: the engine that the settings name, started; waits."""
    engine = remembered_settings().connect(lambda _progress: None)
    start = getattr(engine, "start", None)
    if start is not None:
        start()
    return engine


def _startup_environment() -> dict[str, str] | None:
    startup = getattr(slicer.util, "startupEnvironment", None)
    with contextlib.suppress(Exception):  # only in Slicer itself
        return None if startup is None else dict(startup())
    return None


class EngineSection:
    """The section's widgets.

    Args:
        ui: the panel's widgets by name.
        changed: called when other settings hold, to drop the engine of the old ones.
        ask: ``ask(question, done, failed)`` asks the live engine in its own thread: the panel's worker.
        stop: ends the engine.
    """

    def __init__(
        self,
        ui: Any,
        changed: Callable[[], None],
        ask: Callable[[Callable[[Any], Any], Callable[[Any], None], Callable[[Exception], None]], None],
        stop: Callable[[], None],
    ) -> None:
        self._ui = ui
        self._changed = changed
        self._ask = ask
        self._stop = stop
        self._background = Background("XFlow engine setup")
        self._cancel_install: threading.Event | None = None
        self._log: Path | None = None
        self.settings = remembered_settings()
        self._fill()
        self._show_settings()
        self._connect_widgets()

    def connect(self, watch: Callable[[Progress], None]) -> Any:
        """What the worker connects with; in its thread."""
        return self.settings.connect(watch)

    def poll(self) -> None:
        """Take what came of the section's own work; the panel's timer."""
        self._background.poll()

    def close(self) -> None:
        if self._cancel_install is not None:
            self._cancel_install.set()
        self._background.close()

    def show_state(self, stage: str, message: str) -> None:
        """How the engine is, as the worker says it: in the section's title, which is seen when it is closed, too."""
        words = {
            "none": _("not started"),
            "checking": _("starting"),
            "starting": _("starting"),
            "loading": _("loading"),
            "ready": _("ready"),
            "lost": _("lost"),
            "failed": _("not available"),
        }
        title = _("Engine: {place}, {state}").format(
            place=self._ui.placeCombo.currentText.lower(), state=words.get(stage, stage)
        )
        if self._ui.engineSection.text != title:
            self._ui.engineSection.text = title
        if message:
            self._say(message, "error" if stage in ("lost", "failed") else "")

    def open(self) -> None:
        """Unfold the section, because something here is to be done."""
        self._ui.engineSection.collapsed = False

    # The widgets and the settings.

    def _fill(self) -> None:
        ui = self._ui
        for text in (_("This computer"), _("This Slicer's Python"), _("A server")):
            ui.placeCombo.addItem(text)
        for text in (_("Automatic"), _("CPU"), _("GPU (CUDA)")):
            ui.deviceCombo.addItem(text)
        for text in (_("CPU only (smallest)"), _("What pip chooses"), _("With CUDA (large)")):
            ui.torchCombo.addItem(text)
        ui.bundleCombo.lineEdit().setPlaceholderText(_("the engine's compact models"))
        ui.logView.visible = False
        ui.cancelInstallButton.visible = False
        ui.installLabel.visible = False
        _placeholder(ui.pythonEdit, _("the environment made by this module"))
        _placeholder(ui.sourceEdit, _("pip's index"))
        _placeholder(ui.certificateEdit, _("the system's"))

    def _show_settings(self) -> None:
        ui, choice = self._ui, self.settings.choice
        ui.placeCombo.setCurrentIndex(PLACES.index(choice.kind))
        ui.pythonEdit.currentPath = choice.python
        ui.urlEdit.text = choice.url
        ui.tokenEdit.text = choice.token
        ui.keepTokenCheck.checked = choice.keep_token
        ui.certificateEdit.currentPath = choice.certificate
        ui.deviceCombo.setCurrentIndex(DEVICES.index(self.settings.device))
        ui.bundleCombo.setEditText(self.settings.bundle or "")
        self._show_place()

    def _show_place(self) -> None:
        ui, place = self._ui, PLACES[self._ui.placeCombo.currentIndex]
        for widget in (ui.pythonLabel, ui.pythonEdit, ui.findButton):
            widget.visible = place == "this_computer"
        server = (ui.urlLabel, ui.urlEdit, ui.tokenLabel, ui.tokenEdit, ui.keepTokenCheck)
        for widget in (*server, ui.certificateLabel, ui.certificateEdit):
            widget.visible = place == "server"
        here = (ui.deviceLabel, ui.deviceCombo, ui.bundleLabel, ui.bundleCombo, ui.stopButton, ui.logButton)
        for widget in here:
            widget.visible = place != "server"
        ui.installSection.visible = place != "server"
        ui.testButton.text = _("Test the server") if place == "server" else _("Start and test")
        if place == "server":
            ui.logView.visible = False
        ui.installButton.text = (
            _("Install into Slicer's Python…") if place == "this_slicer" else _("Make the environment…")
        )

    def _connect_widgets(self) -> None:
        ui = self._ui
        ui.placeCombo.connect("currentIndexChanged(int)", lambda _index: self._edited())
        ui.deviceCombo.connect("currentIndexChanged(int)", lambda _index: self._edited())
        ui.bundleCombo.lineEdit().connect("editingFinished()", self._edited)
        ui.pythonEdit.connect("currentPathChanged(QString)", lambda _path: self._edited())
        ui.certificateEdit.connect("currentPathChanged(QString)", lambda _path: self._edited())
        ui.findButton.connect("clicked(bool)", lambda _on: self._find())
        ui.urlEdit.connect("editingFinished()", self._edited)
        ui.tokenEdit.connect("editingFinished()", self._edited)
        ui.keepTokenCheck.connect("toggled(bool)", lambda _on: self._edited())
        ui.testButton.connect("clicked(bool)", lambda _on: self._test())
        ui.stopButton.connect("clicked(bool)", lambda _on: self._stop_engine())
        ui.logButton.connect("clicked(bool)", lambda _on: self._toggle_log())
        ui.installButton.connect("clicked(bool)", lambda _on: self._install())
        ui.cancelInstallButton.connect("clicked(bool)", lambda _on: self._stop_installing())

    def _chosen(self) -> EngineSettings:
        """The settings that the widgets show.

        Raises:
            XFlowError: the address is none.
        """
        ui, place = self._ui, PLACES[self._ui.placeCombo.currentIndex]
        if place == "server":
            choice = EngineChoice.server(
                ui.urlEdit.text,
                ui.tokenEdit.text,
                keep_token=bool(ui.keepTokenCheck.checked),
                certificate=ui.certificateEdit.currentPath.strip(),
            )
        elif place == "this_slicer":
            choice = EngineChoice.this_slicer()
        else:
            choice = EngineChoice.this_computer(ui.pythonEdit.currentPath.strip() or None)
        return EngineSettings(
            choice,
            DEVICES[ui.deviceCombo.currentIndex],
            ui.bundleCombo.currentText.strip() or None,
            self.settings.environment,
        )

    def _edited(self) -> None:
        self._show_place()
        try:
            chosen = self._chosen()
        except XFlowError as problem:
            # An address that is not typed yet is no mistake.
            typed = self._ui.urlEdit.text.strip()
            self._say(str(problem) if typed else _("Type the address of the server."), "error" if typed else "")
            return
        if chosen == self.settings:
            self._say("")
            return
        before, self.settings = self.settings.choice, chosen
        remembered.keep_all("engine", engine_setup.to_settings(chosen.choice))
        remembered.keep("engine/device", chosen.device)
        remembered.keep("engine/bundle", chosen.bundle or "")
        self._say(chosen.choice.caution or "", "warning")
        if chosen.choice.kind == "server" and (chosen.choice.keep_token or before.keep_token):
            try:
                file = engine_setup.store_token(chosen.choice)
            except XFlowError as problem:
                self._say(str(problem), "error")
            else:
                if file is not None and chosen.choice.caution is None:
                    self._say(_("The token is kept in {file}.").format(file=file))
        self._changed()

    # The buttons.

    def _test(self) -> None:
        self._say(_("Asking the engine…"))
        self._ui.testButton.enabled = False
        choice = self.settings.choice
        if choice.kind == "server":
            self._background.start(lambda: engine_setup.test_server(choice), self._tested, self._not_tested)
        else:
            self._ask(lambda engine: engine_setup.describe(engine.capabilities()), self._tested, self._not_tested)

    def _tested(self, info: Any) -> None:
        self._ui.testButton.enabled = True
        self._say("\n".join(info.lines))

    def _not_tested(self, problem: Exception) -> None:
        self._ui.testButton.enabled = self._ui.findButton.enabled = True
        reason = reason_of(problem)
        self._say(str(reason), "error")
        self._offer_installation(reason.kind)

    def _find(self) -> None:
        self._say(_("Looking for Pythons…"))
        self._ui.findButton.enabled = False
        environment = self.settings.environment
        self._background.start(lambda: find_pythons(environment), self._found, self._not_tested)

    def _found(self, pythons: Any) -> None:
        self._ui.findButton.enabled = True
        ready = [python for python in pythons if python.has_engine]
        if ready:
            self._ui.pythonEdit.currentPath = str(ready[0].path)
            self._say("\n".join(python.sentence for python in ready))
        else:
            self._say(_("No Python on this computer has XFlow's engine; see Installation below."), "warning")
            self._ui.installSection.collapsed = False

    def _offer_installation(self, kind: str) -> None:
        if kind in ("not_installed", "no_torch", "wrong_torch", "damaged", "no_python") and (
            self.settings.choice.kind != "server"
        ):
            self._ui.installSection.collapsed = False

    def failed(self, message: str) -> None:
        """A question could not be asked for want of an engine."""
        self._say(message, "error")
        self.open()
        if self.settings.choice.kind != "server":
            self._ui.installSection.collapsed = False

    def _stop_engine(self) -> None:
        self._stop()
        self._say(_("The engine is stopped. The next question starts it again."))

    def _toggle_log(self) -> None:
        view = self._ui.logView
        view.visible = not view.visible
        self._ui.logButton.text = _("Hide log") if view.visible else _("Show log")
        if view.visible:
            view.setPlainText(_tail(self._log or default_log()))
            bar = view.verticalScrollBar()
            bar.setValue(bar.maximum)

    def _install(self) -> None:
        ui = self._ui
        torch = TorchBuild(TORCH_BUILDS[ui.torchCombo.currentIndex], ui.torchIndexEdit.text.strip())
        path = ui.sourceEdit.currentPath.strip()
        try:
            source = XFlowSource.local(path) if path else XFlowSource.index()
        except XFlowError as problem:
            self._say_install(str(problem), "error")
            return
        here = self.settings.choice.kind == "this_slicer"
        where = _("Slicer's own Python") if here else str(managed_folder())
        question = _("Install XFlow's engine and PyTorch into {where}?\n\n{hint}").format(
            where=where, hint=torch_hint(torch.kind)
        )
        if not slicer.util.confirmOkCancelDisplay(question, windowTitle=_("Install the engine")):
            return
        if here:
            try:
                install_in_slicer(source, torch)
            except Exception as problem:  # noqa: BLE001  pip's failures are of many classes
                self._not_installed(problem)
            else:
                self._installed(None)
            return
        cancelled = threading.Event()
        self._cancel_install = cancelled
        ui.installButton.enabled = False
        ui.cancelInstallButton.visible = True
        self._say_install(_("Beginning…"))
        background, environment = self._background, self.settings.environment

        def watch(progress: Any) -> None:
            background.tell(lambda: self._installing(progress))

        background.start(
            lambda: make_environment(
                source=source, torch=torch, watch=watch, cancelled=cancelled, environment=environment
            ),
            self._installed,
            self._not_installed,
        )

    def _installing(self, progress: Any) -> None:
        line = progress.line if len(progress.line) <= 120 else progress.line[:119] + "…"
        self._say_install(f"{progress.step}/{progress.steps}  {progress.doing}\n{line}")

    def _installed(self, _state: Any) -> None:
        self._end_of_installation()
        self._say_install(_("The engine is installed. The next question starts it."))
        self._say("")
        self._changed()

    def _not_installed(self, problem: Exception) -> None:
        self._end_of_installation()
        self._say_install(str(reason_of(problem)), "error")

    def _end_of_installation(self) -> None:
        self._cancel_install = None
        self._ui.installButton.enabled = True
        self._ui.cancelInstallButton.visible = False

    def _stop_installing(self) -> None:
        if self._cancel_install is not None:
            self._cancel_install.set()
            self._say_install(_("Stopping…"))

    def _say(self, text: str, tone: str = "") -> None:
        say(self._ui.engineLabel, text, tone)

    def _say_install(self, text: str, tone: str = "") -> None:
        say(self._ui.installLabel, text, tone)


def say(label: Any, text: str, tone: str = "") -> None:
    """Show ``text`` in a label, or hide the label when there is none; ``tone`` is "", ``warning`` or ``error``.

    A warning has a sign before it, so that colour is not what tells it apart. Long paths may break.
    """
    shown = f"⚠ {text}" if tone and text else text
    shown = shown.replace("/", "/\u200b").replace("\\", "\\\u200b")
    if label.text != shown:
        label.text = shown
    style = f"color: {ink(label.parentWidget(), tone)}" if tone else ""
    if label.styleSheet != style:
        label.styleSheet = style
    if label.visible != bool(text):
        label.visible = bool(text)


def _placeholder(path_edit: Any, text: str) -> None:
    """What an empty path means, in the path's line; CTK has the line in a combo box."""
    for name in ("comboBox", "lineEdit"):
        child = getattr(path_edit, name, None)
        if callable(child):
            inner = child()
            line = inner.lineEdit() if name == "comboBox" else inner
            if line is not None:
                line.setPlaceholderText(text)
            return


def _tail(path: Path) -> str:
    """The last lines of a log."""
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            size = file.tell()
            file.seek(max(0, size - _LOG_TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError as problem:
        return _("There is no log yet ({reason}).").format(reason=problem.strerror or problem)
    return text if size <= _LOG_TAIL else text[text.find("\n") + 1 :]
