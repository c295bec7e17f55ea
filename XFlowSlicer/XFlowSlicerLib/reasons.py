"""Why there is no engine, in plain words: what is wrong, and what to do about it."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass

from xflow_core.domain.errors import CallError, EngineError, NotWritten, ServiceError, ServiceGone, XFlowError
from xflow_core.service.child import OLDEST_PYTHON

DISTRIBUTION = "xflow-core"
_SENTENCE_END = re.compile(r"(?<=[.?!])\s+")


@dataclass(frozen=True)
class Reason:
    """Why there is no engine.

    Attributes:
        kind: a word for programs, one of those in :data:`KINDS_OF_REASON`.
        sentence: what is wrong.
        remedy: what to do about it.
    """

    kind: str
    sentence: str
    remedy: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS_OF_REASON:
            raise ValueError(f"{self.kind!r} is no kind of reason.")

    def __str__(self) -> str:
        return f"{self.sentence} {self.remedy}".strip()


KINDS_OF_REASON = frozenset(
    {
        "no_python",  # no Python that XFlow could use, or none at the place named
        "old_python",
        "no_venv",  # a Python without the parts that make environments
        "not_installed",  # a Python without XFlow; the managed environment not made
        "no_network",
        "proxy_password",
        "proxy",
        "certificate",
        "no_space",
        "not_writable",
        "no_torch",  # none for this Python and computer
        "wrong_torch",  # one that does not load
        "no_package",  # the index has no XFlow for this Python
        "xflow_old",  # the engine's
        "xflow_new",  # the engine's is newer than the module
        "unreachable",  # the server, or the engine of this computer
        "token",
        "damaged",  # a download or a file that is not whole
        "long_path",  # Windows
        "busy",
        "declined",
        "failed",  # anything else, in the tool's own last words
    }
)


class EngineSetupError(XFlowError):
    """No engine, or none installed; :attr:`reason` says why and what to do."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


_NETWORK = "connect this computer to the network, or install from a folder or wheel file that you copied here"
# Tried in this order, for one failure often brings the words of the next along: pip ends every one with "No matching
# distribution found".
_SIGNS: tuple[tuple[str, str, str, str], ...] = (
    (
        "no_space",
        r"No space left on device|Errno 28|Disk quota exceeded|Errno 122|File too large|Errno 27|not enough space"
        r"|WinError 112",
        "The disk is full.",
        "Make room (2 GB for torch's CPU build, 7 GB for the other) or choose another folder, and install again.",
    ),
    (
        "proxy_password",
        r"407|Proxy Authentication Required",
        "The proxy of this network asks for a name and a password.",
        "Set HTTPS_PROXY=http://name:password@host:port for Slicer, ask the network's administrator for a proxy "
        "without, or install from a folder or wheel file.",
    ),
    (
        "certificate",
        r"CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|SSLError|ssl certificate|certificate verify",
        "The server's certificate is not trusted: a proxy that looks into the connection, or a wrong clock.",
        "Ask the administrator for the network's certificate file, set PIP_CERT to it, and check this computer's date.",
    ),
    (
        "proxy",
        r"ProxyError|Cannot connect to proxy|Unable to connect to proxy|Tunnel connection failed",
        "The proxy that is set for this computer cannot be reached or refuses.",
        "Check HTTPS_PROXY and the system's proxy settings, or install from a folder or wheel file.",
    ),
    (
        "long_path",
        r"Windows Long Path|WinError 206|file name or extension is too long",
        "A file's path is longer than Windows allows.",
        "Choose a folder with a short path, or switch on long paths in Windows.",
    ),
    (
        "damaged",
        r"THESE PACKAGES DO NOT MATCH THE HASHES|IncompleteRead|BadZipFile|is not a valid wheel|has an invalid wheel"
        r"|Wheel .* is invalid|incomplete-download",
        "A download or a file is not whole.",
        "Install again; of a file of your own, get a new copy.",
    ),
    (
        "no_network",
        r"NewConnectionError|Name or service not known|Temporary failure in name resolution|getaddrinfo failed"
        r"|nodename nor servname|ConnectTimeout|ReadTimeout|timed out|Network is unreachable|No route to host"
        r"|Connection refused|ConnectionResetError|Connection aborted|Failed to connect|ConnectionError",
        "The package index cannot be reached.",
        f"Offline? {_NETWORK[0].upper()}{_NETWORK[1:]}.",
    ),
    (
        "not_writable",
        r"Permission denied|Errno 13|Read-only file system|Errno 30|Access is denied|WinError 5\b",
        "The folder cannot be written.",
        "Choose a folder of your own.",
    ),
    (
        "no_venv",
        r"ensurepip is not available|No module named '?(venv|ensurepip)|returned non-zero exit status.*ensurepip",
        "This Python cannot make environments: its venv part is not installed.",
        "Install it (on Debian and Ubuntu the package python3-venv), or choose another Python.",
    ),
    (
        "old_python",
        r"requires a different Python|Requires-Python",
        f"This Python is not one for XFlow, which needs {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or newer.",
        "Choose another Python.",
    ),
    (
        "no_torch",
        r"(No matching distribution found for|satisfies the requirement) torch\b",
        "There is no torch for this Python on this kind of computer, or not in the index that was named.",
        "Choose Python 3.12 of 64 bits, check the address of torch builds, or use a server.",
    ),
    (
        "no_package",
        rf"No matching distribution found for (?!torch\b)|satisfies the requirement {DISTRIBUTION}",
        "The package index has not all that this version of XFlow needs, or asks for a password.",
        "Check the index that pip is set to, or install from a folder or wheel file.",
    ),
    (
        "wrong_torch",
        r"DLL load failed|WinError 126|WinError 1114|c10\.dll|libtorch|libcudart|libcublas|libcudnn|torch/_C|undefined"
        r" symbol|NumPy 1\.x cannot be run|No module named '?torch",
        "torch is there, but does not load.",
        "Install again with the CPU build; on Windows install Microsoft's Visual C++ Redistributable first.",
    ),
)


