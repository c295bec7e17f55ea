"""Results for people and files: the overlay, the mask, the trace, and the words; loads numpy and Pillow, no torch."""

from .files import ResultFiles, image_name, image_names, read_trace, write_mask, write_result, write_trace, write_whole
from .overlay import draw_overlay
from .words import area_in_words, result_in_words, step_in_words

__all__ = [
    "ResultFiles", "area_in_words", "draw_overlay", "image_name", "image_names", "read_trace", "result_in_words",
    "step_in_words", "write_mask", "write_result", "write_trace", "write_whole",
]  # fmt: skip
