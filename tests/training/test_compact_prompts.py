"""What the compact segmenter learns from is what it meets at run time."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from training.compact.calibrate_prompts import chosen
from training.compact.pack import Pack, load_pack
from training.compact.prompts import (
    Case,
    Component,
    batch_of,
    binary,
    case_of,
    click_of,
    components,
    damaged,
    held_out,
    jittered,
    with_oracle_click,
)
from xflow_core.domain.geometry import Box, mask_iou
from xflow_core.policies.compact_revision import GUARD
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.segmenters.compact import prompt_inputs
from xflow_core.segmenters.compact_region import Region
from xflow_core.segmenters.protocol import Prediction, Prompt


@pytest.fixture(scope="module")
def loaded(pack: Path, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """A few images of each part of the pack."""
    few = tmp_path_factory.mktemp("few")
    with (pack / "manifest.csv").open(newline="") as file:
        reader = csv.DictReader(file)
        rows = [row for row in reader if row["finding"] in ("consolidation", "effusion") and row["mask_file"]]
        names = reader.fieldnames
    kept: dict[str, list[dict[str, str]]] = {"learn": [], "held": [], "dev": []}
    for row in rows:
        part = "dev" if row["split"] == "dev" else "held" if held_out(row["patient"]) else "learn"
        if len(kept[part]) < 6:
            kept[part].append(row)
    with (few / "manifest.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names or [])
        writer.writeheader()
        writer.writerows(row for part in kept.values() for row in part)
    for folder in {Path(row["file"]).parts[0] for part in kept.values() for row in part}:
        (few / folder).symlink_to(pack / folder)
    return load_pack(few, few / "cache")


@pytest.fixture(scope="module")
def parts(loaded: Pack) -> list[Component]:
    return components(loaded, "held", ("consolidation", "effusion"))


def picture(loaded: Pack, part: Component) -> torch.Tensor:
    return torch.from_numpy(np.array(loaded.images[part.image], np.float32) / 255)[None, None]


def test_training_and_run_time_show_the_network_the_same(pack: Path, loaded: Pack, parts: list[Component]) -> None:
    for part in parts[:4]:
        case = case_of(picture(loaded, part), part, part.box)
        case = case.answered(case.truth * 0.9).clicked(30, 40, True).clicked(60, 50, False)
        grey, prompt = batch_of([case])

        image = EncodedRadiograph(read_radiograph(pack / loaded.records[part.image].file))
        size = image.radiograph.size
        assert case.previous is not None
        mask = Region.around(part.box, (), None, size).paste(case.previous.astype(np.float32)) > 0.5
        clicks = tuple(click_of(turn) for turn in case.clicks)
        _, seen, channels = prompt_inputs(image, [Prompt(part.box, clicks, Prediction(mask))])
        assert (grey - seen).abs().mean() < 0.02
        assert (prompt - channels).abs().mean(dim=(0, 2, 3)).max() < 0.01


def test_learning_holding_and_measuring_are_apart_by_patient(loaded: Pack) -> None:
    patients = [
        {part.patient for part in components(loaded, split, ("consolidation", "effusion"))}
        for split in ("learn", "held", "dev")
    ]
    assert all(patients)
    assert not patients[0] & patients[1]
    assert not patients[0] & patients[2]
    assert not patients[1] & patients[2]


def test_an_oracle_clicks_into_the_larger_error_and_keeps_the_guard(loaded: Pack, parts: list[Component]) -> None:
    for part in parts[:6]:
        case: Case | None = case_of(picture(loaded, part), part, part.box)
        assert case is not None
        case = case.answered(np.zeros_like(case.truth))
        for turn in range(4):
            clicked = with_oracle_click(case)
            if clicked is None:
                break
            x, y, positive = clicked.clicks[-1]
            row, column = clicked.from_image(x, y)
            assert positive
            assert clicked.true[round(row), round(column)]
            for other_x, other_y, _ in clicked.clicks[:turn]:
                assert np.hypot(x - other_x, y - other_y) > GUARD * 0.99
            case = clicked


def test_a_full_answer_needs_no_click(loaded: Pack, parts: list[Component]) -> None:
    case = case_of(picture(loaded, parts[0]), parts[0], parts[0].box)
    perfect = case.answered(case.true.astype(np.float32))
    assert mask_iou(perfect.mask, perfect.true) > 0.97
    with_click = with_oracle_click(case.answered(np.ones_like(case.truth)))
    assert with_click is not None
    assert not with_click.clicks[-1][2]


def test_jitter_stays_within_its_share_and_the_image() -> None:
    rng = np.random.default_rng(0)
    box = Box(0.0, 0.4, 0.3, 0.9)
    for _ in range(200):
        moved = jittered(box, 0.1, rng)
        assert abs(moved.x2 - box.x2) <= 0.1 * box.width + 1e-9
        assert abs(moved.y1 - box.y1) <= 0.1 * box.height + 1e-9


def test_turned_and_mirrored_regions_lose_nothing(loaded: Pack, parts: list[Component]) -> None:
    rng = np.random.default_rng(0)
    for part in parts[:4]:
        case = case_of(picture(loaded, part), part, part.box, rng)
        row, column = np.argwhere(case.true).mean(axis=0)
        x, y = case.to_image(float(row), float(column))
        true_row, true_column = np.argwhere(part.mask).mean(axis=0) / part.mask.shape[0]
        assert abs(x - true_column) < 0.02
        assert abs(y - true_row) < 0.02
        assert case.from_image(x, y) == pytest.approx((row, column), abs=1e-2)


def test_damage_is_damage() -> None:
    truth = np.zeros((96, 96), np.float32)
    truth[30:60, 25:70] = 1
    rng = np.random.default_rng(0)
    kept = [mask_iou(damaged(truth, rng), binary(truth)) for _ in range(50)]
    assert 0.3 < np.mean(kept) < 0.9


def entry(gain: float, own: float, rough: float, foreign: float, worsened: float = 0.0) -> dict[str, float]:
    return {
        "least_gain": gain,
        "own": own,
        "rough": rough,
        "foreign": foreign,
        "own_worsened": worsened,
        "rough_worsened": 0.0,
    }


def test_the_threshold_of_a_click_does_own_masks_no_harm() -> None:
    eager, harmful, careful = entry(0.01, 0.01, 0.01, 0.3, 0.2), entry(0.02, -0.001, 0.02, 0.4), entry(0.05, 0, 0, 0.2)
    assert chosen([eager, harmful, careful]) is careful
    better = entry(0.03, 0.002, 0.004, 0.22, 0.05)
    assert chosen([eager, harmful, careful, better]) is better
    worse = entry(0.06, -0.002, -0.002, 0.5)
    assert chosen([harmful, worse]) is harmful
