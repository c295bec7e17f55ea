"""Shards made on a Ray cluster: Ray Data hands pieces to actors, each of which has a maker of its own.

An actor gets a GPU where the stage has models and the cluster has GPUs, else a CPU. Pieces go out and word comes back,
nothing more: an actor reads its drafts, and writes its shard, where the command that started the run would. So all
machines need XFlow's code and the bundle, and must see the data and the output folder under the same paths.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from training.curation.shards import Piece, ShardWriter, Span, Stage
from xflow_core import __version__
from xflow_core.batch.ray_cluster import connect
from xflow_core.domain.errors import CallError, EngineError, XFlowError

_PIECE, _ANSWER = "piece", "answer"


class ShardActor:
    """Makes the shards of pieces, in an actor of Ray's."""

    def __init__(self, stage: Stage, version: str) -> None:
        self._stage, self._version = stage, version
        self._writer: ShardWriter | None = None

    def __call__(self, batch: Any) -> Any:
        """``batch`` has a piece in each row; gives "" for each shard, or why the run must end."""
        import pyarrow as pa

        answers = []
        for text in batch[_PIECE].to_pylist():
            try:
                if self._version != __version__:
                    raise CallError(
                        f"A machine of the cluster has XFlow {__version__}, not {self._version}; install the same."
                    )
                if not self._stage.folder.is_dir():
                    raise CallError(f"A machine of the cluster does not see {self._stage.folder}.")
                self._writer = self._writer or ShardWriter(self._stage)
                self._writer.write(_piece(text))
                answers.append("")
            except XFlowError as problem:
                answers.append(json.dumps({"ending": str(problem), "exit_status": problem.exit_status}))
        return pa.table({_ANSWER: pa.array(answers, pa.string())})


def write_on_ray(stage: Stage, pieces: Sequence[Piece], address: str, actors: int | None) -> Iterator[None]:
    """Make the shards on the cluster at ``address``, as ``ray.init`` takes it ("local" starts one on this machine,
    "auto" is the one that this machine is in). Yields after each, in no order.

    Args:
        actors: how many; None for one a GPU, or, without GPUs or models, one a CPU.

    Raises:
        CallError: Ray is not installed, there is no cluster, or it has no room for so many actors.
        EngineError: a shard could not be made; ``exit_status`` is the cause's.
    """
    if not pieces:
        return
    ray = connect(address)
    import pyarrow as pa
    from ray.data import ActorPoolStrategy, DataContext

    kind, room = takes(ray.cluster_resources(), stage.gpu)
    if (actors or 1) > room:
        raise CallError(f"The cluster has {room} {kind}s, room for as many processes, not for {actors or 1}.")
    context = DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    blocks = [pa.table({_PIECE: [_text(piece)]}) for piece in pieces]
    answers = (
        ray.data.from_arrow(blocks)
        .map_batches(
            ShardActor,
            fn_constructor_args=(stage, __version__),
            batch_size=1,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=min(actors or room, len(pieces))),
            **{f"num_{kind.lower()}s": 1},
        )
        .iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
    )
    for block in answers:
        for text in block[_ANSWER].to_pylist():
            if text:
                ending = json.loads(text)
                problem = EngineError(ending["ending"])
                problem.exit_status = ending["exit_status"]
                raise problem
            yield


def takes(has: Mapping[str, float], gpu: bool) -> tuple[str, int]:
    """What each actor gets one of, and how many actors a cluster with these resources holds."""
    kind = "GPU" if gpu and has.get("GPU", 0) >= 1 else "CPU"
    return kind, int(has.get(kind, 0))


def _text(piece: Piece) -> str:
    spans = [(str(span.path.resolve()), span.start, span.stop) for span in piece.spans]
    return json.dumps([piece.split, piece.number, spans])


def _piece(text: str) -> Piece:
    split, number, spans = json.loads(text)
    return Piece(split, number, tuple(Span(Path(path), start, stop) for path, start, stop in spans))
