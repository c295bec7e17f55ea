"""Pictures that are not one frontal chest radiograph, for the guard to learn: made, or shipped inside packages.

Slices and projections of one open chest CT (frontal projections are kept apart as positives), drawn limbs and skulls,
test patterns, text, noise, and the photographs and DICOM test images of scikit-image and pydicom. Nothing is
downloaded, and nothing of the pack's ``dicom`` folder is used: that folder is the held-out check.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
from scipy import ndimage

from xflow_core.radiograph.square import to_square

from .pack import stretch

_HELD_OUT = ("RG1", "RG3")


def _grey8(array: np.ndarray) -> np.ndarray:
    """Any 2-D array as the engine's 8-bit grey."""
    array = np.nan_to_num(np.asarray(array, np.float32))
    low, high = float(array.min()), float(array.max())
    if high <= low:
        return np.full(array.shape, int(np.clip(low, 0, 255)), np.uint8)
    return stretch(((array - low) * (255.0 / (high - low))).astype(np.uint8))


def _volume(data: Path) -> np.ndarray:
    """The CT as attenuation ``[z, y, x]`` on about 2.8 mm cubes, air 0, head first."""
    import SimpleITK

    image = SimpleITK.ReadImage(str(data / "ct" / "cxr_256.nii.gz"))
    hounsfield = SimpleITK.GetArrayFromImage(SimpleITK.DICOMOrient(image, "LPS")).astype(np.float32)
    attenuation = np.clip((hounsfield + 1000) / 1000, 0, 3)
    return ndimage.zoom(attenuation, (2.5 / 2.8, 0.5, 0.5), order=1)[::-1]


def _projection(volume: np.ndarray, rng: np.random.Generator, yaw: float, pitch: float) -> np.ndarray:
    """A parallel radiograph, bones bright; yaw 0 is frontal, 90 lateral (degrees)."""
    turned = ndimage.rotate(volume, yaw, axes=(1, 2), reshape=True, order=1)
    if pitch:
        turned = ndimage.rotate(turned, pitch, axes=(0, 1), reshape=False, order=1)
    bone = np.maximum(turned - 1.15, 0) * rng.uniform(0.5, 4)
    path = (turned + bone).sum(1)
    path = path / max(float(path.max()), 1e-6)
    return path ** rng.uniform(0.5, 1.3)


