"""Bradley-Terry models with ties: Davidson (1970) and Rao and Kupper (1967), by maximum likelihood (paper, C.3).

Both give each system a strength pi and all pairs one parameter for ties:

    Davidson     P(i > j) = pi_i / D,  P(i ~ j) = nu sqrt(pi_i pi_j) / D,  D = pi_i + pi_j + nu sqrt(pi_i pi_j)
    Rao-Kupper   P(i > j) = pi_i / (pi_i + theta pi_j),  P(i ~ j) = (theta^2 - 1) P(i > j) P(j > i)

Log-strengths are centred to sum to zero. The log-likelihoods are concave in (log pi, log nu) and in (log pi, log
theta), so Newton's method finds the one maximum; it runs on many samples at once, which makes a bootstrap of thousands
cheap. Without any tie nu is 0 and theta 1: the model of Bradley and Terry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from xflow_core.domain.errors import ValueRefused

_TURNS = 60
_BOUND = 12.0  # a log-strength beyond e^12 : 1 is a maximum at infinity

# Log-likelihood, gradient and negated Hessian at parameters [B, S + 1]; the last parameter is that of ties.
_Objective = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Fits:
    """A model fitted to B samples.

    strengths: centred log-strengths, ``[B, S]``. ties: nu or theta, ``[B]``. sound: whether the maximum is finite and
    was found, ``[B]``; the numbers of a sample that is not sound mean nothing. log_likelihood: ``[B]``.
    """

    strengths: np.ndarray
    ties: np.ndarray
    sound: np.ndarray
    log_likelihood: np.ndarray


def pairs_of(systems: int) -> list[tuple[int, int]]:
    """The pairs in the order of the outcomes' second axis."""
    return list(combinations(range(systems), 2))


def davidson_probabilities(strengths: np.ndarray, nu: float) -> np.ndarray:
    """``[P, 3]``: for each pair, that the first is preferred, the second, neither."""
    first, second = np.array(pairs_of(len(strengths))).T
    pi = np.exp(strengths)
    weights = np.stack([pi[first], pi[second], nu * np.sqrt(pi[first] * pi[second])], axis=1)
    return weights / weights.sum(axis=1, keepdims=True)


def rao_kupper_probabilities(strengths: np.ndarray, theta: float) -> np.ndarray:
    """``[P, 3]``: for each pair, that the first is preferred, the second, neither."""
    first, second = np.array(pairs_of(len(strengths))).T
    pi = np.exp(strengths)
    one = pi[first] / (pi[first] + theta * pi[second])
    other = pi[second] / (pi[second] + theta * pi[first])
    return np.stack([one, other, (theta**2 - 1) * one * other], axis=1)


