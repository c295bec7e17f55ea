"""Bundles on disk: found by name or folder, checked byte by byte, loaded into an engine that answers."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from xflow_core.bundles.loading import load_engine
from xflow_core.bundles.manifest import EMBEDDED, MANIFEST, find_bundle, list_bundles, read_bundle
from xflow_core.domain.errors import BundleError, CallError
from xflow_core.domain.findings import FINDINGS
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import BoxesStep, PresenceStep, Trace
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.workflow.engine import Engine
from xflow_core.workflow.session import Session, answer


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load_engine("compact", "cpu")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the shipped bundle that may be damaged."""
    return Path(shutil.copytree(EMBEDDED / "compact", tmp_path / "copy"))


def change(folder: Path, **changes: object) -> None:
    data = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**data, **changes}))


def test_the_shipped_bundle_is_sound_small_and_says_what_it_is() -> None:
    bundle = find_bundle("compact")
    bundle.verify()
    assert set(bundle.findings) == set(FINDINGS)
    assert sum((bundle.folder / name).stat().st_size for name in bundle.files) < 40e6
    assert bundle.licences
    assert bundle.quality
    assert all(name.endswith(".safetensors") for name in bundle.files)
    assert json.loads((bundle.folder / MANIFEST).read_text())["notice"] == "not for clinical use"


def test_a_bundle_is_found_by_name_by_folder_and_in_the_variables_folders(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(copy, name="mine")
    assert find_bundle(str(copy)).name == "mine"
    copy.rename(copy.with_name("mine"))
    monkeypatch.setenv("XFLOW_BUNDLES", str(copy.parent))
    assert find_bundle("mine").folder == copy.with_name("mine")
    assert {bundle.name for bundle in list_bundles()} == {"mine", "compact"}


def test_an_unknown_bundle_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(BundleError, match="compact"):
        find_bundle("nonesuch")


def test_an_altered_file_is_named(copy: Path) -> None:
    path = copy / "segmenter.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(BundleError, match=r"segmenter\.safetensors"):
        load_engine(str(copy))


def test_a_missing_file_is_named(copy: Path) -> None:
    (copy / "revision.safetensors").unlink()
    with pytest.raises(BundleError, match=r"revision\.safetensors"):
        load_engine(str(copy))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": "xflow.bundle/99"}, "xflow.bundle/99"),
        ({"findings": ["pneumothorax"]}, "pneumothorax"),
        ({"findings": []}, "none at all"),
        ({"backend": "nonesuch"}, "nonesuch"),
        ({"files": {"../outside": "0"}}, "outside its folder"),
        ({"settings": {}}, "settings"),
        ({"files": {}}, "manifest"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused_in_one_sentence(copy: Path, changes: dict, words: str) -> None:
    change(copy, **changes)
    with pytest.raises(BundleError, match=words) as refused:
        load_engine(str(copy))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "xflow.bundle/1"}'])
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(BundleError):
        read_bundle(tmp_path)


def test_a_device_that_is_not_here_is_refused() -> None:
    import torch

    with pytest.raises(CallError):
        load_engine("compact", "tpu")
    if not torch.cuda.is_available():
        with pytest.raises(CallError, match="CUDA"):
            load_engine("compact", "cuda")


def count_surveys(engine: Engine) -> list[int]:
    """Grows by one at every pass of the survey network, the compact bundle's image encoder."""
    passes: list[int] = []
    network = engine.init_policy.survey.net  # type: ignore[attr-defined]
    network.register_forward_hook(lambda *_: passes.append(1))
    return passes


def test_the_image_is_encoded_once_whatever_is_asked(rg1: Path) -> None:
    engine = load_engine("compact", "cpu")
    passes = count_surveys(engine)
    image = engine.admit(read_radiograph(rg1))
    for finding in engine.findings:
        (instruction,) = parse_instruction(f"Segment the {finding}")
        session = Session(engine, image, instruction)
        list(session.run())
        verdicts = tuple(replace(v, present=True, confidence=None) for v in session.steps[1].verdicts)
        list(session.replace(1, PresenceStep(verdicts=verdicts)).run())
    assert len(passes) == 1


def test_a_verdict_against_the_models_own_is_answered_with_boxes_and_a_mask(engine: Engine, rg1: Path) -> None:
    image = engine.admit(read_radiograph(rg1))
    for finding in engine.findings:
        (instruction,) = parse_instruction(f"Segment the {finding}")
        session = Session(engine, image, instruction)
        list(session.run())
        verdicts = tuple(replace(v, present=True, confidence=None) for v in session.steps[1].verdicts)
        branch = session.replace(1, PresenceStep(verdicts=verdicts))
        list(branch.run())
        boxes = next(step for step in branch.steps if isinstance(step, BoxesStep))
        assert {box.region for box in boxes.boxes} == {v.region for v in verdicts}
        assert branch.trace().result.status == "present"


def test_a_loaded_trace_goes_on_exactly_as_the_live_one(engine: Engine, rg1: Path) -> None:
    image = engine.admit(read_radiograph(rg1))
    (instruction,) = parse_instruction("Segment the opacity")
    session = Session(engine, image, instruction)
    list(session.run())
    verdicts = tuple(replace(v, present=True, confidence=None) for v in session.steps[1].verdicts)
    live = session.replace(1, PresenceStep(verdicts=verdicts))
    list(live.run())
    for k in range(2, len(live.steps)):
        text = json.dumps(replace(live.trace(), steps=tuple(live.steps[:k]), result=None).to_json())
        again = Session.resume(engine, image, Trace.from_json(json.loads(text)))
        list(again.run())
        assert again.trace() == live.trace()


def test_two_findings_are_two_answers_on_one_image(engine: Engine, rg1: Path) -> None:
    image = engine.admit(read_radiograph(rg1))
    traces = [answer(engine, image, parse_instruction(f"Segment the {name}")[0]) for name in engine.findings]
    assert [trace.instruction.finding for trace in traces] == list(engine.findings)
    assert all(trace.result is not None and trace.result.status in ("present", "absent") for trace in traces)


def test_a_black_picture_accepted_against_the_guards_gives_no_nan(engine: Engine, rg1: Path) -> None:
    radiograph = read_radiograph(rg1)
    dark = replace(radiograph, values=np.zeros_like(radiograph.values), display=np.zeros_like(radiograph.display))
    image = engine.admit(dark, accept_image=True)
    assert any("blank" in warning for warning in image.radiograph.record.warnings)
    for finding in engine.findings:
        trace = answer(engine, image, parse_instruction(f"Segment the {finding}")[0])
        assert trace.result is not None
        assert "NaN" not in json.dumps(trace.to_json())
