"""Two merged models and one base with two adapters say the same, and the memory decides which is loaded."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
import torch
from phantom import phantom
from safetensors.torch import load_file, save_file
from tiny_gemma import write_tiny_adapter, write_tiny_gemma

from xflow_core.domain.errors import CallError, EngineError
from xflow_core.domain.instruction import Instruction
from xflow_core.policies import medgemma_layouts
from xflow_core.policies.medgemma import MedGemmaInitPolicy, NoRevision, PolicySettings, load_policies
from xflow_core.policies.medgemma_layouts import (
    BESIDE_WEIGHTS,
    LAYOUTS,
    NF4_BYTES,
    LaidOutPolicies,
    bytes_needed,
    check_layout,
    choose_layout,
    load_in_layout,
    numbers_in,
)
from xflow_core.policies.medgemma_model import Conversation, MedGemma
from xflow_core.policies.protocols import InitPolicy, RevisionPolicy
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


def test_four_bits_are_counted_for_the_language_layers_alone(base: Path, adapters: dict[str, Path]):
    model = load("adapters", base, {})["init"].gemma
    small = sum(
        layer.weight.numel() for layer in model.model.language_model.modules() if isinstance(layer, torch.nn.Linear)
    )
    whole = bytes_needed("adapters", base, adapters)
    assert bytes_needed("nf4", base, adapters) == whole - 2 * small + round(small * NF4_BYTES)


@pytest.mark.parametrize(
    ("fits", "missing", "chosen"),
    [("merged", 0, "merged"), ("merged", 1, "adapters"), ("adapters", 1, "nf4"), ("merged", 10**12, "nf4")],
)
def test_the_free_memory_decides(
    base: Path, adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch, fits: str, missing: int, chosen: str
):
    free = bytes_needed(fits, base, adapters) - missing
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, free))
    monkeypatch.setattr(medgemma_layouts, "find_spec", lambda name: object())
    assert choose_layout("cuda", base, adapters) == chosen
    assert choose_layout("cpu", base, adapters) == "adapters"
    monkeypatch.setattr(medgemma_layouts, "find_spec", lambda name: None)
    assert choose_layout("cuda", base, adapters) == ("merged" if chosen == "merged" else "adapters")


def test_a_layout_that_is_none_or_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(CallError, match="choose auto, merged, adapters, nf4"):
        check_layout("8bit", "cpu")
    with pytest.raises(CallError, match="does not run on mps"):
        check_layout("nf4", "mps")
    monkeypatch.setattr(medgemma_layouts, "find_spec", lambda name: None)
    with pytest.raises(CallError, match="pip install bitsandbytes"):
        check_layout("nf4", "cuda")
    check_layout("auto", "cuda")


# Four bits -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def four_bits(base: Path, adapters: dict[str, Path]) -> MedGemma:
    pytest.importorskip("bitsandbytes")
    return MedGemma.load(base, adapters, dtype=torch.float32, four_bits=True)


def test_only_the_language_layers_are_in_four_bits(four_bits: MedGemma):
    small = {name for name, weight in four_bits.gemma.named_parameters() if type(weight).__name__ == "Params4bit"}
    assert small and all("language_model.layers" in name and "_proj" in name for name in small)
    rest = {name: weight.dtype for name, weight in four_bits.gemma.named_parameters() if name not in small}
    assert set(rest.values()) == {torch.float32}
    for part in ("vision_tower", "multi_modal_projector", "embed_tokens", "lora_A", "lora_B", "modules_to_save"):
        assert any(part in name for name in rest), part


def test_four_bits_with_adapters_are_the_rounded_base_with_adapters(
    base: Path, adapters: dict[str, Path], four_bits: MedGemma, tmp_path: Path
):
    """The base whose language layers hold what four bits keep of them, loaded in full precision, says the same, up to
    the bfloat16 in which bitsandbytes computes on some processors."""
    from bitsandbytes.functional import dequantize_4bit

    rounded = Path(shutil.copytree(base, tmp_path / "rounded"))
    weights = load_file(rounded / "model.safetensors")
    plain = MedGemma.load(base, dtype=torch.float32, four_bits=True).gemma
    changed = 0
    for name, weight in plain.named_parameters():
        if type(weight).__name__ == "Params4bit":
            layer = name.partition("language_model.")[2]
            (key,) = [key for key in weights if key.endswith(layer) and "vision" not in key]
            kept = dequantize_4bit(weight.data, weight.quant_state)
            changed += not torch.equal(kept, weights[key])
            weights[key] = kept.contiguous()
    assert changed == 3 * 7
    save_file(weights, rounded / "model.safetensors", metadata={"format": "pt"})
    whole, exact = (MedGemma.load(folder, adapters, dtype=torch.float32) for folder in (rounded, base))
    symbols = list(range(20, 60))

    def said(model: MedGemma, role: str | None) -> torch.Tensor:
        with model.using(role):
            return Conversation(model).after(symbols, lambda _: torch.empty(0))

    for role in (*adapters, None):
        near, far = said(whole, role), said(exact, role)
        scale = float(near.norm())
        assert float((said(four_bits, role) - near).norm()) < 0.03 * scale
        assert float((far - near).norm()) > 0.1 * scale


def test_a_whole_answer_in_four_bits(base: Path, adapters: dict[str, Path]):
    pytest.importorskip("bitsandbytes")
    loaded = load_policies(base=base, adapters=adapters, settings={}, recipe="engine-grey", device="cpu", layout="nf4")
    assert loaded.layout == "nf4"
    image = EncodedRadiograph(phantom([(0.3, 0.7, 14)]))
    lungs = loaded.init.ground_lungs(image, ASKED, ("left lung",), seed=0)
    assert loaded.init.judge(image, ASKED, ("left lung",), lungs.value, seed=0).text


# Out of memory -------------------------------------------------------------------------------------------------------


class Scarce:
    """Memory that suffices for decisions only in some layouts."""

    def __init__(self, base: Path, adapters: dict[str, Path], suffices: set[str], loads: set[str] = set(LAYOUTS)):  # noqa: B006
        self.base, self.adapters, self.suffices, self.loads = base, adapters, suffices, loads
        self.loaded: list[str] = []

    def load(self, name: str) -> tuple[InitPolicy, RevisionPolicy]:
        if name not in self.loads:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.loaded.append(name)
        models = load(name, self.base, self.adapters)
        init = MedGemmaInitPolicy(models["init"], PolicySettings(), "engine-grey")
        if name not in self.suffices:
            models["init"].soft_tokens = self.fail  # type: ignore[method-assign]
        return init, NoRevision()

    def fail(self, picture: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")


def ask(policies: LaidOutPolicies) -> object:
    image = EncodedRadiograph(phantom([(0.3, 0.7, 14)]))
    return policies.init.ground_lungs(image, ASKED, ("left lung",), seed=0)


def test_out_of_memory_in_a_run_falls_to_the_next_layout_once_and_says_so(
    base: Path, adapters: dict[str, Path], caplog: pytest.LogCaptureFixture
):
    expected = ask(LaidOutPolicies(["adapters"], Scarce(base, adapters, {"adapters"}).load, "cpu"))
    scarce = Scarce(base, adapters, {"adapters"})
    policies = LaidOutPolicies(["merged", "adapters"], scarce.load, "cpu")
    with caplog.at_level(logging.WARNING):
        assert ask(policies) == expected
        assert ask(policies) == expected
    assert scarce.loaded == ["merged", "adapters"] and policies.layout == "adapters"
    assert caplog.text.count("does not suffice for the layout 'merged'") == 1


def test_out_of_memory_in_the_next_layout_too_is_a_sentence(base: Path, adapters: dict[str, Path]):
    policies = LaidOutPolicies(["merged", "adapters"], Scarce(base, adapters, set()).load, "cuda")
    for _ in range(2):
        with pytest.raises(EngineError, match="memory of cuda, not even in the layout 'adapters'"):
            ask(policies)
    scarce = Scarce(base, adapters, set(), loads={"merged"})
    policies = LaidOutPolicies(["merged", "adapters"], scarce.load, "cuda")
    for _ in range(2):
        with pytest.raises(EngineError, match="not even in the layout 'adapters'"):
            ask(policies)


def test_out_of_memory_while_loading_falls_too(base: Path, adapters: dict[str, Path], caplog: pytest.LogCaptureFixture):
    scarce = Scarce(base, adapters, set(LAYOUTS), loads={"adapters"})
    with caplog.at_level(logging.WARNING):
        policies = LaidOutPolicies(["merged", "adapters"], scarce.load, "cpu")
    assert policies.layout == "adapters" and "does not suffice for the layout 'merged'" in caplog.text
    with pytest.raises(EngineError, match="not even in the layout 'adapters'"):
        LaidOutPolicies(["merged", "adapters"], Scarce(base, adapters, set(), loads=set()).load, "cpu")


def test_room_is_made_once_for_all_that_ran_out_of_it(base: Path, adapters: dict[str, Path]):
    policies = LaidOutPolicies(["merged", "adapters"], Scarce(base, adapters, set(LAYOUTS)).load, "cpu")
    assert policies.make_room("merged") and policies.layout == "adapters"
    assert policies.make_room("merged"), "there was room made since"
    assert not policies.make_room()
