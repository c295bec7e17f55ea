"""RecLMIS, through its network and the preparation of its Load_Dataset.py (mode "val")."""

from __future__ import annotations

import requested  # first: it puts the checkout on the path

# isort: split
import clip
import Config_covid19 as config
import cv2
import numpy as np
import torch
from nets.RecLMIS import RecLMIS

parser = requested.options(__doc__)
parser.add_argument("--weights", required=True, help="best_model-RecLMIS.pth.tar, see its README")
parser.add_argument("--device", default="cuda")
arguments = parser.parse_args()
net = RecLMIS(config, config.get_ViT_config(), n_channels=config.n_channels, n_classes=config.n_labels)
stored = torch.load(arguments.weights, map_location=arguments.device)
net.load_state_dict(stored["state_dict"], strict=False)
net = net.to(arguments.device).eval()
for request, image, target in requested.opened(arguments, "{stem}.npy"):
    square = cv2.resize(cv2.imread(image), (config.img_size, config.img_size))
    picture = torch.from_numpy(square).permute(2, 0, 1)[None].float().to(arguments.device) / 255
    tokens = clip.tokenize([request["prompt"]], context_length=config.token_len, truncate=True).to(arguments.device)
    nothing = torch.zeros((1, config.img_size, config.img_size), dtype=torch.long, device=arguments.device)
    with torch.no_grad():
        output, _, _ = net(picture, nothing, tokens, (tokens != 0).int(), mode="test")
    mask = (output > 0.5).float().cpu().numpy().reshape(config.img_size, config.img_size)
    with requested.whole(target) as path:
        np.save(path, mask)
