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

Threads that decide at the same time share passes: each waits with what it would feed until all have something, and one
pass of the model takes it all, so that the weights are read once for it. The sequences lie one behind the other, each
with its own places and its own cache, and see nothing of one another; what comes out is equal up to the same rounding.

Most passes feed a token or a few words. On a GPU those are steps of fixed shape, recorded once and replayed
(:mod:`.medgemma_lanes`); the first question and each new picture go through passes of any shape.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import xflow_core.policies.bitsandbytes_alone  # noqa: F401  before peft, which imports bitsandbytes

# isort: split
import numpy as np
import torch
from peft import PeftModel, get_peft_model_state_dict
from PIL import Image
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoProcessor, BitsAndBytesConfig, DynamicCache, Gemma3ForConditionalGeneration

from xflow_core.domain.errors import BundleError, CallError, EngineError

from .medgemma_lanes import WIDTHS, FixedStep, Lane, LaneCache, Lanes, captured, compiled, grown_cache

LOG = logging.getLogger(__name__)

KEPT_CONVERSATIONS = 4
"""Conversations of a policy that are kept, the newest: each takes 139 KB a token at full size."""

PLAIN, FIXED, CAPTURED, COMPILED = "plain", "fixed", "captured", "compiled"
DECODING = (PLAIN, FIXED, CAPTURED, COMPILED)
"""How a few words are fed: with a cache that grows; in steps of fixed shape (:mod:`.medgemma_lanes`); those recorded as
CUDA graphs; and of these, those of one token compiled before. From slow to fast on a GPU."""

RECORDERS = {FIXED: None, CAPTURED: captured, COMPILED: compiled}

