"""Writes the compact bundle's model card from its manifest, so that the figures in the two cannot differ.

python -m training compact card --bundle compact --out docs/compact.md

The manifest holds them in full; here they are cut after the last digit shown, so that none is rounded up. A part that
the manifest lacks has no section."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from training.evaluation import guards, honesty, safety
from training.evaluation.printed import cut, percent
from training.evaluation.rates import Rate
from xflow_core.bundles.manifest import Bundle, find_bundle
from xflow_core.export.files import write_whole

INTRODUCTION = """# The compact bundle

Model card of `{name}` {version}, made by `python -m training compact card`. **Not for clinical use**: research
software, not a medical device, not validated for any diagnosis, and never a reason to act or not to act.

Small networks on EfficientNet-Lite0 (about 3.2 million parameters each, kept as int8) that run on any CPU: a survey of
the whole radiograph ({surveys} networks averaged: lungs, findings, presence, guard), a promptable segmenter
({segmenters} averaged: box, clicks, previous mask) and a revision policy that clicks only where it expects a gain.

It answers **{findings}**. Not all answers rest on the same ground: read the next table before a figure.

## What each answer rests on

"Contoured", "boxed" and "report" count the training pictures that show the finding, by what tells of it. Consolidation,
effusion, nodules, atelectasis and edema were also drawn into healthy lungs (`training/compact/synthetic.py`).

"""

GROUNDS = {
    "cardiomegaly": "hearts contoured because they are large; the verdict is the cardiothoracic ratio on the maps",
    "pneumonia": "boxes, and the consolidation of pictures whose report says pneumonia; on one film the two look "
    "alike, so it mostly means consolidation that such a report goes with",
    "atelectasis": "very few contours, plate-like and round ones alike: hardly better than guessing on new patients",
    "opacity": "contours: the union of consolidation, atelectasis, nodule and mass",
    "consolidation": "contours",
    "edema": "the report's word alone, for the whole chest: where it lies is the network's guess, and no mask of it "
    "was ever compared with a reader's",
    "effusion": "contours, loose ones; small ones in the angle are often missed",
}

HOW_WELL = """## How well

"dev" is the dev split of the open chest X-ray pack: 78 radiographs contoured by radiologists (ChestX-Det's polygons,
correctly placed but loose), 8 with boxes or the report label "Edema", and 20 with "No Finding"; patients apart from
training. Figures stand with their n and, in brackets, 95 % intervals: of a bootstrap over patients for means, Wilson's
for shares of cases. Few cases: read the intervals. **Every figure is cut after its last digit; none is rounded up.**

"""

UNSEEN = """"unseen" adds train pictures, each seen by a network that had not learned from it: more cases, one network
instead of all. Calibrations, thresholds and box rules are fitted on the unseen, and each fold of patients is measured
with what was fitted without it.

"""

LIMITS = """
## What it must not be used for

- Any clinical decision, triage, or as a second reader.
- Laterals, CT, pictures of a screen; children (the youngest in training was 6, few were under 12).
- Counting lesions: many small opacities become a few regions or are missed.
- Telling pneumonia from other consolidation, or edema from other haze: see the grounds above.
- Comparing areas between patients: without a calibrated spacing an area is in pixels of the detector.
- Confidence is the survey's probability after a line fitted on few patients: good for ordering, coarse as a number.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", default="compact")
    parser.add_argument("--out", type=Path, required=True)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows), ""]


def number(value: Any, interval: Any = None) -> str:
    """The value at three digits, its interval at two, cut; a dash for none."""
    if value is None:
        return "-"
    text = cut(value) if isinstance(value, float) else str(value)
    return text if not interval else f"{text} [{cut(interval[0], 2)}, {cut(interval[1], 2)}]"


def rate(share: float | None, n: int) -> str:
    """A share of ``n`` cases with its count and interval."""
    return "-" if share is None else str(Rate(round(share * n), n))


