"""A report as present or absent calls per finding and region, by a language model or by sentence rules.

What was asked, what was answered and what was made of it are kept, line by line, so that a run goes on where it
stopped and every verdict can be looked up. An answer that cannot be read is no verdict: never "absent".
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import requests

from training.curation.sources.regions import THIRDS, region_of
from training.curation.sources.reports import seen
from xflow_core.domain.errors import CallError, EngineError, InstructionError, NotWritten
from xflow_core.domain.findings import CHEST, FINDINGS, HEART, LUNGS
from xflow_core.domain.instruction import parse_instruction
from xflow_core.policies.transcript import END, Choice, Plan

T = TypeVar("T")

# By finding: the regions stated present, and those stated absent.
Stated = Mapping[str, tuple[frozenset[str], frozenset[str]]]

_PLACES = (CHEST, *LUNGS, *THIRDS)
_PROMPT = """You read the report of one frontal chest radiograph.
For each of these findings, say where the report states it present and where it states it absent: {findings}.
Use only these regions: {regions}; for cardiomegaly use only: heart.
- "absent": ["chest"] when the report denies a finding altogether.
- Leave a finding out when the report does not mention it, or is not sure of it.
- Name zones where the report names them or a lobe; else the lung; else the chest.
Answer with one JSON object and nothing else, for example
{{"effusion": {{"present": ["left lung base"], "absent": ["right lung"]}}, "edema": {{"absent": ["chest"]}}}}

Report:
{report}"""


@dataclass(frozen=True)
class Parse:
    """One report as a parser read it. stated: None where the answer could not be read; ``problem`` then says why."""

    prompt: str
    raw: str
    stated: Stated | None
    problem: str = ""


class ReportParser(Protocol):
    """Reads a report.

    name: tells parsers and their models apart: an answer of another one is not reused.
    at_once: how many reports are best asked for at a time, each in a thread of its own.
    """

    name: str
    at_once: int

    def parse(self, report: str) -> Parse:
        """Safe to call from ``at_once`` threads.

        Raises:
            EngineError: no answer could be had; the run stops and can go on later.
        """
        ...


class RuleParser:
    """XFlow's own reading of instructions, sentence by sentence. It knows the findings, the places, lobes and denials;
    it does not weigh a doubt: a sentence with one states nothing. For the miniature and for dry runs."""

    name = "rules/1"
    at_once = 1

    def parse(self, report: str) -> Parse:
        said: dict[str, tuple[set[str], set[str]]] = {}
        for sentence in re.split(r"(?<=[.;])\s+", seen(report)):
            if _DOUBT.search(sentence):
                continue
            try:
                mentions = parse_instruction(sentence)
            except InstructionError:
                continue
            for mention in mentions:
                said.setdefault(mention.finding, (set(), set()))[1 if mention.negated else 0].update(mention.regions)
        stated = {finding: (frozenset(yes), frozenset(no)) for finding, (yes, no) in said.items()}
        return Parse("", "", stated)


_DOUBT = re.compile(
    r"\b(may|might|could|can ?not|possibl[ey]|probabl[ey]|suspicious|suspected|questionable|versus|vs|excluded?|"
    r"unlikely|if|concern|consider|resol\w+|previous\w*|prior)\b",
    re.IGNORECASE,
)


class EndpointParser:
    """A language model at an OpenAI-compatible address (vLLM, SGLang, llama.cpp, ..), at temperature 0."""

    def __init__(self, url: str, model: str, seconds: float = 120.0, key: str | None = None, at_once: int = 1) -> None:
        """
        Args:
            url: up to and with the version, for instance ``http://127.0.0.1:8000/v1``.
            seconds: the longest wait for one answer.
            at_once: requests that are sent side by side; such servers batch them.
            key: sent as a bearer token where given.
        """
        self.name = f"endpoint/1 {model}"
        self._url = f"{url.rstrip('/')}/chat/completions"
        self.at_once = at_once
        self._model, self._seconds = model, seconds
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def parse(self, report: str) -> Parse:
        prompt = prompt_for(report)
        asked = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": 1500,
        }
        try:
            answer = requests.post(self._url, json=asked, headers=self._headers, timeout=self._seconds)
            answer.raise_for_status()
            raw = answer.json()["choices"][0]["message"]["content"]
        except (requests.RequestException, ValueError, KeyError, IndexError, TypeError) as problem:
            reason = type(problem).__name__
            raise EngineError(
                f"{self._url} gave no answer ({reason}); start the model there, then run this again."
            ) from None
        return read_answer(prompt, str(raw))


def prompt_for(report: str) -> str:
    """What a model is asked about a report."""
    return _PROMPT.format(findings=", ".join(FINDINGS), regions=", ".join(_PLACES), report=seen(report))


def answer_plan() -> Plan[None]:
    """The JSON objects that the prompt asks for, as a plan for constrained decoding: findings, and regions in a list,
    in any order, none twice. :func:`read_answer` reads every one of them.

    Each choice is a word with the punctuation that follows it, up to the next word: tokens do not reach from
    punctuation into a word, so a piece ends where tokens end.
    """
    if (yield Choice(("{}", '{"'))) == "{}":
        yield END
        return
    findings = list(FINDINGS)
    while True:
        finding = (yield Choice(tuple(f'{finding}": {{"' for finding in findings))).split('"')[0]
        findings.remove(finding)
        side = (yield Choice(('present": ["', 'absent": ["'))).split('"')[0]
        while True:
            regions = [HEART] if finding == "cardiomegaly" else list(_PLACES)
            ending = '", "'
            while ending == '", "':
                endings = ['"]}}']
                endings += ['", "'] if len(regions) > 1 else []
                endings += ['"], "'] if side == "present" else []
                endings += ['"]}, "'] if findings else []
                words = yield Choice(tuple(region + ending for region in regions for ending in endings))
                region, ending = words[: words.index('"')], words[words.index('"') :]
                regions.remove(region)
            if ending != '"], "':
                break
            side = "absent"
            yield 'absent": ["'
        if ending == '"]}}':
            yield END
            return


def read_answer(prompt: str, raw: str) -> Parse:
    """A model's answer. Anything but the object that was asked for is no answer."""
    # MedGemma may think aloud between these two.
    text = re.sub(r"<unused94>.*?<unused95>", "", raw, flags=re.DOTALL)
    start, end = text.find("{"), text.rfind("}")
    try:
        answer = json.loads(text[start : end + 1]) if start >= 0 else None
        if not isinstance(answer, dict):
            raise ValueError("no JSON object")
        stated = {finding: _regions(finding, entry) for finding, entry in answer.items()}
    except ValueError as problem:
        return Parse(prompt, raw, None, str(problem))
    return Parse(prompt, raw, {finding: both for finding, both in stated.items() if any(both)})


