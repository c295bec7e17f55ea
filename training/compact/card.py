"""Writes the compact bundle's model card from its manifest, so that the figures in the two cannot differ.

python -m training compact card --bundle compact --out docs/compact.md
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from training.evaluation import guards, honesty
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
training. "unseen" adds train pictures, each seen by a network that had not learned from it: more cases, one network
instead of all. Calibrations, thresholds and box rules are fitted on the unseen, and each fold of patients is measured
with what was fitted without it. Few cases: read the 95 % bootstrap intervals, not the means.

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
    if value is None:
        return "-"
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if not interval else f"{text} [{interval[0]:.2f}, {interval[1]:.2f}]"


def card(bundle: Bundle) -> str:
    quality, training = bundle.quality, bundle.training
    lines = [
        INTRODUCTION.format(
            name=bundle.name,
            version=bundle.version,
            findings=", ".join(bundle.findings),
            surveys=len(training["survey"]["runs"]),
            segmenters=len(training["segmenter"]["runs"]),
        )
    ]
    rows = []
    for name in bundle.findings:
        learned = quality["findings"][name]["learned_from"]
        rows.append([name, *(str(learned[key]) for key in ("contoured", "boxed", "report")), GROUNDS[name]])
    lines += table(["finding", "contoured", "boxed", "report", "grounds"], rows)
    lines += [HOW_WELL]
    lines += ["### Presence", ""]
    rows = []
    for name, found in quality["findings"].items():
        for level in ("lung", "zone"):
            part = found.get(level)
            if part is None:
                continue
            where = "heart" if name == "cardiomegaly" else f"per {level}"
            for group in ("dev", "unseen"):
                g = part[group]
                rows.append(
                    [
                        name,
                        where,
                        group,
                        f"{g['positive']} of {g['n']}",
                        number(g["auc"], g["auc_95"]),
                        number(g["f1"], g["f1_95"]),
                        number(g["precision"]),
                        number(g["recall"]),
                        number(part["normals_called_present"]) if group == "dev" else "",
                    ]
                )
    lines += table(
        [
            "finding",
            "asked",
            "on",
            "positive of n",
            "AUC",
            "F1",
            "precision",
            "recall",
            'called present on "No Finding"',
        ],
        rows,
    )
    lines += ["### Boxes of the survey, in regions that hold the finding", ""]
    rows = []
    for name, found in quality["findings"].items():
        for group, boxes in found.get("boxes", {}).items():
            rows.append(
                [
                    name,
                    group,
                    str(boxes["components"]),
                    number(boxes["recall_at_0.3"]),
                    number(boxes["precision_at_0.3"]),
                    number(found["map"][group]["mask_iou"]),
                ]
            )
    lines += table(
        ["finding", "on", "true boxes", "recall at IoU 0.3", "precision at IoU 0.3", "mask IoU of the map itself"], rows
    )
    lines += _lungs(quality["lungs"]) + _prompts(quality["prompts"])
    if "end_to_end" in quality:
        lines += _whole(quality["end_to_end"])
    if "bench" in quality:
        lines += _bench(quality["bench"])
    if "guards" in quality:
        lines += ["### Guards ([all sets](guards.md))", "", *guards.summary(quality["guards"])]
    if "honesty" in quality:
        lines += honesty.sections(quality["honesty"], "###")
    lines += ["## Good and bad cases", "", "![good](images/compact-good.png)", "", "![bad](images/compact-bad.png)", ""]
    lines += [LIMITS, "## What it was made from", ""]
    lines += [f"- {source}" for source in bundle.licences]
    lines += ["", f"Input: {bundle.preprocessing}.", "", "## How it was made", ""]
    lines += [f"Data: {training['data']}: `{training['data_sha256']}`.", "", "```sh", *_commands(training), "```", ""]
    lines += [*(f"- {note}" for note in training["notes"]), ""] if training["notes"] else []
    lines += ["The manifest (`xflow bundles show compact`) holds every figure, setting and checksum.", ""]
    return "\n".join(lines)


def _lungs(lungs: dict[str, Any]) -> list[str]:
    rows = []
    for source in ("montgomery_lung_512", "v7_covid_lung"):
        part = lungs[source]
        rows.append(
            [source, str(part["lungs"]), number(part["dice"]), number(part["box_iou"]), number(part["box_iou_p10"])]
        )
    return [
        "### Lungs",
        "",
        *table(["source", "lungs", "Dice", "box IoU", "its 10th percentile"], rows),
        "V7 draws the lung behind the heart as well, Montgomery does not; the networks follow Montgomery.",
        f"Plausible pairs by the shape rule on {lungs['nih']['pictures']} NIH radiographs: "
        f"{lungs['nih']['plausible_pair']:.1%}.",
        "",
    ]


def _prompts(prompts: dict[str, Any]) -> list[str]:
    if not prompts:
        return []
    measures = [f"iou{k}" for k in range(5)]
    rows = [
        [name, str(part["n"]), *(number(part[m]["mean"], part[m]["interval"]) for m in measures)]
        for name, part in prompts.items()
    ]
    whole = prompts["all"]

    def signed(name: str) -> str:
        return f"{whole[name]['mean'] or 0.0:+.3f}"  # no minus before a zero

    return [
        "### The segmenter alone: a true box jittered by 10 %, then oracle clicks (mask IoU)",
        "",
        *table(["finding", "n", "box", "1 click", "2 clicks", "3 clicks", "4 clicks"], rows),
        f"Own revision on its own masks: mean gain {signed('own_gain')}, "
        f"{whole['own_improved']['mean']:.0%} improved, {whole['own_worsened']['mean']:.0%} worsened, with "
        f"{whole['own_clicks']['mean']:.2f} clicks a mask (a second pass without a click "
        f"{signed('own_gain_second_pass')}); from boxes jittered by 30 %, as rough as a "
        f"model's, {signed('rough_gain')}, {whole['rough_improved']['mean']:.0%} and "
        f"{whole['rough_worsened']['mean']:.0%} (second pass {signed('rough_gain_second_pass')}); on "
        f"foreign masks (a threshold in the box, the own mask halved or grown; IoU "
        f"{whole['foreign_before']['mean']:.3f}) {signed('foreign_gain')}, where a second pass without a "
        f"click gives {signed('foreign_gain_second_pass')} and as many random clicks "
        f"{signed('foreign_gain_random')}.",
        "",
    ]


def _whole(whole: dict[str, Any]) -> list[str]:
    rows = [
        [
            name,
            f"{part['n_positive']} of {part['n_positive'] + part['n_negative']}",
            number(part["gIoU"], part["intervals"]["gIoU"]),
            number(part["F1"], part["intervals"]["F1"]),
            number(part["auc"], part["intervals"]["auc"]),
            number(part["box_recall_at_0.3"]),
            number(part["box_precision_at_0.3"]),
        ]
        for name, part in whole["by_finding_lung"].items()
    ]
    revision = whole["revision"]
    return [
        f"### The whole workflow on {whole['n']} questions (`python -m training evaluate`), here those about a lung",
        "",
        "An absence on a positive row counts as IoU 0; boxes count over all rows, false alarms included.",
        "",
        *table(["finding", "positive of n", "gIoU", "F1", "AUC", "box recall", "box precision"], rows),
        f"All levels: gIoU {number(whole['gIoU'])}, cIoU {number(whole['cIoU'])}, F1 {number(whole['F1'])}. "
        f"Own revision: IoU {number(revision['iou_before'])} before, {number(revision['iou_after'])} after; "
        f"{revision['improved']:.0%} improved, "
        f"{revision['worsened']:.0%} worsened.",
        "",
    ]


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
        f"From image to first mask {own['first_mask_s']:.2f} s, LiteMedSAM takes {first} times as long; for a further "
        f"prompt {own['further_prompt_s']:.3f} s, and {further} times. How it was prompted: {bench['how']}",
        "",
    ]


def _commands(training: dict[str, Any]) -> list[str]:
    call = "python -m training compact"

    def course(what: str, work: str, settings: dict[str, Any], more: str = "") -> str:
        steps = f"--steps {settings['steps']} --seed {settings['seed']} --threads 1"
        return f"{call} {what} --data PACK --work {work}{more} {steps}"

    surveys = [run["settings"] for run in training["survey"]["runs"]]
    segmenters = training["segmenter"]["runs"]

    def weights(of: str, numbers: list[int]) -> str:
        return " ".join(f"{of.upper()}/{number}/{of}.safetensors" for number in numbers)

    seeds = [settings["seed"] for settings in segmenters]
    folders = " ".join(f"SEGMENTER/{seed}" for seed in seeds)
    return [
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
