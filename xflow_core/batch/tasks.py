"""From the rows of the list to what is asked of each image."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from xflow_core.domain.errors import InstructionError
from xflow_core.domain.instruction import Instruction, parse_instruction

from .image_list import ImageList
from .job import Job, Task


def tasks_of(job: Job, images: ImageList, start: int = 0, stop: int | None = None) -> Iterator[Task]:
    """The tasks of the images from ``start`` to before ``stop``; a row's own instruction goes before the call's."""
    for listed in images.rows(start, stop):
        instructions, survey, problem = job.instructions, job.survey, None
        if listed.instruction is not None:
            instructions, survey = (), False
            try:
                instructions = _parsed(listed.instruction)
            except InstructionError as refused:
                problem = str(refused)
        elif not instructions:
            problem = "The list has no instruction for this image, and the call gives none (-i or --survey)."
        yield Task(listed.position, listed.image, listed.path, listed.name, instructions, survey, problem)


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> tuple[Instruction, ...]:
    return parse_instruction(text)
