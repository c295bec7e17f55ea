"""The miniature's base, and the loss that teaches it: what MedGemma needs none of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import TrainerCallback

from training.mini.gemma import write_mini_gemma
from training.policies.dense import InitDense, RevisionDense, shares
from training.policies.dialogues import Radiographs, Tokens, init_dialogue, revision_dialogue
from training.policies.from_scratch import FromScratchLoss
from training.policies.models import load_to_train
from training.policies.settings import FromScratch, LoraSettings, SftSettings
from training.policies.sft import RunSettings, train_sft
from xflow_core.domain import rle
from xflow_core.domain.errors import CallError
from xflow_core.domain.findings import FINDINGS
from xflow_core.domain.geometry import Box
from xflow_core.policies.medgemma import PolicySettings, check_tokenizer

GRID = 100
SIZE = (96, 80)
RECIPE = "mimic-cxr-jpg"
LORA = LoraSettings(8, 8, whole=True)
HELPS = FromScratch(dense=1.0, dense_steps=2, verdict_weight=4.0, spread=1.0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mini_gemma(tmp_path_factory.mktemp("base"), grid=GRID)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("images")
    pixels = np.random.default_rng(0).integers(0, 255, SIZE, dtype=np.uint8)
    Image.fromarray(pixels).save(found / "a.png")
    Image.fromarray(Box(0.6, 0.25, 0.8, 0.5).mask(SIZE).astype(np.uint8) * 255).save(found / "mask.png")
    return found


def init_row(present: bool = True) -> dict[str, Any]:
    return {
        "id": f"s_{present}", "image": "a.png", "instruction": "Segment the opacity.", "finding": "opacity",
        "level": "chest", "present": present, "mask": "mask.png" if present else None,
        "lungs": [
            {"label": "right lung", "box": [0.1, 0.1, 0.45, 0.9]}, {"label": "left lung", "box": [0.55, 0.1, 0.9, 0.9]},
        ],
        "grounded": ["right lung", "left lung"],
        "verdicts": [{"region": "right lung", "present": False}, {"region": "left lung", "present": present}],
        "boxes": [[0.6, 0.25, 0.8, 0.5]] if present else [],
    }  # fmt: skip


def parts(base: Path, folder: Path) -> tuple[Any, Any, Tokens, Radiographs]:
    model, gemma = load_to_train(base, None, LORA, tower=True)
    return model, gemma, Tokens(gemma), Radiographs(folder, RECIPE, gemma.picture_side, GRID)


def test_every_coordinate_marker_and_verdict_is_one_token(base: Path, folder: Path) -> None:
    _, gemma, tokens, radiographs = parts(base, folder)
    check_tokenizer(tokens.pieces, PolicySettings(grid=GRID))
    (pieces,) = init_dialogue(init_row(), radiographs).answers
    assert {piece: len(tokens.pieces.of(piece)) for piece in pieces if len(tokens.pieces.of(piece)) > 1} == {
        ")<|box_end|>\n": 2
    }
    said = tokens.turns(init_dialogue(init_row(), radiographs).turns)[0]
    assert len(said) - said.count(gemma.image_token) < 20


def test_patches_say_where_lungs_and_findings_lie_and_what_nobody_knows(folder: Path) -> None:
    radiographs = Radiographs(folder, RECIPE, 96, GRID)
    dense = InitDense([init_row()], folder, radiographs, 12)
    (maps,) = dense.of(init_row(), init_dialogue(init_row(), radiographs))
    opacity = maps[2 + FINDINGS.index("opacity")]
    # 80 pixels stand in the middle of 96: a column of patches is black on each side.
    assert opacity[3:6, 7].tolist() == [1.0, 1.0, 1.0] and opacity.sum() == pytest.approx(6, abs=0.5)
    assert maps[0, 6, 0] == 0 and maps[0, 6, 3] == 1
    assert np.isnan(maps[2 + FINDINGS.index("edema")]).all()


def test_patches_of_a_revision_say_what_the_mask_misses_and_has_too_much_of(folder: Path) -> None:
    radiographs = Radiographs(folder, RECIPE, 96, GRID)
    truth, poor = Box(0.5, 0.25, 0.75, 0.5).mask(SIZE), Box(0.5, 0.25, 0.625, 0.5).mask(SIZE)
    row = {
        "image": "a.png", "instruction": "Segment the opacity.", "size": list(SIZE), "truth": rle.encode(truth),
        "masks": [rle.encode(poor), rle.encode(truth)], "ious": [0.5, 1.0],
        "clicks": [{"polarity": "positive", "point": [0.7, 0.4]}],
    }  # fmt: skip
    plain, first, second = RevisionDense(radiographs, 12).of(row, revision_dialogue(row, radiographs))
    assert np.isnan(plain).all()
    assert first[1].sum() == pytest.approx(shares(truth & ~poor, 96, 12).sum()) and first[1].sum() > 1
    assert second[1].sum() == second[2].sum() == first[2].sum() == 0


def test_the_tower_is_taught_alone_first_and_then_all_that_the_adapter_has(
    base: Path, folder: Path, tmp_path: Path
) -> None:
    model, gemma, tokens, radiographs = parts(base, folder)
    dense = InitDense([init_row()], folder, radiographs, 12)
    loss = FromScratchLoss(gemma, tokens, HELPS, dense, GRID)
    seen: list[set[str]] = []

    class Look(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self._before = {name: each.detach().clone() for name, each in model.named_parameters()}

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            now = dict(model.named_parameters())
            seen.append({name for name in now if not torch.equal(now[name], self._before[name])})
            self._before = {name: each.detach().clone() for name, each in now.items()}

    settings = SftSettings(1e-3, 1.0, 0.0, 1.0, batch=2, epochs=1, from_scratch=HELPS)
    run = RunSettings(tmp_path / "out", per_device=2, steps=4, save_every=2, log_every=1)
    rows = Dataset.from_list([init_row()] * 8)
    trainer = train_sft(
        model, tokens, rows, init_dialogue, radiographs, settings, run,
        processor=gemma.processor, from_scratch=loss, callbacks=[Look()],
    )  # fmt: skip
    assert all("vision_tower" in name for name in seen[0]) and seen[0]
    for part in ("lora_", "embed_tokens", "lm_head", "multi_modal_projector", "vision_tower"):
        assert any(part in name for name in seen[-1]), part
    assert all(".default." in name for name in seen[-1])
    answers = [entry["loss/answer"] for entry in trainer.state.log_history if "loss/answer" in entry]
    assert answers[:2] == [0.0, 0.0] and answers[3] < answers[2]
    assert (run.out / "checkpoint-2" / "dense.safetensors").is_file()


def test_a_neighbouring_coordinate_is_nearly_right_and_a_verdict_weighs_more(base: Path, folder: Path) -> None:
    _, gemma, tokens, _ = parts(base, folder)
    loss = FromScratchLoss(gemma, tokens, FromScratch(verdict_weight=9.0, spread=1.0), None, GRID)
    vocabulary = len(gemma.processor.tokenizer)

    def cost(wanted: int, said: int) -> float:
        logits = torch.zeros(1, 1, vocabulary)
        logits[..., said] = 5.0
        return float(loss._of_tokens(logits, torch.tensor([[wanted]])))

    number = [tokens.pieces.of(str(k))[0] for k in range(GRID + 1)]
    assert cost(number[50], number[50]) < cost(number[50], number[51]) < cost(number[50], number[60])
    absent, comma = tokens.pieces.of(" absent")[0], tokens.pieces.of(",")[0]
    logits = torch.zeros(1, 2, vocabulary)
    logits[0, 0, comma] = 5.0
    both = float(loss._of_tokens(logits, torch.tensor([[comma, absent]])))
    assert both == pytest.approx((cost(comma, comma) + 9 * float(np.log(vocabulary))) / 10, rel=1e-4)


def test_spread_needs_a_token_for_every_coordinate(folder: Path, tmp_path: Path) -> None:
    from tiny_gemma import write_tiny_gemma

    _, gemma = load_to_train(write_tiny_gemma(tmp_path), None, LORA, tower=True)
    with pytest.raises(CallError, match="one token"):
        FromScratchLoss(gemma, Tokens(gemma), FromScratch(spread=1.0), None, GRID)
