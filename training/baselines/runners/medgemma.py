"""MedGemma as it comes, without any training of XFlow's: the picture padded with black to a square, and the prompt."""

from __future__ import annotations

import requested  # first: it puts the checkout on the path

# isort: split
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

parser = requested.options(__doc__)
parser.add_argument("--weights", default="google/medgemma-1.5-4b-it")
parser.add_argument("--device", default="cuda")
parser.add_argument("--tokens", type=int, default=2000, help="of an answer at most; it may think first")
arguments = parser.parse_args()
processor = AutoProcessor.from_pretrained(arguments.weights)
model = AutoModelForImageTextToText.from_pretrained(arguments.weights, dtype=torch.bfloat16).to(arguments.device).eval()
for request, image, target in requested.opened(arguments, "{stem}.txt"):
    picture = Image.open(image).convert("RGB")
    side = max(picture.size)
    square = Image.new("RGB", (side, side))
    square.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    content = [{"type": "image", "image": square}, {"type": "text", "text": request["prompt"]}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    ).to(arguments.device, dtype=torch.bfloat16)
    with torch.inference_mode():
        written = model.generate(**inputs, max_new_tokens=arguments.tokens, do_sample=False)
    words = processor.decode(written[0][inputs["input_ids"].shape[-1] :], skip_special_tokens=False)
    for end in ("<end_of_turn>", "<eos>"):
        words = words.split(end)[0]
    with requested.whole(target) as path:
        Path(path).write_text(words, encoding="utf-8")
