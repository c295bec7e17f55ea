"""A sentence as the terms of :mod:`.lexicon`: words, spelling, the heart and its size, and whose left is meant."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from . import lexicon
from .errors import InstructionError
from .findings import FINDINGS
from .lexicon import PlaceWord

LONGEST = 2000  # characters; a longer text is a report or a mistake, not an instruction


def read(text: str) -> list[Term]:
    """The terms of a sentence in order, sides turned into the patient's.

    Raises:
        InstructionError: the text is no sentence in English, or a word of it, or a side, can be read in two ways.
    """
    return _patient_sides(_cardiomegaly(_terms(_words(text))))


def not_understood(problem: str) -> InstructionError:
    return InstructionError(f"{problem} XFlow answers seven findings: {', '.join(FINDINGS)}.")


# Words -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Word:
    typed: str
    word: str  # lower case, without apostrophes, spelling put right
    note: str = ""


_ABBREVIATIONS = {
    "r/o": "rule out",
    "w/o": "without",
    "w/": "with",
    "b/l": "bilateral",
    "c/w": "consistent with",
    "c/f": "concerning for",
    "s/p": "s p",
    "h/o": "h o",
    "c/o": "c o",
    "y/o": "y o",
    "&": "and",
    "+": "and",
    "/": "or",
    "|": "or",
}
_DOTTED = {"r", "l", "rt", "lt", "rgt", "lft", "bilat", "pulm", "pl", "dr", "pt", "vs", "e", "g", "i", "st", "mr", "ms"}
_SLASHED = "|".join(rf"{key[0]}\s?/\s?{key[2]}\b" for key in _ABBREVIATIONS if len(key) == 3)
_SPLIT = re.compile(rf"\b(?:{_SLASHED}|w/)|[^\W_]+(?:['\u2019`][^\W_]+)*|[,;.?!:&+/|]|\n\s*\n", re.IGNORECASE)
_BREAKS = {".", ";", "?", "!"}


def _words(text: str) -> list[_Word]:
    if not isinstance(text, str):
        raise not_understood(f"An instruction is a sentence, not {type(text).__name__}.")
    if len(text) > LONGEST:
        raise not_understood(
            f"This instruction has {len(text)} characters; at most {LONGEST} are read. Ask in one sentence."
        )
    plain = re.sub(r"(?<=\w)\((?:s|es)\)", "s", unicodedata.normalize("NFKC", text))
    for said, meant in lexicon.REWRITTEN.items():
        pattern = r"\s+".join(said.split())
        plain = re.sub(rf"\b{pattern}\b", meant, plain, flags=re.IGNORECASE)
    found = [match.group() for match in _SPLIT.finditer(plain)]
    if not any(char.isalpha() for char in plain):
        raise not_understood("The instruction has no words.")
    words: list[_Word] = []
    unread = 0
    for index, typed in enumerate(found):
        lower = typed.casefold()
        short = lower.replace(" ", "")
        if short in _ABBREVIATIONS:
            words += [_Word(typed, part) for part in _ABBREVIATIONS[short].split()]
            continue
        if typed == "." and index and found[index - 1].casefold() in _DOTTED:
            continue
        if not typed.strip():
            words.append(_Word(typed, "."))
            continue
        word = _folded(lower)
        if _known(word) or not word.isalpha():
            words.append(_Word(typed, word))
            continue
        if not word.isascii():
            raise not_understood(f'"{typed[:40]}" was not understood; instructions are read in English.')
        unread += 1
        if unread > 30:
            raise not_understood("Most words of this text were not understood; ask in one plain sentence.")
        meant = _spelling(word)
        note = f'"{typed}" is read as "{meant}".' if meant != word else ""
        words.append(_Word(typed, meant, note))
    return words


def _folded(word: str) -> str:
    """Without apostrophes and with plain letters: patient's, œdema."""
    word = word.replace("œ", "oe").replace("æ", "ae")
    letters = (char for char in unicodedata.normalize("NFKD", word) if not unicodedata.combining(char))
    return "".join(char for char in letters if char not in "'\u2019`")


def _known(word: str) -> bool:
    return word in _VOCABULARY or (word.endswith("s") and word[:-1] in _VOCABULARY)


@lru_cache(maxsize=4096)
def _spelling(word: str) -> str:
    """The known word that a misspelt one stands for, or the word itself when it resembles none.

    Raises:
        InstructionError: it resembles two findings, or one not closely enough to take it for that one.
    """
    if len(word) < 4:
        return word
    near = difflib.get_close_matches(word, _CORRECTABLE, n=8, cutoff=0.7)
    likeness = {other: difflib.SequenceMatcher(None, word, other).ratio() for other in near}
    slips = [other for other in near if _is_slip(word, other, likeness[other])]
    if slips:
        best = max(likeness[other] for other in slips)
        rivals = [other for other in slips if likeness[other] > best - 0.05]
        meanings = sorted({_MEANINGS[other] for other in rivals if other in _MEANINGS})
        if len(meanings) > 1:
            raise not_understood(f'"{word}" may be {" or ".join(meanings)}; spell it out.')
        return max(rivals, key=lambda other: (other in _PLAIN_NAMES, other in _MEANINGS, likeness[other]))
    doubtful = sorted({_MEANINGS[other] for other in near if other in _PLAIN_NAMES and likeness[other] >= 0.75})
    if doubtful and len(word) > 4:
        raise not_understood(f'"{word}" was not understood; did you mean {" or ".join(doubtful)}?')
    return word


