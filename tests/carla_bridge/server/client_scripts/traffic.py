"""Look at the server's own traffic through the real client; print what was seen as JSON.

Runs alone: `python traffic.py PORT`. The test reads the last line.
"""

from __future__ import annotations

import json
import sys

import carla

client = carla.Client("127.0.0.1", int(sys.argv[1]))
client.set_timeout(30.0)
world = client.get_world()
settings = world.get_settings()
settings.synchronous_mode, settings.fixed_delta_seconds = True, 0.05
world.apply_settings(settings)
world = client.reload_world(False)


def background() -> list[carla.Actor]:
    """Vehicles and walkers of the server."""
    return sorted((a for a in world.get_actors() if a.attributes.get("role_name") == "background"), key=lambda a: a.id)


def places() -> list[list[float]]:
    """Where they are."""
    return [[round(v, 4) for v in (a.get_location().x, a.get_location().y)] for a in background()]


seen: dict = {"types": [actor.type_id for actor in background()]}
seen["start"] = places()
for _ in range(100):
    world.tick()
seen["after"] = places()
seen["drivers"] = sorted({actor.attributes["driver"] for actor in background()})

taken = background()[0].get_transform()
hero = world.spawn_actor(world.get_blueprint_library().find("vehicle.lincoln.mkz_2020"), taken)
world.tick()
seen["hero_at_m"] = hero.get_location().distance(taken.location)
seen["moved_m"] = background()[0].get_location().distance(taken.location)

kind = world.get_blueprint_library().find("vehicle.audi.tt")
kind.set_attribute("driver", "server")
cars = [world.try_spawn_actor(kind, place) for place in world.get_map().get_spawn_points()[::40]]
cars = [car for car in cars if car is not None]
for _ in range(60):
    world.tick()
seen["own_speeds"] = [car.get_velocity().length() for car in cars]

world = client.reload_world(False)
seen["again"] = places()
settings.synchronous_mode = False
world.apply_settings(settings)
print(json.dumps(seen))
