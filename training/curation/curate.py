"""The stages in order: MIMIC-ILS and CheXpercept read, agreement, division by patient, disjointness proven."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from training.curation.agreement import Agreed, agree
from training.curation.division import EVAL, RL, SFT, VAL, Radiograph, check_disjoint, divide
from training.curation.paper import ReportSettings, Settings
from training.curation.questions import Asked, Question, asked_of, questions_of
from training.curation.report_parsing import EndpointParser, Parses, ReportParser, RuleParser
from training.curation.sources.chexpercept import Review, read_reviews
from training.curation.sources.imagenome import SceneGraphs
from training.curation.sources.layout import Sources
from training.curation.sources.mimic_cxr import read_marks
from training.curation.sources.mimic_ils import Pair, Study, read_studies
from training.curation.sources.problems import Problems
from training.curation.sources.reports import Reports

LOG = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Curated:
    """What comes out.

    radiographs: those of the four splits. agreed: of the agreed set, by side. in_set: MIMIC-ILS's radiographs by its
    own split. reviewed: CheXpercept's radiographs in MIMIC-ILS's training split. instructions: distinct questions of
    D_SFT, by split. dropped: triples that the sources do not agree on, by reason. shared: patients that D_SFT shares
    with D_RL or D_eval.
    """

    radiographs: tuple[Radiograph, ...]
    agreed: dict[str, tuple[Agreed, ...]]
    in_set: Counter[str]
    reviewed: int
    instructions: Counter[str]
    dropped: Counter[str]
    admitted: int
    shared: Counter[str]

    def questions(self, side: str) -> list[Question]:
        """The questions of D_RL or D_eval."""
        return [question for entry in self.agreed[side] for question in questions_of(entry)]


def parser_of(settings: ReportSettings) -> ReportParser:
    """The parser that the configuration names. An endpoint's key is read from XFLOW_REPORTS_KEY."""
    if settings.parser == "rules":
        return RuleParser()
    if settings.parser == "medgemma":
        # torch is not loaded for anything else here.
        from training.curation.medgemma_reports import MedGemmaParser

        return MedGemmaParser.load(settings.model, settings.at_once)
    key = os.environ.get("XFLOW_REPORTS_KEY")
    return EndpointParser(settings.url, settings.model, key=key, at_once=settings.at_once)


