"""What a stopped or killed run leaves, and what ``--resume`` takes as done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from batch.tables import answers, rows_of, without_seconds
from phantom_backend import picture, write_manifest, write_picture
from radiograph.dresses import dataset, written

from xflow_core.export.files import read_trace

DISC = [(0.3, 0.5, 12.0)]
ASK = ("-i", "Segment the opacity")


def made(folder: Path, behaviours: list[str]) -> Path:
    for number, behaviour in enumerate(behaviours):
        # Different pictures, so that no two are the same file.
        write_picture(folder / f"{number}.png", [(0.3, 0.4 + number / 50, 12.0)], behaviour)
    return folder


def until(there: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


@pytest.fixture
def done(tmp_path: Path, xflow, seen) -> tuple[Path, Path]:
    """Three images and their finished run."""
    images, out = made(tmp_path / "images", ["answers"] * 3), tmp_path / "out"
    assert xflow("batch", images, *ASK, "-o", out).status == 0
    assert seen() == 3
    return images, out


def test_what_is_done_and_whole_is_not_asked_again(done: tuple[Path, Path], xflow, seen) -> None:
    images, out = done
    before = rows_of(out)
    assert xflow("batch", images, *ASK, "-o", out, "--resume").status == 0
    assert seen() == 0
    assert rows_of(out) == before


@pytest.mark.parametrize(
    "damage",
    ["mask cut short", "mask of another trace", "overlay gone", "trace cut short", "another image", "another trace"],
)
def test_what_is_not_whole_or_not_of_this_image_is_made_again(
    damage: str, done: tuple[Path, Path], xflow, seen
) -> None:
    images, out = done
    before = without_seconds(rows_of(out))
    folder = out / "1" / "opacity"
    if damage == "mask cut short":
        (folder / "mask.png").write_bytes((folder / "mask.png").read_bytes()[:60])
    elif damage == "mask of another trace":
        (folder / "mask.png").write_bytes((out / "2" / "opacity" / "mask.png").read_bytes())
    elif damage == "overlay gone":
        (folder / "overlay.png").unlink()
    elif damage == "trace cut short":
        (folder / "trace.json").write_bytes((folder / "trace.json").read_bytes()[:500])
    elif damage == "another trace":
        (folder / "trace.json").write_bytes((out / "2" / "opacity" / "trace.json").read_bytes())
    else:
        write_picture(images / "1.png", [(0.7, 0.5, 9.0)])
    assert xflow("batch", images, *ASK, "-o", out, "--resume").status == 0
    assert seen() == 1
    after = without_seconds(rows_of(out))
    assert (after == before) == (damage != "another image")
    assert read_trace(folder / "trace.json").image.sha256 == after[1]["image_sha256"]


def test_another_question_bundle_seed_or_version_is_not_done(
    done: tuple[Path, Path], phantom_bundle: str, xflow, seen
) -> None:
    images, out = done
    xflow("batch", images, "-i", "Segment the opacity in the left lung", "-o", out, "--resume")
    assert seen() == 3
    xflow("batch", images, "-i", "Segment the opacity in the left lung", "-o", out, "--resume", "--seed", 1)
    assert seen() == 3
    version = out / ".batch" / "version.json"
    version.write_text(json.dumps({"xflow_version": "0.0.0"}))
    xflow("batch", images, "-i", "Segment the opacity in the left lung", "-o", out, "--resume", "--seed", 1)
    assert seen() == 3
    try:
        write_manifest(Path(phantom_bundle), version="2")
        xflow("batch", images, "-i", "Segment the opacity in the left lung", "-o", out, "--resume", "--seed", 1)
    finally:
        write_manifest(Path(phantom_bundle))
    assert seen() == 3
    assert {row["bundle_version"] for row in rows_of(out)} == {"2"}


def test_a_failure_is_tried_again_and_a_refusal_is_not(tmp_path: Path, xflow, seen) -> None:
    images, out = made(tmp_path / "images", ["answers", "raises"]), tmp_path / "out"
    assert xflow("batch", images, *ASK, "-o", out).status == 4
    write_picture(images / "1.png", DISC)
    assert seen() == 2
    assert xflow("batch", images, *ASK, "-o", out, "--resume").status == 0
    assert seen() == 1
    assert [answer[2] for answer in answers(out)] == ["present", "present"]


def test_dicom_results_that_are_missing_are_written_without_asking_again(tmp_path: Path, xflow, seen) -> None:
    image, out = tmp_path / "x.dcm", tmp_path / "out"
    image.write_bytes(written(dataset(picture(DISC), StudyInstanceUID="1.2.3", SeriesInstanceUID="1.2.4")))
    assert xflow("batch", image, *ASK, "-o", out).status == 0
    seg = (out / "x" / "seg.dcm").read_bytes()
    xflow("batch", image, *ASK, "-o", out, "--resume")
    assert (out / "x" / "seg.dcm").read_bytes() == seg
    seen()
    for name, kept in (("sr.dcm", None), ("sr.dcm", 200), ("pr.dcm", 0), ("seg.dcm", 200), ("seg.dcm", -100)):
        file = out / "x" / name
        whole = file.read_bytes()
        file.unlink() if kept is None else file.write_bytes(whole[:kept])
        assert xflow("batch", image, *ASK, "-o", out, "--resume").status == 0
        assert seen() == 0
        assert file.stat().st_size > len(whole) - 100


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_leaves_a_table_of_what_it_reached_and_goes_on(
    number: int, status: int, tmp_path: Path, started, xflow, seen
) -> None:
    images, out = made(tmp_path / "images", ["answers", "takes a second", *["answers"] * 4]), tmp_path / "out"
    run = started("batch", images, *ASK, "-o", out, "--workers", 1)
    until(lambda: (tmp_path / "seen.txt").exists() and len((tmp_path / "seen.txt").read_text().splitlines()) == 2)
    os.killpg(run.pid, number)  # as a terminal does, the workers' process groups left out
    said, errors = run.communicate(timeout=120)
    assert run.returncode == status, errors
    assert "--resume" in errors
    # The image in work was brought to its end.
    assert answers(out) == [("0.png", "opacity", "present", None), ("1.png", "opacity", "present", None)]
    assert "2 of 6" in said
    assert not list(out.rglob("*.part"))
    assert seen() == 2
    assert xflow("batch", images, *ASK, "-o", out, "--resume").status == 0
    assert seen() == 4
    assert [answer[0] for answer in answers(out)] == [f"{number}.png" for number in range(6)]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_killed_run_loses_at_most_the_images_in_work_and_leaves_no_process(
    tmp_path: Path, started, xflow, seen
) -> None:
    images, out = made(tmp_path / "images", ["answers", "answers", "takes a second", "answers"]), tmp_path / "out"
    run = started("batch", images, *ASK, "-o", out, "--workers", 1)
    until(lambda: (tmp_path / "seen.txt").exists() and len((tmp_path / "seen.txt").read_text().splitlines()) == 3)
    workers = children(run.pid)
    assert len(workers) == 1
    run.kill()
    run.communicate(timeout=60)
    until(lambda: not alive(workers[0]))
    left_behind = out / "3" / ".opacity.0123456789ab.part"
    left_behind.mkdir(parents=True)
    (left_behind / "trace.json").write_text("{")
    assert seen() == 3
    assert xflow("batch", images, *ASK, "-o", out, "--resume").status == 0
    assert seen() <= 2
    assert [answer[2] for answer in answers(out)] == ["present"] * 4
    assert not list(out.rglob("*.part"))


@pytest.mark.skipif(sys.platform == "win32", reason="no such lock there")
def test_two_runs_do_not_write_to_one_folder(tmp_path: Path, xflow) -> None:
    import fcntl

    images, out = made(tmp_path / "images", ["answers"]), tmp_path / "out"
    (out / ".batch").mkdir(parents=True)
    with open(out / ".batch" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = xflow("batch", images, *ASK, "-o", out)
    assert ended.status == 2
    assert "Another batch" in ended.err


def children(pid: int) -> list[int]:
    """The processes that ``pid`` started (Linux and macOS)."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    return [child for child, parent in pairs if parent == pid]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    # Nobody may have collected it yet.
    return not (status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z")
