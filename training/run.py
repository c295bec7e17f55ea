"""``python -m training run paper|mini --out WORK``: the whole story, stage by stage, from the sets to the tables.

``mini`` makes its own sets, base and segmenter, on which a laptop learns within the hour; ``paper`` reads the real ones
(``--data``, ``--base``, ``--sam3``). The stages are the same commands, which are printed before they run, so that each
can be run by hand:

    sets -> check -> splits -> instructions -> segmenter -> trajectories -> pi_init by SFT, by RL
         -> pi_rev by SFT, by RL -> bundles, measures and evaluation of each, as soon as it is there

What is done stands in ``WORK/state.json``; a run that was stopped goes on, trainings from their newest checkpoint.
``--only`` and ``--skip`` choose stages; ``--from`` does a stage and all after it anew. With ``--jobs 2`` stages that do
not need each other run side by side, each in a share of the processor, and write into ``WORK/logs``. Not for clinical
use.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from training import stages as staged
from training.curation.paper import PAPER, read_settings
from training.stages import Stage, follow
from xflow_core.domain.errors import CallError
from xflow_core.export.files import write_whole

MINI = PAPER.with_name("mini.yaml")
POLICIES = "policies.json"
"""What the bundles are told of the policies."""
CONFIG = "config.yaml"
"""The configuration that the run began with."""
ROWS = {"xflow-1-sft": 1, "xflow-1-rl": 1, "xflow-2-sft": 2, "xflow": 2}
"""XFlow's rows of Table 2, the bundles that answer in them, and how many of their stages do."""
TRAINING = ("-m", "training")
XFLOW = ("-m", "xflow_core.cli")


@dataclass(frozen=True)
class Story:
    """What the two stories differ in.

    made: nothing is given, all is made: sets, base, segmenter. per_device: for pi_init's and pi_rev's SFT and RL.
    measured: rows of D_eval on which each policy's own figures are measured. radiographs: that F_seg takes at once.
    studies, reviewed, elsewhere, picture: of the miniature (side in pixels). revised: radiographs of D_SFT whose
    trajectories are made, 0 for all. jobs: stages side by side. players: processes in which pi_rev's RL, the last
    training, plays where no launcher is given.
    """

    config: Path
    made: bool
    side: int
    per_device: tuple[int, int, int, int]
    findings: tuple[str, ...]
    measured: int
    radiographs: int = 1
    studies: int = 0
    reviewed: float = 0.0
    elsewhere: int = 0
    picture: int = 0
    revised: int = 0
    jobs: int = 1
    players: int = 1
    external: bool = False
    save_every: int = 500


