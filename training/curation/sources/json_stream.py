"""Large JSON objects, one member at a time.

MIMIC-ILS is one object of a gigabyte. The file is read through a window; each member is decoded by the standard
library's own decoder (in C) as soon as the window holds it whole. A key that stands twice is given twice: ``json.load``
would keep the last silently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from xflow_core.domain.errors import CallError

_CHUNK = 1 << 20
# An error this far before the window's end is no matter of reading on.
_CLOSE = 1 << 19
_DELIMITERS = tuple(" \t\r\n,}]")
_SPACE = re.compile(r"[ \t\r\n]*")


def members(path: Path, depth: int = 1) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The members of a JSON object of objects, in the file's order.

    Args:
        depth: how many keys lead to a member: 1 for ``{key: value}``, 2 for ``{split: {study: value}}``.

    Yields:
        The keys and the decoded value.

    Raises:
        CallError: no such file, or it is not one JSON object of that depth; the message says where. What came before
            was yielded.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            window = _Window(path, file)
            yield from _object(window, depth, ())
            if window.peek():
                raise window.wrong("something follows the object")
    except OSError as problem:
        raise CallError(f"{path} cannot be read: {problem.strerror or problem}.") from None
    except UnicodeDecodeError:
        raise CallError(f"{path} is not UTF-8 text; is it the right file, and whole?") from None


def _object(window: _Window, depth: int, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    window.expect("{")
    if window.peek() == "}":
        window.expect("}")
        return
    while True:
        if window.peek() != '"':
            raise window.wrong('a key in quotes or "}" should stand here')
        inner = (*keys, window.value())
        window.expect(":")
        if len(inner) < depth:
            yield from _object(window, depth, inner)
        else:
            yield inner, window.value()
        if window.peek() == "}":
            window.expect("}")
            return
        window.expect(",")


class _Window:
    """The part of the file that is held, and the place in it."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self._path, self._file = path, file
        self._text, self._at, self._before, self._ended = "", 0, 0, False
        self._decode = json.JSONDecoder().raw_decode

    def peek(self) -> str:
        """The next character that is no white space; "" at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def expect(self, character: str) -> None:
        if self.peek() != character:
            raise self.wrong(f'"{character}" should stand here')
        self._at += 1

    def value(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as problem:
                if len(self._text) - problem.pos > _CLOSE or not self._more():
                    raise self.wrong(problem.msg, problem.pos - self._at) from None
                continue
            except (ValueError, RecursionError) as problem:  # a number of thousands of digits, thousands of brackets
                raise self.wrong(str(problem)) from None
            # A number that is not followed by a delimiter may go on ("0" of "0.5").
            number = type(value) in (int, float) and self._text[end : end + 1] not in _DELIMITERS
            if (number or end == len(self._text)) and len(self._text) - end < _CLOSE and self._more():
                continue
            self._at = end
            return value

    def wrong(self, why: str, ahead: int = 0) -> CallError:
        place = self._before + self._at + ahead
        ends = " (the file ends there)" if self._ended and self._at + ahead >= len(self._text) else ""
        return CallError(
            f"{self._path} is damaged or not what it should be: {why}, at character {place}{ends}; download it again."
        )

    def _more(self) -> bool:
        chunk = self._file.read(_CHUNK)
        if not chunk:
            self._ended = True
            return False
        self._before += self._at
        self._text = self._text[self._at :] + chunk
        self._at = 0
        return True
