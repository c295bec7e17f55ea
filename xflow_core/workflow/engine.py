"""The parts that answer a question, as one bundle brings them together."""

from __future__ import annotations

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
    """

    identity: BundleIdentity
    findings: tuple[str, ...]
    init_policy: InitPolicy
    revision_policy: RevisionPolicy
    segmenter: PromptableSegmenter
    guard: ImageGuard | None = None

    def check_finding(self, finding: str) -> None:
        """Raise :class:`UnsupportedFinding` for a finding that this engine cannot answer."""
        if finding not in self.findings:
            raise UnsupportedFinding(
                f"The bundle {self.identity.name!r} cannot answer {finding}; it answers {', '.join(self.findings)}."
            )

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
        report = self.inspect(image)
        if report.refusals and not accept_image:
            raise RadiographRefused(" ".join(report.refusals))
        accepted = tuple(f"Run against the guards: {reason}" for reason in report.refusals)
        warnings = tuple(dict.fromkeys((*radiograph.record.warnings, *report.warnings, *accepted)))
        record = replace(radiograph.record, warnings=warnings)
        image.radiograph = replace(radiograph, record=record)
        return image