def _is_slip(word: str, other: str, ratio: float) -> bool:
    """Close enough to be a slip of the keyboard: most letters in order, or all of them in another order.

    The names of the findings are looked for most; any other word must begin alike, and the rarer ones be closer still.
    """
    if other in _PLAIN_NAMES:
        return ratio >= 0.84 or (sorted(word) == sorted(other) and ratio >= 0.75)
    if word[0] != other[0]:
        return False
    if other in _MEANINGS and _ENTRIES[other].kind != "place":
        return ratio >= 0.88 and len(word) > 5
    return ratio >= 0.84 or (sorted(word) == sorted(other) and ratio >= 0.75)


# Terms -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Term:
    """One entry of the lexicon as it stands in the sentence; ``kind`` names the table."""

    kind: str
    entry: str
    typed: str
    finding: str = ""
    place: PlaceWord = lexicon.NOWHERE
    notes: tuple[str, ...] = ()


def _entries() -> dict[str, Term]:
    """Every entry of the lexicon; where it stands in several tables, the first of them counts."""
    entries: dict[str, Term] = {}

    def add(kind: str, words: Iterable[str], finding: str = "") -> None:
        for entry in words:
            entries.setdefault(entry, Term(kind, entry, entry, finding))

    add("ambiguous", lexicon.AMBIGUOUS)
    add("normal", lexicon.NORMAL)
    add("no denial", lexicon.NO_DENIAL)
    add("denies last", lexicon.DENIES_LAST)
    add("denies next", lexicon.DENIES_NEXT)
    add("denies either", lexicon.DENIES_EITHER)
    add("except", lexicon.EXCEPT)
    add("other side", lexicon.OTHER_SIDE)
    for finding in FINDINGS:
        add("name", lexicon.NAMES[finding], finding)
        add("synonym", lexicon.SYNONYMS[finding], finding)
        add("sign", lexicon.SIGNS.get(finding, ()), finding)
    add("heart size", lexicon.HEART_SIZE)
    for entry, place in lexicon.PLACES.items():
        entries.setdefault(entry, Term("place", entry, entry, place=place))
    add("other", lexicon.OTHERS)
    add("heart", lexicon.HEART)
    add("no place", lexicon.NO_PLACES)
    add("viewpoint", lexicon.VIEWPOINT)
    add("break", (*lexicon.TURNS, *_BREAKS))
    add("join", (*lexicon.JOINS, ","))
    add("preposition", lexicon.PREPOSITIONS)
    add("pleural", lexicon.PLEURAL)
    add("large", lexicon.LARGE)
    add("unused", lexicon.UNUSED)
    add("filler", (*lexicon.FILLERS, *lexicon.ASSERTS, *lexicon.IMAGE, *lexicon.VIEWER, *lexicon.PATIENT, ":"))
    return entries


_ENTRIES = _entries()
_LONGEST_ENTRY = max(len(entry.split()) for entry in _ENTRIES)
_VOCABULARY = {word for entry in _ENTRIES for word in entry.split()} | set(lexicon.FALSE_FRIENDS)
# What a misspelt word may be: any word of an entry. What a word means by itself, and which are a finding's own names.
_CORRECTABLE = sorted({word for entry in _ENTRIES for word in entry.split() if word.isalpha() and len(word) > 3})
_MEANINGS = {
    entry: term.finding or entry
    for entry, term in _ENTRIES.items()
    if term.kind in ("name", "synonym", "sign", "other", "place") and " " not in entry
}
_PLAIN_NAMES = {entry for entry, term in _ENTRIES.items() if term.kind == "name" and " " not in entry} | {"oedema"}
FINDING_KINDS = ("name", "synonym", "sign")


def _terms(words: Sequence[_Word]) -> list[Term]:
    """The sentence as lexicon entries, the longest first; a word in none is of the kind ``unknown``."""
    terms: list[Term] = []
    start = 0
    while start < len(words):
        for length in range(min(_LONGEST_ENTRY, len(words) - start), 0, -1):
            span = words[start : start + length]
            entry = " ".join(word.word for word in span)
            found = _ENTRIES.get(entry) or (_ENTRIES.get(entry[:-1]) if entry.endswith("s") else None)
            if found is not None:
                break
        else:
            length, span = 1, words[start : start + 1]
            found = Term("unknown" if span[0].word.isalpha() else "number", span[0].word, span[0].typed)
        typed = " ".join(word.typed for word in span)
        notes = tuple(word.note for word in span if word.note)
        if found.kind == "sign":
            notes = (f'"{typed}" is read as a sign of {found.finding}.',)
        elif found.kind == "synonym" or (found.kind == "name" and notes):
            remark = lexicon.REMARKS.get(found.entry, "")
            notes = (f'"{typed}" is read as {found.finding}{remark}.',)
        terms.append(replace(found, typed=typed, notes=notes))
        start += length
    return _history(terms)


