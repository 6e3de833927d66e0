"""Names of `tasks.planning` under their earlier module."""

from wamdiff2_core.chat import IMAGE_PLACEHOLDER
from wamdiff2_core.tasks.planning import BENCH2DRIVE, NAVSIM_PAPER, NAVSIM_UPSTREAM, NAVSIM_WORDS, planning_prompt
from wamdiff2_core.tasks.text import format_number

__all__ = [
    "BENCH2DRIVE", "IMAGE_PLACEHOLDER", "NAVSIM_PAPER", "NAVSIM_UPSTREAM", "NAVSIM_WORDS", "format_number",
    "planning_prompt",
]
