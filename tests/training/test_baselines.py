"""Other systems' own outputs, made small in the form that each documents, become predictions through the command
line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from training.__main__ import main
from training.baselines import native
from training.baselines.catalogue import LESION, SYSTEMS, System, system
from training.baselines.requests import read_requests
from training.evaluation.predictions import answered_from
from training.evaluation.rows import read_rows, write_rows
from xflow_core.domain import rle
from xflow_core.domain.errors import CallError
from xflow_core.domain.findings import LUNGS
from xflow_core.export.files import write_mask

SIZE = (96, 120)
TRUTH = np.zeros(SIZE, bool)
TRUTH[24:48, 30:60] = True
NOTHING = np.zeros(SIZE, bool)
GREY = np.tile(np.linspace(20, 200, SIZE[1]).astype(np.uint8), (SIZE[0], 1))


@pytest.fixture
def asked(tmp_path: Path) -> Callable[[str], Path]:
    """A set of a positive and a negative row, written for a system; gives the folder of its requests."""
    cv2.imwrite(str(tmp_path / "chest.png"), GREY)
    write_mask(tmp_path / "truth.png", TRUTH)
    common = {"image": "chest.png", "finding": "effusion", "lungs": None, "source": "test"}
    write_rows(tmp_path / "set.jsonl", [
        {**common, "id": "there", "instruction": "Segment the effusion in the left lung.", "regions": ["left lung"],
         "level": "lung", "mask": "truth.png"},
        {**common, "id": "not.there", "instruction": "Segment the effusion.", "regions": ["chest"], "level": "chest",
         "mask": None},
    ])  # fmt: skip

    def write(name: str) -> Path:
        out = tmp_path / "requests"
        main(["baselines", "write", "--system", name, "--set", str(tmp_path / "set.jsonl"), "--out", str(out)])
        return out

    return write


# What each system would leave for the first request (a lesion at TRUTH) and the second (nothing there).


def _rosalia(folder: Path) -> None:
    for stem, mask in (("000000", TRUTH), ("000001", NOTHING)):
        cv2.imwrite(str(folder / f"{stem}.png"), np.repeat(mask[..., None], 3, 2).astype(np.uint8) * 255)


def _lisa(folder: Path, token: str = "[SEG]") -> None:
    cv2.imwrite(str(folder / "000000_mask_0.jpg"), TRUTH * 100)
    cv2.imwrite(str(folder / "000000_masked_img_0.jpg"), np.repeat(GREY[..., None], 3, 2))
    prompts = "Please input your prompt: Please input the image path: text_output: "
    (folder / "stdout.txt").write_text(
        f"{prompts}<s> A chat. USER: .. ASSISTANT: Sure, {token}.</s>\n000000_mask_0.jpg has been saved.\n"
        f"{prompts}<s> A chat. USER: .. ASSISTANT: I see none.</s>\nPlease input your prompt: "
    )


def _pixellm(folder: Path) -> None:
    _lisa(folder, "[SEG0] [SEG1] [SEG2]")


def _text4seg(folder: Path) -> None:
    rows = ["others *24"] * 6 + ["others *6| effusion *6| others *12"] * 6 + ["others *24"] * 12
    (folder / "000000.txt").write_text("Sure, here it is:\n<seg>" + "\n ".join(rows) + "</seg>")
    (folder / "000001.txt").write_text("<seg>" + "\n ".join(["others *24"] * 24) + "</seg>")


def _arrays(folder: Path) -> None:
    np.save(folder / "000000.npy", np.where(TRUTH, 0.9, 0.1)[None, None].astype(np.float32))
    np.save(folder / "000001.npy", np.full((1, 1, *SIZE), 0.2, np.float32))


def _reclmis(folder: Path) -> None:
    square = cv2.resize(TRUTH.astype(np.uint8), (224, 224), interpolation=cv2.INTER_NEAREST)
    np.save(folder / "000000.npy", square.astype(np.float32))
    np.save(folder / "000001.npy", np.zeros((224, 224), np.float32))


def _ibisagent(folder: Path) -> None:
    for stem, mask in (("000000", TRUTH), ("000001", NOTHING)):
        shown = np.repeat(GREY[..., None], 3, 2).astype(np.float32)
        over = shown.copy()
        over[mask] = (34, 139, 34)
        blended = np.clip(shown * 0.6 + over * 0.4, 0, 255).astype(np.uint8)
        (folder / stem).mkdir()
        cv2.imwrite(str(folder / stem / "final_segmentation.png"), blended[..., ::-1])


def _segagent(folder: Path) -> None:
    def click(mask: np.ndarray, words: str | None) -> dict[str, Any]:
        return {"mask": {"size": list(SIZE), "counts": rle.encode(mask)}, "outputs": words}

    worse = TRUTH.copy()
    worse[60:, :] = True
    (folder / "predictions.json").write_text(json.dumps([
        {"img_path": "x/images/000000.png", "height": SIZE[0], "width": SIZE[1], "pred_list": [
            click(worse, "Current IOU: 0.1, Positive point"), click(TRUTH, "Current IOU: 0.3, Negative point"),
            click(worse, "Current IOU: 0.9, Finish")]},
        {"img_path": "x/images/000001.png", "height": SIZE[0], "width": SIZE[1], "pred_list": [click(NOTHING, None)]},
    ]))  # fmt: skip


def _seg_zero(folder: Path) -> None:
    write_mask(folder / "000000.png", TRUTH)
    (folder / "000001.txt").write_text("<think>none</think><answer>[]</answer>")


def _medsam(folder: Path) -> None:
    cv2.imwrite(str(folder / "seg_000000_0.png"), TRUTH.astype(np.uint8))


def _medsam2(folder: Path) -> None:
    np.savez_compressed(folder / "000000.npz", segs=TRUTH[None].astype(np.uint8), spacing=np.ones(3))


def _sam3(folder: Path) -> None:
    np.savez(folder / "000000.npz", masks=np.stack([TRUTH[None], NOTHING[None]]), scores=np.array([0.8, 0.6]))
    np.savez(folder / "000001.npz", masks=np.zeros((0, 1, *SIZE), bool), scores=np.zeros(0))


OUTPUTS = {
    "rosalia": _rosalia, "lisa": _lisa, "pixellm": _pixellm, "text4seg": _text4seg, "imis-net": _arrays,
    "ibisagent": _ibisagent, "biomedparse": _arrays, "reclmis": _reclmis, "seg-zero": _seg_zero, "segagent": _segagent,
    "medsam": _medsam, "medsam2": _medsam2, "sam3-text": _sam3,
}  # fmt: skip


def read(name: str, requests: Path, folder: Path, out: Path) -> None:
    given = ["--requests", str(requests), "--native", str(folder), "--out", str(out)]
    main(["baselines", "read", "--system", name, *given])


def test_every_system_of_the_paper_has_an_adapter() -> None:
    titles = {one.title for one in SYSTEMS}
    assert {
        "ROSALIA",
        "LISA-7B",
        "PixelLM-7B",
        "Text4Seg",
        "IMIS-Net",
        "IBISAgent-7B",
        "BiomedParse",
        "RecLMIS",
    } <= titles
    lesions = {one.name for one in SYSTEMS if one.gives == LESION}
    assert lesions - {"medgemma"} == OUTPUTS.keys()


@pytest.mark.parametrize("name", OUTPUTS)
def test_its_own_output_becomes_predictions(name: str, asked: Callable[[str], Path], tmp_path: Path) -> None:
    requests, folder, out = asked(name), tmp_path / "native", tmp_path / "out"
    folder.mkdir()
    OUTPUTS[name](folder)
    read(name, requests, folder, out)
    there, absent = answered_from(out, read_rows(tmp_path / "set.jsonl"))
    assert there.iou > 0.95
    assert (there.returned, absent.returned) == (True, False)


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_that_is_missing_is_an_error_and_no_absence(
    name: str, asked: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests, folder, out = asked(name), tmp_path / "native", tmp_path / "out"
    folder.mkdir()
    with pytest.raises(SystemExit) as ended:
        read(name, requests, folder, out)
    assert ended.value.code == 2
    assert not (out / "presence.jsonl").exists()


def test_requests_hold_the_picture_the_prompt_and_only_told_boxes(asked: Callable[[str], Path]) -> None:
    first, second = read_requests(asked("text4seg"))
    assert first.prompt == "Please segment only the effusion in the left lung in the image."
    assert second.prompt == "Please segment only the effusion in the image."
    assert first.boxes == ()
    folder = asked("medsam")
    first, second = read_requests(folder)
    assert (first.boxes, second.boxes) == (((30, 24, 60, 48),), ())
    assert (cv2.imread(str(folder / first.image), cv2.IMREAD_UNCHANGED) == GREY).all()
    assert (folder / "stdin.txt").read_text().splitlines()[1] == str((folder / first.image).resolve())


def one_request(asked: Callable[[str], Path], name: str) -> Any:
    return read_requests(asked(name))[0]


def test_lisas_words_with_a_token_and_no_file_are_an_error(asked: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "stdout.txt").write_text("text_output: It is [SEG].\n")
    with pytest.raises(CallError, match="answered with a mask"):
        native.lisa(tmp_path, one_request(asked, "lisa"))


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("<seg>others *3| cat *1</seg>", 1 + 12),  # goes on with its last label
        ("<seg>cat *99| others *1</seg>", 16),  # cut
        ("I cannot do that.", 0),
        ("<seg></seg>", 0),
        ("<seg>others *14| cat *2\n", 2),  # cut off by the limit of tokens
    ],
)
def test_masks_as_text_are_read_as_their_own_evaluation_reads_them(words: str, count: int) -> None:
    assert native.text4seg_mask(words, 4).sum() == count


def test_boxes_and_points_are_given_to_a_segmenter(asked: Callable[[str], Path], tmp_path: Path) -> None:
    request = one_request(asked, "seg-zero")
    words = '<think>left</think> <answer>[{"bbox_2d": [210, 210, 420, 420], "point_2d": [300, 300]}]</answer>'
    (prompt,) = native.seg_zero_prompts(words, request)
    assert prompt.box is not None
    assert prompt.box.pixels(SIZE) == (30, 24, 60, 48)
    assert prompt.clicks[0].polarity == "positive"
    for bad in ("nothing", "<answer>box</answer>", '<answer>[{"bbox_2d": [1]}]</answer>'):
        with pytest.raises(CallError):
            native.seg_zero_prompts(bad, request)
    (tmp_path / "000000.txt").write_text('```json\n[{"box_2d": [250, 250, 500, 500], "label": "effusion"}]\n```')
    (prompt,) = native.medgemma(tmp_path, request)
    assert prompt.box is not None
    (tmp_path / "000000.txt").write_text("I am not sure.")
    with pytest.raises(CallError, match="row there"):
        native.medgemma(tmp_path, request)


def test_medgemmas_boxes_become_masks_by_a_bundles_segmenter(
    asked: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests, folder = asked("medgemma"), tmp_path / "native"
    folder.mkdir()
    (folder / "000000.txt").write_text('[{"box_2d": [300, 250, 500, 500], "label": "effusion"}]')
    (folder / "000001.txt").write_text("[]")
    call = [
        "baselines", "read", "--system", "medgemma", "--requests", str(requests), "--native", str(folder), "--out",
        str(tmp_path / "out"),
    ]  # fmt: skip
    with pytest.raises(SystemExit):
        main(call)
    assert "--bundle" in capsys.readouterr().err
    main([*call, "--bundle", "compact"])
    there, absent = answered_from(tmp_path / "out", read_rows(tmp_path / "set.jsonl"))
    assert (there.returned, absent.returned) == (True, False)


def test_lungs_become_boxes(asked: Callable[[str], Path], tmp_path: Path) -> None:
    requests = asked("cxas")
    right, left = NOTHING.copy(), NOTHING.copy()
    right[10:80, 10:50] = left[10:80, 70:110] = True
    cxas, landmarks = tmp_path / "cxas", tmp_path / "landmarks"
    landmarks.mkdir()
    for stem in ("000000", "000001"):
        (cxas / stem).mkdir(parents=True)
        for label, mask in zip(LUNGS, (right, left), strict=True):
            write_mask(cxas / stem / f"{label}.png", mask)
        points = []
        for (x1, x2), count in (((10, 49), 44), ((70, 109), 50), ((40, 80), 26)):
            corners = [(x1, 10), (x2, 10), (x2, 79), (x1, 79)]
            points += [corners[min(k, 3)] for k in range(count)]
        scale = np.array([1024 / SIZE[1], 1024 / SIZE[0]])
        np.savetxt(landmarks / f"{stem}.txt", np.array(points) * scale, fmt="%i")
    for name, folder in (("cxas", cxas), ("chexmask-u", landmarks)):
        out = tmp_path / name
        read(name, requests, folder, out)
        line = json.loads((out / "lungs.jsonl").read_text().splitlines()[0])
        assert line["lungs"]["right lung"] == pytest.approx([10 / 120, 10 / 96, 50 / 120, 80 / 96], abs=0.02)


def test_the_list_says_licence_needs_and_whether_it_runs_here(capsys: pytest.CaptureFixture[str]) -> None:
    main(["baselines", "list", "--checkouts", "nowhere"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(SYSTEMS)
    assert all(" no: " in line or " yes" in line for line in lines[1:])
    main(["baselines", "list", "--system", "rosalia"])
    told = capsys.readouterr().out
    assert "Apache-2.0" in told and "There is no" in told


@pytest.mark.parametrize("one", SYSTEMS, ids=lambda one: one.name)
def test_an_adapter_says_all_of_a_system(one: System) -> None:
    assert all((one.repository, one.licence, one.weights, one.install, one.run, one.writes, one.absent))
    assert (one.checkout is None) != (one.package is None)
    assert system(one.name) is one


def test_an_unknown_system_is_refused() -> None:
    with pytest.raises(CallError, match="known are rosalia"):
        system("unet")
