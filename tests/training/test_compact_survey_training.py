"""What the survey network is taught: the pack as arrays, augmentation that keeps truth in place, silent losses."""

from __future__ import annotations

import csv
from dataclasses import fields, replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from training.compact.augment import random_affine, swap_lungs, warp
from training.compact.pack import BITS, Record, bit, load_pack, stretch
from training.compact.plausible import plausible_lungs
from training.compact.survey import FOLDS, Targets, beside, fold_of, loss_of, targets_of
from training.compact.synthetic import draw_lesion
from xflow_core.domain.errors import CallError
from xflow_core.policies.compact_network import CLASSES, MAPS, SIDE, Survey, SurveyNet, flipped
from xflow_core.radiograph.square import to_square

COLUMNS = ("id", "source", "tier", "split", "patient", "finding", "file", "mask_file", "boxes", "view", "nih_labels")


def record(source: str, *findings: str, labels: tuple[str, ...] = ()) -> Record:
    return Record("a", source, "train", "p", findings, labels, "PA", {}, (64, 64), "a.png")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pack of two pictures: one with lungs, one with an effusion and a box."""
    rng = np.random.default_rng(0)
    rows = []
    lungs = np.zeros((60, 80), np.uint8)
    lungs[10:50, 8:34] = lungs[12:48, 46:72] = 255
    effusion = np.zeros((60, 80), np.uint8)
    effusion[40:50, 50:70] = 255
    for name, source, finding, mask in (
        ("one", "montgomery_lung_512", "lung", lungs),
        ("two", "nih_chestxdet_256", "effusion", effusion),
    ):
        cv2.imwrite(str(tmp_path / f"{name}.png"), rng.integers(20, 200, (60, 80), np.uint8))
        cv2.imwrite(str(tmp_path / f"{name}_mask.png"), mask)
        rows.append((name, source, "A", "train", name, finding, f"{name}.png", f"{name}_mask.png", "", "PA", ""))
    rows.append(("two", "nih_chestxdet_256", "A", "train", "two", "mass", "two.png", "", "[[8, 6, 16, 12]]", "PA", ""))
    with (tmp_path / "manifest.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    return tmp_path


def test_a_pack_is_read_as_pictures_bits_and_boxes(folder: Path, tmp_path: Path) -> None:
    pack = load_pack(folder, tmp_path / "cache", 64)
    lungs, effusion = pack.records
    assert lungs.has_lungs and effusion.contoured
    assert effusion.boxes == {"mass": ((0.1, 0.1, 0.2, 0.2),)}
    right, left = pack.mask(0, "right lung"), pack.mask(0, "left lung")
    assert right[:, :32].any() and not right[:, 32:].any()
    assert left[:, 32:].any() and not left[:, :32].any()
    assert pack.mask(1, "effusion").mean() == pytest.approx(200 / 4800, rel=0.1)


def test_a_pack_that_was_read_before_is_the_same(folder: Path, tmp_path: Path) -> None:
    first = load_pack(folder, tmp_path / "cache", 64)
    again = load_pack(folder, tmp_path / "cache", 64)
    assert again.records == first.records
    assert np.array_equal(again.masks, first.masks) and np.array_equal(again.images, first.images)


def test_a_folder_that_is_no_pack_and_a_lost_picture_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CallError, match="is not the pack of radiographs: No such file or directory"):
        load_pack(tmp_path / "nowhere", tmp_path / "cache", 64)
    (folder / "two.png").unlink()
    with pytest.raises(CallError, match=r"two\.png is not a readable picture"):
        load_pack(folder, tmp_path / "cache", 64)


def test_a_patient_in_both_splits_is_an_error(folder: Path, tmp_path: Path) -> None:
    manifest = folder / "manifest.csv"
    text = manifest.read_text().replace("train,one", "dev,two")
    manifest.write_text(text)
    with pytest.raises(ValueError, match="both splits"):
        load_pack(folder, tmp_path / "cache", 64)


def test_the_stretch_ignores_how_bright_the_file_was() -> None:
    grey = np.random.default_rng(0).integers(0, 120, (50, 50), np.uint8)
    assert np.abs(stretch(grey).astype(int) - stretch(grey + 100).astype(int)).max() <= 1


def test_the_square_keeps_normalised_places() -> None:
    grey = np.zeros((300, 200), np.float32)
    grey[150:225, 50:100] = 1
    square = to_square(grey, 100)
    rows, columns = np.nonzero(square > 0.5)
    assert (rows.min(), rows.max() + 1, columns.min(), columns.max() + 1) == (50, 75, 25, 50)


def test_a_warped_mask_stays_on_its_picture() -> None:
    rng = np.random.default_rng(3)
    picture = np.zeros((320, 320), np.uint8)
    picture[100:180, 60:140] = 200
    for _ in range(10):
        affine, _ = random_affine(rng)
        seen = warp(picture, affine, 256, smooth=True) > 100
        mask = warp((picture > 0).astype(np.uint16), affine, 128, smooth=False) > 0
        small = cv2.resize(seen.astype(np.float32), (128, 128), interpolation=cv2.INTER_AREA) > 0.5
        assert (small & mask).sum() / (small | mask).sum() > 0.93


def test_mirroring_renames_the_lungs_and_nothing_else() -> None:
    mask = np.array([[bit("right lung"), bit("left lung"), bit("effusion") | bit("right lung"), 0]], np.uint16)
    swapped = swap_lungs(mask)
    assert swapped.tolist() == [[bit("left lung"), bit("right lung"), bit("effusion") | bit("left lung"), 0]]
    assert np.array_equal(swap_lungs(swapped), mask)


def test_what_a_source_does_not_annotate_is_not_taught() -> None:
    mask = np.zeros((SIDE // 2, SIDE // 2), np.uint16)
    mask[20:80, 10:50] |= np.uint16(bit("right lung"))
    mask[20:80, 78:118] |= np.uint16(bit("left lung"))
    lungs = targets_of(record("montgomery_lung_512", "lung"), mask, False, False)
    assert lungs.map_weights[:2].all() and not lungs.map_weights[2:].any() and not lungs.presence_weights.any()
    drawn = targets_of(record("nih_chestxdet_256", "none_annotated"), mask, False, False)
    assert not drawn.map_weights[:2].any() and drawn.presence_weights.all() and not drawn.presence.any()
    edema = targets_of(record("nih_edema_label_1024", "edema", labels=("Edema",)), mask, False, False)
    assert not edema.map_weights.any() and not edema.presence_weights[:, CLASSES.index("opacity")].any()
    assert edema.presence[:, CLASSES.index("edema")].all() and edema.somewhere[CLASSES.index("edema")] > 0


def test_pneumonia_is_the_consolidation_of_a_report_that_says_so_and_unsure_without_the_word() -> None:
    mask = np.zeros((SIDE // 2, SIDE // 2), np.uint16)
    mask[40:70, 20:50] = bit("consolidation")
    own, index = MAPS.index("pneumonia"), CLASSES.index("pneumonia")
    said = targets_of(record("nih_chestxdet_256", "consolidation", labels=("Pneumonia",)), mask, False, False)
    assert np.array_equal(said.maps[own], said.maps[MAPS.index("consolidation")])
    assert said.presence[:, index].tolist() == [1, 0] and said.presence_weights[:, index].all()
    unsaid = targets_of(record("nih_chestxdet_256", "consolidation"), mask, False, False)
    assert not unsaid.maps[own].any() and not unsaid.map_weights[own][mask > 0].any()
    somewhere = targets_of(record("v7_covid_lung", "lung", labels=("COVID-19",)), mask, False, False)
    assert somewhere.somewhere[index] > 0 and not somewhere.presence_weights.any()


@pytest.mark.parametrize("seed", range(12))
def test_a_drawn_lesion_brightens_the_lungs_and_lies_by_them(seed: int) -> None:
    lungs = np.zeros((2, 160, 160), bool)
    lungs[0, 30:120, 25:70] = lungs[1, 30:120, 90:135] = True
    picture = np.where(lungs.any(0), 60, 180).astype(np.uint8)
    drawn, made = draw_lesion(picture, lungs, np.random.default_rng(seed))
    near = cv2.dilate(lungs.any(0).astype(np.uint8), np.ones((9, 9), np.uint8)) > 0
    assert made and set(made) <= set(BITS)
    for where in made.values():
        assert where.any() and not where[~near].any()
        assert (drawn[where] >= picture[where]).all() and drawn[where].mean() > picture[where].mean()
    assert np.abs(drawn.astype(int) - picture)[~near].max() <= 12


def test_of_halves_each_side_keeps_its_own_findings() -> None:
    left_sick = np.zeros((SIDE // 2, SIDE // 2), np.uint16)
    left_sick[90:110, 80:120] = bit("effusion")
    healthy = targets_of(record("nih_chestxdet_256", "none_annotated"), np.zeros_like(left_sick), False, False)
    sick = targets_of(record("nih_chestxdet_256", "effusion"), left_sick, False, False)
    takes = np.zeros(left_sick.shape, bool)
    takes[:, 64:] = True
    index = CLASSES.index("effusion")
    assert beside(healthy, sick, takes, False).presence[:, index].tolist() == [0, 1]
    assert beside(sick, healthy, takes, False).presence[:, index].tolist() == [0, 0]
    assert not beside(sick, healthy, takes, False).maps[MAPS.index("effusion")].any()
    assert not beside(healthy, sick, takes, False).presence_weights[:, CLASSES.index("cardiomegaly")].any()


def test_each_training_patient_of_nih_is_left_out_by_one_run_and_no_other_is() -> None:
    folds = {fold_of(replace(record("nih_chestxdet_256"), patient=f"p{n}")) for n in range(60)}
    assert folds == set(range(FOLDS))
    assert fold_of(record("montgomery_lung_512", "lung")) is None
    assert fold_of(replace(record("nih_chestxdet_256"), split="dev")) is None


def test_an_effusion_is_present_on_its_own_side_only() -> None:
    mask = np.zeros((SIDE // 2, SIDE // 2), np.uint16)
    mask[90:110, 80:120] = bit("effusion")
    taught = targets_of(record("nih_chestxdet_256", "effusion"), mask, False, False)
    effusion = CLASSES.index("effusion")
    assert taught.presence[:, effusion].tolist() == [0, 1]
    assert taught.maps[MAPS.index("effusion")].sum() == 20 * 40
    assert not taught.presence[:, CLASSES.index("opacity")].any()


def test_a_picture_of_which_nothing_is_known_gives_no_loss() -> None:
    unknown = Targets.unknown()
    names = [field.name for field in fields(Targets) if field.name != "turn"]
    targets = {name: torch.from_numpy(np.stack([getattr(unknown, name)] * 2)) for name in names}
    targets["turn"] = torch.tensor([-1, -1])
    with torch.no_grad():
        parts = loss_of(SurveyNet().eval()(torch.rand(2, 1, SIDE, SIDE)), targets)
    assert all(float(part) == 0 for part in parts.values())


def test_mirroring_twice_gives_the_survey_back() -> None:
    survey = Survey(torch.rand(1, len(MAPS), 8, 8), torch.rand(1, 2, len(CLASSES)), torch.rand(1, 3), torch.rand(1, 4))
    for there, back in zip(survey, flipped(flipped(survey)), strict=True):
        assert torch.equal(there, back)


def test_lungs_are_plausible_only_on_their_own_sides() -> None:
    shares = np.zeros((2, 100, 100), np.float32)
    shares[0, 15:75, 12:42] = shares[1, 15:75, 58:88] = 0.9
    assert plausible_lungs(shares) is not None
    assert plausible_lungs(shares[::-1]) is None
    shares[1, 15:75, 58:88] = 0.2
    assert plausible_lungs(shares) is None


def test_the_bits_fit_and_are_named_once() -> None:
    assert len(set(BITS)) == len(BITS) <= 15
