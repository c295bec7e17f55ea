"""The small checkpoint that the miniature's tests start from, and how it is made.

    python -m tests.training.reproduction.checkpoints build/mini/0

writes it anew from a ``python -m training run mini``: pi_init after SFT, merged with its adapter, in half precision.
The one that is there had 564 steps (docs/reproduction.md). Not for clinical use.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import Gemma3ForConditionalGeneration

from training.mini.gemma import write_mini_gemma
from training.policies.models import ADAPTER, LANGUAGE_LAYERS, TOWER
from training.policies.settings import LoraSettings
from xflow_core.policies.medgemma_model import MedGemma

FOLDER = Path(__file__).with_name("checkpoints")
GRID = 100
LORA = LoraSettings(16, 16)
POLICIES = {"init": "pi_init_sft"}


def write_policy(folder: Path, name: str) -> Path:
    """The base folder of a policy that has been trained: a name of :data:`POLICIES`."""
    write_mini_gemma(folder, grid=GRID)
    held = {key: value.float() for key, value in load_file(FOLDER / f"{name}.safetensors").items()}
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
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


def main(run: Path) -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, adapter in POLICIES.items():
        merged = MedGemma.load(run / "base", {ADAPTER: run / adapter}, dtype=torch.float32, merge=True).gemma
        held = {key: value.half().contiguous() for key, value in merged.state_dict().items()}
        save_file(held, FOLDER / f"{name}.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
