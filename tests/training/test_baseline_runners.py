"""The scripts that run other systems over their requests, in checkouts that only have the functions that they call.

The systems themselves cannot be installed here: each stand-in keeps the names, arguments, shapes and files of the
functions and scripts in the system's repository, and answers the first request with a lesion, the second with nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from training.__main__ import main
from training.baselines.catalogue import SYSTEMS, system
from training.baselines.native import medgemma
from training.baselines.requests import read_requests
from training.evaluation.predictions import answered_from
from training.evaluation.rows import read_rows, write_rows
from xflow_core.domain import rle
from xflow_core.export.files import write_mask

SIZE = (96, 120)
TRUTH = np.zeros(SIZE, bool)
TRUTH[24:48, 30:60] = True

# What every stand-in answers with: the lesion for the picture 000000.png, else nothing; how often models are loaded.
ANSWERS = """
from pathlib import Path
import numpy as np
def loaded():
    with open("loaded.txt", "a") as file:
        file.write("x")
def mask_of(image):
    mask = np.zeros((96, 120), np.uint8)
    if image is not None and Path(str(image)).name.startswith("000000"):
        mask[24:48, 30:60] = 1
    return mask
def named(picture):
    # The two pictures are equal; a set asks the first one first.
    named.count += 1
    return f"{named.count - 1:06d}.png"
named.count = 0
class Tensor:
    def __init__(self, values): self.values = np.asarray(values)
    def float(self): return self
    def cpu(self): return self
    def numpy(self): return self.values
"""

CHECKOUTS: dict[str, dict[str, str]] = {
    "rosalia": {
        "inference_rosalia_example.py": """
import os
os.environ["HF_HOME"] = "/home/nobody"
import cv2
from huggingface_hub import constants
assert constants.HF_HOME != "/home/nobody"
from answers import loaded, mask_of
def initialize_model():
    loaded()
    return "model", "tokenizer", "clip", "transform"
def prepare_inputs(instruction, image_path, tokenizer, clip_image_processor, transform):
    return image_path, instruction, "input_ids", [(1, 1)], [(96, 120)]
def run_inference(model, tokenizer, image_clip, image, input_ids, resize_list, original_size_list):
    return [mask_of(image_clip)[None]], "It is [SEG]."
def save_results(pred_masks, output_path="./example/pred_mask_example.png"):
    cv2.imwrite(output_path, np.repeat(pred_masks[0][0][..., None], 3, 2) * 255)
import numpy as np
"""
    },
    "biomedparse": {
        "configs/biomedparse_inference.yaml": "",
        "inference_utils/inference.py": """
from answers import mask_of, named
def interactive_infer_image(model, image, prompts):
    assert image.mode == "RGB" and prompts[0].endswith("in chest X-ray")
    return mask_of(named(image))[None] * 0.8 + 0.1
""",
        "modeling/__init__.py": "def build_model(opt):\n    return None\n",
        "modeling/BaseModel.py": """
from types import SimpleNamespace
from answers import loaded
class BaseModel:
    def __init__(self, opt, model):
        encoder = SimpleNamespace(get_text_embeddings=lambda names, is_eval: None)
        self.model = SimpleNamespace(sem_seg_head=SimpleNamespace(predictor=SimpleNamespace(lang_encoder=encoder)))
    def from_pretrained(self, path):
        assert path == "hf_hub:microsoft/BiomedParse"
        loaded()
        return self
    def eval(self): return self
    def cuda(self): return self
""",
        "utilities/distributed.py": "def init_distributed(opt):\n    return opt\n",
        "utilities/arguments.py": "def load_opt_from_config_files(files):\n    return {}\n",
        "utilities/constants.py": "BIOMED_CLASSES = ['lung']\n",
    },
    "imis-net": {
        "model.py": """
from answers import loaded
class IMISNet:
    def __init__(self, sam, test_mode=False, multimask_output=True, category_weights=None):
        assert test_mode and category_weights == "dataloaders/categories_weight.pkl"
        loaded()
        self.categories_map = {"pleural_effusion": ["Pleural effusion ", "pleural effusion"]}
    def to(self, device): return self
    def eval(self): return self
