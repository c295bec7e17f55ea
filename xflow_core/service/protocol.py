"""The whole wire contract of ``xflow serve``, shared by both ends.

    GET    /health                 no token; is it ready, which protocols                  -> Health
    GET    /capabilities           bundles, device, limits, what is held and waiting       -> Capabilities
    PUT    /images/{sha256}        a DICOM, PNG, .. file's bytes, or an ArrayImage's       -> ImageInfo
           ?accept_image=true      read a colour picture or the first of several frames all the same
    GET    /images/{sha256}        is it still there?                                      -> ImageInfo
    DELETE /images/{sha256}        forget it and what was computed from it                 -> {"forgotten": bool}
    GET    /images/{sha256}/check  what speaks against it, before anything is asked        -> JSON lines, as of a run
           ?bundle=NAME            the bundle whose guard looks at it; the first by default
    POST   /runs                   Ask, or Continue a trace with or without an edit        -> JSON lines, see below
    DELETE /runs/{run}             cancel before the next step                             -> {"cancelled": bool}
    POST   /unload                 drop the idle models; the next run brings them back     -> {"unloading": true}

**The server keeps images, and no sessions.** A session is its trace, and the client has it: to replace a decision, to
go on from an edited mask, or to go on after a crash, the client sends the trace back. A server that was restarted, or
another one, goes on exactly there. An image that was pushed out of memory or forgotten is 404 ``unknown_image``; the
client sends it again.

**A run's lines**, each sent the moment it is made, each an object with a ``kind``:

    {"kind": "run", "run": id, "ahead": n}        first and at once: its name, and how many runs wait before it
    {"kind": "trace", "trace": {..}}              an answer begins: its trace with the steps that stand already
    {"kind": "lungs" | "presence" | ..., "index"} a step, exactly as in the trace (schema xflow.trace/1)
    {"kind": "end", "result": {..} | null, "seconds": {..}}    the answer is complete; null when it was cancelled;
                                                  with the trace's "memory_layout", where it has one
    {"kind": "check", "warnings": [..], "refused": sentence | null}    a check's one answer: ImageCheck
    {"kind": "done", "cancelled": bool}           the last line; a stream that ends without it was cut off
    {"kind": "error", "error": sentence, "error_kind": ..}     instead of ``done``: the server failed, not a model
    {"kind": "alive"}                             every HEARTBEAT_SECONDS in which nothing else was sent

A sentence that asks for several findings gives several answers, one after the other. A refused image and a failed model
are answers (``result.status``). Readers ignore keys, and lines of a ``kind``, that they do not know.

**Errors** are JSON, ``{"error": one sentence, "kind": one of KINDS}``, with the status that :data:`KINDS` names.

**Versions.** Each request names its protocol in the header ``XFlow-Protocol``, each response the server's newest. A
server answers the protocols from :data:`OLDEST_PROTOCOL` to :data:`PROTOCOL` and meets any other with 426 and a
sentence that says which side to update. ``Authorization: Bearer <token>`` goes with all requests but ``/health``;
``XFlow-Client`` is any name of a client's own, among which the server shares its time fairly.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeAlias, TypeVar

import numpy as np

from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.trace import (
    SPACING_KINDS,
    BundleIdentity,
    ImageRecord,
    Mask,
    Result,
    Step,
    Trace,
    step_from_json,
)

PROTOCOL = 1
OLDEST_PROTOCOL = 1

PROTOCOL_HEADER = "XFlow-Protocol"
CLIENT_HEADER = "XFlow-Client"
LINES = "application/x-ndjson"

HEALTH = "/health"
CAPABILITIES = "/capabilities"
IMAGES = "/images"
RUNS = "/runs"
UNLOAD = "/unload"

HEARTBEAT_SECONDS = 1.0
"""A running stream is never silent for longer; a client that hears nothing for several of these has lost the server."""

MAX_INSTRUCTION_CHARS = 1000

KINDS = {
    "request": 400,  # not HTTP or JSON as it should be, a key missing or of the wrong type
    "token": 401,
    "not_found": 404,  # no such path
    "unknown_image": 404,
    "unknown_bundle": 404,
    "unknown_run": 404,
    "method": 405,
    "slow": 408,  # the body came too slowly
    "too_large": 413,
    "host": 421,  # the Host header names another machine
    "instruction": 422,  # not understood, in the words of the command line
    "unsupported": 422,  # the bundle cannot answer that finding
    "value": 422,  # a step, mask or trace that cannot stand there
    "unreadable": 422,  # the bytes are no image
    "refused": 422,  # they are, and plainly no radiograph; see accept_image
    "protocol": 426,
    "internal": 500,
    "busy": 503,  # too many runs or uploads at once; try again
}

_SHA256 = re.compile(r"[0-9a-f]{64}")
T = TypeVar("T")


def sha256_of(data: bytes) -> str:
    """The name of an image on the wire and in its trace: the sha256 of the bytes sent, in hex."""
    return hashlib.sha256(data).hexdigest()


def check_sha256(value: Any) -> str:
    """``value``, refused unless it is 64 lower-case hex digits."""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ValueRefused("An image is named by its sha256, 64 lower-case hex digits.")
    return value


@dataclass(frozen=True)
class Listening:
    """What ``xflow serve`` prints on stdout, as one JSON line, once it listens; whether it is ready, /health tells."""

    host: str
    port: int
    url: str
    token_file: str
    pid: int
    protocols: tuple[int, int] = (OLDEST_PROTOCOL, PROTOCOL)
    service: str = "xflow"
    notice: str = "not for clinical use"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "protocols": list(self.protocols)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Listening:
        def made() -> Listening:
            known = _known(cls, data)
            oldest, newest = known["protocols"]
            port, pid = int(known["port"]), int(known["pid"])
            return cls(**{**known, "port": port, "pid": pid, "protocols": (int(oldest), int(newest))})

        return _well_formed("line of the server's start", made)


@dataclass(frozen=True)
class Health:
    """state: ``loading``, ``ready`` or ``stopping``; ``doing`` says in words what it is at."""

    version: str
    state: str
    doing: str
    protocols: tuple[int, int] = (OLDEST_PROTOCOL, PROTOCOL)
    service: str = "xflow"
    notice: str = "not for clinical use"

    @property
    def ready(self) -> bool:
        return self.state == "ready"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "protocols": list(self.protocols)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Health:
        def made() -> Health:
            known = _known(cls, data)
            oldest, newest = known["protocols"]
            return cls(**{**known, "protocols": (int(oldest), int(newest))})

        return _well_formed("health", made)


@dataclass(frozen=True)
class BundleInfo:
    """A bundle that the server offers; ``loaded`` is whether its models are in memory now."""

    identity: BundleIdentity
    findings: tuple[str, ...]
    loaded: bool

    def to_json(self) -> dict[str, Any]:
        return {**self.identity.to_json(), "findings": list(self.findings), "loaded": self.loaded}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BundleInfo:
        return cls(BundleIdentity.from_json(data), tuple(data["findings"]), bool(data["loaded"]))


@dataclass(frozen=True)
class ServerLimits:
    """What the server takes. Bodies over the limits are 413, runs and uploads over theirs 503.

    Attributes:
        image_bytes: of one upload; 256 MiB, as much as the command line reads.
        request_bytes: of any other body; a trace with masks has some hundred KB.
        cached_bytes: of all images in memory with what was computed from them; the least recently used go first.
        waiting_runs: at one time, of all clients.
    """

    image_bytes: int = 2**28
    request_bytes: int = 2**23
    cached_bytes: int = 2**31
    waiting_runs: int = 1000

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueRefused(f"The limit {item.name} is {value!r}; it must be a whole number, 1 or more.")


@dataclass(frozen=True)
class Activity:
    """What the server holds and has done since it started.

    ``encoder_passes`` counts the features computed from images, each once per image and bundle; ``steps_made`` counts
    the steps computed, not those that stood already.
    """

    images: int = 0
    image_bytes: int = 0
    encoder_passes: int = 0
    runs_waiting: int = 0
    runs_done: int = 0
    steps_made: int = 0


@dataclass(frozen=True)
class Capabilities:
    """What runs there. The first of ``bundles`` answers when a request names none.

    ``memory_bytes`` is the memory of the device (of the machine for a CPU), None where it is not known.
    """

    version: str
    bundles: tuple[BundleInfo, ...]
    device: str
    memory_bytes: int | None
    limits: ServerLimits = field(default_factory=ServerLimits)
    activity: Activity = field(default_factory=Activity)
    protocols: tuple[int, int] = (OLDEST_PROTOCOL, PROTOCOL)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "protocols": list(self.protocols),
            "bundles": [bundle.to_json() for bundle in self.bundles],
            "device": self.device,
            "memory_bytes": self.memory_bytes,
            "limits": asdict(self.limits),
            "activity": asdict(self.activity),
            "notice": "not for clinical use",
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Capabilities:
        return _well_formed(
            "capabilities",
            lambda: cls(
                version=str(data["version"]),
                bundles=tuple(BundleInfo.from_json(bundle) for bundle in data["bundles"]),
                device=str(data["device"]),
                memory_bytes=data["memory_bytes"],
                limits=ServerLimits(**_known(ServerLimits, data["limits"])),
                activity=Activity(**_known(Activity, data["activity"])),
                protocols=(int(data["protocols"][0]), int(data["protocols"][1])),
            ),
        )


@dataclass(frozen=True)
class ImageInfo:
    """What the server read: the record that traces will carry, without the warnings of a bundle's guard."""

    record: ImageRecord

    def to_json(self) -> dict[str, Any]:
        return {"record": self.record.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ImageInfo:
        return _well_formed("image", lambda: cls(ImageRecord.from_json(data["record"])))


@dataclass(frozen=True)
class ImageCheck:
    """What its reading and a bundle's guards say of an image before anything is asked about it.

    Attributes:
        warnings: those that a run's trace will carry (lateral? inverted? rotated? no spacing?).
        refused: why a run will refuse it unless ``accept_image`` is given; None when it will not.
    """

    warnings: tuple[str, ...] = ()
    refused: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"warnings": list(self.warnings), "refused": self.refused}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ImageCheck:
        def made() -> ImageCheck:
            refused = data["refused"]
            warnings = tuple(_text("warning", warning) for warning in data["warnings"])
            return cls(warnings, None if refused is None else _text("refused", refused))

        return _well_formed("check", made)


