"""What is asked of a radiograph, and how a sentence is understood.

:func:`parse_instruction` reads a sentence in four steps: words (spelling put right where only one reading is left),
terms (the longest entries of :mod:`.lexicon`), mentions (each finding with the places and the denial that belong to
it), and regions. Whatever is assumed on the way becomes a note; what cannot be understood is an
:class:`~.errors.InstructionError`, never a guess.

Decisions that the paper and the contract leave open:

- Each finding is returned once, in the order of first mention; regions stand in the order of ``findings.REGIONS``.
- A lobe is read as the third of the lung that holds most of it: upper lobe, upper zone; middle lobe and lingula, mid
  zone; lower lobe, lung base.
- A zone without a side is asked of both sides; "the lungs" are both lungs; "lung" without a side is the whole chest.
- A whole lung beside a zone of the other one is asked as its three zones, which tile it, so that one level remains.
- A place after several findings belongs to all of them ("effusion and atelectasis at both bases"); a place in front
  of one belongs to those that follow it, too, if it is the only place of the clause.
- A denial reaches to the end of its clause ("no effusion or edema"), to "but", or to a verb that asserts again.
- "Left" and "right" are the patient's; the left of the image, or of the viewer, is the patient's right.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeAlias

from . import lexicon
from .errors import InstructionError, ValueRefused
from .findings import CHEST, FINDINGS, HEART, LEVELS, LUNGS, REGIONS, check_finding, level_of, lung_of
from .lexicon import PlaceWord

LONGEST = 2000  # characters; a longer text is a report or a mistake, not an instruction


@dataclass(frozen=True)
class Instruction:
    """One finding asked for, in regions of one level. ``text`` is the user's sentence as typed.

    Raises:
        ValueRefused: an unknown finding, region or level; no region, or one twice; regions of several levels, or of
            another level than ``level``; cardiomegaly anywhere but in the heart, or another finding there.
    """

    text: str
    finding: str
    regions: tuple[str, ...]
    level: str
    negated: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_finding(self.finding)
        if isinstance(self.regions, str) or isinstance(self.notes, str):
            raise ValueRefused("An instruction's regions and notes are tuples of strings, not one string.")
        object.__setattr__(self, "regions", tuple(self.regions))
        object.__setattr__(self, "notes", tuple(self.notes))
        if not self.regions:
            raise ValueRefused("An instruction asks about at least one region; got none.")
        if len(set(self.regions)) != len(self.regions):
            raise ValueRefused(f"An instruction names each region once; got {', '.join(self.regions)}.")
        if self.level not in LEVELS:
            raise ValueRefused(f"level is {self.level!r}; it must be one of {', '.join(LEVELS)}.")
        if {level_of(region) for region in self.regions} != {self.level}:
            raise ValueRefused(f"The regions {', '.join(self.regions)} are not all of the level {self.level!r}.")
        if self.level == "chest" and len(self.regions) > 1:
            raise ValueRefused(f"At chest level an instruction has one region; got {', '.join(self.regions)}.")
        if (self.finding == "cardiomegaly") != (self.regions == (HEART,)):
            raise ValueRefused(f"Only cardiomegaly is asked of the heart; got {self.finding}, {', '.join(self.regions)}.")


def parse_instruction(text: str) -> tuple[Instruction, ...]:
    """What a sentence asks for: one instruction per finding, in the order of first mention.

    Raises:
        InstructionError: the sentence names no finding of the seven, another finding, a place that is no region, or
            something that has more than one meaning. The message says which, and lists the seven.
    """
    words = _words(text)
    terms = _cardiomegaly(_terms(words))
    _refuse(terms)
    mentions = _mentions(_patient_sides(terms))
    return _instructions(text, mentions, _unused(terms))


def describe(instruction: Instruction) -> str:
    """How an instruction was understood, in words: ``effusion, patient's left lung``."""
    regions = [region.replace(" zone lung", " zone") for region in instruction.regions]
    if instruction.regions == (CHEST,):
        where = "whole chest"
    elif instruction.regions == (HEART,):
        where = "heart"
    elif instruction.regions == LUNGS:
        where = "both lungs"
    else:
        where = "patient's " + " and ".join(filter(None, (", ".join(regions[:-1]), regions[-1])))
    denied = " (the words deny it; it is checked all the same)" if instruction.negated else ""
    return f"{instruction.finding}, {where}{denied}"


