"""Data sets for a small generalist: the expert drives a fleet, and every picture gives a plan, questions and boxes."""

from carla_bridge.collect.command import collect

__all__ = ["collect"]
