"""Writes the compact bundle's model card from its manifest, so that the figures in the two cannot differ.

python -m training compact card --bundle compact --out docs/compact.md
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from xflow_core.bundles.manifest import Bundle, find_bundle
from xflow_core.domain.findings import FINDINGS
from xflow_core.export.files import write_whole

INTRODUCTION = """# The compact bundle

Model card of `{name}` {version}, made by `python -m training compact card`. **Not for clinical use**: research
software, not a medical device, not validated for any diagnosis, and never a reason to act or not to act.

Small networks on EfficientNet-Lite0 (about 3.2 million parameters each, float16) that run on any CPU: a survey of the
whole radiograph (lungs, findings, presence, guard), a promptable segmenter (box, clicks, previous mask) and a
revision policy that clicks only where it expects a gain.

It answers **{findings}**.
It does not answer {missing}, and says so: the open data it learned from contour these too
rarely or not at all.

## How well

On the dev split of the open chest X-ray pack: 78 radiographs contoured by radiologists (ChestX-Det's polygons,
correctly placed but loose) and 20 with the report label "No Finding"; patients apart from training. Few cases:
read the 95 % bootstrap intervals, not the means. Calibration is cross-fitted. "Held" adds train patients that were
kept from training for calibration.

"""

LIMITS = """
## What it must not be used for

- Any clinical decision, triage, or as a second reader.
- Laterals, CT, pictures of a screen; children (the youngest in training was 6, few were under 12).
- Counting lesions: one box a lung is the rule, and many small opacities become one region or are missed.
- Edema, pneumonia and atelectasis: refused, because nothing honest could be measured for them.
- Comparing areas between patients: without a calibrated spacing an area is in pixels of the detector.
- Confidence is the survey network's probability after a line fitted on few patients: good for ordering, coarse as a
  number."""


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
    missing = [finding for finding in FINDINGS if finding not in bundle.findings]
    lines = [
        INTRODUCTION.format(
            name=bundle.name,
            version=bundle.version,
            findings=", ".join(bundle.findings),
            missing=" or ".join([", ".join(missing[:-1]), missing[-1]]),
        )
    ]
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
                        "dev" if group == "dev" else "dev and held",
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
        for group, boxes in found["boxes"].items():
            rows.append(
                [
                    name,
                    {"unseen": "dev and held"}.get(group, group),
                    str(boxes["components"]),
                    number(boxes["recall_at_0.3"]),
                    number(boxes["precision_at_0.3"]),
                ]
            )
    lines += table(["finding", "on", "true boxes", "recall at IoU 0.3", "precision at IoU 0.3"], rows)
    lines += _lungs(quality["lungs"]) + _prompts(quality["prompts"]) + _guard(quality["guard"])
    if "end_to_end" in quality:
        lines += _whole(quality["end_to_end"])
    lines += [LIMITS.rstrip(), "", "## What it was made from", ""]
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
    return [
        "### The segmenter alone: a true box jittered by 10 %, then oracle clicks (mask IoU)",
        "",
        *table(["finding", "n", "box", "1 click", "2 clicks", "3 clicks", "4 clicks"], rows),
        f"Own revision on its own masks: mean gain {whole['own_gain']['mean']:+.3f}, "
        f"{whole['own_improved']['mean']:.0%} improved, {whole['own_worsened']['mean']:.0%} worsened (it hardly ever "
        f"clicks there); on foreign masks (a threshold in the box, the own mask halved or grown; IoU "
        f"{whole['foreign_before']['mean']:.3f}) {whole['foreign_gain']['mean']:+.3f}, where a second pass without a "
        f"click gives {whole['foreign_gain_second_pass']['mean']:+.3f} and as many random clicks "
        f"{whole['foreign_gain_random']['mean']:+.3f}.",
        "",
    ]


def _guard(guard: dict[str, Any]) -> list[str]:
    shown = {
        "turned by 90 degrees": "turned_90_refused",
        "upside down": "turned_180_refused",
        "turned by 270 degrees": "turned_270_refused",
        "inverted": "inverted_refused",
        "a quarter of the picture": "quarter_refused",
        f"{guard['made_others']} made or packaged pictures of other things": "made_others_refused",
        "mirrored (a warning)": "mirrored_warned",
        "wrongly refused": "false_refusals_dev",
        "wrongly warned of as mirrored": "false_mirror_warnings_dev",
    }
    rows = [[name, f"{guard[key]:.1%}"] for name, key in shown.items()]
    return [f"### The guard, on {guard['pictures']} radiographs of the dev split", "", *table(["", "share"], rows)]


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


def _commands(training: dict[str, Any]) -> list[str]:
    call = "python -m training compact"
    surveys = [
        f"{call} survey --data PACK --work SURVEY_{number} --steps {run['settings']['steps']} --threads 1 "
        f"--seed {run['settings']['seed']}"
        for number, run in enumerate(training["survey"]["runs"], start=1)
    ]
    weights = " ".join(f"SURVEY_{number}/survey.safetensors" for number in range(1, len(surveys) + 1))
    return [
        *surveys,
        f"{call} measure-survey --data PACK --weights {weights} --work SURVEY",
        training["segmenter"]["command"],
        training["revision"]["command"],
        f"{call} calibrate-prompts --data PACK --work FOLDER",
        f"{call} measure-prompts --data PACK --work FOLDER",
    ]


def run(arguments: argparse.Namespace) -> None:
    write_whole(arguments.out, card(find_bundle(arguments.bundle)).encode())
