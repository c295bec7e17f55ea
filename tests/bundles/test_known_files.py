"""Large files are compared with their sha256 once: a changed one is read again, an unchanged one is not."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from pathlib import Path

import pytest

from xflow_core.bundles import known_files, model_files
from xflow_core.bundles.known_files import known_sha256, memory_file, sha256_once
from xflow_core.bundles.model_files import ModelFiles
from xflow_core.domain.errors import BundleError


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A large file (from one byte on, here) that was not touched lately."""
    monkeypatch.setenv("XFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(known_files, "LARGE_BYTES", 1)
    monkeypatch.setattr(model_files, "LARGE_BYTES", 1)
    monkeypatch.setattr(known_files, "_SETTLED_NS", 0)
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights")
    os.utime(path, (time.time() - 60, time.time() - 60))
    return path


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_an_unchanged_file_is_read_once_and_the_log_says_so(weights: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO):
        assert known_sha256(weights) is None
        assert sha256_once(weights) == sha256(b"weights")
        assert "Reading" in caplog.text and "later loads will not" in caplog.text
        caplog.clear()
        assert sha256_once(weights) == known_sha256(weights) == sha256(b"weights")
        assert "not read again" in caplog.text and "Reading" not in caplog.text


def test_a_file_that_changed_is_read_again(weights: Path):
    sha256_once(weights)
    seen = weights.stat()
    weights.write_bytes(b"forgery")  # of the same size, its time set back: the inode's own change tells
    os.utime(weights, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert known_sha256(weights) is None
    assert sha256_once(weights) == sha256(b"forgery")
    other = weights.with_name("other")
    other.write_bytes(b"another")
    os.utime(other, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    other.replace(weights)
    assert sha256_once(weights) == sha256(b"another")


def test_a_file_that_was_just_written_is_not_taken_as_known(weights: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(known_files, "_SETTLED_NS", 60_000_000_000)
    weights.write_bytes(b"changing")
    sha256_once(weights)
    assert known_sha256(weights) is None


def test_small_files_are_always_read(weights: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(known_files, "LARGE_BYTES", 1000)
    sha256_once(weights)
    assert not memory_file().exists()


@pytest.mark.parametrize("found", [b"", b"{", b"[]", b'{"schema": "xflow.known-files/1", "files": {"a": 3}}'])
def test_a_memory_that_cannot_be_read_is_none(weights: Path, found: bytes):
    memory_file().parent.mkdir()
    memory_file().write_bytes(found)
    assert sha256_once(weights) == sha256(b"weights")
    assert known_sha256(weights) == sha256(b"weights")


def test_where_nothing_can_be_remembered_files_are_read_each_time(weights: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XFLOW_CACHE", str(weights))  # a file, no folder
    assert sha256_once(weights) == sha256(b"weights")
    assert known_sha256(weights) is None


def test_a_load_trusts_what_was_compared_and_verifying_reads_all(weights: Path):
    model = ModelFiles("owner/name", "1", str(weights.parent), {weights.name: sha256(b"weights")})
    assert model.unread(weights.parent) == len(b"weights")
    model.verify("tiny", weights.parent, anew=False)
    assert model.unread(weights.parent) == 0
    weights.write_bytes(b"altered")
    for anew in (True, False):
        with pytest.raises(BundleError, match=weights.name):
            model.verify("tiny", weights.parent, anew=anew)
    model = ModelFiles("owner/name", "1", str(weights.parent), {weights.name: "0" * 64})
    with pytest.raises(BundleError, match=weights.name):  # known, but not what this bundle was made with
        model.verify("tiny", weights.parent, anew=False)