def _error(problem: str) -> InstructionError:
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
_SPLIT = re.compile(
    r"\b(?:r|w|b|c|s|h|y)\s?/\s?(?:o|l|w|f|p)\b|\bw/|[^\W_]+(?:['’`][^\W_]+)*|[,;.?!:&+/|]|\n\s*\n", re.IGNORECASE
)
_BREAKS = {".", ";", "?", "!"}


def _words(text: str) -> list[_Word]:
    if not isinstance(text, str):
        raise _error(f"An instruction is a sentence, not {type(text).__name__}.")
    if len(text) > LONGEST:
        raise _error(f"This instruction has {len(text)} characters; at most {LONGEST} are read. Ask in one sentence.")
    plain = re.sub(r"(?<=\w)\((?:s|es)\)", "s", unicodedata.normalize("NFKC", text))
    found = [match.group() for match in _SPLIT.finditer(plain)]
    if not any(char.isalpha() for char in plain):
        raise _error("The instruction has no words.")
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
            raise _error(f'"{typed[:40]}" was not understood; instructions are read in English.')
        unread += 1
        if unread > 30:
            raise _error("Most words of this text were not understood; ask in one plain sentence.")
        meant = _spelling(word)
        note = f'"{typed}" is read as "{meant}".' if meant != word else ""
        words.append(_Word(typed, meant, note))
    return words


def _folded(word: str) -> str:
    """Without apostrophes and with plain letters: patient's, œdema."""
    word = word.replace("œ", "oe").replace("æ", "ae")
    letters = (char for char in unicodedata.normalize("NFKD", word) if not unicodedata.combining(char))
    return "".join(char for char in letters if char not in "'’`")


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
            raise _error(f'"{word}" may be {" or ".join(meanings)}; spell it out.')
        return max(rivals, key=lambda other: (other in _MEANINGS, likeness[other]))
    doubtful = sorted({_MEANINGS[other] for other in near if other in _PLAIN_NAMES and likeness[other] >= 0.75})
    if doubtful and len(word) > 4:
        raise _error(f'"{word}" was not understood; did you mean {" or ".join(doubtful)}?')
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
class _Term:
    """One entry of the lexicon as it stands in the sentence; ``kind`` names the table."""

    kind: str
    entry: str
    typed: str
    finding: str = ""
    place: PlaceWord = PlaceWord()
    notes: tuple[str, ...] = ()


def _entries() -> dict[str, _Term]:
    """Every entry of the lexicon; where it stands in several tables, the first of them counts."""
    entries: dict[str, _Term] = {}

    def add(kind: str, words: Iterable[str], finding: str = "") -> None:
        for entry in words:
            entries.setdefault(entry, _Term(kind, entry, entry, finding))

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
        add("synonym", (entry for entry, meant in lexicon.KINDS.items() if meant == finding), finding)
        add("synonym", lexicon.SYNONYMS[finding], finding)
        add("sign", lexicon.SIGNS.get(finding, ()), finding)
    add("heart size", lexicon.HEART_SIZE)
    for entry, place in lexicon.PLACES.items():
        entries.setdefault(entry, _Term("place", entry, entry, place=place))
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
_FINDING_KINDS = ("name", "synonym", "sign")


def _terms(words: Sequence[_Word]) -> list[_Term]:
    """The sentence as lexicon entries, the longest first; a word in none is of the kind ``unknown``."""
    terms: list[_Term] = []
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
            found = _Term("unknown" if span[0].word.isalpha() else "number", span[0].word, span[0].typed)
        typed = " ".join(word.typed for word in span)
        notes = tuple(word.note for word in span if word.note)
        if found.kind in ("synonym", "sign"):
            reading = "a sign of" if found.kind == "sign" else "read as"
            corrected = " ".join(word.word if word.note else word.typed for word in span)
            notes += (f'"{corrected}" is {reading} {found.finding}.',)
        terms.append(replace(found, typed=typed, notes=notes))
        start += length
    return terms


