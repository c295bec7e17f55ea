"""Text4Seg, through its llava/eval/run_llava.py with the models loaded once; its masks are those that SAM refines."""

from __future__ import annotations

import requested  # first: it puts the checkout on the path

# isort: split
import argparse
import contextlib
import io
from functools import cache
from pathlib import Path

import llava.eval.run_llava as script
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

# Where the script leaves its mask of the last picture, a number for each label.
MASK = Path("images/horse_mask.png")

parser = requested.options(__doc__)
parser.add_argument("--model-path", default="lmc22/text4seg-llava-7b-p24")
parser.add_argument("--sam-path", default="llava/model/segment_anything/sam_vit_h_4b8939.pth")
arguments = parser.parse_args()
script.load_pretrained_model = cache(script.load_pretrained_model)
script.sam_model_registry = {name: cache(build) for name, build in script.sam_model_registry.items()}
MASK.parent.mkdir(exist_ok=True)
for request, image, target in requested.opened(arguments, "{stem}.txt"):
    MASK.unlink(missing_ok=True)
    # The script takes several pictures, parted by a sign that must not stand in a path.
    asked = argparse.Namespace(
        model_path=arguments.model_path, model_base=None, image_file=image, sam_path=arguments.sam_path,
        query=request["prompt"], conv_mode="llava_v1", sep="\n", temperature=0.0, top_p=None, num_beams=1,
        max_new_tokens=3069,
    )  # fmt: skip
    words = io.StringIO()
    with contextlib.redirect_stdout(words):
        script.eval_model(asked)
    plt.close("all")
    if MASK.is_file():
        with requested.whole(target.with_suffix("") / "0_sam_mask.png") as path:
            Image.fromarray((np.asarray(Image.open(MASK)) > 0).astype(np.uint8) * 255).save(path)
    with requested.whole(target) as path:
        Path(path).write_text(words.getvalue(), encoding="utf-8")
