"""IMIS-Net with a text prompt, as its predictor_example.ipynb calls it.

Its tokenizer takes the words of its own categories alone ("pleural_effusion", "edema", ..). A prompt that is none of
them is added to that table as it stands, so that it goes through the same sentence ("A segmentation area of a ..").
"""

from __future__ import annotations

import requested  # first: it puts the checkout on the path

# isort: split
import argparse

import cv2
import numpy as np
from model import IMISNet
from segment_anything import sam_model_registry
from segment_anything.predictor import IMISPredictor

parser = requested.options(__doc__)
parser.add_argument("--weights", default="ckpt/IMISNet-B.pth")
parser.add_argument("--device", default="cuda")
arguments = parser.parse_args()
settings = argparse.Namespace(image_size=1024, sam_checkpoint=arguments.weights)
sam = sam_model_registry["vit_b"](settings).to(arguments.device)
net = IMISNet(sam, test_mode=True, category_weights="dataloaders/categories_weight.pkl").to(arguments.device).eval()
predictor = IMISPredictor(net)
for request, image, target in requested.opened(arguments, "{stem}.npy"):
    prompt = request["prompt"]
    net.categories_map.setdefault(prompt, [prompt, prompt])
    predictor.set_image(cv2.cvtColor(cv2.imread(image), cv2.COLOR_BGR2RGB))
    masks, _, _ = predictor.predict(text=[prompt])
    with requested.whole(target) as path:
        np.save(path, masks)
