"""What is asked of a radiograph, and how a sentence is understood.

:func:`parse_instruction` reads a sentence in four steps: words (spelling put right where only one reading is left) and
terms (the longest entries of :mod:`.lexicon`) in :mod:`.sentence`; here, mentions (each finding with the places and the
denial that belong to it) and regions. Whatever is assumed on the way becomes a note; what cannot be understood is an
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
- A place that is denied ("left, not right") is left out; a finding denied in one place and asked for in another is one
  question about both, not denied.
- "Left" and "right" are the patient's; the left of the image, or of the viewer, is the patient's right.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from . import lexicon
from .errors import ValueRefused
from .findings import CHEST, HEART, LEVELS, LUNGS, REGIONS, check_finding, level_of, lung_of
from .lexicon import PlaceWord
from .sentence import FINDING_KINDS, Term, not_understood, read


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
        if not isinstance(self.text, str) or isinstance(self.regions, str) or isinstance(self.notes, str):
            raise ValueRefused("An instruction's text is a string, its regions and notes are tuples of strings.")
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
            asked = f"{self.finding} in {', '.join(self.regions)}"
            raise ValueRefused(f"Cardiomegaly, and nothing else, is asked of the heart; got {asked}.")


def parse_instruction(text: str) -> tuple[Instruction, ...]:
    """What a sentence asks for: one instruction per finding, in the order of first mention.

    Raises:
        InstructionError: the sentence names no finding of the seven, another finding, a place that is no region, or
            something that has more than one meaning. The message says which, and lists the seven.
    """
    terms = read(text)
    _refuse(terms)
    return _instructions(text, _mentions(terms), _unused(terms))


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


# What is not answered ------------------------------------------------------------------------------------------


def _refuse(terms: Sequence[Term]) -> None:
    """Raise for what XFlow does not answer, or cannot read in one way."""
    findings = {term.finding for term in terms if term.kind in FINDING_KINDS}
    angles = any("costophrenic angle" in term.place.assumed for term in terms)
    others = [term.typed for term in terms if term.kind == "other"]
    if others:
        raise not_understood(f'"{others[0]}" is not a finding that XFlow answers.')
    for term in terms:
        if term.kind == "ambiguous":
            raise not_understood(
                f'"{term.typed.strip(" ,?")}" may mean {lexicon.AMBIGUOUS[term.entry]}; name what is meant.'
            )
        if term.kind == "no place":
            raise not_understood(
                f'"{term.typed}" is no place that XFlow can look in: chest, lungs and their zones are.'
            )
        if term.kind == "other side":
            raise not_understood(f'"{term.typed}" is not followed from one place to another; say left or right.')
        if term.kind == "except":
            raise not_understood(f'"{term.typed}" says what to leave out; say what to look for, and where.')
        if term.kind == "heart" and findings != {"cardiomegaly"}:
            raise not_understood(
                "The heart is asked about for cardiomegaly alone; name the finding, or a place in the lungs."
            )
        if term.kind == "sign" and term.entry in lexicon.ANGLE_SIGNS and not angles:
            raise not_understood(f'"{term.typed}" is understood of a costophrenic angle alone.')
    if not findings:
        raise not_understood("The instruction names no finding that XFlow knows.")
    unknown = [term.typed for term in terms if term.kind == "unknown"]
    known = [term for term in terms if term.kind not in ("unknown", "break", "join", "number")]
    if len(unknown) > 1 and len(unknown) > len(known):
        raise not_understood(
            f"Most of the instruction was not understood ({_quoted(unknown[:4])}); ask in one plain sentence."
        )
    for part in _coordinated(terms):
        strange = [term.typed for term in part if term.kind == "unknown"]
        if strange and not any(term.kind in (*FINDING_KINDS, "unused", "number") for term in part):
            raise not_understood(f"{_quoted(strange)} was not understood.")


def _coordinated(terms: Sequence[Term]) -> Iterator[list[Term]]:
    """What stands beside "and", "or" or a comma in a clause that names a finding, after or at its first finding."""
    for clause in _clauses(terms):
        part: list[Term] = []
        named = False
        for term in [*clause, Term("join", ",", "")]:
            if term.kind != "join":
                part.append(term)
                continue
            named = named or any(other.kind in FINDING_KINDS for other in part)
            if part and (named or term.entry != ","):
                yield part
            part = []


def _unused(terms: Sequence[Term]) -> tuple[str, ...]:
    """The note on what was read and is not used, or was not understood at all."""
    findings = {term.finding for term in terms if term.kind in FINDING_KINDS}
    unused = [
        term.typed
        for term in terms
        if term.kind in ("unused", "large", "unknown", "number", "normal")
        or (term.kind == "pleural" and "effusion" not in findings)
    ]
    spelled = tuple(note for term in terms if term.kind.startswith(("denies", "no denial")) for note in term.notes)
    return spelled + ((f"Not used: {_quoted(dict.fromkeys(unused))}.",) if unused else ())


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(f'"{word[:40]}"' for word in words)


# Mentions --------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Place:
    """A place as named: its sides, zones and the words for it, before what is left out is filled in."""

    sides: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    lung: bool = False
    plural: bool = False
    usual_side: str = ""
    side_last: bool = False
    joined: str = ""
    located: bool = False  # named with a preposition: "in the lung", not "lung opacity"
    run: int = 0
    terms: list[Term] = field(default_factory=list)

    def takes(self, word: PlaceWord) -> bool:
        return not (word.sides and self.sides and word.sides != self.sides)

    def add(self, term: Term, through: bool) -> None:
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


@dataclass(eq=False)
class _Mention:
    """A finding as named once, with its places, the places denied to it, and whether it is denied."""

    term: Term
    places: list[_Place] = field(default_factory=list)
    not_in: list[_Place] = field(default_factory=list)
    denied: bool = False
    place_follows: bool = False
    notes: tuple[str, ...] = ()


# A clause without its fillers: findings, places, "join", "or", "preposition", "asserts", "has", the denials, and "word"
# for what is not used.
_Part: TypeAlias = _Mention | _Place | str


def _mentions(terms: Sequence[Term]) -> list[_Mention]:
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
            if found and len(parts) == 1 and denied:  # "Effusion? No."
                found[-1].denied = True
            continue
        if not found:
            loose += places
            continue
        unplaced = [mention for mention in found if not mention.places] or found[-1:]
        for mention in unplaced:
            (mention.not_in if denied else mention.places).extend(places)
    return found


def _clauses(terms: Sequence[Term]) -> Iterator[list[Term]]:
    clause: list[Term] = []
    for term in terms:
        if term.kind == "break":
            yield clause
            clause = []
        else:
            clause.append(term)
    yield clause


def _parts(clause: Sequence[Term]) -> list[_Part]:
    parts: list[_Part] = []
    joined, run, through = "", 0, False
    for index, term in enumerate(clause):
        if term.kind == "place" and (term.entry != "both" or _two_sides(clause, index)):
            last = next((part for part in reversed(parts) if part not in ("preposition", "has", "word")), None)
            if isinstance(last, _Place) and last.takes(term.place):
                while parts[-1] is not last:
                    parts.pop()
                last.add(term, through)
            else:
                place = _Place(joined=joined, run=run, located="preposition" in parts[-1:])
                place.add(term, False)
                parts.append(place)
            through = False
        elif term.kind in FINDING_KINDS:
            run += 1
            parts.append(_Mention(term))
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
        elif term.kind in ("unused", "unknown", "number", "large"):
            parts.append("word")
    return parts


def _two_sides(clause: Sequence[Term], index: int) -> bool:
    """Whether the "both" at ``index`` means two sides; in "both effusion and edema" it is a conjunction."""
    rest = [term for term in clause[index + 1 :] if term.kind not in ("filler", "unused", "preposition", "unknown")]
    if not rest:
        return index > 0 and clause[index - 1].kind == "preposition"
    return rest[0].kind == "place" and not rest[0].place.sides


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
        direct = after is not None and all(
            part in ("has", "asserts", "word") for part in parts[end : parts.index(after)]
        )
        previous = next((part for part in reversed(parts[:start]) if part not in ("preposition", "word")), None)
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
    while following < len(parts) and parts[following] in ("join", "or", "preposition", "word"):
        following += 1
    return following > index and following < len(parts) and isinstance(parts[following], _Place)


def _share(parts: Sequence[_Part], mentions: Sequence[_Mention], runs: int) -> None:
    """A place after several findings is theirs together; a place before them, too, if it is the clause's only one."""
    for first, second in reversed(list(itertools.pairwise(mentions))):
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
            backwards = part == "denies last" or (part == "denies either" and earlier)
            if backwards or all(isinstance(other, str) and other != "word" for other in rest):
                for mention in _back_to_assertion(parts[:index]):
                    mention.denied = True
            elif any(isinstance(other, _Mention) for other in rest):
                denying, reached = True, False


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
        if place.lung and place.located and not sides:
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
                for other in reversed(places[:index]):  # "left lung, base": the second narrows the first
                    if place.joined != "," or other.zones or other.run != place.run:
                        break
                    other.zones = place.zones
            elif after is not None and after.sides and after.side_last:
                place.sides = after.sides
        bare = place.sides and not place.zones and not place.lung
        if bare and after is not None and after.sides and after.zones and not after.side_last:
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
