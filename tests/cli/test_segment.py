"""The ``xflow`` command on real radiographs with the bundle that ships: files, words, JSON and exit statuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from xflow_core.cli.app import main
from xflow_core.domain.findings import FINDINGS
from xflow_core.domain.geometry import mask_iou
from xflow_core.domain.trace import Trace
from xflow_core.export.files import read_trace


class Ended:
    """How a call of the command ended."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def result(self) -> dict:
        return json.loads(self.out.splitlines()[-1])


@pytest.fixture
def xflow(capsys: pytest.CaptureFixture[str]):
    def call(*arguments: object) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Ended(int(ended.value.code or 0), said.out, said.err)

    return call


@pytest.fixture(scope="module")
def demo(rg1: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's output folder."""
    out = tmp_path_factory.mktemp("demo")
    with pytest.raises(SystemExit) as ended:
        main(["segment", str(rg1), "-i", "Segment the opacity", "-o", str(out)])
    assert not ended.value.code
    return out / "RG1_J2KI" / "opacity"


def one_line(text: str) -> bool:
    return text.count("\n") == 1 and text.startswith("xflow: ")


def test_the_demo_writes_trace_mask_and_overlay_of_the_images_size(demo: Path) -> None:
    trace = read_trace(demo / "trace.json")
    mask = np.asarray(Image.open(demo / "mask.png"))
    assert trace.result is not None
    assert trace.result.status == "present"
    assert mask.shape == trace.image.size == (1955, 1841)
    assert set(np.unique(mask)) == {0, 255}
    assert np.count_nonzero(mask) == trace.result.area_px
    assert trace.result.mask_file == "mask.png"
    assert Image.open(demo / "overlay.png").size[0] > 500


def test_the_trace_keeps_its_contract(demo: Path) -> None:
    data = json.loads((demo / "trace.json").read_text())
    assert data["schema"] == "xflow.trace/1"
    assert data["image"]["photometric"] == "MONOCHROME1"
    assert data["image"]["spacing_mm"] is None
    assert data["image"]["spacing_kind"] == "none"
    assert data["result"]["area_mm2"] is None
    assert data["instruction"]["finding"] == "opacity"
    assert data["bundle"]["backend"] == "compact"
    assert {"read", "stage1", "segmenter", "stage2", "total"} <= data["seconds"].keys()
    kinds = [step["kind"] for step in data["steps"]]
    assert kinds[:3] == ["lungs", "presence", "boxes"]
    assert kinds[-1] == "result"
    assert [step["index"] for step in data["steps"]] == list(range(len(kinds)))
    assert all(step["origin"] == "model" and "seconds" in step for step in data["steps"])
    assert Trace.from_json(data).to_json() == data


def test_the_same_call_gives_the_same_trace(demo: Path, rg1: Path, tmp_path: Path, xflow) -> None:
    xflow("segment", rg1, "-i", "Segment the opacity", "-o", tmp_path)
    assert read_trace(tmp_path / "RG1_J2KI" / "opacity" / "trace.json") == read_trace(demo / "trace.json")


def test_steps_are_said_in_words_with_the_paths_and_the_notice(rg1: Path, tmp_path: Path, xflow) -> None:
    ended = xflow("segment", rg1, "-i", "pls segment any opacty", "-o", tmp_path)
    assert ended.status == 0
    assert "understood: opacity" in ended.out
    assert "overlay.png" in ended.out
    assert "mask.png" in ended.out
    assert "not for clinical use" in ended.out


def test_json_ends_with_the_result_object(rg1: Path, tmp_path: Path, xflow) -> None:
    ended = xflow("segment", rg1, "-i", "Segment the opacity", "-o", tmp_path, "--json")
    assert ended.out.count("\n") == 1
    result = ended.result
    assert result["status"] == "present"
    assert result["exit_status"] == 0
    assert result["mask_file"] == "mask.png"
    assert (Path(result["folder"]) / "mask.png").is_file()
    assert result["results"][0]["finding"] == "opacity"
    assert result["notice"] == "not for clinical use"


def test_stage_one_alone_makes_no_click(rg1: Path, tmp_path: Path, xflow) -> None:
    xflow("segment", rg1, "-i", "Segment the opacity", "-o", tmp_path, "--stages", 1)
    kinds = [step.kind for step in read_trace(tmp_path / "RG1_J2KI" / "opacity" / "trace.json").steps]
    assert "click" not in kinds
    assert "mask" in kinds


def test_a_survey_asks_all_seven_and_states_what_the_bundle_cannot_answer(rg1: Path, tmp_path: Path, xflow) -> None:
    ended = xflow("segment", rg1, "--survey", "-o", tmp_path, "--json")
    assert ended.status == 0
    results = ended.result["results"]
    assert [result["finding"] for result in results] == list(FINDINGS)
    for result in results:
        assert result["status"] in ("present", "absent", "unsupported")
        trace = read_trace(Path(result["folder"]) / result["trace_file"])
        assert (Path(result["folder"]) / "mask.png").exists() == (result["status"] == "present")
        assert (trace.steps == ()) == (result["status"] == "unsupported")


def test_an_unsupported_finding_is_refused_by_name_before_any_image_is_read(tmp_path: Path, xflow) -> None:
    from xflow_core.bundles.manifest import find_bundle

    missing = sorted(set(FINDINGS) - set(find_bundle("compact").findings))
    for finding in missing:
        ended = xflow("segment", tmp_path / "none.dcm", "-i", f"Segment the {finding}", "-o", tmp_path / "out")
        assert ended.status == 2
        assert finding in ended.err
        assert one_line(ended.err)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-i", "Segment the pneumothorax"], "pneumothorax"),
        (["-i", "hello"], "cardiomegaly, pneumonia, atelectasis, opacity, consolidation, edema, effusion"),
        ([], "--survey"),
        (["-i", "Segment the opacity", "--survey"], "--survey"),
        (["-i", "Segment the opacity", "--bundle", "nonesuch"], "nonesuch"),
        (["-i", "Segment the opacity", "--device", "tpu"], "tpu"),
        (["-i", "Segment the opacity", "--stages", "3"], "--stages"),
        (["-i", "Segment the opacity", "--nonesuch"], "nonesuch"),
    ],
)
def test_a_wrong_call_is_one_line_and_status_2(
    arguments: list[str], words: str, rg1: Path, tmp_path: Path, xflow
) -> None:
    ended = xflow("segment", rg1, "-o", tmp_path / "out", *arguments)
    assert ended.status == 2
    assert words in ended.err
    assert one_line(ended.err)
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_a_file_is_refused(rg1: Path, tmp_path: Path, xflow) -> None:
    (tmp_path / "file").write_text("mine")
    ended = xflow("segment", rg1, "-i", "Segment the opacity", "-o", tmp_path / "file")
    assert ended.status == 2
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("content", [None, b"", b"not an image at all", b"\x89PNG\r\n\x1a\n"])
def test_an_image_that_cannot_be_read_is_one_line_and_status_3(content: bytes | None, tmp_path: Path, xflow) -> None:
    path = tmp_path / "chest.png"
    if content is not None:
        path.write_bytes(content)
    ended = xflow("segment", path, "-i", "Segment the opacity", "-o", tmp_path / "out")
    assert ended.status == 3
    assert "chest.png" in ended.err
    assert one_line(ended.err)
    assert not (tmp_path / "out").exists()


