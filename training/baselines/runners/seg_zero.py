"""Seg-Zero (VisionReasoner), through its inference_scripts/infer_multi_object.py with the models loaded once.

Its words go to <stem>.txt, the union of its own SAM2's masks to <stem>.png. An answer that its script cannot read has
words alone.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import requested
from PIL import Image

sys.path.insert(0, os.path.join(os.getcwd(), "inference_scripts"))
import infer_multi_object as script


class Kept:
    """Its segmenter, which remembers the union of the masks that the script chooses."""

    def __init__(self, segmenter: Any) -> None:
        self._segmenter = segmenter

    def set_image(self, image: Any) -> None:
        self.mask = np.zeros((image.height, image.width), bool)
        self._segmenter.set_image(image)

    def predict(self, **prompt: Any) -> tuple[Any, Any, Any]:
        masks, scores, logits = self._segmenter.predict(**prompt)
        self.mask |= masks[int(np.argmax(scores))].astype(bool)
        return masks, scores, logits


parser = requested.options(__doc__)
parser.add_argument("--model-path", default="pretrained_models/VisionReasoner-7B")
parser.add_argument("--sam-path", default="facebook/sam2-hiera-large")
arguments = parser.parse_args()
reasoner, segmenters, processors = (
    script.Qwen2_5_VLForConditionalGeneration,
    script.SAM2ImagePredictor,
    script.AutoProcessor,
)
load_segmenter = cache(lambda path: Kept(segmenters.from_pretrained(path)))
script.Qwen2_5_VLForConditionalGeneration = SimpleNamespace(from_pretrained=cache(reasoner.from_pretrained))
script.AutoProcessor = SimpleNamespace(from_pretrained=cache(processors.from_pretrained))
script.SAM2ImagePredictor = SimpleNamespace(from_pretrained=load_segmenter)
for request, image, target in requested.opened(arguments, "{stem}.txt"):
    options = {
        "text": request["prompt"],
        "image_path": image,
        "output_path": target.parent / "shown.png",
        "reasoning_model_path": arguments.model_path,
        "segmentation_model_path": arguments.sam_path,
    }
    sys.argv = ["infer_multi_object.py", *(f"--{name}={value}" for name, value in options.items())]
    words = io.StringIO()
    try:
        with contextlib.redirect_stdout(words):
            script.main()
    except (UnboundLocalError, ValueError, KeyError, TypeError) as problem:
        # Its reader found no list of boxes and points in the words; `baselines read` says so of this row.
        print(f"{request['stem']}: {problem}", file=sys.stderr)
    else:
        with requested.whole(target.with_suffix(".png")) as path:
            Image.fromarray(load_segmenter(arguments.sam_path).mask.astype(np.uint8) * 255).save(path)
    with requested.whole(target) as path:
        Path(path).write_text(words.getvalue(), encoding="utf-8")
