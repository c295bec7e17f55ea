"""A Gemma3 that a laptop trains from scratch: the real classes, about a million weights, a picture of 96 pixels.

Everything that a transcript says is one token: each coordinate, each marker, each verdict. A model of this size learns
to place a box when it is one decision a side; digit by digit it did not within an hour.
"""

from __future__ import annotations

import re
import string
from pathlib import Path

import torch
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3Processor, GemmaTokenizer
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from training.curation.questions import sentence
from training.curation.templates import phrasings
from xflow_core.domain.findings import CHEST, FINDINGS, HEART, LUNGS, REGIONS
from xflow_core.policies.transcript import GRID, VERDICTS, SquareFrame, click_plan, write

SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>")
IMAGE = ("<start_of_image>", "<end_of_image>", "<image_soft_token>")
# Gemma's own, without a system's turn.
TEMPLATE = (
    "{{ bos_token }}{%- for m in messages -%}{{ '<start_of_turn>' + ('model' if m['role']=='assistant' else m['role'])"
    " + '\n' }}{%- if m['content'] is string -%}{{ m['content'] | trim }}{%- else -%}{%- for c in m['content'] -%}"
    "{%- if c['type']=='image' -%}{{ '<start_of_image>' }}{%- else -%}{{ c['text'] | trim }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}{{ '<end_of_turn>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)

SIDE, PATCH = 96, 8
"""Pixels of the picture's side and of a patch's; four patches make a soft token."""


def words(grid: int = GRID) -> list[str]:
    """The tokens that are longer than a character: transcripts' pieces, and the words of questions."""
    pieces = ["<think>\n", "</think>\n", *VERDICTS, "absent", "done", ",", "),(", ")<|box_end|>"]
    pieces += [f"<|ref_start|>{label}<|ref_end|><|box_start|>(" for label in (*LUNGS, *FINDINGS)]
    pieces += [f"{region}:" for region in (*REGIONS, HEART)]
    frame = SquareFrame((grid, grid), grid)
    plan = click_plan(frame)
    openings = next(plan).options  # type: ignore[union-attr]
    pieces += [piece for opening in openings for piece in _pieces(opening, frame)]
    pieces += [str(number) for number in range(grid + 1)]
    asked = [text for finding in FINDINGS for where in ((CHEST,), *((r,) for r in REGIONS)) if where != (HEART,)
             for text in (sentence(finding, where), *phrasings(finding, where))]  # fmt: skip
    pieces += [word for text in asked for word in re.findall(r" ?[A-Za-z]+", text)]
    pieces += ["user\n", "model\n"]
    return list(dict.fromkeys(pieces))


def _pieces(opening: str, frame: SquareFrame) -> list[str]:
    return [opening] if opening == "done" else write(click_plan(frame), [opening, "1", "1"])[:-1]


def mini_tokenizer(grid: int = GRID) -> GemmaTokenizer:
    """Characters, and a token for each of :func:`words`."""
    alphabet = [*SPECIAL, *IMAGE, "▁", "\n", *(each for each in string.printable[:95] if each != " ")]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(alphabet))}
    images = dict(zip(("boi_token", "eoi_token", "image_token"), IMAGE, strict=True))
    tokenizer = GemmaTokenizer(vocab=vocabulary, merges=[], extra_special_tokens=images)
    tokenizer.add_tokens(["<start_of_turn>", "<end_of_turn>"], special_tokens=True)
    tokenizer.add_tokens([word for word in words(grid) if len(word) > 1], special_tokens=False)
    return tokenizer


def write_mini_gemma(folder: Path, seed: int = 0, *, grid: int = GRID) -> Path:
    """A model that knows nothing yet, and its processor, as MedGemma's folder holds them.

    Args:
        grid: the policies' (``policies.grid`` of the configuration); every coordinate is a token.
    """
    tokenizer = mini_tokenizer(grid)
    end = tokenizer.convert_tokens_to_ids("<end_of_turn>")
    soft_tokens = (SIDE // PATCH) ** 2 // 4
    pictures = Gemma3ImageProcessorPil(size={"height": SIDE, "width": SIDE}, do_pan_and_scan=False)
    processor = Gemma3Processor(
        image_processor=pictures, tokenizer=tokenizer, chat_template=TEMPLATE, image_seq_length=soft_tokens
    )
    processor.save_pretrained(folder)
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "sliding_window": 1024,
        "max_position_embeddings": 2048, "query_pre_attn_scalar": 32, "tie_word_embeddings": False,
        "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
    }  # fmt: skip
    vision = {
        "hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4,
        "image_size": SIDE, "patch_size": PATCH, "vision_use_head": False,
    }  # fmt: skip
    config = Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=soft_tokens, boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id, image_token_index=tokenizer.image_token_id, eos_token_id=[1, end],
        tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = Gemma3ForConditionalGeneration(config)
    # It begins at zero, and then no picture would reach the language model.
    torch.nn.init.normal_(
        model.model.multi_modal_projector.mm_input_projection_weight, std=vision["hidden_size"] ** -0.5
    )
    model.generation_config.eos_token_id = [1, end]
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    return folder
