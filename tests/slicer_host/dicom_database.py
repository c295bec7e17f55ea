"""Emulation of ``slicer.dicomDatabase`` (ctkDICOMDatabase): files known by their UIDs, in memory, read with pydicom.

The names and the answers for what is unknown (an empty string or list) are those of ctkDICOMDatabase.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pydicom
from pydicom.dataset import Dataset
from pydicom.tag import Tag


@dataclass(frozen=True)
class _Entry:
    file: str
    header: Dataset

    def uid(self, keyword: str) -> str:
        return str(self.header.get(keyword, ""))


class DicomDatabase:
    """What the module asks of a DICOM database: files in, files and values out by UID.

    ``isOpen`` may be set to False to play a Slicer without a database.
    """

    def __init__(self) -> None:
        self.isOpen = True
        self.databaseFilename = ":memory:"
        self._entries: dict[str, _Entry] = {}

    def insert(self, file: str | Path | Dataset, storeFile: bool = True, generateThumbnail: bool = True) -> None:
        """Index one DICOM file. A file without a SOP Instance UID is left out."""
        path = str(file.filename) if isinstance(file, Dataset) else str(file)
        header = pydicom.dcmread(path, stop_before_pixels=True)
        if "SOPInstanceUID" in header:
            self._entries[str(header.SOPInstanceUID)] = _Entry(str(Path(path).resolve()), header)

    addFile = insert

    def initializeDatabase(self) -> None:
        """Forget every file."""
        self._entries.clear()

    def fileForInstance(self, instance: str) -> str:
        entry = self._entries.get(instance)
        return entry.file if entry else ""

    def filesForInstances(self, instances: Iterable[str]) -> list[str]:
        return [self.fileForInstance(uid) for uid in instances]

    def instanceForFile(self, file: str | Path) -> str:
        path = str(Path(file).resolve())
        return next((uid for uid, entry in self._entries.items() if entry.file == path), "")

    def fileValue(self, file: str | Path, *tag: str | int) -> str:
        """The value of ``"gggg,eeee"`` (or group, element) in a file, as text; empty where there is none."""
        uid = self.instanceForFile(file)
        header = self._entries[uid].header if uid else pydicom.dcmread(file, stop_before_pixels=True)
        return _value(header, tag)

    def instanceValue(self, instance: str, *tag: str | int) -> str:
        entry = self._entries.get(instance)
        return _value(entry.header, tag) if entry else ""

    def cachedTag(self, instance: str, tag: str) -> str:
        return self.instanceValue(instance, tag)

    def filesForSeries(self, series: str, hits: int = -1) -> list[str]:
        found = [entry.file for entry in self._entries.values() if entry.uid("SeriesInstanceUID") == series]
        return found if hits < 0 else found[:hits]

    def instancesForSeries(self, series: str, hits: int = -1) -> list[str]:
        found = [uid for uid, entry in self._entries.items() if entry.uid("SeriesInstanceUID") == series]
        return found if hits < 0 else found[:hits]

    def seriesForStudy(self, study: str) -> list[str]:
        return self._distinct("SeriesInstanceUID", "StudyInstanceUID", study)

    def studiesForPatient(self, patient: str) -> list[str]:
        return self._distinct("StudyInstanceUID", "PatientID", patient)

    def seriesForFile(self, file: str | Path) -> str:
        return self.fileValue(file, "0020,000e")

    def studyForSeries(self, series: str) -> str:
        return next(iter(self._distinct("StudyInstanceUID", "SeriesInstanceUID", series)), "")

    def patientForStudy(self, study: str) -> str:
        return next(iter(self._distinct("PatientID", "StudyInstanceUID", study)), "")

    def patients(self) -> list[str]:
        return list(dict.fromkeys(entry.uid("PatientID") for entry in self._entries.values()))

    def allFiles(self) -> list[str]:
        return [entry.file for entry in self._entries.values()]

    def _distinct(self, wanted: str, where: str, equals: str) -> list[str]:
        found = (entry.uid(wanted) for entry in self._entries.values() if entry.uid(where) == equals)
        return list(dict.fromkeys(found))


def _value(header: Dataset, tag: tuple[str | int, ...]) -> str:
    if len(tag) == 1 and isinstance(tag[0], str):
        group, _, element = tag[0].partition(",")
        key = Tag(int(group, 16), int(element, 16))
    else:
        key = Tag(*tag)
    if key not in header:
        return ""
    value = header[key].value
    if isinstance(value, pydicom.multival.MultiValue):
        return "\\".join(str(one) for one in value)
    return "" if value is None else str(value)
