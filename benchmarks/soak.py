"""The service under load and faults, and whether it held; ``make soak`` puts the figures into docs/reliability.md.

    python -m benchmarks.soak [--bundle compact] [--clients 50] [--runs 20] [--kills 20] [--requests 2000] [--report F]

Each part uses real server processes, started as the desktop client starts them (:class:`LocalEngine`):

- load: so many clients at once, each with so many runs; every result is compared with the one that a single client got.
- memory: the resident memory of the server's process, over the runs of the load and more until the total.
- kills: the server is killed (SIGKILL) at a random step of a run; when the client knew, when the engine was back, and
  whether the trace is the same as without the kill.
- hostile: malformed or hostile requests (hypothesis); each must be met with 4xx and a reason, none with 5xx, and none
  may hang.
- slow: connections that stall in the middle of a head or a body; the server must close them and serve others meanwhile.

The exit status is 1 when something did not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from xflow_core import __version__
from xflow_core.domain.errors import XFlowError
from xflow_core.domain.trace import Trace
from xflow_core.service.client import Client, Image
from xflow_core.service.local import LocalEngine, Progress
from xflow_core.service.protocol import PROTOCOL, PROTOCOL_HEADER, ArrayImage, sha256_of

KNOWS_WITHIN = 2.0
"""Seconds in which a client must know that its server is gone."""
ANSWERS_WITHIN = 20.0
"""Seconds after which a request that has no answer counts as one that hangs."""
SENDS_WITHIN = 3.0
"""Seconds that this side may take to send a small request; a third of what the server waits for."""
GROWTH_ALLOWED = 0.05
"""Of the memory, between the second and the last fifth of all runs."""


@dataclass(frozen=True)
class Material:
    """What the soak asks: images, and sentences about them."""

    images: tuple[bytes | ArrayImage, ...]
    sentences: tuple[str, ...]

    def question(self, number: int) -> tuple[int, str]:
        """The image's number and the sentence of the ``number``-th question, all pairs in turn."""
        return number % len(self.images), self.sentences[number // len(self.images) % len(self.sentences)]

    def ask(self, client: Client, image: Image, sentence: str) -> tuple[Trace, ...]:
        return client.run(image, sentence).finish()


@dataclass
class Part:
    """What one part of the soak did: figures as they are printed, and what did not hold."""

    title: str
    figures: list[tuple[str, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def check(self, holds: bool, failure: str) -> None:
        if not holds:
            self.failures.append(failure)


def in_short(traces: Sequence[Trace]) -> str:
    """Traces as text that is equal for equal ones: all that they say but the seconds."""
    return " ".join(f"{trace.id}:{trace.result.status if trace.result else 'unfinished'}" for trace in traces)


def resident_mb(pid: int) -> float:
    """The resident memory of a process in MB."""
    if sys.platform == "linux":
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    listed = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], check=True, capture_output=True, text=True)
    return int(listed.stdout) * 1024 / 1e6


def load_and_memory(engine: LocalEngine, material: Material, clients: int, runs: int, total: int) -> list[Part]:
    """``clients`` at once with ``runs`` each, then single runs until there were ``total`` of them."""
    load = Part(f"{clients} clients x {runs} runs")
    client = engine.start()
    pid = engine.pid
    assert pid is not None
    images = [client.upload(image) for image in material.images]
    alone = {}
    answers: Counter[str] = Counter()
    start = time.perf_counter()
    for number in range(len(material.images) * len(material.sentences)):
        which, sentence = material.question(number)
        traces = material.ask(client, images[which], sentence)
        alone[which, sentence] = in_short(traces)
        answers.update(trace.result.status for trace in traces if trace.result is not None)
    single = (time.perf_counter() - start) / len(alone)
    load.check(not answers.keys() - {"present", "absent"}, f"not all questions had an answer: {dict(answers)}")

    memory: list[float] = []
    seconds: list[float] = []
    lock = threading.Lock()
    ready = threading.Barrier(clients + 1)

    def work(me: int) -> None:
        with Client(*engine.address()) as mine:
            ready.wait()
            for turn in range(runs):
                which, sentence = material.question(me * runs + turn)
                began = time.perf_counter()
                try:
                    answer = in_short(material.ask(mine, mine.upload(material.images[which]), sentence))
                    equal = answer == alone[which, sentence]
                    failure = "" if equal else f"client {me}, run {turn}: {answer} instead of {alone[which, sentence]}"
                except XFlowError as problem:
                    failure = f"client {me}, run {turn}: {type(problem).__name__}: {problem}"
                with lock:
                    seconds.append(time.perf_counter() - began)
                    memory.append(resident_mb(pid))
                    load.check(not failure, failure)

    threads = [threading.Thread(target=work, args=(me,)) for me in range(clients)]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - start
    load.check(len(seconds) == clients * runs, f"{clients * runs - len(seconds)} runs never ended")
    load.figures += [
        ("answers to the different questions", ", ".join(f"{n} {status}" for status, n in sorted(answers.items()))),
        ("runs, all equal to the single client's", f"{len(seconds) - len(load.failures)} of {clients * runs}"),
        ("errors", str(len(load.failures))),
        ("wall time", f"{took:.0f} s, {len(seconds) / took:.1f} runs a second"),
        ("one run with one client", f"{single:.3f} s"),
        ("one run among all, median and worst", f"{statistics.median(seconds):.2f} s, {max(seconds):.2f} s"),
    ]

    for number in range(total - len(memory)):
        which, sentence = material.question(number)
        in_short(material.ask(client, images[which], sentence))
        memory.append(resident_mb(pid))
    flat = Part(f"memory over {len(memory)} runs")
    fifth = max(len(memory) // 5, 1)
    early, late = statistics.median(memory[fifth : 2 * fifth]), statistics.median(memory[-fifth:])
    flat.figures += [
        ("server's resident memory, second fifth", f"{early:.0f} MB"),
        ("last fifth", f"{late:.0f} MB ({(late - early) / early:+.1%})"),
        ("peak", f"{max(memory):.0f} MB"),
    ]
    flat.check(late <= early * (1 + GROWTH_ALLOWED), f"the memory grew from {early:.0f} to {late:.0f} MB")
    return [load, flat]


def kills(engine: LocalEngine, told: list[tuple[float, Progress]], material: Material, times: int) -> Part:
    """SIGKILL in the middle of runs."""
    part = Part(f"server killed {times} times in the middle of a run")
    dice = random.Random(0)
    engine.start()
    images = [engine.upload(image) for image in material.images]
    whole: dict[tuple[int, str], tuple[str, int]] = {}
    for number in range(len(material.images) * len(material.sentences)):
        which, sentence = material.question(number)
        run = engine.run(images[which], sentence)
        steps = sum(1 for _ in run)
        whole[which, sentence] = in_short(run.traces), steps
    knew: list[float] = []
    back: list[float] = []
    equal = 0
    for number in range(times):
        which, sentence = material.question(number)
        expected, steps = whole[which, sentence]
        at = dice.randint(0, max(steps - 2, 0))
        run = engine.run(images[which], sentence)
        made = 0
        killed = 0.0
        told.clear()
        try:
            for _ in run:
                if made == at:
                    killed = time.monotonic()
                    assert engine.pid is not None
                    os.kill(engine.pid, signal.SIGKILL)
                made += 1
        except XFlowError as problem:
            part.failures.append(f"kill {number + 1}: {type(problem).__name__}: {problem}")
            continue
        # When the run's last steps were on their way before the kill, the next question brings the engine back.
        engine.health()
        knew.append(next(moment for moment, progress in told if progress.stage == "lost") - killed)
        back.append(next(moment for moment, progress in told if progress.stage == "ready") - killed)
        answer = in_short(run.traces)
        equal += answer == expected and made == steps
        part.check(answer == expected, f"kill {number + 1}: {answer} instead of {expected}")
        part.check(made == steps, f"kill {number + 1}: {made} steps instead of {steps}")
    part.figures.append(("sessions restored, each trace as without the kill", f"{equal} of {times}"))
    if knew:
        part.check(max(knew) <= KNOWS_WITHIN, f"the client knew only after {max(knew):.1f} s")
        part.figures += [
            ("the client knew after, median and worst", f"{statistics.median(knew):.3f} s, {max(knew):.3f} s"),
            ("the engine was back after, median and worst", f"{statistics.median(back):.1f} s, {max(back):.1f} s"),
        ]
    return part


# Hostile requests: bytes on a socket, so that nothing on this side mends them.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "BREW")
PATHS = (
    "/",
    "/runs",
    "/images/",
    "/capabilities",
    "/unload",
    "/health",
    "/../../etc/passwd",
    "/images/%00",
    "//x",
    "*",
)
HEADS = (
    "X: " + "x" * 100_000,
    "Content-Length: -1",
    "Content-Length: 1\r\nContent-Length: 2",
    "Transfer-Encoding: chunked\r\n\r\nZZ",
    "Expect: 200-ok",
    "Upgrade: websocket\r\nConnection: Upgrade",
    "A\0B: c",
    " folded: x",
)
NAMES = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=" :\r\n"), min_size=1, max_size=30
)


