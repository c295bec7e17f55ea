"""What the tests of the batch share: the phantom as an installed backend, and calls of the command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from phantom_backend import SEEN_VARIABLE
from phantom_backend import phantom_bundle as installed


class Ended:
    """How a call of the command ended."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture(scope="session")
def phantom_bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The phantom's bundle; processes started from here find its backend."""
    folder = tmp_path_factory.mktemp("installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", installed(folder)["PYTHONPATH"])
        patch.syspath_prepend(str(folder / "site"))
        yield str(folder / "bundles" / "phantom")


@pytest.fixture
def xflow(phantom_bundle: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Call the command with the phantom's bundle."""
    from xflow_core.cli.app import main

    def call(*arguments: object) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main([*map(str, arguments), "--bundle", phantom_bundle])
        said = capsys.readouterr()
        return Ended(int(ended.value.code or 0), said.out, said.err)

    return call


@pytest.fixture
def started(phantom_bundle: str) -> Callable[..., subprocess.Popen[str]]:
    """Start the command as a process of its own, in a process group of its own."""

    def start(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "xflow_core.cli", *map(str, arguments), "--bundle", phantom_bundle]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    return start


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many questions the engine was asked since the last look."""
    file = tmp_path / "seen.txt"
    monkeypatch.setenv(SEEN_VARIABLE, str(file))

    def look() -> int:
        count = len(file.read_text().splitlines()) if file.exists() else 0
        file.unlink(missing_ok=True)
        return count

    return look