def fit_davidson(outcomes: np.ndarray) -> Fits:
    """Fit Davidson's model; ``ties`` is nu.

    Args:
        outcomes: counts ``[B, P, 3]`` or ``[P, 3]``: for each pair (:func:`pairs_of`) how often the first was
            preferred, the second, neither.

    Raises:
        ValueRefused: the counts have another shape, or are negative or not finite.
    """
    counts, systems = _checked(outcomes)
    tied = counts[:, :, 2].sum(axis=1) > 0
    # Log-weights of a pair's outcomes are linear in the parameters: a multinomial logit.
    design = np.zeros((counts.shape[1], 3, systems + 1))
    for k, (i, j) in enumerate(pairs_of(systems)):
        design[k, 0, i] = design[k, 1, j] = design[k, 2, systems] = 1.0
        design[k, 2, i] = design[k, 2, j] = 0.5
    totals = counts.sum(axis=2)

    def objective(parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        scores = np.einsum("pos,bs->bpo", design, parameters)
        scores[~tied, :, 2] = -np.inf
        top = scores.max(axis=2, keepdims=True)
        log_sum = top + np.log(np.exp(scores - top).sum(axis=2, keepdims=True))
        chance = np.exp(scores - log_sum)
        likelihood = (counts * np.where(counts > 0, scores - log_sum, 0.0)).sum(axis=(1, 2))
        gradient = np.einsum("bpo,pos->bs", counts - totals[:, :, None] * chance, design)
        middle = np.einsum("bpo,pos->bps", chance, design)
        spread = np.einsum("bp,bpo,pos,pot->bst", totals, chance, design, design)
        return likelihood, gradient, spread - np.einsum("bp,bps,bpt->bst", totals, middle, middle)

    parameters, likelihood, sound = _newton(objective, np.zeros((len(counts), systems + 1)), tied)
    ties = np.where(tied, np.exp(np.clip(parameters[:, -1], -700, 700)), 0.0)
    return Fits(parameters[:, :-1], ties, sound, likelihood)


def fit_rao_kupper(outcomes: np.ndarray) -> Fits:
    """Fit the model of Rao and Kupper; ``ties`` is theta. Arguments and errors as :func:`fit_davidson`."""
    counts, systems = _checked(outcomes)
    tie_counts = counts[:, :, 2].sum(axis=1)
    tied = tie_counts > 0
    difference = np.zeros((counts.shape[1], systems))
    for k, (i, j) in enumerate(pairs_of(systems)):
        difference[k, i], difference[k, j] = 1.0, -1.0
    one, other = counts[:, :, 0] + counts[:, :, 2], counts[:, :, 1] + counts[:, :, 2]

    def objective(parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        gap = parameters[:, :-1] @ difference.T
        log_theta = parameters[:, -1:]
        outside = tied & (log_theta[:, 0] <= 0)
        safe = np.where(outside | ~tied, 1.0, log_theta[:, 0])
        likelihood = -(one * np.logaddexp(0, log_theta - gap) + other * np.logaddexp(0, log_theta + gap)).sum(axis=1)
        likelihood += np.where(tied, tie_counts * np.log(np.expm1(2 * safe)), 0.0)
        likelihood[outside] = -np.inf
        a, b = _sigmoid(gap - log_theta), _sigmoid(-gap - log_theta)
        by_gap = one * (1 - a) - other * (1 - b)
        by_theta = -(one * (1 - a) + other * (1 - b)).sum(axis=1) + tie_counts * 2 / -np.expm1(-2 * safe)
        gradient = np.column_stack([by_gap @ difference, by_theta])
        u, v = one * a * (1 - a), other * b * (1 - b)
        hessian = np.zeros((len(counts), systems + 1, systems + 1))
        hessian[:, :-1, :-1] = np.einsum("bp,ps,pt->bst", u + v, difference, difference)
        hessian[:, :-1, -1] = hessian[:, -1, :-1] = (v - u) @ difference
        curve = 4 * np.exp(-2 * safe) / np.expm1(-2 * safe) ** 2
        hessian[:, -1, -1] = (u + v).sum(axis=1) + tie_counts * curve
        return likelihood, gradient, hessian

    start = np.zeros((len(counts), systems + 1))
    start[tied, -1] = 0.2
    parameters, likelihood, sound = _newton(objective, start, tied)
    return Fits(parameters[:, :-1], np.where(tied, np.exp(np.clip(parameters[:, -1], 0, 700)), 1.0), sound, likelihood)


def _newton(
    objective: _Objective, parameters: np.ndarray, tied: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Damped Newton steps for every sample; the tie parameter of a sample without ties stays where it is."""
    systems = parameters.shape[1] - 1
    # The likelihood does not change when all strengths grow alike; this keeps their sum at zero.
    gauge = np.zeros((systems + 1, systems + 1))
    gauge[:-1, :-1] = 1.0
    likelihood, gradient, hessian = objective(parameters)
    scale = np.maximum(1.0, np.abs(likelihood))
    for _ in range(_TURNS):
        gradient[~tied, -1] = 0.0
        hessian[~tied, -1, :] = hessian[~tied, :, -1] = 0.0
        hessian[~tied, -1, -1] = 1.0
        if (np.abs(gradient).max(axis=1) < 1e-9 * scale).all():
            break
        ridge = 1e-12 * (1.0 + np.trace(hessian, axis1=1, axis2=2))[:, None, None] * np.eye(systems + 1)
        step = np.linalg.solve(hessian + gauge + ridge, gradient[:, :, None])[:, :, 0]
        step *= np.minimum(1.0, 2.0 / np.maximum(np.abs(step).max(axis=1), 1e-300))[:, None]
        share = np.ones(len(parameters))
        for _ in range(30):
            tried = objective(parameters + share[:, None] * step)[0]
            worse = ~(tried >= likelihood - 1e-12 * scale)
            if not worse.any():
                break
            share[worse] /= 2
        share[worse] = 0.0
        parameters = np.clip(parameters + share[:, None] * step, -4 * _BOUND, 4 * _BOUND)
        likelihood, gradient, hessian = objective(parameters)
    gradient[~tied, -1] = 0.0
    found = np.abs(gradient).max(axis=1) < 1e-6 * scale
    return parameters, likelihood, found & (np.abs(parameters).max(axis=1) < _BOUND)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


def _checked(outcomes: np.ndarray) -> tuple[np.ndarray, int]:
    counts = np.array(outcomes, float)
    counts = counts[None] if counts.ndim == 2 else counts
    pairs = counts.shape[1] if counts.ndim == 3 else 0
    systems = round((1 + (1 + 8 * pairs) ** 0.5) / 2)
    if counts.ndim != 3 or counts.shape[2] != 3 or not pairs or systems * (systems - 1) // 2 != pairs:
        raise ValueRefused(f"Outcomes are counts [samples, pairs, 3] of all pairs, not of shape {counts.shape}.")
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise ValueRefused("Outcomes are counts: finite and not below zero.")
    return counts, systems
