"""Reading a radiograph: from a file or its bytes, in any of the usual dresses, to one grey image."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from xflow_core.domain.errors import RadiographError, RadiographRefused
from xflow_core.domain.trace import ImageRecord

from .content import Content, HeaderEvidence, Window
from .dicom import looks_like_dicom, read_dicom
from .display import stretch
from .pictures import read_picture
from .volumes import is_nifti, read_volume

MAX_FILE_BYTES = 2**28
"""256 MiB: three and a half times a radiograph of the largest size, uncompressed at 16 bits a pixel."""

_SAMPLED = 2**18


@dataclass(frozen=True, eq=False)
class Radiograph:
    """One grey image in its source's pixel matrix, ``[row, column]``, row 0 at the top.

    Attributes:
        values: float32 ``[H, W]`` after the modality LUT, with the polarity settled: brighter is denser. No window is
            applied, since windows differ between stations. Padding holds the smallest value of the others.
        display: uint8 ``[H, W]``, what a viewer shows: modality LUT, VOI (a LUT before a window, the first window of
            several), presentation. Padding is black.
        record: what the trace says of the image.
        windows: the windows that the file offers, in units of ``values``.
        header: the header's evidence for the guards; no patient data.
        padding: bool ``[H, W]``, pixels that the header declares to be no image; None when there are none.
        path: the file, when there was one.
    """

    values: np.ndarray
    display: np.ndarray
    record: ImageRecord
    windows: tuple[Window, ...] = ()
    header: HeaderEvidence = field(default_factory=HeaderEvidence)
    padding: np.ndarray | None = None
    path: Path | None = None

    @property
    def size(self) -> tuple[int, int]:
        """``(rows, columns)``."""
        return self.record.size


def read_radiograph(
    source: str | os.PathLike[str] | bytes, *, name: str | None = None, accept_image: bool = False
) -> Radiograph:
    """Read one radiograph; what it is, is told by its bytes, never by its name.

    DICOM (CR, DX, secondary capture, any transfer syntax of :mod:`.codecs`), PNG, JPEG, TIFF, and NIfTI, NRRD or MHA of
    one slice. Whether it shows a frontal chest is not asked here: see :mod:`.guards`.

    Args:
        source: a path, or the bytes of a file.
        name: what messages call the image; the file's name by default.
        accept_image: read a colour picture (the mean of its channels) or the first of several frames or pages all the
            same, with a warning.

    Raises:
        RadiographError: it cannot be read.
        RadiographRefused: it can, and is not one 2-D grey image of a usable size.
    """
    path = None if isinstance(source, (bytes, bytearray, memoryview)) else Path(source)
    name = name or ("The image" if path is None else path.name)
    data = bytes(source) if path is None else _bytes_of(path, name)  # type: ignore[arg-type]
    if len(data) > MAX_FILE_BYTES:
        raise RadiographError(f"{name} has {len(data) / 2**20:.0f} MB, more than any radiograph; it was not read.")
    try:
        content = _content(data, name)
    except RadiographRefused as refusal:
        if not accept_image:
            raise
        content = _content(data, name, accept=True)
        content = replace(content, warnings=(*content.warnings, f"Run against the guards: {refusal}"))
    record = ImageRecord(
        sha256=hashlib.sha256(data).hexdigest(),
        source=content.source,
        size=(int(content.values.shape[0]), int(content.values.shape[1])),
        sop_instance_uid=content.sop_instance_uid,
        view=content.header.view_position or content.header.view_code,
        photometric=content.photometric,
        spacing_mm=content.spacing_mm,
        spacing_kind=content.spacing_kind,
        warnings=content.warnings,
    )
    for array in (content.values, content.display):
        array.flags.writeable = False
    return Radiograph(
        values=content.values,
        display=content.display,
        record=record,
        windows=content.windows,
        header=content.header,
        padding=content.padding,
        path=path,
    )


def _bytes_of(path: Path, name: str) -> bytes:
    try:
        if path.is_dir():
            raise RadiographError(f"{name} is a folder; give the image files in it.")
        if not path.is_file():
            what = "is no ordinary file" if path.exists() else "does not exist"
            raise RadiographError(f"{name} {what}; check the path.")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise RadiographError(
                f"{name} has {path.stat().st_size / 2**20:.0f} MB, more than any radiograph; it was not read."
            )
        return path.read_bytes()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "no valid path"
        raise RadiographError(f"{name} cannot be read ({reason}); check the path and its permissions.") from problem


def _content(data: bytes, name: str, accept: bool = False) -> Content:
    if not data:
        raise RadiographError(f"{name} is empty; get it again from its source.")
    if data[128:132] == b"DICM":  # before all others: the preamble may hold the start of a TIFF
        return read_dicom(data, name, accept)
    for start, source in ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg")):
        if data.startswith(start):
            return read_picture(data, source, name, accept)
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return read_picture(data, "tiff", name, accept)
    if data[:2] == b"\x1f\x8b" or is_nifti(data):
        return read_volume(data, "nifti", name, accept)
    if data.startswith(b"NRRD000"):
        return read_volume(data, "nrrd", name, accept)
    if data.startswith((b"ObjectType", b"NDims")):
        return read_volume(data, "mha", name, accept)
    if looks_like_dicom(data):
        return read_dicom(data, name, accept)
    raise RadiographError(f"{name} is none of DICOM, PNG, JPEG, TIFF, NIfTI, NRRD and MHA; XFlow reads these.")


def grey_range(radiograph: Radiograph, low: float = 0.5, high: float = 99.5) -> tuple[float, float]:
    """The values at two percentiles of the pixels that are no padding (of an even sample of them in a large image).

    Where the two meet, nearly all pixels being alike, the least and the greatest value.
    """
    values = radiograph.values
    step = max(1, int(np.sqrt(values.size / _SAMPLED)))
    sample = values[::step, ::step]
    if radiograph.padding is not None:
        inside = sample[~radiograph.padding[::step, ::step]]
        sample = inside if inside.size else sample
    bottom, top = (float(value) for value in np.percentile(sample, (low, high)))
    return (bottom, top) if top > bottom else (float(values.min()), float(values.max()))


def engine_grey(radiograph: Radiograph, low: float = 0.5, high: float = 99.5) -> np.ndarray:
    """The values as the engine sees them: float32 ``[H, W]`` in [0, 1], linear between two percentiles.

    A positive linear map of the values changes nothing, so one picture gives one input in whatever dress it comes. A
    constant image gives zeros.
    """
    return stretch(radiograph.values, *grey_range(radiograph, low, high)).astype(np.float32, copy=False)
