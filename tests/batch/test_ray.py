"""``xflow batch --ray`` on a real local Ray: the rows of one machine, row for row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batch.tables import answers, rows_of, without_seconds
from phantom_backend import write_picture
from ray_here import ray_here

from training.__main__ import main
from xflow_core.batch.job import Job, Settings
from xflow_core.batch.run import run_batch
from xflow_core.bundles.manifest import find_bundle
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import BundleIdentity
from xflow_core.export.files import write_mask

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'xflow-core[ray]'")


def test_without_a_cluster_there_is_a_sentence(tmp_path: Path, xflow) -> None:
    if ray.is_initialized():
        pytest.skip("a cluster is running in this session already")
    write_picture(tmp_path / "x.png")
    ended = xflow("batch", tmp_path / "x.png", "-i", "opacity", "-o", tmp_path / "out", "--ray", "auto")
    assert ended.status == 2
    assert "ray start" in ended.err


@pytest.fixture(scope="session")
def cluster(phantom_bundle: str) -> Iterator[None]:
    """Ray, started once; its workers inherit the path on which the phantom's backend is."""
    with ray_here():
        yield


def test_the_rows_are_those_of_one_machine(cluster: None, tmp_path: Path, xflow) -> None:
    folder = tmp_path / "images"
    for number, behaviour in enumerate(["answers", "raises", "answers", "kills its process", "answers"]):
        write_picture(folder / f"{number}.png", [(0.3, 0.4 + number / 50, 12.0)], behaviour)
    (folder / "broken.dcm").write_bytes(b"no image")
    (folder / "list.csv").write_text(
        "image,study\n"
        + "".join(f"{name},{name[0]}\n" for name in ["4.png", "0.png", "1.png", "2.png", "3.png"])
        + "broken.dcm,b\n4.png,again\n"
    )
    ended = {}
    for where, options in (("here", ["--workers", 2]), ("there", ["--ray", "auto", "--workers", 2])):
        ended[where] = xflow(
            "batch", folder / "list.csv", "-i", "opacity and effusion", "-o", tmp_path / where, *options
        )
    assert (ended["here"].status, ended["there"].status) == (4, 4)
    here, there = (without_seconds(rows_of(tmp_path / where)) for where in ("here", "there"))
    assert len(here) == 14
    assert there == here
    assert [row["reason"] for row in here[::2]] == [None, None, "engine", None, "worker", "unreadable", None]
    for row in here:
        if row["present"]:
            files = [tmp_path / where / row["folder"] / "mask.png" for where in ("here", "there")]
            assert files[0].read_bytes() == files[1].read_bytes()


def test_a_stopped_run_goes_on(cluster: None, tmp_path: Path, phantom_bundle: str, xflow) -> None:
    folder, out = tmp_path / "images", tmp_path / "out"
    for number in range(4):
        write_picture(folder / f"{number}.png", [(0.3, 0.4 + number / 50, 12.0)])
    reached: list[int] = []
    settings = Settings(out, phantom_bundle, find_bundle(phantom_bundle).identity)
    run_batch(
        Job(str(folder), settings, parse_instruction("opacity"), workers=1, ray="auto"),
        started=lambda images: None,
        answered=lambda done: reached.append(done.position),
        stopping=lambda: len(reached) == 2,
    )
    before = rows_of(out)
    assert [row["position"] for row in before] == [0, 1]
    assert xflow("batch", folder, "-i", "opacity", "-o", out, "--ray", "auto", "--resume", "--workers", 2).status == 0
    after = rows_of(out)
    assert after[:2] == before
    assert [row["status"] for row in after] == ["present"] * 4


def test_more_workers_than_the_cluster_holds_are_refused(cluster: None, tmp_path: Path, xflow) -> None:
    write_picture(tmp_path / "x.png")
    call = ("batch", tmp_path / "x.png", "-i", "opacity", "-o", tmp_path / "out", "--ray", "auto")
    ended = xflow(*call, "--workers", 64)
    assert ended.status == 2
    assert "room for 2 workers" in ended.err
    ended = xflow(*call, "--device", "cuda")
    assert ended.status == 2
    assert "room for 0 workers" in ended.err
    assert not (tmp_path / "out").exists()


