"""What a synthetic report says: one sentence for every finding that is there or denied."""

from __future__ import annotations

from dataclasses import dataclass

from .study import SyntheticStudy, other_side

NOUNS = {
    "cardiomegaly": "cardiomegaly",
    "pneumonia": "pneumonia",
    "atelectasis": "atelectasis",
    "opacity": "opacity",
    "consolidation": "focal consolidation",
    "edema": "pulmonary edema",
    "effusion": "pleural effusion",
}
_ZONES = {
    "upper zone lung": ("upper zone", "upper lung zone"),
    "mid zone lung": ("mid zone", "mid lung zone"),
    "lung base": ("base", "lung base", "lower lung zone"),
}
_PRESENT = ("{noun} is seen in the {where}.", "There is {noun} in the {where}.", "{noun} is noted at the {where}.")
_HEART = ("There is cardiomegaly.", "The heart is enlarged.", "The cardiac silhouette is enlarged.")


@dataclass(frozen=True)
class Sentence:
    """One sentence of a report, and what it says: a finding present in regions, or findings denied."""

    text: str
    present: str | None = None
    regions: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()


def listed(parts: list[str], last: str = "and") -> str:
    """ "a", "a and b", "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} {last} {parts[-1]}"


def sentences(study: SyntheticStudy) -> list[Sentence]:
    """The report's sentences; the study's flaw makes them contradict the truth, or keep silent."""
    random = study.random("report")
    said = []
    denied = list(study.denied)
    for finding, regions in study.present.items():
        if finding == study.flawed_finding:
            if study.flaw == "report_silent":
                continue
            if study.flaw == "report_denies":
                denied.append(finding)
                continue
            if study.flaw == "report_elsewhere":
                regions = other_side(regions)
        if finding == "cardiomegaly":
            said.append(Sentence(random.choice(_HEART), finding, regions))
            continue
        words = []
        for region in regions:
            side, zone = region.split(" ", 1)
            words.append(f"{side} {random.choice(_ZONES[zone])}")
        text = random.choice(_PRESENT).format(noun=NOUNS[finding], where=listed(words))
        said.append(Sentence(text[0].upper() + text[1:], finding, regions))
    if study.flaw == "report_silent" and study.flawed_finding in denied:
        denied.remove(study.flawed_finding)
    if "cardiomegaly" in denied and random.random() < 0.6:
        denied.remove("cardiomegaly")
        said.append(Sentence("The heart size is normal.", denied=("cardiomegaly",)))
    if denied:
        said.append(
            Sentence(f"There is no {listed([NOUNS[finding] for finding in denied], 'or')}.", denied=tuple(denied))
        )
    said.append(Sentence("No pneumothorax is seen."))
    return said


def report_text(study: SyntheticStudy, said: list[Sentence]) -> str:
    """The report's file, in the shape of MIMIC-CXR's."""
    technique = f"CHEST ({study.view})"
    body = " ".join(sentence.text for sentence in said)
    return (
        f"                                 FINAL REPORT\n EXAMINATION:  {technique}\n\n"
        " INDICATION:  Synthetic study.\n\n"
        f" FINDINGS: \n\n {body}\n\n IMPRESSION: \n\n As above.\n"
    )
