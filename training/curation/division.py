"""The agreed set divided by patient, and the proof that the splits are disjoint (paper, A.1; Table 5)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from training.curation.agreement import Agreed
from training.curation.paper import SplitSettings
from xflow_core.domain.errors import ValueRefused

SFT, VAL, RL, EVAL = "sft", "sft_val", "rl", "eval"
SPLITS = (SFT, VAL, RL, EVAL)


@dataclass(frozen=True, slots=True)
class Radiograph:
    """A radiograph in its split; MIMIC-ILS has one a study. image: its path under MIMIC-CXR-JPG's ``files``."""

    study: str
    subject: str
    dicom_id: str
    image: str
    split: str


def strata_of(agreed: Sequence[Agreed]) -> Counter[str]:
    """What a set of agreed findings carries: radiographs, and by finding positives, negatives and unilateral pairs."""
    strata: Counter[str] = Counter(radiographs=len({entry.study for entry in agreed}))
    for entry in agreed:
        if entry.present is not None:
            strata[f"{entry.finding} {'positive' if entry.present else 'negative'}"] += 1
        if entry.unilateral:
            strata[f"{entry.finding} unilateral"] += 1
    return strata


def divide(agreed: Sequence[Agreed], settings: SplitSettings) -> dict[str, str]:
    """Each patient's side, ``rl`` or ``eval``.

    Patients are taken in the order of the scarcest stratum that they carry, those with more radiographs first, and go
    to the side that is furthest below its quota of that stratum, counted in members; ties go by radiographs. So what is
    scarce (unilateral pairs, the rarer findings' positives) is divided while there is still a choice, and a stratum of
    two or three is not pulled to the smaller side by rounding.
    """
    patients: dict[str, list[Agreed]] = defaultdict(list)
    for entry in agreed:
        patients[entry.subject].append(entry)
    strata = {subject: strata_of(entries) for subject, entries in patients.items()}
    total: Counter[str] = Counter()
    for carried in strata.values():
        total.update(carried)
    scarcest = {
        subject: min(carried, key=lambda stratum: (total[stratum], stratum)) for subject, carried in strata.items()
    }
    order = sorted(patients)
    Random(settings.seed).shuffle(order)
    order.sort(key=lambda subject: (total[scarcest[subject]], scarcest[subject], -strata[subject]["radiographs"]))
    share = {RL: settings.rl_share, EVAL: 1 - settings.rl_share}
    held: dict[str, Counter[str]] = {RL: Counter(), EVAL: Counter()}

    def missing(side: str, stratum: str) -> float:
        return share[side] * total[stratum] - held[side][stratum]

    sides = {}
    for subject in order:
        stratum = scarcest[subject]
        side = max((RL, EVAL), key=lambda side: (missing(side, stratum), missing(side, "radiographs")))
        held[side].update(strata[subject])
        sides[subject] = side
    return sides


def check_disjoint(radiographs: Iterable[Radiograph], hold_out: str) -> Counter[str]:
    """Refuses splits that share a study, a radiograph or a patient.

    With ``hold_out`` "radiograph", as in the paper, D_SFT's training part alone may share patients (never radiographs)
    with D_RL and D_eval; how many it does is returned, by split, and is to be reported.

    Raises:
        ValueRefused: two splits share what they must not; the message names the first, and says how many there are.
    """
    seen: dict[str, dict[str, str]] = {"study": {}, "radiograph": {}}
    patients: dict[str, set[str]] = defaultdict(set)
    for entry in radiographs:
        if entry.split not in SPLITS:
            raise ValueRefused(f"{entry.study} is in {entry.split!r}, which is no split.")
        for kind, name in (("study", entry.study), ("radiograph", entry.dicom_id)):
            other = seen[kind].setdefault(name, entry.split)
            if other != entry.split:
                raise ValueRefused(
                    f"The splits are not disjoint: the {kind} {name} is in {other} and in {entry.split}."
                )
        patients[entry.subject].add(entry.split)
    allowed = ({SFT, RL}, {SFT, EVAL}) if hold_out == "radiograph" else ()
    shared: Counter[str] = Counter()
    wrong = []
    for subject, splits in patients.items():
        if len(splits) > 1:
            if splits in allowed:
                shared.update(splits - {SFT})
            else:
                wrong.append((subject, " and ".join(sorted(splits))))
    if wrong:
        subject, where = min(wrong)
        raise ValueRefused(
            f"The splits are not disjoint: patient {subject} is in {where} ({len(wrong)} such patients)."
        )
    return shared
