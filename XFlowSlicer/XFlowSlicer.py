"""XFlow in 3D Slicer: ask a chest radiograph a question, and correct any step of the answer. Not for clinical use.

The classes that Slicer looks for in a scripted module, and no more; the work is done in ``XFlowSlicerLib``.
"""

from __future__ import annotations

import sys
from typing import Any

import slicer
import vtk
from slicer.i18n import tr as _
from slicer.i18n import translate
from slicer.ScriptedLoadableModule import (
    ScriptedLoadableModule,
    ScriptedLoadableModuleLogic,
    ScriptedLoadableModuleTest,
    ScriptedLoadableModuleWidget,
)
from slicer.util import VTKObservationMixin


class XFlowSlicer(ScriptedLoadableModule):
    """What the module list shows."""

    def __init__(self, parent: Any) -> None:
        ScriptedLoadableModule.__init__(self, parent)
        parent.title = _("XFlow")
        parent.categories = [translate("qSlicerAbstractCoreModule", "Segmentation")]
        parent.dependencies = ["Markups", "Segmentations", "Terminologies", "Volumes"]
        parent.contributors = ["The XFlow developers"]
        parent.helpText = _(
            "Ask a frontal chest radiograph a question, such as “Segment the effusion in the left lung”. The answer "
            "comes step by step: the lungs, a verdict for each, boxes, masks and clicks. Select a step to see the "
            "image as it stood then, change it, and replay what follows. Research software, not for clinical use."
        )
        parent.acknowledgementText = _(
            "XFlow implements “XFlow: A Workflow Model for Instruction-Guided Lesion Segmentation in Chest X-rays” "
            "(arXiv 2609.34513). Apache License 2.0."
        )


class XFlowSlicerWidget(ScriptedLoadableModuleWidget, VTKObservationMixin):
    """The module's panel, as Slicer makes it, shows it and takes it down."""

    def __init__(self, parent: Any = None) -> None:
        ScriptedLoadableModuleWidget.__init__(self, parent)
        VTKObservationMixin.__init__(self)
        self.panel: Any = None

    def setup(self) -> None:
        ScriptedLoadableModuleWidget.setup(self)
        from XFlowSlicerLib.panel import Panel

        root = slicer.util.loadUI(self.resourcePath("UI/XFlowSlicer.ui"))
        self.layout.addWidget(root)
        self.ui = slicer.util.childWidgetVariables(root)
        self.logic = XFlowSlicerLogic()
        self.panel = Panel(root, self.ui)
        scene = slicer.mrmlScene
        self.addObserver(scene, scene.StartCloseEvent, self.onSceneStartClose)
        self.addObserver(scene, scene.EndCloseEvent, self.onSceneEndClose)
        self.addObserver(scene, scene.EndImportEvent, self.onSceneEndImport)
        self.addObserver(scene, scene.StartSaveEvent, self.onSceneStartSave)
        self.addObserver(scene, scene.NodeAddedEvent, self.onNodeAdded)
        self.addObserver(scene, scene.NodeAboutToBeRemovedEvent, self.onNodeAboutToBeRemoved)

    def cleanup(self) -> None:
        self.removeObservers()
        if self.panel is not None:
            self.panel.close()
            self.panel = None

    def enter(self) -> None:
        if self.panel is not None:
            self.panel.enter()

    def exit(self) -> None:
        if self.panel is not None:
            self.panel.exit()

    def onSceneStartClose(self, caller: Any, event: Any) -> None:
        self.panel.scene_closing()

    def onSceneEndClose(self, caller: Any, event: Any) -> None:
        self.panel.scene_closed()

    def onSceneEndImport(self, caller: Any, event: Any) -> None:
        self.panel.scene_imported()

    def onSceneStartSave(self, caller: Any, event: Any) -> None:
        self.panel.scene_saving()

    @vtk.calldata_type(vtk.VTK_OBJECT)
    def onNodeAdded(self, caller: Any, event: Any, node: Any) -> None:
        self.panel.node_added(node)

    @vtk.calldata_type(vtk.VTK_OBJECT)
    def onNodeAboutToBeRemoved(self, caller: Any, event: Any, node: Any) -> None:
        self.panel.node_removed(node)

    def onReload(self) -> None:
        """The developer's button: load the library's files anew, too."""
        self.cleanup()
        for name in [name for name in sys.modules if name.split(".")[0] == "XFlowSlicerLib"]:
            del sys.modules[name]
        ScriptedLoadableModuleWidget.onReload(self)


class XFlowSlicerLogic(ScriptedLoadableModuleLogic):
    """XFlow for scripts: no panel, and the call waits for the answer.

    >>> engine = XFlowSlicerLogic().engine()                                            # doctest: +SKIP
    >>> XFlowSlicerLogic().segment(slicer.util.getNode("RG1"), "Segment the opacity", engine)   # doctest: +SKIP
    """

    @staticmethod
    def engine() -> Any:
        """The engine that the module's settings name, running."""
        from XFlowSlicerLib.engine_section import engine_of_settings

        return engine_of_settings()

    @staticmethod
    def segment(volume: Any, instruction: str, engine: Any) -> tuple[Any, ...]:
        """Ask, wait, and put the results into the scene; the traces (``xflow_core.domain.trace.Trace``).

        Raises:
            XFlowError: one sentence that says what to do.
        """
        from XFlowSlicerLib import segments, volumes

        image = volumes.engine_image(volume)
        traces = engine.run(engine.upload(image.source), instruction).finish()
        results = segments.RadiographSegments(volume, image.frame)
        for trace in traces:
            results.write(trace)
        results.close()
        return tuple(traces)


class XFlowSlicerTest(ScriptedLoadableModuleTest):
    """The module's self-test, for the "Reload and Test" button and Slicer's test runner.

    It needs no engine and no network: a phantom radiograph is loaded, a question is understood, an answer that was made
    beforehand is shown step by step, written to the scene, saved with it and read back.
    """

    def setUp(self) -> None:
        slicer.mrmlScene.Clear()

    def runTest(self) -> None:
        from XFlowSlicerLib.self_test import STATEMENTS

        for statement in STATEMENTS:
            self.setUp()
            self.delayDisplay(_("Testing: {statement}").format(statement=statement.__doc__))
            statement()
        slicer.mrmlScene.Clear()
        self.delayDisplay(_("All tests passed."))
