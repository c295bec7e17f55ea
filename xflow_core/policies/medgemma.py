"""pi_init and pi_rev as MedGemma writes them (paper, section 4.1): prompts, constrained decoding, incremental work.

Stage 1 is one turn: the radiograph and the question, then the transcript of lungs, verdicts and lesion boxes. Each call
of the workflow decodes its own part after what stands before it, which may be the user's; what the model has read
already is not read again. Stage 2 is a conversation about one component: the radiograph, the mask laid over it and the
question; a click; the next mask laid over it; and so on. The paper's own prompt texts are not public; these are
XFlow's, and training uses them (:func:`question`).

A verdict's probability is that of the token in which " present" and " absent" part, the two alone, through the
bundle's calibration. Boxes and clicks carry no confidence: a coordinate's probability says nothing about the lesion.

Without the constraint (``constrained: false``) the model writes what it likes; text that is no transcript raises
:class:`~.transcript.TranscriptError`, an ``EngineError`` that carries the text into the trace.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from xflow_core.domain.errors import BundleError, EngineError, ValueRefused
from xflow_core.domain.findings import (
    CHEST,
    FINDINGS,
    HEART,
    LUNGS,
    check_finding,
    lung_of,
    lungs_for,
    region_band,
    verdict_regions,
)
from xflow_core.domain.geometry import Box
from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import Click, GroundedLung, LesionBox, Verdict
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.recipes import check_recipe, recipe_grey

from . import transcript
from .calibration import Calibration
from .medgemma_decoding import PieceTokens, Written, decode
from .medgemma_layouts import LaidOutPolicies, layout_and_next, load_in_layout
from .medgemma_model import KEPT_CONVERSATIONS, Conversation, MedGemma, Pictures, check_decoding, seeded
from .medgemma_pictures import overlaid, squared
from .protocols import Decision, Done, InitPolicy, RevisionPolicy
from .transcript import Choice, Number, Plan, SquareFrame, TranscriptError

T = TypeVar("T")
LOG = logging.getLogger(__name__)

INIT, REVISION = "init", "revision"
ANSWERS = ("transcript", "box_2d")
_NO_CALIBRATION = Calibration(1.0, 0.0, 0.5)
_SMALLEST_LUNG = 20  # a lung's box is at least a twentieth of the square wide and high
_SOURCE = "radiograph"


@dataclass(frozen=True)
class PolicySettings:
    """What a bundle says about its policies (``settings["policies"]`` of the manifest).

    answers: ``transcript`` for policies that were taught XFlow's grammar, ``box_2d`` for the base model's own answers.
    grid: the whole numbers that the square's side is divided into.
    constrained: decode under the grammar.
    temperature: 0 takes the likeliest token; above, tokens are drawn with the session's seed.
    max_clicks: in one conversation about a component (four in the paper).
    boxes_per_region: at most.
    most_tokens: that an unconstrained answer may take; more for a model that thinks aloud.
    thoughts: what stands in ``<think>`` before a click, by polarity.
    calibration: by finding: slope and offset on the verdict's log odds, and the probability from which on the finding
        is called present.
    """

    answers: str = "transcript"
    grid: int = transcript.GRID
    constrained: bool = True
    temperature: float = 0.0
    max_clicks: int = 4
    boxes_per_region: int = transcript.BOXES_PER_REGION
    most_tokens: int = 512
    thoughts: Mapping[str, str] = field(default_factory=lambda: dict(transcript.THOUGHTS))
    calibration: Mapping[str, Calibration] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.answers not in ANSWERS:
            raise BundleError(f"The bundle's policies answer in {self.answers!r}; known: {', '.join(ANSWERS)}.")
        least = min(self.max_clicks, self.boxes_per_region - 1, self.most_tokens - 1)
        if self.grid < 100 or not 0 <= self.temperature <= 2 or least < 0:
            raise BundleError(f"The settings of the bundle's policies cannot be: {self}.")
        if set(self.thoughts) != {"positive", "negative"} or any("<" in t or "\n" in t for t in self.thoughts.values()):
            raise BundleError(
                "The bundle's thoughts are one line without '<' for positive and one for negative clicks."
            )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PolicySettings:
        """From the manifest.

        Raises:
            BundleError: an unknown key, or a value that cannot be.
        """
        try:
            given = dict(data)
            calibration = {
                check_finding(finding): Calibration(**entry) for finding, entry in given.pop("calibration", {}).items()
            }
            return cls(calibration=calibration, **given)
        except (TypeError, ValueError, AttributeError) as problem:
            raise BundleError(f"The settings of the bundle's policies are not well formed: {problem!r}.") from None

    def of(self, finding: str) -> Calibration:
        return self.calibration.get(finding, _NO_CALIBRATION)


def load_policies(
    *,
    base: Path,
    adapters: Mapping[str, Path],
    settings: Mapping[str, Any],
    recipe: str,
    device: str,
    layout: str = "auto",
    decoding: str = "auto",
) -> LaidOutPolicies:
    """The two policies.

    Args:
        base: a local folder of a Gemma3 model with its processor.
        adapters: PEFT folders by ``init`` and ``revision``; without one that policy is the base model itself.
        settings: those of :class:`PolicySettings`.
        recipe: how the radiograph becomes the picture (:mod:`xflow_core.radiograph.recipes`).
        device: ``cpu``, ``cuda`` or ``mps``; bfloat16 on CUDA, float32 elsewhere.
        layout: how they lie in memory (:mod:`.medgemma_layouts`); ``auto`` chooses by what is free.
        decoding: see :func:`~.medgemma_model.check_decoding`.

    Raises:
        BundleError: settings or weights do not fit, or the tokenizer (:func:`check_tokenizer`).
        CallError: no such layout or way of decoding.
        EngineError: the memory does not suffice.
    """
    known = PolicySettings.from_json(settings)
    check_recipe(recipe)
    unknown = set(adapters) - {INIT, REVISION}
    if unknown:
        raise BundleError(f"The bundle has an adapter {sorted(unknown)[0]!r}; known: {INIT}, {REVISION}.")
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    way = check_decoding(decoding, device)

    def load(name: str) -> tuple[InitPolicy, RevisionPolicy]:
        models = load_in_layout(name, base, adapters, device=device, dtype=dtype, decoding=way)
        tokenizer, end = models[INIT].processor.tokenizer, models[INIT].end
        check_tokenizer(PieceTokens(tokenizer, end), known)
        if known.answers == "box_2d":
            return ZeroShotInitPolicy(models[INIT], known, recipe), NoRevision()
        return MedGemmaInitPolicy(models[INIT], known, recipe), MedGemmaRevisionPolicy(models[REVISION], known, recipe)

    return LaidOutPolicies(layout_and_next(layout, base, adapters, device), load, device)


def check_tokenizer(tokens: PieceTokens, settings: PolicySettings) -> None:
    """Whether the tokenizer cuts whole answers as decoding does, piece by piece (:meth:`PieceTokens.cuts_alike`).

    Policies that were taught transcripts as whole texts know no other tokens, so a tokenizer that cuts them otherwise
    is refused. The base model, asked in its own way, reads any cut; there the log says so.

    Raises:
        BundleError: it does not, and the policies write transcripts.
    """
    frame = SquareFrame((1000, 800), settings.grid)
    box = Box(0.1, 0.2, 0.45, 0.9)
    if settings.answers == "box_2d":
        numbers = frame.numbers_of_box(box)
        digits = [str(numbers[axis]) for axis in (1, 0, 3, 2)]
        answers = [transcript.write(transcript.boxes_2d_plan(LUNGS, frame), digits * len(LUNGS))]
    else:
        regions = [*LUNGS, *(f"{lung} zone lung" for lung in ("right upper", "left mid", "right apical")), HEART]
        stage1 = transcript.write_lungs([GroundedLung(lung, box) for lung in LUNGS], frame)
        stage1 += transcript.write_verdicts([Verdict(region, bool(k % 2)) for k, region in enumerate(regions)])
        answers = [[*stage1, *transcript.write_boxes(finding, [box, box], frame)] for finding in FINDINGS]
        answers += [
            transcript.write_click(Click(polarity, box.centre), frame, settings.thoughts)
            for polarity in ("positive", "negative")
        ]
    for pieces in answers:
        if tokens.cuts_alike(pieces):
            continue
        said = (
            "The bundle's tokenizer cuts a whole answer into other tokens than XFlow's decoding does, which writes it "
            f"piece by piece ({''.join(pieces)[:60]!r}..)"
        )
        if settings.answers != "box_2d":
            raise BundleError(f"{said}; policies taught with it would be forced to write what they never saw.")
        LOG.warning("%s; the base model's boxes may suffer.", said)
        return


def question(instruction: Instruction) -> str:
    """The question in the words that the policies are asked with, whatever the user's were; they are one of training's.

    >>> question(Instruction("any fluid left?", "effusion", ("left lung",), "lung"))
    'Segment the effusion in the left lung.'
    """
    if instruction.regions in ((CHEST,), (HEART,)):
        return f"Segment the {instruction.finding}."
    named = instruction.regions
    where = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    return f"Segment the {instruction.finding} in the {where}."


# One policy about one radiograph -----------------------------------------------------------------------------------


class _Writer:
    """What the policies share: the pictures, the conversation, and how an answer is decoded."""

    adapter: str

    def __init__(self, gemma: MedGemma, settings: PolicySettings, recipe: str) -> None:
        self.gemma = gemma
        self.settings = settings
        self._recipe = recipe
        self._tokens = PieceTokens(gemma.processor.tokenizer, gemma.end)
        self._open: OrderedDict[tuple[int, int], _Held] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def about(self, image: EncodedRadiograph, component: int = 0) -> Iterator[_View]:
        """The model and the conversation about a radiograph and one of its components, for one decision of this thread.

        A second thread about the same waits; those about others share the model's passes.
        """
        held = self._held(image, component)
        with self._lock:
            held.users += 1
        try:
            view = _View(self, image, held.pictures, held.conversation)
            view.prepare()
            with held.lock, self.gemma.using(self.adapter):
                yield view
        finally:
            with self._lock:
                held.users -= 1

    def view(self, image: EncodedRadiograph) -> _View:
        """The same, to look at: it decides nothing."""
        held = self._held(image, 0)
        return _View(self, image, held.pictures, held.conversation)

    def _held(self, image: EncodedRadiograph, component: int) -> _Held:
        pictures: Pictures = image.feature(f"medgemma.{self.adapter}", lambda _: Pictures())

        def siblings() -> list[Conversation]:
            with self._lock:
                return [held.conversation for held in self._open.values() if held.pictures is pictures]

        key = id(pictures), component
        with self._lock:
            held = self._open.pop(key, None)
            if held is None and len(self._open) == KEPT_CONVERSATIONS:
                # Of this radiograph the one that rests longest, which has read it; else the oldest of all. Whoever is
                # deciding in that one goes on with it.
                mine = [k for k, other in self._open.items() if other.pictures is pictures and other.users == 0]
                given_up = self._open.pop(mine[0] if mine else next(iter(self._open)))
                held = given_up if mine else None
            held = held or _Held(pictures, Conversation(self.gemma, siblings))
            self._open[key] = held
            return held


@dataclass(eq=False)
class _Held:
    """The conversation about a radiograph and a component, a lock for whoever decides in it, and how many do."""

    pictures: Pictures
    conversation: Conversation
    lock: threading.RLock = field(default_factory=threading.RLock)
    users: int = 0


class _View:
    """One decision's look at a radiograph: its frame, its pictures, the conversation so far."""

    def __init__(
        self, writer: _Writer, image: EncodedRadiograph, pictures: Pictures, conversation: Conversation
    ) -> None:
        self._writer = writer
        self._image = image
        self._pictures = pictures
        self._conversation = conversation
        self._draw: dict[str, Callable[[], np.ndarray]] = {}
        try:
            self.frame = SquareFrame(image.radiograph.record.size, writer.settings.grid)
        except ValueRefused as problem:
            raise EngineError(f"The policies cannot be shown this picture: {problem}") from None

    @property
    def _square(self) -> np.ndarray:
        side = self._writer.gemma.picture_side
        grey = recipe_grey(self._image, self._writer._recipe)
        square: np.ndarray = self._image.feature(
            f"medgemma.square.{self._writer._recipe}.{side}", lambda _: squared(grey, side)
        )
        return square

    def prepare(self) -> None:
        """Draw the radiograph, which takes long and needs no model."""
        _ = self._square

    def source(self) -> list[int]:
        """The radiograph's symbols."""
        return self._symbols(_SOURCE, lambda: self._square)

    def overlay(self, mask: np.ndarray) -> list[int]:
        """The symbols of the radiograph with a mask laid over it."""
        key = hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()
        return self._symbols(key, lambda: overlaid(self._square, mask))

    def _symbols(self, key: str, draw: Callable[[], np.ndarray]) -> list[int]:
        self._draw[key] = draw
        return self._pictures.symbols(key, self._writer.gemma.processor.image_seq_length)

    def _features(self, symbol: int) -> Tensor:
        key = self._pictures.key_of(symbol)
        return self._pictures.tokens(key, self._draw[key], self._writer.gemma)

    def turns(self, parts: Sequence[tuple[Sequence[Sequence[int]], str]]) -> list[list[int]]:
        return self._writer.gemma.turns(parts)

    def encode(self, pieces: Sequence[str]) -> list[int]:
        return self._writer._tokens.encode(pieces)

    def decide(
        self, plan: Plan[T], prefix: Sequence[int], seed: int, calibration: Calibration = _NO_CALIBRATION
    ) -> tuple[Written[T], list[float]]:
        """The model's answer to a plan, and the probability of "present" (the second option) at each verdict in it."""
        settings, gemma = self._writer.settings, self._writer.gemma
        probabilities: list[float] = []

        def choose(sequence: Sequence[int], place: Choice | Number, allowed: dict[int, tuple[str, ...]]) -> int:
            gemma.work.decode_steps += 1
            scores = self._scores(sequence, list(allowed))
            drawn = seeded(seed, sequence, self._pictures) if settings.temperature > 0 else None
            if isinstance(place, Choice) and place.verdict:
                tokens = {options[0]: token for token, options in allowed.items()}
                absent, present = (scores[list(allowed).index(tokens[option])] for option in place.options)
                probability = calibration.probability(float(present - absent))
                probabilities.append(probability)
                least = calibration.threshold if drawn is None else float(torch.rand((), generator=drawn))
                return tokens[place.options[int(probability >= least)]]
            if drawn is None:
                return list(allowed)[int(scores.argmax())]
            shares = (scores / settings.temperature).softmax(0)
            return list(allowed)[int(torch.multinomial(shares, 1, generator=drawn))]

        return decode(plan, self._writer._tokens, prefix, choose), probabilities

    def probabilities(
        self, prefix: Sequence[int], verdicts: Sequence[Verdict], calibration: Calibration
    ) -> list[float]:
        """The probability of "present" at verdicts that stand already."""
        found: list[float] = []
        wanted = iter(verdicts)

        def choose(sequence: Sequence[int], place: Choice | Number, allowed: dict[int, tuple[str, ...]]) -> int:
            tokens = {options[0]: token for token, options in allowed.items()}
            scores = self._scores(sequence, [tokens[option] for option in transcript.VERDICTS])
            found.append(calibration.probability(float(scores[1] - scores[0])))
            return tokens[transcript.VERDICTS[next(wanted).present]]

        decode(transcript.verdicts_plan([v.region for v in verdicts]), self._writer._tokens, prefix, choose)
        return found

    def write_freely(self, prefix: Sequence[int], seed: int) -> str:
        """What the model writes without any constraint, up to the end of its turn.

        Raises:
            TranscriptError: it does not come to an end.
        """
        gemma = self._writer.gemma
        # No picture of its own, and no second turn.
        forbidden = list(gemma.image_tokens)
        written: list[int] = []
        while len(written) < self._writer.settings.most_tokens:
            sequence = [*prefix, *written]
            gemma.work.decode_steps += 1
            logits = self._conversation.after(sequence, self._features).clone()
            logits[forbidden] = -torch.inf
            if self._writer.settings.temperature == 0:
                token = int(logits.argmax())
            else:
                drawn = seeded(seed, sequence, self._pictures)
                shares = (logits.cpu() / self._writer.settings.temperature).softmax(0)
                token = int(torch.multinomial(shares, 1, generator=drawn))
            if token == gemma.end:
                return self._writer._tokens.text(written)
            written.append(token)
        text = self._writer._tokens.text(written)
        raise TranscriptError(text, len(text), f"it has no end within {len(written)} tokens")

    def _scores(self, sequence: Sequence[int], tokens: list[int]) -> Tensor:
        scores = self._conversation.after(sequence, self._features)[tokens].cpu()
        if not bool(torch.isfinite(scores).all()):
            raise EngineError("The language model gave numbers that are not finite; nothing was decided.")
        return scores


