"""IBISAgent, through its infer/multi_turn.py with the models loaded once."""

from __future__ import annotations

import os
import sys
from functools import cache

import requested

sys.path.insert(0, os.path.join(os.getcwd(), "infer"))
import multi_turn as script

parser = requested.options(__doc__)
parser.add_argument("--mllm-path", default="infer/models/mllm")
arguments = parser.parse_args()
script.MLLMEngine = cache(script.MLLMEngine)
script.SAM2Engine = cache(script.SAM2Engine)
for request, image, target in requested.opened(arguments, "{stem}/final_segmentation.png"):
    sys.argv = ["multi_turn.py", f"--image={image}", f"--prompt={request['prompt']}"]
    sys.argv += [f"--output_dir={target.parent}", f"--mllm_path={arguments.mllm_path}"]
    script.main()