def card(bundle: Bundle) -> str:
    quality, training = bundle.quality, bundle.training
    lines = [
        INTRODUCTION.format(
            name=bundle.name,
            version=bundle.version,
            findings=", ".join(bundle.findings),
            surveys=len(training["survey"]["runs"]),
            segmenters=len(_runs(training["segmenter"])),
        )
    ]
    rows = []
    for name in bundle.findings:
        learned = quality["findings"][name]["learned_from"]
        rows.append([name, *(str(learned[key]) for key in ("contoured", "boxed", "report")), GROUNDS[name]])
    lines += table(["finding", "contoured", "boxed", "report", "grounds"], rows)
    lines += [HOW_WELL]
    if "end_to_end" in quality:
        lines += _whole(quality["end_to_end"])
    lines += _presence(quality["findings"]) + _boxes(quality["findings"])
    evaluated = quality.get("end_to_end", {}).get("lung_box_iou_by_source", {})
    lines += _lungs(quality["lungs"], evaluated) + _prompts(quality["prompts"])
    if "bench" in quality:
        lines += _bench(quality["bench"])
    if "guards" in quality:
        lines += ["### Guards ([all sets](guards.md))", "", *guards.summary(quality["guards"])]
    if "honesty" in quality:
        lines += honesty.sections(quality["honesty"], "###")
    if "safety" in quality:
        lines += [f"## Safety, on {quality['safety']['radiographs']} dev radiographs", ""]
        lines += safety.sections(quality["safety"], "###")
    lines += ["## Good and bad cases", "", "![good](images/compact-good.png)", "", "![bad](images/compact-bad.png)", ""]
    lines += [LIMITS, "## What it was made from", ""]
    lines += [f"- {source}" for source in bundle.licences]
    lines += ["", f"Input: {bundle.preprocessing}.", "", "## How it was made", ""]
    lines += [f"Data: {training['data']}: `{training['data_sha256']}`.", "", "```sh", *_commands(training), "```", ""]
    lines += [*(f"- {note}" for note in training["notes"]), ""] if training["notes"] else []
    lines += ["The manifest (`xflow bundles show compact`) holds every figure, setting and checksum.", ""]
    return "\n".join(lines)


def _presence(findings: dict[str, Any]) -> list[str]:
    rows = []
    for name, found in findings.items():
        for level in ("lung", "zone"):
            part = found.get(level)
            if part is None:
                continue
            for group in ("dev", "unseen"):
                g = part[group]
                hits = round(g["recall"] * g["positive"])
                stated = round(hits / g["precision"]) if hits else None
                rows.append(
                    [
                        name,
                        "heart" if name == "cardiomegaly" else f"per {level}",
                        group,
                        f"{g['positive']} of {g['n']}",
                        number(g["auc"], g["auc_95"]),
                        number(g["f1"], g["f1_95"]),
                        "0" if stated is None else str(Rate(hits, stated)),
                        rate(g["recall"], g["positive"]),
                        rate(part["normals_called_present"], part["normals_n"]) if group == "dev" else "",
                    ]
                )
    head = ["finding", "asked", "on", "positive of n", "AUC", "F1", "precision", "recall"]
    return [
        "### Presence by the survey alone (`compact measure-survey`)",
        "",
        UNSEEN,
        *table([*head, 'called present on "No Finding"'], rows),
    ]


def _boxes(findings: dict[str, Any]) -> list[str]:
    rows = [
        [
            name,
            group,
            rate(boxes["recall_at_0.3"], boxes["components"]),
            rate(boxes["precision_at_0.3"], boxes["boxes"]),
            f"{number(found['map'][group]['mask_iou'])}, n {found['map'][group]['n']}",
        ]
        for name, found in findings.items()
        for group, boxes in found.get("boxes", {}).items()
    ]
    head = ["finding", "on", "true boxes met at IoU 0.3", "boxes that meet one", "mask IoU of the map itself"]
    return ["### Boxes of the survey, in regions that hold the finding", "", *table(head, rows)]


def _lungs(lungs: dict[str, Any], evaluated: dict[str, Any]) -> list[str]:
    rows = []
    for source in ("montgomery_lung_512", "v7_covid_lung"):
        part, whole = lungs[source], evaluated.get(source)
        boxes = (part["lungs"], part["box_iou"], None, part["box_iou_p10"])
        if whole is not None:
            boxes = (whole["n"], whole["mean"], whole.get("interval"), whole["p10"])
        n, mean, ends, p10 = boxes
        rows.append([source, str(part["lungs"]), number(part["dice"]), str(n), number(mean, ends), number(p10)])
    return [
        "### Lungs",
        "",
        *table(["source", "lungs", "Dice of the map", "boxes", "box IoU", "its 10th percentile"], rows),
        "V7 draws the lung behind the heart as well, Montgomery does not; the networks follow Montgomery.",
        f"Plausible pairs by the shape rule on {lungs['nih']['pictures']} NIH radiographs: "
        f"{rate(lungs['nih']['plausible_pair'], lungs['nih']['pictures'])}.",
        "",
    ]


