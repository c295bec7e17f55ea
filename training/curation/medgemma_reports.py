"""Reports read by MedGemma on this machine (paper, A.2), loaded as the policies load their base model.

The model is asked in one turn, without a picture and without adapters, and answers under a constraint: it can write the
JSON objects that the prompt asks for (:func:`~training.curation.report_parsing.answer_plan`) and nothing else, the
likeliest token each time. So it does not think aloud first; a model behind an address may. Several reports share the
model's passes. Tested with a tiny Gemma3, not yet with MedGemma's weights. Not for clinical use.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from training.curation.report_parsing import Parse, answer_plan, prompt_for, read_answer
from xflow_core.bundles.checkpoints import LANGUAGE_MODELS, model_file_names
from xflow_core.bundles.foundation_backend import choose_device, quiet_transformers
from xflow_core.bundles.known_files import sha256_once
from xflow_core.bundles.manifest import find_bundle
from xflow_core.bundles.model_files import MODELS_VARIABLE
from xflow_core.domain.errors import BundleError, CallError, EngineError
from xflow_core.policies.medgemma_decoding import PieceTokens, decode
from xflow_core.policies.medgemma_model import Conversation, MedGemma
from xflow_core.policies.transcript import Choice, Number, write

LOG = logging.getLogger(__name__)


class MedGemmaParser:
    """A Gemma3 model as a :class:`~training.curation.report_parsing.ReportParser`."""

    def __init__(self, gemma: MedGemma, identity: str, at_once: int = 1) -> None:
        """
        Args:
            identity: tells this model's answers from another one's. at_once: conversations that share passes.

        Raises:
            BundleError: the tokenizer cannot write the answers.
        """
        self.name = f"medgemma/1 {identity}"
        self.at_once = at_once
        self._gemma = gemma
        self._tokens = PieceTokens(gemma.processor.tokenizer, gemma.end)
        example = ['{"', 'effusion": {"', 'present": ["', 'left lung base"], "', 'right lung"]}, "']
        example += ['edema": {"', 'absent": ["', 'chest"]}}']
        if not self._tokens.cuts_alike(write(answer_plan(), example)):
            LOG.warning("The model's tokenizer cuts an answer otherwise than XFlow writes it; its verdicts may suffer.")

    @classmethod
    def load(cls, model: str, at_once: int, device: str = "auto") -> MedGemmaParser:
        """From a bundle (its base), a folder of a base model, or a name under ``XFLOW_MODELS``.

        Raises:
            BundleError: there is none, or it is damaged or no Gemma3.
            CallError: a bundle of another backend; no such device.
        """
        folder = base_folder(model)
        files = model_file_names(folder, LANGUAGE_MODELS)
        digest = hashlib.sha256("".join(sha256_once(folder / name) for name in sorted(files)).encode()).hexdigest()
        place = choose_device(device)
        with quiet_transformers():
            gemma = MedGemma.load(folder, device=place, dtype=torch.bfloat16 if place == "cuda" else torch.float32)
        return cls(gemma, f"sha256:{digest[:16]}", at_once)

    def parse(self, report: str) -> Parse:
        """See the protocol.

        Raises:
            EngineError: the memory does not suffice, or the model gives no finite numbers.
        """
        prompt = prompt_for(report)
        conversation = Conversation(self._gemma)
        (turn,) = self._gemma.turns([((), prompt)])

        def choose(sequence: Sequence[int], place: Choice | Number, allowed: dict[int, tuple[str, ...]]) -> int:
            self._gemma.work.decode_steps += 1
            tokens = list(allowed)
            scores = conversation.after(sequence, _no_picture)[tokens]
            if not bool(torch.isfinite(scores).all()):
                raise EngineError("The language model gave numbers that are not finite; no report was read.")
            return tokens[int(scores.argmax())]

        try:
            with self._gemma.using(None):
                written = decode(answer_plan(), self._tokens, turn, choose)
        except torch.OutOfMemoryError:
            raise EngineError(
                f"The memory does not suffice for {self.at_once} reports at a time; lower reports.at_once and go on."
            ) from None
        return read_answer(prompt, written.text)


def base_folder(model: str) -> Path:
    """The folder of the base model that ``model`` names: a folder, a name under ``XFLOW_MODELS``, or a bundle's.

    Raises:
        BundleError: there is none, or a bundle's is not the one it was made with.
        CallError: the bundle is not made on a language model.
    """
    parents = [Path(parent) for parent in os.environ.get(MODELS_VARIABLE, "").split(os.pathsep) if parent]
    for folder in (Path(model), *(parent / model for parent in parents)):
        if (folder / "config.json").is_file():
            return folder
    try:
        bundle = find_bundle(model)
    except BundleError:
        raise BundleError(
            f"reports.model is {model!r}: no folder of a model, no bundle, and not under the folders of "
            f"{MODELS_VARIABLE}; accept the terms of MedGemma, download it, and name its folder."
        ) from None
    if "language" not in bundle.bases:
        raise CallError(f"The bundle {bundle.name!r} has no language model to read reports with; name another one.")
    return bundle.bases["language"].verify(bundle.name, bundle.folder, anew=False)


def _no_picture(symbol: int) -> Tensor:
    raise EngineError("A report has no picture.")
