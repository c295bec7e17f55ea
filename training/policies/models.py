"""MedGemma with an adapter that is trained: LoRA on the language layers and, in SFT, the whole vision tower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xflow_core.policies.bitsandbytes_alone  # noqa: F401  before peft, which imports bitsandbytes

# isort: split
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from training.policies.settings import LoraSettings
from xflow_core.domain.errors import BundleError
from xflow_core.policies.medgemma_model import MedGemma

LANGUAGE_LAYERS = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
TOWER = "vision_tower"
_WHOLE = ("multi_modal_projector", "embed_tokens", "lm_head")
ADAPTER = "default"  # the name under which PEFT saves into the folder itself


def device_and_dtype() -> tuple[str, torch.dtype]:
    """bfloat16 on CUDA, with what is trained in float32; float32 elsewhere."""
    return ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)


def load_to_train(base: Path, start: Path | None, lora: LoraSettings, *, tower: bool) -> tuple[PeftModel, MedGemma]:
    """The model to train, and the same one as a conversation's tokens need it (:class:`~.dialogues.Tokens`).

    Args:
        base: a folder of MedGemma with its processor. start: an adapter to go on from; None for a new one.
        tower: train the vision tower, too, and whatever else the adapter has whole.

    Raises:
        BundleError: a part is missing, damaged, or made for another model; ``start`` has another rank than ``lora``.
    """
    device, dtype = device_and_dtype()
    gemma = MedGemma.load(base, {} if start is None else {ADAPTER: start}, device=device, dtype=dtype)
    if start is None:
        settings = LoraConfig(
            r=lora.r,
            lora_alpha=lora.alpha,
            target_modules=LANGUAGE_LAYERS,
            modules_to_save=[TOWER, *(_WHOLE if lora.whole else ())],
            task_type="CAUSAL_LM",
        )
        model: Any = get_peft_model(gemma.gemma, settings)
    else:
        model = gemma.model
        known = model.peft_config[ADAPTER]
        if (known.r, known.lora_alpha) != (lora.r, lora.alpha):
            raise BundleError(
                f"The adapter in {start} has r {known.r} and alpha {known.lora_alpha}; "
                f"the configuration says {lora.r} and {lora.alpha}."
            )
    choose_trained(model, tower=tower)
    for parameter in model.parameters():
        if parameter.requires_grad:
            # A step of 3e-6 is lost in bfloat16.
            parameter.data = parameter.data.float()
    return model, MedGemma(model, gemma.processor)


def choose_trained(model: torch.nn.Module, *, tower: bool) -> None:
    """Let the adapter's own LoRA weights move, with ``tower`` what it has whole, and nothing else."""
    for name, parameter in model.named_parameters():
        own = f".{ADAPTER}." in name
        parameter.requires_grad_(own and ("lora_" in name or (tower and "modules_to_save" in name)))


def in_tower(name: str) -> bool:
    return TOWER in name
