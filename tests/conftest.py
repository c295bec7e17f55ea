"""What the tests share: where real radiographs lie, and no network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def pack() -> Path:
    """The open chest X-ray pack (``XFLOW_DATA``, or ``../shared/data`` beside the project)."""
    folder = Path(os.environ.get("XFLOW_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "manifest.csv").is_file():
        pytest.skip(f"the open chest X-ray pack is not at {folder} (set XFLOW_DATA)")
    return folder


@pytest.fixture(scope="session")
def rg1() -> Path:
    """The demo's radiograph: RG1_J2KI.dcm of the pydicom-data package."""
    from pydicom.data import get_testdata_file

    path = get_testdata_file("RG1_J2KI.dcm", download=False)
    assert path is not None, "install pydicom-data (the test extra)"
    return Path(path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """In CI nothing may skip: whatever a test needs, .ci/run installs."""
    if os.environ.get("CI") and terminalreporter.stats.get("skipped"):
        terminalreporter.write_line("a test was skipped, which CI does not allow", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
