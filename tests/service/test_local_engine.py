"""An engine on this machine: started from any Python, watched, brought back after a crash, gone with its parent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from phantom import LUNG_BOXES
from phantom_backend import phantom_bundle
from service.phantom_server import picture

from xflow_core.domain.errors import CallError, EngineError
from xflow_core.domain.trace import BoxesStep, GroundedLung, LungsStep, Trace
from xflow_core.service.child import BoundedLog, check_protocols, check_python, default_log, engine_environment
from xflow_core.service.client import Client
from xflow_core.service.local import LocalEngine, Progress
from xflow_core.service.protocol import Health

IMAGE = picture()
SENTENCE = "Segment the opacity"

Start = Callable[..., LocalEngine]


@pytest.fixture
def told() -> list[tuple[float, Progress]]:
    return []


@pytest.fixture
def start(tmp_path: Path, told: list[tuple[float, Progress]]) -> Iterator[Start]:
    """Starts engines of the phantom, and ends them."""
    engines: list[LocalEngine] = []

    def started(*, port: int = 0, **settings: object) -> LocalEngine:
        temporary = tmp_path / "temporary"
        temporary.mkdir(exist_ok=True)
        engine = LocalEngine(
            bundles=["phantom"],
            port=port,
            log=tmp_path / "engine.log",
            environment={**phantom_bundle(tmp_path, **settings), "TMPDIR": str(temporary)},
            watch=lambda progress: told.append((time.monotonic(), progress)),
        )
        engines.append(engine)
        engine.start()
        return engine

    yield started
    for engine in engines:
        engine.stop()


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not yet waited for does not."""
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def until(holds: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def stages(told: list[tuple[float, Progress]]) -> list[str]:
    """The stages in order, each once as long as it lasts."""
    said = [progress.stage for _, progress in told]
    return [stage for k, stage in enumerate(said) if k == 0 or said[k - 1] != stage]


def test_an_engine_tells_how_far_it_is_until_it_answers_and_is_gone_when_stopped(
    start: Start, told: list[tuple[float, Progress]]
) -> None:
    engine = start()
    assert stages(told)[:2] == ["checking", "starting"]
    assert stages(told)[-1] == "ready"
    assert all(progress.message.endswith(".") or progress.stage == "loading" for _, progress in told)
    traces = engine.run(engine.upload(IMAGE), SENTENCE).finish()
    assert [trace.result.status for trace in traces if trace.result] == ["present"]
    pid = engine.pid
    assert pid is not None
    engine.stop()
    assert not alive(pid)
    assert not engine.running
    assert "lost" not in stages(told)
    with pytest.raises(EngineError, match="start it first"):
        engine.health()


def test_a_run_goes_on_after_its_engine_was_killed_and_its_trace_is_as_without_the_kill(
    start: Start, told: list[tuple[float, Progress]]
) -> None:
    engine = start(seconds_per_call=0.1)
    image = engine.upload(IMAGE)
    (whole,) = engine.run(image, SENTENCE).finish()
    told.clear()
    run = engine.run(image, SENTENCE)
    steps = []
    for step in run:
        steps.append(step)
        if len(steps) == 3:
            killed = time.monotonic()
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
    assert run.traces == (whole,)
    assert run.trace is not None and run.trace.id == whole.id
    assert tuple(steps) == whole.steps
    assert next(moment for moment, progress in told if progress.stage == "lost") - killed < 2.0
    assert engine.starts == 2
    # Nothing that the first engine had decided was computed again.
    assert engine.capabilities().activity.steps_made < len(whole.steps) - 2


def test_an_edit_and_a_sentence_of_two_findings_survive_a_kill_as_well(start: Start) -> None:
    engine = start(seconds_per_call=0.1)
    image = engine.upload(IMAGE)

    def killed_at(run: object, number: int) -> tuple[Trace, ...]:
        for made, _ in enumerate(run):  # type: ignore[arg-type]
            if made == number:
                assert engine.pid is not None
                os.kill(engine.pid, signal.SIGKILL)
        return run.traces  # type: ignore[attr-defined]

    two = "Segment the opacity and the effusion"
    whole = engine.run(image, two).finish()
    assert [trace.instruction.finding for trace in whole] == ["opacity", "effusion"]
    assert killed_at(engine.run(image, two), 2) == whole
    assert killed_at(engine.run(image, two), len(whole[0].steps) + 1) == whole

    boxes = whole[0].last(BoxesStep)
    edit = replace(boxes, boxes=boxes.boxes[:1])
    (edited,) = engine.replace(image, whole[0], 2, edit).finish()
    assert edited.branch_of is not None
    assert killed_at(engine.replace(image, whole[0], 2, edit), 1) == (edited,)
    assert edited.last(BoxesStep).origin == "user"
    assert engine.starts == 4


def test_an_engine_that_died_while_idle_is_noticed_at_once_and_back_at_the_next_call(
    start: Start, told: list[tuple[float, Progress]]
) -> None:
    engine = start()
    image = engine.upload(IMAGE)
    (before,) = engine.run(image, SENTENCE).finish()
    told.clear()
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    assert until(lambda: bool(told), 2.0)
    assert told[0][1].stage == "lost"
    assert "signal 9" in told[0][1].message
    assert not engine.running
    # A trace that was made before goes on in the new engine, which gets the image again.
    lungs = LungsStep(lungs=tuple(GroundedLung(label, box) for label, box in LUNG_BOXES.items()))
    (after,) = engine.replace(image, before, 0, lungs).finish()
    assert after.branch_of is not None and after.branch_of.trace == before.id
    assert engine.starts == 2


def test_a_step_that_ends_the_engine_once_is_made_by_the_next_one(start: Start) -> None:
    engine = start(crash_at="localise", crashes=1)
    (trace,) = engine.run(engine.upload(IMAGE), SENTENCE).finish()
    assert trace.result is not None and trace.result.status == "present"
    assert engine.starts == 2


def test_a_step_that_ends_the_engine_again_and_again_is_given_up_with_what_was_decided(start: Start) -> None:
    engine = start(crash_at="localise", crashes=99)
    run = engine.run(engine.upload(IMAGE), SENTENCE)
    with pytest.raises(EngineError, match="lost 3 times at the same place, after 2 steps"):
        run.finish()
    assert run.trace is not None
    assert [step.kind for step in run.trace.steps] == ["lungs", "presence"]


def test_an_engine_that_is_alive_but_deaf_is_replaced(start: Start) -> None:
    engine = start()
    image = engine.upload(IMAGE)
    deaf = engine.pid
    assert deaf is not None
    engine.start().timeout = 1.0
    os.kill(deaf, signal.SIGSTOP)
    (trace,) = engine.run(image, SENTENCE).finish()
    assert trace.result is not None and trace.result.status == "present"
    assert not alive(deaf)


def test_several_threads_that_lose_one_engine_start_one_new_one(start: Start) -> None:
    engine = start(seconds_per_call=0.05)
    image = engine.upload(IMAGE)
    (whole,) = engine.run(image, SENTENCE).finish()
    found: list[tuple[Trace, ...]] = []
    threads = [threading.Thread(target=lambda: found.append(engine.run(image, SENTENCE).finish())) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert found == [(whole,)] * 4
    assert engine.starts == 2


def test_cancelling_while_the_engine_is_gone_ends_the_run(start: Start) -> None:
    engine = start(seconds_per_call=0.1)
    run = engine.run(engine.upload(IMAGE), SENTENCE)
    next(run)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    run.cancel()
    assert len(list(run)) <= 1, "what had arrived, and no more"
    assert run.cancelled
    assert run.trace is not None and run.trace.result is None
    assert engine.starts == 1, "nobody asks for an engine any more"


def test_a_run_is_closed_from_another_thread(start: Start) -> None:
    engine = start(seconds_per_call=0.1)
    image = engine.upload(IMAGE)
    run = engine.run(image, SENTENCE)
    next(run)
    thread = threading.Thread(target=run.finish)
    thread.start()
    time.sleep(0.05)
    run.close()
    thread.join(5)
    assert not thread.is_alive()
    assert run.cancelled
    assert until(lambda: engine.capabilities().activity.runs_waiting == 0, 5)
    assert engine.starts == 1


def test_a_check_brings_a_lost_engine_back(start: Start) -> None:
    engine = start()
    image = engine.upload(IMAGE)
    before = engine.check(image)
    assert before.refused is None
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    assert engine.check(image) == before
    assert engine.starts == 2


def test_an_engine_that_somebody_else_stops_is_brought_back_in_the_middle_of_a_run(start: Start) -> None:
    engine = start(seconds_per_call=0.2)
    image = engine.upload(IMAGE)
    (whole,) = engine.run(image, SENTENCE).finish()
    run = engine.run(image, SENTENCE)
    next(run)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGTERM)
    assert run.finish() == (whole,)
    assert engine.starts == 2


def test_an_engine_can_be_stopped_while_it_starts(tmp_path: Path) -> None:
    starting = threading.Event()
    engine = LocalEngine(
        bundles=["phantom"],
        log=tmp_path / "log",
        environment=phantom_bundle(tmp_path),
        watch=lambda progress: starting.set() if progress.stage == "starting" else None,
    )
    ends: list[Exception] = []

    def begin() -> None:
        try:
            engine.start()
        except EngineError as problem:
            ends.append(problem)

    thread = threading.Thread(target=begin)
    thread.start()
    assert starting.wait(60)
    engine.stop()
    thread.join(30)
    assert "stopped while it started" in str(ends[0])
    assert not engine.running


PARENT = """
    import sys, time
    from pathlib import Path
    from xflow_core.service.local import LocalEngine
    engine = LocalEngine(bundles=["phantom"], log=sys.argv[1])
    engine.start()
    print(engine.pid, flush=True)
    if sys.argv[2] == "crash":
        import os
        os.abort()
    time.sleep(600)
"""


@pytest.mark.parametrize("end", ["killed", "crash", "interrupted"])
def test_no_engine_outlives_its_parent(end: str, tmp_path: Path) -> None:
    environment = phantom_bundle(tmp_path)
    program = textwrap.dedent(PARENT).replace("log=sys.argv[1])", "log=sys.argv[1], environment=dict(os.environ))")
    # A test run that was started in the background ignores ctrl-C, and hands that down.
    program = "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n" + program
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "engine.log"), end],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdout is not None
    with parent, parent.stdout:
        child = int(parent.stdout.readline())
        assert alive(child) or end == "crash"
        if end != "crash":
            parent.send_signal(signal.SIGKILL if end == "killed" else signal.SIGINT)
        parent.wait(30)
        assert until(lambda: not alive(child), 20)


