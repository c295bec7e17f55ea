"""A real radiograph to dress up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from xflow_core.radiograph.reading import Radiograph, engine_grey, read_radiograph


@pytest.fixture(scope="session")
def demo(rg1: Path) -> Radiograph:
    """The demo's radiograph as it is read."""
    return read_radiograph(rg1)


@pytest.fixture(scope="session")
def picture(demo: Radiograph) -> np.ndarray:
    """A real chest radiograph as 12-bit samples, bright where dense: uint16 ``[488, 460]``, 0 .. 4095, not writable."""
    grey = engine_grey(demo, 0.0, 100.0)[:1952, :1840].reshape(488, 4, 460, 4).mean(axis=(1, 3))
    samples = np.rint((grey - grey.min()) / (grey.max() - grey.min()) * 4095).astype(np.uint16)
    samples.flags.writeable = False
    return samples


@pytest.fixture(scope="session")
def picture_8bit(picture: np.ndarray) -> np.ndarray:
    """The same rounded to 8 bits."""
    return np.rint(picture * (255 / 4095)).astype(np.uint8)
