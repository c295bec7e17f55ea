"""The images of a batch: a folder, a glob, one file, or a CSV or Parquet list, written down once before the run starts.

The list in the run's own folder has a row group for each part of the table (:mod:`.table`), so that both are read side
by side. Of the input nothing but the paths is in memory, and those only until each has its name.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from xflow_core.domain.errors import CallError
from xflow_core.export.files import IMAGE_ENDINGS, image_names

from .table import PART_SIZE, SCHEMA, TABLE_FILE, write_tables

WORK_FOLDER = ".batch"
"""The run's own folder below the output: the list and the parts. It also marks an output as one."""

LIST_FILE = "list.parquet"

_LIST_ENDINGS = (".csv", ".parquet")
_OWN = pa.schema(
    [
        pa.field("xflow_image", pa.string()),
        pa.field("xflow_path", pa.binary()),  # a file system's names need not be UTF-8
        pa.field("xflow_instruction", pa.string()),
        pa.field("xflow_name", pa.string()),
    ]
)
_WITHOUT_NAME = _OWN.names[:-1]


@dataclass(frozen=True)
class ListedImage:
    """A row of the list: where it stands, the image as the input names it, its path, its folder among the results, and
    its own instruction if it has one."""

    position: int
    image: str
    path: str
    name: str
    instruction: str | None


class ImageList:
    """The list of a run on disk."""

    def __init__(self, path: Path) -> None:
        self._file = pq.ParquetFile(path)

    def __len__(self) -> int:
        return self._file.metadata.num_rows

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[ListedImage]:
        """The images from position ``start`` to before ``stop``."""
        stop = len(self) if stop is None else min(stop, len(self))
        while start < stop:
            group, skipped = divmod(start, PART_SIZE)
            wanted = min(PART_SIZE - skipped, stop - start)
            columns = self._file.read_row_group(group, columns=_OWN.names).slice(skipped, wanted).to_pydict()
            for image, path, instruction, name in zip(*(columns[name] for name in _OWN.names), strict=True):
                yield ListedImage(start, image, os.fsdecode(path), name, instruction)
                start += 1

    @property
    def carried_schema(self) -> pa.Schema:
        """The list's further columns. One that is called as a column of the table is carried as ``listed_..``."""
        return pa.schema([field for field in self._file.schema_arrow if field.name not in _OWN.names])

    def carried(self) -> Iterator[pa.Table]:
        """Their values, part by part."""
        names = self.carried_schema.names
        for group in range(self._file.num_row_groups):
            yield self._file.read_row_group(group, columns=names)

    def close(self) -> None:
        self._file.close()


def write_list(given: str, out: Path, target: Path) -> None:
    """Write down the images that the input names.

    Args:
        given: the input as typed.
        out: the output folder; what lies in it is no input.

    Raises:
        CallError: there is no such input, it names no image, or a list is not well formed; nothing was written.
        NotWritten: the list cannot be written.
    """
    path = Path(given)
    if path.is_dir():
        batches, schema = _of_paths(_in_folder(path, out)), pa.schema([])
    elif path.is_file() and path.suffix.lower() in _LIST_ENDINGS:
        batches, schema = (_of_csv if path.suffix.lower() == ".csv" else _of_parquet)(path)
    elif path.is_file():
        batches, schema = _of_paths([given]), pa.schema([])
    elif glob.has_magic(given):
        found = (name for name in sorted(glob.glob(given, recursive=True)) if os.path.isfile(name))
        batches, schema = _of_paths(name for name in found if not _inside(name, out)), pa.schema([])
    else:
        raise CallError(f"{given} does not exist; give a folder, a glob in quotes, or a CSV or Parquet list.")

    paths: list[str] = []
    unnamed = target.with_name(f"unnamed-{target.name}")

    def without_names() -> Iterator[pa.Table]:
        for table in _in_parts(batches):
            paths.extend(map(os.fsdecode, table["xflow_path"].to_pylist()))
            yield table

    fields = [_OWN.field(name) for name in _WITHOUT_NAME]
    write_tables(unnamed, pa.schema([*fields, *schema]), without_names())
    try:
        if not paths:
            raise CallError(f"{given} holds no image; DICOM, PNG, JPEG, TIFF, NIfTI, NRRD and MHA files are images.")
        names = folder_names(paths)
        del paths[:]
        with pq.ParquetFile(unnamed) as file:

            def with_names() -> Iterator[pa.Table]:
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group)
                    own = names[group * PART_SIZE : group * PART_SIZE + table.num_rows]
                    yield table.append_column(_OWN.field("xflow_name"), pa.array(own, pa.string()))

            write_tables(target, pa.schema([*fields, *schema, _OWN.field("xflow_name")]), with_names())
    finally:
        unnamed.unlink(missing_ok=True)


