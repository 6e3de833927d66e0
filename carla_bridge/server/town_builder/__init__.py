"""The towns of the embedded world, generated: plans in, OpenDRIVE out."""

from carla_bridge.server.town_builder.builder import build_town
from carla_bridge.server.town_builder.plan import RoadPlan, TownPlan
from carla_bridge.server.town_builder.plans import TOWN_PLANS, WAMTOWN01, WAMTOWN02, WAMTOWN03

__all__ = ["TOWN_PLANS", "WAMTOWN01", "WAMTOWN02", "WAMTOWN03", "RoadPlan", "TownPlan", "build_town"]