def _cardiomegaly(terms: list[_Term]) -> list[_Term]:
    """The heart beside a word for its size, made into the finding; "normal" beside it denies it."""
    result: list[_Term] = []
    start = 0
    while start < len(terms):
        end = start
        group: list[_Term] = []
        for index in range(start, len(terms)):
            term = terms[index]
            if term.kind in ("heart", "heart size", "large", "normal"):
                group, end = [*group, term], index + 1
            elif not group or not _binds(term):
                break
        kinds = {term.kind for term in group}
        if "heart size" in kinds or ("heart" in kinds and kinds & {"large", "normal"}):
            typed = " ".join(term.typed for term in terms[start:end])
            notes = (*(note for term in group for note in term.notes), f'"{typed}" is read as cardiomegaly.')
            if "normal" in kinds:
                result.append(_Term("denies next", "normal", ""))
            result.append(_Term("synonym", "enlarged heart", typed, "cardiomegaly", notes=notes))
            start = end
            if "normal" in kinds:
                result.append(_Term("break", ".", ""))
        else:
            result.append(terms[start])
            start += 1
    return result


def _binds(term: _Term) -> bool:
    """Whether a word may stand between the heart and its size: "is", "of the", "mildly"."""
    if term.kind == "filler":
        return term.entry != ":" and term.entry not in lexicon.IMAGE
    return term.kind == "unused" or (term.kind == "preposition" and term.entry in ("of", "in"))


def _refuse(terms: Sequence[_Term]) -> None:
    """Raise for what XFlow does not answer, or cannot read in one way."""
    findings = {term.finding for term in terms if term.kind in _FINDING_KINDS}
    angles = any("costophrenic angle" in term.place.assumed for term in terms)
    others = [term.typed for term in terms if term.kind == "other"]
    if others:
        raise _error(f'"{others[0]}" is not a finding that XFlow answers.')
    for term in terms:
        if term.kind == "ambiguous":
            raise _error(f'"{term.typed.strip(" ,?")}" may mean {lexicon.AMBIGUOUS[term.entry]}; name what is meant.')
        if term.kind == "no place":
            raise _error(f'"{term.typed}" is no place that XFlow can look in: chest, lungs and their zones are.')
        if term.kind == "other side":
            raise _error(f'"{term.typed}" is not followed from one place to another; say left or right.')
        if term.kind == "except":
            raise _error(f'"{term.typed}" says what to leave out; say what to look for, and where.')
        if term.kind == "heart" and findings - {"cardiomegaly"} or term.kind == "heart" and not findings:
            raise _error("The heart is asked about for cardiomegaly alone; name the finding, or a place in the lungs.")
        if term.kind == "sign" and term.entry in _ANGLE_SIGNS and not angles:
            raise _error(f'"{term.typed}" is understood of a costophrenic angle alone.')
    if not findings:
        raise _error("The instruction names no finding that XFlow knows.")
    unknown = [term.typed for term in terms if term.kind == "unknown"]
    read = [term for term in terms if term.kind not in ("unknown", "break", "join", "number")]
    if len(unknown) > 1 and len(unknown) > len(read):
        raise _error(f"Most of the instruction was not understood ({_quoted(unknown[:4])}); ask in one plain sentence.")
    for part in _coordinated(terms):
        strange = [term.typed for term in part if term.kind == "unknown"]
        if strange and not any(term.kind in (*_FINDING_KINDS, "unused", "number") for term in part):
            raise _error(f"{_quoted(strange)} was not understood.")


_ANGLE_SIGNS = {"blunting", "blunted", "blunt", "obliterated"}


def _coordinated(terms: Sequence[_Term]) -> Iterator[list[_Term]]:
    """What stands beside "and", "or" or a comma in a clause that names a finding, after or at its first finding."""
    for clause in _clauses(terms):
        part: list[_Term] = []
        named = False
        for term in [*clause, _Term("join", ",", "")]:
            if term.kind != "join":
                part.append(term)
                continue
            named = named or any(other.kind in _FINDING_KINDS for other in part)
            if part and (named or term.entry != ","):
                yield part
            part = []


