"""A real server in this process, on a real socket, with the phantom backend behind it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
from phantom import PhantomParts, phantom, phantom_engine

from xflow_core.service.client import Client
from xflow_core.service.protocol import ArrayImage, ServerLimits
from xflow_core.service.server import ServerProcess, ServeSettings, Service
from xflow_core.service.token_file import token_from
from xflow_core.service.worker import OfferedBundle
from xflow_core.workflow.engine import Engine

DISCS = [(0.25, 0.5, 12), (0.7, 0.3, 9), (0.75, 0.7, 10)]


def picture(discs: list[tuple[float, float, float]] | None = None) -> ArrayImage:
    """The phantom with the grain of a real picture, which the guards want to see."""
    values = phantom(DISCS if discs is None else discs).values
    grain = np.random.default_rng(1).uniform(-0.05, 0.05, values.shape).astype(np.float32)
    rows = np.linspace(0, 0.04, values.shape[0], dtype=np.float32)[:, None]
    return ArrayImage(values + grain + rows, dense_is_bright=True)


class GatedParts(PhantomParts):
    """The phantom's parts; each click waits until it is let through. ``asked``: the images of the clicks, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.gate = threading.Semaphore(0)
        self.at_the_gate = threading.Semaphore(0)
        self.closed = False

    def revise(self, image, instruction, component, masks, clicks, *, seed):  # type: ignore[no-untyped-def]
        self.asked.append(image.radiograph.record.sha256)
        if self.closed:
            self.at_the_gate.release()
            assert self.gate.acquire(timeout=60)
        return super().revise(image, instruction, component, masks, clicks, seed=seed)


@dataclass(frozen=True)
class Served:
    url: str
    token: str
    service: Service
    parts: GatedParts
    process: ServerProcess
    client: Callable[[], Client]


@contextmanager
def serving(
    engine: Engine | None = None,
    parts: GatedParts | None = None,
    limits: ServerLimits | None = None,
    idle_seconds: float | None = None,
    loads: list[str] | None = None,
    settings: ServeSettings | None = None,
) -> Iterator[Served]:
    parts = parts or GatedParts()
    engine = engine or engine_of(parts)

    def load() -> Engine:
        if loads is not None:
            loads.append("loaded")
        return engine

    settings = settings or ServeSettings(limits=limits or ServerLimits(), idle_seconds=idle_seconds)
    process = ServerProcess(settings, [OfferedBundle(engine.identity, engine.findings, load)])
    token = token_from(process.token_file)
    url = process.url.replace("0.0.0.0", "127.0.0.1")
    thread = threading.Thread(target=process.run, daemon=True)
    thread.start()
    with ExitStack() as clients:
        try:
            yield Served(
                url,
                token,
                process.service,
                parts,
                process,
                lambda: clients.enter_context(Client(url, token)),
            )
        finally:
            parts.closed = False
            parts.gate.release(1000)
            process.stop()
            thread.join(30)
    assert not thread.is_alive()


def engine_of(parts: GatedParts) -> Engine:
    plain, _ = phantom_engine()
    return Engine(plain.identity, plain.findings, init_policy=parts, revision_policy=parts, segmenter=parts)
