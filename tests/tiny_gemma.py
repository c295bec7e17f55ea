"""A Gemma3 of a few thousand weights with its processor, built here and saved as a real one is: no download.

The tokenizer writes bytes and characters, knows a few longer tokens (so that a text has several spellings in tokens)
and keeps digits apart, as Gemma's own does. The projector of a fresh model is zero; here it is not, or images would
change nothing.
"""

from __future__ import annotations

import string
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from torch import Tensor
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3Processor, GemmaTokenizer
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from xflow_core.policies.medgemma_model import Conversation, MedGemma, Pictures

SIDE, SOFT_TOKENS = 56, 4  # 14-pixel patches, 4 x 4, pooled to 2 x 2
LANGUAGE_LAYERS = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
_SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>")
_IMAGE = ("<start_of_image>", "<end_of_image>", "<image_soft_token>")
# Pairs that the byte pair encoding joins, each to a token of its own.
_MERGES = (
    ("▁", "a"), ("▁", "p"), ("r", "i"), ("ri", "g"), ("rig", "h"), ("righ", "t"), ("l", "u"), ("lu", "n"),
    ("lun", "g"), ("▁", "lung"), ("<", "|"), ("|", ">"), ("b", "o"), ("bo", "x"), ("t", "h"), ("e", "n"), ("e", "f"),
)  # fmt: skip
TEMPLATE = (
    "{{ bos_token }}{%- for m in messages -%}{{ '<start_of_turn>' + ('model' if m['role']=='assistant' else m['role'])"
    " + '\n' }}{%- if m['content'] is string -%}{{ m['content'] | trim }}{%- else -%}{%- for c in m['content'] -%}"
    "{%- if c['type']=='image' -%}{{ '<start_of_image>' }}{%- else -%}{{ c['text'] | trim }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}{{ '<end_of_turn>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)


def tiny_tokenizer() -> GemmaTokenizer:
    words = [*_SPECIAL, *_IMAGE, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "\n"]
    words += [character for character in string.printable[:95] if character != " "]
    words += ["".join(pair) for pair in _MERGES]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(words))}
    images = dict(zip(("boi_token", "eoi_token", "image_token"), _IMAGE, strict=True))
    tokenizer = GemmaTokenizer(vocab=vocabulary, merges=list(_MERGES), extra_special_tokens=images)
    tokenizer.add_tokens(["<start_of_turn>", "<end_of_turn>"], special_tokens=True)
    return tokenizer


def write_tiny_gemma(folder: Path, seed: int = 0, *, sliding_window: int = 64) -> Path:
    """A model and its processor in ``folder``: config, processor and tokenizer files, safetensors."""
    tokenizer = tiny_tokenizer()
    end = tokenizer.convert_tokens_to_ids("<end_of_turn>")
    pictures = Gemma3ImageProcessorPil(size={"height": SIDE, "width": SIDE}, do_pan_and_scan=False)
    processor = Gemma3Processor(
        image_processor=pictures, tokenizer=tokenizer, chat_template=TEMPLATE, image_seq_length=SOFT_TOKENS
    )
    processor.save_pretrained(folder)
    # Three layers: what an image's tokens see in the last one reaches no other token, so each kind stands before it.
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": sliding_window,
        "max_position_embeddings": 4096, "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": SIDE, "patch_size": 14, "vision_use_head": False,
    }  # fmt: skip
    config = Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=SOFT_TOKENS, boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id, image_token_index=tokenizer.image_token_id, eos_token_id=[1, end],
    )  # fmt: skip
    torch.manual_seed(seed)
    model = Gemma3ForConditionalGeneration(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Wide enough that a decision hangs on the picture and on what stands before it.
            if weight.dim() > 1 and "vision" not in name:
                weight.normal_(std=0.2)
    model.generation_config.eos_token_id = [1, end]
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    return folder


def write_tiny_adapter(folder: Path, base: Path, seed: int = 1) -> Path:
    """A PEFT folder: LoRA on the language layers and a vision tower of its own, both unlike the base's."""
    torch.manual_seed(seed)
    model = Gemma3ForConditionalGeneration.from_pretrained(base)
    settings = LoraConfig(
        r=4, lora_alpha=8, target_modules=LANGUAGE_LAYERS, modules_to_save=["vision_tower"], init_lora_weights=False
    )
    adapted = get_peft_model(model, settings)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "modules_to_save" in name:
                weight.add_(0.1 * torch.randn_like(weight))
            elif "lora_B" in name:
                weight.normal_(std=0.1)
    adapted.save_pretrained(folder)
    return folder


class Talk:
    """A chat with three pictures, and what the model itself makes of it in one pass."""

    def __init__(self, gemma: MedGemma, seed: int = 0) -> None:
        self.gemma = gemma
        self.pictures = Pictures()
        random = np.random.default_rng(seed)
        self.drawn = {name: random.integers(0, 256, (SIDE, SIDE, 3), np.uint8) for name in ("one", "two", "three")}
        first, second, third = (self.pictures.symbols(name, SOFT_TOKENS) for name in self.drawn)
        turns = gemma.turns([([first, second], "Segment the effusion."), ([third], ""), ([first], "")])
        words = gemma.processor.tokenizer.encode("some words of the model", add_special_tokens=False)
        self.turns = turns
        self.symbols = [*turns[0], *words, gemma.end, *turns[1], *words[:4], gemma.end, *turns[2], *words]

    def features(self, symbol: int) -> Tensor:
        key = self.pictures.key_of(symbol)
        return self.pictures.tokens(key, lambda: self.drawn[key], self.gemma)

    def whole(self, symbols: list[int]) -> Tensor:
        """The model's own forward pass: pixels, token types, no cache."""
        ids = torch.tensor([[s if s >= 0 else self.gemma.image_token for s in symbols]])
        starts = [s for before, s in zip([0, *symbols], symbols, strict=False) if s < 0 and s != before]
        images = [Image.fromarray(self.drawn[self.pictures.key_of(s)]) for s in starts]
        pixels = self.gemma.processor.image_processor(images=images, return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            types = (ids == self.gemma.image_token).long()
            return self.gemma.gemma(input_ids=ids, pixel_values=pixels.double(), token_type_ids=types).logits[0, -1]


def at_a_time(gemma: MedGemma, talks: list[Talk], ends: list[list[int]]) -> list[list[Tensor]]:
    """The last logits of several conversations, each fed up to its own ends, in threads that start together."""
    start = threading.Barrier(len(talks))

    def said(talk: Talk, ends: list[int]) -> list[Tensor]:
        conversation = Conversation(gemma)
        with gemma.using(None):
            start.wait()
            return [conversation.after(talk.symbols[:end], talk.features) for end in ends]

    with ThreadPoolExecutor(len(talks)) as pool:
        return list(pool.map(said, talks, ends))