def _bands(verdicts: Sequence[Verdict], lungs: Sequence[GroundedLung]) -> tuple[list[str], list[Box]]:
    """The regions that were judged present and where they lie; the heart may be anywhere."""
    boxes = {lung.label: lung.box for lung in lungs}
    present = [verdict.region for verdict in verdicts if verdict.present]
    places = [(region, lung_of(region)) for region in present]
    return present, [Box(0, 0, 1, 1) if lung is None else region_band(region, boxes[lung]) for region, lung in places]


def _lesions(finding: str, found: Sequence[tuple[str, Box]], order: Sequence[str]) -> tuple[LesionBox, ...]:
    """Boxes with their regions as components: region after region, in reading order inside each."""
    ordered = sorted(found, key=lambda entry: (order.index(entry[0]), entry[1].y1, entry[1].x1))
    return tuple(LesionBox(number, finding, box, region) for number, (region, box) in enumerate(ordered))


def _with_confidence(verdicts: Sequence[Verdict], probabilities: Sequence[float]) -> tuple[Verdict, ...]:
    pairs = zip(verdicts, probabilities, strict=True)
    return tuple(replace(v, confidence=p if v.present else 1 - p) for v, p in pairs)


# The policies ------------------------------------------------------------------------------------------------------


class MedGemmaInitPolicy(_Writer):
    """pi_init, an :class:`~.protocols.InitPolicy`: one transcript, decoded part by part."""

    adapter = INIT

    def __init__(self, gemma: MedGemma, settings: PolicySettings, recipe: str) -> None:
        super().__init__(gemma, settings, recipe)
        # The last text that was written without the constraint, by all that it hangs on.
        self._written: tuple[object, str] = (None, "")

    def ground_lungs(
        self, image: EncodedRadiograph, instruction: Instruction, lungs: Sequence[str], *, seed: int
    ) -> Decision[tuple[GroundedLung, ...]]:
        with self.about(image) as view:
            prefix = self._asked(view, instruction)
            if not self.settings.constrained:
                answer = self._freely(view, prefix, [], image, instruction, seed)
                return Decision(answer.lungs, "".join(transcript.write_lungs(answer.lungs, view.frame)))
            plan = transcript.lungs_plan(lungs, view.frame, least=view.frame.grid // _SMALLEST_LUNG)
            written, _ = view.decide(plan, prefix, seed)
            return Decision(written.value, written.text)

    def judge(
        self,
        image: EncodedRadiograph,
        instruction: Instruction,
        regions: Sequence[str],
        lungs: Sequence[GroundedLung],
        *,
        seed: int,
    ) -> Decision[tuple[Verdict, ...]]:
        calibration = self.settings.of(instruction.finding)
        with self.about(image) as view:
            prefix = self._asked(view, instruction)
            before = transcript.write_lungs(lungs, view.frame)
            start = [*prefix, *view.encode(before)]
            if not self.settings.constrained:
                answer = self._freely(view, prefix, before, image, instruction, seed)
                probabilities = view.probabilities(start, answer.verdicts, calibration)
                verdicts = _with_confidence(answer.verdicts, probabilities)
                return Decision(verdicts, "".join(transcript.write_verdicts(verdicts)))
            written, probabilities = view.decide(transcript.verdicts_plan(regions), start, seed, calibration)
            return Decision(_with_confidence(written.value, probabilities), written.text)

    def localise(
        self,
        image: EncodedRadiograph,
        instruction: Instruction,
        lungs: Sequence[GroundedLung],
        verdicts: Sequence[Verdict],
        *,
        seed: int,
    ) -> Decision[tuple[LesionBox, ...]]:
        finding, most = instruction.finding, self.settings.boxes_per_region
        regions, bands = _bands(verdicts, lungs)
        with self.about(image) as view:
            prefix = self._asked(view, instruction)
            before = [*transcript.write_lungs(lungs, view.frame), *transcript.write_verdicts(verdicts)]
            if self.settings.constrained:
                plan = transcript.boxes_plan(finding, view.frame, bands=bands, most=most)
                written, _ = view.decide(plan, [*prefix, *view.encode(before)], seed)
                boxes, text = written.value, written.text
            else:
                boxes = self._freely(view, prefix, before, image, instruction, seed).boxes
                text = "".join(transcript.write_boxes(finding, boxes, view.frame))
        owners = transcript.regions_of_boxes(boxes, bands, most=most)
        found = [(regions[owner], box) for owner, box in zip(owners, boxes, strict=True)]
        return Decision(_lesions(finding, found, regions), text)

    def _asked(self, view: _View, instruction: Instruction) -> list[int]:
        (prefix,) = view.turns([([view.source()], question(instruction))])
        return prefix

    def _freely(
        self,
        view: _View,
        prefix: Sequence[int],
        before: Sequence[str],
        image: EncodedRadiograph,
        instruction: Instruction,
        seed: int,
    ) -> transcript.Answer:
        """The whole transcript as the model writes it after ``before``; the last one, while it begins like that."""
        hangs_on = (image.radiograph.record.sha256, question(instruction), seed)
        start = "".join(before)
        if self._written[0] != hangs_on or not self._written[1].startswith(start):
            text = start + view.write_freely([*prefix, *view.encode(before)], seed)
            self._written = hangs_on, text
        return transcript.read_answer(
            self._written[1],
            finding=instruction.finding,
            lungs=lungs_for(instruction.regions),
            regions=verdict_regions(instruction.regions),
            frame=view.frame,
        )


class MedGemmaRevisionPolicy(_Writer):
    """pi_rev, a :class:`~.protocols.RevisionPolicy`: a conversation about one component.

    The conversation tells all masks and clicks so far. Where they do not alternate, because the user drew a mask, it
    begins anew at the newest mask.
    """

    adapter = REVISION

    def revise(
        self,
        image: EncodedRadiograph,
        instruction: Instruction,
        component: LesionBox,
        masks: Sequence[np.ndarray],
        clicks: Sequence[Click],
        *,
        seed: int,
    ) -> Decision[Click | Done]:
        if len(masks) != len(clicks) + 1:
            masks, clicks = masks[-1:], ()
        if len(clicks) >= self.settings.max_clicks:
            return Decision(Done("no_progress"))
        with self.about(image, component.component) as view:
            first, *others = [view.overlay(mask) for mask in masks]
            turns = view.turns([([view.source(), first], question(instruction)), *(([each], "") for each in others)])
            symbols = turns[0]
            for click, turn in zip(clicks, turns[1:], strict=True):
                said = transcript.write_click(click, view.frame, self.settings.thoughts)
                symbols = [*symbols, *view.encode(said), *turn]
            if not self.settings.constrained:
                text = view.write_freely(symbols, seed)
                return Decision(transcript.read_click(text, view.frame), text)
            written, _ = view.decide(transcript.click_plan(view.frame, self.settings.thoughts), symbols, seed)
            return Decision(written.value, written.text)


class ZeroShotInitPolicy(_Writer):
    """The base model asked in its own way: boxes as JSON ``box_2d``, a verdict as yes or no. No XFlow weights.

    Each question is a chat of its own that begins with the same picture; that beginning is read once.
    """

    adapter = INIT

    def ground_lungs(
        self, image: EncodedRadiograph, instruction: Instruction, lungs: Sequence[str], *, seed: int
    ) -> Decision[tuple[GroundedLung, ...]]:
        with self.about(image) as view:
            found, text = self._boxes(view, f"Where is the {' and the '.join(lungs)}?", lungs, None, seed)
        return Decision(tuple(GroundedLung(label, box) for label, box in found), text)

    def judge(
        self,
        image: EncodedRadiograph,
        instruction: Instruction,
        regions: Sequence[str],
        lungs: Sequence[GroundedLung],
        *,
        seed: int,
    ) -> Decision[tuple[Verdict, ...]]:
        calibration = self.settings.of(instruction.finding)
        verdicts: list[Verdict] = []
        texts = []
        with self.about(image) as view:
            for region in regions:
                asked = f"Is there {instruction.finding}{_inside(region)}? Answer yes or no."
                (prefix,) = view.turns([([view.source()], asked)])
                written, probabilities = view.decide(transcript.yes_no_plan(), prefix, seed, calibration)
                verdicts += _with_confidence([Verdict(region, written.value)], probabilities)
                texts.append(written.text)
        return Decision(tuple(verdicts), "\n".join(texts))

    def localise(
        self,
        image: EncodedRadiograph,
        instruction: Instruction,
        lungs: Sequence[GroundedLung],
        verdicts: Sequence[Verdict],
        *,
        seed: int,
    ) -> Decision[tuple[LesionBox, ...]]:
        finding = instruction.finding
        regions, bands = _bands(verdicts, lungs)
        found: list[tuple[str, Box]] = []
        texts = []
        with self.about(image) as view:
            for region, band in zip(regions, bands, strict=True):
                asked = f"Where is the {finding}{_inside(region)}?"
                boxes, text = self._boxes(view, asked, [finding], [band], seed)
                found += [(region, box) for _, box in boxes]
                texts.append(text)
        return Decision(_lesions(finding, found, regions), "\n".join(texts))

    def _boxes(
        self, view: _View, asked: str, labels: Sequence[str], bands: Sequence[Box] | None, seed: int
    ) -> tuple[tuple[tuple[str, Box], ...], str]:
        """One box for each of ``labels``, in their order; without the constraint a single label may have several."""
        how = f'{asked} Answer with a JSON list of objects with "box_2d": [y0, x0, y1, x1] from 0 to {view.frame.grid} '
        (prefix,) = view.turns([([view.source()], f'{how}and "label", nothing else.')])
        if self.settings.constrained:
            least = 1 if bands is not None else view.frame.grid // _SMALLEST_LUNG
            written, _ = view.decide(
                transcript.boxes_2d_plan(labels, view.frame, bands=bands, least=least), prefix, seed
            )
            return written.value, written.text
        text = view.write_freely(prefix, seed)
        found = transcript.read_boxes_2d(text, view.frame)
        named = [label for label, _ in found]
        if set(named) != set(labels) or (len(labels) > 1 and len(named) > len(labels)):
            raise TranscriptError(text, 0, f"it names {named}, asked for {list(labels)}")
        return tuple(sorted(found, key=lambda entry: labels.index(entry[0]))), text


class NoRevision:
    """The base model was never taught to click: what the segmenter made of the box stays."""

    def revise(
        self,
        image: EncodedRadiograph,
        instruction: Instruction,
        component: LesionBox,
        masks: Sequence[np.ndarray],
        clicks: Sequence[Click],
        *,
        seed: int,
    ) -> Decision[Click | Done]:
        return Decision(Done("no_progress"))


def _inside(region: str) -> str:
    return "" if region == HEART else f" in the {region}"