_KEPT_PICTURES = 64  # soft tokens of one picture are 1.3 MB at full size
_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    RuntimeError,
    SafetensorError,
)  # and an OutOfMemoryError, which is no fault of the files


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

    Threads that are inside :meth:`using` at the same time share passes (:meth:`step`); one at a time computes. Adapters
    hold LoRA weights and, where they were trained with one, a vision tower of their own; switching between them is
    exact.

    Args:
        model: in evaluation mode on its device; a ``PeftModel`` when it has adapters.
        processor: its ``Gemma3Processor``.
        decoding: one of :data:`DECODING`; the same answers, up to rounding.
    """

    def __init__(
        self, model: Gemma3ForConditionalGeneration | PeftModel, processor: Any, *, decoding: str = PLAIN
    ) -> None:
        self.decoding = decoding
        self._peft = model if isinstance(model, PeftModel) else None
        self.gemma: Any = model.get_base_model() if isinstance(model, PeftModel) else model
        self.processor = processor
        self.work = Work()
        self._compute = threading.RLock()
        self._active: str | None = None  # the adapter that was switched to last
        self._gate = threading.Condition()
        self._deciding = 0  # threads inside `using`
        self._waiting: list[_Step] = []
        self._own = threading.local()  # the thread's adapters, the innermost `using`'s last
        self._lanes: dict[str | None, Lanes] = {}  # by adapter
        self._fixed: dict[tuple[str | None, int], FixedStep] = {}  # by adapter and width
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
        four_bits: bool = False,
        decoding: str = PLAIN,
    ) -> MedGemma:
        """From local folders; nothing is downloaded, no code of theirs is run, weights are safetensors only.

        Args:
            base: config, processor, tokenizer and weights. adapters: PEFT folders by name.
            merge: add the adapter (there is one at most) into the base's weights; it is then no adapter any more.
            four_bits: the products of the language layers in NF4 (bitsandbytes), computed in ``dtype``; all else in
                ``dtype``.

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
                **(_in_four_bits(device, dtype) if four_bits else {}),
            )
        except torch.OutOfMemoryError:
            raise
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
        return cls(model.to(device).eval().requires_grad_(False), processor, decoding=decoding)

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
        """The model for this thread's decision, with one adapter, or none where it has none of that name.

        Others wait for this thread's next step: what takes long and needs no model is done outside.
        """
        own: list[str | None] = self._own.__dict__.setdefault("adapters", [])
        own.append(adapter)
        if len(own) == 1:
            with self._gate:
                self._deciding += 1
        try:
            with torch.inference_mode():
                yield
        finally:
            own.pop()
            if not own:
                with self._gate:
                    self._deciding -= 1
                    self._gate.notify_all()

    @contextmanager
    def _switched(self, adapter: str | None) -> Iterator[None]:
        """The model alone for this thread, with an adapter or none."""
        with self._compute:
            if self._peft is None:
                yield
            elif adapter in self._peft.peft_config:
                if self._active != adapter:
                    self._peft.set_adapter(adapter, inference_mode=True)
                    self._active = adapter
                yield
            else:
                self._active = None
                with self._peft.disable_adapter():
                    yield

    @contextmanager
    def at_rest(self) -> Iterator[str | None]:
        """No pass runs meanwhile; gives this thread's adapter. Call it inside :meth:`using`."""
        with self._compute:
            yield self._own.adapters[-1]

    def soft_tokens(self, picture: np.ndarray) -> Tensor:
        """A picture through the vision tower and the projector: ``[tokens, hidden]``. Call it inside :meth:`using`.

        picture: uint8 ``[S, S, 3]``, square.
        """
        processed = self.processor.image_processor(images=[Image.fromarray(picture)], return_tensors="pt")
        pixels = processed["pixel_values"].to(self.device, self.gemma.dtype)
        with self._switched(self._own.adapters[-1]):
            self.work.encoded += 1
            tokens: Tensor = self.gemma.model.get_image_features(pixels, return_dict=True).pooler_output[0]
        return tokens

    def step(self, step: _Step) -> Tensor:
        """The logits ``[vocabulary]`` after a step, which shares its pass with those of the other threads that decide.

        Raises:
            _Again: the pass that it shared failed; the step's conversation is empty.
        """
        step.adapter = self._own.adapters[-1]
        mine: list[_Step] = []
        with self._gate:
            self._waiting.append(step)
            try:
                while not step.done and not mine:
                    if len(self._waiting) == self._deciding:
                        mine, self._waiting = self._waiting, []
                    else:
                        self._gate.wait()
            finally:
                if step in self._waiting:  # this thread was interrupted; the others do not wait for it
                    self._waiting.remove(step)
        if mine:
            try:
                self._take(mine)
            finally:
                with self._gate:
                    for each in mine:
                        each.done = True
                    self._gate.notify_all()
        if step.failure is not None:
            raise step.failure
        if step.logits is None:
            raise EngineError("The language model was interrupted.")
        return step.logits

    def _take(self, steps: Sequence[_Step]) -> None:
        """The passes that the steps need, together for all of an adapter, but for those that want theirs alone."""
        shared: dict[str | None, list[_Step]] = {}
        for step in steps:
            if not step.alone:
                shared.setdefault(step.adapter, []).append(step)
        for group in [*shared.values(), *([step] for step in steps if step.alone)]:
            try:
                with self._switched(group[0].adapter):
                    self._pass(group)
            except Exception as problem:  # noqa: BLE001  raised again in the thread whose step it is
                for step in group:
                    # A pass that failed half-way (out of memory) may have grown some layers: nothing is used again.
                    step.conversation.forget()
                    step.failure = problem if len(group) == 1 else _Again()

    def _pass(self, group: Sequence[_Step]) -> None:
        """One pass for all; where there are lanes one for those of a width, and one for each that is of none.

        So with lanes no conversation's numbers depend on what is beside it, to the last bit.
        """
        for step in group:
            step.conversation.settle(step.kept, step.adapter)
        fixed: dict[int, list[_Step]] = {}
        others = []
        for step in group:
            if step.conversation.lane is None or step.width is None or step.alone:
                others.append(step)
            else:
                fixed.setdefault(step.width, []).append(step)
        for width, steps in fixed.items():
            self._fixed_pass(steps, width)
        for together in [[step] for step in others] if self.decoding != PLAIN else [others]:
            self._free_pass(together)

    def lane(self, adapter: str | None) -> Lane | None:
        """A free lane for a conversation with an adapter; None where all are taken, or decoding is plain."""
        if self.decoding == PLAIN:
            return None
        if adapter not in self._lanes:
            config = self.gemma.config.text_config
            self._lanes[adapter] = Lanes(KEPT_CONVERSATIONS, config, self.device, self.gemma.dtype)
        return self._lanes[adapter].take()

    def _fixed_pass(self, group: Sequence[_Step], width: int) -> None:
        adapter, lanes = group[0].adapter, self._lanes[group[0].adapter]
        given = {}
        for step in group:
            lane = step.conversation.lane
            assert lane is not None
            lanes.make_room(len(step.symbols))
            given[lane.number] = step.symbols[step.kept :], step.kept
        logits = self._run_fixed(adapter, lanes, width, given)
        self.work.passes += 1
        self.work.fed += sum(len(tokens) for tokens, _ in given.values())
        for step in group:
            lane = step.conversation.lane
            assert lane is not None
            lane.length = len(step.symbols)
            step.logits = logits[lane.number]

    def _run_fixed(
        self,
        adapter: str | None,
        lanes: Lanes,
        width: int,
        given: Mapping[int, tuple[Sequence[int], int]],
    ) -> Tensor:
        # What was recorded before the lanes moved is of no use.
        self._fixed = {key: step for key, step in self._fixed.items() if key[0] != adapter or step.room == lanes.room}
        key = adapter, width
        place = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with place:
            while True:
                if key not in self._fixed:
                    # Compiling takes long: the step of one token alone, which most passes are.
                    way = CAPTURED if self.decoding == COMPILED and width > 1 else self.decoding
                    self._fixed[key] = FixedStep(self.gemma, lanes, width, RECORDERS[way])
                try:
                    return self._fixed[key](given)
                except torch.OutOfMemoryError:
                    raise
                # Compilers and drivers raise what they like; without them it is slower, and as right.
                except Exception as problem:
                    if self.decoding == FIXED or self._fixed[key].ready:
                        raise
                    less = DECODING[DECODING.index(self.decoding) - 1]
                    LOG.warning(
                        "Decoding %r does not work here (%s); %r is used, which is slower.",
                        self.decoding,
                        next(iter(str(problem).splitlines()), type(problem).__name__)[:200],
                        less,
                    )
                    self.decoding = less
                    del self._fixed[key]

    def _free_pass(self, group: Sequence[_Step]) -> None:
        """A pass of any symbols."""
        device = self.device
        self.work.passes += 1
        self.work.fed += sum(len(step.symbols) - step.kept for step in group)
        looks = [masks(step.symbols, step.kept, self.window, device) for step in group]
        places = torch.cat([torch.arange(step.kept, len(step.symbols), device=device) for step in group])
        caches = [step.conversation.cache(step.kept, len(step.symbols)) for step in group]
        embedded = [self._embedded(step) for step in group]
        if len(group) == 1:
            (mask,) = looks
            more: dict[str, Any] = {"cache": caches[0], "logits_to_keep": 1}
        else:
            diagonal: Any = torch.block_diag
            mask = {kind: diagonal(*(look[kind][0, 0] for look in looks)).bool()[None, None] for kind in looks[0]}
            lengths = [each.shape[1] for each in embedded]
            more = {
                "cache": _SideBySide(caches, lengths),
                "logits_to_keep": torch.tensor(lengths, device=device).cumsum(0) - 1,
            }
        out = self.gemma(
            inputs_embeds=torch.cat(embedded, dim=1),
            attention_mask=mask,
            position_ids=places[None],
            use_cache=True,
            **more,
        )
        logits = out.logits[0]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        for step, row in zip(group, logits, strict=True):
            step.logits = row

    def _embedded(self, step: _Step) -> Tensor:
        """What is fed for the new symbols of a step: ``[1, symbols, hidden]``."""
        new = step.symbols[step.kept :]
        ids = torch.tensor([[max(symbol, 0) for symbol in new]], device=self.device)
        embedded: Tensor = self.gemma.get_input_embeddings()(ids)
        for start, soft in step.soft.items():
            embedded[0, start : start + soft.shape[0]] = soft.to(embedded.dtype)
        return embedded

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