""",
        "segment_anything/__init__.py": """
class Sam:
    def to(self, device): return self
def vit_b(args):
    assert (args.image_size, args.sam_checkpoint) == (1024, "ckpt/IMISNet-B.pth")
    return Sam()
sam_model_registry = {"vit_b": vit_b}
""",
        "segment_anything/predictor.py": """
from answers import mask_of, named
class IMISPredictor:
    def __init__(self, model): self.model = model
    def set_image(self, image): self.image = image
    def predict(self, text):
        assert self.image.shape == (96, 120, 3)
        self.model.categories_map[text[0]][0]
        return mask_of(named(self.image))[None, None].astype("float32"), None, ["x"]
""",
    },
    "sam3-text": {
        "sam3/model_builder.py": "from answers import loaded\ndef build_sam3_image_model():\n    loaded()\n",
        "sam3/model/sam3_image_processor.py": """
from answers import Tensor, mask_of, named
import numpy as np
class Sam3Processor:
    def __init__(self, model): pass
    def set_image(self, image): return {"image": image}
    def set_text_prompt(self, prompt, state):
        mask = mask_of(named(state["image"]))
        found = mask[None, None] if mask.any() else np.zeros((0, 1, 96, 120))
        return {"masks": Tensor(found), "scores": Tensor(np.full(len(found), 0.7)), "boxes": None}
""",
    },
    "reclmis": {
        "clip.py": """
import torch
def tokenize(texts, context_length, truncate):
    assert context_length == 18 and truncate
    assert len(texts[0].split()) >= 9
    return torch.ones((1, context_length), dtype=torch.int)
""",
        "Config_covid19.py": """
n_channels, n_labels, img_size, token_len = 3, 1, 224, 18
def get_ViT_config():
    return {}
""",
        "nets/RecLMIS.py": """
import cv2
import torch
from answers import loaded, mask_of, named
class RecLMIS(torch.nn.Module):
    def __init__(self, config, vit, n_channels, n_classes):
        super().__init__()
        loaded()
    def forward(self, picture, masks, tokens, token_mask, mode):
        assert picture.shape == (1, 3, 224, 224) and picture.max() <= 1 and masks.shape == (1, 224, 224)
        assert tokens.shape == token_mask.shape == (1, 18) and mode == "test"
        square = cv2.resize(mask_of(named(picture)), (224, 224), interpolation=cv2.INTER_NEAREST)
        return torch.from_numpy(square)[None, None].float(), None, None
""",
    },
    "text4seg": {
        "llava/eval/run_llava.py": """
from pathlib import Path
from PIL import Image
from answers import loaded, mask_of
def load_pretrained_model(path, base, name):
    loaded()
    return "tokenizer", "model", "processor", 2048
class Sam:
    def to(self, **where): return self
def vit_h(checkpoint):
    loaded()
    return Sam()
sam_model_registry = {"vit_h": vit_h}
def eval_model(args):
    load_pretrained_model(args.model_path, args.model_base, "text4seg-llava-7b-p24")
    sam_model_registry["vit_h"](checkpoint=args.sam_path).to(dtype=None, device="cuda")
    (image,) = args.image_file.split(args.sep)
    mask = mask_of(image)
    rows = ["others *24"] * 24
    if mask.any():
        rows[6:12] = ["others *6| effusion *6| others *12"] * 6
    print("<seg>" + "\\n ".join(rows) + "</seg>")
    if mask.any():
        Image.fromarray(mask).convert("L").save("images/horse_mask.png")
""",
    },
    "ibisagent": {
        "infer/multi_turn.py": """
import argparse
import os
import numpy as np
from PIL import Image
from answers import loaded, mask_of
class MLLMEngine:
    def __init__(self, path): loaded()
class SAM2Engine:
    def __init__(self): loaded()
