"""The systems of the paper's Table 1 and beyond: where they are, what they need, what they are given and what they
write.

Nothing of theirs is shipped. Each runs in an environment of its own, on what ``baselines write`` wrote; ``baselines
read`` makes predictions of what it leaves in a folder. Licences are those of the code, as their repositories state them
on 2026-11-30; weights have terms of their own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.baselines import native
from training.baselines.requests import Request, place_of
from xflow_core.domain.errors import CallError
from xflow_core.domain.instruction import Instruction

LESION, LUNGS = "lesion", "lungs"
RUNNERS = Path(__file__).parent / "runners"


@dataclass(frozen=True)
class System:
    """One system.

    title: as in the paper's tables. checkout: the folder its repository is cloned to, None for a package. gpu: GiB of
    GPU memory that its model needs, 0 where a processor does. boxes: it is told the truth's boxes, so its F1 says
    nothing. segmenter: it may leave prompts alone, and a bundle's segmenter draws the masks. absent: what it does when
    the finding is not there. run: in its checkout; REQUESTS is what ``write`` wrote, NATIVE the folder for its output.
    writes: that output, as ``read`` expects it.
    """

    name: str
    title: str
    repository: str
    licence: str
    weights: str
    checkout: str | None
    package: str | None
    gpu: int
    install: str
    run: str
    writes: str
    absent: str
    prompt: Callable[[Instruction], str]
    read: Callable[[Path, Request], Any]
    gives: str = LESION
    boxes: bool = False
    segmenter: bool = False

    @property
    def runner(self) -> Path | None:
        """The script that runs it over its requests, where there is one."""
        path = RUNNERS / f"{self.name.replace('-', '_')}.py"
        return path if path.is_file() else None

    def runs_here(self, checkouts: Path, gpu: float) -> str:
        """``yes``, or why not. gpu: GiB of GPU memory there is."""
        if gpu < self.gpu:
            return f"no: needs a GPU of {self.gpu} GiB"
        if self.checkout is not None and not (checkouts / self.checkout).is_dir():
            return f"no: {self.checkout} is not in {checkouts}"
        if self.package is not None and importlib.util.find_spec(self.package) is None:
            return f"no: the package {self.package} is not installed"
        return "yes, in its own environment" if self.checkout else "yes"


def _sentence(instruction: Instruction) -> str:
    return instruction.text


def _lisa(instruction: Instruction) -> str:
    # Its LONG_QUESTION_LIST: a sentence, and this.
    return f"{instruction.text.rstrip('.')}. Please output segmentation mask."


def _text4seg(instruction: Instruction) -> str:
    # Its QUESTION_PARTIAL; commas are taken out as its evaluation does.
    return f"Please segment only the {place_of(instruction)} in the image.".replace(",", "")


def _biomedparse(instruction: Instruction) -> str:
    return f"{place_of(instruction)} in chest X-ray"


def _reclmis(instruction: Instruction) -> str:
    # Its reader wants nine words at least and fills shorter descriptions with these.
    words = place_of(instruction).split()
    return " ".join(words if len(words) >= 9 else [*words, *["EOF XXX"] * (9 - len(words))])


def _ibis(instruction: Instruction) -> str:
    return f"Can you find {place_of(instruction)} in this image?"


def _seg_zero(instruction: Instruction) -> str:
    # Its script puts this, in small letters and without the dot, into a question of its own.
    return place_of(instruction)


def _medgemma(instruction: Instruction) -> str:
    return (
        f'Is there {place_of(instruction)}? Answer with a JSON list of objects with "box_2d": [y0, x0, y1, x1] from 0 '
        f'to 1000 and "label", one for each; an empty list if there is none.'
    )


def _imis(instruction: Instruction) -> str:
    # The name of its own category where it has one; its runner puts the other findings into the same sentence.
    return {"effusion": "pleural_effusion"}.get(instruction.finding, instruction.finding)


def _nothing(instruction: Instruction) -> str:
    return ""


SYSTEMS = (
    System(
        "rosalia", "ROSALIA", "github.com/checkoneee/ROSALIA", "Apache-2.0", "checkone/ROSALIA-7B-v1 (Hugging Face)",
        "ROSALIA", None, 24,
        "conda create -n rosalia python=3.10; pip install torch torchvision (CUDA 12.6), -r requirements.txt",
        "python REQUESTS/runner/rosalia.py --out NATIVE",
        "<stem>.png, source size",
        "answers '[SEG] There is no ..' and a mask without a pixel",
        _sentence, native.rosalia,
    ),
    System(
        "lisa", "LISA-7B", "github.com/dvlab-research/LISA", "Apache-2.0",
        "xinlai/LISA-7B-v1-explanatory (Hugging Face)",
        "LISA", None, 24,
        "pip install -r requirements.txt; pip install flash-attn --no-build-isolation",
        "python chat.py --version xinlai/LISA-7B-v1-explanatory --vis_save_path NATIVE < stdin.txt > NATIVE/stdout.txt",
        "<stem>_mask_<k>.jpg of 0 and 100, and stdout.txt with a 'text_output:' for each request",
        "was not taught to decline; words without [SEG] are taken as nothing there",
        _lisa, native.lisa,
    ),
    System(
        "pixellm", "PixelLM-7B", "github.com/MaverickRen/PixelLM", "Apache-2.0",
        "maverickrzw/PixelLM-7B (Hugging Face)",
        "PixelLM", None, 24,
        "pip install -r requirements.txt; pip install flash-attn --no-build-isolation",
        "python chat.py --version hf_model --seg_token_num 3 (and its README's other options) --vis_save_path NATIVE "
        "< stdin.txt > NATIVE/stdout.txt",
        "<stem>_mask_<k>.jpg of 0 and 100, and stdout.txt with a 'text_output:' for each request",
        "was not taught to decline; words without [SEG0] .. are taken as nothing there",
        _lisa, native.lisa,
    ),
    System(
        "text4seg", "Text4Seg", "github.com/mc-lan/Text4Seg", "S-Lab License 1.0 (non-commercial)",
        "lmc22/text4seg-llava-7b-p24 (Hugging Face), SAM ViT-H",
        "Text4Seg", None, 24,
        'pip install -e ".[train]"; pip install flash-attn --no-build-isolation',
        "python REQUESTS/runner/text4seg.py --out NATIVE",
        "<stem>.txt with <seg>..</seg> on a 24 x 24 grid, and <stem>/0_sam_mask.png, refined by SAM, which counts",
        "writes only 'others', or no <seg> at all: both are an empty mask in its own evaluation",
        _text4seg, native.text4seg,
    ),
    System(
        "imis-net", "IMIS-Net", "github.com/uni-medical/IMIS-Bench", "none stated", "Baidu Netdisk, see its README",
        "IMIS-Bench", None, 12,
        "conda create -n imis python=3.8; pip install torch==2.2.1 torchvision==0.17.2 monai==0.9.1 timm==0.9.16 "
        "transformers==4.39.3 opencv-python nibabel matplotlib; its weights to ckpt/IMISNet-B.pth, and "
        "openai/clip-vit-base-patch32 (Hugging Face) to clip-vit-base-patch32",
        "python REQUESTS/runner/imis_net.py --out NATIVE",
        "<stem>.npy [1, 1, H, W], 0 and 1",
        "was not taught to decline; a mask without a pixel is nothing there",
        _imis, native.imis_net,
    ),
    System(
        "ibisagent", "IBISAgent-7B", "github.com/Yankai96/IBISAgent", "MIT",
        "manglu3935/IBIS, qwen2_5vl-7b-RL (Hugging Face), SAM2",
        "IBISAgent", None, 24,
        "conda create -n ibisagent python=3.12; pip install -r infer/requirements.txt; pip install -e sam2",
        "python REQUESTS/runner/ibisagent.py --out NATIVE",
        "<stem>/final_segmentation.png, the image with the mask in green at 40 %",
        "may Terminate before its first click: then the picture stays bare, which is nothing there",
        _ibis, native.ibis_agent,
    ),
    System(
        "biomedparse", "BiomedParse", "github.com/microsoft/BiomedParse", "Apache-2.0",
        "microsoft/BiomedParse (Hugging Face)",
        "BiomedParse", None, 16,
        "conda env create -f environment.yml",
        "python REQUESTS/runner/biomedparse.py --out NATIVE",
        "<stem>.npy [1, H, W], probabilities",
        "a mask whose probabilities stay under 0.5 is nothing there; its p-value test knows no lesion of XFlow's but "
        "COVID-19's, and is not used",
        _biomedparse, native.biomedparse,
    ),
    System(
        "reclmis", "RecLMIS", "github.com/ShawnHuang497/RecLMIS", "MIT (its README says Apache-2.0)",
        "Google Drive, see its README (QaTa-COV19)",
        "RecLMIS", None, 8,
        "conda create -n reclmis python=3.9; pip install -r requirements.txt; CLIP ViT-B-32 into nets/",
        "python REQUESTS/runner/reclmis.py --weights best_model-RecLMIS.pth.tar --out NATIVE",
        "<stem>.npy [224, 224], 0 and 1",
        "was not taught to decline; a mask without a pixel is nothing there",
        _reclmis, native.reclmis,
    ),
    System(
        "seg-zero", "Seg-Zero (VisionReasoner-7B)", "github.com/dvlab-research/Seg-Zero", "Apache-2.0",
        "Ricky06662/VisionReasoner-7B (Hugging Face), SAM2",
        "Seg-Zero", None, 24,
        "conda create -n visionreasoner python=3.12; pip install -e .",
        "python REQUESTS/runner/seg_zero.py --out NATIVE",
        "<stem>.txt with <answer>[{bbox_2d, point_2d}, ..]</answer> on 840 x 840, and <stem>.png, its own SAM2's "
        "masks, which count; without them `read --bundle` draws",
        "an empty list is nothing there; words without an answer are an error",
        _seg_zero, native.seg_zero, segmenter=True,
    ),
    System(
        "segagent", "SegAgent", "github.com/aim-uofa/SegAgent", "MIT (its README: BSD-2-Clause, academic use)",
        "zzzmmz/SegAgent-Model (ModelScope), SimpleClick",
        "SegAgent", None, 24,
        "pip install -r env.txt",
        "python REQUESTS/runner/segagent.py --out WORK writes JPEGs and lists for its program, which passes over PNGs "
        "and stops after 5,000; in evaltools, for each list: VIS_DIR=NATIVE python main.py NoBRS --model MODEL "
        "--checkpoint SIMPLECLICK --img WORK/images --json WORK/xflow-1.json --no_use_mask_module "
        "--use_previous_mask 1 --n-clicks 7 --seg_model simple_click --grounding_model qwen-full",
        "<list>_newresults_*.json: records of img_path and pred_list with COCO masks and the words of each click",
        "always clicks: it cannot say that nothing is there",
        place_of, native.seg_agent,
    ),
    System(
        "medsam", "MedSAM", "github.com/bowang-lab/MedSAM", "Apache-2.0", "medsam_vit_b.pth, see its README",
        "MedSAM", None, 8,
        "conda create -n medsam python=3.10; pip install -e .",
        "python REQUESTS/runner/medsam.py --out NATIVE",
        "seg_<stem>_<k>.png, 0 and 1",
        "is told the truth's boxes and no row without one: its F1 says nothing",
        _nothing, native.medsam, boxes=True,
    ),
    System(
        "medsam2", "MedSAM2", "github.com/bowang-lab/MedSAM2", "Apache-2.0", "download.sh of its repository",
        "MedSAM2", None, 8,
        'conda create -n medsam2 python=3.12; pip install -e ".[dev]"',
        "python REQUESTS/runner/medsam2.py --out NATIVE",
        "<stem>.npz with segs [1, H, W]",
        "is told the truth's boxes and no row without one: its F1 says nothing",
        _nothing, native.medsam2, boxes=True,
    ),
    System(
        "sam3-text", "SAM3, text prompt", "github.com/facebookresearch/sam3", "SAM License",
        "facebook/sam3 (Hugging Face, gated)",
        "sam3", None, 12,
        "conda create -n sam3 python=3.12; pip install torch torchvision (CUDA 12.6); pip install -e .",
        "python REQUESTS/runner/sam3_text.py --out NATIVE",
        "<stem>.npz with masks [N, 1, H, W] and scores [N]",
        "keeps no mask under a score of 0.5: none is nothing there",
        place_of, native.sam3_text,
    ),
    System(
        "medgemma", "MedGemma-1.5-4B, zero-shot", "huggingface.co/google/medgemma-1.5-4b-it",
        "Health AI Developer Foundations terms", "google/medgemma-1.5-4b-it (Hugging Face, gated)",
        None, "transformers", 12,
        "XFlow's own extra [gpu]",
        "python REQUESTS/runner/medgemma.py --out NATIVE; then `read --bundle`, whose segmenter draws the masks. Or "
        "XFlow's zero-shot bundle (docs/foundation.md) and `evaluate --keep`",
        "<stem>.txt with [{box_2d, label}, ..]",
        "is told to answer with an empty list; words that are no list are an error",
        _medgemma, native.medgemma, segmenter=True,
    ),
    System(
        "cxas", "CXAS", "github.com/ConstantinSeibold/ChestXRayAnatomySegmentation", "CC BY-NC-SA 4.0",
        "fetched by the package",
        None, "cxas", 0,
        "pip install cxas",
        "cxas -i images -o NATIVE -mode segment",
        "<stem>/right lung.png, <stem>/left lung.png",
        "draws lungs, no findings",
        _nothing, native.cxas_lungs, gives=LUNGS,
    ),
    System(
        "chexmask-u", "CheXmask-U", "github.com/mcosarinsky/CheXmask-U", "GPL-3.0",
        "mcosarinsky/CheXmask-U (Hugging Face)",
        "CheXmask-U", None, 0,
        "PyTorch and PyTorch Geometric, see its README",
        "HybridGNet/inferenceWithHybridGNet.py on the pictures, stretched to 1024 x 1024; its Output to NATIVE",
        "<stem>.txt, landmarks on 1024 x 1024",
        "draws lungs, no findings",
        _nothing, native.chexmask_u_lungs, gives=LUNGS,
    ),
)  # fmt: skip


def system(name: str) -> System:
    """The system of that name.

    Raises:
        CallError: there is none; the message lists them.
    """
    for one in SYSTEMS:
        if one.name == name:
            return one
    raise CallError(f"{name!r} is no system known here; known are {', '.join(s.name for s in SYSTEMS)}.")
