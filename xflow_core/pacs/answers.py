"""The DICOM JSON model (PS3.18 annex F) of what a service says, read with care: anything may be missing or odd."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydicom.datadict import tag_for_keyword

Answer = Mapping[str, Any]
"""One dataset: tags in eight hexadecimal digits, each with ``vr`` and ``Value``."""

UID = re.compile(r"(?=.{1,64}\Z)[0-9]+(\.[0-9]+)*")
_WORD = re.compile(r"[A-Za-z0-9 _./,()+-]{1,64}")


def is_answer(item: object) -> bool:
    """Whether this is a dataset of the DICOM JSON model at all."""
    return isinstance(item, dict) and all(
        re.fullmatch("[0-9A-Fa-f]{8}", tag) and isinstance(element, dict) for tag, element in item.items()
    )


def values(answer: Answer, keyword: str) -> Sequence[Any]:
    """All values of an attribute; empty when it is missing or empty."""
    tag = tag_for_keyword(keyword)
    assert tag is not None, keyword
    element = answer.get(f"{tag:08X}", answer.get(f"{tag:08x}", {}))
    found = element.get("Value")
    return found if isinstance(found, list) else ()


def uid(answer: Answer, keyword: str) -> str | None:
    """A UID, None when it is missing or is none (it becomes part of URLs and of folder names)."""
    found = values(answer, keyword)
    return found[0] if found and isinstance(found[0], str) and UID.fullmatch(found[0]) else None


def word(answer: Answer, keyword: str) -> str | None:
    """A coded word in capitals; None when it is missing or is anything but a coded word."""
    found = values(answer, keyword)
    text = found[0].strip() if found and isinstance(found[0], str) else ""
    return text.upper() if _WORD.fullmatch(text) else None


def whole(answer: Answer, keyword: str) -> int | None:
    """A whole number that is not negative; None when it is missing or is none."""
    found = values(answer, keyword)
    try:
        number = int(found[0]) if found else -1
    except (TypeError, ValueError):
        return None
    return number if number >= 0 else None