def curate(
    sources: Sources,
    settings: Settings,
    problems: Problems,
    parses: Path,
    asked: Callable[[Radiograph, Sequence[Asked]], None] | None = None,
) -> Curated:
    """Read the sets and make the splits.

    Args:
        sources: where the sets lie.
        problems: gets every record that cannot be used.
        parses: the file of the reports' parses; a run that was stopped goes on from it.
        asked: is given what MIMIC-ILS's pairs ask of each radiograph of D_SFT, in the order of the file.

    Raises:
        CallError: a set is missing or damaged. EngineError: the model that reads reports gives no answer. ValueRefused:
            the splits would not be disjoint.
    """
    parser = parser_of(settings.reports)  # first: a model that is not there is told before the sets are read
    # Disjoint by patient is worth as much as the patients' ids: MIMIC-ILS's are held against MIMIC-CXR's own.
    known = read_marks(sources.metadata) if sources.metadata.is_file() else None
    reviews = read_reviews(sources.reviews, problems)
    by_study: dict[str, list[Review]] = defaultdict(list)
    for review in reviews.usable:
        by_study[review.study].append(review)
    in_set: Counter[str] = Counter()
    instructions: Counter[str] = Counter()
    rest: list[Radiograph] = []
    covered: dict[str, Study] = {}
    # Which patients are covered is known only when all is read; their other studies are then left out.
    by_patient = settings.splits.hold_out == "patient"

    def take(entry: Radiograph, study: Study) -> None:
        questions = asked_of(study)
        instructions[entry.split] += len(questions)
        if asked is not None:
            asked(entry, questions)

    for study in progress(read_studies(sources.instructions, problems, known), "MIMIC-ILS"):
        in_set[study.split] += 1
        if study.split == "train" and study.id in reviews.studies:
            covered[study.id] = study
        elif study.split in ("train", "val"):
            split = SFT if study.split == "train" else VAL
            entry = Radiograph(study.id, study.subject, study.dicom_id, study.image, split)
            rest.append(entry)
            if not by_patient or split == VAL:
                take(entry, study)
    if by_patient:
        held = {study.subject for study in covered.values()}
        rest = [entry for entry in rest if entry.split != SFT or entry.subject not in held]
        kept = {entry.study: entry for entry in rest if entry.split == SFT}
        for study in progress(read_studies(sources.instructions, Problems()), "MIMIC-ILS again"):
            if study.id in kept:
                take(kept[study.id], study)
    dropped: Counter[str] = Counter()
    agreed = _agree(sources, by_study, covered, parser, parses, problems, dropped)
    sides = divide(agreed, settings.splits)
    divided: dict[str, tuple[Agreed, ...]] = {
        side: tuple(entry for entry in agreed if sides[entry.subject] == side) for side in (RL, EVAL)
    }
    for side, entries in divided.items():
        for name in dict.fromkeys(entry.study for entry in entries):
            study = covered[name]
            rest.append(Radiograph(study.id, study.subject, study.dicom_id, study.image, side))
    shared = check_disjoint(rest, settings.splits.hold_out)
    admitted = sum(len(entry.verdicts) for entry in agreed)
    return Curated(tuple(rest), divided, in_set, len(covered), instructions, dropped, admitted, shared)


def _agree(
    sources: Sources,
    by_study: dict[str, list[Review]],
    covered: dict[str, Study],
    parser: ReportParser,
    parses: Path,
    problems: Problems,
    dropped: Counter[str],
) -> list[Agreed]:
    agreed = []
    with (
        SceneGraphs(sources.scene_graphs, problems) as graphs,
        Reports(sources.reports, problems) as reports,
        Parses(parses, parser) as read,
    ):

        def cases() -> Iterator[tuple[Study, dict[str, Pair], list[Review], str | None]]:
            for name, entries in progress(sorted(by_study.items()), "Agreement"):
                study = covered.get(name)
                known = {} if study is None else {pair.id: pair for pair in study.pairs}
                usable = []
                for review in entries:
                    pair = known.get(review.pair)
                    if pair is None or pair.finding != review.finding:
                        problems.add("review_unknown", sources.reviews, review.key)
                    elif study is not None and review.dicom_id != study.dicom_id:
                        problems.add(
                            "review_dicom", sources.reviews, review.key, f"{review.dicom_id}, not {study.dicom_id}"
                        )
                    else:
                        usable.append(review)
                if usable and study is not None:
                    yield study, known, usable, reports.read(study.subject, study.id)

        for (study, known, usable, report), stated in read.alongside(cases(), lambda case: (case[0].id, case[3])):
            graph = graphs.read(study.dicom_id, study.subject, study.id)
            for review in usable:
                entry = agree(
                    review, study.subject, known[review.pair].mask, stated, report is not None, graph, dropped
                )
                if entry is not None:
                    agreed.append(entry)
    return agreed


def progress(items: Iterable[T], name: str, total: int | None = None, every: float = 60.0) -> Iterator[T]:
    """The same items, and how far it is: a bar on a terminal, elsewhere a line in the log now and then.

    Args:
        total: how many there are, where ``items`` does not tell. every: seconds between lines.
    """
    console = Console(stderr=True)
    if total is None and isinstance(items, Sequence):
        total = len(items)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
            yield from bar.track(items, total=total, description=name)
        return
    begun = told = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if now - told >= every:
            told = now
            of = "" if total is None else f" of {total:,}"
            LOG.info("%s: %s%s, %.1f a second", name, f"{done:,}", of, done / (now - begun))
        yield item