def _in_four_bits(device: str, dtype: torch.dtype) -> dict[str, Any]:
    settings: Any = BitsAndBytesConfig
    return {
        "quantization_config": settings(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
            # By their full names: transformers does not know "vision_tower" alone.
            llm_int8_skip_modules=["model.vision_tower", "model.multi_modal_projector", "lm_head"],
        ),
        "device_map": {"": device},
    }


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
    except torch.OutOfMemoryError:
        raise
    except _UNREADABLE as problem:
        first = str(problem).strip().splitlines()[0] if str(problem).strip() else repr(problem)
        raise BundleError(f"The adapter in {folder} does not fit the base model, or is damaged: {first}") from None


def check_decoding(decoding: str, device: str) -> str:
    """The way of decoding on a device: ``auto`` is ``captured`` on CUDA, ``plain`` elsewhere.

    Raises:
        CallError: there is no such way, or not on the device.
    """
    if decoding not in (*DECODING, "auto"):
        raise CallError(f"There is no way of decoding {decoding!r}; choose auto, {', '.join(DECODING)}.")
    if decoding in (CAPTURED, COMPILED) and device != "cuda":
        raise CallError(f"Decoding {decoding!r} needs CUDA graphs, which {device} does not have; choose another.")
    if decoding == "auto":
        return CAPTURED if device == "cuda" else PLAIN
    return decoding