STORIES = {
    "paper": Story(PAPER, made=False, side=1024, per_device=(4, 4, 4, 8), findings=(), measured=1000, external=True),
    # Three findings of seven: at 96 pixels an opacity, a pneumonia and a consolidation look alike. CheXpercept covers a
    # tenth of the studies, not a hundredth, so that there is enough of D_RL and D_eval. D_eval asks for every
    # zone that a present finding is not in, so MIMIC-ILS's pairs must ask such questions too.
    "mini": Story(
        MINI,
        made=True,
        side=168,
        per_device=(32, 64, 16, 32),
        findings=("opacity", "effusion", "cardiomegaly"),
        measured=1000,
        radiographs=8,
        studies=8000,
        reviewed=0.08,
        elsewhere=2,
        picture=96,
        revised=2000,
        jobs=2,
        players=2,
        save_every=100,
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("story", choices=STORIES)
    parser.add_argument("--out", type=Path, required=True, help="the run's own folder")
    parser.add_argument("--data", type=Path, help="the folder under which the real sets lie (paper)")
    parser.add_argument("--base", type=Path, help="MedGemma's folder (paper)")
    parser.add_argument("--sam3", type=Path, help="SAM3's folder (paper)")
    parser.add_argument("--config", type=Path, help="by default training/configs/paper.yaml or mini.yaml")
    parser.add_argument(
        "--launch", default="", help="put before every training, e.g. 'accelerate launch --config_file F'"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--studies", type=int, help="of the miniature")
    staged.add_arguments(parser, "paper: 1, mini: 2")


def run(arguments: argparse.Namespace) -> None:
    story = STORIES[arguments.story]
    stages = stages_of(arguments)
    if not arguments.list:
        config = arguments.config or story.config
        grid = read_settings(config).policies.grid
        arguments.out.mkdir(parents=True, exist_ok=True)
        _keep(config, arguments.out / CONFIG, anew=arguments.start is not None)
        write_whole(arguments.out / POLICIES, (json.dumps({"grid": grid}) + "\n").encode())
    follow(stages, arguments, arguments.out, story.jobs)


def _keep(config: Path, kept: Path, *, anew: bool) -> None:
    """A copy of the configuration beside what it makes.

    Raises:
        CallError: the run began with another one, and no stage is to be done anew.
    """
    text = config.read_bytes()
    if kept.is_file() and kept.read_bytes() != text and not anew:
        raise CallError(
            f"{config} is not the configuration that this run began with ({kept}); "
            "choose another --out, or do the stages that it changes anew: --from STAGE."
        )
    write_whole(kept, text)


# The story ---------------------------------------------------------------------------------------------------------


def stages_of(arguments: argparse.Namespace) -> list[Stage]:
    """All stages, in their order.

    Raises:
        CallError: the real sets or models are not named.
    """
    story, work = STORIES[arguments.story], arguments.out
    given = {"--data": arguments.data, "--base": arguments.base, "--sam3": arguments.sam3}
    for option, path in given.items():
        if story.made == (path is not None):
            raise CallError(f"The story {arguments.story!r} {'makes its own' if story.made else 'needs'} {option}.")
    config = ("--config", str(arguments.config or story.config))
    seed = ("--seed", str(arguments.seed))
    data, base, sam3 = (work / "sets", work / "base", work / "segmenter-base") if story.made else given.values()
    at = {name: str(work / name) for name in (
        "splits", "instructions", "segmenter", "trajectories", "pi_init_sft", "pi_init", "pi_rev_sft", "pi_rev",
        "d-eval", "chexlocalize", "bundles", "stored", "figures", "measured",
    )}  # fmt: skip
    sets = ("--data", str(data))
    rows, clicks = ("--rows", at["instructions"]), ("--rows", at["trajectories"])
    language = ("--base", str(base))
    # Side by side, two threads each would wait for each other most of the time.
    alone = ("--threads", "1") if story.jobs > 1 else ()
    frozen = f"{at['bundles']}/segmenter"

    def training(*words: str) -> tuple[str, ...]:
        return (sys.executable, *TRAINING, *words)

    def launched(*words: str, processes: int = 1) -> tuple[str, ...]:
        how: tuple[str, ...] = (*(shlex.split(arguments.launch) or (sys.executable,)), *TRAINING)
        if processes > 1 and not arguments.launch:
            several = ("--standalone", "--nproc_per_node", str(processes))
            # Behind "--", or torch would take --start for its own.
            how = (sys.executable, "-m", "torch.distributed.run", *several, "-m", "--", TRAINING[-1])
        return (*how, *words, "--resume")

    def policy(name: str, which: int, *words: str, processes: int = 1) -> tuple[str, ...]:
        many = str(story.per_device[which])
        shown = ("--per-device", many, "--save-every", str(story.save_every), "--tensorboard")
        asked = ("train-policy", name, *sets, *words, *language, *config, *seed, *shown)
        return launched(*asked, processes=processes)

    def bundle(name: str, *words: str) -> tuple[str, ...]:
        findings = [word for finding in story.findings for word in ("--finding", finding)]
        grid = ("--policies", str(work / POLICIES))
        return (
            sys.executable, *XFLOW, "bundles", "make", name, "--out", f"{at['bundles']}/{name}",
            "--language", str(base), "--segmenter", at["segmenter"], "--side", str(story.side),
            *grid, *findings, *words,
        )  # fmt: skip

    asked = {"chexpercept": at["d-eval"], **({"chexlocalize": at["chexlocalize"]} if story.external else {})}

    def answered(row: str, which: str) -> str:
        return row if which == "chexpercept" else f"{row}-{which}"

    def evaluate(name: str, number: int, which: str) -> tuple[str, ...]:
        return training(
            "evaluate", "--set", f"{asked[which]}/set.jsonl", "--bundle", f"{at['bundles']}/{name}",
            "--stages", str(number), "--out", f"{at['figures']}/{answered(name, which)}",
            "--keep", f"{at['stored']}/{name}/{which}", "--resume", "--empty-is-absent", *alone,
        )  # fmt: skip

    def evaluated(number: int) -> list[tuple[str, ...]]:
        return [evaluate(row, many, which) for row, many in ROWS.items() if many == number for which in asked]

    def bundled(number: int) -> tuple[str, ...]:
        return tuple(f"bundles/{row}" for row, many in ROWS.items() if many == number)

    def kept(number: int) -> tuple[str, ...]:
        rows = [row for row, many in ROWS.items() if many == number]
        figures = [f"figures/{answered(row, which)}" for row in rows for which in asked]
        return (*(f"stored/{row}" for row in rows), *figures)

    def measure(role: str, name: str, *words: str) -> tuple[str, ...]:
        out = ("--out", f"{at['measured']}/{name}.json", "--pictures", f"{at['measured']}/{name}.png")
        adapter = ("--adapter", at[name], "--limit", str(story.measured))
        return training("measure-policy", role, *sets, *words, *language, *adapter, *config, *out)

    stages = []
    if story.made:
        findings = [word for finding in story.findings for word in ("--finding", finding)]
        studies = ("--studies", str(arguments.studies or story.studies), "--reviewed", str(story.reviewed))
        # Without dirty files: `check` asks to put them right. CheXpercept's sources still disagree.
        drawn = ("--side", str(story.picture), "--elsewhere", str(story.elsewhere), "--flawed", "0")
        stages += [
            Stage("sets", "draw the miniature: every restricted set in its own layout, synthetic", (
                training("miniature", *studies, *drawn, *findings, *seed, "--out", str(data)),
            ), ("sets",)),
            Stage("base", "make the untrained models: a Gemma3 and a SAM3 that a laptop can train", (
                training("mini-base", "--out", str(base), *config, *seed),
                training("tiny-segmenter", "--out", str(sam3), "--side", str(story.side), *seed),
            ), ("base", "segmenter-base")),
        ]  # fmt: skip
    stages += [
        Stage("check", "look for what is missing or broken in the sets", (
            training("check", *sets, *config),
        ), (), ("sets",)),
        Stage("splits", "D_SFT, D_RL and D_eval (4.2, A.1)", (
            training("splits", *sets, "--out", at["splits"], *config),
        ), ("splits",), ("sets",)),
        Stage("instructions", "pi_init's examples (A.3)", (
            training(
                "instructions", *sets, "--splits", at["splits"], "--out", at["instructions"], "--evaluation", *config
            ),
        ), ("instructions",), ("splits",)),
        Stage("segmenter", "fine-tune F_seg (4.3)", (
            launched(
                "train-segmenter", *sets, *rows, "--base", str(sam3), "--out", at["segmenter"], *config, *seed,
                "--per-device", str(story.radiographs), "--tensorboard",
            ),
            bundle("segmenter"),
        ), ("segmenter", "bundles/segmenter"), ("instructions", "base")),
        Stage("trajectories", "pi_rev's examples, by F_seg and an oracle that clicks (A.3)", (
            training(
                "trajectories", *sets, "--instructions", at["instructions"], "--out", at["trajectories"],
                "--bundle", frozen, *config, *(("--radiographs", str(story.revised)) if story.revised else ()),
            ),
        ), ("trajectories",), ("segmenter",)),
        Stage("init-sft", "pi_init by SFT (4.4)", (
            policy("init-sft", 0, *rows, "--out", at["pi_init_sft"]),
        ), ("pi_init_sft",), ("instructions", "base")),
        Stage("init-rl", "pi_init by RL (4.4)", (
            policy("init-rl", 1, *rows, "--start", at["pi_init_sft"], "--out", at["pi_init"]),
        ), ("pi_init",), ("init-sft",)),
        Stage("rev-sft", "pi_rev by SFT, from pi_init's (4.4)", (
            policy("rev-sft", 2, *clicks, "--start", at["pi_init_sft"], "--out", at["pi_rev_sft"]),
        ), ("pi_rev_sft",), ("init-sft", "trajectories")),
        Stage("rev-rl", "pi_rev by RL, with F_seg in the loop (4.4)", (
            policy(
                "rev-rl", 3, *clicks, "--start", at["pi_rev_sft"], "--out", at["pi_rev"], "--bundle", frozen,
                processes=story.players,
            ),
        ), ("pi_rev",), ("rev-sft",)),
        Stage("bundles-init", "what the rows of Table 2 answer with in which pi_init is alone", (
            bundle("xflow-1-sft", "--init-adapter", at["pi_init_sft"]),
            bundle("xflow-1-rl", "--init-adapter", at["pi_init"]),
        ), bundled(1), ("segmenter", "init-rl")),
        Stage("bundles-rev", "and those in which pi_rev follows", (
            bundle("xflow-2-sft", "--init-adapter", at["pi_init"], "--revision-adapter", at["pi_rev_sft"]),
            bundle("xflow", "--init-adapter", at["pi_init"], "--revision-adapter", at["pi_rev"]),
        ), bundled(2), ("init-rl", "rev-rl")),
        Stage("measure-init", "pi_init by itself: greedy, sampled, by finding, and without the right picture", (
            measure("init", "pi_init_sft", *rows),
            measure("init", "pi_init", *rows),
        ), ("measured/pi_init_sft.json", "measured/pi_init.json"), ("init-rl",)),
        Stage("measure-segmenter", "F_seg by itself: what an oracle's clicks bring, from where pi_rev begins", (
            training(
                "measure-segmenter", *sets, *rows, "--segmenter", at["segmenter"], "--side", str(story.side),
                "--split", "eval", "--limit", str(story.measured), *config, *seed, *alone,
                "--out", f"{at['measured']}/segmenter",
            ),
        ), ("measured/segmenter",), ("segmenter",)),
        Stage("measure-rev-sft", "pi_rev before RL: greedy, sampled, by finding, beside what is no policy", (
            measure("rev", "pi_rev_sft", *clicks, "--bundle", frozen),
        ), ("measured/pi_rev_sft.json",), ("rev-sft",)),
        Stage("measure-rev", "pi_rev after RL: the same", (
            measure("rev", "pi_rev", *clicks, "--bundle", frozen),
        ), ("measured/pi_rev.json",), ("rev-rl",)),
        Stage("evaluation-init", "D_eval, answered by the rows of Table 2 in which pi_init is alone (5.2)", (
            training("evaluation-set", *sets, "--splits", at["splits"], "--out", at["d-eval"], *config),
            *([training("chexlocalize-set", *sets, "--out", at["chexlocalize"], *config)] if story.external else []),
            *evaluated(1),
        ), ("d-eval", *(["chexlocalize"] if story.external else []), *kept(1)), ("bundles-init",)),
        Stage("evaluation", "D_eval, answered by the others; the tables", (
            *evaluated(2),
            training(
                "tables", *(word for name, folder in asked.items() for word in ("--set", f"{name}={folder}/set.jsonl")),
                "--predictions", at["stored"], "--compare", "xflow", "--out", f"{at['figures']}/tables",
            ),
        ), (*kept(2), "figures/tables"), ("evaluation-init", "bundles-rev")),
    ]  # fmt: skip
    return stages
