"""Results on disk: written whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image

from xflow_core.domain.errors import CallError, NotWritten, ValueRefused
from xflow_core.domain.trace import ResultStep, Trace

from .overlay import draw_overlay

TRACE_FILE = "trace.json"
MASK_FILE = "mask.png"
OVERLAY_FILE = "overlay.png"
_OURS = (TRACE_FILE, MASK_FILE, OVERLAY_FILE)
SEG_FILE = "seg.dcm"
SR_FILE = "sr.dcm"
PR_FILE = "pr.dcm"
SC_FILE = "sc.dcm"
DICOM_FILES = (SEG_FILE, SR_FILE, PR_FILE, SC_FILE)

IMAGE_ENDINGS = (
    ".nii.gz", ".dicom", ".tiff", ".jpeg", ".nhdr", ".nrrd", ".dcm", ".png", ".jpg", ".jpe", ".jp2", ".tif", ".bmp",
    ".gif", ".webp", ".nii", ".img", ".hdr", ".mha", ".mhd", ".ima", ".pgm",
)  # fmt: skip

# What Windows, macOS or Linux refuse in a name, and the lone surrogates that Python makes of undecodable bytes.
_UNSAFE = re.compile(r'[\x00-\x1f\x7f-\x9f<>:"/\\|?*\ud800-\udfff]')
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_LEFT_BEHIND = re.compile(r"\..*\.[0-9a-f]{12}\.part")  # as _beside names it
# File systems stop at 255 bytes a name; this leaves room for a hash and for the names of temporary siblings.
_LONGEST_NAME = 180


@dataclass(frozen=True)
class ResultFiles:
    """The files of one result. A mask only for a present finding; no overlay without an answer."""

    trace: Path
    mask: Path | None
    overlay: Path | None


def write_whole(path: str | Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all, whatever stops the process.

    The bytes go to a temporary file of the same folder and onto the disk, and then take the name in one move; an older
    file of that name stands until then.

    Raises:
        CallError: the file cannot be written there; nothing is left behind.
    """
    with open_whole(path) as file:
        file.write(data)


@contextlib.contextmanager
def open_whole(path: str | Path) -> Iterator[IO[bytes]]:
    """The same for what is written piece by piece: the file takes its name when the block ends without an error.

    Raises:
        CallError: as :func:`write_whole`.
    """
    path = Path(path)
    with _said(path):
        temporary = path.with_name(_beside(path.name))
        try:
            # Not tempfile: its files are readable by their owner alone, and stay so under the final name.
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_mask(path: str | Path, mask: np.ndarray) -> None:
    """Write a bool ``[H, W]`` mask as an 8-bit grey PNG of the same size, 0 and 255.

    Raises:
        ValueRefused: not a two-dimensional bool array with pixels.
        CallError: the file cannot be written.
    """
    write_whole(path, _mask_bytes(mask))


def write_trace(path: str | Path, trace: Trace) -> None:
    """Write a trace as JSON (schema ``xflow.trace/1``).

    Raises:
        CallError: the file cannot be written.
    """
    write_whole(path, _trace_bytes(trace))


def read_trace(path: str | Path) -> Trace:
    """The trace in a JSON file.

    Raises:
        CallError: there is no such file, it is not JSON, or it is no ``xflow.trace/1`` trace; one sentence says which.
    """
    try:
        data = json.loads(Path(path).read_bytes())
    except OSError as problem:
        raise CallError(f"The trace {path} cannot be read: {problem.strerror or problem}.") from None
    except (ValueError, RecursionError):
        raise CallError(f"{path} is not JSON, so it is no trace; give a trace.json that XFlow wrote.") from None
    try:
        return Trace.from_json(data)
    except (ValueError, OverflowError) as problem:
        raise CallError(f"{path} cannot be used as a trace: {problem}") from None