def main():
    parser = argparse.ArgumentParser()
    for name in ("--image", "--prompt", "--mllm_path", "--output_dir"):
        parser.add_argument(name, required=True)
    args = parser.parse_args()
    os.makedirs(args.output_dir, exist_ok=True)
    MLLMEngine(args.mllm_path), SAM2Engine()
    picture = np.asarray(Image.open(args.image).convert("RGB")).astype(float)
    over = picture.copy()
    over[mask_of(args.image) > 0] = (34, 139, 34)
    Image.fromarray(np.clip(picture * 0.6 + over * 0.4, 0, 255).astype(np.uint8)).save(
        os.path.join(args.output_dir, "final_segmentation.png"))
""",
    },
    "seg-zero": {
        "inference_scripts/infer_multi_object.py": """
import argparse
import json
import re
import numpy as np
from PIL import Image
from answers import loaded, mask_of
class Loaded:
    @classmethod
    def from_pretrained(cls, path, **options):
        loaded()
        return cls()
class Qwen2_5_VLForConditionalGeneration(Loaded):
    def eval(self): return self
class AutoProcessor(Loaded): pass
class SAM2ImagePredictor(Loaded):
    def set_image(self, image): self.image = image
    def predict(self, point_coords, point_labels, box):
        good = mask_of("000000.png")
        return np.stack([good * 0, good]).astype(float), np.array([0.1, 0.9]), None
def parse_args():
    parser = argparse.ArgumentParser()
    for name in ("--reasoning_model_path", "--segmentation_model_path", "--text", "--image_path", "--output_path"):
        parser.add_argument(name, type=str)
    return parser.parse_args()
def extract_bbox_points_think(words, x_factor, y_factor):
    match = re.search(r"<answer>\\s*(.*?)\\s*</answer>", words, re.DOTALL)
    if match:
        boxes = [one["bbox_2d"] for one in json.loads(match[1])]
    return boxes
def main():
    args = parse_args()
    Qwen2_5_VLForConditionalGeneration.from_pretrained(args.reasoning_model_path, attn_implementation="x").eval()
    segmenter = SAM2ImagePredictor.from_pretrained(args.segmentation_model_path)
    AutoProcessor.from_pretrained(args.reasoning_model_path, padding_side="left")
    image = Image.open(args.image_path).convert("RGB")
    found = [{"bbox_2d": [210, 210, 420, 420], "point_2d": [300, 300]}] if mask_of(args.image_path).any() else []
    words = f"<think>left</think><answer>{json.dumps(found)}</answer>"
    print(words)
    segmenter.set_image(image)
    for box in extract_bbox_points_think(words, 1, 1):
        segmenter.predict(point_coords=[[1, 1]], point_labels=[1], box=box)
""",
    },
    "medsam": {
        "segment_anything.py": """
from answers import loaded
def vit_b(checkpoint):
    loaded()
    return "model"
sam_model_registry = {"vit_b": vit_b}
""",
        "MedSAM_Inference.py": """
import argparse
import os
from PIL import Image
from segment_anything import sam_model_registry
from answers import mask_of
parser = argparse.ArgumentParser()
parser.add_argument("-i", "--data_path")
parser.add_argument("-o", "--seg_path")
parser.add_argument("--box")
parser.add_argument("--device")
parser.add_argument("-chk", "--checkpoint")
args = parser.parse_args()
sam_model_registry["vit_b"](checkpoint=args.checkpoint)
assert [int(x) for x in args.box[1:-1].split(",")] == [30, 24, 60, 48]
Image.fromarray(mask_of(args.data_path)).save(os.path.join(args.seg_path, "seg_" + os.path.basename(args.data_path)))
""",
    },
}
CHECKOUTS["medsam2"] = {
    "sam2/configs/sam2.1_hiera_t512.yaml": "",
    "sam2/build_sam.py": """
import os
from answers import loaded
def build_sam2(config_file, ckpt_path=None, device=None):
    assert config_file.startswith("///") and os.path.isfile(config_file[2:])
    loaded()
""",
    "sam2/sam2_image_predictor.py": """
from answers import mask_of
class SAM2ImagePredictor:
    def __init__(self, model): pass
    def set_image(self, image):
        assert image.shape == (96, 120, 3)
    def predict(self, box, multimask_output):
        assert box.tolist() == [30, 24, 60, 48] and not multimask_output
        return mask_of("000000.png")[None].astype(float), None, None
