"""The family of errors that XFlow raises on purpose.

Each message is one sentence (or two) for the person at the keyboard: what happened, to which file or step,
and what to do. :attr:`XFlowError.exit_status` is the status the ``xflow`` command ends with.
"""


class XFlowError(Exception):
    """Anything XFlow refuses or fails to do, said in one clear sentence."""

    exit_status = 4


class ValueRefused(XFlowError, ValueError):
    """A domain value (box, point, mask, step, ..) that cannot exist; the message carries the number."""

    exit_status = 2


class InstructionError(XFlowError):
    """The sentence names no finding that XFlow knows, or another one; the message lists the seven."""

    exit_status = 2


class UnsupportedFinding(XFlowError):
    """The bundle in use cannot answer this finding; the message says which it can."""

    exit_status = 2


class BundleError(XFlowError):
    """A model bundle is missing, incomplete, altered or of another version."""

    exit_status = 2


class CallError(XFlowError):
    """The call itself is wrong: an option, a path, a combination."""

    exit_status = 2


class NotWritten(CallError):
    """Results cannot be written where the call wants them: a full disk, a read-only folder."""

    exit_status = 4


class RadiographError(XFlowError):
    """A file could not be read as one image."""

    exit_status = 3


class RadiographRefused(RadiographError):
    """The file was read, and is plainly not one frontal chest radiograph; the message says why."""


class ExportError(XFlowError):
    """A DICOM object could not be made from, or read for, a source image; the message says why."""

    exit_status = 4


class PacsError(XFlowError):
    """A DICOMweb service cannot be reached, refuses, or answers what it should not: the images could not be had."""

    exit_status = 3


class StoreError(PacsError):
    """A DICOMweb service did not take all results; they are on disk, and the message says which and where."""

    exit_status = 4


class EngineError(XFlowError):
    """The models failed: no answer was computed. Never the same as "absent"."""

    exit_status = 4


class ServiceError(XFlowError):
    """The engine's service refuses a request or fails; ``kind`` is the wire protocol's word for it."""

    exit_status = 4

    def __init__(self, message: str, kind: str = "internal") -> None:
        super().__init__(message)
        self.kind = kind


class ServiceGone(ServiceError):
    """The engine's service cannot be reached, or fell silent in the middle of an answer; what was answered stays."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "gone")


class Cancelled(XFlowError):
    """The user stopped the run between two steps."""

    exit_status = 4
