"""SAM3 with a text prompt, as its README calls it."""

from __future__ import annotations

import requested  # first: it puts the checkout on the path

# isort: split
import numpy as np
from PIL import Image
from sam3.model.sam3_image_processor import Sam3Processor
from sam3.model_builder import build_sam3_image_model

arguments = requested.options(__doc__).parse_args()
processor = Sam3Processor(build_sam3_image_model())
for request, image, target in requested.opened(arguments, "{stem}.npz"):
    state = processor.set_image(Image.open(image).convert("RGB"))
    found = processor.set_text_prompt(state=state, prompt=request["prompt"])
    masks, scores = (found[name].float().cpu().numpy() for name in ("masks", "scores"))
    with requested.whole(target) as path:
        np.savez_compressed(path, masks=masks > 0.5, scores=scores)