@dataclass(frozen=True)
class Hostile:
    """A request as bytes; ``sound`` when a server may answer it with success after all."""

    data: bytes
    what: str
    sound: bool = False


def request(method: str, path: str, headers: Mapping[str, str], body: bytes = b"", length: int | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join(lines).encode("utf-8", "replace") + b"\r\n\r\n" + body


@st.composite
def hostile_requests(draw: st.DrawFn, host: str, token: str, image: str, trace: dict) -> Hostile:
    good = {"Host": host, "Authorization": f"Bearer {token}", PROTOCOL_HEADER: str(PROTOCOL), "Connection": "close"}
    kind = draw(
        st.sampled_from(("noise", "path", "token", "host", "protocol", "json", "ask", "trace", "edit", "image", "head"))
    )
    if kind == "noise":
        return Hostile(draw(st.binary(min_size=1, max_size=200)) + b"\r\n\r\n", kind)
    if kind == "path":
        path = draw(st.sampled_from(PATHS) | NAMES.map(lambda name: f"/{name}"))
        method = draw(st.sampled_from(METHODS))
        known = path.split("?")[0].split("#")[0] in ("/health", "/capabilities", "/unload")
        return Hostile(request(method, path, good, draw(st.binary(max_size=50))), kind, sound=known)
    if kind == "token":
        wrong = draw(NAMES | st.just("") | st.just(token[:-1]) | st.just(f"{token}x"))
        return Hostile(request("GET", "/capabilities", {**good, "Authorization": f"Bearer {wrong}"}), kind)
    if kind == "host":
        name = draw(
            st.sampled_from(("example.org", "127.0.0.1.example.org", "", "[::1", "localhost@evil", "169.254.169.254"))
        )
        return Hostile(
            request("GET", draw(st.sampled_from(("/health", "/capabilities"))), {**good, "Host": name}), kind
        )
    if kind == "protocol":
        spoken = draw(st.sampled_from(("0", "-1", "99", "1.5", "x", "9" * 400, "")))
        return Hostile(request("GET", "/capabilities", {**good, PROTOCOL_HEADER: spoken}), kind)
    if kind == "json":
        body = draw(
            st.binary(max_size=200)
            | JSON.map(lambda value: json.dumps(value).encode())
            | st.sampled_from((b"[" * 100_000, b'{"a":' * 20_000, b"\xff\xfe", b"NaN", b'{"image": 1e999}'))
        )
        return Hostile(request("POST", "/runs", {**good, "Content-Type": "application/json"}, body), kind)
    if kind == "ask":
        ask = {"image": image, "instruction": "Segment the opacity", "stages": 2, "seed": 0}
        key = draw(st.sampled_from(("image", "instruction", "bundle", "stages", "seed", "accept_image")))
        ask[key] = draw(
            JSON.filter(lambda value: value != ask.get(key))
            | st.sampled_from(("0" * 64, "../../x", "x" * 10_000, -1, 2**70, 1e400, "pneumothorax", "no", "compact/.."))
        )
        # What is left out or merely unusual (a seed, a name) may be a sound question.
        return Hostile(request("POST", "/runs", good, json.dumps(ask).encode()), kind, sound=True)
    if kind in ("trace", "edit"):
        data = json.loads(json.dumps(trace))
        edit = None
        if kind == "trace":
            spoil(draw, data)
        else:
            k = draw(st.integers(-3, len(data["steps"]) + 3))
            step = draw(JSON | st.sampled_from(data["steps"]).map(lambda step: spoiled(draw, step)))
            edit = draw(st.sampled_from(({"replace": k, "step": step}, {"component": k, "mask": step, "revise": step})))
        body = json.dumps({"trace": data, "edit": edit}).encode()
        return Hostile(request("POST", "/runs", good, body), kind, sound=True)
    if kind == "image":
        data = draw(
            st.binary(max_size=300) | st.sampled_from((b"XFLOW ARRAY 1\n", b"\x89PNG\r\n\x1a\n", b"\0" * 128 + b"DICM"))
        )
        name = draw(st.sampled_from((sha256_of(data), "0" * 64, "A" * 64, "..", "%2e%2e%2f")))
        length = draw(st.sampled_from((None, 2**40)))
        return Hostile(request("PUT", f"/images/{name}", good, data, length), kind)
    header = draw(st.sampled_from(HEADS))
    return Hostile(f"POST /runs HTTP/1.1\r\nHost: {host}\r\n{header}\r\n\r\n".encode(), kind)


def spoil(draw: st.DrawFn, data: dict) -> None:
    """Change or take away one value somewhere in a JSON object."""
    here: dict | list = data
    while True:
        keys: Sequence = sorted(here) if isinstance(here, dict) else range(len(here))
        if not keys:
            return
        key = draw(st.sampled_from(keys))
        inner = here[key]
        if isinstance(inner, (dict, list)) and inner and draw(st.booleans()):
            here = inner
            continue
        if isinstance(here, dict) and draw(st.booleans()):
            del here[key]
        else:
            here[key] = draw(JSON)
        return


def spoiled(draw: st.DrawFn, data: dict) -> dict:
    data = json.loads(json.dumps(data))
    spoil(draw, data)
    return data


def exchange(address: tuple[str, int], data: bytes) -> bytes:
    """What the server answers to ``data``; empty when it closes without a word.

    On a machine so busy that this side takes seconds between connecting and sending, the server is right to close: then
    it is sent once more.
    """
    for _ in range(3):
        got = bytearray()
        start = time.monotonic()
        with socket.create_connection(address, timeout=ANSWERS_WITHIN) as connection:
            # A server may answer and close before all was sent.
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
            sent = time.monotonic() - start
            with contextlib.suppress(ConnectionError):
                while not is_whole(got) and (chunk := connection.recv(2**16)):
                    got += chunk
        if got or sent < SENDS_WITHIN:
            break
    return bytes(got)


def is_whole(answer: bytes) -> bool:
    """Whether an answer is there in its length; one without a length ends with the connection."""
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return bool(end) and length is not None and len(body) >= int(length[1])


def hostile(engine: LocalEngine, material: Material, number: int) -> Part:
    """``number`` requests that should not be."""
    part = Part(f"{number} malformed or hostile requests")
    client = engine.start()
    pid = engine.pid
    image = client.upload(material.images[0])
    (trace, *_) = material.ask(client, image, material.sentences[0])
    where = urlsplit(client.url)
    address = (where.hostname or "", where.port or 0)

    drawn: list[Hostile] = []

    @seed(0)
    @settings(
        max_examples=number,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(hostile_requests(where.netloc, engine.address()[1], image.sha256, trace.to_json()))
    def draw(sent: Hostile) -> None:
        drawn.append(sent)

    draw()

    def meet(sent: Hostile) -> tuple[str, float, str]:
        """The class of the status, the seconds, and what did not hold."""
        start = time.perf_counter()
        shown = f"{sent.what}: {sent.data[:400]!r}"
        try:
            answer = exchange(address, sent.data)
        except TimeoutError:
            return "none", ANSWERS_WITHIN, f"no answer within {ANSWERS_WITHIN:.0f} s to {shown}"
        took = time.perf_counter() - start
        status = answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.") else "closed"
        body = answer.partition(b"\r\n\r\n")[2]
        if status == "closed":
            # Bytes that are not even a whole head may find the door closed.
            return status, took, "" if sent.what == "noise" else f"closed without an answer: {shown}"
        holds = status[0] == "4" and b'"error":' in body
        holds = holds or (status[0] == "2" and sent.sound and b'"error_kind":"internal"' not in body)
        return f"{status[0]}xx", took, "" if holds else f"{answer[:300]!r} to {shown}"

    with ThreadPoolExecutor(16) as senders:
        met = list(senders.map(meet, drawn))
    statuses = Counter(status for status, _, _ in met)
    part.failures += [failure for _, _, failure in met if failure]
    part.check(engine.pid == pid, "the server did not survive")
    part.check(client.health().ready, "the server is not ready afterwards")
    again = material.ask(client, image, material.sentences[0])
    part.check(again == (trace,), "the server answers otherwise afterwards")
    part.figures += [
        ("requests sent", str(len(met))),
        ("4xx with a reason", str(statuses["4xx"])),
        ("2xx, for those that turned out sound", str(statuses["2xx"])),
        ("closed, for bytes that are no request", str(statuses["closed"])),
        ("5xx", str(statuses["5xx"])),
        ("hung", str(statuses["none"])),
        ("slowest answer", f"{max(took for _, took, _ in met):.2f} s"),
    ]
    return part


def slow(engine: LocalEngine, material: Material, connections: int, patience: float) -> Part:
    """Connections that stall; the server must serve others, and close them within ``patience`` s (0: not tried)."""
    part = Part(f"{connections} stalled and half-open connections")
    client = engine.start()
    image = client.upload(material.images[0])
    where = urlsplit(client.url)
    address = (where.hostname or "", where.port or 0)
    good = {"Host": where.netloc, "Authorization": f"Bearer {engine.address()[1]}", PROTOCOL_HEADER: str(PROTOCOL)}
    stalls = (
        b"",
        f"GET /health HTTP/1.1\r\nHost: {where.netloc}\r\nX-Slow: ".encode(),
        request("POST", "/runs", good, b'{"image": ', length=500),
        request("PUT", f"/images/{'0' * 64}", good, b"\x89PNG", length=10_000_000),
    )
    held: list[socket.socket] = []
    dripping: set[socket.socket] = set()
    start = time.monotonic()
    for number in range(connections):
        connection = socket.create_connection(address, timeout=ANSWERS_WITHIN)
        connection.sendall(stalls[number % len(stalls)])
        held.append(connection)
        if number // len(stalls) % 2:
            dripping.add(connection)
    healths = []
    for _ in range(20):
        began = time.perf_counter()
        client.health()
        healths.append(time.perf_counter() - began)
    began = time.perf_counter()
    material.ask(client, image, material.sentences[0])
    run_seconds = time.perf_counter() - began
    # Every second one goes on dripping, a byte at a time; the others have fallen silent.
    open_still = list(held)
    while open_still and time.monotonic() - start < patience:
        open_still = [connection for connection in open_still if not ended(connection)]
        for connection in open_still:
            if connection in dripping:
                with contextlib.suppress(OSError):
                    connection.send(b"x")
        time.sleep(0.5)
    took = time.monotonic() - start
    for connection in held:
        connection.close()
    part.check(max(healths) < 2.0, f"/health took {max(healths):.1f} s meanwhile")
    part.figures += [
        ("/health meanwhile, median and worst", f"{statistics.median(healths):.3f} s, {max(healths):.3f} s"),
        ("a run meanwhile", f"{run_seconds:.2f} s"),
    ]
    if patience:
        part.check(not open_still, f"{len(open_still)} of {connections} connections are open after {patience:.0f} s")
        part.figures.append(("all closed by the server after", f"{took:.0f} s" if not open_still else "never"))
    return part


def ended(connection: socket.socket) -> bool:
    """Whether the other end has closed; what it said before is read away."""
    connection.setblocking(False)
    try:
        while connection.recv(2**16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


# One soak from its parts.


@dataclass(frozen=True)
class Settings:
    """How much of each part, 0 to leave it out; the defaults are issue 5's."""

    clients: int = 50
    runs: int = 20
    total_runs: int = 2000
    kills: int = 20
    requests: int = 2000
    connections: int = 200
    patience: float = 120.0


def soak(
    bundle: str,
    material: Material,
    how: Settings,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Part]:
    """All parts in turn, each on a server of its own."""
    told: list[tuple[float, Progress]] = []

    def watch(progress: Progress) -> None:
        if progress.stage in ("lost", "ready"):
            told.append((time.monotonic(), progress))

    parts: list[Part] = []
    work: list[tuple[int, Callable[[LocalEngine], list[Part]]]] = [
        (how.clients, lambda engine: load_and_memory(engine, material, how.clients, how.runs, how.total_runs)),
        (how.kills, lambda engine: [kills(engine, told, material, how.kills)]),
        (how.requests, lambda engine: [hostile(engine, material, how.requests)]),
        (how.connections, lambda engine: [slow(engine, material, how.connections, how.patience)]),
    ]
    for number, do in work:
        if number == 0:
            continue
        engine = LocalEngine(bundles=[bundle], log=log, environment=environment, watch=watch)
        try:
            made = do(engine)
        except XFlowError as problem:
            made = [Part("the engine", failures=[str(problem)])]
        finally:
            engine.stop()
        for part in made:
            parts.append(part)
            say(in_words(part))
    return parts


def in_words(part: Part) -> str:
    lines = [f"\n{part.title}", *(f"  {name:52} {value}" for name, value in part.figures)]
    shown = part.failures[:10]
    lines += [f"  DID NOT HOLD: {failure}" for failure in shown]
    if len(part.failures) > len(shown):
        lines.append(f"  and {len(part.failures) - len(shown)} more of these")
    return "\n".join(lines)


def report(parts: Sequence[Part], command: str, how: Settings, machine: str) -> str:
    """The figures as docs/reliability.md has them."""
    lines = [f"Made by `{command}` with XFlow {__version__} on {machine}.", ""]
    if how != Settings():
        wanted = Settings()
        shorter = [f"{name} {value} instead of {getattr(wanted, name)}" for name, value in vars(how).items()]
        differing = [text for text in shorter if text.split()[1] != text.split()[-1]]
        lines += [f"This was a shortened run: {', '.join(differing)}.", ""]
    lines += ["| what | figure |", "|---|---|"]
    for part in parts:
        lines.append(f"| **{part.title}** | {'held' if not part.failures else f'{len(part.failures)} did not hold'} |")
        lines += [f"| {name} | {value} |" for name, value in part.figures]
    return "\n".join(lines) + "\n"


MARKS = ("<!-- soak: figures -->", "<!-- soak: end -->")


def write_report(path: Path, text: str) -> None:
    """Put the figures between the page's two marks; its words stay."""
    page = path.read_text(encoding="utf-8")
    before, _, rest = page.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    path.write_text(f"{before}{MARKS[0]}\n{text}{MARKS[1]}{after}", encoding="utf-8")


def radiographs() -> Material:
    """The demo's radiograph as its DICOM file and, at half its size, as an array; a sentence of each level."""
    from pydicom.data import get_testdata_file

    from xflow_core.radiograph.reading import read_radiograph

    path = get_testdata_file("RG1_J2KI.dcm", download=False)
    assert path is not None, "install pydicom-data (the demo extra)"
    half = ArrayImage(read_radiograph(path).values[::2, ::2], dense_is_bright=True)
    sentences = (
        "Segment the opacity",
        "Segment the effusion in the left lung",
        "Is there cardiomegaly?",
        "Segment the consolidation in the right lung base",
    )
    return Material((Path(path).read_bytes(), half), sentences)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default="compact")
    for name, value in vars(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--report", type=Path, help="a page to put the figures into, between its two marks")
    options = parser.parse_args()
    how = Settings(**{name: getattr(options, name) for name in vars(Settings())})
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "engine.log"
        parts = soak(options.bundle, radiographs(), how, log=log, say=lambda line: print(line, flush=True))
    if options.report is not None:
        machine = (
            f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        )
        write_report(options.report, report(parts, f"python -m benchmarks.soak {' '.join(sys.argv[1:])}", how, machine))
    held = not any(part.failures for part in parts)
    print("\nall held" if held else "\nNOT all held")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