def write_result(folder: str | Path, trace: Trace, display: np.ndarray | None = None) -> ResultFiles:
    """Write what ``OUT/<image>/<finding>/`` holds: the trace, the overlay, and the mask when the finding is present.

    All files appear together: they are made in a hidden sibling folder, which then takes the folder's place. An
    earlier result is replaced as a whole (an old mask does not outlive an answer of "absent"), other people's files in
    the folder stay, and until the move, or when anything fails, what was there stays as it was. An outcome without an
    answer (refused, unsupported, failed) has a trace alone.

    Args:
        trace: with its result; ``mask_file`` is filled in here.
        display: the radiograph as shown, uint8 ``[H, W]``, bones bright, of the source size; not needed without an
            answer.

    Raises:
        ValueRefused: the trace has no result, or trace and display do not fit each other; nothing was written.
        CallError: the folder cannot be written.
    """
    if trace.result is None:
        raise ValueRefused("The trace has no result yet; finish the run before writing it.")
    step: ResultStep | None = trace.last(ResultStep)
    mask = step.mask if step is not None and trace.result.present else None
    if trace.result.present and mask is None:
        raise ValueRefused("The trace states that the finding is present and holds no mask of it.")
    trace = trace.with_mask_file(None if mask is None else MASK_FILE)
    contents = {TRACE_FILE: _trace_bytes(trace)}
    if mask is not None:
        contents[MASK_FILE] = _mask_bytes(mask.array)
    if trace.result is not None and trace.result.present is not None:
        if display is None:
            raise ValueRefused("An answer is written with its overlay, which needs the displayed radiograph.")
        contents[OVERLAY_FILE] = _png(draw_overlay(display, trace))

    folder = Path(folder)
    with _said(folder):
        # A link to a folder stays one: the folder behind it is replaced.
        _replace_folder(Path(os.path.realpath(folder)), contents)
    return ResultFiles(
        trace=folder / TRACE_FILE,
        mask=folder / MASK_FILE if MASK_FILE in contents else None,
        overlay=folder / OVERLAY_FILE if OVERLAY_FILE in contents else None,
    )


def remove_dicom(folder: str | Path) -> None:
    """Remove the DICOM results of an earlier image from ``OUT/<image>/``: they say nothing of the new answers there.

    Raises:
        NotWritten: one cannot be removed.
    """
    for name in DICOM_FILES:
        path = Path(folder) / name
        try:
            path.unlink(missing_ok=True)
        except OSError as problem:
            raise NotWritten(
                f"{path} is out of date and cannot be removed: {problem.strerror or problem}."
            ) from problem


def replace_dicom(folder: Path, new: Path) -> None:
    """Put the DICOM files that lie in ``new`` in the place of those of an earlier call in ``folder``.

    The earlier ones go before the new ones come, the report first and last. So whatever stops the process, the files
    there are of one call, and all of that call's where there is a report. When anything fails, the earlier ones are put
    back.

    Raises:
        OSError: a file cannot be moved.
    """
    order = (SEG_FILE, PR_FILE, SC_FILE, SR_FILE)
    old = folder / _beside("dicom")
    old.mkdir()
    come: list[str] = []
    try:
        for name in reversed(order):
            if (folder / name).is_file():
                os.replace(folder / name, old / name)
        for name in order:
            if (new / name).exists():
                os.replace(new / name, folder / name)
                come.append(name)
    except BaseException:
        for name in come:
            (folder / name).unlink()
        for name in order:
            if (old / name).exists():
                os.replace(old / name, folder / name)
        old.rmdir()
        raise
    shutil.rmtree(old, ignore_errors=True)


def sweep(folder: str | Path) -> None:
    """Remove what a killed process left half made in ``OUT/<image>/``, where one process writes at a time; a folder
    with other people's files stays."""
    folder = Path(folder)
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if not _LEFT_BEHIND.fullmatch(entry.name):
            continue
        if entry.is_dir():
            names = [inner.name for inner in entry.iterdir()]
            if all(name in (*_OURS, *DICOM_FILES) or _LEFT_BEHIND.fullmatch(name) for name in names):
                shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def image_name(path: str | Path) -> str:
    """The file's name without a known image ending, made safe for any file system.

    >>> image_name("study/chest.nii.gz"), image_name("1.2.840.10008"), image_name("a.b.PNG")
    ('chest', '1.2.840.10008', 'a.b')
    """
    name = unicodedata.normalize("NFC", _UNSAFE.sub("_", Path(path).name))
    ending = next((end for end in IMAGE_ENDINGS if name.lower().endswith(end) and len(name) > len(end)), "")
    name = name[: len(name) - len(ending)]
    while len(name.encode()) > _LONGEST_NAME:
        name = name[:-1]
    # A leading dot hides a folder, and Windows drops dots and spaces at the end.
    name = name.rstrip(" .")
    if name.startswith((".", " ")) or _RESERVED.fullmatch(name):
        name = f"_{name.lstrip(' .')}"
    return name or "image"