class Pictures:
    """The soft tokens of the pictures around one radiograph (itself, and each mask laid over it), each encoded once.

    Lives among the features of an :class:`~xflow_core.radiograph.encoded.EncodedRadiograph`. Beyond 64 the least
    recently used are let go.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # conversations about several components share them
        self._numbers: dict[str, int] = {}
        self._tokens: OrderedDict[str, Tensor] = OrderedDict()

    def tokens(self, key: str, draw: Callable[[], np.ndarray], gemma: MedGemma) -> Tensor:
        """The soft tokens of the picture called ``key``; ``draw`` gives it, uint8 ``[S, S, 3]``, when it is needed."""
        with self._lock:
            if key not in self._tokens:
                self._tokens[key] = gemma.soft_tokens(draw())
                if len(self._tokens) > _KEPT_PICTURES:
                    self._tokens.popitem(last=False)
            self._tokens.move_to_end(key)
            return self._tokens[key]

    def symbols(self, key: str, count: int) -> list[int]:
        """The symbols that stand for a picture's ``count`` soft tokens in a conversation."""
        with self._lock:
            number = self._numbers.setdefault(key, len(self._numbers))
        return [-(number + 1)] * count

    def key_of(self, symbol: int) -> str:
        with self._lock:
            return next(key for key, number in self._numbers.items() if number == -symbol - 1)

    @property
    def nbytes(self) -> int:
        return sum(tokens.nbytes for tokens in self._tokens.values())


