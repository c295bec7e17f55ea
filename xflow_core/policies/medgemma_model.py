"""Gemma3 with images, asked incrementally: what was fed once is not fed again.

A conversation is a list of *symbols*: a token's number, or a negative number for each soft token of an image
(:meth:`Pictures.symbols`). :meth:`Conversation.after` gives the logits that follow such a list, and feeds the model
only what its key-value cache does not hold: the longest common beginning is kept, the rest is cut off. So a second
question on a picture, a click's turn and an edited decision each cost their own tokens.

The cache keeps every layer in full (no sliding window), which makes it exact to cut anywhere and costs 139 KB a token
at full size; the masks, which are made here, close the window of the sliding layers. They follow
``transformers``' own: causal, plus both ways inside one image, which is therefore never fed in two parts. Exact means
up to rounding: products of other shapes round otherwise, and in bfloat16 that may tip two tokens that are as good as
equal.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel, get_peft_model_state_dict
from PIL import Image
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoProcessor, DynamicCache, Gemma3ForConditionalGeneration

from xflow_core.domain.errors import BundleError, EngineError

_KEPT_PICTURES = 64  # soft tokens of one picture are 1.3 MB at full size
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError)


@dataclass
class Work:
    """What was computed so far.

    passes: forward passes of the language model.
    decode_steps: tokens that the model chose; forced ones are none.
    fed: tokens fed to the language model, soft tokens of images included, each time they were fed.
    encoded: pictures that went through the vision tower.
    """

    passes: int = 0
    decode_steps: int = 0
    fed: int = 0
    encoded: int = 0

    def since(self, before: Work) -> Work:
        return Work(*(getattr(self, name) - getattr(before, name) for name in self.__dataclass_fields__))

    def now(self) -> Work:
        return replace(self)


class MedGemma:
    """A Gemma3 model with its processor, and the adapters that make policies of it.

    One thread at a time computes; :meth:`using` waits for its turn. Adapters hold LoRA weights and, where they were
    trained with one, a vision tower of their own; switching between them is exact.

    Args:
        model: in evaluation mode on its device; a ``PeftModel`` when it has adapters.
        processor: its ``Gemma3Processor``.
    """

    def __init__(self, model: Gemma3ForConditionalGeneration | PeftModel, processor: Any) -> None:
        self._peft = model if isinstance(model, PeftModel) else None
        self.gemma: Any = model.get_base_model() if isinstance(model, PeftModel) else model
        self.processor = processor
        self.work = Work()
        self._lock = threading.RLock()
        config = self.gemma.config
        self.image_token: int = config.image_token_id
        self.image_tokens = (self.image_token, config.boi_token_index, config.eoi_token_index)
        self.picture_side: int = config.vision_config.image_size
        self.window: int = config.text_config.sliding_window
        self.end: int = processor.tokenizer.convert_tokens_to_ids("<end_of_turn>")

    @classmethod
    def load(
        cls,
        base: Path,
        adapters: Mapping[str, Path] | None = None,
        *,
        device: str = "cpu",
        dtype: torch.dtype,
        merge: bool = False,
    ) -> MedGemma:
        """From local folders; nothing is downloaded, no code of theirs is run, weights are safetensors only.

        Args:
            base: config, processor, tokenizer and weights. adapters: PEFT folders by name.
            merge: add the adapter (there is one at most) into the base's weights; it is then no adapter any more.

        Raises:
            BundleError: a part is missing, damaged, or made for another model; nothing is kept of what was loaded.
        """
        gemma3: Any = Gemma3ForConditionalGeneration
        any_processor: Any = AutoProcessor
        try:
            processor = any_processor.from_pretrained(base, local_files_only=True)
            model, told = gemma3.from_pretrained(
                base,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                attn_implementation="sdpa",
                output_loading_info=True,
            )
        except _UNREADABLE as problem:
            raise BundleError(f"{base} cannot be loaded as a Gemma3 model with its processor: {problem}") from None
        lacking = sorted([*told["missing_keys"], *(str(entry[0]) for entry in told["mismatched_keys"])])
        if lacking:
            raise BundleError(
                f"The weights in {base} lack {lacking[0]} or have it in another shape; install them anew."
            )
        for name, folder in (adapters or {}).items():
            model = _with_adapter(model, name, folder)
        if merge and isinstance(model, PeftModel):
            model = model.merge_and_unload()
        return cls(model.to(device).eval().requires_grad_(False), processor)

    @property
    def model(self) -> Any:
        """The whole of it: the ``PeftModel`` when there are adapters."""
        return self.gemma if self._peft is None else self._peft

    @property
    def device(self) -> torch.device:
        place: torch.device = self.gemma.device
        return place

    @contextmanager
    def using(self, adapter: str | None) -> Iterator[None]:
        """The model alone for this thread, with one adapter, or none where it has none of that name."""
        with self._lock, torch.inference_mode():
            if self._peft is None:
                yield
            elif adapter in self._peft.peft_config:
                self._peft.set_adapter(adapter, inference_mode=True)
                yield
            else:
                with self._peft.disable_adapter():
                    yield

    def soft_tokens(self, picture: np.ndarray) -> Tensor:
        """A picture through the vision tower and the projector: ``[tokens, hidden]``.

        picture: uint8 ``[S, S, 3]``, square.
        """
        self.work.encoded += 1
        processed = self.processor.image_processor(images=[Image.fromarray(picture)], return_tensors="pt")
        pixels = processed["pixel_values"].to(self.device, self.gemma.dtype)
        tokens: Tensor = self.gemma.model.get_image_features(pixels, return_dict=True).pooler_output[0]
        return tokens

    def tokens_of(self, text: str, images: Sequence[Sequence[int]]) -> list[int]:
        """Symbols of a part of a rendered chat: its tokens, with each ``<start_of_image>`` grown to an image's symbols
        as the processor grows it."""
        grown = text.replace(self.processor.boi_token, self.processor.full_image_sequence)
        tokens = self.processor.tokenizer.encode(grown, add_special_tokens=False)
        symbols = [symbol for image in images for symbol in image]
        if tokens.count(self.image_token) != len(symbols):
            raise EngineError("The chat template does not place the images where they belong.")
        following = iter(symbols)
        return [next(following) if token == self.image_token else token for token in tokens]

    def turns(self, parts: Sequence[tuple[Sequence[Sequence[int]], str]]) -> list[list[int]]:
        """The user's turns of a chat, as the processor's template renders them, each up to where the model writes.

        Args:
            parts: for each turn its images (their symbols), which come first, and its words.

        Returns:
            a list per turn; the model's own tokens, ended by ``end``, stand between them.
        """
        marks = [f"ANSWER{number}OFXFLOW" for number in range(len(parts))]
        messages: list[dict[str, Any]] = []
        for (images, words), mark in zip(parts, marks, strict=True):
            content: list[dict[str, str]] = [{"type": "image"} for _ in images]
            content += [{"type": "text", "text": words}] if words else []
            messages.append({"role": "user", "content": content})
            messages.append({"role": "assistant", "content": [{"type": "text", "text": mark}]})
        chat = self.processor.apply_chat_template(messages[:-1], add_generation_prompt=True, tokenize=False)
        ending = self.processor.tokenizer.convert_ids_to_tokens(self.end)
        turns = []
        for (images, _), mark in zip(parts, [*marks[:-1], ""], strict=True):
            part, found, chat = chat.partition(mark + ending) if mark else (chat, True, "")
            if not found:
                raise EngineError("The chat template changes the model's own words.")
            turns.append(self.tokens_of(part, images))
        return turns


def _with_adapter(model: Gemma3ForConditionalGeneration | PeftModel, name: str, folder: Path) -> PeftModel:
    try:
        with safe_open(folder / "adapter_model.safetensors", "pt") as weights:
            given = set(weights.keys())
        if isinstance(model, PeftModel):
            model.load_adapter(str(folder), name, local_files_only=True, autocast_adapter_dtype=False)
            adapted = model
        else:
            adapted = PeftModel.from_pretrained(
                model, str(folder), name, local_files_only=True, autocast_adapter_dtype=False
            )
        # PEFT leaves out what has no place and keeps random numbers for what is lacking, with a warning at most.
        odd = sorted(given ^ set(get_peft_model_state_dict(adapted, adapter_name=name)))
        if odd:
            raise ValueError(f"{odd[0]} {'has no place in it' if odd[0] in given else 'is lacking'}")
        return adapted
    except _UNREADABLE as problem:
        first = str(problem).strip().splitlines()[0] if str(problem).strip() else repr(problem)
        raise BundleError(f"The adapter in {folder} does not fit the base model, or is damaged: {first}") from None


class Pictures:
    """The soft tokens of the pictures around one radiograph (itself, and each mask laid over it), each encoded once.

    Lives among the features of an :class:`~xflow_core.radiograph.encoded.EncodedRadiograph`. Beyond 64 the least
    recently used are let go.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._tokens: OrderedDict[str, Tensor] = OrderedDict()

    def tokens(self, key: str, draw: Callable[[], np.ndarray], gemma: MedGemma) -> Tensor:
        """The soft tokens of the picture called ``key``; ``draw`` gives it, uint8 ``[S, S, 3]``, when it is needed."""
        if key not in self._tokens:
            self._tokens[key] = gemma.soft_tokens(draw())
            if len(self._tokens) > _KEPT_PICTURES:
                self._tokens.popitem(last=False)
        self._tokens.move_to_end(key)
        return self._tokens[key]

    def symbols(self, key: str, count: int) -> list[int]:
        """The symbols that stand for a picture's ``count`` soft tokens in a conversation."""
        number = self._numbers.setdefault(key, len(self._numbers))
        return [-(number + 1)] * count

    def key_of(self, symbol: int) -> str:
        return next(key for key, number in self._numbers.items() if number == -symbol - 1)

    @property
    def nbytes(self) -> int:
        return sum(tokens.nbytes for tokens in self._tokens.values())