def test_no_engine_outlives_a_parent_that_is_killed_while_it_starts(tmp_path: Path) -> None:
    program = """
        import os, sys
        from xflow_core.service.child import BoundedLog, EngineProcess
        child = EngineProcess(sys.executable, ["--bundle", "phantom"], BoundedLog(sys.argv[1]), dict(os.environ))
        print(child.pid, flush=True)
        os.kill(os.getpid(), 9)
    """
    parent = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "engine.log")],
        env=phantom_bundle(tmp_path),
        capture_output=True,
        text=True,
    )
    child = int(parent.stdout)
    assert until(lambda: not alive(child), 60)


TOO_SLOW = b'{"error": "The body came too slowly.", "kind": "slow"}'


@pytest.mark.parametrize(
    "first", [b"", b"HTTP/1.1 408 Request Timeout\r\nContent-Length: %d\r\n\r\n%s" % (len(TOO_SLOW), TOO_SLOW)]
)
def test_a_request_that_meets_a_closing_connection_or_was_too_slow_is_made_once_more(first: bytes) -> None:
    answer = Health("0.1.0", "ready", "ready").to_json()
    body = json.dumps(answer).encode()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for sent in (first, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)):
                connection, _ = server.accept()
                with connection:
                    connection.recv(2**16)
                    connection.sendall(sent)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with Client(f"http://127.0.0.1:{server.getsockname()[1]}", "token") as client:
            assert client.health().ready
        thread.join(10)


