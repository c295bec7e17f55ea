"""The benchmark of the foundation engine runs, tiny and on a CPU, through the code that full size runs through."""

from __future__ import annotations

import pytest

from benchmarks.gpu import TINY, rows


@pytest.mark.parametrize("layout", ["adapters", "merged", "nf4"])
def test_the_benchmark_measures_a_whole_answer(layout: str) -> None:
    if layout == "nf4":
        pytest.importorskip("bitsandbytes")
    measured = {what.strip(): figure for what, figure, _ in rows(TINY, layout, "cpu", repeat=2)}
    assert {"verdict and first mask", "lungs", "SAM3 image, recipe included", "one token, plain"} <= measured.keys()
    assert {"one token, fixed", "a token of each of 4"} <= measured.keys()
    assert all(float(figure.split()[0]) > 0 for figure in measured.values())
