"""CXAS and CheXmask-U run by their documented commands. Stand-ins with the same command line take the tools' place:
neither is installed here, so what is tested is how they are called, and what is made of what they write."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest

from training.__main__ import main
from training.curation.instructions import write_instructions
from training.curation.lungs import CheXmaskU, Cxas, read_rows, write_lung_boxes
from training.curation.paper import read_settings
from training.curation.sources.layout import image_path
from training.curation.sources.problems import Problems
from xflow_core.domain.errors import CallError, EngineError
from xflow_core.domain.geometry import Box

if TYPE_CHECKING:
    from conftest import Miniature

# Rectangles in every picture of the folder, as `cxas_segment` stores them: one bit, at the picture's size.
CXAS = """
import argparse, pathlib
from PIL import Image
import numpy as np
p = argparse.ArgumentParser()
p.add_argument("-i", "--input"); p.add_argument("-o", "--output"); p.add_argument("-ot"); p.add_argument("-g")
a = p.parse_args()
assert a.ot == "png" and a.g == "cpu", a
for path in pathlib.Path(a.input).iterdir():
    width, height = Image.open(path).size
    folder = pathlib.Path(a.output) / path.stem
    folder.mkdir(parents=True)
    for label, (left, right) in {"right lung": (0.1, 0.45), "left lung": (0.55, 0.9), "heart": (0.4, 0.7)}.items():
        mask = np.zeros((height, width), bool)
        mask[height // 4 : height // 2, round(left * width) : round(right * width)] = True
        Image.fromarray(mask).convert("1").save(folder / f"{label}.png")
"""

# Outlines in CheXmask-U's own square; the drawn chests of the miniature have none of its black edges.
CHEXMASK_U = """
import argparse, pathlib, cv2
p = argparse.ArgumentParser()
p.add_argument("--n_samples"); p.add_argument("--weights_path", required=True)
p.add_argument("--skip_connections", action="store_true")
a = p.parse_args()
assert a.skip_connections and pathlib.Path(a.weights_path).is_file()
for path in pathlib.Path("Outputs/Images/FinalDatabase/Images").rglob("*.png"):
    assert cv2.imread(str(path), 0).shape == (1024, 1024)
    out = pathlib.Path("Outputs/Predictions/FinalDatabase")
    out.mkdir(parents=True, exist_ok=True)
    nodes = [(200 + 4 * k, 250 + 10 * k) for k in range(44)] + [(600 + 4 * k, 250 + 10 * k) for k in range(50)]
    nodes += [(500, 600)] * 26
    lines = [f"{k},{x + 0.2},{y - 0.2},1.0,1.0" for k, (x, y) in enumerate(nodes)]
    (out / f"{path.stem}.csv").write_text("Node,Mean x,Mean y,Std x,Std y\\n" + "\\n".join(lines) + "\\n")
"""


@pytest.fixture
def cxas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "cxas_segment"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{CXAS}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent))
    return program


def images_of(studies: list[dict[str, Any]]) -> dict[str, str]:
    return {s["dicom_id"]: image_path(s["subject"], s["study"], s["dicom_id"]) for s in studies}


def configured(tmp_path: Path, **lungs: str) -> Path:
    """A configuration whose lung boxes lie in the test's own folder."""
    import yaml

    data = yaml.safe_load(Path("training/configs/paper.yaml").read_text())
    data["sources"]["lung_boxes"] = str(tmp_path / "lung-boxes")
    data["lungs"] |= lungs
    path = tmp_path / "paper.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def test_cxas_is_called_as_its_page_says(tmp_path: Path) -> None:
    command = Cxas("cxas_segment", "1").command(tmp_path)
    seen, written = str(tmp_path / "in"), str(tmp_path / "out")
    assert command == ["cxas_segment", "-i", seen, "-o", written, "-ot", "png", "-g", "1"]


def test_chexmask_u_is_called_as_its_script_says(tmp_path: Path) -> None:
    command = CheXmaskU(Path("/c/HybridGNet/inferenceWithSampling.py"), Path("/w.pt"), "python3").command(tmp_path)
    script = "/c/HybridGNet/inferenceWithSampling.py"
    assert command == ["python3", script, "--skip_connections", "--weights_path", "/w.pt"]


def test_without_the_tools_one_sentence_says_what_to_do(
    drawn: Miniature, splits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CallError, match=r"^CXAS is not installed here .*pip install cxas.*lungs.source"):
        Cxas.found("0")
    with pytest.raises(CallError, match=r"^CheXmask-U is not at .*clone .*CheXmask-U.*lungs.source"):
        CheXmaskU.found(tmp_path, None, sys.executable)


def test_lung_boxes_by_cxas_go_into_the_rows(drawn: Miniature, splits: Path, tmp_path: Path, cxas: Path) -> None:
    config = configured(tmp_path, source="run")
    call = ["lungs", "--data", str(drawn.root), "--splits", str(splits), "--tool", "cxas", "--gpu", "cpu"]
    main([*call, "--batch", "20", "--config", str(config)])
    out = tmp_path / "lung-boxes"
    rows = read_rows(out)
    wanted = pq.read_table(splits / "radiographs.parquet")["dicom_id"].to_pylist()
    assert [row["dicom_id"] for row in rows] == sorted(wanted)
    without = {row["dicom_id"] for row in rows if row["lungs"] is None}
    problems = [json.loads(line) for line in (out / "problems.jsonl").read_text().splitlines()]
    assert without and without == {problem["record"] for problem in problems if problem["kind"].startswith("image_")}
    assert f"{len(rows) - len(without)} x radiographs with both lungs" in (out / "report.txt").read_text()
    assert cv2.imread(str(out / "examples.png")).std() > 20
    sizes = {study["dicom_id"]: study["size"] for study in drawn.studies}
    for row in rows:
        if row["lungs"] is not None:
            height, width = sizes[row["dicom_id"]]
            edges = (round(0.1 * width), height // 4, round(0.45 * width), height // 2)
            assert row["lungs"]["right lung"] == pytest.approx(Box.of_pixels(edges, (height, width)).to_json())

    # What is there is not made again; a stopped run goes on.
    last = sorted(out.glob("0*.jsonl"))[-1]
    kept, times = last.read_bytes(), [path.stat().st_mtime_ns for path in sorted(out.glob("0*.jsonl"))[:-1]]
    last.unlink()
    main([*call, "--batch", "20", "--config", str(config)])
    assert last.read_bytes() == kept
    assert [path.stat().st_mtime_ns for path in sorted(out.glob("0*.jsonl"))[:-1]] == times

    settings = read_settings(config)
    sources = settings.sources.under(drawn.root)
    (tmp_path / "rows").mkdir()
    report = write_instructions(sources, splits, tmp_path / "rows", settings, Problems(), masks=False)
    assert report["lung_source"] == rows[0]["source"] and report["lung_source"].startswith("cxas")
    made = [row for path in sorted((tmp_path / "rows").glob("*-0*.parquet")) for row in pq.read_table(path).to_pylist()]
    boxes = {row["dicom_id"]: row["lungs"] for row in rows}
    assert made and {row["lung_source"] for row in made} == {rows[0]["source"]}
    for row in made:
        assert {lung["label"]: pytest.approx(lung["box"]) for lung in row["lungs"]} == boxes[row["dicom_id"]]


def test_a_tool_that_fails_stops_the_run_with_its_last_words(
    drawn: Miniature, splits: Path, tmp_path: Path, cxas: Path
) -> None:
    cxas.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('RuntimeError: CUDA error: no device')")
    images = images_of(drawn.studies[:3])
    with pytest.raises(EngineError, match=r"^cxas.* failed \(.*cxas_segment -i .*\): RuntimeError: CUDA error"):
        write_lung_boxes(Cxas.found("cpu"), images, drawn.sources, tmp_path, Problems(), 5)
    assert not list(tmp_path.glob("*.jsonl"))


def test_lungs_by_chexmask_u_come_back_from_its_square(drawn: Miniature, tmp_path: Path) -> None:
    script = tmp_path / "clone" / "HybridGNet" / "inferenceWithSampling.py"
    script.parent.mkdir(parents=True)
    script.write_text(CHEXMASK_U)
    (tmp_path / "best.pt").write_bytes(b"weights")
    tool = CheXmaskU.found(tmp_path / "clone", tmp_path / "best.pt", sys.executable)
    broken = {flaw.get("study") for flaw in drawn.flaws}
    whole = [study for study in drawn.studies if study["study"] not in broken][:4]
    images = images_of(whole)
    out = tmp_path / "out"
    out.mkdir()
    counts = write_lung_boxes(tool, images, drawn.sources, out, Problems(), 3)
    assert counts == {"radiographs with both lungs": 4, "radiographs without": 0}
    for study, row in zip(whole, read_rows(out), strict=True):
        height, width = study["size"]
        grey = cv2.imread(str(drawn.sources.images / images[study["dicom_id"]]), 0) > 1
        rows, columns = np.flatnonzero(grey.any(1)), np.flatnonzero(grey.any(0))
        shape = (rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1)
        side = max(shape)
        scale = side / 1024
        left, top = columns[0] - (side - shape[1]) // 2, rows[0] - (side - shape[0]) // 2
        x1, y1, x2, y2 = row["lungs"]["right lung"]
        assert x1 * width == pytest.approx(200.2 * scale + left, abs=1)
        assert y1 * height == pytest.approx(249.8 * scale + top, abs=1)
        assert x2 * width == pytest.approx((200.2 + 4 * 43) * scale + left, abs=1.5)
        assert y2 * height == pytest.approx(min((249.8 + 430) * scale + top, height), abs=1.5)
        assert row["lungs"]["left lung"][0] > x1 and row["source"] == "chexmask-u, run"


def test_boxes_of_another_tool_are_not_gone_on_with(drawn: Miniature, tmp_path: Path) -> None:
    (tmp_path / "00000.jsonl").write_text(
        json.dumps({"dicom_id": drawn.studies[0]["dicom_id"], "lungs": None, "source": "other"}) + "\n"
    )
    images = images_of(drawn.studies[:1])
    with pytest.raises(CallError, match="of another run"):
        write_lung_boxes(Cxas("cxas_segment", "cpu"), images, drawn.sources, tmp_path, Problems(), 5)