def test_a_leg_is_refused_with_the_reason_and_runs_when_accepted(pack: Path, tmp_path: Path, xflow) -> None:
    leg = pack / "dicom" / "real" / "RG3_J2KR.dcm"
    ended = xflow("segment", leg, "-i", "Segment the opacity", "-o", tmp_path)
    assert ended.status == 3
    assert one_line(ended.err)
    folder = tmp_path / "RG3_J2KR" / "opacity"
    refused = read_trace(folder / "trace.json")
    assert refused.result is not None
    assert refused.result.status == "refused"
    assert refused.steps == ()
    assert not (folder / "mask.png").exists()
    accepted = xflow("segment", leg, "-i", "Segment the opacity", "-o", tmp_path, "--accept-image")
    assert accepted.status in (0, 4)
    warnings = read_trace(folder / "trace.json").image.warnings
    assert any(warning.startswith("Run against the guards") for warning in warnings)


@pytest.mark.parametrize(
    "name",
    ["derived/study_lateral_m2_12bit.dcm", "real/vlut_04.dcm", "real/mlut_18.dcm"],
)
def test_what_is_no_frontal_radiograph_is_refused(name: str, pack: Path, tmp_path: Path, xflow) -> None:
    assert xflow("segment", pack / "dicom" / name, "-i", "Segment the opacity", "-o", tmp_path).status == 3


