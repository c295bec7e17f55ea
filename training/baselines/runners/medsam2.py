"""MedSAM2 with the boxes that it is told, through the image predictor of its sam2 package."""

from __future__ import annotations

import requested  # first: it puts the checkout on the path

# isort: split
import os

import numpy as np
from PIL import Image
from sam2.build_sam import build_sam2
from sam2.sam2_image_predictor import SAM2ImagePredictor

parser = requested.options(__doc__)
parser.add_argument("--weights", default="checkpoints/MedSAM2_latest.pt")
parser.add_argument("--settings", default="sam2/configs/sam2.1_hiera_t512.yaml")
arguments = parser.parse_args()
# Two slashes more, as its own scripts write it: its configuration library takes a path for its own otherwise.
predictor = SAM2ImagePredictor(build_sam2("//" + os.path.abspath(arguments.settings), arguments.weights))
for request, image, target in requested.opened(arguments, "{stem}.npz"):
    picture = np.asarray(Image.open(image).convert("RGB"))
    segments = np.zeros((1, *picture.shape[:2]), np.uint8)
    if request["boxes"]:
        predictor.set_image(picture)
    for number, box in enumerate(request["boxes"], start=1):
        masks, _, _ = predictor.predict(box=np.array(box), multimask_output=False)
        segments[0][masks[0] > 0] = number
    with requested.whole(target) as path:
        np.savez_compressed(path, segs=segments)
