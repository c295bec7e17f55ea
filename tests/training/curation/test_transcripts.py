"""What the policies are taught is what inference reads: every row of the drawn miniature's shards, in all four phases.

The rows hold decisions; their text is written when they are used, by the functions that the policies write with. So the
text of a row is held here against `xflow_core`'s own parser, asked as inference asks it: with what the instruction
says, and nothing else of the row.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from brush import Brush
from tiny_gemma import write_tiny_gemma

from training.curation.oracle import oracle_click
from training.policies.dialogues import MAX_CLICKS, Radiographs, Tokens, init_dialogue, revision_dialogue
from training.policies.episodes import InitEpisodes, RevisionEpisodes
from training.policies.targets import InitTarget
from xflow_core.domain import rle
from xflow_core.domain.findings import HEART, lung_of, lungs_for, region_band, verdict_regions
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import Click, Verdict
from xflow_core.policies.medgemma import question
from xflow_core.policies.medgemma_model import MedGemma
from xflow_core.policies.protocols import Done
from xflow_core.policies.transcript import boxes_plan, read, read_answer, read_click, write_click

if TYPE_CHECKING:
    from conftest import Miniature, Revised


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    import torch

    return Tokens(MedGemma.load(write_tiny_gemma(tmp_path_factory.mktemp("base")), dtype=torch.float32))


@pytest.fixture(scope="module")
def radiographs(drawn: Miniature) -> Radiographs:
    return Radiographs(drawn.sources.images, "mimic-cxr-jpg", 56)


def rows_of(folder: Path, *splits: str) -> list[dict[str, Any]]:
    paths = [path for split in splits for path in sorted(folder.glob(f"{split}-*.parquet"))]
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def readable(rows: list[dict[str, Any]], drawn: Miniature) -> list[dict[str, Any]]:
    """Those whose radiograph is no broken download: training names the others when it comes to them."""
    broken = {flaw.get("study") for flaw in drawn.flaws if flaw["kind"].startswith("image_")}
    kept = [row for row in rows if row["study"] not in broken]
    assert len(kept) > 0.5 * len(rows) > 20
    return kept


def test_every_answer_of_the_initial_policy_is_read_back_as_the_row_has_it(
    drawn: Miniature, instructions: Path, radiographs: Radiographs, tokens: Tokens
) -> None:
    """pi_init, SFT: train and validation."""
    positive = beyond = 0
    for row in readable(rows_of(instructions, "sft", "sft_val"), drawn):
        dialogue, frame = init_dialogue(row, radiographs), radiographs.frame(radiographs.read(row["image"]))
        (pieces,) = dialogue.answers
        text = tokens.pieces.text(tokens.pieces.encode(pieces))
        (asked,) = parse_instruction(row["instruction"])
        (plainly,) = parse_instruction(question(asked))  # the words of inference
        assert (plainly.finding, plainly.regions) == (row["finding"], tuple(row["regions"]))
        lungs, regions = lungs_for(asked.regions), verdict_regions(asked.regions)
        answer = read_answer(text, finding=asked.finding, lungs=lungs, regions=regions, frame=frame)

        boxes_of = {lung["label"]: Box(*lung["box"]) for lung in row["lungs"]}
        assert [lung.label for lung in answer.lungs] == row["grounded"]
        for lung in answer.lungs:
            assert frame.numbers_of_box(lung.box) == frame.numbers_of_box(boxes_of[lung.label])
        assert answer.verdicts == tuple(Verdict(v["region"], v["present"]) for v in row["verdicts"])
        assert bool(answer.boxes) == row["present"]
        wanted = InitTarget.of_row(row).boxes
        assert [frame.numbers_of_box(box) for box in answer.boxes] == [frame.numbers_of_box(box) for box in wanted]
        if answer.boxes:
            # Constrained decoding, after the lungs and verdicts that the text itself gives, can write these boxes.
            found = {lung.label: lung.box for lung in answer.lungs}
            places = [(v.region, lung_of(v.region)) for v in answer.verdicts if v.present]
            bands = [
                Box(0, 0, 1, 1) if lung is None or region == HEART else region_band(region, found[lung])
                for region, lung in places
            ]
            written = text.split("</think>\n")[1]
            assert read(boxes_plan(asked.finding, frame, bands=bands), written) == answer.boxes
            # Every component's own box is among them, whatever the order; but one that lies beyond all that was asked.
            for component in (Box(*box) for box in row["boxes"]):
                parts = [component.intersect(band) for band in bands]
                if any(part is not None and min(part.width, part.height) > 0.01 for part in parts):
                    assert frame.numbers_of_box(component) in map(frame.numbers_of_box, answer.boxes)
                else:
                    beyond += 1
            positive += 1
    assert positive > 20 and beyond < 0.1 * positive


def test_every_prompt_of_the_initial_policys_rl_rewards_the_honest_answer(
    drawn: Miniature, instructions: Path, radiographs: Radiographs, tokens: Tokens
) -> None:
    """pi_init, RL: the policy is asked by the row, and the true answer, in its tokens, is read and earns the most."""
    episodes, positive = InitEpisodes(radiographs, tokens), 0
    for row in readable(rows_of(instructions, "rl"), drawn):
        episode = episodes.begin(row)
        assert episode.opening.words == row["instruction"]
        (asked,) = parse_instruction(row["instruction"])
        assert [lung.label for lung in episode.target.lungs] == list(lungs_for(asked.regions))
        assert [verdict.region for verdict in episode.target.verdicts] == list(verdict_regions(asked.regions))
        said = tokens.pieces.encode(episode.target.pieces(episode.frame))
        assert episodes.move([episode], [said]) == [None]
        rewards = episode.rewards()
        assert rewards["R_format"] == 1 and rewards["R_box"] > 0.9, row["id"]
        assert row["present"] or rewards["R_box"] == 1
        positive += row["present"]
    assert positive > 5


def test_every_trajectory_is_read_back_click_by_click(
    drawn: Miniature, revised: Revised, radiographs: Radiographs, tokens: Tokens
) -> None:
    """pi_rev, SFT: train and validation."""
    said: list[type] = []
    for row in rows_of(revised.folder, "sft", "sft_val"):
        dialogue, frame = revision_dialogue(row, radiographs), radiographs.frame(radiographs.read(row["image"]))
        best = row["ious"].index(max(row["ious"]))
        moves = []
        for pieces in dialogue.answers:
            moves.append(read_click(tokens.pieces.text(tokens.pieces.encode(pieces)), frame))
        # Up to the best mask, then done, unless all clicks are spent.
        assert len(dialogue.turns) == len(moves) == best + (best < MAX_CLICKS)
        for move, click in zip(moves, row["clicks"], strict=False):
            if isinstance(move, Click):
                assert move.polarity == click["polarity"]
                assert frame.numbers_of_point(move.point) == frame.numbers_of_point(Point(*click["point"]))
        assert [type(move) for move in moves] == [Click] * best + [Done] * (best < MAX_CLICKS)
        assert [len(turn.pictures) for turn in dialogue.turns] == [2, *[1] * (len(moves) - 1)]
        assert dialogue.turns[0].words == row["instruction"]
        said += map(type, moves)
    assert said.count(Click) > 20 and said.count(Done) > 10


def test_every_starting_state_hears_the_oracles_click(
    drawn: Miniature, revised: Revised, radiographs: Radiographs, tokens: Tokens
) -> None:
    """pi_rev, RL: the true click on the row's own mask, in the policy's tokens, is read, and a mask comes back."""
    episodes, clicked = RevisionEpisodes(radiographs, tokens, Brush()), 0
    for row in rows_of(revised.folder, "rl"):
        episode = episodes.begin(row)
        size = tuple(row["size"])
        mask, truth = (rle.decode(words, size) for words in (row["masks"][0], row["truth"]))
        assert (episode.current.mask == mask).all() and (episode.truth == truth).all()
        assert episode.opening.words == row["instruction"] and len(episode.opening.pictures) == 2
        click = oracle_click(mask, truth, ())
        if click is None:
            continue
        said = tokens.pieces.encode(write_click(click, episode.frame))
        (following,) = episodes.move([episode], [said])
        assert following is not None and episode.readable
        assert [heard.polarity for heard in episode.clicks] == [click.polarity]
        # The grid moves a click by half a step at the most, less than a pixel here: it lands where it was meant to.
        row_, column = episode.clicks[0].point.pixel(size)
        assert truth[row_, column] == (click.polarity == "positive") != mask[row_, column]
        clicked += 1
    assert clicked > 20