def _unused(terms: Sequence[_Term]) -> tuple[str, ...]:
    """The note on what was read and is not used, or was not understood at all."""
    findings = {term.finding for term in terms if term.kind in _FINDING_KINDS}
    unused = [
        term.typed
        for term in terms
        if term.kind in ("unused", "large", "unknown", "number", "normal") or (term.kind == "pleural" and "effusion" not in findings)
    ]
    spelled = tuple(note for term in terms if term.kind.startswith(("denies", "no denial")) for note in term.notes)
    return spelled + ((f"Not used: {_quoted(dict.fromkeys(unused))}.",) if unused else ())


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(f'"{word[:40]}"' for word in words)


# Sides -----------------------------------------------------------------------------------------------------------

_SWAPPED = {"left": "right", "right": "left"}
_SHARES = ("side", "half", "part", "portion", "corner", "edge", "third", "aspect", "area", "region")


def _patient_sides(terms: list[_Term]) -> list[_Term]:
    """With the sides of the image, or of who looks at it, turned into the patient's."""
    everywhere = any(term.kind == "viewpoint" for term in terms)
    result = list(terms)
    for index, term in enumerate(terms):
        if len(term.place.sides) != 1:
            continue
        before = terms[index - 1] if index else None
        if before is not None and _in(before, lexicon.PATIENT) and before.typed.casefold() not in ("his", "her", "their"):
            continue
        possessed = before is not None and _in(before, lexicon.VIEWER)
        if not (everywhere or possessed or _of_the_image(terms, index)):
            continue
        (side,) = term.place.sides
        place = replace(term.place, sides=(_SWAPPED[side],))
        note = f"The {side} of the image is taken as the patient's {_SWAPPED[side]}."
        result[index] = replace(term, place=place, notes=(*term.notes, note))
    return result


def _in(term: _Term, entries: Sequence[str]) -> bool:
    return term.entry in entries or term.entry.removesuffix("s") in entries


def _of_the_image(terms: Sequence[_Term], index: int) -> bool:
    """Whether a side is followed by "of the image" with no part of the lung in between ("left half of the film")."""
    of = False
    for term in terms[index + 1 :]:
        if term.kind == "filler" and _in(term, lexicon.IMAGE):
            return of or term.entry in ("screen", "image", "picture", "film")
        if term.kind == "preposition" and term.entry == "of":
            of = True
        elif term.kind == "preposition" and term.entry in ("on", "in"):
            # "On the left on the screen" is the viewer's; "the left lung in this image" is the patient's.
            return any(_in(other, ("screen", "monitor", "display")) for other in terms[index + 1 : index + 5])
        elif not (term.kind == "filler" and term.entry in ("the", "this", "that", "my", "our", "a", *_SHARES)) and not (
            term.kind == "place" and term.entry in ("upper", "lower", "mid", "middle")
        ):
            return False
    return False


# Mentions --------------------------------------------------------------------------------------------------------


@dataclass
class _Place:
    """A place as named: its sides, zones and the words for it, before what is left out is filled in."""

    sides: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    lung: bool = False
    plural: bool = False
    usual_side: str = ""
    side_last: bool = False
    joined: str = ""
    run: int = 0
    terms: list[_Term] = field(default_factory=list)

    def takes(self, word: PlaceWord) -> bool:
        return not (word.sides and self.sides and word.sides != self.sides)

    def add(self, term: _Term, through: bool) -> None:
        word = term.place
        if word.sides and not self.sides and self.zones:
            self.side_last = True
        self.sides = self.sides or word.sides
        self.zones = _range(self.zones, word.zones) if through else tuple(dict.fromkeys(self.zones + word.zones))
        self.lung = self.lung or word.lung
        self.plural = self.plural or word.plural
        self.usual_side = self.usual_side or word.usual_side
        self.terms.append(term)

    @property
    def words(self) -> str:
        return " ".join(term.typed for term in self.terms)


@dataclass
class _Mention:
    """A finding as named once, with its places, the places denied to it, and whether it is denied."""

    term: _Term
    at: int
    places: list[_Place] = field(default_factory=list)
    not_in: list[_Place] = field(default_factory=list)
    denied: bool = False
    place_follows: bool = False
    notes: tuple[str, ...] = ()


# A clause without its fillers: findings, places, "join", "preposition", "asserts", "has" and the denials.
_Part: TypeAlias = _Mention | _Place | str