# An array with its meaning, for a caller that has no file.

ARRAY_START = b"XFLOW ARRAY 1\n"
_ARRAY_TYPES = ("uint8", "uint16", "uint32", "int8", "int16", "int32", "float32", "float64")


@dataclass(frozen=True, eq=False)
class ArrayImage:
    """A grey image that is in memory only, with what its numbers mean; nothing about it is guessed.

    Prefer a file's bytes where there is a file: they carry more.

    Attributes:
        values: ``[H, W]``, row 0 at the top, after the modality LUT and before any window; integers of up to 32 bits or
            floats, all finite.
        dense_is_bright: true when denser tissue has the greater values (MONOCHROME2 as usual), false for the reverse.
        spacing_mm: ``(row, column)`` in mm, with a ``spacing_kind`` of ``patient`` or ``detector``; None with ``none``.
    """

    values: np.ndarray
    dense_is_bright: bool
    spacing_mm: tuple[float, float] | None = None
    spacing_kind: str = "none"

    def __post_init__(self) -> None:
        values = np.asarray(self.values)
        if values.ndim != 2 or values.size == 0:
            raise ValueRefused(f"An image is a [rows, columns] array, not one of shape {values.shape}.")
        if values.dtype.name not in _ARRAY_TYPES:
            raise ValueRefused(f"An image's values are one of {', '.join(_ARRAY_TYPES)}, not {values.dtype.name}.")
        if not np.isfinite(values).all():
            raise ValueRefused("The image holds values that are no numbers (NaN or infinite).")
        if not isinstance(self.dense_is_bright, bool):
            raise ValueRefused("dense_is_bright is true or false; XFlow does not guess the polarity.")
        # The record's own checks, said here, where the value is made.
        ImageRecord("", "array", values.shape, spacing_mm=self.spacing_mm, spacing_kind=self.spacing_kind)
        object.__setattr__(self, "values", values)

    def to_bytes(self) -> bytes:
        """What is uploaded: a line that says what it is, a line of JSON, the values in row order, little-endian."""
        meaning = {
            "size": list(self.values.shape),
            "dtype": self.values.dtype.name,
            "dense_is_bright": self.dense_is_bright,
            "spacing_mm": None if self.spacing_mm is None else list(self.spacing_mm),
            "spacing_kind": self.spacing_kind,
        }
        values = np.ascontiguousarray(self.values, self.values.dtype.newbyteorder("<"))
        return ARRAY_START + json.dumps(meaning, sort_keys=True).encode() + b"\n" + values.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> ArrayImage:
        """The reverse; nothing is allocated before the size agrees with the number of bytes.

        Raises:
            ValueRefused: these bytes are no array.
        """

        def made() -> ArrayImage:
            end = data.index(b"\n", len(ARRAY_START), len(ARRAY_START) + 4096)
            meaning = json.loads(data[len(ARRAY_START) : end])
            rows, columns = (_whole("size", side) for side in meaning["size"])
            if meaning["dtype"] not in _ARRAY_TYPES:
                raise ValueRefused(f"An image's values are one of {', '.join(_ARRAY_TYPES)}.")
            dtype = np.dtype(meaning["dtype"]).newbyteorder("<")
            if rows * columns * dtype.itemsize != len(data) - end - 1:
                raise ValueRefused(f"The array of {rows} x {columns} {meaning['dtype']} has a wrong number of bytes.")
            values = np.frombuffer(data, dtype, offset=end + 1).reshape(rows, columns)
            if meaning["spacing_kind"] not in SPACING_KINDS:
                raise ValueRefused(f"spacing_kind is one of {', '.join(SPACING_KINDS)}.")
            spacing = meaning["spacing_mm"]
            if spacing is not None:
                spacing = (float(spacing[0]), float(spacing[1]))
            native = values.astype(values.dtype.newbyteorder("="), copy=False)
            return cls(native, meaning["dense_is_bright"], spacing, meaning["spacing_kind"])

        if not data.startswith(ARRAY_START):
            raise ValueRefused("The bytes are no XFlow array.")
        return _well_formed("array", made)


