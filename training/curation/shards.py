"""Sharded Parquet that can be gone on with: a shard is there whole or not at all, and equal input gives equal bytes.

A shard is made from a *piece* of what the stage before wrote: some rows of its Parquet files, the *drafts*. A *maker*
turns them into rows (looks up lungs, reads masks, runs models). It sees one piece at a time and nothing of the others,
so that it does not matter who makes which: this process, several of them, or actors on a Ray cluster
(:mod:`training.curation.ray_shards`). A shard that is there already is not made again. A row that cannot be made is
counted under its reason, in the shard itself; what could not be used on the way is named in ``problems/<shard>.jsonl``.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from training.curation.curate import progress
from training.curation.sources.problems import Problems
from xflow_core.domain.errors import CallError, EngineError, NotWritten
from xflow_core.export.files import write_whole

Row = dict[str, Any]

_DROPPED, _KEY = b"xflow.dropped", b"xflow.key"


class Maker(Protocol):
    """Turns drafts into rows. Each process has one, for all the pieces that it is given."""

    def rows(self, split: str, drafts: Iterator[Row]) -> Iterator[Row | str]:
        """The rows of a piece, in order; a reason instead of each one that cannot be made."""
        ...


@dataclass(frozen=True)
class Span:
    """The rows from ``start`` up to ``stop`` of a Parquet file."""

    path: Path
    start: int
    stop: int

    def rows(self) -> Iterator[Row]:
        """
        Raises:
            CallError: the file is not there, or damaged.
        """
        try:
            with pq.ParquetFile(self.path) as file:
                first = 0
                for group in range(file.num_row_groups):
                    count = file.metadata.row_group(group).num_rows
                    start, stop = max(self.start - first, 0), min(self.stop - first, count)
                    if start < stop:
                        yield from file.read_row_group(group).slice(start, stop - start).to_pylist()
                    first += count
        except (OSError, pa.ArrowInvalid) as problem:
            raise CallError(f"{self.path} cannot be read: {problem}; make it anew.") from None


@dataclass(frozen=True)
class Piece:
    """What a shard is made from. Its name is ``<split>-<number>``."""

    split: str
    number: int
    spans: tuple[Span, ...]

    @property
    def name(self) -> str:
        return f"{self.split}-{self.number:05d}"

    def drafts(self) -> Iterator[Row]:
        for span in self.spans:
            yield from span.rows()


@dataclass(frozen=True)
class Stage:
    """What the shards of a stage have in common, in whatever process they are made.

    make: builds the maker, which adds what it cannot use to the problems that it is given. It is sent to other
    processes, so it is a function or class of a module, or a ``partial`` of one. key: what the rows depend on
    (settings, inputs); a shard of another key is refused. gpu: a maker runs models that a GPU would serve.
    """

    folder: Path
    schema: pa.Schema
    make: Callable[[Problems], Maker]
    key: str
    gpu: bool = False

    def path(self, piece: Piece) -> Path:
        return self.folder / f"{piece.name}.parquet"

    def problems(self, piece: Piece) -> Path:
        return self.folder / "problems" / f"{piece.name}.jsonl"


class ShardWriter:
    """Makes shards of a stage, with a maker of its own."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._problems = stage, Problems()
        self._maker = stage.make(self._problems)

    def write(self, piece: Piece) -> None:
        """Make a piece's shard.

        Raises:
            XFlowError: a source is damaged, the models fail, or the shard cannot be written; there is no shard then.
        """
        stage, dropped, rows = self._stage, Counter[str](), []
        with self._problems.into(stage.problems(piece)):
            for made in self._maker.rows(piece.split, piece.drafts()):
                if isinstance(made, str):
                    dropped[made] += 1
                else:
                    rows.append(made)
        marks = {_DROPPED: json.dumps(dict(sorted(dropped.items()))).encode(), _KEY: stage.key.encode()}
        table = pa.Table.from_pylist(rows, schema=stage.schema.with_metadata(marks))
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        write_whole(stage.path(piece), buffer.getvalue())


@dataclass(frozen=True)
class Workers:
    """Who makes the shards: as many processes on this machine, or, with the address of a Ray cluster, its actors.

    processes: None is one on this machine, and as many as there is room for on a cluster.
    """

    processes: int | None = None
    ray: str | None = None

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--processes", type=int, help="how many make shards side by side (1; on a cluster, as many as it holds)"
        )
        parser.add_argument(
            "--ray", metavar="ADDRESS", help='make the shards on a Ray cluster; "local" starts one on this machine'
        )

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Workers:
        if arguments.processes is not None and arguments.processes < 1:
            raise CallError(f"--processes is at least 1, not {arguments.processes}.")
        return cls(arguments.processes, arguments.ray)

    def write(self, stage: Stage, pieces: Sequence[Piece]) -> Iterator[None]:
        """Make the shards of the pieces; yields after each of them, in their order on one machine."""
        if self.ray is not None:
            from training.curation.ray_shards import write_on_ray

            yield from write_on_ray(stage, pieces, self.ray, self.processes)
        elif (self.processes or 1) > 1 and len(pieces) > 1:
            yield from _write_in_processes(stage, pieces, min(self.processes or 1, len(pieces)))
        elif pieces:
            writer = ShardWriter(stage)
            for piece in pieces:
                writer.write(piece)
                yield


