"""The images that a server holds: read once, encoded once, forgotten when they are the least recently used."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from xflow_core.domain.errors import RadiographError, RadiographRefused, ServiceError, ValueRefused
from xflow_core.domain.trace import ImageRecord
from xflow_core.policies.protocols import GuardReport
from xflow_core.radiograph.content import check_size
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.pictures import shown
from xflow_core.radiograph.reading import Radiograph, read_radiograph

from .protocol import ARRAY_START, ArrayImage, sha256_of

_NAME = "The image"


@dataclass(eq=False)
class HeldImage:
    """An uploaded radiograph with what each bundle has computed from it.

    Attributes:
        refusal: why reading it was refused, when its sender accepted it all the same; None for most.
        read_seconds: what reading took.
        views: by the bundle's sha256, the encoded radiograph and the guards' report on it; the worker's own.
        runs: that need it now; while there are any, it stays.
        nbytes: of all this in memory, when it was last measured.
    """

    radiograph: Radiograph
    refusal: str | None
    read_seconds: float
    views: dict[str, tuple[EncodedRadiograph, GuardReport]] = field(default_factory=dict)
    runs: int = 0
    nbytes: int = 0

    def __post_init__(self) -> None:
        self.measure()

    @property
    def record(self) -> ImageRecord:
        return self.radiograph.record

    def measure(self) -> None:
        """Bring ``nbytes`` up to date; the worker's own, since a view may be in the middle of an encoder."""
        bare = EncodedRadiograph(self.radiograph).nbytes
        self.nbytes = bare + sum(image.nbytes - bare for image, _ in self.views.values())


class ImageStore:
    """Images by their sha256, bounded by their bytes in memory. Safe to use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._images: OrderedDict[str, HeldImage] = OrderedDict()
        self._leaving: set[HeldImage] = set()
        self._lock = threading.Lock()

    def add(self, image: HeldImage) -> HeldImage:
        """Hold an image; of two with one name the first stays.

        Raises:
            ServiceError: ``too_large`` for this store, or ``busy`` when runs need all that it holds.
        """
        if image.nbytes > self.max_bytes:
            raise ServiceError(
                f"The image takes {image.nbytes / 2**20:.0f} MiB of memory, more than this server holds.", "too_large"
            )
        with self._lock:
            held = self._images.setdefault(image.record.sha256, image)
            self._images.move_to_end(image.record.sha256)
            self._shrink(keep=held)
            if self._bytes() > self.max_bytes and held is image:
                del self._images[image.record.sha256]
                raise ServiceError("The server holds as many images as it can; try again in a moment.", "busy")
            return held

    def find(self, sha256: str) -> HeldImage:
        """The image, now the most recently used.

        Raises:
            ServiceError: ``unknown_image``.
        """
        with self._lock:
            return self._find(sha256)

    def borrow(self, sha256: str) -> HeldImage:
        """The same for a run: it stays until :meth:`give_back`."""
        with self._lock:
            image = self._find(sha256)
            image.runs += 1
            return image

    def give_back(self, image: HeldImage) -> None:
        with self._lock:
            image.runs -= 1
            if image.runs == 0:
                self._leaving.discard(image)
            self._shrink()

    def forget(self, sha256: str) -> bool:
        """Drop an image; a run that has it ends all the same, and its bytes count until then. False when it is not
        held."""
        with self._lock:
            image = self._images.pop(sha256, None)
            if image is not None and image.runs:
                self._leaving.add(image)
            return image is not None

    def measured(self, image: HeldImage) -> None:
        """After a step: what is held may have grown."""
        image.measure()
        with self._lock:
            self._shrink(keep=image)

    def drop_views(self, bundles: set[str]) -> None:
        """Drop what these bundles have computed; the radiographs stay."""
        with self._lock:
            for image in self._images.values():
                for bundle in bundles:
                    image.views.pop(bundle, None)
                image.measure()

    def size(self) -> tuple[int, int]:
        """How many images, and their bytes."""
        with self._lock:
            return len(self._images), self._bytes()

    def _find(self, sha256: str) -> HeldImage:
        if sha256 not in self._images:
            raise ServiceError("The server does not have this image (any more); upload it first.", "unknown_image")
        self._images.move_to_end(sha256)
        return self._images[sha256]

    def _bytes(self) -> int:
        return sum(image.nbytes for image in (*self._images.values(), *self._leaving))

    def _shrink(self, keep: HeldImage | None = None) -> None:
        over = self._bytes() - self.max_bytes
        for sha256, image in list(self._images.items()):
            if over <= 0:
                return
            if image.runs == 0 and image is not keep:
                over -= image.nbytes
                del self._images[sha256]


def read_upload(data: bytes, *, accept_image: bool = False) -> tuple[Radiograph, str | None]:
    """The radiograph in an upload, a file's bytes or an :class:`~.protocol.ArrayImage`'s, and why it was refused at
    reading when it is accepted all the same.

    Raises:
        RadiographError: it cannot be read.
        RadiographRefused: it can, and is not one grey image of a usable size.
    """
    if data.startswith(ARRAY_START):
        try:
            return _of_array(ArrayImage.from_bytes(data), data), None
        except ValueRefused as problem:
            raise RadiographError(str(problem)) from None
    try:
        return read_radiograph(data, name=_NAME), None
    except RadiographRefused as refusal:
        if not accept_image:
            raise
        return read_radiograph(data, name=_NAME, accept_image=True), str(refusal)


def _of_array(image: ArrayImage, data: bytes) -> Radiograph:
    rows, columns = image.values.shape
    check_size(rows, columns, _NAME)
    with np.errstate(over="ignore"):
        pixels = image.values if image.dense_is_bright else _mirrored(image.values)
        values = pixels.astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueRefused("The image holds values beyond the range of a 32-bit float.")
    record = ImageRecord(
        sha256=sha256_of(data),
        source="array",
        size=(rows, columns),
        photometric="MONOCHROME2" if image.dense_is_bright else "MONOCHROME1",
        spacing_mm=image.spacing_mm,
        spacing_kind=image.spacing_kind,
    )
    display = shown(pixels)
    for array in (values, display):
        array.flags.writeable = False
    return Radiograph(values=values, display=display, record=record)


def _mirrored(values: np.ndarray) -> np.ndarray:
    """Upside down within the values' own range."""
    if values.dtype.kind == "f":
        return values.max() - values + values.min()
    wide = values.astype(np.int64)
    return (wide.max() + wide.min() - wide).astype(values.dtype)
