"""Names of `tasks.planning` under their earlier module."""

from wamdiff2_core.tasks.planning import format_waypoints, parse_waypoints
from wamdiff2_core.tasks.text import AnswerError as WaypointTextError

__all__ = ["WaypointTextError", "format_waypoints", "parse_waypoints"]
