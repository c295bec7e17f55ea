"""Davidson's and Rao and Kupper's models: known strengths come back, the paper's Table 4 holds together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.evaluation.readers.models import (
    davidson_probabilities,
    fit_davidson,
    fit_rao_kupper,
    pairs_of,
    rao_kupper_probabilities,
)
from xflow_core.domain.errors import ValueRefused

# Table 4 and C.3: ground truth, XFlow, ROSALIA.
DAVIDSON, NU = np.array([0.326, 0.185, -0.511]), 0.232
RAO_KUPPER, THETA = np.array([0.294, 0.170, -0.464]), 1.241
COMPARISONS = 285  # of each pair


def test_the_papers_strengths_imply_its_tie_rate() -> None:
    assert davidson_probabilities(DAVIDSON, NU)[:, 2].mean() == pytest.approx(0.0995, abs=5e-5)
    assert rao_kupper_probabilities(RAO_KUPPER, THETA)[:, 2].mean() == pytest.approx(0.099, abs=5e-4)


def test_the_papers_two_models_describe_the_same_rankings() -> None:
    """What Davidson's strengths lead one to expect, fitted by the other model, is the paper's other column."""
    fit = fit_rao_kupper(davidson_probabilities(DAVIDSON, NU) * COMPARISONS)
    assert fit.sound.all()
    assert fit.strengths[0] == pytest.approx(RAO_KUPPER, abs=0.004)
    assert fit.ties[0] == pytest.approx(THETA, abs=0.0005)


def test_the_papers_preferences_follow_from_its_strengths() -> None:
    assert np.exp(DAVIDSON[0] - DAVIDSON[1]) == pytest.approx(1.15, abs=0.005)
    assert np.exp(DAVIDSON[1] - DAVIDSON[2]) == pytest.approx(2.01, abs=0.005)


@pytest.mark.parametrize(
    ("fit", "probabilities", "tie"),
    [(fit_davidson, davidson_probabilities, 0.4), (fit_rao_kupper, rao_kupper_probabilities, 1.5)],
)
def test_known_strengths_come_back(fit, probabilities, tie: float) -> None:
    strengths = np.array([0.9, 0.2, -0.1, -1.0])
    chances = probabilities(strengths, tie)
    assert chances.sum(axis=1) == pytest.approx(1)
    exact = fit(chances * 100)
    assert exact.strengths[0] == pytest.approx(strengths, abs=1e-6)
    assert exact.ties[0] == pytest.approx(tie, abs=1e-6)

    rng = np.random.default_rng(7)
    drawn = np.stack([[rng.multinomial(2000, chance) for chance in chances] for _ in range(40)])
    sampled = fit(drawn)
    assert sampled.sound.all()
    assert sampled.strengths.mean(axis=0) == pytest.approx(strengths, abs=0.03)
    assert np.abs(sampled.strengths - strengths).max() < 0.2
    assert sampled.ties.mean() == pytest.approx(tie, abs=0.03)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=9, max_size=9))
def test_no_other_strengths_are_likelier(counts: list[int]) -> None:
    outcomes = np.array(counts).reshape(3, 3)
    rng = np.random.default_rng(0)
    for fit, probabilities in (
        (fit_davidson, davidson_probabilities),
        (fit_rao_kupper, rao_kupper_probabilities),
    ):
        best = fit(outcomes)
        assert best.sound.all()
        assert best.strengths.sum() == pytest.approx(0, abs=1e-8)

        def likelihood(strengths: np.ndarray, tie: float, probabilities=probabilities) -> float:
            return float((outcomes * np.log(probabilities(strengths, tie))).sum())

        top = likelihood(best.strengths[0], best.ties[0])
        assert top == pytest.approx(best.log_likelihood[0])
        for _ in range(20):
            other = best.strengths[0] + rng.normal(0, 0.05, 3)
            tie = best.ties[0] * np.exp(rng.normal(0, 0.05))
            if probabilities is davidson_probabilities or tie > 1:
                assert likelihood(other, tie) <= top + 1e-9


def test_without_ties_both_are_the_model_of_bradley_and_terry() -> None:
    outcomes = np.array([[30, 20, 0], [35, 15, 0], [28, 22, 0]])
    one, other = fit_davidson(outcomes), fit_rao_kupper(outcomes)
    assert one.strengths == pytest.approx(other.strengths, abs=1e-6)
    assert (one.ties[0], other.ties[0]) == (0, 1)
    # Maximum likelihood meets each system's number of wins.
    pi = np.exp(one.strengths[0])
    expected = np.zeros(3)
    for i, j in pairs_of(3):
        expected[i] += 50 * pi[i] / (pi[i] + pi[j])
        expected[j] += 50 * pi[j] / (pi[i] + pi[j])
    assert expected == pytest.approx([65, 48, 37], abs=1e-5)


@pytest.mark.parametrize("outcomes", [[[9, 0, 0], [9, 0, 0], [5, 4, 0]], [[0, 0, 9]] * 3])
def test_strengths_that_are_not_finite_are_not_sound(outcomes: list[list[int]]) -> None:
    assert not fit_davidson(np.array(outcomes)).sound.any()
    assert not fit_rao_kupper(np.array(outcomes)).sound.any()


@pytest.mark.parametrize("outcomes", [np.ones((2, 3)), np.ones(3), -np.ones((3, 3)), np.full((3, 3), np.nan)])
def test_what_is_no_count_is_refused(outcomes: np.ndarray) -> None:
    with pytest.raises(ValueRefused):
        fit_davidson(outcomes)