def _framed(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Cut or padded by up to 12 % on each side."""
    height, width = picture.shape
    edges = rng.uniform(-0.12, 0.12, 4)
    padded = np.pad(picture, ((height // 8,) * 2, (width // 8,) * 2))
    top, bottom = height // 8 + int(edges[0] * height), height // 8 + height - int(edges[1] * height)
    left, right = width // 8 + int(edges[2] * width), width // 8 + width - int(edges[3] * width)
    return padded[top:bottom, left:right]


def frontal_projections(data: Path, count: int, seed: int, side: int) -> np.ndarray:
    """uint8 ``[count, side, side]``: frontal views of the CT, within 15 degrees."""
    rng = np.random.default_rng(seed)
    volume = _volume(data)
    made = [_framed(_projection(volume, rng, rng.uniform(-15, 15), rng.uniform(-8, 8)), rng) for _ in range(count)]
    return _stack(made, side)


def lateral_projections(data: Path, count: int, seed: int, side: int) -> np.ndarray:
    """uint8 ``[count, side, side]``: left and right lateral views of the CT, within 10 degrees."""
    rng = np.random.default_rng(seed)
    volume = _volume(data)
    made = []
    for index in range(count):
        yaw = (90.0 if index % 2 else -90.0) + rng.uniform(-10, 10)
        made.append(_framed(_projection(volume, rng, yaw, rng.uniform(-8, 8)), rng))
    return _stack(made, side)


def _other_projections(volume: np.ndarray, rng: np.random.Generator) -> Iterator[np.ndarray]:
    for index in range(130):
        yaw = rng.choice([-1, 1]) * (rng.normal(90, 6) if index % 2 else rng.uniform(50, 130))
        yield _framed(_projection(volume, rng, float(yaw), rng.uniform(-8, 8)), rng)
    depth = volume.shape[0]
    for _ in range(40):  # the neck's and the belly's share of a frontal view
        picture = _projection(volume, rng, rng.uniform(-30, 30), 0.0)
        cut = int(depth * rng.uniform(0.25, 0.4))
        yield picture[:cut] if rng.random() < 0.5 else picture[-cut:]
    for _ in range(20):  # seen along the body
        yield _framed((volume ** rng.uniform(0.7, 1.5)).sum(0), rng)


def _slices(volume: np.ndarray, rng: np.random.Generator) -> Iterator[np.ndarray]:
    for _ in range(150):
        axis = int(rng.choice([0, 0, 1, 2]))
        plane = volume.take(int(volume.shape[axis] * rng.uniform(0.15, 0.85)), axis)
        low = rng.choice([0.0, 0.6, 0.9])
        yield _framed(np.clip(plane, low, low + rng.choice([0.25, 0.5, 1.2])), rng)


def _capsule(shape: tuple[int, int], start: np.ndarray, end: np.ndarray, radius: np.ndarray | float) -> np.ndarray:
    """Thickness of a cylinder from start to end, as X-rays see it (0 outside, 1 on the axis)."""
    rows, columns = np.mgrid[: shape[0], : shape[1]].astype(np.float32)
    points = np.stack([columns, rows], -1)
    axis = end - start
    along = np.clip(((points - start) @ axis) / float(axis @ axis), 0, 1)
    distance = np.linalg.norm(points - (start + along[..., None] * axis), axis=-1)
    return np.sqrt(np.clip(1 - (distance / radius) ** 2, 0, None))


def _limb(rng: np.random.Generator) -> np.ndarray:
    """A leg, an arm or a hand: soft tissue with one to five bones, joints, sometimes a pair."""
    shape = (256, 256)
    picture = np.zeros(shape, np.float32)
    angle = rng.normal(0, 0.35)
    direction = np.array([np.sin(angle), np.cos(angle)])
    across = np.array([direction[1], -direction[0]])
    limbs = int(rng.choice([1, 1, 1, 2, 5]))
    for limb in range(limbs):
        offset = across * ((limb - (limbs - 1) / 2) * 230 / limbs + rng.normal(0, 6))
        width = rng.uniform(0.6, 1.0) * 110 / limbs
        middle = np.array([128.0, 128.0]) + offset
        length = rng.uniform(110, 220)
        ends = (middle - direction * length, middle + direction * length)
        picture += rng.uniform(0.4, 0.9) * _capsule(shape, *ends, width)
        pair = 2 if limbs <= 2 and rng.random() < 0.5 else 1
        joint = rng.uniform(-80, 80)
        for bone in range(pair):
            beside = across * ((bone - (pair - 1) / 2) * width * 0.8)
            thick = width * rng.uniform(0.18, 0.4) / (1 + 0.4 * (pair - 1))
            for begin, end in ((-length, joint - thick * 0.9), (joint + thick * 0.9, length)):
                if end - begin < 2 * thick:
                    continue
                p, q = middle + beside + direction * begin, middle + beside + direction * end
                shell = _capsule(shape, p, q, thick) - rng.uniform(0.3, 0.7) * _capsule(shape, p, q, thick * 0.7)
                picture += rng.uniform(0.5, 1.2) * shell
                for knob in (begin, end):
                    spot = middle + beside + direction * knob
                    picture += 0.5 * _capsule(shape, spot - across * thick * 0.6, spot + across * thick * 0.6, thick)
    grain = cv2.GaussianBlur(rng.standard_normal(shape).astype(np.float32), (0, 0), rng.uniform(1, 4))
    return picture + grain * rng.uniform(0, 0.12)


def _skull(rng: np.random.Generator) -> np.ndarray:
    """Nested ellipses: a rim of bone, darker inside, a few blobs."""
    shape = (256, 256)
    rows, columns = np.mgrid[:256, :256].astype(np.float32)
    picture = np.zeros(shape, np.float32)
    cx, cy = rng.uniform(105, 150, 2)
    a, b = rng.uniform(60, 110), rng.uniform(70, 120)
    outer = ((columns - cx) / a) ** 2 + ((rows - cy) / b) ** 2
    picture += (outer < 1) * rng.uniform(0.3, 0.8) + ((outer < 1) & (outer > rng.uniform(0.75, 0.92))) * 0.8
    for _ in range(int(rng.integers(2, 9))):
        x, y, r = cx + rng.normal(0, a / 2), cy + rng.normal(0, b / 2), rng.uniform(5, 28)
        blob = np.exp(-(((columns - x) ** 2 + ((rows - y) * rng.uniform(0.6, 1.6)) ** 2) / (2 * r * r)))
        picture += blob * rng.uniform(-0.6, 0.7)
    return cv2.GaussianBlur(picture, (0, 0), rng.uniform(0.8, 2.5))


def _patterns(rng: np.random.Generator) -> Iterator[np.ndarray]:
    rows, columns = np.mgrid[:256, :256].astype(np.float32)
    for _ in range(130):
        kind = int(rng.integers(0, 9))
        angle = rng.uniform(0, np.pi)
        ramp = columns * np.cos(angle) + rows * np.sin(angle)
        if kind == 0:
            yield np.full((256, 256), rng.uniform(0, 255), np.float32)
        elif kind == 1:
            yield ramp
        elif kind == 2:
            yield np.sin(ramp * rng.uniform(0.02, 0.6))
        elif kind == 3:
            cell = int(rng.integers(8, 64))
            yield ((rows // cell + columns // cell) % 2).astype(np.float32)
        elif kind == 4:
            noise = rng.standard_normal((256, 256)).astype(np.float32)
            yield cv2.GaussianBlur(noise, (0, 0), float(np.exp(rng.uniform(-1, 3.3))))
        elif kind == 5:
            yield np.hypot(rows - rng.uniform(60, 200), columns - rng.uniform(60, 200)) % rng.uniform(20, 200)
        elif kind == 6:  # steps of grey, as on a monitor test picture
            steps = np.floor(columns / rng.uniform(10, 50)) * 16
            yield steps + np.floor(rows / rng.uniform(10, 80)) * rng.uniform(0, 16)
        elif kind == 7:
            page = np.full((256, 256), rng.choice([0, 255]), np.uint8)
            for line in range(int(rng.integers(1, 14))):
                words = "".join(rng.choice(list("abcdefghij KLMNOP 0123456789"), int(rng.integers(3, 26))))
                at = (int(rng.integers(0, 80)), 16 + line * 18)
                size, grey = rng.uniform(0.3, 0.9), int(rng.integers(40, 220))
                cv2.putText(page, words, at, cv2.FONT_HERSHEY_SIMPLEX, size, grey, 1)
            yield page
        else:
            page = np.full((256, 256), rng.uniform(0, 120), np.float32)
            for _ in range(int(rng.integers(2, 15))):
                x, y = rng.integers(0, 256, 2)
                if rng.random() < 0.5:
                    corner = (int(x + rng.integers(5, 120)), int(y + rng.integers(5, 120)))
                    cv2.rectangle(page, (int(x), int(y)), corner, float(rng.uniform(0, 255)), -1)
                else:
                    cv2.circle(page, (int(x), int(y)), int(rng.integers(4, 80)), float(rng.uniform(0, 255)), -1)
            yield page


def _crops(picture: np.ndarray, rng: np.random.Generator, count: int) -> Iterator[np.ndarray]:
    yield picture
    for _ in range(count):
        height, width = (int(n * rng.uniform(0.4, 0.95)) for n in picture.shape)
        if min(height, width) < 16:
            return
        top, left = (int(rng.integers(0, n - m + 1)) for n, m in zip(picture.shape, (height, width), strict=True))
        yield picture[top : top + height, left : left + width]


def _package_folder(package: str, *parts: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"The guard's training needs the package {package}.")
    return Path(spec.origin).parent.joinpath(*parts)


def _photographs(rng: np.random.Generator) -> Iterator[np.ndarray]:
    for path in sorted(_package_folder("skimage", "data").iterdir()):
        if path.suffix in (".png", ".jpg"):
            picture = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
            if picture is not None:
                yield from _crops(picture, rng, 5)


def _dicom_tests(rng: np.random.Generator) -> Iterator[np.ndarray]:
    import pydicom

    for path in sorted(_package_folder("pydicom", "data", "test_files").glob("*.dcm")):
        if path.name.startswith(_HELD_OUT):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                pixels = pydicom.dcmread(path, force=True).pixel_array
        # The folder holds broken files on purpose, each broken in its own way: those that decode are used.
        except Exception:  # noqa: BLE001
            continue
        while pixels.ndim > 2:
            pixels = pixels.mean(-1) if pixels.shape[-1] in (3, 4) else pixels[0]
        if pixels.ndim == 2 and min(pixels.shape) >= 16:
            yield from _crops(pixels.astype(np.float32), rng, 2)


def _stack(pictures: list[np.ndarray], side: int) -> np.ndarray:
    return np.stack([np.rint(to_square(_grey8(picture), side) * 255).astype(np.uint8) for picture in pictures])


def other_pictures(data: Path, seed: int, side: int) -> np.ndarray:
    """uint8 ``[N, side, side]``: about nine hundred pictures that are not a frontal chest radiograph."""
    rng = np.random.default_rng(seed)
    volume = _volume(data)
    pictures = [*_other_projections(volume, rng), *_slices(volume, rng), *_patterns(rng)]
    drawn: tuple[tuple[Callable[[np.random.Generator], np.ndarray], int], ...] = ((_limb, 220), (_skull, 60))
    pictures += [draw(rng) for draw, count in drawn for _ in range(count)]
    pictures += [*_photographs(rng), *_dicom_tests(rng)]
    return _stack(pictures, side)
