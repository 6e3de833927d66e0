"""The owner of a hero: spawns it, ticks the world, and tells at the end what has become of both.

`python hero_owner.py PORT OPTIONS` with OPTIONS as JSON; it ends, and prints JSON, when its standard input does.
"""

from __future__ import annotations

import json
import select
import sys
import time

import carla

DEFAULTS = {"roles": ["hero"], "x_m": 40.8, "y_m": -118.2, "synchronous": True, "pause_s": 0.02, "stop_after": 0,
            "destroy_after": 0}


def describe(world: carla.World) -> dict[str, object]:
    settings = world.get_settings()
    return {
        "settings": [settings.synchronous_mode, settings.fixed_delta_seconds, settings.no_rendering_mode],
        "weather": world.get_weather().cloudiness, "map": world.get_map().name,
        "actors": sorted([actor.id, actor.type_id] for actor in world.get_actors()),
    }


def main(port: int, options: dict) -> None:
    client = carla.Client("127.0.0.1", port)
    client.set_timeout(60.0)
    world = client.get_world()
    settings = world.get_settings()
    settings.synchronous_mode, settings.fixed_delta_seconds = options["synchronous"], 0.05
    world.apply_settings(settings)
    blueprint = world.get_blueprint_library().find("vehicle.lincoln.mkz_2020")
    heroes = []
    for number, role in enumerate(options["roles"]):
        blueprint.set_attribute("role_name", role)
        place = carla.Location(options["x_m"] - 8.0 * number, options["y_m"], 0.3)
        heroes.append(world.spawn_actor(blueprint, carla.Transform(place, carla.Rotation())))
    move = world.tick if options["synchronous"] else (lambda: world.wait_for_tick(10.0))
    for _ in range(3):
        move()
    before, ticks, end = describe(world), 3, False
    print("ready", flush=True)
    while not end:
        end = bool(select.select([sys.stdin], [], [], options["pause_s"])[0])
        if not options["stop_after"] or ticks < options["stop_after"]:
            move()
            ticks += 1
        if ticks == options["destroy_after"]:
            heroes.pop().destroy()
    time.sleep(0.2)
    alive = [hero.is_alive for hero in heroes]
    after = describe(world)
    control = heroes[0].get_control() if heroes else carla.VehicleControl()
    for hero in heroes:
        hero.destroy()
    settings.synchronous_mode = False
    world.apply_settings(settings)
    print(json.dumps({"ticks": ticks, "alive": alive, "before": before, "after": after,
                      "control": [control.throttle, control.brake]}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), DEFAULTS | json.loads(sys.argv[2]))