def _mentions(terms: Sequence[_Term]) -> list[_Mention]:
    """Every finding of the sentence with what belongs to it."""
    clauses = [_parts(clause) for clause in _clauses(terms)]
    found: list[_Mention] = []
    loose: list[_Place] = []
    for parts in clauses:
        mentions = [part for part in parts if isinstance(part, _Mention)]
        if mentions:
            _place(parts, mentions)
            _deny(parts)
            for mention in mentions:
                if loose and not mention.places:
                    mention.places = list(loose)
            loose = []
            found += mentions
            continue
        # A clause of places alone ("Effusion? Left base.") speaks of what was just named, else of what comes.
        places = [part for part in parts if isinstance(part, _Place)]
        denied = any(isinstance(part, str) and part.startswith("denies") for part in parts)
        if not places:
            if denied and found and not {"join", "or"} & set(map(str, parts)):
                found[-1].denied = True
            continue
        if not found:
            loose += places
            continue
        unplaced = [mention for mention in found if not mention.places] or found[-1:]
        for mention in unplaced:
            (mention.not_in if denied else mention.places).extend(places)
    return found


def _clauses(terms: Sequence[_Term]) -> Iterator[list[_Term]]:
    clause: list[_Term] = []
    for term in terms:
        if term.kind == "break":
            yield clause
            clause = []
        else:
            clause.append(term)
    yield clause


def _parts(clause: Sequence[_Term]) -> list[_Part]:
    parts: list[_Part] = []
    joined, run, through = "", 0, False
    for term in clause:
        if term.kind == "place" and not _conjunction(term, clause):
            last = next((part for part in reversed(parts) if part not in ("preposition", "has")), None)
            if isinstance(last, _Place) and last.takes(term.place):
                while parts[-1] is not last:
                    parts.pop()
                last.add(term, through)
            else:
                place = _Place(joined=joined, run=run)
                place.add(term, False)
                parts.append(place)
            through = False
        elif term.kind in _FINDING_KINDS:
            run += 1
            parts.append(_Mention(term, len(parts)))
        elif term.kind == "join":
            joined = term.entry
            parts.append("or" if term.entry in ("or", "nor") else "join")
        elif term.kind.startswith("denies"):
            parts.append(term.kind)
        elif term.kind == "preposition":
            through = term.entry in ("to", "through")
            parts.append("preposition")
        elif term.entry in lexicon.HAS:
            parts.append("has")
            if term.entry in lexicon.ASSERTS:
                parts.append("asserts")
        elif term.entry in lexicon.ASSERTS or term.entry == "rule out":
            parts.append("asserts")
    return parts


def _conjunction(term: _Term, clause: Sequence[_Term]) -> bool:
    """Whether "both" stands in front of something else than a place ("both effusion and edema")."""
    if term.entry != lexicon.BOTH_NEEDS_PLACE:
        return False
    following = [other for other in clause[clause.index(term) + 1 :] if other.kind not in ("filler", "unused", "preposition")]
    return not following or following[0].kind != "place"


def _place(parts: list[_Part], mentions: list[_Mention]) -> None:
    """Give each place of a clause to the finding that it belongs to."""
    start = 0
    last_mention = max(index for index, part in enumerate(parts) if isinstance(part, _Mention))
    ends_with_place = any(isinstance(part, _Place) for part in parts[last_mention:])
    runs = 0
    while start < len(parts):
        if not isinstance(parts[start], _Place):
            start += 1
            continue
        end = start + 1
        while end < len(parts) and (isinstance(parts[end], _Place) or _continues(parts, end)):
            end += 1
        runs += 1
        places = [part for part in parts[start:end] if isinstance(part, _Place)]
        before = next((part for part in reversed(parts[:start]) if isinstance(part, _Mention)), None)
        after = next((part for part in parts[end:] if isinstance(part, _Mention)), None)
        direct = after is not None and all(part in ("has", "asserts") for part in parts[end : parts.index(after)])
        previous = next((part for part in reversed(parts[:start]) if part != "preposition"), None)
        denied = previous == "denies next" and not direct
        for number, place in enumerate(places):
            owner = before or after
            if before is not None and after is not None and direct:
                last = number == len(places) - 1
                if previous in ("join", "or", "denies next"):
                    owner = after
                elif len(places) > 1:
                    owner = after if last else before
                else:
                    owner = before if ends_with_place else after
            assert owner is not None
            (owner.not_in if denied else owner.places).append(place)
            owner.place_follows = owner is before
        start = end
    _share(parts, mentions, runs)


