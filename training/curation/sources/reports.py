"""MIMIC-CXR's reports: free text, from the archive or the folder that it unpacks to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .archive import Archive
from .layout import report_path
from .problems import Problems

# Headings of what was seen and concluded; what was asked, or seen before, is no statement about this radiograph.
_HEADING = re.compile(r"^[ \t]*([A-Z][A-Z /()&-]{3,}):", re.MULTILINE)
_SEEN = ("FINDINGS", "IMPRESSION", "FINDINGS AND IMPRESSION", "CONCLUSION")


class Reports:
    """The reports of ``mimic-cxr-reports.zip`` or of the folder that it unpacks to; read one by one."""

    def __init__(self, path: Path, problems: Problems) -> None:
        self._archive = Archive(path)
        self._problems = problems

    def __enter__(self) -> Reports:
        return self

    def __exit__(self, *problem: Any) -> None:
        self._archive.__exit__(None, None, None)

    def read(self, subject: str, study: str) -> str | None:
        """The whole report; None where there is none that can be used (a broken one is a problem)."""
        name = report_path(subject, study)
        try:
            data = self._archive.read(name)
            if data is None:
                return None
            text = data.decode("utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            self._problems.add("report_broken", self._archive.path, name, str(problem))
            return None
        if not text.strip():
            self._problems.add("report_broken", self._archive.path, name, "empty")
            return None
        return text


def seen(report: str) -> str:
    """The findings and impression of a report; the whole of it where it has no such heading."""
    headings = list(_HEADING.finditer(report))
    parts = []
    for number, heading in enumerate(headings):
        if heading[1].strip() in _SEEN:
            end = headings[number + 1].start() if number + 1 < len(headings) else len(report)
            parts.append(" ".join(report[heading.end() : end].split()))
    return " ".join(part for part in parts if part) or " ".join(report.split())
