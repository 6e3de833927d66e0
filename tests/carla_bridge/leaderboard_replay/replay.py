"""Calls an agent file as the leaderboard's evaluator does: `replay.py PORT AGENT CONFIG TICKS`, PORT of a CARLA server.

Runs on Python 3.8 with CARLA 0.9.15. Two routes, one after the other, each with a new agent and a longer configuration
string. The last line of output is JSON: what was seen.
"""

import enum
import importlib
import json
import math
import os
import re
import signal
import sys

import carla
import numpy as np
from leaderboard.autoagents import autonomous_agent as base

RADIUS_M = 6378137.0


class RoadOption(enum.IntEnum):
    LEFT = 1
    LANEFOLLOW = 4


def plan_along(carla_map, start, count):
    """A dense plan down a lane, in the world and in degrees by the map's reference."""
    text = carla_map.to_opendrive()
    lat0, lon0 = (float(re.search(rf"\+{name}_0=(\S+)", text).group(1)) for name in ("lat", "lon"))
    radius_m = RADIUS_M * math.cos(math.radians(lat0))
    north0 = math.log(math.tan(math.radians((90 + lat0) / 2)))
    world, degrees, waypoint = [], [], start
    for _ in range(count):
        place = waypoint.transform.location
        world.append((waypoint.transform, RoadOption.LANEFOLLOW))
        latitude = math.degrees(2 * math.atan(math.exp(north0 - place.y / radius_m))) - 90
        gps = {"lat": latitude, "lon": lon0 + math.degrees(place.x / radius_m), "z": place.z}
        degrees.append((gps, RoadOption.LANEFOLLOW))
        waypoint = waypoint.next(1.0)[0]
    return degrees, world


def spawn_sensor(world, hero, spec, barrier):
    """What the leaderboard's wrapper mounts, with its noise, and how it hands measurements on."""
    tag = spec["id"]
    barrier.tags.add(tag)
    if spec["type"] == "sensor.speedometer":
        return None
    blueprint = world.get_blueprint_library().find(spec["type"])
    pose = carla.Transform(
        carla.Location(spec["x"], spec["y"], spec["z"]), carla.Rotation(spec["pitch"], spec["yaw"], spec["roll"])
    )
    if spec["type"] == "sensor.camera.rgb":
        for name, key in (("image_size_x", "width"), ("image_size_y", "height"), ("fov", "fov")):
            blueprint.set_attribute(name, str(spec[key]))
    elif spec["type"] == "sensor.other.gnss":
        for axis in ("alt", "lat", "lon"):
            blueprint.set_attribute(f"noise_{axis}_stddev", "0.000005")
    else:
        for name in ("accel_stddev_x", "accel_stddev_y", "gyro_stddev_x", "gyro_stddev_y", "gyro_stddev_z"):
            blueprint.set_attribute("noise_" + name, "0.001")
    sensor = world.spawn_actor(blueprint, pose, hero)

    def hand_on(data):
        if isinstance(data, carla.Image):
            pixels = np.frombuffer(data.raw_data, np.uint8).reshape(data.height, data.width, 4).copy()
            barrier.put(tag, data.frame, pixels)
        elif isinstance(data, carla.GnssMeasurement):
            barrier.put(tag, data.frame, np.array([data.latitude, data.longitude, data.altitude]))
        else:
            parts = (data.accelerometer, data.gyroscope)
            numbers = [value for v in parts for value in (v.x, v.y, v.z)] + [data.compass]
            barrier.put(tag, data.frame, np.array(numbers))

    sensor.listen(hand_on)
    return sensor


def drive(world, agent_class, config, start, ticks, kill_at=None):
    """One route; returns what it came to."""
    base.WORLD = world
    blueprint = world.get_blueprint_library().find("vehicle.lincoln.mkz_2020")
    blueprint.set_attribute("role_name", "hero")
    pose = start.transform
    pose.location.z += 0.5
    hero = world.spawn_actor(blueprint, pose)
    world.tick()
    agent = agent_class("127.0.0.1", 0, 0)
    agent.set_global_plan(*plan_along(world.get_map(), start, 90))
    agent.setup(config)
    specs = agent.sensors()
    sensors = [spawn_sensor(world, hero, spec, agent.sensor_interface) for spec in specs]
    for _ in range(10):
        world.tick()
    began, frames = hero.get_location(), []
    planner_pids = []
    for tick in range(ticks):
        base.FRAME = world.tick()
        snapshot = world.get_snapshot()
        base.TIME_S = snapshot.timestamp.elapsed_seconds
        velocity, ahead = hero.get_velocity(), hero.get_transform().get_forward_vector()
        speed = velocity.x * ahead.x + velocity.y * ahead.y + velocity.z * ahead.z
        agent.sensor_interface.put("speed", base.FRAME, {"speed": speed})
        if tick == kill_at:
            planner_pids.append(agent._link._process._process.pid)
            os.kill(planner_pids[-1], signal.SIGKILL)
        control = agent()
        assert isinstance(control, carla.VehicleControl)
        frames.append([control.throttle, control.steer, control.brake])
        hero.apply_control(control)
    end = hero.get_location()
    own = agent._link._process
    alive = own._process if own is not None else None
    if alive is not None:
        planner_pids.append(alive.pid)
    agent.destroy()
    agent.destroy()
    for sensor in sensors:
        if sensor is not None:
            sensor.stop()
            sensor.destroy()
    lane = world.get_map().get_waypoint(end).transform.location
    hero.destroy()
    world.tick()
    return {
        "track": agent.track.value, "specs": specs, "controls": frames,
        "travelled_m": began.distance(end), "off_lane_m": math.hypot(end.x - lane.x, end.y - lane.y),
        "planner_pids": planner_pids, "planner_ended": alive is None or alive.poll() is not None,
    }


def main():
    port, agent_file, config, ticks = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    sys.path.insert(0, os.path.dirname(agent_file))
    module = importlib.import_module(os.path.basename(agent_file).split(".")[0])
    agent_class = getattr(module, module.get_entry_point())
    client = carla.Client("127.0.0.1", port)
    client.set_timeout(30.0)
    world = client.get_world()
    world.apply_settings(carla.WorldSettings(synchronous_mode=True, fixed_delta_seconds=0.05))
    lanes = [w for w, _ in world.get_map().get_topology() if not w.is_junction and len(w.next_until_lane_end(1.0)) > 60]
    start = max(lanes, key=lambda w: len(w.next_until_lane_end(1.0))).next(3.0)[0]
    assert agent_class.get_ros_version() == -1
    config += "+RouteScenario_1_rep0"
    first = drive(world, agent_class, config, start, ticks, kill_at=ticks // 2)
    config = "random" + config[config.index("+") :] + "+RouteScenario_2_rep0"
    second = drive(world, agent_class, config, start, 30)
    print(json.dumps({"first": first, "second": second, "python": sys.version_info[:2]}))


if __name__ == "__main__":
    main()