# What a run is asked.


@dataclass(frozen=True)
class Ask:
    """One sentence on one image.

    Attributes:
        image: the sha256 under which it was uploaded.
        bundle: one of the server's; None for its first.
        stages, seed: as ``xflow segment`` has them.
        accept_image: run against the guards' refusal, which becomes a warning in the trace.
    """

    image: str
    instruction: str
    bundle: str | None = None
    stages: int = 2
    seed: int = 0
    accept_image: bool = False

    def __post_init__(self) -> None:
        check_sha256(self.image)
        _text("instruction", self.instruction)
        if len(self.instruction) > MAX_INSTRUCTION_CHARS:
            raise ValueRefused(f"The instruction is longer than {MAX_INSTRUCTION_CHARS} characters; shorten it.")
        if self.bundle is not None:
            _text("bundle", self.bundle)
        if _whole("stages", self.stages) not in (1, 2):
            raise ValueRefused(f"stages is {self.stages}; there are 1 or 2.")
        if _whole("seed", self.seed) >= 2**63:
            raise ValueRefused("seed is too large; it must be below 2**63.")
        if not isinstance(self.accept_image, bool):
            raise ValueRefused("accept_image is true or false.")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ReplaceStep:
    """The user's ``step`` in the place of the trace's ``k``-th; what follows is computed anew."""

    k: int
    step: Step

    def __post_init__(self) -> None:
        _whole("replace", self.k)

    def to_json(self) -> dict[str, Any]:
        return {"replace": self.k, "step": self.step.to_json(self.k)}


