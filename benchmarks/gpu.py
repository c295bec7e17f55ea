"""The foundation engine at full size with random weights: how fast, how much memory, and what the hardware allows.

    python -m benchmarks.gpu [--size full|tiny] [--device auto|cuda|cpu|mps] [--layout merged|adapters|nf4]
        [--decoding auto|plain|fixed|captured|compiled] [--repeat N]

Nothing is downloaded: MedGemma 1.5 4B's and SAM3's own sizes, weights from the random generator, a tokenizer of single
characters. What is decoded is therefore nonsense under the grammar, of the length that an answer has: a coordinate's
digits are tokens of their own in Gemma's tokenizer too, and the fixed words cost one pass each way. ``--size tiny`` is
the smoke test for a CPU.

"bound" is the time in which the memory could deliver the language model's weights once, at the bandwidth that a copy on
the device reaches: no decoder that reads every weight for a token is faster. A token is timed in every way of decoding
that the device has; ``--decoding`` is that of the whole answers.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3Processor,
    Sam3TrackerConfig,
    Sam3TrackerModel,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from tests.tiny_gemma import LANGUAGE_LAYERS, TEMPLATE, tiny_tokenizer
from tests.tiny_sam3 import tiny_sam3
from xflow_core.bundles.foundation_backend import choose_device, quiet_transformers
from xflow_core.domain.findings import FINDINGS
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import (
    BundleIdentity,
    ClickStep,
    ImageRecord,
    LungsStep,
    MaskStep,
    PresenceStep,
    Step,
)
from xflow_core.policies.medgemma import MedGemmaInitPolicy, MedGemmaRevisionPolicy, PolicySettings
from xflow_core.policies.medgemma_layouts import LAYOUTS
from xflow_core.policies.medgemma_model import (
    CAPTURED,
    COMPILED,
    DECODING,
    FIXED,
    KEPT_CONVERSATIONS,
    PLAIN,
    Conversation,
    MedGemma,
    check_decoding,
)
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import Radiograph
from xflow_core.radiograph.recipes import MIMIC_CXR_JPG
from xflow_core.segmenters.sam3 import Sam3Segmenter
from xflow_core.workflow.engine import Engine
from xflow_core.workflow.session import Session


@dataclass(frozen=True)
class Size:
    """The numbers of a Gemma3 that matter, LoRA's rank, the picture of both models and the radiograph."""

    text: dict[str, Any]
    vision: dict[str, Any]
    soft_tokens: int
    rank: int
    picture: tuple[int, int]


FULL = Size(
    text={
        "vocab_size": 262208, "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 1024,
    },
    vision={
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
        "image_size": 896, "patch_size": 14, "vision_use_head": False,
    },
    soft_tokens=256,
    rank=128,
    picture=(2544, 3056),
)  # fmt: skip
TINY = Size(
    text={
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 64,
    },
    vision={
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": 56, "patch_size": 14, "vision_use_head": False,
    },
    soft_tokens=4,
    rank=4,
    picture=(254, 306),
)  # fmt: skip


TOGETHER = 4
"""Images at a time, as ``xflow batch`` has them."""


def processor_of(size: Size) -> Gemma3Processor:
    side = size.vision["image_size"]
    return Gemma3Processor(
        image_processor=Gemma3ImageProcessorPil(size={"height": side, "width": side}, do_pan_and_scan=False),
        tokenizer=tiny_tokenizer(),
        chat_template=TEMPLATE,
        image_seq_length=size.soft_tokens,
    )


def language_model(size: Size, device: str, dtype: torch.dtype) -> Gemma3ForConditionalGeneration:
    tokenizer = tiny_tokenizer()
    config = Gemma3Config(
        text_config={
            **size.text,
            "max_position_embeddings": 8192,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "bos_token_id": 2,
        },
        vision_config=size.vision,
        mm_tokens_per_image=size.soft_tokens,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
        image_token_index=tokenizer.image_token_id,
    )
    with torch.device(device):
        model: Any = Gemma3ForConditionalGeneration._from_config(config, dtype=dtype, attn_implementation="sdpa")
        torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight, std=0.02)
    return model.eval().requires_grad_(False)