def image_names(paths: Sequence[str | Path]) -> list[str]:
    """A name for each image, in order: :func:`image_name`, and for all images that would share one a short hash of
    the resolved path behind it.

    Different files get different names, also where a file system does not tell "A" from "a"; the names depend on the
    set of paths and not on their order. A path given twice has one name.
    """
    files = [_resolved(path) for path in paths]
    plain = {file: set[str]() for file in files}
    for path, file in zip(paths, files, strict=True):
        plain[file].add(image_name(path).casefold())
    holders = Counter(name for names in plain.values() for name in names)

    def named(path: str | Path, file: str, digits: int, everyone: bool) -> str:
        name = image_name(path)
        if holders[name.casefold()] == 1 and not everyone:
            return name
        hashed = hashlib.sha256(file.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{name}-{hashed[:digits]}"

    # One turn, unless hashes collide or one file is called what another is called with its hash.
    for digits, everyone in ((8, False), (16, True), (64, True)):
        names = [named(path, file, digits, everyone) for path, file in zip(paths, files, strict=True)]
        files_of: dict[str, set[str]] = {}
        for name, file in zip(names, files, strict=True):
            files_of.setdefault(name.casefold(), set()).add(file)
        if all(len(holding) == 1 for holding in files_of.values()):
            break
    return names


def _resolved(path: str | Path) -> str:
    try:
        return os.path.realpath(path)
    except ValueError:
        # No file system has such a name (a NUL, a lone surrogate); reading it will say so.
        return os.path.abspath(path)


def _replace_folder(folder: Path, contents: dict[str, bytes]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists() and not folder.is_dir():
        raise CallError(f"{folder} is a file, and a result is a folder; choose another output folder.")
    new = folder.with_name(_beside(folder.name))
    old = folder.with_name(_beside(folder.name))
    try:
        new.mkdir()
        for name, data in contents.items():
            write_whole(new / name, data)
        if not folder.exists():
            os.rename(new, folder)
            return
        # Only a process killed between these two moves leaves no result under the name; the older one is in `old`.
        os.rename(folder, old)
        try:
            os.rename(new, folder)
        except BaseException:
            os.rename(old, folder)
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    for entry in old.iterdir():
        if entry.name not in _OURS:
            os.rename(entry, folder / entry.name)
    shutil.rmtree(old)


def _beside(name: str) -> str:
    """A hidden name for something temporary next to ``name``."""
    return f".{name[:100]}.{secrets.token_hex(6)}.part"


@contextlib.contextmanager
def _said(path: Path) -> Iterator[None]:
    """An error of the file system becomes one sentence with the path."""
    try:
        yield
    except OSError as problem:
        raise NotWritten(
            f"{path} cannot be written: {problem.strerror or problem}; choose another output folder or make room there."
        ) from problem


def _trace_bytes(trace: Trace) -> bytes:
    try:
        return (json.dumps(trace.to_json(), indent=1, allow_nan=False) + "\n").encode()
    except ValueError:
        raise ValueRefused("The trace holds a number that is not finite; it cannot be written as JSON.") from None


def _mask_bytes(mask: np.ndarray) -> bytes:
    if mask.ndim != 2 or mask.size == 0 or mask.dtype != bool:
        raise ValueRefused(f"A mask is a bool [rows, columns] array, not {mask.dtype} of shape {mask.shape}.")
    return _png(Image.fromarray(mask.astype(np.uint8) * np.uint8(255)))


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
