"""``xflow batch --ray`` on a real local Ray: the rows of one machine, row for row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from batch.tables import answers, rows_of, without_seconds
from phantom_backend import write_picture

from xflow_core.batch.job import Job, Settings
from xflow_core.batch.run import run_batch
from xflow_core.bundles.manifest import find_bundle
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import BundleIdentity

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
    """Ray with two CPUs, started once; its workers inherit the path on which the phantom's backend is."""
    for attempt in (1, 2, 3):
        try:
            ray.init(
                address="local",
                num_cpus=2,
                object_store_memory=200 * 2**20,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
            )
            break
        except Exception:  # Ray's own, and no kinder: on a busy machine a node may miss its 30 s to start
            ray.shutdown()
            if attempt == 3:
                raise
    yield
    ray.shutdown()


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