def folder_names(paths: list[str]) -> list[str]:
    """A folder for each row: named as ``xflow segment`` does, and, of a file that is listed again, by the row too."""
    names = image_names(paths)
    seen: Counter[str] = Counter()
    for place, (path, name) in enumerate(zip(paths, names, strict=True)):
        seen[name] += 1
        if seen[name] > 1 or name.casefold() == TABLE_FILE:
            again = hashlib.sha256(f"{path}\n{seen[name]}".encode("utf-8", "surrogatepass")).hexdigest()
            names[place] = f"{name}-{again[:12]}"
    return names


def is_image(path: str) -> bool:
    """Whether a file of a folder is taken for an image: by its ending, or by its first bytes, since DICOM files often
    have none. Whether it can be read turns out later."""
    name = os.path.basename(path)
    if name.lower().endswith(IMAGE_ENDINGS):
        return True
    if name.upper() == "DICOMDIR":
        return False
    try:
        with open(path, "rb") as file:
            head = file.read(132)
    except OSError:
        return False
    return head[128:] == b"DICM" or head.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*"))


def _in_folder(folder: Path, out: Path) -> Iterator[str]:
    """The image files at any depth, in the order of their names; nothing hidden, and no results of XFlow's."""
    results = os.path.realpath(out)
    for parent, folders, files in os.walk(folder, onerror=_unreadable):
        if "trace.json" in files or WORK_FOLDER in folders:
            folders.clear()
            continue
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(os.path.join(parent, name)) != results
        )
        for name in sorted(files):
            path = os.path.join(parent, name)
            if not name.startswith(".") and is_image(path):
                yield path


def _unreadable(problem: OSError) -> None:
    raise CallError(f"The folder {problem.filename} cannot be read ({problem.strerror}); check its permissions.")


def _inside(path: str, folder: Path) -> bool:
    return os.path.realpath(path).startswith(os.path.join(os.path.realpath(folder), ""))


def _of_paths(paths: Iterable[str]) -> Iterator[pa.Table]:
    batch: list[str] = []
    for path in paths:
        batch.append(path)
        if len(batch) == PART_SIZE:
            yield _table(batch, batch, None)
            batch = []
    yield _table(batch, batch, None)


def _of_csv(path: Path) -> tuple[Iterator[pa.Table], pa.Schema]:
    """The rows of a CSV list; its columns stay text, as they are written."""
    with _open_csv(path) as file:
        header = next(_rows(path, file), [])
    _check_columns(path, header)
    further = _further(header)

    def batches() -> Iterator[pa.Table]:
        with _open_csv(path) as file:
            rows = _rows(path, file)
            next(rows)
            batch: list[list[str]] = []
            for row in rows:
                if len(row) != len(header):
                    raise CallError(f"{path}: a row has {len(row)} fields, and the header {len(header)}: {row[:1]}.")
                batch.append(row)
                if len(batch) == PART_SIZE:
                    yield made(batch)
                    batch = []
            yield made(batch)

    def made(batch: list[list[str]]) -> pa.Table:
        columns = dict(zip(header, zip(*batch, strict=True), strict=True)) if batch else dict.fromkeys(header, ())
        table = _listed(path, list(columns["image"]), list(columns.get("instruction", ())) or None)
        for name, field in zip(further, _schema(further), strict=True):
            table = table.append_column(field, pa.array(columns[name], pa.string()))
        return table

    return batches(), pa.schema(_schema(further))