_stage: Stage | None = None
_writer: ShardWriter | None = None


def _write_in_processes(stage: Stage, pieces: Sequence[Piece], count: int) -> Iterator[None]:
    # Fresh interpreters: a copy of this one would share threads' locks with it.
    pool = ProcessPoolExecutor(count, get_context("spawn"), initializer=_begin, initargs=(stage,))
    try:
        yield from pool.map(_write, pieces)
    except BrokenProcessPool:
        raise EngineError(
            "A process that made shards was ended from outside, perhaps for lack of memory; the same command goes on "
            "where it stopped (with fewer --processes)."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(stage: Stage) -> None:
    global _stage
    _stage = stage


def _write(piece: Piece) -> None:
    """In a process of the pool. The maker is built at its first piece: an error there is then told as any other."""
    global _writer
    if _writer is None:
        assert _stage is not None
        _writer = ShardWriter(_stage)
    _writer.write(piece)


def write_shards(
    stage: Stage, by_split: Mapping[str, Sequence[Piece]], problems: Problems, workers: Workers | None = None
) -> tuple[dict[str, dict[str, int]], list[Row]]:
    """Make the shards that are not there yet.

    Returns:
        By split, counts of "rows" and "dropped: <reason>"; and a list of the shards for a manifest, with rows and hash.
        Both are of all shards, also of those that were there, as is what ``problems`` gets.

    Raises:
        CallError: a shard of another run is in the folder.
    """
    try:
        (stage.folder / "problems").mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise NotWritten(f"{stage.folder} cannot be made: {problem.strerror or problem}.") from None
    pieces = [piece for held in by_split.values() for piece in held]
    missing = []
    for piece in pieces:
        if stage.path(piece).is_file() and stage.problems(piece).is_file():
            _marks(stage, piece)
        else:
            missing.append(piece)
    for _ in progress((workers or Workers()).write(stage, missing), "shards", len(missing)):
        pass
    counts: dict[str, Counter[str]] = {split: Counter(rows=0) for split in by_split}
    shards: list[Row] = []
    for piece in pieces:
        path, counted = stage.path(piece), counts[piece.split]
        rows = pq.read_metadata(path).num_rows
        counted["rows"] += rows
        for reason, count in json.loads(_marks(stage, piece)[_DROPPED]).items():
            counted[f"dropped: {reason}"] += count
        shards.append({"file": path.name, "rows": rows, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()})
        problems.take(stage.problems(piece))
    return {split: dict(sorted(counted.items())) for split, counted in counts.items()}, shards


def _marks(stage: Stage, piece: Piece) -> Mapping[bytes, bytes]:
    """What a shard says of itself."""
    path = stage.path(piece)
    try:
        marks = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowInvalid) as problem:
        raise CallError(f"{path} cannot be read ({problem}); remove it and run this again.") from None
    if marks.get(_KEY, b"").decode() != stage.key:
        raise CallError(f"{path} is of another run; choose another folder or remove it.")
    return marks


def cut(split: str, paths: Iterable[Path], each: int) -> list[Piece]:
    """Pieces of ``each`` rows of some Parquet files, in their order; none goes from one file into the next."""
    spans = [
        Span(path, start, min(start + each, rows))
        for path in paths
        for rows in (pq.read_metadata(path).num_rows,)
        for start in range(0, rows, each)
    ]
    return [Piece(split, number, (span,)) for number, span in enumerate(spans)]


def told(
    title: str, counts: Mapping[str, Mapping[str, int]], problems: Problems, paper: Mapping[str, int] | None = None
) -> bytes:
    """A stage's report for people: rows by split, here and in the paper, drops by reason, problems by kind."""
    lines = [title, "Not for clinical use.", ""]
    for split, held in counts.items():
        beside = f" (the paper: {paper[split]:,})" if paper and split in paper else ""
        lines.append(f"{split}: {held['rows']:,} rows{beside}")
        lines += [f"    {count:,} x {name}" for name, count in sorted(held.items()) if name != "rows"]
    return ("\n".join([*lines, "", *problems.lines()]) + "\n").encode()
