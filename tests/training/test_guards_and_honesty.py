"""The instruments for guards and honesty, on an engine whose answers are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from phantom import phantom, phantom_engine

from training.compact.pictures import PANELS, Shown, as_small_png, choose_bad, choose_good, sheet
from training.evaluation import guards, honesty
from training.evaluation.cases import Case, as_dicom, as_png, read_cases
from training.evaluation.rates import Rate
from xflow_core.domain.geometry import Box
from xflow_core.domain.instruction import parse_instruction
from xflow_core.policies.protocols import GuardReport
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.workflow.session import answer

# One disc in the right lung, two in the left, as (x, y, radius).
DISCS = [(0.25, 0.5, 12.0), (0.7, 0.3, 9.0), (0.75, 0.7, 10.0)]


def ramp(shape: tuple[int, int] = (200, 240)) -> np.ndarray:
    """Shaded all over, with large shapes: enough of a picture for the guards without a network."""
    rows, columns = np.indices(shape)
    rng = np.random.default_rng(0)
    shaded = 120 + 70 * np.sin(rows / 30) * np.cos(columns / 40) + rng.normal(0, 3, shape)
    return np.clip(shaded, 0, 255).astype(np.uint8)


# Rates.


def test_a_rate_carries_its_n_and_wilsons_interval() -> None:
    rate = Rate(8, 10)
    assert rate.interval == pytest.approx((0.490, 0.943), abs=1e-3)  # Wilson 1927, as in Brown et al. 2001
    assert str(rate) == "80.0 % [49.0, 94.3], 8 of 10"
    assert Rate(0, 20).interval == pytest.approx((0.0, 0.161), abs=1e-3)
    assert Rate(20, 20).interval == pytest.approx((0.839, 1.0), abs=1e-3)
    assert Rate.of([]).share is None
    with pytest.raises(ValueError, match="3 of 2"):
        Rate(3, 2)


# Guards.


class NoFrontal:
    """A learned guard that refuses, or warns of, whatever it is told to."""

    def __init__(self, refusals: tuple[str, ...] = (), warnings: tuple[str, ...] = ()) -> None:
        self.report = GuardReport(refusals, warnings)

    def inspect(self, image: EncodedRadiograph) -> GuardReport:
        return self.report


def engine_with(guard: NoFrontal | None):
    from dataclasses import replace

    return replace(phantom_engine()[0], guard=guard)


@pytest.mark.parametrize("accept", [False, True])
def test_each_kind_of_evidence_is_told_apart(accept: bool) -> None:
    good, strict = engine_with(None), engine_with(NoFrontal(("It is a cat.",)))
    colour = np.zeros((200, 240, 3), np.uint8)
    colour[..., 0] = ramp()
    for engine, data, refused, evidence in (
        (good, as_png(ramp()), False, set()),
        (good, as_dicom(ramp()), False, set()),
        (good, as_dicom(ramp(), ViewPosition="LL"), True, {"header"}),
        (good, as_png(np.zeros((200, 240), np.uint8)), True, {"pixels"}),
        (good, as_png(colour), True, {"reading"}),
        (strict, as_png(ramp()), True, {"learned"}),
        (
            strict,
            as_dicom(np.zeros((200, 240), np.uint8), BodyPartExamined="HAND"),
            True,
            {"header", "pixels", "learned"},
        ),
    ):
        judged = guards.judge(engine, data, accept)
        assert judged.refused == refused
        assert judged.evidence == evidence


def test_a_learned_warning_is_a_sign_and_no_refusal() -> None:
    engine = engine_with(NoFrontal(warnings=("It looks mirrored.",)))
    assert guards.judge(engine, as_png(ramp())) == guards.Judged(False, frozenset(), ("It looks mirrored.",))
    assert guards.judge(engine_with(None), as_png(ramp())).signs == ()


def test_what_should_be_refused_and_passes_is_named_on_the_page() -> None:
    judged = [guards.Judged(True, frozenset({"learned"}))] * 9 + [guards.Judged(False, frozenset())]
    entry = {"group": "changed", "name": "inverted", "expected": "refuse", **guards.figures_of(judged)}
    figures = {
        "bundle": {"name": "compact", "version": "9"},
        "sets": [entry],
        "kept_lungs": {},
        "files": {"a.dcm": {"what": "a leg", "refused": True, "by": ["header"], "warned": []}},
    }
    assert guards.right(entry) == Rate(9, 10)
    page = guards.write_page(figures)
    assert "inverted: 1 of 10 pass without a word" in page
    assert "90.0 % [59.5, 98.2]" in page
    assert "not for clinical use" in page.lower()
    assert guards.summary(figures)[2] == "| inverted | refused | 90.0 % [59.5, 98.2], 9 of 10 |"


def test_crops_and_changes_do_to_the_picture_what_their_names_say() -> None:
    picture = ramp()
    made = {name: change(picture) for name, (_, change) in guards.CHANGES.items()}
    assert np.array_equal(made["inverted"], 255 - picture)
    assert np.array_equal(made["mirrored (left to right)"][:, 0], picture[:, -1])
    # Counter-clockwise: the right edge comes to the top.
    assert np.array_equal(made["rotated by 90 degrees, counter-clockwise"][0], picture[:, -1])
    assert made["two radiographs side by side"].shape == (200, 480)
    quarters = [guards.crop(picture, kept) for kept in guards.CROPS["a quarter"][1]]
    assert sum(part.size for part in quarters) == picture.size


def test_every_set_of_pictures_is_made_from_the_pack(pack: Path) -> None:
    made = [part for part in guards.picture_sets(pack, every=40) if part.name not in _DRAWN]
    for part in made:
        data = next(iter(part.files()))
        assert isinstance(data, bytes)
    assert {part.group for part in made} >= guards.GROUPS.keys() - {"not a chest"}
    kept = guards.kept_lungs(pack)
    assert kept["the middle 90 % of height and width"]["mean"] > 0.9
    assert kept["a quarter"]["mean"] < 0.5


# Slow to make; "python -m training guards" makes them.
_DRAWN = {
    "made and packaged pictures like those of the training, another seed",
    "lateral views of that CT",
    "frontal views of one CT",
}


# Honesty.


def asked(words: str):
    engine, _ = phantom_engine()
    return answer(engine, EncodedRadiograph(phantom(DISCS)), parse_instruction(words)[0])


def test_a_mask_is_measured_on_its_own_side_of_the_midline() -> None:
    whole = asked("Segment the opacity.")
    middle = honesty.midline(whole)
    assert middle == pytest.approx(0.5)
    for lung in ("right lung", "left lung"):
        mask = honesty.mask_of(asked(f"Segment the opacity in the {lung}."))
        assert mask is not None
        assert honesty.beyond(mask, lung, middle) == 0
        assert honesty.beyond(mask[:, ::-1], lung, middle) == 1


def test_the_wrong_lung_is_a_confusion_and_a_second_lung_is_none() -> None:
    def lungs(case: str, right: bool, left: bool, beyond: float = 0.0) -> list[honesty.Sided]:
        """The finding is in the right lung; what was answered about the right and about the left."""
        return [
            honesty.Sided(case, "effusion", "right lung", True, False, right, beyond if right else None),
            honesty.Sided(case, "effusion", "left lung", False, True, left, 0.0 if left else None),
        ]

    rows = [
        *lungs("good", True, False),
        *lungs("both", True, True),
        *lungs("swapped", False, True),
        *lungs("missed", False, False),
        *lungs("misplaced", True, False, beyond=0.8),
    ]
    figures = honesty.side_figures(rows)
    assert figures["questions"] == 10
    assert figures["confused"]["count"] == 2
    assert figures["masks_mostly_in_the_other_lung"]["count"] == 1
    assert figures["one_sided_cases"] == {"true lung only": 2, "both": 1, "wrong lung only": 1, "neither": 1}


def test_one_mask_under_two_names_is_found_out(tmp_path: Path) -> None:
    # The phantom finds discs whatever it is asked: the very fault.
    engine, _ = phantom_engine(("opacity", "effusion"))
    image = EncodedRadiograph(phantom(DISCS))
    case = Case("a", "nih_normal_1024", "dev", tmp_path / "none.png")
    traces = honesty.ask_all(engine, image)
    figures = honesty.pair_figures(list(honesty.pairs(case, traces)))
    assert figures["effusion and opacity"]["same_mask"]["count"] == 1
    assert figures["effusion and opacity"]["greatest_iou"] == 1.0


def test_flips_and_moved_masks_are_counted() -> None:
    def row(before: bool, after: bool, iou: float | None) -> honesty.Compared:
        return honesty.Compared("a", "effusion", "noise", before, after, iou)

    rows = [row(True, True, 0.95), row(True, True, 0.5), row(True, False, None), row(False, False, None)]
    figures = honesty.stability_figures(rows)["noise"]["all"]
    assert (figures["lost"], figures["gained"], figures["masks"]) == (1, 0, 2)
    assert figures["same_verdict"]["count"] == 3
    assert figures["stable"]["count"] == 1


def test_the_other_dresses_show_the_same_picture() -> None:
    picture = ramp()
    plain = read_radiograph(as_png(picture)).values
    for photometric in ("MONOCHROME2", "MONOCHROME1"):
        dressed = read_radiograph(as_dicom(picture, PhotometricInterpretation=photometric)).values
        assert np.ptp(dressed - plain * 16) == 0
    noise = honesty.noisy(picture).astype(int) - picture
    assert set(np.unique(noise)) == {-1, 0, 1}
    assert honesty.exposed(picture, 1.05).max() <= 255


def test_what_nobody_looked_for_is_not_known(pack: Path) -> None:
    cases = read_cases(pack)
    contoured = next(case for case in cases if case.contoured)
    assert contoured.present("edema") is None
    assert contoured.truth("edema") is None
    normal = next(case for case in cases if case.normal)
    assert normal.present("pneumonia") is False
    boxed = next(case for case in cases if case.present("pneumonia"))
    truth = boxed.truth("pneumonia")
    assert truth is not None
    assert truth.any()
    for case in cases:
        if case.present("consolidation"):
            opacity, consolidation = case.truth("opacity"), case.truth("consolidation")
            assert opacity is not None
            assert consolidation is not None
            assert not (consolidation & ~opacity).any()


def test_the_measures_become_tables(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(as_png(phantom(DISCS).display))
    case = Case("a", "nih_normal_1024", "dev", picture, labels=frozenset({"no_finding"}))
    engine, _ = phantom_engine()
    figures = honesty.measure(engine, [case])
    assert figures["normals_called_present"]["opacity"] == Rate(1, 1).to_json()
    assert figures["sides"]["all"]["confused"]["count"] == 0
    assert figures["masks_with_specks"]["count"] == 0
    assert figures["right_lung_on_the_pictures_left"]["share"] == 1
    table = honesty.table(figures)
    assert "effusion and opacity" in table
    assert "exposure x 1.05" in table


# The card's pictures.


def shown(case: str, finding: str, truth: Box | None, mask: Box | None, confidence: float = 0.7) -> Shown:
    size = (200, 240)
    drawn = np.zeros(size, bool) if truth is None else truth.mask(size)
    hit = truth is not None and mask is not None and truth.iou(mask) >= 0.3
    stated = None if mask is None else mask.mask(size)
    boxes = () if mask is None else (mask,)
    return Shown(case, finding, ramp(), drawn, "contour", stated, boxes, confidence, hit)


TRUE, NEAR, FAR = Box(0.1, 0.1, 0.4, 0.4), Box(0.1, 0.1, 0.4, 0.45), Box(0.6, 0.6, 0.9, 0.9)


def test_good_pictures_are_of_the_best_quarter_and_bad_ones_of_every_kind() -> None:
    lot = [shown(f"good{n}", "effusion", TRUE, NEAR if n else TRUE) for n in range(8)]
    lot += [shown("missed", "effusion", TRUE, None), shown("elsewhere", "opacity", TRUE, FAR)]
    lot += [shown("alarm", "edema", None, FAR), shown("surer", "edema", None, FAR, 0.9)]
    lot += [shown("rightly", "edema", None, None)]
    good, bad = choose_good(lot), choose_bad(lot)
    assert [s.case for s in good] == ["good1", "good0"]
    assert [s.kind for s in bad[:4]] == ["miss", "false alarm", "wrong box", "poor mask"]
    assert bad[1].case == "surer"
    assert "rightly" not in {s.case for s in bad}
    assert len(bad) == len({s.case for s in bad}) <= PANELS


def test_a_sheet_is_small_and_no_radiograph_is_on_it_twice() -> None:
    lot = [shown("one", "effusion", TRUE, NEAR), shown("one", "opacity", TRUE, TRUE)]
    chosen = choose_good(lot)
    assert len(chosen) == 1
    assert as_small_png(sheet(chosen, "a title")).startswith(b"\x89PNG")
    noise = np.random.default_rng(0).integers(0, 256, (256, 256), dtype=np.uint8)
    loud = [Shown(str(n), "effusion", noise, noise > 400, "contour", None, (), 0.5, False) for n in range(8)]
    assert len(as_small_png(sheet(loud, "a title"))) <= 350_000
