"""``python -m training compact all --data PACK --out WORK``: the compact bundle from the open pack, by one command.

Every network, what is set on patients that it did not learn from, what it is measured to do, and the bundle with its
card; about two and a half hours on two cores. The stages are commands that can be run by hand. What is done stands in
``WORK/state.json``; a run that was stopped goes on, trainings from their newest checkpoint. Not for clinical use.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from training import stages as staged
from training.stages import Stage, follow
from xflow_core.domain.findings import FINDINGS

FOLDS = (0, 1, 2, 3)
"""Of eight: each network leaves out an eighth of the patients."""
SEEDS = (0, 1)
"""Of the segmenters."""
_SURVEY_STEPS, _SEGMENTER_STEPS, _REVISION_STEPS = "1200", "2400", "1200"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the open chest X-ray pack (holds manifest.csv)")
    parser.add_argument("--out", type=Path, required=True, help="the run's own folder")
    parser.add_argument("--version", default="0", help="of the bundle")
    staged.add_arguments(parser, "2")


def run(arguments: argparse.Namespace) -> None:
    follow(stages_of(arguments), arguments, arguments.out, jobs=2)


def stages_of(arguments: argparse.Namespace) -> list[Stage]:
    """All stages, in their order."""
    work = arguments.out
    data = ("--data", str(arguments.data))

    def training(*words: str) -> tuple[str, ...]:
        return (sys.executable, "-m", "training", *words)

    def compact(*words: str) -> tuple[str, ...]:
        return training("compact", *words)

    surveys = [work / "survey" / str(fold) for fold in FOLDS]
    segmenters = [work / "segmenter" / str(seed) for seed in SEEDS]
    prompts, bundle, dev = str(work / "prompts"), str(work / "bundle"), str(work / "dev")
    measured = {name: str(work / name) for name in ("evaluation", "honesty", "guards", "safety")}
    asked = ("--bundle", bundle)

    def bundled(*words: str) -> tuple[str, ...]:
        return compact(
            "bundle", "--survey", str(work / "survey"), "--prompts", prompts, "--findings", ",".join(FINDINGS),
            "--version", arguments.version, *words, "--out", bundle,
        )  # fmt: skip

    made: list[Stage] = []
    for fold, folder in zip(FOLDS, surveys, strict=True):
        made.append(Stage(f"survey-{fold}", "lungs, findings, boxes and guards, without an eighth of the patients", (
            compact("survey", *data, "--work", str(folder), "--fold", str(fold), "--steps", _SURVEY_STEPS),
        ), (f"survey/{fold}",)))  # fmt: skip
    for seed, folder in zip(SEEDS, segmenters, strict=True):
        made.append(Stage(f"segmenter-{seed}", "the promptable segmenter", (
            compact("segmenter", *data, "--work", str(folder), "--steps", _SEGMENTER_STEPS, "--seed", str(seed)),
        ), (f"segmenter/{seed}",)))  # fmt: skip
    learned = tuple(f"segmenter-{seed}" for seed in SEEDS)
    weights = [str(folder / "segmenter.safetensors") for folder in segmenters]
    made += [
        Stage("measure-survey", "join the surveys, calibrate and measure them on patients that each has not seen", (
            compact(
                "measure-survey", *data, "--work", str(work / "survey"), "--weights",
                *(str(folder / "survey.safetensors") for folder in surveys),
            ),
        ), (), tuple(f"survey-{fold}" for fold in FOLDS)),
        Stage("revision", "where the segmenters' masks are wrong", (
            compact(
                "revision", *data, "--work", prompts, "--segmenters", *map(str, segmenters), "--steps", _REVISION_STEPS
            ),
        ), ("prompts",), learned),
        Stage("calibrate-prompts", "join the segmenters; when a click is worth it", (
            compact("calibrate-prompts", *data, "--work", prompts, "--segmenters", *weights),
        ), (), ("revision",)),
        Stage("measure-prompts", "boxes, clicks and own revision on the dev split", (
            compact("measure-prompts", *data, "--work", prompts),
        ), (), ("calibrate-prompts",)),
        Stage("bundle", "the bundle as it answers", (bundled(),), ("bundle",), ("measure-survey", "measure-prompts")),
        Stage("evaluation", "the dev split's questions", (
            training("pack-set", *data, "--split", "dev", "--out", dev),
            training(
                "evaluate", "--set", f"{dev}/set.jsonl", "--lungs", f"{dev}/lungs.jsonl", *asked,
                "--out", measured["evaluation"], "--threads", "1",
            ),
        ), ("dev", "evaluation"), ("bundle",)),
        Stage("guards", "what is no upright frontal chest radiograph", (
            training("guards", *data, *asked, "--out", measured["guards"], "--page", str(work / "guards.md")),
        ), ("guards",), ("bundle",)),
        Stage("honesty", "sides, normals, and the same answer to the same radiograph", (
            training("honesty", *data, *asked, "--out", measured["honesty"]),
        ), ("honesty",), ("bundle",)),
        Stage("safety", "changed pictures, repeated and contradictory questions", (
            training("safety", *data, *asked, "--every", "2", "--out", measured["safety"]),
        ), ("safety",), ("bundle",)),
        Stage("card", "the bundle with its figures, and its card", (
            bundled(*(word for name, folder in measured.items() for word in (f"--{name}", folder))),
            compact("card", *asked, "--out", str(work / "compact.md")),
        ), ("compact.md",), ("evaluation", "guards", "honesty", "safety")),
    ]  # fmt: skip
    return made
