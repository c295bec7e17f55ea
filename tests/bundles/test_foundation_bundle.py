"""Foundation bundles: made from folders of weights, checked to the last array, refused with a sentence, and run by
every command through the same code as those of full size."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from foundation_bundle import tiny_bundle, tiny_models, tiny_parts
from meta_sam3 import as_metas
from PIL import Image
from safetensors.torch import load_file, save_file
from service.phantom_server import serving
from tiny_gemma import write_tiny_adapter, write_tiny_gemma
from tiny_sam3 import tiny_sam3

from xflow_core.batch.job import Settings, Task
from xflow_core.batch.processes import WorkerProcess
from xflow_core.bundles.loading import load_engine
from xflow_core.bundles.make import ModelSource, make_bundle
from xflow_core.bundles.manifest import MANIFEST, Bundle, read_bundle
from xflow_core.cli.app import main
from xflow_core.domain.errors import BundleError, CallError, XFlowError
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import BoxesStep, ClickStep, MaskStep, PresenceStep, Trace
from xflow_core.policies import medgemma_layouts
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.workflow.session import Session


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def bundle(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return tiny_bundle(tmp_path_factory.mktemp("bundles") / "tiny", models)


@pytest.fixture
def copied(models: Path, tmp_path: Path) -> Path:
    """The models in a folder of the test's own, to damage."""
    return Path(shutil.copytree(models, tmp_path / "models"))


@pytest.fixture(scope="module")
def picture(rg1: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real radiograph, small."""
    grey = Image.fromarray(read_radiograph(rg1).display).resize((230, 244))
    path = tmp_path_factory.mktemp("pictures") / "chest.png"
    grey.save(path)
    return path


def change(bundle: Bundle, folder: Path, **changes: object) -> Path:
    """The bundle's manifest with some keys changed, in another folder."""
    folder.mkdir()
    data = json.loads((bundle.folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**data, **changes}))
    return folder


def refused(call, words: str) -> None:
    with pytest.raises(XFlowError) as said:
        call()
    assert words in str(said.value)
    assert "\n" not in str(said.value)


# What a manifest says.


def test_the_manifest_says_what_the_bundle_is_made_of(bundle: Bundle, models: Path) -> None:
    assert bundle.backend == "foundation"
    assert bundle.preprocessing == "mimic-cxr-jpg"
    assert bundle.bases["language"].id == "google/medgemma-1.5-4b-it"
    assert bundle.bases["language"].revision == "0123abcd"
    assert bundle.bases["segmenter"].page == "https://huggingface.co/facebook/sam3"
    assert bundle.adapters["init"].towers == ("vision_tower",)
    assert bundle.settings["policies"]["answers"] == "transcript"
    assert bundle.quality == {"measured": "nothing yet"}
    assert any("MedGemma" in licence for licence in bundle.licences)
    assert [path.name for path in bundle.folder.iterdir()] == [MANIFEST]
    every = [name for model in bundle.models.values() for name in model.files]
    assert sum(name.endswith(".safetensors") for name in every) == 4
    assert not any(name.endswith((".bin", ".pt", ".py")) for name in every)


def test_weights_are_copied_into_the_bundle_when_asked(models: Path, copied: Path, tmp_path: Path) -> None:
    whole = tiny_bundle(tmp_path / "whole", copied, copy=True)
    shutil.rmtree(copied)
    moved = whole.folder.rename(tmp_path / "moved")
    read_bundle(moved).verify_models()


