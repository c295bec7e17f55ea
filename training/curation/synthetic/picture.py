"""The radiograph of a synthetic chest, and the masks of what is in it.

Not physics: soft tissue, air, bone and fluid are laid over each other so that a reader finds the landmarks where they
belong (ribs, clavicles, spine, trachea, aortic knob, heart, domes, hila, stomach bubble). The grey is equalised like
MIMIC-CXR-JPG's, in which the models of the paper saw their pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from xflow_core.domain.findings import LUNGS

from .anatomy import APEX, Anatomy
from .lesions import Lesion, cloud, density_of, mask_of


@dataclass(frozen=True, eq=False)
class Picture:
    """A drawn study. grey: uint8 ``[H, W]``, bones bright. organs: bool masks of the two lungs and the heart.
    findings: bool masks of the present findings."""

    grey: np.ndarray
    organs: dict[str, np.ndarray]
    findings: dict[str, np.ndarray]


def filled(contour: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The pixels inside a contour ``[N, 2]`` (x, y), bool ``[H, W]``."""
    drawn = np.zeros(size, np.uint8)
    cv2.fillPoly(drawn, [np.rint(contour).astype(np.int32)], 1)
    return drawn > 0


def draw(anatomy: Anatomy, lesions: Sequence[Lesion], rng: np.random.Generator) -> Picture:
    """The radiograph and its masks."""
    size = anatomy.frame.size
    x, y = anatomy.frame.grid()
    organs = {label: filled(anatomy.contour(label), size) for label in (*LUNGS, "heart")}
    grey = _body(anatomy, x, y, rng)
    air = {label: _air(anatomy, label, x, y) for label in LUNGS}
    lungs = np.maximum(*air.values())
    grey = grey * (1 - lungs) + lungs * (0.22 + 0.03 * (cloud(size, 6, rng) - 0.5) + 0.05 * np.clip(y + 0.1, -0.4, 0.4))
    grey += lungs * _vessels(anatomy, rng)
    findings: dict[str, np.ndarray] = {}
    displaced = np.zeros(size, np.float32)
    for lesion in lesions:
        if lesion.lung == "heart":
            findings["cardiomegaly"] = organs["heart"]
            continue
        u, v = _lung_frame(anatomy, lesion.lung, x, y)
        density = density_of(lesion, u, v, rng)
        where = mask_of(density) & organs[lesion.lung]
        for name in (lesion.finding, *(("opacity",) if lesion.finding in ("consolidation", "pneumonia") else ())):
            findings[name] = findings[name] | where if name in findings else where
        # Drawn as far as there is air, so that no dark rim is left between it and the chest wall.
        soft = cv2.GaussianBlur(density * (air[lesion.lung] > 0.004), (0, 0), max(anatomy.frame.scale / 160, 0.6))
        grey += soft * np.maximum(0.66 - grey, 0)
        displaced = np.maximum(displaced, soft)
    grey = _centre(anatomy, grey, x, y, rng)
    # Bones stand out from air more than from fluid.
    thorax = np.clip(lungs + 0.25 * _chest_wall(anatomy, x, y), 0, 1)
    grey += thorax * (1 - 0.7 * displaced) * _ribs(anatomy, x, y, rng) + _clavicles(x, y, rng)
    grey = cv2.GaussianBlur(grey.astype(np.float32), (0, 0), max(anatomy.frame.scale / 420, 0.4))
    grey += rng.standard_normal(size, np.float32) * rng.uniform(0.008, 0.016)
    low, high = np.percentile(grey, (0.5, 99.7))
    shown = np.clip((grey - low) / (high - low), 0, 1)
    flat = cv2.equalizeHist(np.rint(shown * 255).astype(np.uint8))
    return Picture(np.rint(0.55 * flat + 0.45 * 255 * shown).astype(np.uint8), organs, findings)


def _rise(value: np.ndarray, sharp: float) -> np.ndarray:
    """0 far below zero, 1 far above it."""
    return 1 / (1 + np.exp(-np.clip(value * sharp, -30, 30)))


