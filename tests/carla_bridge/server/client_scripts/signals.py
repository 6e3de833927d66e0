"""A client that reads and switches traffic lights; prints what it saw as one line of JSON."""

from __future__ import annotations

import json
import math
import sys

import carla

client = carla.Client("127.0.0.1", int(sys.argv[1]))
client.set_timeout(30.0)
world = client.get_world()
settings = world.get_settings()
settings.synchronous_mode, settings.fixed_delta_seconds = True, 0.05
world.apply_settings(settings)
world.tick()
town = world.get_map()
seen: dict[str, object] = {}

lights = list(world.get_actors().filter("traffic.traffic_light*"))
stops = list(world.get_actors().filter("traffic.stop"))
landmarks = town.get_all_landmarks_of_type("1000001")
seen["ids"] = sorted(light.get_opendrive_id() for light in lights)
seen["landmark_ids"] = sorted(landmark.id for landmark in landmarks)
seen["stops"] = len(stops)
seen["stop_landmarks"] = len(town.get_all_landmarks_of_type("206"))
seen["actor_of_landmark"] = all(world.get_traffic_light(mark).get_opendrive_id() == mark.id for mark in landmarks)
seen["actor_of_id"] = all(
    world.get_traffic_light_from_opendrive_id(mark.id).get_opendrive_id() == mark.id for mark in landmarks
)
seen["crosswalk_points"] = len(town.get_crosswalks())

by_junction: dict[int, list[str]] = {}
for light in lights:
    waypoint = light.get_stop_waypoints()[0]
    while not waypoint.is_junction:
        waypoint = waypoint.next(0.5)[0]
    by_junction.setdefault(waypoint.junction_id, []).append(light.get_opendrive_id())
seen["junctions"] = len(by_junction)
seen["junctions_agree"] = all(
    sorted(light.get_opendrive_id() for light in world.get_traffic_lights_in_junction(junction)) == sorted(ids)
    for junction, ids in by_junction.items()
)
seen["groups_agree"] = all(
    sorted(other.get_opendrive_id() for other in light.get_group_traffic_lights()) == sorted(ids)
    for ids in by_junction.values()
    for light in lights
    if light.get_opendrive_id() in ids
)
seen["stop_waypoints_are_affected_lanes"] = all(
    {(w.road_id, w.lane_id) for w in light.get_stop_waypoints()}
    == {(w.road_id, w.lane_id) for w in light.get_affected_lane_waypoints()}
    for light in lights
)
seen["ahead"] = all(
    light.id in {found.id for found in world.get_traffic_lights_from_waypoint(w.previous(5.0)[0], 12.0)}
    for light in lights
    for w in light.get_affected_lane_waypoints()
)
seen["light_boxes"] = [len(lights[0].get_light_boxes()), lights[0].get_light_boxes()[0].location.z]
seen["poles"] = sorted({light.get_pole_index() for light in lights})

light = lights[0]
before = [one.get_elapsed_time() for one in lights]
for _ in range(10):
    world.tick()
gains = [one.get_elapsed_time() - was for one, was in zip(lights, before, strict=True)]
seen["elapsed_gains"] = [gain for gain in gains if gain > 0]  # the others began a new state
light.freeze(True)
world.tick()
light.set_state(carla.TrafficLightState.Yellow)
held = light.get_elapsed_time()
for _ in range(400):
    world.tick()
seen["frozen"] = [light.is_frozen(), lights[-1].is_frozen(), str(light.get_state()), light.get_elapsed_time() - held]
light.freeze(False)
light.set_green_time(4.0)
light.set_yellow_time(1.5)
light.set_red_time(0.5)
world.reset_all_traffic_lights()
world.tick()
seen["times"] = [light.get_green_time(), light.get_yellow_time(), light.get_red_time(), light.is_frozen()]
runs: list[list[object]] = []
for _ in range(int(80 / 0.05)):
    world.tick()
    name = str(light.get_state())
    if runs and runs[-1][0] == name:
        runs[-1][1] += 0.05
    else:
        runs.append([name, 0.05])
seen["runs"] = runs[1:-1]

# a car that drives up to the light
stop = light.get_stop_waypoints()[0]
start = stop.previous(25.0)[0].transform
start.location.z += 0.5
car = world.spawn_actor(world.get_blueprint_library().find("vehicle.lincoln.mkz_2020"), start)
world.tick()
seen["far_away"] = [car.is_at_traffic_light(), car.get_traffic_light() is None]
met = []
for _ in range(90):
    forward = stop.transform.get_forward_vector()
    car.set_transform(carla.Transform(car.get_location() + 0.4 * forward, start.rotation))
    world.tick()
    if car.is_at_traffic_light():
        met.append((car.get_traffic_light().id, car.get_traffic_light_state() == light.get_state()))
seen["met"] = [len(met), all(m == (light.id, True) for m in met)]

location = light.get_location()
light.set_location(carla.Location(0.0, 0.0, 50.0))
world.tick()
seen["moved_m"] = light.get_location().distance(location)
seen["destroyed"] = light.destroy()
errors = [r.error for r in client.apply_batch_sync([carla.command.DestroyActor(light.id)], False)]
seen["batch_refused"] = "part of the town" in errors[0]
light.set_state(carla.TrafficLightState.Off)
world.tick()
seen["off"] = str(light.get_state())
seen["still_there"] = world.get_actor(light.id) is not None

ids = {actor.id for actor in lights}
world = client.reload_world(False)
again = list(world.get_actors().filter("traffic.traffic_light*"))
seen["after_reload"] = [len(again), not ids & {actor.id for actor in again}]
trigger = again[0].trigger_volume
seen["trigger"] = [trigger.extent.x, trigger.extent.y]
seen["finite"] = all(math.isfinite(a.get_location().x) for a in again)
print(json.dumps(seen))
