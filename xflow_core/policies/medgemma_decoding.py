"""Decoding constrained to a transcript's plan, token by token or jumping over what is forced.

The constraint is on tokens, not on characters: the model may write exactly the token sequence that training writes for
the same decisions (:class:`PieceTokens`), and no other spelling of the same text in tokens. So a token that is the only
one left has probability one, and skipping the model there (jump-forward: a forced span costs no step of its own, its
tokens are fed together with the next decision's) changes nothing at all.

That is why this is an automaton of its own and not xgrammar, outlines or llguidance. They constrain the text, and where
two texts part they admit every spelling of both in tokens (tried with llguidance 1.9: a verdict may begin with its own
token, with a bare space, or with a byte). A verdict's probability would be spread over spellings that training never
wrote, and what is forced would hang on the spelling before it. It is small, too: the numbers of a box depend on those
before it (x1 < x2, inside the picture, in a judged region), which a context-free grammar cannot say. No torch is
imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from xflow_core.domain.errors import BundleError

from .transcript import END, Choice, Number, Plan

T = TypeVar("T")

# (tokens so far, the place that is decided, allowed tokens with the options that each leaves open) -> the token.
Chooser = Callable[[Sequence[int], "Choice | Number", dict[int, tuple[str, ...]]], int]


class PieceTokens:
    """The one way from a transcript to tokens, for decoding and for training: piece by piece.

    ``encode`` cuts every piece of :func:`~.transcript.write` by itself and joins the tokens. Pieces end where tokens of
    Gemma's vocabulary end (beside digits, which it never merges, at line breaks, before a space), so this is how it
    cuts the whole text, too; :meth:`cuts_alike` says whether that holds for a tokenizer.

    Args:
        tokenizer: a Hugging Face tokenizer.
        end: the token that ends a turn.

    Raises:
        BundleError: the tokenizer cannot write a transcript (a piece does not come back as it was).
    """

    def __init__(self, tokenizer: Any, end: int) -> None:
        self._tokenizer = tokenizer
        self._end = end
        self._known: dict[str, tuple[int, ...]] = {END: (end,)}

    def of(self, piece: str) -> tuple[int, ...]:
        """The tokens of one piece; of :data:`~.transcript.END`, the end of the turn."""
        found = self._known.get(piece)
        if found is None:
            found = tuple(self._tokenizer.encode(piece, add_special_tokens=False))
            if self.text(found) != piece:
                raise BundleError(f"The bundle's tokenizer cannot write {piece!r}; it is not one for transcripts.")
            # Numbers, markers, names: a few thousand pieces at most.
            self._known[piece] = found
        return found

    def encode(self, pieces: Sequence[str]) -> list[int]:
        return [token for piece in pieces for token in self.of(piece)]

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without the end of the turn."""
        kept = [token for token in tokens if token != self._end]
        return str(
            self._tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False) if kept else ""
        )

    def cuts_alike(self, pieces: Sequence[str]) -> bool:
        """Whether the tokenizer cuts the whole text as :meth:`encode` does."""
        text = "".join(pieces)
        whole = self._tokenizer.encode(text, add_special_tokens=False)
        return whole == [token for token in self.encode(pieces) if token != self._end]


@dataclass(frozen=True)
class Written(Generic[T]):
    """What was decoded: the plan's value, its pieces, its tokens."""

    value: T
    pieces: tuple[str, ...]
    tokens: tuple[int, ...]

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def decode(
    plan: Plan[T], tokens: PieceTokens, prefix: Sequence[int], choose: Chooser, *, jump: bool = True
) -> Written[T]:
    """Let ``choose`` answer a plan.

    Args:
        prefix: the tokens before.
        choose: picks one of the allowed tokens, given all tokens so far.
        jump: ask ``choose`` only where more than one token is allowed. False asks it everywhere: the same, slower.
    """
    sequence = list(prefix)
    pieces: list[str] = []
    try:
        step = next(plan)
        while True:
            options = {step: tokens.of(step)} if isinstance(step, str) else _spelled(step, tokens)
            place = Choice((step,)) if isinstance(step, str) else step
            answer = _follow(place, options, sequence, choose, jump)
            pieces.append(answer)
            if place.then:
                pieces.append(place.then)
            step = plan.send("" if isinstance(step, str) else answer)
    except StopIteration as end:
        return Written(end.value, tuple(pieces), tuple(sequence[len(prefix) :]))


def _spelled(step: Choice | Number, tokens: PieceTokens) -> dict[str, tuple[int, ...]]:
    """Each option with its tokens and those of what follows it, which end it ("12," is not the beginning of "123,")."""
    then = tokens.of(step.then) if step.then else ()
    return {option: tokens.of(option) + then for option in step.options}


def _follow(
    place: Choice | Number, options: dict[str, tuple[int, ...]], sequence: list[int], choose: Chooser, jump: bool
) -> str:
    """Append one option's tokens to ``sequence``, asking ``choose`` where they part; the option."""
    depth = 0
    while True:
        allowed: dict[int, list[str]] = {}
        for option, spelled in options.items():
            if depth == len(spelled):
                if len(options) > 1:
                    raise BundleError(
                        f"The bundle's tokenizer cannot tell {sorted(options)[:3]} apart in a transcript."
                    )
                return option
            allowed.setdefault(spelled[depth], []).append(option)
        if len(allowed) == 1 and jump:
            (token,) = allowed
        else:
            token = choose(sequence, place, {each: tuple(left) for each, left in allowed.items()})
        options = {option: options[option] for option in allowed[token]}
        sequence.append(token)
        depth += 1
