"""All DICOM results of an image in one call: segmentation, report, presentation state, and a picture for old viewers.

The command line, the server and 3D Slicer write DICOM through :func:`write_dicom` alone.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydicom.uid import generate_uid

from xflow_core.domain.errors import NotWritten
from xflow_core.domain.trace import Trace

from .dicom_source import SourceInstance, check_traces, read_source
from .files import PR_FILE, SC_FILE, SEG_FILE, SR_FILE, replace_dicom
from .pr import write_pr
from .secondary_capture import stacked, write_secondary_capture
from .seg import GEOMETRIES, WrittenSeg, check_geometry, write_seg
from .sr import write_sr


@dataclass(frozen=True)
class DicomFiles:
    """The files of one image, None for what there was no reason to write.

    Attributes:
        seg: the masks, when a finding is present.
        sr: the report; it states every finding, present, absent or without an answer.
        pr: what was decided, drawn over the source; not where nothing was.
        sc: the overlay, when it was given.
        written_seg: what the SEG holds.
        warnings: sentences for the reader, such as an invented spacing.
    """

    seg: Path | None
    sr: Path
    pr: Path | None
    sc: Path | None
    written_seg: WrittenSeg | None = None
    warnings: tuple[str, ...] = ()

    def by_kind(self) -> dict[str, Path | None]:
        """``seg``, ``sr``, ``pr`` and ``sc``."""
        return {"seg": self.seg, "sr": self.sr, "pr": self.pr, "sc": self.sc}

    @property
    def paths(self) -> tuple[Path, ...]:
        """Those that exist."""
        return tuple(path for path in self.by_kind().values() if path is not None)


def write_dicom(
    folder: str | Path,
    traces: Sequence[Trace],
    source: SourceInstance,
    *,
    geometry: str = "synthetic",
    reviewed: bool = False,
    overlay: np.ndarray | Sequence[np.ndarray] | None = None,
    uids: Callable[[], str] = generate_uid,
) -> DicomFiles:
    """Write ``seg.dcm``, ``sr.dcm``, ``pr.dcm`` and, with an overlay, ``sc.dcm``.

    All are made in a hidden folder beside their place and then take the place of an earlier call's: when anything
    fails, those stand as they were, and files of two calls never stand together (:func:`.files.replace_dicom`).

    Args:
        traces: one per finding, finished, all of the source image.
        geometry: of a SEG whose source has no Frame of Reference: ``synthetic`` or ``none``, see :mod:`.seg`.
        reviewed: whether a person has looked at the result and stands by it.
        overlay: uint8 ``[H, W, 3]``, RGB; several are put one below the other.
        uids: where new UIDs come from.

    Raises:
        ExportError: the traces are not of the source image, or its header cannot be used.
        CallError: the geometry has another name.
        NotWritten: the files cannot be written there.
    """
    check_geometry(geometry)
    check_traces(traces, source)
    folder = Path(folder)
    new = folder / f".dicom.{secrets.token_hex(6)}.part"
    try:
        new.mkdir(parents=True)
        seg = write_seg(new / SEG_FILE, traces, source, geometry=geometry, reviewed=reviewed, uids=uids)
        write_sr(new / SR_FILE, traces, source, seg=seg, reviewed=reviewed, uids=uids)
        if any(trace.steps for trace in traces):
            write_pr(new / PR_FILE, traces, source, reviewed=reviewed, uids=uids)
        if overlay is not None:
            picture = overlay if isinstance(overlay, np.ndarray) else stacked(overlay)
            write_secondary_capture(
                new / SC_FILE, picture, source, bundle=traces[0].bundle, reviewed=reviewed, uids=uids
            )
        written = {path.name for path in new.iterdir()}
        replace_dicom(folder, new)
    except (OSError, NotWritten) as problem:
        cause = problem.__cause__ if isinstance(problem, NotWritten) else problem
        reason = getattr(cause, "strerror", None) or str(problem)
        raise NotWritten(
            f"DICOM results cannot be written to {folder}: {reason}; choose another output folder or make room there."
        ) from problem
    finally:
        shutil.rmtree(new, ignore_errors=True)

    def there(name: str) -> Path | None:
        return folder / name if name in written else None

    return DicomFiles(
        seg=there(SEG_FILE),
        sr=folder / SR_FILE,
        pr=there(PR_FILE),
        sc=there(SC_FILE),
        written_seg=None if seg is None else replace(seg, path=folder / SEG_FILE),
        warnings=() if seg is None else seg.warnings,
    )


__all__ = ["GEOMETRIES", "DicomFiles", "SourceInstance", "read_source", "write_dicom"]
