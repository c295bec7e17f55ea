"""The small checkpoints that the miniature's tests start from, and how they are made.

    python -m tests.training.reproduction.checkpoints build/mini/1

writes them anew from a ``python -m training run mini``: both policies after SFT, merged with their adapters, and the
segmenter; arrays as int8 with a scale a channel. Not for clinical use.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import Gemma3ForConditionalGeneration

from training.curation.paper import read_settings
from training.mini.gemma import write_mini_gemma
from training.policies.models import ADAPTER, LANGUAGE_LAYERS, TOWER
from training.policies.settings import LoraSettings
from training.run import MINI
from training.segmenter.tiny import tiny_tracker
from xflow_core.policies.medgemma_model import MedGemma
from xflow_core.segmenters.sam3 import Sam3Segmenter
from xflow_core.segmenters.weights import read_weights, save_weights

FOLDER = Path(__file__).with_name("checkpoints")
GRID = 100
LORA = LoraSettings(16, 16)
POLICIES = {"init": "pi_init_sft", "rev": "pi_rev_sft"}
SEGMENTER = FOLDER / "segmenter.safetensors"
SIDE = read_settings(MINI).segmenter.side


def write_policy(folder: Path, name: str) -> Path:
    """The base folder of a policy that has been trained: a name of :data:`POLICIES`."""
    write_mini_gemma(folder, grid=GRID)
    save_file(read_weights(FOLDER / f"{name}.safetensors"), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_new_adapter(folder: Path, base: Path) -> Path:
    """An adapter that changes nothing yet, for RL to begin with."""
    torch.manual_seed(0)
    model = Gemma3ForConditionalGeneration.from_pretrained(base)
    settings = LoraConfig(
        r=LORA.r,
        lora_alpha=LORA.alpha,
        target_modules=LANGUAGE_LAYERS,
        modules_to_save=[TOWER],
        task_type="CAUSAL_LM",
    )
    get_peft_model(model, settings).save_pretrained(folder)
    return folder


def write_segmenter(folder: Path, recipe: str) -> Sam3Segmenter:
    """The segmenter that has been trained, as a folder and ready to answer."""
    tracker = tiny_tracker(SIDE, seed=0)
    tracker.load_state_dict(read_weights(SEGMENTER), strict=False)
    tracker.save_pretrained(folder, save_original_format=False)
    return Sam3Segmenter.load(folder, side=SIDE, recipe=recipe)


def main(run: Path) -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, adapter in POLICIES.items():
        merged = MedGemma.load(run / "base", {ADAPTER: run / adapter}, dtype=torch.float32, merge=True).gemma
        save_weights(merged.state_dict(), FOLDER / f"{name}.safetensors")
    save_weights(load_file(run / "segmenter" / "model.safetensors"), SEGMENTER)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
