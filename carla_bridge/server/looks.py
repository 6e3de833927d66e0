"""How the renderer sees the world: actors as things to draw."""

from __future__ import annotations

from collections.abc import Iterable

from carla_bridge.server.actors import Actor, Vehicle, Walker
from carla_bridge.server.scene import RenderActor

PROP_COLOR = (225, 120, 30)
WALKER_COLORS = ((190, 60, 60), (60, 90, 170), (70, 130, 80), (210, 190, 120))


def visible(actors: Iterable[Actor], carrier: Actor | None) -> list[RenderActor]:
    """Everything with a body, but the camera's carrier: it rides above a box that is no good picture of a bonnet."""
    return [look(actor) for actor in actors if actor.blueprint.solid and actor is not carrier]


def look(actor: Actor) -> RenderActor:
    """How the renderer sees an actor."""
    if isinstance(actor, Vehicle):
        kind, color = "vehicle", _parse_color(actor.attributes.get("color", ""))
    elif isinstance(actor, Walker):
        kind, color = "walker", WALKER_COLORS[actor.id % len(WALKER_COLORS)]
    else:
        kind, color = "prop", PROP_COLOR
    p = actor.pose
    return RenderActor(kind, p.x, p.y, p.z - actor.foot_m, p.pitch, p.yaw, p.roll, *actor.blueprint.extent_m, color)


def _parse_color(text: str) -> tuple[int, int, int]:
    try:
        r, g, b = (min(255, max(0, int(part))) for part in text.split(","))
    except ValueError:
        return 140, 140, 150
    return r, g, b
