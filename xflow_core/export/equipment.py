"""How XFlow names itself in every DICOM object: the equipment, the algorithm, and whether a person has looked at it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import highdicom as hd
from pydicom.sr.coding import Code as DicomCode

from xflow_core import NOT_FOR_CLINICAL_USE, __version__
from xflow_core.domain.codes import ARTIFICIAL_INTELLIGENCE, Code
from xflow_core.domain.trace import BundleIdentity

MANUFACTURER = "XFlow"

REVIEW_STATES: Mapping[bool, str] = MappingProxyType(
    {
        False: f"AI result, not reviewed; {NOT_FOR_CLINICAL_USE}",
        True: f"AI result, reviewed; {NOT_FOR_CLINICAL_USE}",
    }
)
"""By whether a person has looked at the result and stands by it: the content description of every object."""


def equipment(bundle: BundleIdentity) -> dict[str, Any]:
    """What highdicom's objects want to know of the device (PS3.3 C.7.5.1): the bundle and the program that ran it."""
    return {
        "manufacturer_model_name": long_string(bundle.name),
        "software_versions": (f"xflow {__version__}", long_string(f"{bundle.name} {bundle.version}")),
        "device_serial_number": long_string(bundle.sha256),
    }


def algorithm(bundle: BundleIdentity) -> hd.AlgorithmIdentificationSequence:
    """The bundle as Algorithm Identification (PS3.3 10.16): name, version, and its sha256 as a parameter."""
    return hd.AlgorithmIdentificationSequence(
        name=long_string(f"XFlow {bundle.name}"),
        family=dicom_code(ARTIFICIAL_INTELLIGENCE),
        version=long_string(bundle.version),
        source=MANUFACTURER,
        parameters={"sha256": bundle.sha256},
    )


def dicom_code(code: Code) -> DicomCode:
    """The code as pydicom and highdicom want it."""
    return DicomCode(code.value, code.scheme, code.meaning)


def long_string(text: str) -> str:
    """A value of the type LO: at most 64 characters, no backslash."""
    return text.replace("\\", "/")[:64]
