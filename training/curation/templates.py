"""The sentences that ask a question, so that a policy does not learn one phrasing (paper, A.3).

Every one is read back by XFlow's own instruction parser as the finding and regions that it was filled with (a test).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from xflow_core.domain.findings import CHEST, HEART

_ANYWHERE = (
    "Segment the {finding}.",
    "Segment any {finding}.",
    "Please segment the {finding} in this chest X-ray.",
    "Outline the {finding}.",
    "Find and segment the {finding}.",
    "Mark the {finding} on this radiograph.",
)
_SOMEWHERE = (
    "Segment the {finding} in the {where}.",
    "Segment any {finding} in the {where}.",
    "Please segment the {finding} in the {where}.",
    "Outline the {finding} in the {where}.",
    "Find and segment the {finding} in the {where}.",
    "In the {where}, segment the {finding}.",
)


def phrasings(finding: str, regions: Sequence[str]) -> tuple[str, ...]:
    """All the sentences for a question."""
    anywhere = tuple(regions) in ((CHEST,), (HEART,))
    named = list(regions)
    where = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    return tuple(text.format(finding=finding, where=where) for text in (_ANYWHERE if anywhere else _SOMEWHERE))


def phrased(finding: str, regions: Sequence[str], key: str) -> str:
    """One of the sentences, always the same for equal arguments.

    Args:
        regions: ("chest",), ("heart",), or lungs or zones. key: what the choice hangs on besides, a study for instance.
    """
    choices = phrasings(finding, regions)
    digest = hashlib.blake2b(f"{key}/{finding}/{'+'.join(regions)}".encode(), digest_size=4).digest()
    return choices[int.from_bytes(digest, "big") % len(choices)]