# What is said when it cannot be.


def test_a_python_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(CallError, match=r"There is no Python at .*no-such"):
        LocalEngine(tmp_path / "no-such", log=tmp_path / "log").start()


def test_a_file_that_is_no_program_is_said(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(CallError, match="cannot be run"):
        check_python(tmp_path / "text")


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands for a program that is no Python")
@pytest.mark.parametrize(
    ("prints", "sentence"),
    [
        ("hello", "is no Python that runs here"),
        ('{"python": [3, 9, 1], "xflow": null, "serves": false}', "is Python 3.9.1, and the engine needs 3.11"),
        ('{"python": [3, 12, 0], "xflow": null, "serves": false}', "XFlow is not installed for"),
        ('{"python": [3, 12, 0], "xflow": "0.0.1", "serves": false}', "XFlow 0.0.1 for .* is too old to serve"),
    ],
)
def test_an_environment_that_has_no_engine_is_said(prints: str, sentence: str, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho '{prints}'\n")
    program.chmod(0o755)
    with pytest.raises(CallError, match=sentence):
        check_python(program)


def test_a_real_python_without_xflow_is_said(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    python = tmp_path / "bare" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    with pytest.raises(CallError, match=r"XFlow is not installed for .*pip install"):
        check_python(python)


def test_a_port_that_is_taken_is_said(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EngineError, match=rf"port {port}.*Its log is"):
            start(port=port)


def test_an_unknown_bundle_is_said_in_the_engines_own_words(tmp_path: Path) -> None:
    engine = LocalEngine(bundles=["nothing"], log=tmp_path / "log", environment=dict(os.environ))
    with pytest.raises(EngineError, match="There is no bundle 'nothing'"):
        engine.start()
    assert not engine.running


def test_an_engine_of_another_protocol_is_met_with_a_sentence() -> None:
    with pytest.raises(EngineError, match="update XFlow on the client's side"):
        check_protocols([98, 99])
    with pytest.raises(EngineError, match="does not say which protocol"):
        check_protocols(None)


def test_what_the_watcher_raises_ends_the_start_and_the_child(tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    before = set(_children())
    pids = []

    def watch(progress: Progress) -> None:
        if progress.stage == "starting":
            pids.extend(int(pid) for pid in _children() if pid not in before)
            raise Enough

    engine = LocalEngine(bundles=["phantom"], log=tmp_path / "log", environment=phantom_bundle(tmp_path), watch=watch)
    with pytest.raises(Enough):
        engine.start()
    assert not engine.running
    assert not any(alive(pid) for pid in pids)


def _children() -> list[str]:
    tasks = Path("/proc/self/task")
    return [pid for task in tasks.glob("*/children") for pid in task.read_text().split()] if tasks.is_dir() else []


# The log and the environment.


def test_the_log_never_grows_beyond_its_bound(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "engine.log", max_bytes=1000)
    for number in range(500):
        log.write(f"line {number}".encode())
    log.write(b"x" * 5000)
    log.close()
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"engine.log", "engine.log.1"}
    assert all(size <= 1000 for size in sizes.values())


@pytest.mark.parametrize(
    ("platform", "variables", "place"),
    [
        ("linux", {"XDG_STATE_HOME": "/state"}, "/state/xflow/engine.log"),
        ("linux", {"XDG_STATE_HOME": ""}, "/home/me/.local/state/xflow/engine.log"),
        ("darwin", {"XDG_STATE_HOME": "/state"}, "/home/me/Library/Logs/XFlow/engine.log"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/XFlow/engine.log"),
        ("win32", {"LOCALAPPDATA": ""}, "/home/me/AppData/Local/XFlow/engine.log"),
    ],
)
def test_the_log_goes_where_the_system_keeps_such_files(
    platform: str, variables: dict[str, str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("USERPROFILE", "/home/me")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert default_log().as_posix() == place


def test_a_log_that_another_process_keeps_open_begins_anew_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(source: Path, target: Path) -> None:
        raise PermissionError(13, "as Windows says of a file that another process has open")

    monkeypatch.setattr(os, "replace", held)
    log = BoundedLog(tmp_path / "engine.log", max_bytes=100)
    for number in range(50):
        log.write(f"line {number}".encode())
    log.close()
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size <= 100
    assert file.read_text().endswith("line 49\n")


def test_a_log_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CallError, match=r"log .* cannot be written"):
        BoundedLog(tmp_path / "file" / "engine.log")


def test_the_engines_own_log_lines_are_kept_without_the_question(start: Start, tmp_path: Path) -> None:
    engine = start()
    engine.run(engine.upload(IMAGE), "Segment the opacity in the left lung").finish()
    engine.stop()
    log = (tmp_path / "engine.log").read_text()
    assert "serve --with-parent" in log
    assert "/runs" in log
    assert "left lung" not in log


def test_the_child_is_not_led_to_this_programs_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/slicer")
    monkeypatch.setenv("PYTHONPATH", "/slicer/lib")
    environment = engine_environment()
    assert "PYTHONHOME" not in environment
    assert "PYTHONPATH" not in environment
    assert environment["PYTHONSAFEPATH"] == "1"


@pytest.mark.skipif(sys.platform == "win32", reason="TMPDIR names the temporary folder of POSIX systems")
def test_the_token_file_of_a_killed_engine_does_not_stay(start: Start, tmp_path: Path) -> None:
    engine = start()
    (folder,) = (tmp_path / "temporary").glob("xflow-*")
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    assert until(lambda: not folder.exists(), 5)


def test_it_needs_neither_torch_nor_a_server_where_it_is_imported() -> None:
    heavy = "('torch', 'scipy', 'starlette', 'uvicorn', 'pydicom')"
    code = f"import sys, xflow_core.service.local; assert not [name for name in {heavy} if name in sys.modules]"
    subprocess.run([sys.executable, "-c", code], check=True)