def policies(size: Size, layout: str, device: str, decoding: str) -> dict[str, MedGemma]:
    """A model for each policy, as :mod:`xflow_core.policies.medgemma_layouts` lays them out."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    processor = processor_of(size)
    if layout == "merged":
        return {
            role: MedGemma(language_model(size, device, dtype), processor, decoding=decoding)
            for role in ("init", "revision")
        }
    settings = LoraConfig(
        r=size.rank, lora_alpha=2 * size.rank, target_modules=LANGUAGE_LAYERS, modules_to_save=["vision_tower"]
    )
    base = language_model(size, device, dtype)
    if layout == "nf4":
        in_four_bits(base, device, dtype)
    adapted = get_peft_model(base, settings, adapter_name="init", autocast_adapter_dtype=False)
    adapted.add_adapter("revision", settings, autocast_adapter_dtype=False)
    both = MedGemma(adapted.to(device, dtype).eval().requires_grad_(False), processor, decoding=decoding)
    return dict.fromkeys(("init", "revision"), both)


def in_four_bits(model: Any, device: str, dtype: torch.dtype) -> None:
    """The language layers' products in NF4, as a bundle's are loaded in that layout."""
    from bitsandbytes.nn import Linear4bit

    for layer in model.model.language_model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, plain in list(part.named_children()):
                if isinstance(plain, torch.nn.Linear):
                    small = Linear4bit(
                        plain.in_features, plain.out_features, bias=False, compute_dtype=dtype, quant_type="nf4"
                    )
                    small.load_state_dict({"weight": plain.weight.cpu()})
                    setattr(part, name, small.to(device).requires_grad_(False))


def segmenter(size: Size, device: str) -> Sam3Segmenter:
    if size is TINY:
        model = tiny_sam3()
    else:
        with torch.device(device):
            model = Sam3TrackerModel(Sam3TrackerConfig())
    model = model.to(device).eval().requires_grad_(False)
    if device == "cuda":
        model.vision_encoder.to(torch.bfloat16)
    return Sam3Segmenter(model, MIMIC_CXR_JPG)


def engine_of(models: dict[str, MedGemma], sam: Sam3Segmenter) -> Engine:
    settings = PolicySettings(temperature=1.0)  # random weights would otherwise make the same choice at every turn
    return Engine(
        BundleIdentity("random weights", "0", "foundation", "0" * 64),
        FINDINGS,
        init_policy=MedGemmaInitPolicy(models["init"], settings, MIMIC_CXR_JPG),
        revision_policy=MedGemmaRevisionPolicy(models["revision"], settings, MIMIC_CXR_JPG),
        segmenter=sam,
        components_together=KEPT_CONVERSATIONS,
    )


def radiograph(size: Size, seed: int) -> EncodedRadiograph:
    """A picture of noise; a new one each time, so that nothing was computed from it before."""
    values = np.random.default_rng(seed).random(size.picture, np.float32)
    record = ImageRecord(sha256=f"{seed:064x}", source="png", size=size.picture)
    return EncodedRadiograph(Radiograph(values, (values * 255).astype(np.uint8), record))


def answered(engine: Engine, image: EncodedRadiograph, seed: int) -> list[Step]:
    """The steps of one question whose every verdict is taken as present, so that all stages run."""
    (instruction,) = parse_instruction("Segment the effusion in the left lung")
    session = Session(engine, image, instruction, seed=seed)
    steps = session.run()
    own = [next(steps), next(steps)]
    present = tuple(replace(v, present=True, confidence=None) for v in own[1].verdicts)  # type: ignore[attr-defined]
    branch = session.replace(1, PresenceStep(verdicts=present))
    return [*own, *branch.run()]


def synchronised(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def median(work: Callable[[], object], repeat: int, device: str) -> float:
    """Median seconds of ``repeat`` calls after one that is not counted."""
    work()
    seconds = []
    for _ in range(repeat):
        synchronised(device)
        start = time.perf_counter()
        work()
        synchronised(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def bandwidth(device: str, size: Size) -> float:
    """Bytes a second that a copy on the device moves, read and written."""
    count = 2**30 if size is FULL else 2**24
    source = torch.empty(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * count / median(lambda: target.copy_(source), 5, device)


def one_token(gemma: MedGemma, device: str, together: int = 1) -> float:
    """Seconds for a token after 900 others; of several conversations that share each pass, for a token of each."""
    steps = 21
    start = threading.Barrier(together)

    def seconds(number: int) -> float:
        symbols = [100 + (k + number) % 100 for k in range(900)]
        with gemma.using("init"):
            start.wait()
            conversation = Conversation(gemma)
            conversation.after(symbols, lambda _: torch.empty(0))

            def once() -> None:
                symbols.append(120)
                conversation.after(symbols, lambda _: torch.empty(0))

            return median(once, steps - 1, device)

    with ThreadPoolExecutor(together) as pool:
        return statistics.median(pool.map(seconds, range(together)))


def ways_of_decoding(device: str) -> tuple[str, ...]:
    return (PLAIN, CAPTURED, COMPILED) if device == "cuda" else (PLAIN, FIXED)


def rows(size: Size, layout: str, device: str, repeat: int, decoding: str = "auto") -> Iterator[tuple[str, str, str]]:
    """What was measured, its figure, and what it is to be held against."""
    sam = segmenter(size, device)
    models = policies(size, layout, device, check_decoding(decoding, device))
    engine = engine_of(models, sam)
    answered(engine, radiograph(size, 0), 0)  # warm-up
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    runs = [answered(engine, radiograph(size, seed), seed) for seed in range(1, repeat + 1)]

    def seconds(steps: list[Step], *kinds: type[Step]) -> float:
        return sum(step.seconds for step in steps if isinstance(step, kinds))

    def first_mask(steps: list[Step]) -> float:
        return next(step.seconds for step in steps if isinstance(step, MaskStep))

    until_mask = [
        sum(step.seconds for step in steps[: next(k for k, s in enumerate(steps) if isinstance(s, MaskStep)) + 1])
        for steps in runs
    ]
    yield "verdict and first mask", f"{statistics.median(until_mask):.3f} s", "goal 1.5 s on one H200"
    yield "  lungs", f"{statistics.median([seconds(steps, LungsStep) for steps in runs]):.3f} s", ""
    yield "  first mask, image encoded", f"{statistics.median([first_mask(steps) for steps in runs]):.3f} s", ""
    clicks = [step for steps in runs for step in steps if isinstance(step, ClickStep)]
    if clicks:
        masks = [step for steps in runs for step in steps if isinstance(step, MaskStep) and step.turn > 0]
        each = statistics.median([step.seconds for step in clicks]) + statistics.median(
            [step.seconds for step in masks]
        )
        yield "a click and its mask", f"{each:.3f} s", f"goal 0.4 s on one H200; {len(clicks)} clicks"

    encode = median(lambda: sam.embedding(radiograph(size, 99)), repeat, device)
    yield "SAM3 image, recipe included", f"{encode:.3f} s", ""

    if device == "cuda":
        yield "memory at most", f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", f"layout {layout}"

    weights = models["init"].gemma.model.language_model.named_parameters()
    # The other policy's adapter is not read.
    bound = sum(weight.nbytes for name, weight in weights if ".revision." not in name) / bandwidth(device, size)
    for way in ways_of_decoding(device):
        gemma = MedGemma(models["init"].model, models["init"].processor, decoding=way)
        for together in (1, TOGETHER):
            seconds_each = one_token(gemma, device, together)
            used = gemma.decoding if gemma.decoding == way else f"{way} failed, {gemma.decoding}"
            yield (
                f"one token, {used}" if together == 1 else f"  a token of each of {together}",
                f"{seconds_each * 1e3:.2f} ms, {together / seconds_each:.0f} a second",
                f"bound {bound * 1e3:.2f} ms: {bound / seconds_each:.0%}" + (", goal 60%" if together == 1 else ""),
            )
        del gemma
        gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu", "mps"), default="auto")
    parser.add_argument("--layout", choices=LAYOUTS, default="adapters")
    parser.add_argument("--decoding", choices=("auto", *DECODING), default="auto")
    parser.add_argument("--repeat", type=int, default=3)
    call = parser.parse_args()
    device = choose_device(call.device)
    name = torch.cuda.get_device_name() if device == "cuda" else device
    print(f"The foundation engine on {name}, torch {torch.__version__}, {call.size} size, random weights")
    print(f"  layout {call.layout}, decoding {call.decoding}")
    size = FULL if call.size == "full" else TINY
    with quiet_transformers():
        for what, figure, beside in rows(size, call.layout, device, call.repeat, call.decoding):
            print(f"  {what:30} {figure:24} {beside}", flush=True)
    print("  not for clinical use")


if __name__ == "__main__":
    main()
