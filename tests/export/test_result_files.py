"""Results on disk: whole or not at all, and under a name of their own."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from xflow_core.domain.errors import CallError, ValueRefused
from xflow_core.domain.trace import LungsStep, Result
from xflow_core.export import image_name, image_names, read_trace, write_mask, write_result, write_trace, write_whole

ROOT = Path(__file__).resolve().parents[2]


def in_a_process(code: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], env=environment, capture_output=True, text=True, check=False
    )


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# One file.


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "a.bin"
    write_whole(path, b"first")
    write_whole(path, b"second")
    assert snapshot(tmp_path) == {"a.bin": b"second"}


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_a_file_is_as_readable_as_any_other_file(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "a.bin", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.bin").stat().st_mode) == 0o640


def test_a_process_killed_while_writing_leaves_the_older_file(tmp_path):
    path = tmp_path / "a.bin"
    write_whole(path, b"older")
    code = (
        "import os, signal, sys; from xflow_core.export import write_whole\n"
        "os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_whole(sys.argv[1], b'newer')"
    )
    assert in_a_process(code, path).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"older"


FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"


def test_a_full_disk_is_one_sentence_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "a.bin"
    write_whole(path, b"older")
    code = FULL_DISK + (
        "import sys; from xflow_core.export import write_whole; from xflow_core.domain.errors import CallError\n"
        "try: write_whole(sys.argv[1], b'x' * 100_000)\n"
        "except CallError as problem: print(problem)"
    )
    ran = in_a_process(code, path)
    assert ran.stdout.startswith(f"{path} cannot be written: File too large"), ran.stderr
    assert snapshot(tmp_path) == {"a.bin": b"older"}


def test_a_missing_folder_is_one_sentence(tmp_path):
    with pytest.raises(CallError, match=r"a\.bin cannot be written: No such file or directory"):
        write_whole(tmp_path / "nowhere" / "a.bin", b"x")


def test_a_mask_is_an_8_bit_png_of_the_source_size(tmp_path):
    mask = np.zeros((30, 50), bool)
    mask[3:9, 20:40] = True
    write_mask(tmp_path / "mask.png", mask)
    with Image.open(tmp_path / "mask.png") as image:
        assert image.mode == "L" and image.size == (50, 30)
        assert np.array_equal(np.asarray(image), mask * np.uint8(255))
    with pytest.raises(ValueRefused, match="bool"):
        write_mask(tmp_path / "mask.png", mask.astype(float))


# Traces.


def test_a_trace_comes_back_as_it_was_written(tmp_path, effusion):
    write_trace(tmp_path / "trace.json", effusion)
    back = read_trace(tmp_path / "trace.json")
    assert back == effusion and back.seconds == effusion.seconds
    text = (tmp_path / "trace.json").read_text(encoding="utf-8")
    assert json.loads(text)["notice"] == "not for clinical use"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not JSON"),
        (b"lungs: right lung", "is not JSON"),
        (b"\x89PNG\r\n\x1a\n\x00\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "cannot be used as a trace: This is no xflow.trace/1 trace"),
        (b'{"schema": "xflow.trace/2"}', "its schema is 'xflow.trace/2'"),
        (b'{"schema": "xflow.trace/1"}', "not well formed"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence_with_its_file(tmp_path, content, words):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(CallError) as refused:
        read_trace(path)
    assert words in str(refused.value) and str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_a_missing_trace_says_so(tmp_path):
    with pytest.raises(CallError, match=r"trace\.json cannot be read: No such file"):
        read_trace(tmp_path / "trace.json")


@pytest.mark.parametrize("key", ["image", "instruction", "bundle", "steps"])
@pytest.mark.parametrize("value", [None, 3, "x", [1], {"a": 1}])
def test_a_damaged_trace_never_ends_in_another_error(tmp_path, effusion, key, value):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({**effusion.to_json(), key: value}), encoding="utf-8")
    with pytest.raises(CallError, match="cannot be used as a trace"):
        read_trace(path)


# Whole results.


def test_a_present_result_is_a_trace_a_mask_and_an_overlay(tmp_path, effusion, display):
    files = write_result(tmp_path / "image" / "effusion", effusion, display)
    assert sorted(snapshot(tmp_path)) == [
        f"image/effusion/{name}" for name in ("mask.png", "overlay.png", "trace.json")
    ]
    assert read_trace(files.trace) == effusion.with_mask_file("mask.png")
    assert np.array_equal(np.asarray(Image.open(files.mask)) == 255, effusion.steps[-1].mask.array)
    assert Image.open(files.overlay).mode == "RGB"


def test_an_absent_answer_takes_an_older_mask_away_and_leaves_other_files(tmp_path, effusion, no_effusion, display):
    folder = tmp_path / "effusion"
    write_result(folder, effusion, display)
    (folder / "notes.txt").write_text("the colleague's")
    files = write_result(folder, no_effusion, display)
    assert files.mask is None and read_trace(files.trace).result.mask_file is None
    assert sorted(snapshot(tmp_path)) == [f"effusion/{name}" for name in ("notes.txt", "overlay.png", "trace.json")]


def test_c26_a_failure_leaves_a_trace_that_says_so_and_no_picture(tmp_path, effusion, no_effusion, display):
    failed = replace(effusion, steps=effusion.steps[:2], result=Result("failed", message="The text did not parse."))
    files = write_result(tmp_path / "failed", failed)
    assert files.mask is None and files.overlay is None
    assert sorted(snapshot(tmp_path / "failed")) == ["trace.json"]
    absent = write_result(tmp_path / "absent", no_effusion, display)
    told = [json.loads(path.read_text(encoding="utf-8"))["result"] for path in (files.trace, absent.trace)]
    assert [(result["status"], result["present"]) for result in told] == [("failed", None), ("absent", False)]


def test_a_link_to_a_folder_stays_a_link(tmp_path, effusion, display):
    (tmp_path / "disk").mkdir()
    (tmp_path / "effusion").symlink_to(tmp_path / "disk")
    files = write_result(tmp_path / "effusion", effusion, display)
    assert (tmp_path / "effusion").is_symlink() and files.trace.is_file()


WRITE = (
    "import sys, numpy as np; from xflow_core.export import *; from xflow_core.domain.errors import CallError\n"
    "trace = read_trace(sys.argv[2])\n"
    "try: write_result(sys.argv[1], trace, np.zeros(trace.image.size, np.uint8))\n"
    "except CallError as problem: print(problem)"
)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_process_killed_between_two_files_leaves_the_older_result(tmp_path, effusion, no_effusion, display, at):
    folder = tmp_path / "out" / "effusion"
    write_result(folder, no_effusion, display)
    before = snapshot(folder)
    write_trace(tmp_path / "trace.json", effusion)
    code = (
        "import os, signal\nleft = [None] * " + str(at) + "\nsync = os.fsync\n"
        "def fsync(file):\n left.pop()\n if not left: os.kill(os.getpid(), signal.SIGKILL)\n sync(file)\n"
        "os.fsync = fsync\n"
    )
    assert in_a_process(code + WRITE, folder, tmp_path / "trace.json").returncode == -signal.SIGKILL
    assert snapshot(folder) == before
    write_result(folder, effusion, display)
    assert sorted(snapshot(folder)) == ["mask.png", "overlay.png", "trace.json"]


def test_a_full_disk_leaves_the_older_result_and_nothing_else(tmp_path, effusion, no_effusion, display):
    folder = tmp_path / "out" / "effusion"
    write_result(folder, no_effusion, display)
    before = snapshot(tmp_path / "out")
    write_trace(tmp_path / "trace.json", effusion)
    ran = in_a_process(FULL_DISK + WRITE, folder, tmp_path / "trace.json")
    assert "cannot be written: File too large" in ran.stdout, ran.stderr
    assert snapshot(tmp_path / "out") == before
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["effusion"]


def test_a_file_in_the_folders_place_is_refused(tmp_path, effusion, display):
    (tmp_path / "effusion").write_text("a file")
    with pytest.raises(CallError, match="is a file, and a result is a folder"):
        write_result(tmp_path / "effusion", effusion, display)
    assert snapshot(tmp_path) == {"effusion": b"a file"}


def test_an_unfinished_trace_is_not_written(tmp_path, effusion, display):
    with pytest.raises(ValueRefused, match="no result yet"):
        write_result(tmp_path / "effusion", replace(effusion, result=None), display)
    with pytest.raises(ValueRefused, match="no mask"):
        write_result(tmp_path / "effusion", replace(effusion, steps=effusion.steps[:-1]), display)
    with pytest.raises(ValueRefused, match="needs the displayed radiograph"):
        write_result(tmp_path / "effusion", effusion)
    assert not (tmp_path / "effusion").exists()


def test_undecodable_words_of_the_user_are_written_all_the_same(tmp_path, effusion, display):
    asked = replace(effusion.instruction, text=os.fsdecode(b"fluid \xff?"))
    files = write_result(tmp_path / "effusion", replace(effusion, instruction=asked), display)
    assert read_trace(files.trace).instruction == asked
    assert isinstance(read_trace(files.trace).steps[0], LungsStep)


# Names.


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("study/chest.dcm", "chest"),
        ("chest.NII.GZ", "chest"),
        ("chest.nii", "chest"),
        ("a.b.Jpeg", "a.b"),
        ("chest.dcm.png", "chest.dcm"),
        ("1.2.840.10008.5.1", "1.2.840.10008.5.1"),
        ("IM000001", "IM000001"),
        ("report.final", "report.final"),
        (".dcm", "_dcm"),
        ("..hidden.png", "_hidden"),
        ("con.png", "_con"),
        ('a<b>:"c|d?*.png', "a_b___c_d__"),
        ("tail. .png", "tail"),
        ("Thorax äöü 胸.tif", "Thorax äöü 胸"),
        ("/", "image"),
        (os.fsdecode(b"x\xff.png"), "x_"),
    ],
)
def test_an_image_is_named_after_its_file(path, name):
    assert image_name(path) == name


def test_equal_names_all_get_a_short_hash(tmp_path):
    names = image_names(
        [tmp_path / "a" / "x.dcm", tmp_path / "b" / "x.png", tmp_path / "y.png", tmp_path / "c" / "X.dcm"]
    )
    assert names[2] == "y" and len(set(names)) == 4
    for name in (names[0], names[1], names[3]):
        stem, _, digits = name.rpartition("-")
        assert stem.casefold() == "x" and len(digits) == 8 and int(digits, 16) >= 0


def test_one_file_given_twice_has_one_name(tmp_path):
    (tmp_path / "x.dcm").touch()
    assert image_names([tmp_path / "x.dcm", tmp_path / "." / "x.dcm"]) == ["x", "x"]


part = st.text(st.characters(exclude_characters="/"), min_size=1, max_size=60).filter(lambda name: name.strip("."))
paths = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), part | st.sampled_from(["x", "X", "é", "e\u0301", "con"]),
              st.sampled_from(["", ".dcm", ".png", ".nii.gz"])), max_size=12,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(paths, st.randoms())
def test_different_files_get_different_safe_names_whatever_the_order(given_paths, random):
    files = [f"/nowhere/{folder}/{name}{ending}" for folder, name, ending in given_paths]
    names = image_names(files)
    behind: dict[str, set[str]] = {}
    for file, name in zip(files, names, strict=True):
        behind.setdefault(name.casefold(), set()).add(file)
        assert name and not set(name) & set('/\\:*?"<>|\0') and name[0] != "." and name[-1] not in " ."
        assert len(name.encode()) <= 255
    assert all(len(sharing) == 1 for sharing in behind.values())
    order = list(range(len(files)))
    random.shuffle(order)
    assert image_names([files[i] for i in order]) == [names[i] for i in order]


def test_a_file_called_like_another_with_its_hash_keeps_a_name_of_its_own():
    first, second, _ = image_names(["/n/a/x.dcm", "/n/b/x.dcm", "/n/c/z.dcm"])
    names = image_names(["/n/a/x.dcm", "/n/b/x.dcm", f"/n/c/{first}.dcm", f"/n/c/{second}.png"])
    assert len(set(names)) == 4


def test_importing_export_loads_nothing_heavy():
    ran = in_a_process(
        "import sys, xflow_core.export\n"
        "print([name for name in ('torch', 'scipy', 'SimpleITK', 'pydicom') if name in sys.modules])"
    )
    assert ran.stdout.strip() == "[]", ran.stderr
