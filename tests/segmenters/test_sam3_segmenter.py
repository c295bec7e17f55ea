"""The SAM3 segmenter, on a tiny model of the real class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from phantom import SIZE, phantom
from safetensors.torch import load_file, save_file
from tiny_sam3 import SIDE, tiny_sam3, video_config, write_tiny_sam3, write_whole_sam3
from torch import Tensor
from transformers import Sam3TrackerModel, Sam3TrackerVideoModel

from xflow_core.domain.errors import BundleError, EngineError, ValueRefused
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.trace import Click
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.recipes import ENGINE_GREY
from xflow_core.segmenters.protocol import Prediction, Prompt
from xflow_core.segmenters.sam3 import Sam3Segmenter, encode, given_mask, load_tracker, prompt_inputs, to_source

BOXES = [Box(0.1, 0.2, 0.4, 0.7), Box(0.6, 0.1, 0.9, 0.5), Box(0.3, 0.3, 0.95, 0.9), Box(0, 0, 1, 1), Box(0, 0, 0.2, 1)]
CLICKS = (Click("positive", Point(0.3, 0.4)), Click("negative", Point(0.8, 0.1)))


@pytest.fixture(scope="module")
def model() -> Sam3TrackerModel:
    return tiny_sam3()


@pytest.fixture
def segmenter(model: Sam3TrackerModel) -> Sam3Segmenter:
    return Sam3Segmenter(model, ENGINE_GREY)


@pytest.fixture
def image() -> EncodedRadiograph:
    return EncodedRadiograph(phantom([(0.25, 0.5, 12), (0.7, 0.3, 9)]))


def counted(module: torch.nn.Module) -> list[int]:
    """Grows by one at every pass of the module."""
    passes: list[int] = []
    module.register_forward_hook(lambda *_: passes.append(1))
    return passes


def test_the_image_is_encoded_once_and_all_boxes_share_one_decoder_call(image: EncodedRadiograph) -> None:
    model = tiny_sam3()
    encoder, decoder = counted(model.vision_encoder), counted(model.mask_decoder)
    segmenter = Sam3Segmenter(model, ENGINE_GREY)
    found = segmenter.segment(image, [Prompt(box) for box in BOXES[:4]])
    assert (len(encoder), len(decoder)) == (1, 1)
    for turn in range(1, 3):
        segmenter.segment(image, [Prompt(BOXES[0], CLICKS[:turn], found[0])])
    segmenter.segment(image.with_record(image.radiograph.record), [Prompt(BOXES[4])])
    assert (len(encoder), len(decoder)) == (1, 4)


def test_a_mask_has_the_source_size_and_an_iou(segmenter: Sam3Segmenter, image: EncodedRadiograph) -> None:
    for found in segmenter.segment(image, [Prompt(box) for box in BOXES]):
        assert found.mask.shape == SIZE
        assert found.mask.dtype == bool
        assert found.predicted_iou is not None
        assert 0 <= found.predicted_iou <= 1
        assert found.state is None


def test_a_components_mask_does_not_depend_on_its_neighbours(
    segmenter: Sam3Segmenter, image: EncodedRadiograph
) -> None:
    prompts = [Prompt(box) for box in BOXES]
    prompts.insert(2, Prompt(BOXES[1], CLICKS))
    together = segmenter.segment(image, prompts)
    alone = [segmenter.segment(image, [prompt])[0] for prompt in prompts]
    turned = segmenter.segment(image, prompts[::-1])[::-1]
    for others in (alone, turned):
        for one, other in zip(together, others, strict=True):
            assert np.array_equal(one.mask, other.mask)
            assert one.predicted_iou == other.predicted_iou


def test_the_best_of_three_hypotheses_is_taken(segmenter: Sam3Segmenter, image: EncodedRadiograph, model) -> None:
    prompt = Prompt(BOXES[0], CLICKS, Prediction(BOXES[1].mask(SIZE)))
    (found,) = segmenter.segment(image, [prompt])
    with torch.inference_mode():
        out = model(image_embeddings=segmenter.embedding(image), **prompt_inputs([prompt], SIDE))
    ious = out.iou_scores[0, 0].tolist()
    assert len(ious) == 3
    assert found.predicted_iou == max(ious)
    best = out.pred_masks[0, 0, ious.index(max(ious))]
    assert np.array_equal(found.mask, to_source(best, SIZE).numpy() > 0)


def test_every_part_of_a_prompt_reaches_the_decoder(segmenter: Sam3Segmenter, image: EncodedRadiograph) -> None:
    before = Prediction(BOXES[1].mask(SIZE))
    prompts = [
        Prompt(BOXES[0]),
        Prompt(BOXES[1]),
        Prompt(None, CLICKS[:1]),
        Prompt(BOXES[0], CLICKS[:1]),
        Prompt(BOXES[0], CLICKS),
        Prompt(BOXES[0], (Click("negative", CLICKS[0].point),)),
        Prompt(BOXES[0], CLICKS, before),
        Prompt(BOXES[0], CLICKS, Prediction(~before.mask)),
        Prompt(BOXES[0], (), before),
    ]
    ious = [found.predicted_iou for found in segmenter.segment(image, prompts)]
    assert len(set(ious)) == len(ious)


def test_only_the_mask_of_the_trace_counts(segmenter: Sam3Segmenter, image: EncodedRadiograph) -> None:
    mask = BOXES[1].mask(SIZE)
    live = Prompt(BOXES[0], CLICKS, Prediction(mask, 0.7, state=torch.ones(3)))
    loaded = Prompt(BOXES[0], CLICKS, Prediction(mask.copy()))
    one, other = segmenter.segment(image, [live, loaded])
    assert np.array_equal(one.mask, other.mask)
    assert one.predicted_iou == other.predicted_iou


@pytest.mark.parametrize("size", [(1000, 800), (2000, 500), (97, 331)])
@pytest.mark.parametrize("side", [1008, 1022])
def test_a_mask_goes_to_the_model_and_back_in_place(size: tuple[int, int], side: int) -> None:
    mask = Box(0.22, 0.31, 0.64, 0.83).mask(size)
    back = to_source(given_mask(mask, side)[0, 0], size).numpy() > 0
    rows, columns = np.nonzero(mask ^ back)
    # What moves lies within one low-resolution cell of the edge.
    cells = side // 14 * 4
    edges = {"rows": np.flatnonzero(mask.any(1))[[0, -1]], "columns": np.flatnonzero(mask.any(0))[[0, -1]]}
    near_row = np.abs(rows[:, None] - edges["rows"]).min(1) <= size[0] / cells + 1
    near_column = np.abs(columns[:, None] - edges["columns"]).min(1) <= size[1] / cells + 1
    assert (near_row | near_column).all()


def test_coordinates_reach_the_prompt_encoder_exactly(model: Sam3TrackerModel) -> None:
    seen: list[Tensor] = []
    handle = model.prompt_encoder.shared_embedding.register_forward_hook(
        lambda _, given, __: seen.append(given[0] / given[1][0])
    )
    inputs = prompt_inputs([Prompt(BOXES[0], CLICKS)], SIDE)
    model.prompt_encoder(
        **{name: inputs.get(name) for name in ("input_points", "input_labels", "input_boxes", "input_masks")}
    )
    handle.remove()
    points, corners = seen
    assert torch.allclose(points[0, 0, :2], torch.tensor([[0.3, 0.4], [0.8, 0.1]]), atol=1e-6)
    assert torch.allclose(corners[0, 0, :2], torch.tensor([[0.1, 0.2], [0.4, 0.7]]), atol=1e-6)


def test_the_embedding_is_that_of_the_video_model(model: Sam3TrackerModel) -> None:
    """transformers' image model adds the "no memory" embedding to a map that it drops; its video model does not."""
    grey = torch.rand(1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    video = Sam3TrackerVideoModel(video_config(model)).eval()
    report = video.load_state_dict(model.state_dict(), strict=False)
    assert not report.unexpected_keys
    pixels = ((grey - 0.5) / 0.5)[:, None].expand(-1, 3, -1, -1)
    with torch.no_grad():
        ours, theirs = encode(model, grey), video.get_image_embeddings(pixels)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_gradients_flow_through_the_encoder() -> None:
    model = tiny_sam3()
    encode(model, torch.rand(1, SIDE, SIDE))[2].sum().backward()
    assert model.vision_encoder.backbone.layers[0].attention.q_proj.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(("side", "pixels"), [(112, 112), (116, 112), (126, 126), (130, 126)])
def test_other_sides_run_on_the_same_weights(side: int, pixels: int, tmp_path: Path, image: EncodedRadiograph) -> None:
    segmenter = Sam3Segmenter.load(write_tiny_sam3(tmp_path), side=side, recipe=ENGINE_GREY)
    (found,) = segmenter.segment(image, [Prompt(BOXES[0], CLICKS[:1], Prediction(BOXES[0].mask(SIZE)))])
    assert found.mask.shape == SIZE
    assert segmenter.embedding(image)[0].shape[-1] == pixels // 14 * 4


def test_a_prompt_that_is_none_and_a_mask_of_another_size_are_refused(
    segmenter: Sam3Segmenter, image: EncodedRadiograph
) -> None:
    with pytest.raises(ValueRefused, match="neither"):
        segmenter.segment(image, [Prompt(None)])
    with pytest.raises(ValueRefused, match="previous mask"):
        segmenter.segment(image, [Prompt(BOXES[0], CLICKS, Prediction(np.zeros((3, 4), bool)))])
    assert segmenter.segment(image, []) == []


def test_numbers_that_are_none_are_an_error_and_no_mask(image: EncodedRadiograph) -> None:
    model = tiny_sam3()
    with torch.no_grad():
        model.mask_decoder.mask_tokens.weight.fill_(float("nan"))
    with pytest.raises(EngineError, match="not finite"):
        Sam3Segmenter(model, ENGINE_GREY).segment(image, [Prompt(BOXES[0])])


def test_out_of_memory_it_asks_for_room_once(image: EncodedRadiograph) -> None:
    segmenter, asked = Sam3Segmenter(tiny_sam3(), ENGINE_GREY), []
    expected = segmenter.segment(image, [Prompt(BOXES[0])])[0].mask
    whole = segmenter.embedding

    def scarce(image: EncodedRadiograph) -> list[Tensor]:
        if not asked:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(image)

    segmenter.embedding = scarce  # type: ignore[method-assign]
    with pytest.raises(torch.OutOfMemoryError):
        segmenter.segment(image, [Prompt(BOXES[0])])
    segmenter.make_room = lambda: False
    with pytest.raises(EngineError, match="does not suffice for the segmenter"):
        segmenter.segment(image, [Prompt(BOXES[0])])
    segmenter.make_room = lambda: not asked.append("room")  # type: ignore[func-returns-value]
    assert np.array_equal(segmenter.segment(image, [Prompt(BOXES[0])])[0].mask, expected)
    assert asked == ["room"]


def test_the_tracker_is_found_in_all_of_sam3(model: Sam3TrackerModel, tmp_path: Path) -> None:
    loaded = load_tracker(write_whole_sam3(tmp_path, model), side=SIDE)
    weights = model.state_dict()
    assert loaded.state_dict().keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in loaded.state_dict().items())
    grey = torch.rand(1, SIDE, SIDE)
    with torch.no_grad():
        pairs = zip(encode(loaded, grey), encode(model, grey), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


def test_weights_that_are_not_all_there_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_sam3(tmp_path)
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if "mask_decoder" in name)
    save_file({k: v for k, v in weights.items() if k != name}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(BundleError, match="missing"):
        load_tracker(folder, side=SIDE)
