"""What SegAgent's evaltools/main.py reads: JPEGs (it passes over PNGs) and lists of 5,000 requests (it stops there).

This writes OUT/images and OUT/xflow-1.json, OUT/xflow-2.json, ..; main.py is then started once for each list.
"""

from __future__ import annotations

import json

import requested
from PIL import Image

EACH = 5000

arguments = requested.options(__doc__).parse_args()
entries = []
for _, image, target in requested.opened(arguments, "images/{stem}.jpg"):
    with requested.whole(target) as path:
        Image.open(image).convert("RGB").save(path, "JPEG", quality=100, subsampling=0)
for line in (arguments.requests / "requests.jsonl").read_text(encoding="utf-8").splitlines():
    request = json.loads(line)
    height, width = request["size"]
    # Without a true mask, which it needs for its own scores alone.
    asked = {"caption": [request["prompt"]], "segmentation": None}
    entries.append({"image_name": f"{request['stem']}.jpg", "height": height, "width": width, "gt_ann": asked})
for number, start in enumerate(range(0, len(entries), EACH), start=1):
    with requested.whole(arguments.out.resolve() / f"xflow-{number}.json") as path, open(path, "w") as file:
        json.dump({"data": entries[start : start + EACH]}, file)
