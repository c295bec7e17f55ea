"""What the engine gets of a volume node: its source file, or its pixels with what they mean.

A DICOM file carries more than Slicer keeps of it (polarity, in which plane the spacing holds, the view), so the engine
reads the file itself wherever there is one. Pixels without a file come with what Slicer can know of them, and each
assumption is a sentence in :attr:`EngineImage.notes`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import slicer
import vtk

from xflow_core.domain.errors import RadiographError, RadiographRefused
from xflow_core.domain.spacing import volume_spacing
from xflow_core.service.protocol import ArrayImage

from .image_frame import ImageFrame

POLARITY = "XFlow.polarity"
"""The node attribute by which the user states the polarity of pixels without a file: ``bright`` or ``dark`` where
dense; see :func:`state_polarity`."""

_PICTURES = (".png", ".jpg", ".jpeg", ".jp2", ".tif", ".tiff", ".bmp", ".gif", ".pgm", ".ppm")
_NOT_DICOM = (*_PICTURES, ".nrrd", ".nhdr", ".nii", ".hdr", ".img", ".mha", ".mhd", ".gipl", ".vtk", ".vti", ".gz")

_HEADER = (
    "SOPClassUID", "SOPInstanceUID", "Rows", "Columns", "NumberOfFrames", "ViewPosition", "ViewCodeSequence",
    "PatientOrientation", "SeriesDescription", "Modality",
)  # fmt: skip

# Rank (0 PA, 1 another frontal view, None not frontal) and name, the first that fits. "Left lateral decubitus" is a
# frontal view of someone lying on the side.
_VIEWS: tuple[tuple[re.Pattern[str], tuple[int | None, str]], ...] = (
    (re.compile(r"\b(LLD|RLD|DECUB\w*)\b"), (1, "decubitus")),
    (re.compile(r"\b(LL|RL|LLAT|RLAT|LAT|LATERAL\w*|SEITLICH)\b"), (None, "lateral")),
    (re.compile(r"\b(LLO|RLO|LAO|RAO|LPO|RPO|OBL\w*)\b"), (None, "oblique")),
    (re.compile(r"\b(PA|POSTER(O|IOR)[ -]?ANTERIOR)\b"), (0, "PA")),
    (re.compile(r"\b(AP|ANTER(O|IOR)[ -]?POSTERIOR)\b"), (1, "AP")),
    (re.compile(r"\b(FRONTAL|ANTERIOR|POSTERIOR)\b"), (1, "frontal")),
)


@dataclass(frozen=True)
class EngineImage:
    """What to send of a volume, where it lies, and what was assumed.

    Attributes:
        source: a DICOM file, to be read (and hashed) in the worker thread, or the pixels.
        key: equal as long as the picture is the same; says nothing of the patient.
        frame: the engine's image <-> RAS and the volume's array.
        notes: sentences for the reader: what was assumed about source, polarity and spacing.
    """

    source: Path | ArrayImage
    key: str
    frame: ImageFrame
    notes: tuple[str, ...] = ()


def engine_image(volume: Any) -> EngineImage:
    """The source file of a volume that came from DICOM, otherwise its pixels.

    Quick enough for the UI thread: of a file the header is read at most, of pixels a copy is made.

    Raises:
        XFlowError: several slices, colour, a label map, nothing loaded; the sentence says what to do.
    """
    _check(volume)
    origin = _origin(volume)
    frame = _frame(volume, origin)
    if origin.file is not None:
        stat = origin.file.stat()
        return EngineImage(origin.file, _key("file", origin.file, stat.st_mtime_ns, stat.st_size), frame)
    dense_is_bright, polarity = _polarity(volume)
    spacing, kind, warnings = _spacing(volume, frame)
    pixels = frame.to_image(slicer.util.arrayFromVolume(volume))
    image = ArrayImage(_sendable(pixels), dense_is_bright, spacing, kind)
    changed = volume.GetImageData().GetPointData().GetScalars().GetMTime()
    notes = [*filter(None, [origin.doubt]), polarity, *warnings]
    if not frame.is_stored:
        notes.append("It is sent the way a slice view shows it, and its masks are turned back.")
    key = _key("pixels", volume.GetID(), changed, dense_is_bright, spacing, frame)
    return EngineImage(image, key, frame, tuple(notes))


def frame_of(volume: Any) -> ImageFrame:
    """Where the engine's image of a volume lies.

    A volume that came from DICOM keeps its stored pixel matrix, also when the file is gone since; any other is taken as
    a slice view shows it, the right way up.

    Raises:
        XFlowError: as :func:`engine_image`.
    """
    _check(volume)
    return _frame(volume, _origin(volume))


def source_file(volume: Any) -> Path | None:
    """The DICOM file whose pixel matrix the volume's is; None when there is none, when it is of another size, or when
    the volume's pixels were changed after they were read."""
    return _origin(volume).file


