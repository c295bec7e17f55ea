"""A table as Markdown, LaTeX and CSV. A published number and a measured one never share a row."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from xflow_core.domain.errors import NotWritten
from xflow_core.export.files import write_whole

PUBLISHED = "published"
NOTICE = (
    "Not for clinical use. Rows marked 'published' are the paper's (arXiv 2609.34513); none of them was measured here."
)


@dataclass(frozen=True)
class Cell:
    """A number, with its interval where there is one; a dash without a value.

    signed: a plus stands before it too. place: 1 is printed bold, 2 underlined, as the paper marks the best two.
    """

    value: float | None
    interval: Sequence[float] | None = None
    digits: int = 3
    signed: bool = False
    place: int | None = None

    def __str__(self) -> str:
        if self.value is None:
            return "-"
        form = f"{'+' if self.signed else ''}.{self.digits}f"
        if self.interval is None:
            return f"{self.value:{form}}"
        low, high = self.interval
        return f"{self.value:{form}} [{low:{form}}, {high:{form}}]"


@dataclass(frozen=True)
class Table:
    """name: of its files. columns: of all rows; each row has a cell for every one.

    Raises:
        ValueError: a row has another number of cells.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"A row of {self.name} has {len(row)} cells for {len(self.columns)} columns.")

    def markdown(self) -> str:
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        body = "\n".join("| " + " | ".join(map(_marked, line)) + " |" for line in lines)
        return f"**{self.title}**\n\n{body}\n\n{' '.join((self.note, NOTICE)).strip()}\n"

    def latex(self) -> str:
        """For a document with the packages booktabs and graphicx: as wide as the text, however many columns."""
        lines = [" & ".join(map(_escaped, self.columns)) + r" \\ \midrule"]
        lines += [" & ".join(map(_escaped, row)) + r" \\" for row in self.rows]
        return (
            "% needs \\usepackage{booktabs,graphicx}\n"
            "\\begin{table*}\n\\caption{" + _escaped(f"{self.title}. {self.note} {NOTICE}") + "}\n"
            "\\resizebox{\\textwidth}{!}{%\n"
            "\\begin{tabular}{" + "l" * len(self.columns) + "}\n\\toprule\n"
            + "\n".join(lines)
            + "\n\\bottomrule\n\\end{tabular}}\n\\end{table*}\n"
        )  # fmt: skip

    def csv(self) -> str:
        """Numbers in full; a column that has intervals is followed by its ends."""
        wide = [
            any(isinstance(row[k], Cell) and row[k].interval for row in self.rows) for k in range(len(self.columns))
        ]  # type: ignore[union-attr]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        header: list[str] = []
        for column, ends in zip(self.columns, wide, strict=True):
            header += [column, f"{column} low", f"{column} high"] if ends else [column]
        writer.writerow(header)
        for row in self.rows:
            line: list[str | float] = []
            for cell, ends in zip(row, wide, strict=True):
                if isinstance(cell, str):
                    line += [cell, "", ""] if ends else [cell]
                else:
                    value = "" if cell.value is None else cell.value
                    line += [value, *(cell.interval or ("", ""))] if ends else [value]
            writer.writerow(line)
        return out.getvalue()

    def write(self, folder: Path) -> None:
        """``<name>.md``, ``.tex`` and ``.csv``.

        Raises:
            NotWritten: they cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise NotWritten(f"{folder} cannot be made: {problem.strerror or problem}.") from None
        for ending, text in (("md", self.markdown()), ("tex", self.latex()), ("csv", self.csv())):
            write_whole(folder / f"{self.name}.{ending}", text.encode())


def ranked(rows: Sequence[tuple[str | Cell, ...]], among: Sequence[int]) -> list[tuple[str | Cell, ...]]:
    """The rows with the best two numbers of every column marked, the greatest being the best.

    among: the rows that compete; equal numbers share their place.
    """
    marked = [list(row) for row in rows]
    for k in range(len(rows[0]) if rows else 0):
        held = {i: cell for i in among if isinstance(cell := rows[i][k], Cell) and cell.value is not None}
        values = sorted({cell.value for cell in held.values() if cell.value is not None}, reverse=True)
        for i, cell in held.items():
            if len(held) > 1 and cell.value in values[:2]:
                marked[i][k] = replace(cell, place=1 + values.index(cell.value))
    return [tuple(row) for row in marked]


def _marked(cell: str | Cell) -> str:
    place = cell.place if isinstance(cell, Cell) else None
    return {1: f"**{cell}**", 2: f"<u>{cell}</u>"}.get(place or 0, str(cell))


def _escaped(cell: str | Cell) -> str:
    text = re.sub(r"([&%#_{}$])", r"\\\1", " ".join(str(cell).split()))
    if not isinstance(cell, Cell):
        return text
    number = "--" if text == "-" else re.sub(r"([+-])(?=[0-9])", r"$\1$", text)
    return {1: rf"\textbf{{{number}}}", 2: rf"\underline{{{number}}}"}.get(cell.place or 0, number)