class Conversation:
    """The key-value cache of one policy about one radiograph. Call it only inside ``gemma.using(adapter)``."""

    def __init__(self, gemma: MedGemma) -> None:
        self._gemma = gemma
        self._cache = DynamicCache()
        self._symbols: list[int] = []
        self._logits: Tensor | None = None

    def __len__(self) -> int:
        return len(self._symbols)

    def after(self, symbols: Sequence[int], features: Callable[[int], Tensor]) -> Tensor:
        """The logits ``[vocabulary]``, float32 or finer, of what follows ``symbols``.

        Args:
            features: the soft tokens ``[tokens, hidden]`` of a symbol's image; asked for new images only.
        """
        symbols = list(symbols)
        if symbols == self._symbols and self._logits is not None:
            return self._logits
        kept = _common(self._symbols, symbols)
        if kept == len(symbols):
            kept -= 1  # the last one is fed again: its logits are gone
        self._logits = None
        if kept < len(self._symbols):
            self._cache.crop(kept - len(self._symbols))
            self._symbols = self._symbols[:kept]
        try:
            self._logits = self._feed(symbols, kept, features)
        except BaseException:
            # A pass that failed half-way (out of memory) may have grown some layers: nothing of it is used again.
            self._cache, self._symbols = DynamicCache(), []
            raise
        self._symbols = symbols
        return self._logits

    def _feed(self, symbols: list[int], kept: int, features: Callable[[int], Tensor]) -> Tensor:
        gemma, device = self._gemma, self._gemma.device
        new = symbols[kept:]
        ids = torch.tensor([[max(symbol, 0) for symbol in new]], device=device)
        embedded = gemma.gemma.get_input_embeddings()(ids)
        start = 0
        while start < len(new):
            length = 1
            if new[start] < 0:
                soft = features(new[start])
                length = soft.shape[0]
                if new[start : start + length] != [new[start]] * length:
                    raise EngineError("An image's tokens do not stand together in the conversation.")
                embedded[0, start : start + length] = soft.to(embedded.dtype)
            start += length
        gemma.work.passes += 1
        gemma.work.fed += len(new)
        out = gemma.gemma(
            inputs_embeds=embedded,
            attention_mask=masks(symbols, kept, gemma.window, device),
            cache=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = out.logits[0, -1]
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    count = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        count += 1
    return count


def masks(symbols: Sequence[int], kept: int, window: int, device: torch.device) -> dict[str, Tensor]:
    """What the symbols from ``kept`` on may look at, for each kind of layer: bool
    ``[1, 1, len(symbols) - kept, len(symbols)]``. Before them, in the same image, and in sliding layers not further
    back than ``window``."""
    signs = torch.tensor(symbols, device=device)
    index = torch.arange(len(symbols), device=device)
    # Numbered by where a block of equal symbols starts, so that a picture shown twice makes two blocks.
    starts = torch.ones(len(symbols), dtype=torch.long, device=device)
    starts[1:] = (signs[1:] != signs[:-1]).long()
    block = torch.where(signs < 0, starts.cumsum(0), 0)
    rows = index[kept:, None]
    together = (block[kept:, None] == block[None]) & (block[None] > 0)
    before = index[None] <= rows
    near = index[None] > rows - window
    full = before | together
    sliding = full & near
    return {"full_attention": full[None, None], "sliding_attention": sliding[None, None]}


def seeded(seed: int, symbols: Sequence[int], pictures: Pictures) -> torch.Generator:
    """A generator that depends on the seed and on all that stands before, and on nothing else: equal beginnings give
    equal continuations, however the conversation got there."""
    named = [str(symbol) if symbol >= 0 else pictures.key_of(symbol) for symbol in symbols]
    digest = hashlib.sha256(f"{seed} {' '.join(named)}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