def _history(terms: list[Term]) -> list[Term]:
    """What stands after "history of" tells of the patient and is not asked for."""
    told = False
    result: list[Term] = []
    for term in terms:
        told = (told or term.entry in lexicon.HISTORY) and term.kind != "break" and term.entry != ","
        demoted = told and term.kind in ("other", "ambiguous")
        result.append(replace(term, kind="unused") if demoted else term)
    return result


def _cardiomegaly(terms: list[Term]) -> list[Term]:
    """The heart beside a word for its size, made into the finding; "normal" beside it denies it."""
    result: list[Term] = []
    start = 0
    while start < len(terms):
        end = start
        group: list[Term] = []
        for index in range(start, len(terms)):
            term = terms[index]
            if term.kind in ("heart", "heart size", "large", "normal"):
                group, end = [*group, term], index + 1
            elif not group or not _binds(term):
                break
        kinds = {term.kind for term in group}
        if "heart size" in kinds or ("heart" in kinds and kinds & {"large", "normal"}):
            typed = " ".join(term.typed for term in terms[start:end])
            notes = (f'"{typed}" is read as cardiomegaly.',)
            if "normal" in kinds:
                result.append(Term("denies next", "normal", ""))
            result.append(Term("synonym", "enlarged heart", typed, "cardiomegaly", notes=notes))
            start = end
            if "normal" in kinds:
                result.append(Term("break", ".", ""))
        else:
            result.append(terms[start])
            start += 1
    return result


def _binds(term: Term) -> bool:
    """Whether a word may stand between the heart and its size: "is", "of the", "mildly"."""
    if term.kind == "filler":
        return term.entry != ":" and term.entry not in lexicon.IMAGE
    return term.kind == "unused" or (term.kind == "preposition" and term.entry in ("of", "in"))


# Sides -----------------------------------------------------------------------------------------------------------

_SWAPPED = {"left": "right", "right": "left"}
_SHARE = "(?:(?:side|half|part|portion|corner|edge|third|aspect|area|region|upper|lower|mid|middle) )*"
_OTHER_SIDE = "(?:(?:and|or|,) (?:the )?(?:left|right)(?: side)? )?"
_THE = "(?:(?:the|this|that|my|our|a) )?"
_IMAGE = f"(?:{'|'.join(sorted(lexicon.IMAGE, key=len, reverse=True))})s?(?: |$)"
# What follows a side of the image ("half of the film", "on the screen"), and what leaves it open ("in this image").
_VIEWED = re.compile(
    f"{_SHARE}{_OTHER_SIDE}{_SHARE}"
    f"(?:of {_THE}{_IMAGE}|(?:on|in) {_THE}(?:screen|monitor|display)|(?:image|screen)(?: |$))"
)
_OPEN = re.compile(f"{_SHARE}(?:on|in) {_THE}{_IMAGE}")


def _patient_sides(terms: list[Term]) -> list[Term]:
    """With the sides of the image, or of who looks at it, turned into the patient's."""
    everywhere = any(term.kind == "viewpoint" for term in terms)
    result = list(terms)
    swapped, kept = False, []
    for index, term in enumerate(terms):
        if len(term.place.sides) != 1 or term.place.zones or (index and _in(terms[index - 1], lexicon.PATIENT)):
            continue
        (side,) = term.place.sides
        place, note = term.place, ""
        following = " ".join(other.entry for other in terms[index + 1 : index + 12])
        if everywhere or _seen_by_viewer(terms[:index]) or _VIEWED.match(following):
            swapped = True
            place = replace(place, sides=(_SWAPPED[side],))
            note = f"The {side} of the image is taken as the patient's {_SWAPPED[side]}."
        else:
            kept.append(term.typed)
            if _OPEN.match(following):
                note = f"The {side} is taken as the patient's {side}, which is the {_SWAPPED[side]} of the image."
        result[index] = replace(term, place=place, notes=(*term.notes, note) if note else term.notes)
    if swapped and kept:
        raise not_understood(f'"{kept[0]}" may be that of the patient or of the image; say which.')
    return result


def _seen_by_viewer(before: Sequence[Term]) -> bool:
    """Whether a side follows "the viewer's" or "image"; "on this image left .." begins another phrase."""
    if not before or not _in(before[-1], lexicon.VIEWER):
        return False
    another = len(before) > 1 and before[-2].entry in ("this", "that") and before[-1].typed.isalpha()
    return not another


def _in(term: Term, entries: Sequence[str]) -> bool:
    return term.entry in entries or term.entry.removesuffix("s") in entries
