"""``python -m training measure-policy init|rev --data ROOT --rows DIR --base DIR --adapter DIR --out FILE.json``.

What a policy writes when nothing constrains it, greedy and sampled, over all findings and for each: format, lungs,
verdicts, boxes and reward of pi_init; of pi_rev the gain of its clicks, beside random clicks, a second pass without a
click, and the oracle. ``--split eval`` measures on D_eval, which nothing was trained on or chosen by (rows made with
``--evaluation``). Standard errors are over radiographs, for what hangs on one of them hangs together.

pi_init is also shown other radiographs than it is asked about ("shuffled"): what stays right then was not read off the
picture. Not for clinical use.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.curation.division import EVAL
from training.curation.oracle import oracle_click
from training.curation.paper import PAPER, RevisionSettings, read_settings
from training.policies.dialogues import Radiographs, Tokens, Turn
from training.policies.episodes import Episodes, InitEpisode, InitEpisodes, RevisionEpisode, RevisionEpisodes
from training.policies.models import load_to_train
from training.policies.pictures import chosen, init_tile, revision_tiles, sheet
from training.policies.rewards import paired_iou
from training.policies.seen import SeenPictures
from training.policies.sft import teachable
from training.policies.train import rows_of
from xflow_core.bundles.loading import load_engine
from xflow_core.domain.geometry import Point, mask_iou
from xflow_core.domain.trace import Click
from xflow_core.export.files import write_whole
from xflow_core.policies.medgemma_model import MedGemma
from xflow_core.segmenters.protocol import Prediction, Prompt, PromptableSegmenter

LOG = logging.getLogger(__name__)

ALL = "all"
CHANGED = 0.005
"""A mask counts as improved or worsened when its IoU moved by more."""

ROLES = ("init", "rev")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--data", type=Path, required=True, help="the folder under which the sets lie")
    parser.add_argument("--rows", type=Path, required=True, help="what `instructions` or `trajectories` wrote")
    parser.add_argument("--base", type=Path, required=True, help="MedGemma's folder")
    parser.add_argument("--adapter", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    parser.add_argument("--config", type=Path, default=PAPER)
    parser.add_argument("--recipe", default="mimic-cxr-jpg", help="how a radiograph becomes the picture")
    parser.add_argument("--bundle", default="compact", help="whose segmenter stands for F_seg (rev)")
    parser.add_argument("--split", default=EVAL)
    parser.add_argument("--limit", type=int, help="that many rows, drawn by the seed")
    parser.add_argument("--pictures", type=Path, help="a PNG file: some of the answers, greedy and sampled, by finding")
    parser.add_argument("--batch", type=int, default=64, help="episodes at once")
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> None:
    settings = read_settings(arguments.config)
    _, gemma = load_to_train(arguments.base, arguments.adapter, settings.policies.lora, tower=False)
    tokens = Tokens(gemma)
    images = settings.sources.under(arguments.data).images
    radiographs = Radiographs(images, arguments.recipe, gemma.picture_side, settings.policies.grid)
    rows = rows_of(arguments.rows, arguments.split)
    if arguments.role == "init":
        rows = teachable(rows)
    asked = [dict(row) for row in rows]
    if arguments.limit is not None and arguments.limit < len(asked):
        picks = np.random.default_rng(arguments.seed).permutation(len(asked))[: arguments.limit]
        asked = [asked[index] for index in sorted(picks)]
    player = Player(gemma, tokens, arguments.batch, arguments.seed)
    if arguments.role == "init":
        most = settings.policies.init_rl.answer_tokens
        found, lines = measure_init(asked, InitEpisodes(radiographs, tokens, most), player)
    else:
        engine: Any = load_engine(arguments.bundle, "auto")
        most = settings.policies.rev_rl.answer_tokens
        episodes = RevisionEpisodes(radiographs, tokens, engine.segmenter, most)
        found, lines = measure_revision(asked, episodes, player, settings.revision)
    told = {
        "notice": "not for clinical use",
        "role": arguments.role,
        "adapter": arguments.adapter.name,
        "split": arguments.split,
        "rows": len(asked),
        "radiographs": len({row["image"] for row in asked}),
        **found,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(arguments.out, (json.dumps(told, indent=1) + "\n").encode())
    if arguments.pictures is not None:
        write_whole(arguments.pictures, sheet(lines))
    LOG.info("%s; not for clinical use", arguments.out)


class Player:
    """Plays episodes with the policy that is measured, many at once.

    Args:
        batch: episodes at once. seed: of what is sampled.
    """

    def __init__(self, gemma: MedGemma, tokens: Tokens, batch: int, seed: int) -> None:
        self._gemma, self._tokens, self._batch, self._seed = gemma, tokens, batch, seed
        self._seen = SeenPictures(gemma)

    def play(self, episodes: Episodes, each: Sequence[Any], *, sampled: bool, top_p: float = 1.0) -> None:
        """Play all of ``each`` to their ends."""
        torch.manual_seed(self._seed)
        for start in range(0, len(each), self._batch):
            with self._seen.used():
                self._together(episodes, each[start : start + self._batch], sampled, top_p)

    def _together(self, episodes: Episodes, group: Sequence[Any], sampled: bool, top_p: float) -> None:
        active = [_Playing(episode, [episode.opening], self._tokens.turns([episode.opening])[0]) for episode in group]
        for _ in range(episodes.turns):
            if not active:
                return
            answers = self._answers(active, episodes.answer_tokens, sampled, top_p)
            following = episodes.move([one.episode for one in active], answers)
            for one, said, turn in zip(active, answers, following, strict=True):
                if turn is not None:
                    one.turns.append(turn)
                    one.ids = [*one.ids, *said, *self._tokens.turns(one.turns)[-1]]
            active = [one for one, turn in zip(active, following, strict=True) if turn is not None]

    @torch.inference_mode()
    def _answers(self, active: Sequence[_Playing], most: int, sampled: bool, top_p: float) -> list[list[int]]:
        length = max(len(one.ids) for one in active)
        device = self._gemma.device
        ids = torch.zeros(len(active), length, dtype=torch.long, device=device)
        present = torch.zeros_like(ids)
        for line, one in enumerate(active):
            ids[line, length - len(one.ids) :] = torch.tensor(one.ids, device=device)
            present[line, length - len(one.ids) :] = 1
        pictures = [picture for one in active for turn in one.turns for picture in turn.pictures]
        made = self._gemma.gemma.generate(
            input_ids=ids,
            attention_mask=present,
            token_type_ids=(ids == self._tokens.image_token).long(),
            pixel_values=self._tokens.pixels(pictures).to(device, self._gemma.gemma.dtype),
            max_new_tokens=most,
            do_sample=sampled,
            top_p=top_p if sampled else None,
            top_k=None,
            suppress_tokens=list(self._gemma.image_tokens),
        )[:, length:]
        return [_until(line, self._gemma.end) for line in made.tolist()]


def _until(said: list[int], end: int) -> list[int]:
    return said[: said.index(end) + 1] if end in said else said


@dataclass
class _Playing:
    episode: Any
    turns: list[Turn]
    ids: list[int]


# pi_init -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InitScore:
    """One answer. lesion: paired IoU of the lesion boxes; None on a negative row. Counts are of verdicts."""

    image: str
    finding: str
    level: str
    format: float
    lungs: float
    lesion: float | None
    right: int
    false_alarms: int
    missed: int
    reward: float


def measure_init(
    rows: Sequence[Mapping[str, Any]], episodes: InitEpisodes, player: Player
) -> tuple[dict[str, Any], list[list[np.ndarray]]]:
    """Greedy, sampled, and greedy on other radiographs; each over all findings and by finding. And pictures."""
    images = sorted({row["image"] for row in rows})
    # Each radiograph is shown in place of the one before it.
    other = dict(zip(images, [*images[1:], images[0]], strict=True))
    found: dict[str, Any] = {}
    levels: dict[str, Any] = {}
    lines: list[list[np.ndarray]] = []
    shown_rows: list[int] | None = None
    for how in ("greedy", "sampled", "shuffled"):
        played = [episodes.begin(row) for row in rows]
        if how == "shuffled":
            for row, episode in zip(rows, played, strict=True):
                shown = episodes.radiographs.square(episodes.radiographs.read(other[row["image"]]))
                episode.opening = Turn((shown,), episode.opening.words)
        player.play(episodes, played, sampled=how == "sampled")
        scores = [init_score(row, episode) for row, episode in zip(rows, played, strict=True)]
        found[how] = by_finding(scores, init_figures)
        levels[how] = grouped(scores, init_figures, lambda score: score.level)
        if how != "shuffled":
            shown_rows = shown_rows or chosen(played, rows, 3)
            tiles = [init_tile(played[index], f"{how}, {rows[index]['finding']}") for index in shown_rows]
            lines += [tiles[start : start + 3] for start in range(0, len(tiles) - len(tiles) % 3, 3)]
    found["by_level"] = levels
    half = len(lines) // 2  # a finding's greedy line above its sampled one
    return found, [line for pair in zip(lines[:half], lines[half:], strict=True) for line in pair]


def init_score(row: Mapping[str, Any], episode: InitEpisode) -> InitScore:
    answer, target = episode.answer, episode.target
    said = {} if answer is None else {lung.label: lung.box for lung in answer.lungs}
    called = set() if answer is None else {verdict.region for verdict in answer.verdicts if verdict.present}
    true = {verdict.region for verdict in target.verdicts if verdict.present}
    ious = [said[lung.label].iou(lung.box) if lung.label in said else 0.0 for lung in target.lungs]
    lesion = None
    if target.boxes:
        lesion = 0.0 if answer is None or not answer.boxes else paired_iou(answer.boxes, target.boxes)
    return InitScore(
        image=row["image"],
        finding=target.finding,
        level=row["level"],
        format=float(answer is not None),
        lungs=float(np.mean(ious)),
        lesion=lesion,
        right=len(called & true),
        false_alarms=len(called - true),
        missed=len(true - called),
        reward=sum(episode.rewards().values()),
    )


def init_figures(scores: Sequence[InitScore]) -> dict[str, Any]:
    right, false, missed = (sum(getattr(s, name) for s in scores) for name in ("right", "false_alarms", "missed"))
    lesions = [(score.image, score.lesion) for score in scores if score.lesion is not None]
    return {
        "n": len(scores),
        "n_positive": len(lesions),
        "format": _mean([(s.image, s.format) for s in scores]),
        "lung_iou": _mean([(s.image, s.lungs) for s in scores]),
        "f1": _share(2 * right, 2 * right + false + missed),
        "recall": _share(right, right + missed),
        "precision": _share(right, right + false),
        "box_iou": _mean(lesions),
        "reward": _mean([(s.image, s.reward) for s in scores]),
    }


# pi_rev ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RevisionScore:
    """One trajectory: the IoU before and after, the clicks, and whether every answer could be read."""

    image: str
    finding: str
    first: float
    last: float
    clicks: int
    readable: bool

    @property
    def gain(self) -> float:
        return self.last - self.first


def measure_revision(
    rows: Sequence[Mapping[str, Any]],
    episodes: RevisionEpisodes,
    player: Player,
    settings: RevisionSettings,
) -> tuple[dict[str, Any], list[list[np.ndarray]]]:
    """Greedy and sampled (top-p 0.95), and what clicks are worth that no policy chose: as many random ones as the
    greedy policy makes in that case, none and a second pass of the segmenter, the oracle's four. ``beside``: what the
    greedy policy gains over the first two, case by case. And pictures."""
    lines: list[list[np.ndarray]] = []
    scores: dict[str, list[RevisionScore]] = {}
    for how in ("greedy", "sampled"):
        played = [episodes.begin(row) for row in rows]
        player.play(episodes, played, sampled=how == "sampled", top_p=0.95)
        scores[how] = [_revised(row, episode) for row, episode in zip(rows, played, strict=True)]
        for index in chosen(played, rows, 2):
            title = f"{how}, {rows[index]['finding']}"
            lines.append(revision_tiles(played[index], title, settings.clicks + 1))
    rng = np.random.default_rng(0)
    for how in ("random_clicks", "second_pass", "oracle"):
        scores[how] = []
        for row, greedy in zip(rows, scores["greedy"], strict=True):
            episode = episodes.begin(row)
            if how == "random_clicks":
                for _ in range(greedy.clicks):
                    _segment(episode, episodes.segmenter, _random(episode, rng))
            elif how == "second_pass":
                _segment(episode, episodes.segmenter)
            else:
                while len(episode.clicks) < settings.clicks and (made := _oracle(episode, settings)) is not None:
                    _segment(episode, episodes.segmenter, made)
            scores[how].append(_revised(row, episode))
    found = {how: by_finding(of, gains) for how, of in scores.items()}
    found["beside"] = {
        how: _mean([(own.image, own.gain - s.gain) for own, s in zip(scores["greedy"], scores[how], strict=True)])
        for how in ("random_clicks", "second_pass")
    }
    return found, lines


def _segment(episode: RevisionEpisode, segmenter: PromptableSegmenter, *clicks: Click) -> None:
    episode.clicks += clicks
    prompt = Prompt(episode.box, tuple(episode.clicks), episode.current)
    (episode.current,) = segmenter.segment(episode.image, [prompt])


def _oracle(episode: RevisionEpisode, settings: RevisionSettings) -> Click | None:
    return oracle_click(episode.current.mask, episode.truth, episode.clicks, settings.guard_px)


def _random(episode: RevisionEpisode, rng: np.random.Generator) -> Click:
    """Anywhere in the box, of either polarity."""
    box = episode.box
    return Click(
        ("positive", "negative")[rng.integers(2)], Point(rng.uniform(box.x1, box.x2), rng.uniform(box.y1, box.y2))
    )


def _revised(row: Mapping[str, Any], episode: RevisionEpisode) -> RevisionScore:
    current: Prediction = episode.current
    return RevisionScore(
        image=row["image"],
        finding=row["finding"],
        first=mask_iou(episode.first, episode.truth),
        last=mask_iou(current.mask, episode.truth),
        clicks=len(episode.clicks),
        readable=episode.readable,
    )


def gains(scores: Sequence[RevisionScore]) -> dict[str, Any]:
    """Over all trajectories, and over those alone in which a click was made: who always stops gains nothing there."""
    clicked = [score for score in scores if score.clicks]
    return {
        "n": len(scores),
        "first_iou": _mean([(s.image, s.first) for s in scores]),
        "gain": _mean([(s.image, s.gain) for s in scores]),
        "improved": _share(sum(s.gain > CHANGED for s in scores), len(scores)),
        "worsened": _share(sum(s.gain < -CHANGED for s in scores), len(scores)),
        "clicks": _mean([(s.image, float(s.clicks)) for s in scores]),
        "format": _mean([(s.image, float(s.readable)) for s in scores]),
        "clicked": {
            "n": len(clicked),
            "gain": _mean([(s.image, s.gain) for s in clicked]),
            "improved": _share(sum(s.gain > CHANGED for s in clicked), len(clicked)),
            "worsened": _share(sum(s.gain < -CHANGED for s in clicked), len(clicked)),
        },
    }


# Figures -----------------------------------------------------------------------------------------------------------


def by_finding(scores: Sequence[Any], figures: Callable[[Sequence[Any]], dict[str, Any]]) -> dict[str, Any]:
    """Figures of all scores, under ``all``, and of each finding's."""
    return {ALL: figures(scores), **grouped(scores, figures, lambda score: score.finding)}


def grouped(
    scores: Sequence[Any], figures: Callable[[Sequence[Any]], dict[str, Any]], key: Callable[[Any], str]
) -> dict[str, Any]:
    groups: dict[str, list[Any]] = defaultdict(list)
    for score in scores:
        groups[key(score)].append(score)
    return {name: figures(groups[name]) for name in sorted(groups)}


def _mean(values: Sequence[tuple[str, float]]) -> list[float] | None:
    """[mean, standard error]; the error by radiograph (a ratio estimate over clusters)."""
    if not values:
        return None
    mean = float(np.mean([value for _, value in values]))
    residuals: dict[str, float] = defaultdict(float)
    for image, value in values:
        residuals[image] += value - mean
    groups = len(residuals)
    spread = sum(residual**2 for residual in residuals.values()) * (groups / (groups - 1) if groups > 1 else 0.0)
    return [round(mean, 4), round(float(np.sqrt(spread)) / len(values), 4)]


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