def _prompts(prompts: dict[str, Any]) -> list[str]:
    if not prompts:
        return []
    measures = [f"iou{k}" for k in range(5)]
    rows = [
        [
            name,
            f"{part['n']} of {part['patients']} patients",
            *(number(part[m]["mean"], part[m]["interval"]) for m in measures),
        ]
        for name, part in prompts.items()
    ]
    whole = prompts["all"]

    def of(name: str) -> str:
        return number(whole[name]["mean"], whole[name]["interval"])

    def share(name: str) -> str:
        return percent(whole[name]["mean"], 1)

    return [
        "### The segmenter alone: a true box jittered by 10 %, then oracle clicks (mask IoU)",
        "",
        *table(["finding", "boxes", "box", "1 click", "2 clicks", "3 clicks", "4 clicks"], rows),
        f"Own revision on its own masks: mean gain {of('own_gain')}, {share('own_improved')} improved, "
        f"{share('own_worsened')} worsened, with {cut(whole['own_clicks']['mean'], 2)} clicks a mask (a second pass "
        f"without a click {of('own_gain_second_pass')}); from boxes jittered by 30 %, as rough as a model's, "
        f"{of('rough_gain')}, {share('rough_improved')} and "
        f"{share('rough_worsened')} (second pass {of('rough_gain_second_pass')}); on foreign masks (a threshold in the "
        f"box, the own mask halved or grown; IoU {of('foreign_before')}) {of('foreign_gain')}, where a second pass "
        f"without a click gives {of('foreign_gain_second_pass')} and as many random clicks "
        f"{of('foreign_gain_random')}.",
        "",
    ]


def _whole(whole: dict[str, Any]) -> list[str]:
    measures = ("gIoU", "cIoU", "F1", "found", "false_alarms")

    def of(part: dict[str, Any], *names: str) -> list[str]:
        intervals = part.get("intervals", {})
        return [number(part.get(name), intervals.get(name)) for name in names]

    groups = {"all, levels with equal weight": whole, **{f"{k} level": v for k, v in whole.get("by_level", {}).items()}}
    groups |= {f"{name} of the image": part for name, part in whole.get("by_size", {}).items()}
    for kind, parts in whole.get("subsets", {}).items():
        groups |= {name if kind == "source" else f"{kind} {name}": part for name, part in parts.items()}
    rows = [[name, _counts(part), str(part.get("cases", "-")), *of(part, *measures)] for name, part in groups.items()]
    lines = [
        f"### The whole workflow on {whole['n']} questions of dev (`python -m training evaluate`)",
        "",
        "An absence on a positive row counts as IoU 0. Found is the share of positive rows that were answered with a "
        "mask, false alarms that of negative rows. Sizes are the truth's share of the image. Intervals are those of "
        "`training.evaluation.metrics`.",
        "",
        *table(["rows", "positive of n", "patients", "gIoU", "cIoU", "F1", "found", "false alarms"], rows),
    ]
    for title, key in (("all levels", "by_finding"), ("questions about a lung", "by_finding_lung")):
        if key in whole:
            rows = [
                [
                    name,
                    _counts(part),
                    *of(part, *measures, "auc"),
                    number(part["box_recall_at_0.3"]),
                    number(part["box_precision_at_0.3"]),
                ]
                for name, part in whole[key].items()
            ]
            head = [f"finding, {title}", "positive of n", "gIoU", "cIoU", "F1", "found", "false alarms", "AUC"]
            lines += table([*head, "box recall", "box precision"], rows)
    revision = whole["revision"]
    lines += [
        "Boxes count at IoU 0.3 over all rows, false alarms included. "
        f"Own revision on {revision['n']} rows: IoU {number(revision['iou_before'])} before, "
        f"{number(revision['iou_after'])} after; {percent(revision['improved'] or 0.0)} improved, "
        f"{percent(revision['worsened'] or 0.0)} worsened.",
        "",
    ]
    if "noise" in whole:
        noise = whole["noise"]
        lines += [
            f"Mask noise on {noise['n']} returned masks of positive rows: {number(noise['delta_components'])} "
            f"components more than the truth, {number(noise['specks'])} specks a mask.",
            "",
        ]
    calibration = whole.get("calibration")
    if calibration is not None:
        lines += [
            f"Stated probabilities of {calibration['n']} rows: Brier "
            f"{number(calibration['brier'], calibration['brier_interval'])}, calibration error "
            f"{number(calibration['calibration_error'])} (stated {number(calibration['mean_stated'])} on average, "
            f"observed {Rate(calibration['positive']['count'], calibration['positive']['n'])}).",
            "",
            *table(
                ["stated", "mean", "observed"],
                (
                    [
                        f"{part['from']} to {part['to']}",
                        number(part["stated"]),
                        str(Rate(part["observed"]["count"], part["observed"]["n"])),
                    ]
                    for part in calibration["reliability"]
                    if part["n"]
                ),
            ),
        ]
    return lines


