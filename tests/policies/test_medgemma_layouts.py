"""Two merged models and one base with two adapters say the same, and the memory decides which is loaded."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from phantom import phantom
from tiny_gemma import write_tiny_adapter, write_tiny_gemma

from xflow_core.domain.errors import CallError, EngineError
from xflow_core.domain.instruction import Instruction
from xflow_core.policies.medgemma import MedGemmaInitPolicy, PolicySettings
from xflow_core.policies.medgemma_layouts import BESIDE_WEIGHTS, bytes_needed, choose_layout, load_in_layout, numbers_in
from xflow_core.policies.medgemma_model import MedGemma
from xflow_core.radiograph.encoded import EncodedRadiograph

ASKED = Instruction("?", "effusion", ("left lung",), "lung")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gemma(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in ("init", "revision")}
    return {name: write_tiny_adapter(folder, base, seed) for seed, (name, folder) in enumerate(folders.items(), 1)}


def load(layout: str, base: Path, adapters: dict[str, Path]) -> dict[str, MedGemma]:
    return load_in_layout(layout, base, adapters, device="cpu", dtype=torch.float64)


def test_both_layouts_answer_alike(base: Path, adapters: dict[str, Path]):
    answers = []
    for layout in ("merged", "adapters"):
        models = load(layout, base, adapters)
        assert (models["init"] is models["revision"]) == (layout == "adapters")
        policy = MedGemmaInitPolicy(models["init"], PolicySettings(), "engine-grey")
        image = EncodedRadiograph(phantom([(0.3, 0.7, 14)]))
        lungs = policy.ground_lungs(image, ASKED, ("left lung",), seed=0)
        (verdict,) = policy.judge(image, ASKED, ("left lung",), lungs.value, seed=0).value
        answers.append((lungs, verdict.present, pytest.approx(verdict.confidence, abs=1e-9)))
    assert answers[0] == answers[1]


def test_the_bytes_are_those_of_the_weights(base: Path, adapters: dict[str, Path]):
    model = load("adapters", base, {})["init"].gemma
    assert numbers_in(base) == sum(weight.numel() for weight in model.parameters())
    merged = bytes_needed("merged", base, adapters) - BESIDE_WEIGHTS
    beside = bytes_needed("adapters", base, adapters) - BESIDE_WEIGHTS
    assert merged == 4 * numbers_in(base)
    assert beside == 2 * (numbers_in(base) + sum(map(numbers_in, adapters.values())))


@pytest.mark.parametrize(("missing", "chosen"), [(0, "merged"), (1, "adapters"), (10**12, "adapters")])
def test_the_free_memory_decides(
    base: Path, adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch, missing: int, chosen: str
):
    free = bytes_needed("merged", base, adapters) - missing
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, free))
    assert choose_layout("cuda", base, adapters) == chosen
    assert choose_layout("cpu", base, adapters) == "adapters"


def test_memory_that_does_not_suffice_after_all_is_said_and_the_next_layout_loaded(
    base: Path, adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    whole = MedGemma.load

    def load_short(*arguments: Any, **named: Any) -> MedGemma:
        if named.get("merge"):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(*arguments, **named)

    monkeypatch.setattr(MedGemma, "load", load_short)
    with caplog.at_level(logging.WARNING):
        models = load("merged", base, adapters)
    assert models["init"] is models["revision"]
    assert "does not suffice for the layout 'merged'" in caplog.text
    monkeypatch.setattr(MedGemma, "load", lambda *_, **__: (_ for _ in ()).throw(torch.OutOfMemoryError("out")))
    with pytest.raises(EngineError, match="not even in the layout 'adapters'"):
        load("merged", base, adapters)


def test_an_unknown_layout_is_refused(base: Path):
    with pytest.raises(CallError, match="choose auto, merged, adapters"):
        load("8bit", base, {})