def _regions(finding: str, entry: Any) -> tuple[frozenset[str], frozenset[str]]:
    if finding not in FINDINGS:
        raise ValueError(f"{finding!r} is none of the seven findings")
    if not isinstance(entry, dict) or not set(entry) <= {"present", "absent"}:
        raise ValueError(f"{finding} has no lists of present and absent")
    both = []
    for side in ("present", "absent"):
        listed = entry.get(side, [])
        if not isinstance(listed, list):
            raise ValueError(f"{finding} has no list of {side}")
        regions = {CHEST if words == CHEST else region_of(words) for words in listed}
        if None in regions or (finding == "cardiomegaly" and not regions <= {HEART, CHEST}):
            raise ValueError(f"{finding} names a region that was not offered: {listed}")
        both.append(frozenset(region for region in regions if region is not None))
    return both[0], both[1]


# Reports handed to a parser together, for each that it reads at a time.
_ASKED_EACH = 8


def _key(study: str, report: str | None) -> tuple[str, str]:
    return study, "" if report is None else hashlib.sha256(report.encode()).hexdigest()


class Parses:
    """The answers so far, one JSON line each: study, parser, prompt, raw answer, verdict. Opened again, a run goes on.

    A line is flushed as soon as it is there; one that a stop cut off is written anew.
    """

    def __init__(self, path: Path, parser: ReportParser) -> None:
        """
        Raises:
            CallError: the file is there and is not one of these.
        """
        self._parser = parser
        self._known: dict[tuple[str, str], Stated | None] = {}
        kept = b""
        if path.is_file():
            kept = path.read_bytes()
            kept = kept[: kept.rfind(b"\n") + 1]
            for number, line in enumerate(kept.splitlines(), start=1):
                self._recall(path, number, line)
        try:
            self._file = open(path, "r+b" if path.is_file() else "wb")  # noqa: SIM115 - closed by __exit__
        except OSError as problem:
            raise NotWritten(f"{path} cannot be written: {problem.strerror or problem}.") from None
        self._file.truncate(len(kept))
        self._file.seek(len(kept))

    def _recall(self, path: Path, number: int, line: bytes) -> None:
        try:
            row = json.loads(line)
            stated = row["stated"]
            if row["parser"] == self._parser.name:
                self._known[row["study"], row["report"]] = stated and {
                    finding: (frozenset(entry["present"]), frozenset(entry["absent"]))
                    for finding, entry in stated.items()
                }
        except (ValueError, KeyError, TypeError):
            raise CallError(
                f"Line {number} of {path} is no parse of a report; remove the file to begin anew."
            ) from None

    def alongside(
        self, items: Iterable[T], report_of: Callable[[T], tuple[str, str | None]]
    ) -> Iterator[tuple[T, Stated | None]]:
        """Each item with what its report states, in order: from the file, or from the parser, which reads several at a
        time. None where there is no report, or where the parser's answer was unreadable.

        Args:
            report_of: an item's study and report.

        Raises:
            EngineError: the parser has no answer; those before it are kept.
        """
        waiting = iter(items)
        with ThreadPoolExecutor(self._parser.at_once) as pool:
            try:
                while taken := list(islice(waiting, _ASKED_EACH * self._parser.at_once)):
                    keys = [_key(*report_of(item)) for item in taken]
                    new = {
                        key: report
                        for key, item in zip(keys, taken, strict=True)
                        if (report := report_of(item)[1]) is not None and key not in self._known
                    }
                    for key, parse in zip(new, pool.map(self._parser.parse, new.values()), strict=True):
                        self._keep(key, parse)
                    yield from ((item, self._known.get(key)) for item, key in zip(taken, keys, strict=True))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _keep(self, key: tuple[str, str], parse: Parse) -> None:
        self._known[key] = parse.stated
        stated = None
        if parse.stated is not None:
            both = parse.stated.items()
            stated = {name: {"present": sorted(yes), "absent": sorted(no)} for name, (yes, no) in both}
        row = {
            "study": key[0],
            "report": key[1],
            "parser": self._parser.name,
            "prompt": parse.prompt,
            "raw": parse.raw,
            "stated": stated,
            "problem": parse.problem,
        }
        self._file.write((json.dumps(row) + "\n").encode())
        self._file.flush()

    def __enter__(self) -> Parses:
        return self

    def __exit__(self, *problem: object) -> None:
        self._file.close()
