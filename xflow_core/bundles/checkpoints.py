"""Are these folders what they are said to be? Asked of headers and configurations alone, before any weight is loaded.

Only safetensors files are taken, and no folder whose configuration asks for code of its own: nothing that a bundle
names can run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from xflow_core.domain.errors import BundleError

from .model_files import is_hub_id

LANGUAGE_MODELS = ("gemma3",)
SEGMENTERS = ("sam3_tracker", "sam3_video", "sam3_tracker_video")
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

_CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_BESIDE_WEIGHTS = (".json", ".jinja", ".model", ".txt")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

Shapes = dict[str, tuple[int, ...]]


def model_file_names(folder: Path, kinds: tuple[str, ...]) -> list[str]:
    """The files of a folder that make up a model of one of the ``kinds`` (transformers' model types).

    Its configuration, tokenizer and templates, and the safetensors files: those of its index, or ``model.safetensors``.

    Raises:
        BundleError: it is no such model, a weight file is missing or truncated, or it has only pickled weights or code.
    """
    config = _json(folder / _CONFIG)
    _refuse_code(config, folder / _CONFIG)
    if config.get("model_type") not in kinds:
        raise BundleError(
            f"{folder} holds a model of the type {config.get('model_type')!r}; a {' or '.join(kinds)} is needed."
        )
    if (folder / ADAPTER_CONFIG).exists():
        raise BundleError(f"{folder} holds an adapter beside a model; give each a folder of its own.")
    if (folder / _INDEX).is_file():
        index = _json(folder / _INDEX).get("weight_map")
        if not isinstance(index, dict) or not index:
            raise BundleError(f"{folder / _INDEX} names no weights; get the model again.")
        weights = sorted(set(index.values()))
        held = {name for shard in weights for name in tensor_shapes(folder / shard)}
        lacking = sorted(set(index) - held)
        if lacking:
            raise BundleError(f"{folder} lacks the array {lacking[0]}, which its index names; get the model again.")
    else:
        weights = ["model.safetensors"]
        if not (folder / weights[0]).is_file():
            pickled = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
            hint = f"it has {pickled[0]}, which may hold code; convert it" if pickled else "get the model again"
            raise BundleError(f"{folder} holds no safetensors weights ({hint}).")
        tensor_shapes(folder / weights[0])
    beside = sorted(p.name for p in folder.iterdir() if p.is_file() and p.suffix in _BESIDE_WEIGHTS)
    return [*beside, *weights]


def adapter_file_names(folder: Path) -> list[str]:
    """The two files of a PEFT adapter.

    Raises:
        BundleError: it is none, is truncated, or has only pickled weights or code.
    """
    _refuse_code(_json(folder / ADAPTER_CONFIG), folder / ADAPTER_CONFIG)
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise BundleError(f"{folder} holds no {ADAPTER_WEIGHTS}; XFlow reads adapters from safetensors alone.")
    tensor_shapes(folder / ADAPTER_WEIGHTS)
    return [ADAPTER_CONFIG, ADAPTER_WEIGHTS]


def tensor_shapes(path: Path) -> Shapes:
    """The shape of every array in a safetensors file, from its header.

    Raises:
        BundleError: it cannot be read, or is shorter or longer than its header says.
    """
    try:
        with safe_open(str(path), framework="np") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as problem:
        raise BundleError(f"{path} is no whole safetensors file ({problem}); get it again.") from None


def check_adapter(adapter: Path, base: Path, base_id: str) -> tuple[str, ...]:
    """Does this adapter fit this base, every array of it? Returns the parts of the base that it replaces whole.

    Two bases may have the same shapes (MedGemma 1 and 1.5), so the name that the adapter gives its base counts too,
    where it is one that a model is published under.

    Raises:
        BundleError: it is another base's, or not whole.
    """
    config = _json(adapter / ADAPTER_CONFIG)
    named = str(config.get("base_model_name_or_path") or "")
    if is_hub_id(named) and is_hub_id(base_id) and named != base_id and not Path(named).exists():
        raise BundleError(f"The adapter {adapter} was made for {named}, not for {base_id}.")
    held = tensor_shapes(adapter / ADAPTER_WEIGHTS)
    wanted = _adapter_shapes(adapter, base, base_id)
    wrong = sorted(name for name in held.keys() | wanted.keys() if held.get(name) != wanted.get(name))
    if wrong:
        raise BundleError(
            f"The adapter {adapter} does not fit {base_id}: {len(wrong)} of its {len(wanted)} arrays differ, first "
            f"{wrong[0]}."
        )
    return tuple(sorted(str(part) for part in config.get("modules_to_save") or ()))


def _adapter_shapes(adapter: Path, base: Path, base_id: str) -> Shapes:
    """What an adapter of this configuration on this base consists of; no memory is taken for either."""
    import xflow_core.policies.bitsandbytes_alone  # noqa: F401  before peft, which imports bitsandbytes

    # isort: split
    import torch
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    config = LoraConfig.from_pretrained(str(adapter))
    config.inference_mode = False
    config.base_model_name_or_path = None  # peft warns where it is another folder
    try:
        with torch.device("meta"):
            model = Gemma3ForConditionalGeneration(Gemma3Config.from_pretrained(base, local_files_only=True))
            adapted = get_peft_model(model, config, low_cpu_mem_usage=True)
    # Targets that the base lacks, a configuration of another method: peft says so in many ways.
    except Exception as problem:
        reason = next(iter(str(problem).splitlines()), type(problem).__name__)
        raise BundleError(f"The adapter {adapter} does not fit {base_id}: {reason[:200]}") from problem
    state = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    return {name: tuple(value.shape) for name, value in state.items()}


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except OSError:
        raise BundleError(f"{path.parent} holds no {path.name}, so it is not what was asked for.") from None
    except ValueError:
        raise BundleError(f"{path} is not JSON; get the model again.") from None
    if not isinstance(data, dict):
        raise BundleError(f"{path} is no configuration; get the model again.")
    return data


def _refuse_code(config: dict[str, Any], path: Path) -> None:
    if re.search(r'"auto_map"\s*:', json.dumps(config)):
        raise BundleError(f"{path} asks for code of its own (auto_map), which XFlow does not run.")