def test_models_are_found_by_id_where_they_were_downloaded(
    bundle: Bundle, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = tmp_path / "hub" / "models--google--medgemma-1.5-4b-it" / "snapshots" / "0123abcd"
    shutil.copytree(models / "language", hub)
    shutil.copytree(models / "segmenter", tmp_path / "mine" / "facebook" / "sam3")
    data = json.loads((bundle.folder / MANIFEST).read_text())
    for base in data["bases"].values():
        base["folder"] = "/nowhere"
    elsewhere = read_bundle(change(bundle, tmp_path / "elsewhere", bases=data["bases"]))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XFLOW_MODELS", str(tmp_path / "mine"))
    found = elsewhere.verify_models()
    assert found["language"] == hub
    assert found["segmenter"] == tmp_path / "mine" / "facebook" / "sam3"
    source = ModelSource(hub)
    assert source.named("?") == ("google/medgemma-1.5-4b-it", "0123abcd")


def test_metas_own_checkpoint_is_converted_into_the_bundle(models: Path, tmp_path: Path) -> None:
    model = tiny_sam3(seed=3)
    torch.save({"model": as_metas(model.state_dict())}, tmp_path / "sam3.pt")
    parts = replace(tiny_parts(models), segmenter=ModelSource(tmp_path / "sam3.pt"), segmenter_config=model.config)
    made = make_bundle(tmp_path / "tiny", "tiny", parts)
    assert made.bases["segmenter"].folder == "models/segmenter"
    assert made.bases["segmenter"].revision.startswith("sam3.pt, sha256 ")
    engine = load_engine(str(made.folder), "cpu")
    assert torch.equal(engine.segmenter._model.no_memory_embedding, model.no_memory_embedding)


# What is refused.


def test_a_missing_gated_base_names_the_page_of_its_terms(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    data = json.loads((bundle.folder / MANIFEST).read_text())
    data["bases"]["language"]["folder"] = "/nowhere"
    gone = change(bundle, tmp_path / "gone", bases=data["bases"])
    refused(lambda: load_engine(str(gone), "cpu"), "https://huggingface.co/google/medgemma-1.5-4b-it")


@pytest.mark.parametrize("role", ["language", "segmenter", "init", "revision"])
def test_an_altered_file_of_any_model_is_named(role: str, copied: Path, tmp_path: Path) -> None:
    made = tiny_bundle(tmp_path / "tiny", copied)
    (path,) = (copied / role).glob("*.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    refused(lambda: load_engine(str(made.folder), "cpu"), str(path))


@pytest.mark.parametrize("role", ["language", "segmenter", "init", "revision"])
def test_a_truncated_file_makes_no_bundle_and_loads_none(role: str, copied: Path, tmp_path: Path) -> None:
    made = tiny_bundle(tmp_path / "tiny", copied)
    (path,) = (copied / role).glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-100])
    refused(lambda: tiny_bundle(tmp_path / "again", copied), str(path))
    refused(lambda: load_engine(str(made.folder), "cpu"), str(path))
    assert not (tmp_path / "again").exists()


def test_an_adapter_for_another_base_is_named(bundle: Bundle, copied: Path, tmp_path: Path) -> None:
    config = copied / "init" / "adapter_config.json"
    config.write_text(
        json.dumps({**json.loads(config.read_text()), "base_model_name_or_path": "google/medgemma-4b-it"})
    )
    refused(lambda: tiny_bundle(tmp_path / "tiny", copied), "google/medgemma-4b-it")


@pytest.mark.parametrize("damage", ["lost", "more", "shape", "none"])
def test_an_adapter_that_does_not_fit_array_by_array_is_refused(damage: str, copied: Path, tmp_path: Path) -> None:
    path = copied / "revision" / "adapter_model.safetensors"
    weights = load_file(path)
    name = sorted(weights)[0]
    changed = {
        "lost": {k: v for k, v in weights.items() if k != name},
        "more": {**weights, "base_model.model.another.weight": weights[name].clone()},
        "shape": {**weights, name: weights[name][:1].clone()},
        "none": {},
    }[damage]
    save_file(changed, path)
    refused(lambda: tiny_bundle(tmp_path / "tiny", copied), "does not fit")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": "xflow.bundle/2"}, "xflow.bundle/2"),
        ({"preprocessing": "nonesuch"}, "nonesuch"),
        ({"settings": {}}, "settings"),
        ({"settings": {"segmenter": {"side": "big"}, "policies": {"answers": "transcript"}}}, "side"),
        ({"settings": {"segmenter": {"side": 112}, "policies": {"answers": "rhymes"}}}, "rhymes"),
        ({"bases": {}}, "language"),
        ({"bases": []}, "manifest"),
        ({"bases": {"language": {"id": "a/b"}}}, "manifest"),
        ({"adapters": {"third": {"id": "a", "revision": "1", "folder": ".", "files": {MANIFEST: "0"}}}}, "third"),
        ({"adapters": {"init": {"id": "a", "revision": "1", "folder": ".", "files": {"../x": "0"}}}}, "outside"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(bundle: Bundle, tmp_path: Path, changes: dict, words: str) -> None:
    folder = change(bundle, tmp_path / "changed", **changes)
    refused(lambda: load_engine(str(folder), "cpu"), words)


def test_pickles_and_code_are_refused(copied: Path, tmp_path: Path) -> None:
    weights = copied / "segmenter" / "model.safetensors"
    weights.rename(weights.with_name("sam3.pt"))
    refused(lambda: tiny_bundle(tmp_path / "tiny", copied), "sam3.pt")
    weights.with_name("sam3.pt").rename(weights)
    config = copied / "language" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "auto_map": {"AutoModel": "evil.Model"}}))
    refused(lambda: tiny_bundle(tmp_path / "tiny", copied), "auto_map")


