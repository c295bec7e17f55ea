"""A host in which a scripted Slicer module runs without 3D Slicer.

Real: MRML, its logics and displayable managers (the package ``slicer-core``), Qt (PySide6), VTK, pydicom.
Emulated, each named so where it stands: PythonQt's ways (``pythonqt``), CTK and qMRML widgets (``widgets``), Slicer's
Python classes for scripted modules (``scripted_module``), the application object (``application``), its file dialogue's
back end (``files``), the DICOM database (``dicom_database``) and module (``dicom_lib``), ``slicer.i18n``
(``translation``) and ``slicer.packaging`` (``packaging``).

What runs here has not been run in 3D Slicer. Importing this package imports ``slicer`` and starts nothing: call
:func:`boot`.
"""

from __future__ import annotations

from tests.slicer_host.application import Application, boot
from tests.slicer_host.swallowed import Fault, clear_faults, faults

__all__ = ["Application", "Fault", "boot", "clear_faults", "faults"]