def test_a_bundle_that_the_cluster_lacks_ends_the_run_with_its_reason(
    cluster: None, tmp_path: Path, phantom_bundle: str
) -> None:
    image = write_picture(tmp_path / "x.png")
    settings = Settings(tmp_path / "out", phantom_bundle, BundleIdentity("phantom", "9", "phantom", "0" * 64))
    job = Job(str(image), settings, parse_instruction("opacity"), ray="auto")
    outcome = run_batch(job, started=lambda images: None, answered=lambda done: None)
    assert outcome.problem is not None
    assert outcome.exit_status == 2
    assert "another one here" in str(outcome.problem)
    assert answers(tmp_path / "out") == []


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Three radiographs with a disc each, asked for it as a whole and by its lung; the left lung holds none."""
    mask = np.zeros((200, 240), bool)
    mask[70:95, 60:85] = True
    write_mask(tmp_path / "truth.png", mask)
    lines = []
    for number in range(3):
        write_picture(tmp_path / f"{number}.png", [(0.3, 0.4 + number / 50, 12.0)])
        for where, level, present in (
            ("chest", "chest", True),
            ("right lung", "lung", True),
            ("left lung", "lung", False),
        ):
            place = "" if where == "chest" else f" in the {where}"
            lines.append({
                "id": f"{number}-{where.replace(' ', '_')}", "image": f"{number}.png", "finding": "opacity",
                "instruction": f"Segment the opacity{place}.", "regions": [where], "level": level,
                "mask": "truth.png" if present else None, "lungs": None, "source": "phantom",
            })  # fmt: skip
    (tmp_path / "set.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "set.jsonl"


def evaluated(questions: Path, bundle: str, out: Path, *options: str) -> dict[str, Any]:
    main(["evaluate", "--set", str(questions), "--bundle", bundle, "--out", str(out), *options])
    figures: dict[str, Any] = json.loads((out / "metrics.json").read_text())
    del figures["seconds_per_row"]
    return figures


def test_an_evaluation_on_the_cluster_measures_what_it_does_here(
    cluster: None, tmp_path: Path, phantom_bundle: str, questions: Path
) -> None:
    here = evaluated(questions, phantom_bundle, tmp_path / "here")
    assert 0 < here["gIoU"] < 1
    there = tmp_path / "there"
    on_ray = ("--ray", "auto", "--workers", "2", "--threads", "1")
    assert evaluated(questions, phantom_bundle, there, *on_ray, "--keep", str(tmp_path / "kept")) == here
    assert len(list((tmp_path / "kept" / "predictions").iterdir())) == here["n"]

    kept = there / "traces" / "0-chest.json"
    before = kept.stat().st_mtime_ns
    (there / "traces" / "2-left_lung.json").unlink()
    assert evaluated(questions, phantom_bundle, there, *on_ray, "--resume") == here
    assert kept.stat().st_mtime_ns == before, "only what is missing is asked again"
    assert "Not for clinical use" in (there / "report.html").read_text()


def test_a_row_that_the_cluster_could_not_answer_is_named_and_nothing_is_measured(
    cluster: None, tmp_path: Path, phantom_bundle: str, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_picture(tmp_path / "1.png", [(0.3, 0.4, 12.0)], "raises")
    with pytest.raises(SystemExit) as ended:
        evaluated(questions, phantom_bundle, tmp_path / "out", "--ray", "auto")
    assert ended.value.code == 4
    assert "1-chest" in capsys.readouterr().err
    assert not (tmp_path / "out" / "metrics.json").exists()
    # What was answered before stays, and the run goes on where the radiograph is whole again.
    write_picture(tmp_path / "1.png", [(0.3, 0.42, 12.0)])
    assert evaluated(questions, phantom_bundle, tmp_path / "out", "--ray", "auto", "--resume")["n"] == 9
