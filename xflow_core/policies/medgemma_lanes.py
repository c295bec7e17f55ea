"""Text fed to conversations in passes of one shape, whose keys and values keep their places in memory.

A pass over a cache that grows is another program at every token: other shapes, other addresses, some three thousand
small kernels that are launched one by one, and on a GPU that takes ten times as long as reading the weights. Here a
pass of ``width`` tokens is always the same program. Where a conversation stands is in a tensor and not in a number of
Python's, so the pass can be recorded once and replayed (a CUDA graph, :func:`captured`), and compiled.

:class:`Lanes` holds the keys and values of a policy's conversations, a lane for each. A :class:`FixedStep` feeds up to
``width`` tokens to every lane; what it is given less is filled up. Tokens that fill up write behind a conversation's
end, where nothing looks before it is written again.

All lanes are computed always, also for one conversation alone. That costs the reading of the idle lanes' places (a
tenth of what the weights take), and gains that a conversation's numbers are the same to the last bit whatever is
beside it: the last digits of a product depend on its shape, and the shape is always the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

WIDTHS = (1, 8, 64)
"""Tokens of a fixed step: a digit, a short forced span, the longest one (some fifty tokens between two boxes)."""

ROOM = 2048
"""Places of a lane at first: a conversation of four clicks takes 1500. It doubles when it is full."""

_ROUNDING = 0.05
"""Of all logits together: what compiling changes in bfloat16 stays well below, what is wrong is far above."""

KeysValues: TypeAlias = tuple[Tensor, Tensor]


class Lane:
    """The places of one conversation; free for another one when nothing refers to it any more.

    Attributes:
        number: which of the lanes. length: places that hold something.
    """

    def __init__(self, lanes: Lanes, number: int) -> None:
        self.lanes = lanes
        self.number = number
        self.length = 0

    def held(self, length: int) -> list[KeysValues]:
        """Keys and values ``[1, heads, length, size]`` of each layer; no copies."""
        return [self.held_of(layer, length) for layer in range(len(self.lanes.layers))]

    def held_of(self, layer: int, length: int) -> KeysValues:
        """The same of one layer."""
        keys, values = self.lanes.layers[layer]
        own = slice(self.number, self.number + 1)
        return keys[own, :, :length], values[own, :, :length]

    def fill(self, held: Sequence[KeysValues]) -> None:
        """Take over what another conversation holds."""
        self.length = held[0][0].shape[2]
        self.lanes.make_room(self.length)
        for own, given in zip(self.held(self.length), held, strict=True):
            for places, new in zip(own, given, strict=True):
                places.copy_(new)

    def cache(self, kept: int, length: int) -> LaneCache:
        """For a pass of any shape that feeds the symbols from ``kept`` to ``length``."""
        self.lanes.make_room(length)
        self.length = length
        return LaneCache(self, kept, length)


class LaneCache:
    """A lane as the cache of one pass."""

    def __init__(self, lane: Lane, kept: int, length: int) -> None:
        self._lane = lane
        self._kept, self._length = kept, length

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> KeysValues:
        """New keys and values ``[1, heads, symbols, size]`` of a layer in, all of them out."""
        # Looked up now: another one's cache of the same pass may have moved the lanes.
        held = self._lane.held_of(layer, self._length)
        for places, new in zip(held, (keys, values), strict=True):
            places[:, :, self._kept :] = new
        return held


class Lanes:
    """Keys and values of up to ``count`` conversations of one policy, made at once; 139 KB a place at full size.

    Args:
        config: the language model's.
    """

    def __init__(self, count: int, config: Any, device: torch.device, dtype: torch.dtype) -> None:
        self.count = count
        self.room = ROOM
        self._shape = config.num_key_value_heads, config.head_dim
        self._taken: list[weakref.ref[Lane] | None] = [None] * count
        self.layers: list[KeysValues] = [
            (self._empty(device, dtype), self._empty(device, dtype)) for _ in range(config.num_hidden_layers)
        ]

    def _empty(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        heads, size = self._shape
        # Zeros: a place that is masked counts nothing times what it holds, which must be a number.
        return torch.zeros(self.count, heads, self.room + WIDTHS[-1], size, device=device, dtype=dtype)

    def holder(self, number: int) -> Lane | None:
        """The lane of that number, where a conversation has it."""
        taken = self._taken[number]
        return None if taken is None else taken()

    def take(self) -> Lane | None:
        """A free lane, empty; None where there is none."""
        for number in range(self.count):
            if self.holder(number) is None:
                lane = Lane(self, number)
                self._taken[number] = weakref.ref(lane)
                for pair in self.layers:
                    for places in pair:
                        places[number].zero_()
                return lane
        return None

    def make_room(self, length: int) -> None:
        """See that ``length`` places and a widest step behind them fit; when they do not, all lanes move."""
        if length <= self.room:
            return
        before = self.room
        while self.room < length:
            self.room *= 2
        for index, pair in enumerate(self.layers):
            grown = tuple(self._empty(places.device, places.dtype) for places in pair)
            for places, larger in zip(pair, grown, strict=True):
                larger[:, :, :before] = places[:, :, :before]
            self.layers[index] = grown[0], grown[1]


class FixedStep:
    """A pass of fixed shapes: up to ``width`` tokens to each lane, of those that have some.

    Args:
        gemma: a ``Gemma3ForConditionalGeneration``, with the adapter that the lanes are of switched on.
        record: what :meth:`compute` is called through; :func:`captured` on CUDA.
    """

    def __init__(
        self,
        gemma: Any,
        lanes: Lanes,
        width: int,
        record: Callable[[Callable[[], Tensor]], Callable[[], Tensor]] | None = None,
    ) -> None:
        device, count = lanes.layers[0][0].device, lanes.count
        self._gemma = gemma
        self._lanes = lanes
        self.room = lanes.room
        self._layers = lanes.layers.copy()
        self._width = width
        self._window: int = gemma.config.text_config.sliding_window
        # A row for each lane: its tokens, where the first of them stands, which of them is the last.
        self._given = torch.zeros(count, width + 2, dtype=torch.long, device=device)
        self._places = torch.arange(lanes.room + WIDTHS[-1], device=device)
        self._rows = torch.arange(count, device=device)
        self._record = record
        self._run: Callable[[], Tensor] | None = None

    @property
    def ready(self) -> bool:
        """Whether it has been recorded."""
        return self._run is not None

    def __call__(self, tokens: Mapping[int, tuple[Sequence[int], int]]) -> Tensor:
        """Feed tokens, and give the logits after the last of each lane: ``[lanes, vocabulary]``, float32 or finer.

        Args:
            tokens: by a lane's number, its tokens and where the first of them stands.
        """
        rows = []
        for number in range(self._lanes.count):
            lane = self._lanes.holder(number)
            given, start = tokens.get(number, ((0,), 0 if lane is None else lane.length))
            rows.append([*given, *[0] * (self._width - len(given)), start, len(given) - 1])
        self._given.copy_(torch.tensor(rows))
        with _grouped_attention(self._gemma):
            if self._run is None:
                self._run = self.compute if self._record is None else self._recorded(self._record)
            # A recorded pass always gives the same memory.
            return self._run().clone()

    def _recorded(self, record: Callable[[Callable[[], Tensor]], Callable[[], Tensor]]) -> Callable[[], Tensor]:
        """The pass as it was recorded, once it was seen to give what the pass itself gives, up to rounding."""
        run = record(self.compute)
        expected, found = self.compute(), run()
        if not float((found - expected).norm()) <= _ROUNDING * float(expected.norm()):
            raise RuntimeError("the recorded pass gives other numbers than the pass itself")
        return run

    def compute(self) -> Tensor:
        """The pass itself: what it depends on is in tensors whose addresses stay."""
        tokens, start, last = torch.split(self._given, [self._width, 1, 1], dim=1)
        at = start + self._places[: self._width]
        before = self._places <= at[:, None, :, None]
        near = self._places > at[:, None, :, None] - self._window
        out = self._gemma(
            inputs_embeds=self._gemma.get_input_embeddings()(tokens),
            attention_mask={"full_attention": before, "sliding_attention": before & near},
            position_ids=at,
            cache=_Written(self._layers, self._rows[:, None], at),
            use_cache=True,
            logits_to_keep=last,
        )
        logits: Tensor = out.logits[:, 0]
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


class _Written:
    """The lanes as the cache of a fixed step: new keys and values go where ``at`` says, all places come out."""

    def __init__(self, layers: Sequence[KeysValues], rows: Tensor, at: Tensor) -> None:
        self._layers = layers
        self._rows = rows
        self._at = at

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> KeysValues:
        for places, new in zip(self._layers[layer], (keys, values), strict=True):
            places[self._rows, :, self._at] = new.transpose(1, 2)
        return self._layers[layer]


# Attention of a few tokens to many places ----------------------------------------------------------------------------


_GROUPED = "xflow_grouped"


@contextmanager
def _grouped_attention(gemma: Any) -> Iterator[None]:
    """The language layers use :func:`grouped_attention`."""
    config = gemma.model.language_model.config
    before, config._attn_implementation = config._attn_implementation, _GROUPED
    try:
        yield
    finally:
        config._attn_implementation = before


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, *, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Attention as two products for each key-value head, under the signature of transformers' attention functions.

    The fused kernels of ``scaled_dot_product_attention`` give each head and block of queries to one processor of the
    GPU: with one token and four key-value heads, to four of 132, which read the cache slowly. Two products are spread
    over its places.

    Args:
        query: ``[B, heads, T, size]``. key, value: ``[B, key-value heads, places, size]``.
        attention_mask: bool ``[B, 1, T, places]``.

    Returns:
        ``[B, T, heads, size]``, and no weights.
    """
    batch, heads, length, size = query.shape
    groups: int = module.num_key_value_groups
    packed = (query * scaling).reshape(batch, heads // groups, groups * length, size)
    scores = (packed @ key.transpose(2, 3)).view(batch, heads // groups, groups, length, -1)
    scores = scores.masked_fill(~attention_mask[:, :, None], -torch.inf)
    shares = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
    out = shares.flatten(2, 3) @ value
    return out.reshape(batch, heads, length, size).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(_GROUPED, grouped_attention)


# Recording -----------------------------------------------------------------------------------------------------------


def captured(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A pass as a CUDA graph: its kernels are recorded once and launched together at every call.

    Call it, and what it gives, with the pass's device as the current one. Other threads may use the device meanwhile.
    """
    aside: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        compute()  # what a first pass sets up (workspaces, compiled kernels) is no part of the graph
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        out = compute()

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


def compiled(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The same of a pass whose small operations ``torch.compile`` has joined, which takes about a minute the first
    time."""
    return captured(torch.compile(compute, fullgraph=True, dynamic=False))


def grown_cache(held: Sequence[KeysValues]) -> DynamicCache:
    """A cache of its own with copies of keys and values."""
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(held):
        cache.update(keys.clone(), values.clone(), layer)
    return cache