def instance_of(volume: Any) -> str | None:
    """The SOP Instance UID of a volume that was loaded from one DICOM image; None for any other."""
    uids = _instances(volume)
    return uids[0] if len(uids) == 1 else None


def place_of(volume: Any) -> np.ndarray:
    """The volume's 4 x 4 matrix from voxels to its own RAS, without the transform that it is under."""
    matrix = vtk.vtkMatrix4x4()
    volume.GetIJKToRASMatrix(matrix)
    return slicer.util.arrayFromVTKMatrix(matrix)


def in_place(volume: Any, frame: ImageFrame) -> ImageFrame:
    """``frame`` where the volume lies now: a transform was hardened, or the spacing corrected, since it was made."""
    rows = tuple(tuple(row) for row in place_of(volume).tolist())
    return frame if rows == frame.ijk_to_ras else replace(frame, ijk_to_ras=rows)


def state_polarity(volume: Any, dense_is_bright: bool | None) -> None:
    """Keep with the volume what the user knows of the polarity of its pixels; None takes it back."""
    if dense_is_bright is None:
        volume.RemoveAttribute(POLARITY)
    else:
        volume.SetAttribute(POLARITY, "bright" if dense_is_bright else "dark")


def frontal_of(volumes: Sequence[Any]) -> tuple[Any, str]:
    """Of a study's volumes the frontal radiograph, and a sentence that says which was chosen and why.

    A view named PA goes before AP, any named frontal one before one that names none; of equals the first.

    Raises:
        RadiographRefused: there is no radiograph among them, or none that may be frontal.
    """
    radiographs = [volume for volume in volumes if _is_radiograph(volume)]
    if not radiographs:
        raise RadiographRefused("There is no radiograph among the loaded volumes; load a frontal chest radiograph.")
    views = [_view(volume) for volume in radiographs]
    possible = [(rank, index) for index, (rank, _) in enumerate(views) if rank is not None]
    others = [word or "" for rank, word in views if rank is None]
    if not possible:
        raise RadiographRefused(
            f"{'The radiograph is' if len(views) == 1 else 'All radiographs are'} named as {_listed(others)}; "
            "XFlow reads frontal ones (PA, AP): load the frontal view."
        )
    rank, chosen = min(possible)
    word = views[chosen][1]
    equals = sum(other == rank for other, _ in possible)
    if word is None:
        sentence = "The view is not named; check that it is the frontal one."
        if equals > 1:
            sentence = f"None of {equals} radiographs names its view; the first is used: check that it is frontal."
    elif len(radiographs) == 1:
        sentence = f"The radiograph is named as {word}."
    else:
        sentence = f"Of {len(radiographs)} radiographs the {'first ' if equals > 1 else ''}one named {word} is used."
    if others:
        sentence += f" Left out: {_listed(others)}."
    return radiographs[chosen], sentence


# What kind of volume.


