"""The list before a run and the table after it: every name its own, everything in parts."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from xflow_core.batch.image_list import ImageList, folder_names, is_image, write_list
from xflow_core.batch.table import COLUMNS, PART_SIZE, SCHEMA, Parts, write_table
from xflow_core.domain.errors import NotWritten
from xflow_core.export.files import image_names


def row(position: int, message: str | None = None) -> dict[str, Any]:
    return {"position": position, "image": f"{position}.png", "status": "absent", "message": message}


def test_rows_go_to_the_disk_part_by_part_in_the_order_of_the_list(tmp_path: Path) -> None:
    images = 2 * PART_SIZE + 3
    listed = tmp_path / "list.csv"
    listed.write_text("image,study\n" + "".join(f"{place}.png,s{place}\n" for place in range(images)))
    write_list(str(listed), tmp_path / "out", tmp_path / "list.parquet")
    parts = Parts(tmp_path, images)
    assert len(parts) == 3
    for position in reversed(range(images)):
        parts.add(position, [row(position), row(position)])
        if position == PART_SIZE:
            assert len(list(tmp_path.glob("part-*"))) == 2
    parts.flush()
    found = ImageList(tmp_path / "list.parquet")
    path = write_table(tmp_path, parts, found.carried(), found.carried_schema, {})
    table = pq.read_table(path)
    assert table["position"].to_pylist() == [position for position in range(images) for _ in range(2)]
    assert table["study"].to_pylist() == [f"s{position}" for position in range(images) for _ in range(2)]
    assert pq.ParquetFile(path).num_row_groups == 3


def test_a_part_that_is_not_completed_keeps_the_rows_of_the_run_before(tmp_path: Path) -> None:
    before = Parts(tmp_path, 4)
    for position in (0, 1, 2):
        before.add(position, [row(position)])
    before.flush()
    now = Parts(tmp_path, 4)
    now.add(1, [row(1, "made again")])
    now.flush()
    assert [(made["position"], made["message"]) for made in now.read(0).to_pylist()] == [
        (0, None),
        (1, "made again"),
        (2, None),
    ]


def test_a_damaged_part_has_no_rows(tmp_path: Path) -> None:
    parts = Parts(tmp_path, 1)
    parts.add(0, [row(0)])
    (file,) = tmp_path.glob("part-*")
    file.write_bytes(file.read_bytes()[:40])
    assert parts.read(0).num_rows == 0


def test_a_table_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    parts = Parts(tmp_path, 1)
    parts.add(0, [row(0)])
    (tmp_path / "results.parquet").mkdir()
    with pytest.raises(NotWritten, match=r"results\.parquet"):
        write_table(tmp_path, parts, iter([pa.table({})]), pa.schema([]), {})
    assert not list(tmp_path.glob(".*.part"))


def test_names_are_those_of_segment_and_every_row_has_its_own() -> None:
    paths = ["a/x.dcm", "b/x.dcm", "y.png", "y.png", "results.parquet.png"]
    names = folder_names(paths)
    assert names[:3] == image_names(paths)[:3]
    assert names[3].startswith("y-")
    assert names[4] != "results.parquet"
    assert len(set(names)) == 5


def test_the_list_holds_no_more_than_the_paths_in_memory(tmp_path: Path) -> None:
    images = 3_000
    listed = tmp_path / "list.csv"
    with listed.open("w") as file:
        file.write("image,report\n")
        for place in range(images):
            file.write(f"study-{place // 2}/image-{place}.dcm,{'many words ' * 20}\n")
    (tmp_path / "one.csv").write_text("image\none.dcm\n")
    write_list(str(tmp_path / "one.csv"), tmp_path / "out", tmp_path / "one.parquet")  # loads what a first call loads
    tracemalloc.start()
    try:
        write_list(str(listed), tmp_path / "out", tmp_path / "list.parquet")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2000 * images
    found = ImageList(tmp_path / "list.parquet")
    assert len(found) == images
    (last,) = found.rows(images - 1)
    assert (last.position, last.image, last.name) == (images - 1, f"study-1499/image-{images - 1}.dcm", "image-2999")


@pytest.mark.parametrize(
    ("name", "content", "taken"),
    [
        ("x.DCM", b"", True),
        ("1.2.840.10008", bytes(128) + b"DICM", True),
        ("scan", b"\x89PNG\r\n\x1a\n", True),
        ("DICOMDIR", bytes(128) + b"DICM", False),
        ("readme.txt", b"words", False),
    ],
)
def test_files_of_a_folder_are_images_by_their_ending_or_their_first_bytes(
    name: str, content: bytes, taken: bool, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    assert is_image(str(tmp_path / name)) == taken


def test_every_column_says_what_it_means() -> None:
    assert [column.name for column in COLUMNS] == SCHEMA.names
    assert all(column.meaning.endswith(".") for column in COLUMNS)