def _body(anatomy: Anatomy, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Soft tissue: neck, shoulders, trunk, abdomen, with a stomach bubble under the left dome."""
    wall = max(lung.lateral for lung in anatomy.lungs.values()) + 0.09
    far = np.abs(x)
    # The neck widens into the shoulders, the arms leave the trunk at the axillae.
    shoulder = 0.15 + 0.75 * _rise(y + 0.6, 16)
    arms = 0.75 * _rise(-0.12 - 0.5 * (far - wall) - y, 14)
    body = _rise(np.minimum(shoulder, np.maximum(wall + 0.02 * y, arms)) - far, 32)
    grey = 0.03 + body * (0.50 + 0.1 * np.clip((far - 0.3) / 0.25, 0, 1) + 0.03 * (cloud(x.shape, 5, rng) - 0.5))
    for lung in anatomy.lungs.values():
        below = _rise(y - lung.floor(far), 40) * _rise(x * lung.side, 30)
        grey += body * below * (0.2 if lung.side < 0 else 0.15) * _rise(wall - 0.03 - far, 30)
    left = anatomy.lungs["left lung"]
    bubble = ((x - 0.24) / 0.09) ** 2 + ((y - left.dome - 0.075) / 0.045) ** 2
    return grey - 0.24 * rng.uniform(0.3, 1.0) * np.clip((1 - bubble) * 2, 0, 1)


def _lung_frame(anatomy: Anatomy, label: str, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """u: 0 on the medial border, 1 on the lateral one. v: 0 at the apex, 1 at the costophrenic angle."""
    lung = anatomy.lungs[label]
    # Borders depend on Y alone: interpolated from a table.
    heights = np.linspace(-1.2, 1.2, 481)
    medial = np.interp(y, heights, anatomy.medial_edge(label, heights)).astype(np.float32)
    lateral = np.interp(y, heights, lung.outer_edge(heights)).astype(np.float32)
    return (x * lung.side - medial) / np.maximum(lateral - medial, 0.05), (y - APEX) / lung.height


def _air(anatomy: Anatomy, label: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A lung's air with soft borders, float32 ``[H, W]`` in [0, 1]."""
    mask = filled(anatomy.contour(label), anatomy.frame.size).astype(np.float32)
    return cv2.GaussianBlur(mask, (0, 0), max(anatomy.frame.scale / 110, 0.6))


def _chest_wall(anatomy: Anatomy, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    lateral = max(lung.lateral for lung in anatomy.lungs.values()) + 0.035
    return _rise(lateral - np.abs(x), 60) * _rise(y - APEX + 0.05, 30)


def _vessels(anatomy: Anatomy, rng: np.random.Generator) -> np.ndarray:
    """Branches that leave the hila and thin out, float32 ``[H, W]``."""
    size = anatomy.frame.size
    layer = np.zeros(size, np.float32)
    unit = anatomy.frame.scale
    for lung in anatomy.lungs.values():
        hilum = np.array([lung.side * (lung.inner + 0.015), -0.03 - 0.02 * lung.side])
        for angle in np.linspace(-1.3, 1.4, 8) + rng.uniform(-0.2, 0.2, 8):
            _branch(layer, anatomy, hilum, angle, 0.075, 0.018 * unit / 2, lung.side, rng, 3)
    for label, lung in anatomy.lungs.items():
        centre = anatomy.frame.pixels(
            np.array([[lung.side * (lung.inner + 0.01), -0.03 + 0.02 * (label == "right lung")]])
        )[0]
        axes = (max(round(0.028 * unit), 1), max(round(0.06 * unit), 1))
        spot = np.zeros(size, np.float32)
        cv2.ellipse(spot, (round(centre[0]), round(centre[1])), axes, 0, 0, 360, 1.0, -1)
        layer = np.maximum(layer, 1.3 * cv2.GaussianBlur(spot, (0, 0), max(unit * 0.022, 1.0)))
    return 0.12 * cv2.GaussianBlur(layer, (0, 0), max(unit / 260, 0.5))


def _branch(
    layer: np.ndarray,
    anatomy: Anatomy,
    start: np.ndarray,
    angle: float,
    step: float,
    width: float,
    side: int,
    rng: np.random.Generator,
    depth: int,
) -> None:
    """A vessel and its children, drawn from its start outwards; brightness and width fall with every generation."""
    points = [start]
    for _ in range(3):
        angle += rng.uniform(-0.25, 0.25)
        points.append(points[-1] + step * np.array([side * np.cos(angle), np.sin(angle)]))
    line = np.rint(anatomy.frame.pixels(np.array(points)) * 16).astype(np.int32)
    cv2.polylines(layer, [line], False, 0.15 + 0.22 * depth, max(round(width), 1), cv2.LINE_AA, 4)
    if depth > 1:
        for turn in (-0.3, 0.3):
            _branch(
                layer,
                anatomy,
                points[-1],
                angle + turn * rng.uniform(0.5, 1.3),
                step * 0.72,
                width * 0.62,
                side,
                rng,
                depth - 1,
            )


def _centre(anatomy: Anatomy, grey: np.ndarray, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mediastinum, spine, trachea, aortic knob and heart over the rest."""
    heart = anatomy.heart
    edge = anatomy.frame.scale
    half = 0.062 + 0.03 * np.clip((y - 0.0) / 0.4, -0.6, 1)
    middle = _rise(half - np.abs(x), 70) * _rise(y + 0.95, 20)
    knob = _rise(1 - np.hypot((x - 0.06) / 0.055, (y + 0.235) / 0.075), 6)
    cava = _rise(1 - np.hypot((x + 0.05) / 0.045, (y + 0.14) / 0.22), 6)
    pulmonary = _rise(1 - np.hypot((x - 0.06) / 0.062, (y + 0.09) / 0.13), 6)
    body = _rise(1 - heart.distance(x, y), 0.045 * edge)
    for part, level in ((middle, 0.66), (knob, 0.65), (cava, 0.63), (pulmonary, 0.64), (body, 0.69)):
        grey = grey + part * np.maximum(level - grey, 0)
    vertebrae = _rise(0.05 - np.abs(x), 110) * (0.025 + 0.014 * np.cos((y + 0.03) * 2 * np.pi / 0.088))
    trachea = _rise(0.022 - np.abs(x + 0.008), 130) * _rise(-0.2 - y, 40) * _rise(y + 0.85, 20)
    carina = sum(
        np.exp(-(((np.abs(x - s * (y + 0.2) * 0.75)) / 0.018) ** 2)) * _rise(y + 0.205, 90) * _rise(-0.09 - y, 60)
        for s in (-1.0, 1.0)
    )
    return grey + vertebrae - 0.17 * trachea - 0.07 * carina + 0.02 * (cloud(x.shape, 30, rng) - 0.5)


def _ribs(anatomy: Anatomy, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Posterior ribs that fall outwards from the spine, and fainter anterior ones that fall inwards."""
    layer = np.zeros_like(x)
    wall = max(lung.lateral for lung in anatomy.lungs.values()) + 0.03
    far = np.clip(np.abs(x) / wall, 0, 1.05)
    shift = rng.uniform(-0.01, 0.01) * np.sign(x)
    spacing = rng.uniform(0.092, 0.1)
    bow = 1 - np.sqrt(np.clip(1 - np.minimum(far, 1) ** 2, 0, 1))
    bright = rng.uniform(0.085, 0.115)
    for number in range(11):
        start = -0.575 + spacing * number + shift
        fall = 0.10 + 0.016 * number
        line = start - 0.03 * np.sin(np.pi * np.clip(far, 0, 1)) + fall * (0.5 * far + 0.75 * bow)
        layer += bright * _bone(y - line, 0.021) * _rise(far - 0.1, 40) * _rise(1.02 - far, 40)
    for number in range(7):
        start = -0.44 + spacing * 1.12 * number - shift
        line = start + (0.24 + 0.02 * number) * np.clip(1 - far, 0, 1) ** 1.15 - 0.12 * (far**6)
        fades = np.clip((far - 0.38) / 0.3, 0, 1)
        layer += 0.45 * bright * _bone(y - line, 0.026) * fades * _rise(1.02 - far, 40)
    return layer


def _bone(distance: np.ndarray, half: float) -> np.ndarray:
    """A band with brighter rims, as cortical bone has."""
    t = np.clip(np.abs(distance) / half, 0, 3)
    return np.exp(-(t**6)) * (0.62 + 0.5 * t**2)


def _clavicles(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    far = np.abs(x)
    lift = rng.uniform(-0.02, 0.02)
    line = (
        -0.40 + lift - 0.17 * np.clip(far - 0.05, 0, 1) - 0.035 * np.sin(np.clip((far - 0.05) / 0.42, 0, 1) * 2 * np.pi)
    )
    span = _rise(far - 0.06, 60) * _rise(0.52 - far, 25)
    return 0.11 * _bone(y - line, 0.019) * span
