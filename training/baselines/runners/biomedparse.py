"""BiomedParse, as its example_prediction.py calls it."""

from __future__ import annotations

import requested  # first: it puts the checkout on the path

# isort: split
import numpy as np
import torch
from inference_utils.inference import interactive_infer_image
from modeling import build_model
from modeling.BaseModel import BaseModel
from PIL import Image
from utilities.arguments import load_opt_from_config_files
from utilities.constants import BIOMED_CLASSES
from utilities.distributed import init_distributed

parser = requested.options(__doc__)
parser.add_argument("--weights", default="hf_hub:microsoft/BiomedParse")
arguments = parser.parse_args()
settings = init_distributed(load_opt_from_config_files(["configs/biomedparse_inference.yaml"]))
model = BaseModel(settings, build_model(settings)).from_pretrained(arguments.weights).eval().cuda()
with torch.no_grad():
    encoder = model.model.sem_seg_head.predictor.lang_encoder
    encoder.get_text_embeddings([*BIOMED_CLASSES, "background"], is_eval=True)
for request, image, target in requested.opened(arguments, "{stem}.npy"):
    probabilities = interactive_infer_image(model, Image.open(image).convert("RGB"), [request["prompt"]])
    with requested.whole(target) as path:
        np.save(path, probabilities)
