"""The tracker as it is trained: what it sees and is asked is what it sees and is asked in use; who learns how fast."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tiny_sam3 import SIDE, tiny_sam3
from torch import Tensor

from training.curation.paper import Settings
from training.segmenter.examples import Example, collated
from training.segmenter.network import Asked, PromptedTracker, alike, parameter_groups, reached
from training.segmenter.prompts import first_prompt, next_prompt
from training.segmenter.settings import FirstPrompts
from xflow_core.domain.errors import BundleError
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.trace import Click
from xflow_core.segmenters.protocol import Prediction, Prompt
from xflow_core.segmenters.sam3 import Sam3Segmenter

if TYPE_CHECKING:
    from conftest import Sets

RECIPE = "mimic-cxr-jpg"
BOX = Box(0.2, 0.3, 0.6, 0.8)
CLICKS = (Click("positive", Point(0.3, 0.4)), Click("negative", Point(0.8, 0.1)))


def network(settings: Settings, *, clicks: int = 4, seed: int = 0, **options: Any) -> PromptedTracker:
    revision = replace(settings.revision, clicks=clicks)
    return PromptedTracker(tiny_sam3(), settings.segmenter, revision, seed=seed, **options).train()


@pytest.fixture(scope="module")
def two(sets: Sets) -> list[Example]:
    """Two radiographs with components."""
    examples = sets.examples()
    found = [example for example in map(examples.__getitem__, range(6)) if example.components]
    return found[:2]


def loss_of(net: PromptedTracker, examples: list[Example], step: int = 0) -> Tensor:
    return net(**collated(examples), step=step)["loss"]


def gradients(net: PromptedTracker) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in net.tracker.named_parameters()}


# What is asked, and what is seen.


@pytest.mark.parametrize("kind", ["box", "clicks", "revision"])
def test_the_logits_in_training_are_those_of_the_segmenter_in_use(sets: Sets, settings: Settings, kind: str) -> None:
    examples = sets.examples()
    image, example = examples.read(0), examples[0]
    size = image.radiograph.size
    prompt = {
        "box": Prompt(BOX),
        "clicks": Prompt(None, CLICKS[:1]),
        "revision": Prompt(BOX, CLICKS, Prediction(BOX.mask(size))),
    }[kind]
    net = network(settings)
    seen: list[tuple[Tensor, Tensor]] = []
    net.tracker.register_forward_hook(lambda _, __, out: seen.append((out.pred_masks[0, 0], out.iou_scores[0, 0])))
    Sam3Segmenter(net.tracker.eval(), RECIPE).segment(image, [prompt])
    net.train()
    maps = net._encode(example.picture[None])
    net._decode(maps, [Asked(0, BOX.mask(size), torch.zeros(1), prompt, np.random.default_rng(0), [])])
    (used, used_iou), (trained, trained_iou) = seen
    # The segmenter's calls are always of four boxes: the last digits differ.
    assert torch.allclose(used, trained, atol=1e-4)
    assert torch.allclose(used_iou, trained_iou, atol=1e-5)
    assert trained.requires_grad


def test_the_picture_is_encoded_once_for_all_components_and_clicks(settings: Settings, two: list[Example]) -> None:
    net = network(settings)
    encoded: list[int] = []
    decoded: list[int] = []
    net.tracker.vision_encoder.register_forward_hook(lambda _, given, __: encoded.append(len(given[0])))
    net.tracker.mask_decoder.register_forward_hook(lambda *_: decoded.append(1))
    for step in range(2):
        loss_of(net, two, step).backward()
    assert encoded == [2, 2]  # a step: one call, each of its two radiographs once
    assert len(decoded) >= 2 * 5


def test_every_turn_teaches_the_encoder(settings: Settings, two: list[Example]) -> None:
    net = network(settings)
    kept: list[Asked] = []
    first = net._first
    net._first = lambda *given: kept.extend(first(*given)) or kept  # type: ignore[method-assign]
    loss_of(net, two)
    weight = net.tracker.vision_encoder.backbone.layers[0].attention.q_proj.weight
    turns = kept[0].losses
    assert len(turns) == 5
    for loss in turns:
        (gradient,) = torch.autograd.grad(loss, weight, retain_graph=True)
        assert gradient.abs().sum() > 0


def test_a_click_lies_in_the_error_of_the_mask_that_is_fed_back(settings: Settings, two: list[Example]) -> None:
    truth = two[0].components[0].mask
    wrong = np.roll(truth, 4, axis=1)
    rng, prompts = np.random.default_rng(0), settings.segmenter.prompts
    prompt = first_prompt(truth, FirstPrompts(1, 0, 0, 0, 0.1), rng)
    for _ in range(4):
        following = next_prompt(prompt, wrong, truth, replace(prompts, careless=0.5), settings.revision, rng)
        assert following is not None
        click = following.clicks[-1]
        row, column = click.point.pixel(truth.shape)
        assert (truth[row, column], wrong[row, column]) == (
            (True, False) if click.polarity == "positive" else (False, True)
        )
        assert following.clicks[:-1] == prompt.clicks
        assert following.box == prompt.box
        assert following.previous is not None and np.array_equal(following.previous.mask, wrong)
        prompt = following
    assert next_prompt(prompt, truth, truth, prompts, settings.revision, rng) is None


def test_first_prompts_are_boxes_points_and_both_in_their_shares(settings: Settings, two: list[Example]) -> None:
    truth = two[0].components[0].mask
    true_box = Box.around(truth)
    assert true_box is not None
    rng = np.random.default_rng(0)
    shares = FirstPrompts(box=0.5, box_and_points=0.25, point=0.25, careless=0, jitter=0.2)
    asked = [first_prompt(truth, shares, rng) for _ in range(400)]
    kinds = [(prompt.box is not None, bool(prompt.clicks)) for prompt in asked]
    for kind, share in {(True, False): 0.5, (True, True): 0.25, (False, True): 0.25}.items():
        assert kinds.count(kind) / 400 == pytest.approx(share, abs=0.08)
    for prompt in asked:
        if prompt.box is not None:
            moved = np.abs(np.array(prompt.box.to_json()) - np.array(true_box.to_json()))
            sides = np.array([true_box.width, true_box.height] * 2)
            assert (moved <= shares.jitter * sides + 1e-9).all()
        for click in prompt.clicks:
            assert truth[click.point.pixel(truth.shape)] == (click.polarity == "positive")
    polarities = {click.polarity for prompt in asked if prompt.box is not None for click in prompt.clicks}
    assert polarities == {"positive", "negative"}


def test_no_prompt_is_padded() -> None:
    mask = Prediction(BOX.mask((40, 40)))
    prompts = [
        Prompt(BOX), Prompt(BOX, CLICKS), Prompt(BOX), Prompt(None, CLICKS), Prompt(BOX, CLICKS, mask),
        Prompt(BOX, CLICKS[:1]),
    ]  # fmt: skip
    assert sorted(alike(prompts)) == [[0, 2], [1], [3], [4], [5]]


def test_what_is_asked_does_not_depend_on_how_a_batch_is_divided(settings: Settings, two: list[Example]) -> None:
    net = network(settings)
    together = loss_of(net, two, step=7)
    apart = [loss_of(net, [example], step=7) for example in two]
    assert together.item() == pytest.approx(sum(loss.item() for loss in apart) / 2, rel=1e-4)
    assert loss_of(net, two, step=8).item() != together.item()
    assert loss_of(network(settings, seed=1), two, step=7).item() != together.item()


def test_a_radiograph_without_a_usable_component_costs_nothing(settings: Settings, two: list[Example]) -> None:
    net = network(settings)
    bare = replace(two[1], components=())
    loss_of(net, [bare]).backward()
    assert all(gradient is None or not gradient.any() for gradient in gradients(net).values())
    assert loss_of(net, [two[0], bare]).item() == pytest.approx(loss_of(net, [two[0]]).item() / 2, rel=1e-5)


# How it is computed.


def test_checkpointing_gives_the_same_gradients(settings: Settings, two: list[Example]) -> None:
    found = []
    for checkpointing in (False, True):
        net = network(settings, clicks=2, checkpointing=checkpointing)
        passes: list[int] = []
        layer = net.tracker.vision_encoder.backbone.layers[1]
        layer.layer_norm1.register_forward_hook(lambda *_, passes=passes: passes.append(1))
        loss_of(net, two).backward()
        found.append((len(passes), gradients(net)))
    (once, plain), (twice, again) = found
    assert (once, twice) == (1, 2)
    for name, gradient in plain.items():
        other = again[name]
        assert (gradient is None) == (other is None)
        assert gradient is None or torch.equal(gradient, other), name


def test_in_bfloat16_the_encoder_alone_computes_and_weights_stay_float32(
    settings: Settings, two: list[Example]
) -> None:
    net = network(settings, clicks=1, bf16=True)
    kinds: dict[str, torch.dtype] = {}
    trunk, decoder = net.tracker.vision_encoder.backbone.layers[0].mlp.fc1, net.tracker.mask_decoder.transformer
    trunk.register_forward_hook(lambda *given: kinds.update(encoder=given[-1].dtype))
    decoder.register_forward_hook(lambda *given: kinds.update(decoder=given[-1][0].dtype))
    loss = loss_of(net, two)
    loss.backward()
    assert kinds == {"encoder": torch.bfloat16, "decoder": torch.float32}
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}
    assert loss.item() == pytest.approx(loss_of(network(settings, clicks=1), two).item(), rel=0.1)


# Who learns, and how fast.


def test_every_weight_that_a_loss_reaches_learns(settings: Settings, two: list[Example]) -> None:
    prompts = FirstPrompts(box=0.4, box_and_points=0.3, point=0.3, careless=0.2, jitter=0.1)
    net = network(replace(settings, segmenter=replace(settings.segmenter, prompts=prompts)))
    for step in range(8):
        loss_of(net, two, step).backward()
    # A hypothesis that was never the best has a gradient of nought.
    learnt = {name for name, gradient in gradients(net).items() if gradient is not None}
    assert learnt == {name for name, _ in net.tracker.named_parameters() if reached(name)}
    still = {name for name, parameter in net.tracker.named_parameters() if not parameter.requires_grad}
    assert {name.split(".")[1] for name in still} == {"neck", "pred_obj_score_head", "output_hypernetworks_mlps"}


def test_rates_and_decay_are_table_7s(paper: Settings) -> None:
    tracker = tiny_sam3()
    names = {id(parameter): name for name, parameter in tracker.named_parameters()}
    found: dict[str, tuple[float, float]] = {}
    for group in parameter_groups(tracker, paper.segmenter):
        for parameter in group["params"]:
            name = names[id(parameter)]
            assert name not in found
            found[name] = (group["lr"], group["weight_decay"])
    assert found.keys() == {name for name, parameter in tracker.named_parameters() if parameter.requires_grad}
    trunk = "vision_encoder.backbone."
    expected = {
        "mask_decoder.transformer.layers.0.self_attn.q_proj.weight": 1e-4,
        "prompt_encoder.point_embed.weight": 1e-4,
        "vision_encoder.neck.fpn_layers.0.proj1.weight": 0.6e-4,
        f"{trunk}embeddings.position_embeddings": 0.6e-4,
        f"{trunk}layers.2.mlp.fc1.weight": 0.6e-4 * 0.9,
        f"{trunk}layers.1.mlp.fc1.weight": 0.6e-4 * 0.9**2,
        f"{trunk}layers.0.mlp.fc1.weight": 0.6e-4 * 0.9**3,
        f"{trunk}embeddings.patch_embeddings.projection.weight": 0.6e-4 * 0.9**4,
    }
    for name, rate in expected.items():
        assert found[name] == pytest.approx((rate, 0.1)), name
    assert found[f"{trunk}layers.2.mlp.fc1.bias"] == pytest.approx((0.6e-4 * 0.9, 0))
    assert found[f"{trunk}layers.0.layer_norm1.weight"][1] == 0


def test_a_model_of_another_number_of_hypotheses_is_refused(settings: Settings) -> None:
    other = replace(settings, segmenter=replace(settings.segmenter, hypotheses=4))
    with pytest.raises(BundleError, match="hypotheses"):
        network(other)
    assert settings.segmenter.side == SIDE
