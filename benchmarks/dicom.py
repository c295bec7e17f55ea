"""How long the DICOM results of a large radiograph take to write, and how much memory.

    python -m benchmarks.dicom [--side 3000] [--findings 3] [--repeat 3]

Masks of round lesions in an image of ``side`` x ``side`` pixels; SEG, SR and presentation state are written to disk.
CPU seconds stand beside the wall's, since the goal (1.5 s, 500 MB) is for a core of one's own.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from pydicom.dataset import Dataset
from pydicom.uid import ComputedRadiographyImageStorage

from xflow_core.domain.findings import FINDINGS
from xflow_core.domain.geometry import Box
from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import (
    BoxesStep,
    BundleIdentity,
    ImageRecord,
    LesionBox,
    Mask,
    PresenceStep,
    Result,
    ResultStep,
    Trace,
    Verdict,
)
from xflow_core.export.dicom import write_dicom
from xflow_core.export.dicom_source import SourceInstance, source_instance

GOAL = "1.5 s, 500 MB"
LUNGS = ("right lung", "left lung")


def radiograph(side: int) -> SourceInstance:
    header = Dataset()
    header.SOPClassUID = ComputedRadiographyImageStorage
    header.SOPInstanceUID, header.StudyInstanceUID, header.SeriesInstanceUID = "2.25.1", "2.25.2", "2.25.3"
    header.Modality, header.PhotometricInterpretation, header.SamplesPerPixel = "CR", "MONOCHROME2", 1
    header.Rows = header.Columns = side
    header.BitsAllocated, header.BitsStored, header.HighBit, header.PixelRepresentation = 16, 12, 11, 0
    header.ImagerPixelSpacing = [0.14, 0.14]
    return source_instance(header)


def trace(image: SourceInstance, finding: str, shift: float) -> Trace:
    side = image.size[0]
    rows, columns = np.ogrid[:side, :side]
    mask = np.zeros(image.size, bool)
    for row, column, radius in ((0.4 + shift, 0.27, 0.13), (0.5, 0.73 - shift, 0.07)):
        mask |= (rows - row * side) ** 2 + (columns - column * side) ** 2 < (radius * side) ** 2
    steps = (
        PresenceStep(verdicts=tuple(Verdict(lung, True, 0.9) for lung in LUNGS)),
        BoxesStep(boxes=(LesionBox(0, finding, Box(0.1, 0.2, 0.4, 0.6), "right lung", 0.8),)),
        ResultStep(present=True, mask=Mask.of(mask)),
    )
    return Trace(
        ImageRecord("0" * 64, "dicom", image.size, image.sop_instance_uid),
        Instruction(f"Segment the {finding}", finding, ("chest",), "chest"),
        BundleIdentity("compact", "0", "compact", "0" * 64),
        steps,
        Result("present", 0.9, None, int(mask.sum())),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=3000)
    parser.add_argument("--findings", type=int, default=3, choices=range(1, 7))
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    image = radiograph(options.side)
    traces = [trace(image, finding, 0.02 * n) for n, finding in enumerate(FINDINGS[1 : options.findings + 1])]
    wall, cpu = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.repeat):
            start, work = time.perf_counter(), time.process_time()
            files = write_dicom(Path(folder) / "image", traces, image)
            wall.append(time.perf_counter() - start)
            cpu.append(time.process_time() - work)
        size = sum(path.stat().st_size for path in files.paths)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"SEG + SR + PR, {options.side} x {options.side} pixels, {options.findings} findings (goal {GOAL})")
    print(f"  first {wall[0]:.2f} s (CPU {cpu[0]:.2f} s), median {statistics.median(wall):.2f} s ", end="")
    print(f"(CPU {statistics.median(cpu):.2f} s), peak memory {peak:.0f} MB, {size / 1e6:.1f} MB on disk")


if __name__ == "__main__":
    main()