def _counts(part: dict[str, Any]) -> str:
    if "n_positive" not in part:
        return f"- of {part['n']}"
    return f"{part['n_positive']} of {part['n_positive'] + part['n_negative']}"


def _bench(bench: dict[str, Any]) -> list[str]:
    rows = []
    for name, part in bench["segmenters"].items():
        values = [number(value, interval) for value, interval in zip(part["iou"], part["intervals"], strict=True)]
        rows.append(["this bundle" if name == "bundle" else name, *values])
    own = bench["segmenters"]["bundle"]
    first, further = (bench["slower"][part]["median"] for part in ("first_mask", "further_prompt"))
    return [
        f"### Beside LiteMedSAM, on the same {bench['n']} components and jittered boxes in one run (`make bench`)",
        "",
        *table(["segmenter", "box", "1 click", "2 clicks", "3 clicks", "4 clicks"], rows),
        f"From image to first mask {cut(own['first_mask_s'])} s, LiteMedSAM takes {cut(first, 1)} times as long; for a "
        f"further prompt {cut(own['further_prompt_s'])} s, and {cut(further, 1)} times. How it was prompted: "
        f"{bench['how']}",
        "",
    ]


def _runs(training: dict[str, Any]) -> list[dict[str, Any]]:
    """The settings of each training run; manifests before 0.4.0 hold those of the only one."""
    runs: list[dict[str, Any]] = training.get("runs", [training])
    return runs


def _commands(training: dict[str, Any]) -> list[str]:
    call = "python -m training compact"

    def course(what: str, work: str, settings: dict[str, Any], more: str = "") -> str:
        steps = f"--steps {settings['steps']} --seed {settings['seed']} --threads 1"
        return f"{call} {what} --data PACK --work {work}{more} {steps}"

    surveys = [run["settings"] for run in training["survey"]["runs"]]
    segmenters = _runs(training["segmenter"])

    def weights(of: str, numbers: list[int]) -> str:
        return " ".join(f"{of.upper()}/{number}/{of}.safetensors" for number in numbers)

    seeds = [settings["seed"] for settings in segmenters]
    folders = " ".join(f"SEGMENTER/{seed}" for seed in seeds)
    return [
        "# all of it, resumable:",
        f"{call} all --data PACK --out WORK",
        "# one by one:",
        *(course("survey", f"SURVEY/{run['fold']}", run, f" --fold {run['fold']}") for run in surveys),
        f"{call} measure-survey --data PACK --weights {weights('survey', [run['fold'] for run in surveys])} "
        "--work SURVEY",
        *(course("segmenter", f"SEGMENTER/{run['seed']}", run) for run in segmenters),
        course("revision", "PROMPTS", training["revision"], f" --segmenters {folders}"),
        f"{call} calibrate-prompts --data PACK --segmenters {weights('segmenter', seeds)} --work PROMPTS",
        f"{call} measure-prompts --data PACK --work PROMPTS",
    ]


def run(arguments: argparse.Namespace) -> None:
    write_whole(arguments.out, card(find_bundle(arguments.bundle)).encode())