def _continues(parts: Sequence[_Part], index: int) -> bool:
    """Whether a join or a preposition at ``index`` leads on to another place of the same run."""
    following = index
    while following < len(parts) and parts[following] in ("join", "or", "preposition"):
        following += 1
    return following > index and following < len(parts) and isinstance(parts[following], _Place)


def _share(parts: Sequence[_Part], mentions: Sequence[_Mention], runs: int) -> None:
    """A place after several findings is theirs together; a place before them, too, if it is the clause's only one."""
    for first, second in reversed(list(zip(mentions, mentions[1:], strict=False))):
        if not first.places and not first.not_in and second.places and second.place_follows:
            first.places = list(second.places)
            first.place_follows = True
    leading = mentions[0]
    if runs == 1 and leading.places and not leading.place_follows:
        for mention in mentions[1:]:
            if not mention.places and mention.term.finding != "cardiomegaly":
                mention.places = list(leading.places)
                words = " ".join(place.words for place in leading.places)
                mention.notes += (f'"{words}" is taken for {mention.term.finding}, too.',)


def _deny(parts: Sequence[_Part]) -> None:
    """Mark the findings that the clause denies."""
    denying = reached = False
    alternatives = "or" in parts
    named: set[str] = set()
    for index, part in enumerate(parts):
        rest = parts[index + 1 :]
        earlier = [other for other in parts[:index] if isinstance(other, _Mention)]
        if isinstance(part, _Mention):
            apart = part.places and earlier and (earlier[-1].places != part.places)
            if part.term.finding in named or (apart and not alternatives):
                denying = False  # "no effusion on the left, consolidation on the right"
            part.denied = part.denied or denying
            reached = reached or denying
            named.add(part.term.finding)
        elif part == "asserts" and reached:
            denying = False
        elif isinstance(part, str) and part.startswith("denies"):
            follows = any(isinstance(other, _Mention) for other in rest)
            if part == "denies last" or (part == "denies either" and earlier) or (not follows and not _names_place(rest)):
                for mention in _back_to_assertion(parts[:index]):
                    mention.denied = True
            elif follows and part != "denies last":
                denying, reached = True, False


def _names_place(parts: Sequence[_Part]) -> bool:
    return any(isinstance(part, _Place) for part in parts)


def _back_to_assertion(parts: Sequence[_Part]) -> Iterator[_Mention]:
    seen = False
    for part in reversed(parts):
        if isinstance(part, _Mention):
            seen = True
            yield part
        elif seen and isinstance(part, str) and part.startswith(("asserts", "denies")):
            return


# Regions ---------------------------------------------------------------------------------------------------------

_FROM_THE_TOP = ("apical zone lung", "upper zone lung", "mid zone lung", "lung base")
_THIRDS = _FROM_THE_TOP[1:]


def _range(first: tuple[str, ...], last: tuple[str, ...]) -> tuple[str, ...]:
    """From one zone to another, with the zones between them."""
    if not first or not last:
        return first + last
    ends = sorted(_FROM_THE_TOP.index(zone) for zone in (first[0], last[-1]))
    return tuple(zone for zone in _FROM_THE_TOP[ends[0] : ends[1] + 1] if ends[1] == 0 or zone in _THIRDS)


