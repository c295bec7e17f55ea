"""What cannot be used, line by line: nothing is dropped without its name, its file and the reason."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from xflow_core.domain.errors import NotWritten

# The reasons, and what happens to a record that has one.
KINDS = {
    "study_malformed": "the study's value is not the object that it should be; the study is left out",
    "study_repeated": "the study stands there a second time; the first is kept",
    "radiograph_repeated": "the radiograph stands in another study already; the second study is left out",
    "metadata_differs": "the metadata has no such radiograph of this patient and study; the study is left out",
    "subject_differs": "the patient id contradicts the image's path; the study is left out",
    "split_unknown": "the split is none of train, val, test; its studies are left out",
    "pair_malformed": "the pair is not an object; it is left out",
    "missing_field": "a field is missing or of the wrong type; the record is left out",
    "unknown_target": "the target is none of the seven findings; the pair is left out",
    "unknown_location": "a location is not one of the region names; the pair is left out",
    "pair_repeated": "a pair of that id stands in the study already; the first is kept",
    "pair_of_other_study": "the pair's id names another study; it is left out",
    "seg_contradicts": "seg contradicts the list that the pair stands in; it is left out",
    "no_mask_path": "a positive pair without a mask's path inside the set; it is left out",
    "mask_missing": "the mask file cannot be read",
    "mask_empty": "the mask has no true pixel, though its pair is positive",
    "mask_aspect": "the mask's aspect ratio is not the radiograph's",
    "image_missing": "there is no such file",
    "image_truncated": "the file ends before the picture does: a broken download",
    "image_size": "the picture's size is not the metadata's",
    "metadata_repeated": "the radiograph stands there a second time; the first is kept",
    "review_malformed": "the entry is not the object that it should be; it is left out",
    "review_repeated": "the study's finding is reviewed a second time; the first entry is kept",
    "review_key": "the key is not <finding>_<pair id>; the entry is left out",
    "review_answer": "the detection answer contradicts the pair's id; the entry is left out",
    "review_zone": "a zone is not one of the six; the entry is left out",
    "review_dicom": "the entry's radiograph is not its study's; it is left out",
    "review_unknown": "MIMIC-ILS's training split has no such pair; the entry is left out",
    "scene_graph_broken": "the file is not a scene graph; it counts as missing",
    "scene_graph_patient": "the patient or study id is not the radiograph's; it counts as missing",
    "report_broken": "the report is not text; it counts as missing",
    "rle_overruns": "the runs reach outside the image; the line is left out",
    "rle_odd": "the runs are not pairs of start and length; the line is left out",
    "rle_empty": "an organ has no pixel; the line is left out",
    "size_differs": "height and width are not the radiograph's; the line is left out",
    "low_quality": "Dice RCA (Mean) is below the limit; the line is left out",
    "row_repeated": "the radiograph has a usable line already; the first is kept",
    "row_malformed": "the line does not have the columns it should; it is left out",
    "lungs_missing": "a lung's mask is missing",
    "masks_malformed": "the entry's masks cannot be read; it is left out",
}
_SHOWN = 20


@dataclass(frozen=True)
class Problem:
    """One record that cannot be used. ``record`` is its id, ``what`` says more than the kind does."""

    kind: str
    path: str
    record: str
    what: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is no kind of problem")

    def __str__(self) -> str:
        more = f" ({self.what})" if self.what else ""
        return f"{self.path}: {self.record}: {KINDS[self.kind]}{more}"


class Problems:
    """Collects problems: counts all, keeps the first few of a kind, and writes each to a file where one is given.

    A context manager where it writes: the file has its name when the block ends. Memory does not grow with the number
    of problems.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, list[Problem]] = {}
        self._path = path
        self._file: TextIO | None = None if path is None else _part_of(path)

    def add(self, kind: str, path: Path | str, record: str, what: str = "") -> None:
        problem = Problem(kind, str(path), record, what)
        self.counts[kind] += 1
        kept = self.first.setdefault(kind, [])
        if len(kept) < _SHOWN:
            kept.append(problem)
        if self._file is not None:
            self._file.write(json.dumps(asdict(problem)) + "\n")

    @contextlib.contextmanager
    def into(self, path: Path) -> Iterator[None]:
        """Write what is added meanwhile to ``path`` too, which is there when the block ends, unless by an error."""
        held, self._file = self._file, _part_of(path)
        try:
            yield
            self._file.close()
            os.replace(self._file.name, path)
        finally:
            self._file.close()
            Path(self._file.name).unlink(missing_ok=True)
            self._file = held

    def take(self, path: Path) -> None:
        """Add those that another process wrote to ``path``."""
        with open(path, encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                self.add(row["kind"], row["path"], row["record"], row["what"])

    def lines(self, every: Collection[str] = ()) -> list[str]:
        """A summary for people: every kind with its count, and its first records; more of the kinds in ``every``."""
        said = []
        for kind, count in sorted(self.counts.items()):
            said.append(f"{count} x {kind}: {KINDS[kind]}")
            shown = self.first[kind][: _SHOWN if kind in every else 3]
            said += [f"    {problem.path}: {problem.record} {problem.what}".rstrip() for problem in shown]
            if len(shown) < count:
                said.append(f"    .. and {count - len(shown)} more")
        return said

    def __enter__(self) -> Problems:
        return self

    def __exit__(self, *problem: object) -> None:
        if self._file is not None and self._path is not None:
            self._file.close()
            os.replace(self._file.name, self._path)


def _part_of(path: Path) -> TextIO:
    """A hidden file beside ``path``, until it may have the name. One each: a training's processes share a folder."""
    try:
        return open(path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.part"), "w", encoding="utf-8")
    except OSError as problem:
        raise NotWritten(f"{path} cannot be written: {problem.strerror or problem}.") from problem
