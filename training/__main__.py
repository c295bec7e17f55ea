"""``python -m training COMMAND ..``: a command is a module with ``add_arguments(parser)`` and ``run(arguments)``."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence

from xflow_core.domain.errors import XFlowError

# The command's words: its module. Only the module that is called is imported.
COMMANDS = {
    "miniature": "training.curation.miniature",
    "check": "training.curation.check",
    "counts": "training.curation.counts",
    "splits": "training.curation.splits",
    "lungs": "training.curation.lungs",
    "instructions": "training.curation.instructions",
    "trajectories": "training.curation.trajectories",
    "evaluation-set": "training.curation.evaluation_set",
    "run": "training.run",
    "tiny-segmenter": "training.segmenter.tiny",
    "train-segmenter": "training.segmenter.train",
    "measure-segmenter": "training.segmenter.measure",
    "train-policy": "training.policies.train",
    "measure-policy": "training.policies.measure",
    "mini-base": "training.mini.base",
    "reproduction": "training.mini.report",
    "compact all": "training.compact.stages",
    "compact survey": "training.compact.survey",
    "compact measure-survey": "training.compact.measure_survey",
    "compact segmenter": "training.compact.segmenter",
    "compact revision": "training.compact.revision",
    "compact calibrate-prompts": "training.compact.calibrate_prompts",
    "compact measure-prompts": "training.compact.measure_prompts",
    "compact bundle": "training.compact.bundle",
    "compact card": "training.compact.card",
    "compact pictures": "training.compact.pictures",
    "pack-set": "training.evaluation.pack_set",
    "chexlocalize-set": "training.evaluation.chexlocalize_set",
    "evaluate": "training.evaluation.evaluate",
    "score": "training.evaluation.score",
    "evaluate-prompts": "training.evaluation.evaluate_prompts",
    "readers prepare": "training.evaluation.readers.prepare",
    "readers analyse": "training.evaluation.readers.analyse",
    "baselines list": "training.baselines.list",
    "baselines write": "training.baselines.write",
    "baselines read": "training.baselines.read",
    "tables": "training.evaluation.tables",
    "baselines rosalia-training": "training.baselines.rosalia_training",
    "guards": "training.evaluation.guards",
    "honesty": "training.evaluation.honesty",
    "safety": "training.evaluation.safety",
}


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    words = next((name for name in COMMANDS if given[: len(name.split())] == name.split()), None)
    if words is None:
        lines = "\n".join(f"  {name}" for name in COMMANDS)
        print(f"usage: python -m training COMMAND [options]\n{lines}", file=sys.stderr)
        raise SystemExit(0 if given in (["-h"], ["--help"]) else 2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    command = importlib.import_module(COMMANDS[words])
    parser = argparse.ArgumentParser(
        prog=f"python -m training {words}",
        description=command.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser)
    try:
        command.run(parser.parse_args(given[len(words.split()) :]))
    except XFlowError as problem:
        print(f"training: {problem}", file=sys.stderr)
        raise SystemExit(problem.exit_status) from None


if __name__ == "__main__":
    main()