def _instructions(text: str, mentions: Sequence[_Mention], unused: tuple[str, ...]) -> tuple[Instruction, ...]:
    by_finding: dict[str, list[_Mention]] = {}
    for mention in mentions:
        by_finding.setdefault(mention.term.finding, []).append(mention)
    any_place = any(mention.places for mention in mentions if mention.term.finding != "cardiomegaly")
    result = []
    for finding, same in by_finding.items():
        notes = [note for mention in same for note in (*mention.term.notes, *mention.notes)]
        negated = all(mention.denied for mention in same)
        places = [place for mention in same for place in mention.places]
        not_in = [place for mention in same for place in mention.not_in]
        if any(mention.denied for mention in same) and not negated:
            notes.append(f"{finding.capitalize()} is denied once and asked for once; it is asked for.")
        if finding == "cardiomegaly":
            regions: tuple[str, ...] = (HEART,)
            if any(place.sides or place.zones for place in places + not_in):
                notes.append("Cardiomegaly is asked of the heart; the place named is not used.")
        else:
            if not_in and places:
                words = " and ".join(place.words for place in not_in)
                notes.append(f'"{words}" is excluded in the words, and not asked about.')
            elif not_in:
                places, negated = not_in, True
            regions = _regions(places, notes)
            if regions == (CHEST,) and any_place and not places:
                notes.append(f"No place is named for {finding}; the whole chest is searched.")
        kept = tuple(dict.fromkeys((*notes, *unused)))
        result.append(Instruction(text, finding, regions, level_of(regions[0]), negated, kept))
    return tuple(result)


def _regions(places: Sequence[_Place], notes: list[str]) -> tuple[str, ...]:
    """The regions that the places name together, in the order of ``REGIONS`` and of one level."""
    notes += [note for place in places for term in place.terms for note in term.notes]
    places = _filled([replace(place) for place in places])
    named: set[str] = set()
    for place in places:
        sides = place.sides
        if place.zones and not sides:
            sides = (place.usual_side,) if place.usual_side else ("right", "left")
            which = f"the {place.usual_side} is taken" if place.usual_side else "both sides are taken"
            notes.append(f'No side is named for "{place.words}"; {which}.')
        if place.plural and not sides and not place.zones:
            sides = ("right", "left")
        if place.lung and not sides:
            notes.append("No side is named for the lung; the whole chest is searched.")
        regions = [f"{side} {zone}" for side in sides for zone in place.zones or ("lung",)]
        named.update(regions)
        assumed = dict.fromkeys(term.place.assumed for term in place.terms if term.place.assumed)
        if assumed and regions:
            shown = " and ".join(region.removesuffix(" lung") if "zone" in region else region for region in regions)
            notes.append(f'"{place.words}" is read as {shown} ({"; ".join(assumed)}).')
    if not named:
        return (CHEST,)
    lungs = {region for region in named if region in LUNGS}
    zones = named - lungs
    inside = {zone for zone in zones if lung_of(zone) in lungs}
    if lungs and inside:
        notes.append(f"{_listed(inside)} lies in the {_listed(lungs)}, which is named, too.".capitalize())
        zones -= inside
    if lungs and zones:
        notes.append(f"The whole {_listed(lungs)} is asked as its three zones, beside the zones named.")
        zones |= {f"{lung.split()[0]} {zone}" for lung in lungs for zone in _THIRDS}
        lungs = set()
    return tuple(region for region in REGIONS if region in (lungs or zones))


def _listed(regions: Iterable[str]) -> str:
    return " and ".join(region for region in REGIONS if region in set(regions))


def _filled(places: list[_Place]) -> list[_Place]:
    """With what a place borrows from its neighbours: "left mid and lower zones", "left and right bases"."""
    for index, place in enumerate(places):
        before = places[index - 1] if index else None
        after = places[index + 1] if index + 1 < len(places) else None
        if place.zones and not place.sides and not place.usual_side:
            if before is not None and before.sides and before.run == place.run:
                place.sides = before.sides
                if not before.zones and place.joined == ",":
                    before.zones = place.zones  # "left lung, base": the second narrows the first
            elif after is not None and after.sides and after.side_last:
                place.sides = after.sides
        if place.sides and not place.zones and not place.lung:
            if after is not None and after.sides and after.zones and not after.side_last:
                place.zones = after.zones
                place.terms = place.terms + [term for term in after.terms if term.place.zones]
        if place.sides and not place.zones and before is not None and before.side_last and not before.lung:
            place.zones = before.zones
    # A side in front of the finding and a zone behind it: "left effusion at the base".
    for place in places:
        for other in places:
            if place.run != other.run and place.sides and not place.zones and other.zones:
                if not other.sides:
                    other.sides = place.sides
                if other.sides == place.sides:
                    place.zones = other.zones
    return places


__all__ = ["Instruction", "describe", "parse_instruction"]
