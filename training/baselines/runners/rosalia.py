"""ROSALIA, through the functions of its inference_rosalia_example.py."""

from __future__ import annotations

from importlib import import_module

import requested

# These read HF_HOME once; the example points it at its authors' disk before it imports them.
import_module("huggingface_hub.constants")
import_module("transformers")
rosalia = import_module("inference_rosalia_example")

arguments = requested.options(__doc__).parse_args()
model, tokenizer, clip_processor, transform = rosalia.initialize_model()
for request, image, target in requested.opened(arguments, "{stem}.png"):
    inputs = rosalia.prepare_inputs(request["prompt"], image, tokenizer, clip_processor, transform)
    masks, _ = rosalia.run_inference(model, tokenizer, *inputs)
    with requested.whole(target) as path:
        rosalia.save_results(masks, path)