def _check(volume: Any) -> None:
    """Refuse what is not one grey slice."""
    if volume is None or not volume.IsA("vtkMRMLScalarVolumeNode"):
        raise RadiographError("No volume is chosen; load a frontal chest radiograph and choose it.")
    if volume.IsA("vtkMRMLLabelMapVolumeNode"):
        raise RadiographRefused("The volume is a label map, not a radiograph; choose the radiograph.")
    image = volume.GetImageData()
    if image is None or image.GetNumberOfPoints() == 0 or image.GetPointData().GetScalars() is None:
        raise RadiographError("The volume is empty; load the radiograph again.")
    components = image.GetNumberOfScalarComponents()
    if components != 1:
        raise RadiographRefused(
            f"The volume has {components} values a pixel (colour, mostly), and a radiograph has one; make it grey with "
            "the module Vector to Scalar Volume, or load the DICOM file."
        )
    slices = image.GetDimensions()[2]
    if min(image.GetDimensions()) > 1 and _modalities(volume) & {"CR", "DX", "DR", "RG"}:
        # Slicer stacks the images of a series that are of one size, views of any direction.
        raise RadiographRefused(
            f"The volume stacks {slices} radiographs of one series; load them one at a time (module DICOM, Advanced) "
            "and choose the frontal one."
        )
    if min(image.GetDimensions()) > 1:
        raise RadiographRefused(
            f"The volume has {slices} slices, and XFlow reads single radiographs; choose a volume of one slice."
        )


def _is_radiograph(volume: Any) -> bool:
    try:
        _check(volume)
    except RadiographError:
        return False
    return True


# The source file.


@dataclass(frozen=True)
class _Origin:
    """Where a volume's pixels come from: a DICOM file's stored matrix (``is_matrix``), with the file where it is at
    hand; ``doubt`` says why it is not."""

    file: Path | None
    is_matrix: bool
    doubt: str | None = None


def _origin(volume: Any) -> _Origin:
    file, header = _dicom_file(volume)
    columns, rows, slices = volume.GetImageData().GetDimensions()
    if file is None:
        if instance_of(volume) is None:
            return _Origin(None, False)
        doubt = "The DICOM file is not at hand (not in Slicer's database); the volume's pixels are sent."
        return _Origin(None, slices == 1, doubt)
    if (header.Rows, header.Columns, slices) != (rows, columns, 1) or int(header.get("NumberOfFrames") or 1) != 1:
        return _Origin(None, False, "The volume is not its DICOM file's whole image; the volume's pixels are sent.")
    if _changed_since_read(volume):
        return _Origin(
            None, False, "The volume's pixels were changed after loading; they are sent, not the DICOM file."
        )
    return _Origin(file, True)


def _instances(volume: Any) -> list[str]:
    """The SOP Instance UIDs that a volume was loaded from."""
    return (volume.GetAttribute("DICOM.instanceUIDs") or "").split()


def _database() -> Any:
    """Slicer's DICOM database; None when there is none, or it is closed."""
    database = getattr(slicer, "dicomDatabase", None)
    return database if database is not None and database.isOpen else None


def _modalities(volume: Any) -> set[str]:
    """Of the instances that a volume was loaded from, as far as the database knows them."""
    database = _database()
    return set() if database is None else {database.instanceValue(uid, "0008,0060") for uid in _instances(volume)[:2]}


def _dicom_file(volume: Any) -> tuple[Path, Any] | tuple[None, None]:
    """The file that the volume's instance UID or its storage node names, with its header; what is not DICOM is not."""
    candidates = []
    instance = instance_of(volume)
    database = _database()
    if instance and database is not None:
        candidates.append(database.fileForInstance(instance))
    storage = volume.GetStorageNode()
    if storage is not None and storage.GetNumberOfFileNames() <= 1:
        candidates.append(storage.GetFullNameFromFileName())
    for name in filter(None, candidates):
        header = _header(Path(name))
        if header is not None and (instance is None or header.get("SOPInstanceUID") == instance):
            return Path(name), header
    return None, None


def _header(file: Path) -> Any:
    """The few header elements that are needed here; None when the file is gone or is not DICOM."""
    from pydicom import dcmread
    from pydicom.errors import InvalidDicomError

    if file.suffix.lower() in _NOT_DICOM or not file.is_file():
        return None
    try:
        # GDCM, and so Slicer, reads files without the preamble, too.
        header = dcmread(file, force=True, stop_before_pixels=True, specific_tags=list(_HEADER))
        return header if "SOPClassUID" in header and header.Rows and header.Columns else None
    # Forced onto what is not DICOM, pydicom raises what its parsing runs into.
    except (InvalidDicomError, OSError, AttributeError, ValueError, TypeError, KeyError, NotImplementedError):
        return None


