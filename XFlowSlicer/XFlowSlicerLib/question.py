"""The line in which a question is typed: what it may become, and how it is understood before anything runs.

What a sentence means is decided by :mod:`xflow_core.domain.instruction` alone, here and in the engine. Chips and the
region picker write a sentence into the line, so that there is one way to ask; what they write is read back like
anything that is typed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xflow_core.domain.errors import InstructionError, ValueRefused
from xflow_core.domain.findings import CHEST, FINDINGS, HEART, LUNGS, ZONES, check_finding, check_region
from xflow_core.domain.instruction import Instruction, describe, parse_instruction
from xflow_core.domain.lexicon import NAMES, SYNONYMS
from xflow_core.service.protocol import MAX_INSTRUCTION_CHARS

FINDING_CHIPS = FINDINGS
_LONGEST = 5  # words of a completion that may have been typed already


@dataclass(frozen=True)
class RegionChoice:
    """An entry of the region picker: the region's ``name`` in the trace, and its ``label`` for the reader."""

    name: str
    label: str


@dataclass(frozen=True)
class Understood:
    """How a line is read.

    Attributes:
        ok: whether it can be asked.
        sentence: ``effusion, patient's left lung``, several findings joined by "; "; else why it cannot be asked, and
            "" for a line without a word.
        notes: what was assumed on the way, each a sentence.
        instructions: one for each finding.
    """

    ok: bool
    sentence: str
    notes: tuple[str, ...] = ()
    instructions: tuple[Instruction, ...] = ()


def understood(text: str) -> Understood:
    """What a line asks for, in the words that stand under it; no engine is needed."""
    if not text.strip():
        return Understood(False, "")
    if len(text) > MAX_INSTRUCTION_CHARS:
        return Understood(False, f"The instruction is longer than {MAX_INSTRUCTION_CHARS} characters; shorten it.")
    try:
        instructions = parse_instruction(text)
    except InstructionError as problem:
        return Understood(False, str(problem))
    notes = dict.fromkeys(note for instruction in instructions for note in instruction.notes)
    return Understood(True, "; ".join(map(describe, instructions)), tuple(notes), instructions)


def region_choices(findings: Sequence[str]) -> tuple[RegionChoice, ...]:
    """Where the findings can be asked: the heart for cardiomegaly alone, the chest, lungs and zones for all others."""
    if findings and set(map(check_finding, findings)) == {"cardiomegaly"}:
        return (RegionChoice(HEART, "heart"),)
    regions = (CHEST, *LUNGS, *ZONES)
    return tuple(RegionChoice(region, "whole chest" if region == CHEST else _plain(region)) for region in regions)


def sentence_for(findings: Sequence[str], region: str = CHEST) -> str:
    """The sentence that asks for ``findings`` in ``region``: ``Segment the effusion in the left lung``.

    Cardiomegaly is asked of the heart wherever the others are looked for.

    Raises:
        ValueRefused: no finding, or not one of the seven, or no region of XFlow.
    """
    if not findings:
        raise ValueRefused("No finding is chosen; choose one of the seven, or type a question.")
    check_region(region)
    placed = [check_finding(finding) for finding in findings if finding != "cardiomegaly"]
    asked = _listed([f"the {finding}" for finding in placed])
    if placed and region not in (CHEST, HEART):
        asked += f" in the {_plain(region)}"
    if len(placed) < len(findings):
        # Last, and after the place, which is the lungs' and not the heart's.
        asked = f"{asked}, and the cardiomegaly" if asked else "the cardiomegaly"
    return f"Segment {asked}"


def sentence_of(instruction: Instruction) -> str:
    """A sentence of its own for one of several findings that were asked for together; it is read as ``instruction``."""
    asked = f"{'No' if instruction.negated else 'Segment the'} {instruction.finding}"
    if instruction.level == "chest":
        return asked
    return f"{asked} in {_listed([f'the {_plain(region)}' for region in instruction.regions])}"


def complete(text: str, limit: int = 8) -> tuple[str, ...]:
    """Whole lines that a half-typed line may become, the likeliest first; each can be asked as it stands.

    >>> complete("eff")[0], complete("effusion in the l")[0]
    ('effusion', 'effusion in the left lung')
    """
    found: list[str] = []
    for line in _candidates(text):
        if len(found) == limit:
            break
        if line not in found and line != text and understood(line).ok:
            found.append(line)
    return tuple(found)


def _candidates(text: str) -> Iterator[str]:
    """Lines that go on from ``text``, its last words completed: a finding, a place, or "in the" and a place."""
    starts = [match.start() for match in re.finditer(r"[^\s,;]+", text)][-_LONGEST:]
    space = " " if text[-1:].isspace() else ""
    if space:
        starts.append(len(text))
    for start in starts:  # the more of what was typed is part of the completed words, the better
        head, typed = text[:start], " ".join(text[start:].casefold().split())
        typed += space if typed else ""
        if after := re.search(r"\b(?:in|at|on|of)\s+(the\s+)?$", head, re.IGNORECASE):
            article = "" if after[1] else "the "
            yield from (f"{head}{article}{place}" for place in _PLACES if place.startswith(typed.removeprefix("the ")))
            continue
        asked = understood(head).instructions
        if asked and asked[-1].regions == (CHEST,):
            yield from (f"{head}in the {place}" for place in _PLACES if f"in the {place}".startswith(typed))
        if typed and (not asked or re.search(r"(?:[,;]|\b(?:and|or|with|plus))\s*$", head, re.IGNORECASE)):
            yield from (head + name for word, name in _NAMES if word.startswith(typed))


def _plain(region: str) -> str:
    """A region as people say it: ``left upper zone``, ``left lung base``."""
    return region.replace(" zone lung", " zone")


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""


# What may be typed, and what it is completed to: findings by name, then other words for one, with its name in front.
_NAMES = tuple(
    dict.fromkeys(
        (
            *((finding, finding) for finding in FINDINGS),
            *((name, name) for finding in FINDINGS for name in NAMES[finding]),
            *((word, name) for finding in FINDINGS for word in SYNONYMS[finding] for name in (finding, word)),
        )
    )
)
_PLACES = (*LUNGS, "lungs", *map(_plain, ZONES))