@dataclass(frozen=True)
class EditMask:
    """The user's mask in the place of the component's last one.

    ``revise``: stage 2 goes on from it, with as many clicks as at first; false keeps it as drawn. The other components
    stay as they are.
    """

    component: int
    mask: Mask
    revise: bool = True

    def __post_init__(self) -> None:
        _whole("component", self.component)
        if not isinstance(self.revise, bool):
            raise ValueRefused("revise is true or false.")

    def to_json(self) -> dict[str, Any]:
        return {"component": self.component, "mask": self.mask.to_json(), "revise": self.revise}


@dataclass(frozen=True)
class Continue:
    """Go on where a trace ends, or with an edit of it.

    The trace says image, bundle, instruction, stages and seed. An image that was run against the guards is so again.
    """

    trace: Trace
    edit: ReplaceStep | EditMask | None = None

    @property
    def image(self) -> str:
        return self.trace.image.sha256

    def to_json(self) -> dict[str, Any]:
        return {"trace": self.trace.to_json(), "edit": None if self.edit is None else self.edit.to_json()}


RunRequest: TypeAlias = Ask | Continue


def run_request_from_json(data: Any) -> RunRequest:
    """The body of ``POST /runs``.

    Raises:
        ValueRefused: a key is missing or a value cannot be.
    """

    def made() -> RunRequest:
        if "trace" not in data:
            return Ask(**_known(Ask, data))
        edit = data.get("edit")
        trace = Trace.from_json(data["trace"])
        check_sha256(trace.image.sha256)
        if edit is None:
            return Continue(trace)
        if "replace" in edit:
            return Continue(trace, ReplaceStep(edit["replace"], step_from_json(edit["step"])))
        return Continue(trace, EditMask(edit["component"], Mask.from_json(edit["mask"]), edit.get("revise", True)))

    if not isinstance(data, dict):
        raise ValueRefused(f"A run is asked for with a JSON object, not {type(data).__name__}.")
    return _well_formed("run", made)


