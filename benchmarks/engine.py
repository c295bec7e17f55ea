"""How long the engine takes, step by step, and how much memory: one run, one table.

    python -m benchmarks.engine [--bundle compact] [--image FILE] [--threads N] [--repeat N]

Every time is also given as a multiple of one fixed piece of work timed in the same run (numpy sorting four million
numbers), so that figures from two machines, or two loads of one, can be compared. Times are medians of the repeats; the
image is a 2000 x 2000 16-bit DICOM file made from the demo's radiograph unless --image names another.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

GOALS = {
    "import xflow_core.domain": "0.3 s",
    "import xflow_core.export": "0.3 s",
    "read to result": "1 s",
    "mask after a click": "0.1 s",
    "another instruction": "0.3 s",
    "survey of seven findings": "2 s",
    "peak memory": "1200 MB",
}


def timed(work: Callable[[], object], repeat: int) -> float:
    """Median seconds of ``repeat`` calls after one that is not counted."""
    work()
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def python(code: str) -> Callable[[], object]:
    """A fresh interpreter that runs ``code``."""
    return lambda: subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def large_dicom(folder: Path) -> Path:
    """The demo's radiograph as an uncompressed 2000 x 2000 16-bit DICOM file."""
    import pydicom
    from PIL import Image
    from pydicom.data import get_testdata_file
    from pydicom.uid import ExplicitVRLittleEndian

    source = get_testdata_file("RG1_J2KI.dcm", download=False)
    dataset = pydicom.dcmread(source)
    pixels = dataset.pixel_array.astype(np.float32)
    square = np.asarray(Image.fromarray(pixels).resize((2000, 2000), Image.Resampling.BICUBIC))
    dataset.PixelData = np.clip(square, 0, 32767).astype("<u2").tobytes()
    dataset["PixelData"].VR = "OW"
    dataset.Rows = dataset.Columns = 2000
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    path = folder / "large.dcm"
    dataset.save_as(path, enforce_file_format=True)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default="compact")
    parser.add_argument("--image", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()

    rows: list[tuple[str, float]] = []
    numbers = np.random.default_rng(0).random(4_000_000)
    reference = timed(lambda: np.sort(numbers), options.repeat)
    nothing = timed(python("pass"), options.repeat)
    for module in ("xflow_core.domain.trace", "xflow_core.export.files"):
        room = module.rsplit(".", 1)[0]
        rows.append((f"import {room}", timed(python(f"import {module}"), options.repeat) - nothing))

    import torch

    torch.set_num_threads(options.threads)
    from xflow_core.bundles.loading import load_engine
    from xflow_core.domain.findings import FINDINGS
    from xflow_core.domain.instruction import parse_instruction
    from xflow_core.domain.trace import BoxesStep, Click, ClickStep, MaskStep, PresenceStep, StopStep, Trace
    from xflow_core.radiograph.encoded import EncodedRadiograph
    from xflow_core.radiograph.reading import read_radiograph
    from xflow_core.workflow.session import Session, answer

    def ask(image: EncodedRadiograph, text: str) -> Trace:
        (instruction,) = parse_instruction(text)
        return answer(engine, image, instruction)

    with tempfile.TemporaryDirectory() as scratch:
        path = options.image or large_dicom(Path(scratch))
        command = [sys.executable, "-m", "xflow_core.cli", "segment", str(path), "-i", "Segment the opacity"]
        command += ["-o", scratch, "--bundle", options.bundle]
        cold = timed(lambda: subprocess.run(command, check=True, capture_output=True), 2)
        rows.append(("cold start: xflow segment, whole process", cold))
        rows.append(("load the bundle", timed(lambda: load_engine(options.bundle, "cpu"), options.repeat)))
        engine = load_engine(options.bundle, "cpu")
        rows.append(("read", timed(lambda: read_radiograph(path), options.repeat)))
        radiograph = read_radiograph(path)
        rows.append(("guards and encode", timed(lambda: engine.admit(radiograph, accept_image=True), options.repeat)))
        rows.append(
            (
                "read to result",
                timed(
                    lambda: ask(engine.admit(read_radiograph(path), accept_image=True), "Segment the opacity"),
                    options.repeat,
                ),
            )
        )
        image = engine.admit(radiograph, accept_image=True)
        names = ("first verdict", "mask", "mask after a click", "policy: click or stop")
        steps: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(options.repeat):
            (instruction,) = parse_instruction("Segment the opacity")
            session = Session(engine, image, instruction)
            until = 0.0
            for step in session.run():
                until += step.seconds
                if isinstance(step, PresenceStep):
                    steps["first verdict"].append(until)
                elif isinstance(step, MaskStep):
                    # The boxes' masks are made in one call, timed with the first of them.
                    steps["mask"].append(step.seconds)
            # The policy may make no click of its own: one of a user's, in the middle of the first box.
            k = next(k for k, step in enumerate(session.steps) if isinstance(step, StopStep))
            boxed = next(step for step in session.steps if isinstance(step, BoxesStep)).boxes[0]
            turn = 1 + sum(isinstance(s, ClickStep) and s.component == boxed.component for s in session.steps[:k])
            click = Click("positive", boxed.box.centre)
            clicked = session.replace(k, ClickStep(component=boxed.component, turn=turn, click=click))
            after = clicked.run()
            steps["mask after a click"].append(next(after).seconds)
            steps["policy: click or stop"].append(next(after).seconds)
        boxes = sum(isinstance(step, MaskStep) and step.turn == 0 for step in session.steps)
        for name, seconds in steps.items():
            if seconds:
                rows.append((f"{name} ({boxes} components)" if name == "mask" else name, statistics.fmean(seconds)))
        rows.append(("another instruction", timed(lambda: ask(image, "Segment the consolidation"), options.repeat)))
        rows.append(
            (
                "survey of seven findings",
                timed(lambda: [ask(image, f"Segment the {finding}") for finding in FINDINGS], options.repeat),
            )
        )

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    size = radiograph.record.size
    print(f"\n{path.name}, {size[1]} x {size[0]}; bundle {engine.identity.name} {engine.identity.version};", end=" ")
    print(f"{options.threads} threads; reference work {reference:.3f} s\n")
    print(f"{'what':44} {'seconds':>9} {'x reference':>12} {'goal':>9}")
    for name, value in rows:
        print(f"{name:44} {value:9.3f} {value / reference:12.2f} {GOALS.get(name, ''):>9}")
    print(f"{'peak memory':44} {peak:6.0f} MB {'':12} {GOALS['peak memory']:>9}")


if __name__ == "__main__":
    main()