def test_a_leg_without_its_header_is_refused_by_its_picture(pack: Path, tmp_path: Path, xflow) -> None:
    from xflow_core.radiograph.reading import read_radiograph

    leg = read_radiograph(pack / "dicom" / "real" / "RG3_J2KR.dcm")
    Image.fromarray(leg.display).save(tmp_path / "plain.png")
    ended = xflow("segment", tmp_path / "plain.png", "-i", "Segment the opacity", "-o", tmp_path / "out")
    assert ended.status == 3


def test_of_several_images_the_highest_status_counts_and_the_others_are_answered(
    rg1: Path, tmp_path: Path, xflow
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    (tmp_path / "a" / "x.dcm").write_bytes(rg1.read_bytes())
    (tmp_path / "b" / "x.dcm").write_bytes(b"broken")
    out = tmp_path / "out"
    ended = xflow(
        "segment", tmp_path / "a" / "x.dcm", tmp_path / "b" / "x.dcm", "-i", "Segment the opacity", "-o", out, "--json"
    )
    assert ended.status == 3
    assert [result["status"] for result in ended.result["results"]] == ["present", "failed"]
    (made,) = out.iterdir()
    assert made.name.startswith("x-")


def test_the_same_picture_in_other_dresses_gives_the_same_mask(pack: Path, tmp_path: Path, xflow) -> None:
    folder = pack / "dicom" / "derived"
    names = [
        "m2_12bit",
        "m1_12bit_rle",
        "m2_12bit_j2k_lossless",
        "m2_12bit_jpeg_lossless_sv1",
        "m2_12bit_narrow_window",
        "m2_12bit_voilut_sequence",
        "m2_nospacing_implicit",
    ]
    files = [folder / f"{name}.dcm" for name in names]
    ended = xflow("segment", *files, "-i", "Segment the consolidation", "-o", tmp_path, "--json")
    results = ended.result["results"]
    assert len({result["status"] for result in results}) == 1
    masks = [np.asarray(Image.open(Path(r["folder"]) / r["mask_file"])) > 0 for r in results if r["mask_file"]]
    assert all(mask_iou(masks[0], mask) > 0.9 for mask in masks[1:])


def test_doctor_and_bundles_say_what_is_here(xflow) -> None:
    assert "ready." in xflow("doctor").out
    assert json.loads(xflow("doctor", "--json").out)["ready"] is True
    assert "compact" in xflow("bundles", "list").out
    shown = xflow("bundles", "show", "compact").out
    assert "not for clinical use" in shown
    assert "as the manifest says" in xflow("bundles", "verify", "compact").out
    assert xflow("bundles", "show", "nonesuch").status == 2


@pytest.mark.parametrize("module", ["xflow_core.domain.trace", "xflow_core.domain.instruction", "xflow_core.export"])
def test_the_light_rooms_load_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_and_version_load_no_torch() -> None:
    code = (
        "import sys\nfrom xflow_core.cli.app import main\n"
        "try:\n main(['--version'])\nexcept SystemExit:\n sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_a_terminal_without_the_characters_is_no_failure(pack: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "xflow_core.cli", "segment", str(pack / "dicom" / "derived" / "m2_12bit.dcm")]
    command += ["-i", "Segment the consolidation", "-o", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "m2_12bit" / "consolidation" / "trace.json").is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full")
def test_an_output_that_cannot_be_written_is_one_line(rg1: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "xflow_core.cli", "segment", str(rg1), "-i", "Segment the opacity"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run([*command, "-o", str(tmp_path)], stdout=full, stderr=subprocess.PIPE, check=False)
    assert ended.returncode == 4
    assert one_line(ended.stderr.decode())


def test_an_empty_output_name_is_refused(rg1: Path, xflow) -> None:
    ended = xflow("segment", rg1, "-i", "Segment the opacity", "-o", "")
    assert ended.status == 2
    assert one_line(ended.err)


def test_a_colour_picture_is_refused_and_runs_when_accepted(rg1: Path, tmp_path: Path, xflow) -> None:
    from xflow_core.radiograph.reading import read_radiograph

    grey = read_radiograph(rg1).display
    tinted = np.stack([grey, grey // 2, grey // 3], axis=-1)
    Image.fromarray(tinted).save(tmp_path / "tinted.png")
    call = ("segment", tmp_path / "tinted.png", "-i", "Segment the opacity", "-o", tmp_path / "out")
    refused = xflow(*call)
    assert refused.status == 3
    assert "colour" in refused.err
    assert xflow(*call, "--accept-image").status == 0
    warnings = read_trace(tmp_path / "out" / "tinted" / "opacity" / "trace.json").image.warnings
    assert any("colour" in warning for warning in warnings)


def test_a_finding_that_cannot_be_written_loses_no_other(rg1: Path, tmp_path: Path, xflow) -> None:
    (tmp_path / "RG1_J2KI").mkdir()
    (tmp_path / "RG1_J2KI" / "effusion").write_text("in the way")
    ended = xflow("segment", rg1, "-i", "effusion and opacity", "-o", tmp_path, "--json")
    assert ended.status == 2
    assert [(r["finding"], r["status"]) for r in ended.result["results"]] == [
        ("effusion", "failed"),
        ("opacity", "present"),
    ]


def test_a_wrong_call_with_json_still_ends_with_an_object(rg1: Path, tmp_path: Path, xflow) -> None:
    ended = xflow("segment", rg1, "-i", "hello", "-o", tmp_path, "--json")
    assert ended.status == 2
    assert ended.result["exit_status"] == 2
    assert ended.result["results"] == []


@pytest.mark.parametrize("compressed", [False, True])
def test_several_frames_are_refused_and_the_first_runs_when_accepted(
    compressed: bool, pack: Path, tmp_path: Path, xflow
) -> None:
    import pydicom
    from pydicom.uid import RLELossless

    dataset = pydicom.dcmread(pack / "dicom" / "derived" / "m2_12bit.dcm")
    first = dataset.PixelData
    dataset.PixelData = first + bytes(len(first))
    dataset.NumberOfFrames = 2
    if compressed:
        dataset.compress(RLELossless)
    dataset.save_as(tmp_path / "cine.dcm")
    call = ("segment", tmp_path / "cine.dcm", "-i", "Segment the consolidation", "-o", tmp_path / "out")
    refused = xflow(*call)
    assert refused.status == 3
    assert "2 frames" in refused.err
    assert xflow(*call, "--accept-image").status == 0
    single = pack / "dicom" / "derived" / "m2_12bit.dcm"
    xflow("segment", single, "-i", "Segment the consolidation", "-o", tmp_path / "out")
    folder = tmp_path / "out"
    two, one = (read_trace(folder / name / "consolidation" / "trace.json") for name in ("cine", "m2_12bit"))
    assert two.steps == one.steps
    assert any("2 frames" in warning for warning in two.image.warnings)