class Conversation:
    """The key-value cache of one policy about one radiograph. Call it only inside ``gemma.using(adapter)``, one thread
    at a time.

    Args:
        siblings: other conversations of the same policy and pictures. A beginning that one of them has fed is taken
            over from it.
    """

    def __init__(self, gemma: MedGemma, siblings: Callable[[], Sequence[Conversation]] = tuple) -> None:
        self._gemma = gemma
        self._siblings = siblings
        self._held: Lane | DynamicCache | None = None
        self._symbols: list[int] = []
        self._logits: Tensor | None = None

    def __len__(self) -> int:
        return len(self._symbols)

    @property
    def lane(self) -> Lane | None:
        return self._held if isinstance(self._held, Lane) else None

    def forget(self) -> None:
        """Nothing of it is kept; the next question feeds all anew."""
        self._held, self._symbols, self._logits = None, [], None

    def settle(self, kept: int, adapter: str | None) -> None:
        """Have somewhere to keep things, and in it the first ``kept`` symbols."""
        if self._held is None:
            self._held = self._gemma.lane(adapter) or DynamicCache()
        elif isinstance(self._held, DynamicCache) and (beyond := self._held.get_seq_length() - kept) > 0:
            self._held.crop(-beyond)

    def cache(self, kept: int, length: int) -> DynamicCache | LaneCache:
        """For a pass that feeds the symbols from ``kept`` to ``length``."""
        assert self._held is not None
        return self._held.cache(kept, length) if isinstance(self._held, Lane) else self._held

    def after(self, symbols: Sequence[int], features: Callable[[int], Tensor]) -> Tensor:
        """The logits ``[vocabulary]``, float32 or finer, of what follows ``symbols``.

        Args:
            features: the soft tokens ``[tokens, hidden]`` of a symbol's image; asked for new images only.
        """
        symbols = list(symbols)
        if symbols == self._symbols and self._logits is not None:
            return self._logits
        kept = self._begun(symbols)
        if kept == len(symbols):
            kept -= 1  # the last one is fed again: its logits are gone
        self._logits = None
        self._symbols = symbols[:kept]
        try:
            try:
                logits = self._gemma.step(_Step(self, symbols, kept, _soft(symbols[kept:], features)))
            except _Again:
                # Together it was too much, or another one's fault: alone.
                logits = self._gemma.step(_Step(self, symbols, 0, _soft(symbols, features), alone=True))
        except BaseException:
            self.forget()
            raise
        self._symbols, self._logits = symbols, logits
        return logits

    def _begun(self, symbols: list[int]) -> int:
        """How many of the first symbols are held, by this conversation or now by it, too."""
        own = _common(self._symbols, symbols)
        if own == len(self._symbols) > 0:
            return own
        with self._gemma.at_rest() as adapter:
            there = [(_common(other._symbols, symbols), other) for other in self._siblings()]
            most, nearest = max(there, key=lambda entry: entry[0], default=(0, self))
            if most <= own:
                return own
            held = nearest.held(most)
            lane = self.lane or self._gemma.lane(adapter)
            if lane is None:
                self._held = grown_cache(held)
            else:
                lane.fill(held)
                self._held = lane
        return most

    def held(self, length: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values ``[1, heads, length, size]`` of each layer; no copies."""
        if isinstance(self._held, Lane):
            return self._held.held(length)
        layers = () if self._held is None else self._held.layers
        return [(layer.keys[:, :, :length], layer.values[:, :, :length]) for layer in layers]


def _soft(new: list[int], features: Callable[[int], Tensor]) -> dict[int, Tensor]:
    """The images among new symbols, by where each starts."""
    found = {}
    start = 0
    while start < len(new):
        length = 1
        if new[start] < 0:
            found[start] = features(new[start])
            length = found[start].shape[0]
            if new[start : start + length] != [new[start]] * length:
                raise EngineError("An image's tokens do not stand together in the conversation.")
        start += length
    return found


class _Again(Exception):
    """A pass that several conversations shared failed."""


@dataclass(eq=False)
class _Step:
    """What a conversation feeds, and what comes of it.

    symbols: the whole conversation. kept: of these, how many its cache holds. soft: the images among the others, by
    where each starts. alone: it shares no pass.
    """

    conversation: Conversation
    symbols: list[int]
    kept: int
    soft: dict[int, Tensor]
    alone: bool = False
    adapter: str | None = None
    logits: Tensor | None = None
    failure: Exception | None = None
    done: bool = False

    @property
    def width(self) -> int | None:
        """Of the narrowest fixed step that can feed it; None where none can: there is an image in it, or too much."""
        return None if self.soft else next((w for w in WIDTHS if w >= len(self.symbols) - self.kept), None)


class _SideBySide:
    """The caches of several conversations as one sequence's: each takes its own new keys and values, and all that they
    hold is looked at, one conversation behind the other.

    lengths: new symbols of each.
    """

    def __init__(self, caches: Sequence[DynamicCache | LaneCache], lengths: list[int]) -> None:
        self._caches = caches
        self._lengths = lengths

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """New keys and values ``[1, heads, symbols, size]`` of a layer in, all of them out."""
        new = zip(*(torch.split(each, self._lengths, dim=2) for each in (keys, values)), strict=True)
        held = [cache.update(*own, layer) for cache, own in zip(self._caches, new, strict=True)]
        return torch.cat([k for k, _ in held], dim=2), torch.cat([v for _, v in held], dim=2)


def _common(a: list[int], b: list[int]) -> int:
    if b[: len(a)] == a:
        return len(a)
    count = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        count += 1
    return count


def masks(symbols: Sequence[int], kept: int, window: int, device: torch.device) -> dict[str, Tensor]:
    """What the symbols from ``kept`` on may look at, for each kind of layer: bool ``[1, 1, new, all]``. Before them, in
    the same image, and in sliding layers not further back than ``window``."""
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
    return {"full_attention": full[None, None], "sliding_attention": (full & near)[None, None]}


def seeded(seed: int, symbols: Sequence[int], pictures: Pictures) -> torch.Generator:
    """A generator that depends on the seed and on all that stands before, and on nothing else: equal beginnings give
    equal continuations, however the conversation got there."""
    named = [str(symbol) if symbol >= 0 else pictures.key_of(symbol) for symbol in symbols]
    digest = hashlib.sha256(f"{seed} {' '.join(named)}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