# What a run answers.


@dataclass(frozen=True)
class RunLine:
    run: str
    ahead: int

    def to_json(self) -> dict[str, Any]:
        return {"kind": "run", "run": self.run, "ahead": self.ahead}


@dataclass(frozen=True)
class TraceLine:
    trace: Trace

    def to_json(self) -> dict[str, Any]:
        return {"kind": "trace", "trace": self.trace.to_json()}


@dataclass(frozen=True)
class StepLine:
    index: int
    step: Step

    def to_json(self) -> dict[str, Any]:
        return self.step.to_json(self.index)


@dataclass(frozen=True)
class EndLine:
    result: Result | None
    seconds: dict[str, float]
    memory_layout: str | None = None

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "kind": "end",
            "result": None if self.result is None else self.result.to_json(),
            "seconds": {name: round(value, 4) for name, value in self.seconds.items()},
        }
        return data if self.memory_layout is None else {**data, "memory_layout": self.memory_layout}


@dataclass(frozen=True)
class CheckLine:
    check: ImageCheck

    def to_json(self) -> dict[str, Any]:
        return {"kind": "check", **self.check.to_json()}


@dataclass(frozen=True)
class DoneLine:
    cancelled: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"kind": "done", "cancelled": self.cancelled}


@dataclass(frozen=True)
class ErrorLine:
    error: str
    error_kind: str

    def to_json(self) -> dict[str, Any]:
        return {"kind": "error", "error": self.error, "error_kind": self.error_kind}


@dataclass(frozen=True)
class AliveLine:
    def to_json(self) -> dict[str, Any]:
        return {"kind": "alive"}


Line: TypeAlias = RunLine | TraceLine | StepLine | EndLine | CheckLine | DoneLine | ErrorLine | AliveLine


def write_line(line: Line) -> bytes:
    """A line as it travels, with its end."""
    return json.dumps(line.to_json(), separators=(",", ":"), allow_nan=False).encode() + b"\n"


def read_line(text: bytes | str) -> Line | None:
    """The line, or None for one of a kind that this version does not know.

    Raises:
        ValueRefused: it is not JSON, or not as this protocol has it.
    """

    def made() -> Line | None:
        data = json.loads(text)
        kind = data["kind"]
        if kind in ("lungs", "presence", "boxes", "mask", "click", "stop", "result"):
            return StepLine(int(data["index"]), step_from_json(data))
        if kind == "run":
            return RunLine(str(data["run"]), int(data["ahead"]))
        if kind == "trace":
            return TraceLine(Trace.from_json(data["trace"]))
        if kind == "end":
            result = data["result"]
            layout = data.get("memory_layout")
            return EndLine(
                None if result is None else Result.from_json(result),
                dict(data["seconds"]),
                None if layout is None else str(layout),
            )
        if kind == "check":
            return CheckLine(ImageCheck.from_json(data))
        if kind == "done":
            return DoneLine(bool(data["cancelled"]))
        if kind == "error":
            return ErrorLine(str(data["error"]), str(data["error_kind"]))
        return AliveLine() if kind == "alive" else None

    return _well_formed("line", made)


def protocol_mismatch(client: int, server: tuple[int, int] = (OLDEST_PROTOCOL, PROTOCOL)) -> str | None:
    """The sentence for a client whose protocol the server does not speak; None when it does."""
    oldest, newest = server
    if oldest <= client <= newest:
        return None
    spoken = f"protocol {newest}" if oldest == newest else f"protocols {oldest} to {newest}"
    old = "client" if client < oldest else "server"
    return f"The client speaks protocol {client}, the server {spoken}; update XFlow on the {old}'s side."


def _known(cls: type, data: dict[str, Any]) -> dict[str, Any]:
    return {item.name: data[item.name] for item in fields(cls) if item.name in data}


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        shown = repr(value) if isinstance(value, int) and abs(value) < 10**18 else type(value).__name__
        raise ValueRefused(f"{name} is {shown}; it must be a whole number, 0 or more.")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueRefused(f"{name} is a string, not {type(value).__name__}.")
    return value


def _well_formed(what: str, make: Callable[[], T]) -> T:
    """What ``make`` returns; whatever a value of the wrong shape makes it raise becomes one sentence."""
    try:
        return make()
    except ValueRefused:
        raise
    except KeyError as problem:
        raise ValueRefused(f"The {what} lacks the key {problem}.") from None
    except (TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as problem:
        raise ValueRefused(f"The {what} is not well formed ({type(problem).__name__}).") from None
