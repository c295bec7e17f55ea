"""A synthetic study: who, when, what is there, what was said, and what is wrong with its records.

Studies are made one after the other from a seed and their number, so that a hundred thousand need no more memory than
one, and the same seed gives the same studies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

from xflow_core.domain.findings import FINDINGS, LUNGS

from .anatomy import Anatomy, make_anatomy
from .lesions import Lesion, make_lesions, regions_by_finding

# MIMIC-ILS's own proportions (Table 5: 187,588 train, 1,508 val of about 192,000), and CheXpercept's within train.
_VAL, _TEST, _REVIEWED = 0.008, 0.015, 2100 / 187_588
_REVIEWED_AT_MOST_EASILY = 200
# Of the reviewed studies, those with a flaw: about as many as the paper loses (244 of 2,100), and then some.
_FLAWED_REVIEWS = 0.2

_BODIES = 16

# What can be wrong. Sources that disagree or are silent, for studies that CheXpercept reviewed ..
DISAGREEMENTS = ("report_denies", "scene_graph_denies", "report_elsewhere", "scene_graph_elsewhere")
MISSING = ("report_missing", "scene_graph_missing", "report_silent")
DIRTY_REVIEWS = ("scene_graph_broken", "scene_graph_patient", "review_answer", "review_zone", "review_dicom")
# .. and dirty records, for any study.
DIRTY = (
    "unknown_target",
    "unknown_location",
    "missing_field",
    "no_mask_path",
    "seg_contradicts",
    "study_repeated",
    "subject_differs",
    "study_malformed",
    "rle_overruns",
    "rle_odd",
    "low_quality",
    "size_differs",
    "metadata_repeated",
)
DIRTY_IMAGES = ("image_missing", "image_truncated", "mask_missing", "mask_empty", "mask_aspect")
FLAWS = (*DISAGREEMENTS, *MISSING, *DIRTY_REVIEWS, *DIRTY, *DIRTY_IMAGES)
_NEED_A_LESION = {
    "report_denies", "scene_graph_denies", "report_elsewhere", "scene_graph_elsewhere", "no_mask_path",
    "seg_contradicts", "mask_missing", "mask_empty", "mask_aspect", "review_zone",
}  # fmt: skip


@dataclass(frozen=True)
class Build:
    """What a chest's outlines follow from: equal builds have equal outlines. size: ``(height, width)``. raised: the
    lungs whose dome stands high."""

    seed: int
    body: int
    size: tuple[int, int]
    big_heart: bool
    raised: tuple[str, ...]

    def anatomy(self) -> Anatomy:
        return make_anatomy(Random(f"{self.seed}/{self.body}/anatomy"), self.size, self.big_heart, self.raised)


@dataclass(frozen=True)
class SyntheticStudy:
    """One study with one frontal radiograph.

    subject, study: with their letters ("p10000000", "s50000000"). size: ``(height, width)``. lesions: the truth.
    denied: findings that are absent and said to be. reviewed: the findings that CheXpercept asks about. flaw: what is
    wrong with its records, of :data:`FLAWS`, and the finding that it concerns. body: whose outlines it has; studies
    that are drawn have their own. findings: those that its records name. elsewhere: how many places MIMIC-ILS says a
    present finding is not in.
    """

    index: int
    seed: int
    split: str
    subject: str
    study: str
    dicom_id: str
    size: tuple[int, int]
    view: str
    lesions: tuple[Lesion, ...]
    denied: tuple[str, ...]
    reviewed: tuple[str, ...] = ()
    flaw: str | None = None
    flawed_finding: str | None = None
    body: int = 0
    findings: tuple[str, ...] = FINDINGS
    elsewhere: int = 0

    @cached_property
    def present(self) -> dict[str, tuple[str, ...]]:
        """The regions of every present finding."""
        return _told(self.lesions, self.findings)

    @property
    def build(self) -> Build:
        """What its outlines follow from."""
        big = any(lesion.finding == "cardiomegaly" for lesion in self.lesions)
        raised = tuple(lesion.lung for lesion in self.lesions if lesion.finding == "atelectasis")
        return Build(self.seed, self.body, self.size, big, raised)

    @cached_property
    def anatomy(self) -> Anatomy:
        return self.build.anatomy()

    def random(self, purpose: str) -> Random:
        """A generator of its own for every purpose, so that one does not move another."""
        return Random(f"{self.seed}/{self.index}/{purpose}")


@dataclass(frozen=True)
class Plan:
    """How many studies, and which.

    Args:
        studies: how many; at least 20, so that every split has some.
        images: pictures are drawn too; their flaws need them.
        side: the longer side of the radiographs in pixels.
        flawed: the share of studies outside CheXpercept with a dirty record; of those inside, a fifth has a flaw.
        findings: those that are drawn and named; a lesion that counts as one of them (a pneumonia is an opacity) is
            drawn too.
        reviewed_share: of the training studies, those that CheXpercept covers; None for its own share.
        elsewhere: pairs of MIMIC-ILS that ask for a present finding where it is not; nobody said how many it has.
    """

    studies: int
    seed: int = 0
    images: bool = True
    side: int = 512
    flawed: float = 0.02
    findings: tuple[str, ...] = FINDINGS
    reviewed_share: float | None = None
    elsewhere: int = 0

    @property
    def by_split(self) -> dict[str, int]:
        val, test = max(round(self.studies * _VAL), 2), max(round(self.studies * _TEST), 2)
        return {"train": self.studies - val - test, "val": val, "test": test}

    @property
    def reviewed(self) -> int:
        """About how many studies CheXpercept covers: its share of train, but enough to split where there are few."""
        train = self.by_split["train"]
        if self.reviewed_share is not None:
            return round(train * self.reviewed_share)
        return max(round(train * _REVIEWED), min(_REVIEWED_AT_MOST_EASILY, train // 2))

    def __iter__(self) -> Iterator[SyntheticStudy]:
        """The studies in the order of the splits; a patient's follow each other and stay in one split."""
        index = patient = 0
        dirty = (*DIRTY, *DIRTY_IMAGES) if self.images else DIRTY
        turns = {"reviewed": [*DISAGREEMENTS, *MISSING, *DIRTY_REVIEWS], "other": list(dirty)}
        for split, count in self.by_split.items():
            left, share = count, self.reviewed / count if split == "train" else 0.0
            while left:
                random = Random(f"{self.seed}/patient/{patient}")
                studies = min(random.choice((1, 1, 1, 2, 2, 3, 5)), left)
                # A patient is reviewed once, sometimes in two studies; other studies of the same patient are not.
                covered = random.random() < share * studies / 1.2
                picked = set(random.sample(range(studies), min(2 if random.random() < 0.2 else 1, studies)))
                subject = f"p{10_000_000 + patient * 6_700_417 % 9_999_991}"
                for number in range(studies):
                    made = self._study(index, split, subject, covered and number in picked, turns)
                    yield made
                    index += 1
                left -= studies
                patient += 1

    def _study(
        self, index: int, split: str, subject: str, covered: bool, turns: dict[str, list[str]]
    ) -> SyntheticStudy:
        random = Random(f"{self.seed}/{index}/study")
        lesions = self._lesions(random, sick=covered and random.random() < 0.8)
        found = _told(lesions, self.findings)
        absent = [finding for finding in self.findings if finding not in found]
        denied = tuple(sorted(random.sample(absent, min(random.choice((1, 2, 2, 3)), len(absent))), key=FINDINGS.index))
        reviewed: tuple[str, ...] = ()
        if covered:
            asked = random.sample(sorted(found), min(random.choice((1, 1, 2)), len(found)))
            asked += random.sample(denied, min(random.choice((0, 1, 1)) if asked else 1, len(denied)))
            reviewed = tuple(sorted(asked, key=FINDINGS.index))
        other = random.choice((0.82, 0.83, 0.9, 1.0))
        size = (self.side, round(self.side * other))
        size = size if random.random() < 0.7 else (size[1], size[0])
        kinds, share = (turns["reviewed"], _FLAWED_REVIEWS) if covered else (turns["other"], self.flawed)
        kind, finding = self._flaw(random, kinds, share, found, reviewed)
        name = hashlib.blake2b(f"{self.seed}/{index}".encode(), digest_size=20).hexdigest()
        return SyntheticStudy(
            index=index,
            seed=self.seed,
            split=split,
            subject=subject,
            study=f"s{50_000_000 + index * 6_700_417 % 9_999_991}",
            dicom_id="-".join(name[start : start + 8] for start in range(0, 40, 8)),
            size=size,
            view="PA" if random.random() < 0.6 else "AP",
            lesions=lesions,
            denied=denied,
            reviewed=reviewed,
            flaw=kind,
            flawed_finding=finding,
            # Nobody sees the outlines of a study that is not drawn: a few bodies do for a hundred thousand.
            body=index if self.images else index % _BODIES,
            findings=self.findings,
            elsewhere=self.elsewhere,
        )

    def _lesions(self, random: Random, sick: bool) -> tuple[Lesion, ...]:
        """Those of a chest that count as one of the plan's findings; at least one where ``sick``."""
        while True:
            kept = [lesion for lesion in make_lesions(random, sick) if _told([lesion], self.findings)]
            if kept or not sick:
                return tuple(kept)

    def _flaw(
        self,
        random: Random,
        kinds: list[str],
        share: float,
        found: dict[str, tuple[str, ...]],
        reviewed: tuple[str, ...],
    ) -> tuple[str | None, str | None]:
        """What is wrong, and with which finding: the first kind in the queue that it can have, so that all come up."""
        if random.random() >= share or len(found) == len(self.findings):
            return None, None
        # In the lungs: what stands on one side can be said to stand on the other.
        here = [f for f in (reviewed or sorted(found)) if f in found and f != "cardiomegaly"]
        one_sided = [f for f in here if len({region.split()[0] for region in found[f]}) == 1]
        for kind in kinds:
            choices: list[str | None] = [reviewed[0] if reviewed else None]
            if kind in _NEED_A_LESION:
                choices = [*(one_sided if kind.endswith("elsewhere") else here)]
            if choices:
                kinds.remove(kind)
                kinds.append(kind)
                return kind, random.choice(choices)
        return None, None


def _told(lesions: Sequence[Lesion], findings: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The regions of every present finding, of those that are named at all."""
    return {finding: regions for finding, regions in regions_by_finding(lesions).items() if finding in findings}


def other_side(regions: tuple[str, ...]) -> tuple[str, ...]:
    """The same regions of the other lung."""
    swap = dict(zip(("right", "left"), ("left", "right"), strict=True))
    return tuple(f"{swap[side]} {rest}" for side, rest in (region.split(" ", 1) for region in regions))


def lungs_of(regions: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(lung for lung in LUNGS if any(region.startswith(lung.split()[0]) for region in regions))