def _changed_since_read(volume: Any) -> bool:
    storage = volume.GetStorageNode()
    pixels = volume.GetImageData().GetPointData().GetScalars()
    return storage is not None and 0 < storage.GetStoredTime().GetMTime() < pixels.GetMTime()


def _frame(volume: Any, origin: _Origin) -> ImageFrame:
    dimensions = volume.GetImageData().GetDimensions()
    if origin.is_matrix:
        return ImageFrame.stored(place_of(volume), dimensions)
    return ImageFrame.shown(place_of(volume), dimensions, _linear_transform(volume))


# Pixels without a file.


def _sendable(array: np.ndarray) -> np.ndarray:
    """A copy of its own, in a type that travels."""
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        narrow = np.int32 if array.min() >= -(2**31) and array.max() < 2**31 else np.float64
        return np.ascontiguousarray(array, narrow)
    return np.array(array, order="C", copy=True)


def _polarity(volume: Any) -> tuple[bool, str]:
    stated = volume.GetAttribute(POLARITY)
    if stated in ("bright", "dark"):
        return stated == "bright", f"Polarity as stated by the user: {stated} where dense."
    if instance_of(volume) is not None:
        # GDCM, Slicer's usual reader, inverts MONOCHROME1 while reading: once more would be once too often.
        return True, "Taken as bright where dense, as Slicer's DICOM reader gives it."
    return True, "The volume does not say its polarity; it is taken as bright where dense."


def _spacing(volume: Any, frame: ImageFrame) -> tuple[tuple[float, float] | None, str, tuple[str, ...]]:
    """Real where the format can know it. A picture's 1 mm (or its dots per inch) is no size in the patient."""
    storage = volume.GetStorageNode()
    name = (storage.GetFileName() or "") if storage is not None else ""
    if name.lower().endswith(_PICTURES):
        return None, "none", ("A picture file has no pixel spacing; areas are given in pixels only.",)
    spacing, kind, warnings = volume_spacing(frame.size, frame.spacing_mm)
    if spacing is None and not warnings:
        warnings = ["The volume's spacing is not known to be real (1 mm); areas are given in pixels only."]
    return spacing, kind, tuple(warnings)


def _linear_transform(volume: Any) -> np.ndarray | None:
    """The transform that the volume is shown under, 4 x 4; None for none, or for one that is not linear."""
    transform = volume.GetParentTransformNode()
    if transform is None or not transform.IsTransformToWorldLinear():
        return None
    matrix = vtk.vtkMatrix4x4()
    transform.GetMatrixTransformToWorld(matrix)
    return slicer.util.arrayFromVTKMatrix(matrix)


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


# The view.


def _view(volume: Any) -> tuple[int | None, str | None]:
    """The rank of a view (0 PA, 1 another frontal one, 2 not named, None what is not frontal), and its name."""
    header = _dicom_file(volume)[1]
    if header is None:
        return 2, None
    codes = header.get("ViewCodeSequence") or ()
    stated = f"{header.get('ViewPosition') or ''} {' '.join(str(code.get('CodeMeaning', '')) for code in codes)}"
    found = _named(stated) or _named(str(header.get("SeriesDescription") or ""), free_text=True)
    if found is not None:
        return found
    orientation = header.get("PatientOrientation") or ()
    # The rows of a lateral run to the front or the back.
    if len(orientation) == 2 and any(str(word)[:1] in ("A", "P") for word in orientation):
        return None, "lateral"
    return 2, None


def _named(words: str, free_text: bool = False) -> tuple[int | None, str] | None:
    """The rank and name of the view that is named; only known words are repeated, for people type names here, too."""
    words = words.upper().replace("_", " ")
    found = [view for pattern, view in _VIEWS if pattern.search(words)]
    # A description may name all views of its study ("Chest PA and lateral").
    if not found or (free_text and len({rank is None for rank, _ in found}) > 1):
        return None
    return found[0]


def _listed(words: Sequence[str]) -> str:
    """``lateral``, ``2 lateral and 1 oblique``."""
    counts = {word: words.count(word) for word in words}
    if len(words) == 1:
        return words[0]
    return " and ".join(f"{count} {word}" for word, count in counts.items())
