"""Constrained decoding: answers that their task can read, by token automata."""

from wamdiff2_core.decode.grammar.automaton import Automaton
from wamdiff2_core.decode.grammar.languages import (
    detection_language,
    task_decoding,
    task_language,
    waypoint_language,
)

__all__ = ["Automaton", "detection_language", "task_decoding", "task_language", "waypoint_language"]
