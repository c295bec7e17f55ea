"""A real Orthanc with its DICOMweb plugin, on loopback, and studies to find in it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pydicom
import pytest
from pacs.servers import ORTHANC, PASSWORD, USER, Orthanc, dicomweb_plugin, running_orthanc
from phantom import LUNG_BOXES, SIZE, phantom_engine
from pydicom.uid import ComputedRadiographyImageStorage, DigitalXRayImageStorageForPresentation, generate_uid
from radiograph.dresses import dataset, written

from xflow_core.cli.app import main

PATIENT = {
    "PatientName": "Quartz^Amethyst",
    "PatientID": "PID-90210",
    "PatientBirthDate": "19520304",
    "AccessionNumber": "ACC-4711",
    "StudyDescription": "Thorax of Mrs Quartz",
}
NOTHING = np.zeros((64, 64), np.uint16)
IDENTITY = ("Quartz", "PID-90210", "19520304", "ACC-4711", "Thorax of")


class Ended(NamedTuple):
    """How a call of the command ended."""

    status: int
    out: str
    err: str

    @property
    def one_line(self) -> bool:
        return self.err.count("\n") == 1 and self.err.startswith("xflow: ")


@pytest.fixture
def xflow(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    def call(*arguments: object) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Ended(int(ended.value.code or 0), said.out, said.err)

    return call


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the developer's credentials nor a proxy for loopback."""
    for name in ("XFLOW_DICOMWEB_USER", "XFLOW_DICOMWEB_PASSWORD", "XFLOW_DICOMWEB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


def _needs_orthanc() -> None:
    if ORTHANC is None:
        pytest.skip("Orthanc is not installed (Debian: orthanc)")
    if dicomweb_plugin() is None:
        pytest.skip("Orthanc's DICOMweb plugin is not installed (Debian: orthanc-dicomweb)")


@pytest.fixture(scope="session")
def orthanc_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orthanc]:
    _needs_orthanc()
    with running_orthanc(tmp_path_factory.mktemp("orthanc")) as running:
        yield running


@pytest.fixture
def orthanc(orthanc_process: Orthanc) -> Orthanc:
    """An Orthanc that wants no credentials, empty."""
    orthanc_process.clear()
    return orthanc_process


@pytest.fixture(scope="session")
def guarded_orthanc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orthanc]:
    """An Orthanc that lets only one user in, with one chest study."""
    _needs_orthanc()
    with running_orthanc(tmp_path_factory.mktemp("guarded"), (USER, PASSWORD)) as running:
        running.put(radiograph(generate_uid()))
        yield running


@pytest.fixture
def phantom_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command answers with the small third backend of the tests, which knows :func:`phantom_radiograph`."""
    monkeypatch.setattr("xflow_core.bundles.loading.load_engine", lambda name, device: phantom_engine()[0])


def radiograph(study: str, pixels: np.ndarray = NOTHING, **attributes: Any) -> bytes:
    """A small radiograph (of nothing) of a study, as a DICOM file; a DX of the chest unless said otherwise."""
    unique = {"SOPInstanceUID": generate_uid(), "SeriesInstanceUID": generate_uid(), "StudyInstanceUID": study}
    digital = {"Modality": "DX", "SOPClassUID": DigitalXRayImageStorageForPresentation, "StudyDate": "20260105"}
    made = dataset(pixels, **(PATIENT | unique | digital | attributes))
    made.file_meta.MediaStorageSOPClassUID = made.SOPClassUID
    made.file_meta.MediaStorageSOPInstanceUID = made.SOPInstanceUID
    return written(made)


def phantom_radiograph(study: str, **attributes: Any) -> bytes:
    """A DX that passes the guards: two dark lungs, a bright disc in each."""
    rows, columns = np.indices(SIZE)
    pixels = 1500 + 6 * rows + np.random.default_rng(0).integers(-90, 90, SIZE)
    for box in LUNG_BOXES.values():
        pixels[box.mask(SIZE)] = 0
    for x, y in ((0.27, 0.5), (0.7, 0.6)):
        disc = (rows - y * SIZE[0]) ** 2 + (columns - x * SIZE[1]) ** 2 <= 20**2
        pixels[disc] = 1200 + 6 * rows[disc]
    return radiograph(study, pixels.astype(np.uint16), **attributes)


def radiograph_of(rg1: Path, study: str, **attributes: Any) -> bytes:
    """RG1, as a CR of a study of our own patient; None takes an attribute away."""
    made = pydicom.dcmread(rg1)
    unique = {"SOPInstanceUID": generate_uid(), "SeriesInstanceUID": generate_uid(), "StudyInstanceUID": study}
    for keyword, value in (PATIENT | unique | {"SOPClassUID": ComputedRadiographyImageStorage} | attributes).items():
        if value is None:
            delattr(made, keyword)
        else:
            setattr(made, keyword, value)
    made.file_meta.MediaStorageSOPClassUID = made.SOPClassUID
    made.file_meta.MediaStorageSOPInstanceUID = made.SOPInstanceUID
    stream = io.BytesIO()
    made.save_as(stream)
    return stream.getvalue()
