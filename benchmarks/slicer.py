"""How quickly the Slicer module answers its user, and whether it ever keeps him waiting: one run, one table.

    python -m benchmarks.slicer [--image FILE] [--repeat N]

The module runs in the tests' host: MRML, Qt and VTK are real, 3D Slicer's application is emulated, keys and clicks are
Qt's own. The engine is a real ``xflow serve`` with the compact bundle. Times begin with the key and end when the step
is in the table (or, for stepping, in the scene, too); medians of the repeats. "UI thread, longest call" is the longest
time that any one event kept the user interface over all that is measured here; on a busy machine the wait for a
processor is in it, and the processor time beside it says what the call cost. VTK's drawing is left out of both and
given apart: without a graphics card the processor does it. On Linux without a display it starts an Xvfb of its own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

GOALS = {
    "Enter to the first step": "1 s",
    "Enter to the mask": "3 s",
    "one step back or forth": "0.05 s",
    "UI thread, longest call": "0.05 s",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()

    from tests.slicer_host.display import ensure_display

    missing = ensure_display()
    if missing is not None:
        print(f"The Slicer module was not measured: {missing}.", file=sys.stderr)
        return 1
    numbers = np.random.default_rng(0).random(4_000_000)
    reference = statistics.median(timed(lambda: np.sort(numbers)) for _ in range(5))
    rows = measured(options.image or demo_image(), options.repeat)
    print(f"\nreference work {reference:.3f} s\n")
    print(f"{'what':44} {'seconds':>9} {'x reference':>12} {'goal':>9}")
    for name, seconds in rows:
        print(f"{name:44} {seconds:9.3f} {seconds / reference:12.2f} {GOALS.get(name, ''):>9}")
    return 0


def demo_image() -> Path:
    from pydicom.data import get_testdata_file

    return Path(get_testdata_file("RG1_J2KI.dcm", download=False))


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measured(image: Path, repeat: int) -> list[tuple[str, float]]:
    """The rows of the table: what, and seconds."""
    from tests.slicer_host import boot

    boot(qt=True)
    import slicer

    from tests.slicer_host.viewer import Viewer
    from tests.xflow_slicer.working_panel import WorkingPanel, use_engine

    use_engine()
    rows: list[tuple[str, float]] = []
    viewer: Any = None

    def opened() -> None:
        nonlocal viewer
        viewer = Viewer()
        viewer.show()

    rows.append(("open the module", timed(opened)))
    working = WorkingPanel(viewer)
    try:
        rows.append(("start the engine, send and check an image", timed(lambda: working.load(image))))
        viewer.watch.reset()
        asked = [question(working) for _ in range(repeat)]
        for place, name in enumerate(("the first step", "the mask", "the result")):
            rows.append((f"Enter to {name}", statistics.median(times[place] for times in asked)))
        slicer.app.pauseRender()
        stepped = scrubbed(working)
        slicer.app.resumeRender()
        rows.append(("one step back or forth", statistics.median(stepped)))
        rows.append(("one step back or forth, the longest", max(stepped)))
        rows.append(("one step back or forth, with VTK's drawing", statistics.median(scrubbed(working))))
        rows.append(("replay to the first new step", statistics.median(replay(working) for _ in range(repeat))))
        with tempfile.TemporaryDirectory() as folder:
            rows.append(("export", timed(lambda: export(working, Path(folder)))))
        held = viewer.watch.held
        rows.append(("UI thread, longest call", viewer.watch.longest_call))
        rows.append(("UI thread, most processor time of a call", max((one.processor for one in held), default=0.0)))
        rows.append(("VTK's longest drawing", max((one.drawing for one in held), default=0.0)))
        print(f"\nThe longest call: {viewer.watch.longest_call_event}.")
    finally:
        rows.append(("take the module down", timed(viewer.close)))
    return rows


def question(working: Any) -> tuple[float, float, float]:
    """Type a question and press Enter; seconds to the first step, the first mask and the result."""
    working.type_question("Segment the opacity")
    branches = working.ui.branchCombo.count if working.ui.answerCombo.count else 0
    began = time.perf_counter()
    working.enter()

    def after(holds: Callable[[list[str]], bool]) -> float:
        working.until(
            lambda: working.ui.branchCombo.count > branches and holds(working.steps()), 120, "a step of the answer"
        )
        return time.perf_counter() - began

    first = after(bool)
    mask = after(lambda steps: any("mask" in text for text in steps))
    result = after(lambda steps: bool(steps) and steps[-1].startswith("Result"))
    working.finish()
    return first, mask, result


def scrubbed(working: Any) -> list[float]:
    """Step to the first step and back to the last; seconds for each key until the scene shows its step."""
    keys = [key for key in "[]" for _ in working.steps()]
    return [timed(lambda key=key: working.key(key)) for key in keys]  # type: ignore[misc]


def replay(working: Any) -> float:
    """Flip a verdict and replay; seconds from the key to the first step that is new."""
    working.select("Left lung: ")
    working.click("flipButton")
    branches = working.ui.branchCombo.count
    began = time.perf_counter()
    working.key("Ctrl+Return")
    working.until(
        lambda: working.ui.branchCombo.count > branches and len(working.rows()) > 3, 120, "the first new step"
    )
    seconds = time.perf_counter() - began
    working.finish()
    return seconds


def export(working: Any, folder: Path) -> None:
    working.ui.exportSection.collapsed = False
    working.ui.databaseCheck.checked = False
    working.ui.exportFolderEdit.currentPath = str(folder)
    working.click("exportButton")
    working.until(lambda: bool(working.ui.exportButton.enabled), 120, "the export to end")
    working.ui.exportSection.collapsed = True


if __name__ == "__main__":
    sys.exit(main())