""",
}
MODELS = {"text4seg": 2, "ibisagent": 2, "seg-zero": 3}  # loaded once each; the others have one
OPTIONS = {"reclmis": ["--weights", "best.pth.tar", "--device", "cpu"], "imis-net": ["--device", "cpu"]}


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    grey = np.tile(np.linspace(20, 200, SIZE[1]).astype(np.uint8), (SIZE[0], 1))
    cv2.imwrite(str(tmp_path / "chest.png"), grey)
    write_mask(tmp_path / "truth.png", TRUTH)
    common: dict[str, Any] = {"image": "chest.png", "lungs": None, "source": "test", "level": "chest"}
    write_rows(tmp_path / "set.jsonl", [
        {**common, "id": "there", "finding": "effusion", "instruction": "Segment the effusion.", "regions": ["chest"],
         "mask": "truth.png"},
        {**common, "id": "not", "finding": "opacity", "instruction": "Segment the opacity.", "regions": ["chest"],
         "mask": None},
    ])  # fmt: skip
    return tmp_path / "requests"


def test_every_system_of_the_paper_but_those_with_a_terminal_has_a_runner() -> None:
    assert {one.name for one in SYSTEMS if one.runner is not None} == CHECKOUTS.keys() | {"medgemma", "segagent"}
    for name in CHECKOUTS:
        assert f"python REQUESTS/runner/{system(name).runner.name}" in system(name).run  # type: ignore[union-attr]
    for name in ("lisa", "pixellm"):
        assert "< stdin.txt" in system(name).run


@pytest.mark.parametrize("name", CHECKOUTS)
def test_a_runner_leaves_what_its_adapter_reads_and_goes_on_where_it_was(
    name: str, requests: Path, tmp_path: Path
) -> None:
    main(["baselines", "write", "--system", name, "--set", str(tmp_path / "set.jsonl"), "--out", str(requests)])
    checkout, native, out = tmp_path / "checkout", tmp_path / "native", tmp_path / "out"
    for path, text in {"answers.py": ANSWERS, **CHECKOUTS[name]}.items():
        (checkout / path).parent.mkdir(parents=True, exist_ok=True)
        (checkout / path).write_text(text)
    if name == "reclmis":
        import torch

        torch.save({"state_dict": {}}, checkout / "best.pth.tar")
    runner = requests / "runner" / system(name).runner.name  # type: ignore[union-attr]
    # Only the checkout and the runner's own folder: nothing of XFlow's can be imported.
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    call = [sys.executable, str(runner), "--out", str(native), *OPTIONS.get(name, [])]
    ended = subprocess.run(call, cwd=checkout, env=clean, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (checkout / "loaded.txt").read_text() == "x" * MODELS.get(name, 1)
    main(
        ["baselines", "read", "--system", name, "--requests", str(requests), "--native", str(native), "--out", str(out)]
    )
    there, absent = answered_from(out, read_rows(tmp_path / "set.jsonl"))
    assert there.iou > 0.95
    assert (there.returned, absent.returned) == (True, False)

    before = {path: path.stat().st_mtime_ns for path in native.rglob("*") if path.is_file()}
    assert not [path for path in before if ".part-" in path.name]
    ended = subprocess.run(call, cwd=checkout, env=clean, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before, "what was answered is not asked again"


def test_an_answer_that_seg_zeros_script_cannot_read_is_no_absence(
    requests: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["baselines", "write", "--system", "seg-zero", "--set", str(tmp_path / "set.jsonl"), "--out", str(requests)])
    checkout, native = tmp_path / "checkout", tmp_path / "native"
    (checkout / "inference_scripts").mkdir(parents=True)
    (checkout / "answers.py").write_text(ANSWERS)
    path, text = next(iter(CHECKOUTS["seg-zero"].items()))
    (checkout / path).write_text(text.replace("<answer>{json.dumps(found)}</answer>", "I am not sure."))
    runner = requests / "runner" / "seg_zero.py"
    subprocess.run([sys.executable, str(runner), "--out", str(native)], cwd=checkout, check=True, capture_output=True)
    assert sorted(path.name for path in native.iterdir()) == ["000000.txt", "000001.txt"]
    given = ["--requests", str(requests), "--native", str(native), "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit):
        main(["baselines", "read", "--system", "seg-zero", *given])
    assert "row there hold no <answer>" in capsys.readouterr().err
    assert json.loads((requests / "requests.jsonl").read_text().splitlines()[0])["id"] == "there"


def run(requests: Path, checkout: Path, name: str, *options: str) -> None:
    call = [sys.executable, str(requests / "runner" / f"{name}.py"), *options]
    ended = subprocess.run(call, cwd=checkout, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_medgemmas_words_are_boxes_on_the_padded_square(requests: Path, tmp_path: Path) -> None:
    main(["baselines", "write", "--system", "medgemma", "--set", str(tmp_path / "set.jsonl"), "--out", str(requests)])
    checkout, native = tmp_path / "checkout", tmp_path / "native"
    checkout.mkdir()
    (checkout / "transformers.py").write_text(
        """