def classify(output: str) -> Reason:
    """The reason behind what pip, Python or the engine wrote before it failed; ``failed`` with its own last words if
    it is none of those that this module knows."""
    for kind, sign, sentence, remedy in _SIGNS:
        if re.search(sign, output, re.IGNORECASE):
            return Reason(kind, sentence, remedy)
    lines = [line for line in map(str.strip, output.splitlines()) if line]
    said = next((line for line in reversed(lines) if re.match(r"(ERROR|error|\w*Error)\b", line)), "")
    said = re.sub(r"^(ERROR|error): ", "", said or (lines[-1] if lines else "nothing was said"))
    return Reason("failed", f"It failed: {said[:300].rstrip('.')}.", "The log has all of it.")


def reason_of(error: BaseException) -> Reason:
    """Why there is no engine, for whatever :func:`connect`, a call of the engine or a run raised."""
    if isinstance(error, EngineSetupError):
        return error.reason
    text = str(error)
    sentence, remedy = halves(text)
    if isinstance(error, ServiceGone):
        return Reason("unreachable", text, "Is it running, is the address right, and does a firewall stand in between?")
    if isinstance(error, ServiceError):
        if error.kind == "token":
            return Reason("token", "The server does not take this token.", "Copy it anew from the server's token file.")
        if error.kind == "certificate":
            return Reason(
                "certificate",
                "The server's certificate is not one that this computer trusts.",
                "Name the server's certificate file in the settings.",
            )
        if error.kind == "protocol":
            return Reason(_protocol_kind(text), sentence, remedy)
        return Reason("busy" if error.kind == "busy" else "failed", sentence, remedy)
    if isinstance(error, CallError) and not isinstance(error, NotWritten):
        for kind, sign in (
            ("no_python", "There is no Python at"),
            ("no_python", "cannot be run"),
            ("no_python", "is no Python that runs"),
            ("no_python", "gave no answer"),
            ("old_python", "or newer; choose another"),
            ("not_installed", "XFlow is not installed"),
            ("xflow_old", "too old to serve"),
            ("not_writable", "cannot be written"),
        ):
            if sign in text:
                return Reason(kind, sentence, remedy)
        return Reason("failed", sentence, remedy)
    if isinstance(error, OSError):
        return of_system(error)
    if isinstance(error, EngineError) and "speaks protocol" in text:
        return Reason(_protocol_kind(text), sentence, remedy)
    known = classify(text)
    if known.kind == "failed" or (isinstance(error, EngineError) and known.kind in ("no_network", "proxy")):
        return Reason("unreachable" if "cannot reach it" in text else "failed", sentence, remedy)
    return known


def _protocol_kind(text: str) -> str:
    """protocol_mismatch names the side to update."""
    return "xflow_new" if "client's side" in text else "xflow_old" if "server's side" in text else "unreachable"


def halves(text: str) -> tuple[str, str]:
    """A message's first sentence, and what it says to do."""
    first, _, rest = _SENTENCE_END.sub("\0", text, count=1).partition("\0")
    return first, rest


def of_system(problem: OSError) -> Reason:
    if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return classify("No space left on device")
    if problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return classify("Permission denied")
    return classify(str(problem))
