"""``xflow serve`` as a process, with the shipped compact bundle and a real radiograph."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from xflow_core.bundles.loading import load_engine
from xflow_core.bundles.manifest import find_bundle
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import BoxesStep, Mask, MaskStep, Trace
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.service.client import Client
from xflow_core.service.protocol import Listening
from xflow_core.workflow.engine import Engine
from xflow_core.workflow.session import Session, answer

COMMAND = [sys.executable, "-m", "xflow_core.cli", "serve"]
TEXT = "Segment the opacity"


@contextmanager
def process(*options: str) -> Iterator[tuple[subprocess.Popen[str], Listening]]:
    child = subprocess.Popen(
        [*COMMAND, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        yield child, Listening.from_json(json.loads(child.stdout.readline()))
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            assert pipe is not None
            pipe.close()


def client_of(listening: Listening) -> Client:
    client = Client(listening.url, Path(listening.token_file).read_text().strip(), timeout=60)
    deadline = time.monotonic() + 120
    while not client.health().ready:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return client


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load_engine("compact", "cpu")


def in_process(engine: Engine, path: Path, text: str) -> Trace:
    return answer(engine, engine.admit(read_radiograph(path)), parse_instruction(text)[0])


def test_the_process_answers_with_the_trace_that_is_made_in_process_and_ends_cleanly(engine: Engine, rg1: Path) -> None:
    with process() as (child, listening):
        assert listening.pid == child.pid
        assert listening.host == "127.0.0.1"
        token_file = Path(listening.token_file)
        if os.name == "posix":
            assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        with client_of(listening) as client:
            image = client.upload(rg1)
            (trace,) = client.run(image, TEXT).finish()
            expected = in_process(engine, rg1, TEXT)
            assert trace == expected
            assert trace.id == expected.id
            passes = client.capabilities().activity.encoder_passes
            boxes = trace.last(BoxesStep)
            edit = BoxesStep(boxes=boxes.boxes[:1])
            again = client.replace(image, trace, 2, edit).finish()[0]
            assert again.steps[:2] == trace.steps[:2]
            client.run(image, "Segment the effusion in the left lung").finish()
            found = client.capabilities()
            assert found.activity.encoder_passes == passes, "the image went through each encoder once"
            assert found.device == "cpu"
            assert found.bundles[0].identity == engine.identity
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
        assert not token_file.parent.exists()
        assert child.stderr is not None
        log = child.stderr.read()
        assert "POST /runs 200" in log
        assert image.sha256[:12] not in log
        assert "opacity" not in log


def test_every_replay_over_the_wire_is_the_replay_of_the_live_session(engine: Engine, rg1: Path) -> None:
    live = Session(engine, engine.admit(read_radiograph(rg1)), parse_instruction(TEXT)[0])
    list(live.run())
    with process() as (_, listening), client_of(listening) as client:
        image = client.upload(rg1)
        trace = client.run(image, TEXT).finish()[0]
        for k, step in enumerate(live.steps[:-1]):
            branch = live.replace(k, step)
            list(branch.run())
            assert client.replace(image, trace, k, step).finish() == (branch.trace(),)
        masks = [step for step in live.steps if isinstance(step, MaskStep)]
        grown = Mask.of(masks[-1].mask.array | masks[0].mask.array)
        branch = live.continue_from_mask(masks[-1].component, grown)
        list(branch.run())
        assert client.continue_from(image, trace, masks[-1].component, grown).finish() == (branch.trace(),)


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    with process("--with-parent", "--token-file", str(tmp_path / "token")) as (child, listening):
        assert listening.token_file == str(tmp_path / "token")
        if sys.platform == "linux":
            assert os.readlink(f"/proc/{child.pid}/fd/0") == os.devnull, "no library waits at the pipe (Windows)"
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(30) == 0
        assert (tmp_path / "token").exists(), "a token file that was named stays"


def ends(*options: str) -> tuple[int, str]:
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=120)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("xflow: ")]
    return done.returncode, line


def test_what_cannot_be_served_ends_with_one_line_and_a_status(tmp_path: Path) -> None:
    status, line = ends("--host", "0.0.0.0", "--token-file", str(tmp_path / "token"))
    assert (status, "--behind-proxy" in line) == (2, True)
    status, line = ends("--bundle", "nowhere")
    assert (status, "nowhere" in line) == (2, True)
    altered = tmp_path / "altered"
    shutil.copytree(find_bundle("compact").folder, altered)
    weights = next(altered.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0\0")
    status, line = ends("--bundle", str(altered))
    assert (status, weights.name in line) == (2, True)