import torch
class Inputs(dict):
    def to(self, device, dtype): return self
class AutoProcessor:
    @classmethod
    def from_pretrained(cls, path): return cls()
    def apply_chat_template(self, messages, **options):
        image, text = messages[0]["content"]
        assert image["image"].size == (120, 120) and "box_2d" in text["text"]
        self.finding = "effusion" if "effusion" in text["text"] else ""
        return Inputs(input_ids=torch.zeros((1, 3), dtype=torch.long))
    def decode(self, tokens, skip_special_tokens):
        assert len(tokens) == 2
        # y0 = 36 of the square's 120 is row 24 of the picture.
        boxes = '[{"box_2d": [300, 250, 500, 500], "label": "effusion"}]' if self.finding else "[]"
        return f"<unused94>I look.<unused95>{boxes}<end_of_turn>\\n<eos>"
class AutoModelForImageTextToText:
    @classmethod
    def from_pretrained(cls, path, dtype): return cls()
    def to(self, device): return self
    def eval(self): return self
    def generate(self, input_ids, max_new_tokens, do_sample): return torch.zeros((1, 5), dtype=torch.long)
"""
    )
    run(requests, checkout, "medgemma", "--out", str(native), "--device", "cpu")
    there, absent = read_requests(requests)
    (prompt,) = medgemma(native, there)
    assert prompt.box is not None and prompt.box.pixels(SIZE) == (30, 24, 60, 48)
    assert medgemma(native, absent) == []


def test_segagent_gets_jpegs_and_lists_of_what_it_reads(requests: Path, tmp_path: Path) -> None:
    main(["baselines", "write", "--system", "segagent", "--set", str(tmp_path / "set.jsonl"), "--out", str(requests)])
    script = requests / "runner" / "segagent.py"
    script.write_text(script.read_text().replace("EACH = 5000", "EACH = 1"))
    work, native = tmp_path / "work", tmp_path / "native"
    run(requests, tmp_path, "segagent", "--out", str(work))
    native.mkdir()
    for number in (1, 2):
        (entry,) = json.loads((work / f"xflow-{number}.json").read_text())["data"]
        assert cv2.imread(str(work / "images" / entry["image_name"])).shape[:2] == (entry["height"], entry["width"])
        mask = TRUTH if number == 1 else np.zeros(SIZE, bool)
        click = {"mask": {"size": list(SIZE), "counts": rle.encode(mask)}, "outputs": "Current IOU: 0.9"}
        record = {"img_path": f"{work}/images/{entry['image_name']}", "pred_list": [click]}
        (native / f"xflow-{number}_newresults_7.json").write_text(json.dumps([record]))
    given = ["--requests", str(requests), "--native", str(native), "--out", str(tmp_path / "out")]
    main(["baselines", "read", "--system", "segagent", *given])
    there, absent = answered_from(tmp_path / "out", read_rows(tmp_path / "set.jsonl"))
    assert there.iou == 1 and not absent.returned
