"""The parts that answer a question, as one bundle brings them together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from xflow_core.domain.errors import EngineError, RadiographRefused, UnsupportedFinding, XFlowError
from xflow_core.domain.trace import BundleIdentity
from xflow_core.policies.protocols import GuardReport, ImageGuard, InitPolicy, RevisionPolicy
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.guards import inspect_header_and_pixels
from xflow_core.radiograph.reading import Radiograph
from xflow_core.segmenters.protocol import PromptableSegmenter


@dataclass(frozen=True, eq=False)
class Engine:
    """Two policies, a segmenter and a guard behind the same protocols, whatever their backend.

    findings: those it can answer; every other one is refused by name.
    components_together: components of one image that are revised at a time, where the policies and the segmenter may be
        asked from several threads and gain by it; the steps and their order are those of one after another.
    memory_layout: says how the models lie in memory now, where that may change what they answer.
    """

    identity: BundleIdentity
    findings: tuple[str, ...]
    init_policy: InitPolicy
    revision_policy: RevisionPolicy
    segmenter: PromptableSegmenter
    guard: ImageGuard | None = None
    components_together: int = 1
    memory_layout: Callable[[], str] | None = None

    def check_finding(self, finding: str) -> None:
        """Raise :class:`UnsupportedFinding` for a finding that this engine cannot answer."""
        check_answered(self.identity.name, self.findings, finding)

    def inspect(self, image: EncodedRadiograph) -> GuardReport:
        """All that speaks against the picture: its header, simple pixel evidence, and the bundle's learned guard."""
        refusals, warnings = inspect_header_and_pixels(image.radiograph)
        try:
            learned = GuardReport() if self.guard is None else self.guard.inspect(image)
        except XFlowError:
            raise
        except Exception as problem:
            raise EngineError(f"The bundle's guard failed: {problem!r}.") from problem
        return GuardReport((*refusals, *learned.refusals), (*warnings, *learned.warnings))

    def admit(self, radiograph: Radiograph, *, accept_image: bool = False) -> EncodedRadiograph:
        """The radiograph, encoded and ready for questions, once it has passed the guards.

        Args:
            accept_image: go on against the guards' refusals; they become warnings in the trace.

        Raises:
            RadiographRefused: it is plainly not one frontal chest radiograph.
        """
        image = EncodedRadiograph(radiograph)
        return admitted(image, self.inspect(image), accept_image=accept_image)


def check_answered(bundle: str, findings: Sequence[str], finding: str) -> None:
    """Raise :class:`UnsupportedFinding` unless ``finding`` is one of the ``findings`` that the named bundle answers."""
    if finding not in findings:
        raise UnsupportedFinding(f"The bundle {bundle!r} cannot answer {finding}; it answers {', '.join(findings)}.")


def admitted(image: EncodedRadiograph, report: GuardReport, *, accept_image: bool = False) -> EncodedRadiograph:
    """The image after the guards' look at it: the same features, and their warnings in its record.

    Raises:
        RadiographRefused: the guards refuse it, and ``accept_image`` is false.
    """
    if report.refusals and not accept_image:
        raise RadiographRefused(" ".join(report.refusals))
    accepted = tuple(f"Run against the guards: {reason}" for reason in report.refusals)
    record = image.radiograph.record
    warnings = tuple(dict.fromkeys((*record.warnings, *report.warnings, *accepted)))
    return image.with_record(replace(record, warnings=warnings))