def _open_csv(path: Path) -> TextIO:
    try:
        return open(path, newline="", encoding="utf-8-sig")
    except OSError as problem:
        raise CallError(f"{path} cannot be read ({problem.strerror}).") from None


def _rows(path: Path, file: Iterable[str]) -> Iterator[list[str]]:
    try:
        yield from (row for row in csv.reader(file) if row)
    except (csv.Error, UnicodeDecodeError) as problem:
        raise CallError(f"{path} is not a CSV file in UTF-8 ({problem}).") from None


def _of_parquet(path: Path) -> tuple[Iterator[pa.Table], pa.Schema]:
    with _reading_parquet(path):
        file = pq.ParquetFile(path)
    schema = file.schema_arrow
    _check_columns(path, schema.names)
    further = _further(schema.names)
    fields = [schema.field(name).with_name(_carried_name(name)).remove_metadata() for name in further]

    def batches() -> Iterator[pa.Table]:
        read = file.iter_batches(batch_size=PART_SIZE)
        while True:
            with _reading_parquet(path):
                batch = next(read, None)
            if batch is None:
                return
            texts = {
                name: ["" if value is None else str(value) for value in batch.column(name).to_pylist()]
                for name in ("image", "instruction")
                if name in schema.names
            }
            table = _listed(path, texts["image"], texts.get("instruction"))
            for name, field in zip(further, fields, strict=True):
                table = table.append_column(field, batch.column(name))
            yield table

    return batches(), pa.schema(fields)


@contextlib.contextmanager
def _reading_parquet(path: Path) -> Iterator[None]:
    """What is damaged becomes one sentence."""
    try:
        yield
    except (OSError, pa.ArrowException) as problem:
        raise CallError(f"{path} cannot be read as Parquet ({str(problem).splitlines()[0]}).") from None


def _check_columns(path: Path, names: list[str]) -> None:
    if "image" not in names:
        raise CallError(f"{path} has no column 'image'; its columns are: {', '.join(names) or 'none'}.")
    twice = [name for name, count in Counter(map(_carried_name, names)).items() if count > 1]
    if twice:
        raise CallError(f"{path} has the column {twice[0]!r} twice.")


def _further(names: Iterable[str]) -> list[str]:
    return [name for name in names if name not in ("image", "instruction")]


def _carried_name(name: str) -> str:
    return f"listed_{name}" if name in SCHEMA.names or name in _OWN.names else name


def _schema(names: Iterable[str]) -> list[pa.Field]:
    return [pa.field(_carried_name(name), pa.string()) for name in names]


def _listed(path: Path, images: list[str], instructions: list[str] | None) -> pa.Table:
    """Rows of a list: a relative path is meant from the list's own folder."""
    return _table(images, [os.path.join(path.parent, image) for image in images], instructions)


def _table(images: list[str], paths: list[str], instructions: list[str] | None) -> pa.Table:
    asked = [None] * len(images) if instructions is None else [text.strip() or None for text in instructions]
    shown = [image.encode(errors="replace").decode() for image in images]
    columns = [shown, [os.fsencode(path) for path in paths], asked]
    return pa.table(columns, schema=pa.schema([_OWN.field(name) for name in _WITHOUT_NAME]))


def _in_parts(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of the size of a part."""
    left: pa.Table | None = None
    for table in tables:
        left = table if left is None else pa.concat_tables([left, table])
        while left.num_rows >= PART_SIZE:
            yield left.slice(0, PART_SIZE)
            left = left.slice(PART_SIZE)
    if left is not None and left.num_rows:
        yield left
