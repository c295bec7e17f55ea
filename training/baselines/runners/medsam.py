"""MedSAM with the boxes that it is told, through its MedSAM_Inference.py with the model loaded once."""

from __future__ import annotations

import requested  # first: it puts the checkout on the path

# isort: split
import runpy
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

import matplotlib.pyplot as plt
import segment_anything

parser = requested.options(__doc__)
parser.add_argument("--weights", default="work_dir/MedSAM/medsam_vit_b.pth")
parser.add_argument("--device", default="cuda:0")
arguments = parser.parse_args()
registry = segment_anything.sam_model_registry
registry["vit_b"] = cache(registry["vit_b"])
with tempfile.TemporaryDirectory() as folder:
    for request, image, target in requested.opened(arguments, "{stem}.done"):
        for k, box in enumerate(request["boxes"]):
            # The script names its mask after the picture.
            picture = Path(folder) / f"{request['stem']}_{k}.png"
            shutil.copyfile(image, picture)
            sys.argv = ["MedSAM_Inference.py", "-i", str(picture), "-o", str(target.parent), f"--box={list(box)}"]
            sys.argv += ["--device", arguments.device, "-chk", arguments.weights]
            runpy.run_path("MedSAM_Inference.py", run_name="__main__")
            plt.close("all")
            picture.unlink()
        with requested.whole(target) as path:
            Path(path).write_text("")
