"""Random changes to training pictures: what another machine, patient position or exposure would have made of them."""

from __future__ import annotations

import cv2
import numpy as np

from .pack import bit

cv2.setNumThreads(0)  # the caller says how many threads the training takes

_RIGHT, _LEFT = bit("right lung"), bit("left lung")


def swap_lungs(mask: np.ndarray) -> np.ndarray:
    """A bit mask after mirroring: the lung on the image's left is called the right lung."""
    right, left = mask & _RIGHT > 0, mask & _LEFT > 0
    rest = mask & ~np.uint16(_RIGHT | _LEFT)
    return (rest | right * np.uint16(_LEFT) | left * np.uint16(_RIGHT)).astype(np.uint16)


def intensity(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Exposure, contrast, blur, sharpening, resolution, noise and a smooth bias; float32 in [0, 1]."""
    height, width = picture.shape
    if rng.random() < 0.8:
        picture = np.clip(picture, 1e-4, 1) ** np.float32(np.exp(rng.uniform(-0.55, 0.55)))
    if rng.random() < 0.7:
        mean = picture.mean()
        picture = (picture - mean) * rng.uniform(0.65, 1.4) + mean + rng.uniform(-0.12, 0.12)
    if rng.random() < 0.25:
        soft = cv2.GaussianBlur(picture, (0, 0), rng.uniform(0.5, 1.4))
        picture = soft if rng.random() < 0.6 else np.clip(2 * picture - soft, 0, 1)
    if rng.random() < 0.2:
        small = int(height * rng.uniform(0.4, 0.8))
        picture = cv2.resize(picture, (small, small), interpolation=cv2.INTER_AREA)
        picture = cv2.resize(picture, (width, height), interpolation=cv2.INTER_LINEAR)
    if rng.random() < 0.3:
        picture = picture + rng.standard_normal((height, width), np.float32) * rng.uniform(0.005, 0.03)
    if rng.random() < 0.25:
        bias = rng.standard_normal((3, 3)).astype(np.float32) * 0.05
        picture = picture + cv2.resize(bias, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(picture, 0, 1).astype(np.float32)


def match_histogram(picture: np.ndarray, other: np.ndarray, share: float) -> np.ndarray:
    """A uint8 picture with its grey levels moved by ``share`` towards another's distribution."""
    own = np.cumsum(np.bincount(picture.ravel(), minlength=256)) / picture.size
    theirs = np.cumsum(np.bincount(other.ravel(), minlength=256)) / other.size
    table = np.interp(own, theirs, np.arange(256))
    return (share * table + (1 - share) * np.arange(256)).astype(np.uint8)[picture]


def random_affine(rng: np.random.Generator, *, smallest: float = 0.8, largest: float = 1.25) -> tuple[np.ndarray, bool]:
    """A map from source to target, both in [0, 1] coordinates (2 x 3), and whether it mirrors.

    Scale, aspect up to 10 %, turn up to 10 degrees, shift up to 8 %, mirrored half of the time.
    """
    scale = np.exp(rng.uniform(np.log(smallest), np.log(largest)))
    aspect = np.exp(rng.uniform(-0.1, 0.1))
    angle = np.deg2rad(rng.uniform(-10, 10))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    linear = np.diag([scale * aspect, scale / aspect]) @ turn
    mirrored = bool(rng.random() < 0.5)
    if mirrored:
        linear = np.diag([-1.0, 1.0]) @ linear
    centre = np.array([0.5, 0.5])
    shift = centre + rng.uniform(-0.08, 0.08, 2) - linear @ centre
    return np.hstack([linear, shift[:, None]]), mirrored


def warp(array: np.ndarray, affine: np.ndarray, side: int, *, smooth: bool) -> np.ndarray:
    """A square array through an affine in [0, 1] coordinates onto ``side`` pixels; outside is 0."""
    source = array.shape[0]
    # From the centres of source pixels to the centres of target pixels.
    linear = affine[:, :2] * (side / source)
    shift = affine[:, 2] * side + linear @ np.array([0.5, 0.5]) - 0.5
    matrix = np.hstack([linear, shift[:, None]])
    return cv2.warpAffine(array, matrix, (side, side), flags=cv2.INTER_LINEAR if smooth else cv2.INTER_NEAREST)