def test_folders_that_were_exchanged_are_refused(models: Path, tmp_path: Path) -> None:
    parts = tiny_parts(models)
    for odd in (
        replace(parts, language=parts.segmenter, segmenter=parts.language),
        replace(parts, init_adapter=parts.language),
        replace(parts, language=ModelSource(tmp_path)),
    ):
        with pytest.raises(BundleError):
            make_bundle(tmp_path / "tiny", "tiny", odd)
        assert not any(tmp_path.iterdir())


def test_a_folder_that_is_there_is_not_written_over(bundle: Bundle, models: Path) -> None:
    with pytest.raises(CallError, match="already"):
        tiny_bundle(bundle.folder, models)


def test_a_device_that_is_not_here_is_said_before_anything_is_read(bundle: Bundle) -> None:
    for device, here in (("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available())):
        if not here:
            with pytest.raises(CallError, match=device.upper()):
                load_engine(str(bundle.folder), device)


def test_a_memory_layout_that_is_none_is_named(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFLOW_LAYOUT", "origami")
    refused(lambda: load_engine(str(bundle.folder), "cpu"), "origami")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [("XFLOW_LAYOUT", "nf4", "'nf4' does not run on mps"), ("XFLOW_DECODING", "captured", "which mps does not have")],
)
def test_what_mps_cannot_do_is_said_before_anything_is_read(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    """Said even where the models are not there at all. No MPS is at hand: that there is one is pretended."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    data = json.loads((bundle.folder / MANIFEST).read_text())
    data["bases"]["language"]["folder"] = "/nowhere"
    gone = change(bundle, tmp_path / "gone", bases=data["bases"])
    monkeypatch.setenv(variable, value)
    refused(lambda: load_engine(str(gone), "mps"), words)
    refused(lambda: load_engine("compact", "mps"), "not on mps")
    monkeypatch.delenv(variable)
    refused(lambda: load_engine(str(gone), "mps"), "not on this machine")


def test_no_code_is_fetched_from_the_hub_and_nothing_is_said_when_the_backend_is_imported(tmp_path: Path) -> None:
    """bitsandbytes would take compiled code from the hub at its import, by the package ``kernels``."""
    pytest.importorskip("bitsandbytes")
    (tmp_path / "kernels.py").write_text(
        "from pathlib import Path\n"
        "def get_kernel(*name, **version):\n"
        "    Path(__file__).with_name('fetched').touch()\n"
        "    raise OSError('no network')\n"
    )
    paths = [str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    ran = subprocess.run(
        [sys.executable, "-c", "import xflow_core.bundles.foundation_backend, sys; assert 'peft' in sys.modules"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not (tmp_path / "fetched").exists()


def test_a_machine_whose_memory_cannot_hold_the_policies_says_so(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(medgemma_layouts, "machine_memory", lambda: 100_000)
    refused(lambda: load_engine(str(bundle.folder), "cpu"), "run them on a GPU")


# What it answers.


def present(session: Session) -> Session:
    """The session with every verdict turned to present, run to its end."""
    list(session.run())
    verdicts = tuple(replace(v, present=True, confidence=None) for v in session.steps[1].verdicts)
    branch = session.replace(1, PresenceStep(verdicts=verdicts))
    list(branch.run())
    return branch


@pytest.fixture(scope="module")
def engine(bundle: Bundle):
    return load_engine(str(bundle.folder), "cpu")


def test_a_whole_run_encodes_the_image_once_for_the_segmenter(engine, picture: Path) -> None:
    passes: list[int] = []
    handle = engine.segmenter._model.vision_encoder.register_forward_hook(lambda *_: passes.append(1))
    image = engine.admit(read_radiograph(picture))
    branch = present(Session(engine, image, parse_instruction("Segment the opacity")[0]))
    handle.remove()
    kinds = {type(step) for step in branch.steps}
    assert {PresenceStep, BoxesStep, MaskStep} <= kinds
    assert len(passes) == 1


def test_a_loaded_trace_goes_on_exactly_as_the_live_one(engine, picture: Path) -> None:
    image = engine.admit(read_radiograph(picture))
    live = present(Session(engine, image, parse_instruction("Segment the effusion in the left lung")[0]))
    first = next(k for k, step in enumerate(live.steps) if isinstance(step, MaskStep))
    for k in (2, 3, first + 1, len(live.steps) - 1):
        text = json.dumps(replace(live.trace(), steps=tuple(live.steps[:k]), result=None).to_json())
        fresh = EncodedRadiograph(image.radiograph)
        again = Session.resume(engine, fresh, Trace.from_json(json.loads(text)))
        list(again.run())
        assert again.steps == live.steps


@pytest.fixture
def xflow(capsys: pytest.CaptureFixture[str]):
    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return call


def test_segment_runs_it(bundle: Bundle, picture: Path, tmp_path: Path, xflow) -> None:
    status, out, err = xflow(
        "segment", picture, "-i", "Segment the edema", "-o", tmp_path / "out", "--bundle", bundle.folder, "--json"
    )
    result = json.loads(out.splitlines()[-1])
    assert err == ""
    assert status == 0
    trace = json.loads((tmp_path / "out" / "chest" / "edema" / "trace.json").read_text())
    assert trace["bundle"]["backend"] == "foundation"
    assert trace["bundle"]["sha256"] == bundle.sha256
    assert trace["memory_layout"] == "adapters"
    assert result


def test_batch_runs_it(bundle: Bundle, picture: Path, tmp_path: Path, xflow) -> None:
    status, _, err = xflow(
        "batch", picture.parent, "-i", "Segment the edema", "-o", tmp_path / "out", "--bundle", bundle.folder
    )
    assert status == 0, err
    assert (tmp_path / "out" / "chest" / "edema" / "trace.json").is_file()


def test_batch_answers_several_at_a_time_as_one_at_a_time(bundle: Bundle, picture: Path, tmp_path: Path, xflow) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for number in range(3):
        Image.open(picture).rotate(number).save(images / f"{number}.png")
    found = []
    for together in (1, 3):
        out = tmp_path / str(together)
        status, _, err = xflow(
            "batch", images, "-i", "Segment the edema", "-o", out, "--bundle", bundle.folder, "--together", together
        )
        assert status in (0, 4), err
        traces = [json.loads((out / f"{k}" / "edema" / "trace.json").read_text()) for k in range(3)]
        found.append([[(step["kind"], step.get("text")) for step in trace["steps"]] for trace in traces])
    assert found[0] == found[1]


def test_a_worker_on_another_machine_takes_the_callers_layout(
    bundle: Bundle, picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through what is handed to it, not through its environment: a Ray worker has its own."""
    monkeypatch.delenv("XFLOW_LAYOUT", raising=False)
    called = Settings(tmp_path, str(bundle.folder), bundle.identity, device="cpu", layout="origami")
    worker = WorkerProcess(Settings.from_json(called.to_json()))
    task = Task(0, "chest.png", str(picture), "chest", parse_instruction("Segment the edema"))
    refused(lambda: worker.answer(task), "There is no memory layout 'origami'")
    worker.close()


def test_the_server_gives_the_same_answer(engine, picture: Path) -> None:
    (instruction,) = parse_instruction("Segment the edema")
    own = Session(engine, engine.admit(read_radiograph(picture)), instruction)
    list(own.run())
    with serving(engine) as served:
        client = served.client()
        (trace,) = client.run(client.upload(picture), instruction.text).finish()
    assert trace == own.trace()


def test_make_show_verify_and_doctor_by_command(models: Path, tmp_path: Path, xflow, monkeypatch) -> None:
    status, out, err = xflow(
        "bundles", "make", "mine", "-o", tmp_path / "bundles" / "mine",
        "--language", f"google/medgemma-1.5-4b-it@0123abcd={models / 'language'}",
        "--segmenter", models / "segmenter", "--init-adapter", models / "init",
        "--revision-adapter", models / "revision", "--side", 112, "--finding", "effusion",
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert "not for clinical use" in out
    monkeypatch.setenv("XFLOW_BUNDLES", str(tmp_path / "bundles"))
    status, out, err = xflow("bundles", "show", "mine")
    assert status == 0
    assert "google/medgemma-1.5-4b-it, revision 0123abcd" in out
    assert "with its own vision_tower" in out
    assert "nothing yet" in out
    status, out, _ = xflow("bundles", "verify", "mine")
    assert status == 0
    assert "all as the manifest says" in out
    assert "(foundation): sound, memory layout adapters (" in xflow("doctor")[1]
    merged = xflow("--layout", "merged", "doctor")[1]
    assert "(foundation): sound, memory layout merged (" in merged and "decoding plain" in merged
    assert "There is no memory layout 'origami'" in xflow("--layout", "origami", "doctor")[1]
    data = json.loads((tmp_path / "bundles" / "mine" / MANIFEST).read_text())
    data["bases"]["language"]["folder"] = "/nowhere"
    (tmp_path / "bundles" / "mine" / MANIFEST).write_text(json.dumps(data))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert "not on this machine" in xflow("bundles", "show", "mine")[1]
    status, _, err = xflow("bundles", "verify", "mine")
    assert status == 2
    assert err.count("\n") == 1
    (problem,) = [b["problem"] for b in json.loads(xflow("doctor", "--json")[1])["bundles"] if b["name"] == "mine"]
    assert "accept its terms" in problem


def test_a_zero_shot_bundle_asks_the_base_in_its_own_words(models: Path, picture: Path, tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "zero-shot", "zero-shot", tiny_parts(models, zero_shot=True))
    assert made.settings["policies"]["answers"] == "box_2d"
    assert not made.adapters
    engine = load_engine(str(made.folder), "cpu")
    image = engine.admit(read_radiograph(picture))
    branch = present(Session(engine, image, parse_instruction("Segment the opacity")[0]))
    assert branch.trace().result.status in ("present", "failed")
    assert not any(isinstance(step, ClickStep) for step in branch.steps)


def test_two_tiny_bundles_of_other_weights_answer_otherwise(models: Path, picture: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(models, tmp_path / "models"))
    for role in ("language", "init", "revision"):
        shutil.rmtree(other / role)
    write_tiny_gemma(other / "language", seed=5)
    for seed, role in enumerate(("init", "revision"), 7):
        write_tiny_adapter(other / role, other / "language", seed)
    lungs = []
    for folder in (models, other):
        engine = load_engine(str(tiny_bundle(tmp_path / f"b{len(lungs)}", folder).folder), "cpu")
        session = Session(engine, engine.admit(read_radiograph(picture)), parse_instruction("Segment the opacity")[0])
        lungs.append(next(session.run()))
    assert lungs[0] != lungs[1]
