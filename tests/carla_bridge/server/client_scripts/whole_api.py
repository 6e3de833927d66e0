"""Call what a client library can ask of a server, once each; prints for each call what came of it, as JSON.

Runs alone, under Python 3.8 with CARLA 0.9.15 too: `python whole_api.py PORT`. The test reads the last line.
"""

import json
import math
import queue
import sys
import time

import carla

client = carla.Client("127.0.0.1", int(sys.argv[1]))
client.set_timeout(30.0)
world = client.load_world("Wamtown01")
settings = world.get_settings()
settings.synchronous_mode, settings.fixed_delta_seconds = True, 0.05
world.apply_settings(settings)
library, start = world.get_blueprint_library(), world.get_map().get_spawn_points()[0]
seen = {}


def ask(name, call):
    """Note what a call gives, or the message of its error."""
    try:
        result = call()
    except RuntimeError as error:
        seen[name] = "refused: " + str(error)
        return None
    seen[name] = "served"
    return result


def relative(x, y=0.0, z=0.0):
    """A place in the car's axes."""
    return carla.Transform(start.transform(carla.Location(x, y, z)), start.rotation)


car = world.spawn_actor(library.find("vehicle.lincoln.mkz_2020"), start)
target = world.spawn_actor(library.find("vehicle.carlamotors.carlacola"), relative(20.0))
walker = world.spawn_actor(library.find("walker.pedestrian.0012"), relative(10.0, 6.0, 1.0))
sensors = {}
for type_id, attributes in (
    ("sensor.lidar.ray_cast", {"range": "60", "channels": "16", "points_per_second": "96000",
                               "rotation_frequency": "20", "dropoff_general_rate": "0"}),
    ("sensor.lidar.ray_cast_semantic", {"range": "60", "points_per_second": "64000", "rotation_frequency": "20"}),
    ("sensor.other.radar", {"points_per_second": "20000"}),
    ("sensor.other.obstacle", {"distance": "30"}),
):
    blueprint = library.find(type_id)
    for name, value in attributes.items():
        blueprint.set_attribute(name, value)
    sensor = world.spawn_actor(blueprint, carla.Transform(carla.Location(z=1.6)), attach_to=car)
    sensors[type_id] = sensor, queue.Queue()
    sensor.listen(sensors[type_id][1].put)
time.sleep(0.4)
for _ in range(5):
    frame = world.tick()
last = {}
for type_id, (_, measured) in sensors.items():
    while last.get(type_id) is None or last[type_id].frame < frame:
        last[type_id] = measured.get(timeout=20)
cloud = [(p.point.x, p.point.y, p.point.z, p.intensity) for p in last["sensor.lidar.ray_cast"]]
tagged = [(p.point.x, p.object_idx, p.object_tag) for p in last["sensor.lidar.ray_cast_semantic"]]
echoes = [(d.depth, d.azimuth, d.velocity) for d in last["sensor.other.radar"]]
front_m = 20.0 - target.bounding_box.extent.x
seen["lidar"] = {
    "points": len(cloud),
    "per_channel": sum(last["sensor.lidar.ray_cast"].get_point_count(c) for c in range(16)),
    "ground_z": min(z for _, _, z, _ in cloud),
    "ahead": min(x for x, y, z, _ in cloud if abs(y) < 0.5 and x > 0 and z > -1.2),
    "intensity": [min(i for *_, i in cloud), max(i for *_, i in cloud)],
}
seen["front"] = front_m
seen["semantic"] = sorted({(index, int(tag)) for x, index, tag in tagged if index})
seen["radar"] = {"depth": min(d for d, a, _ in echoes if abs(a) < 0.02), "still": max(abs(v) for *_, v in echoes)}
obstacle = last["sensor.other.obstacle"]
seen["obstacle"] = [obstacle.actor.id == car.id, obstacle.other_actor.id == target.id, obstacle.distance]
for sensor, _ in sensors.values():
    sensor.stop()
    sensor.destroy()

# actors
for name, argument in (
    ("set_target_velocity", carla.Vector3D(1, 0, 0)), ("set_target_angular_velocity", carla.Vector3D(0, 0, 1)),
    ("enable_constant_velocity", carla.Vector3D(3, 0, 0)), ("add_impulse", carla.Vector3D(10, 0, 0)),
    ("add_force", carla.Vector3D(10, 0, 0)), ("add_angular_impulse", carla.Vector3D(0, 0, 1)),
    ("add_torque", carla.Vector3D(0, 0, 1)), ("set_simulate_physics", True), ("set_enable_gravity", True),
    ("set_collisions", True), ("set_location", start.location), ("set_transform", start),
    ("set_light_state", carla.VehicleLightState(carla.VehicleLightState.Brake)),
    ("open_door", carla.VehicleDoor.FL), ("close_door", carla.VehicleDoor.All),
    ("show_debug_telemetry", True),
    ("apply_ackermann_control", carla.VehicleAckermannControl(speed=3.0)),
    ("apply_ackermann_controller_settings", carla.AckermannControllerSettings(speed_kp=0.2)),
    ("apply_control", carla.VehicleControl(throttle=0.3)),
):
    ask(name, lambda name=name, argument=argument: getattr(car, name)(argument))
ask("disable_constant_velocity", car.disable_constant_velocity)
seen["gain"] = round(ask("get_ackermann_controller_settings", car.get_ackermann_controller_settings).speed_kp, 3)
physics = ask("get_physics_control", car.get_physics_control)
physics.mass, wheels = 2500.0, physics.wheels
for wheel in wheels:
    wheel.tire_friction = 1.75
    wheel.max_steer_angle = min(wheel.max_steer_angle, 30.0)
physics.wheels = wheels
ask("apply_physics_control", lambda: car.apply_physics_control(physics))
world.tick()
physics = car.get_physics_control()
seen["physics"] = [physics.mass, physics.wheels[0].tire_friction, round(physics.wheels[0].max_steer_angle, 2)]
ask("get_wheel_steer_angle", lambda: car.get_wheel_steer_angle(carla.VehicleWheelLocation.FL_Wheel))
ask("set_wheel_steer_direction", lambda: car.set_wheel_steer_direction(carla.VehicleWheelLocation.FL_Wheel, 3.0))
ask("walker control", lambda: walker.apply_control(carla.WalkerControl(carla.Vector3D(1, 0, 0), 1.0)))
for name in ("get_bones", "get_telemetry_data", "get_failure_state", "get_bone_names", "get_component_names"):
    for actor in (walker, car):
        if hasattr(actor, name):
            ask(name, getattr(actor, name))
ask("enable_carsim", lambda: car.enable_carsim(""))
ask("enable_chrono_physics", lambda: car.enable_chrono_physics(10, 0.01, "", "", "", ""))
ask("normals camera", lambda: world.spawn_actor(library.find("sensor.camera.normals"), start))
ask("walker controller", lambda: world.spawn_actor(library.find("controller.ai.walker"), start, walker))
camera = library.find("sensor.camera.rgb")
camera.set_attribute("fov", "nan")
ask("camera without a field of view", lambda: world.spawn_actor(camera, start, car))

# the world
label = carla.CityObjectLabel
buildings = ask("get_environment_objects", lambda: world.get_environment_objects(label.Buildings))
seen["buildings"] = [len(buildings), buildings[0].name, buildings[0].type == label.Buildings]
boxes = ask("get_level_bbs", lambda: world.get_level_bbs(label.Buildings))
seen["boxes agree"] = len(boxes) == len(buildings) and all(
    a.location.distance(b.transform.location) < 1e-3 for a, b in zip(boxes, buildings)  # noqa: B905 - Python 3.8
)
ask("enable_environment_objects", lambda: world.enable_environment_objects({buildings[0].id}, False))
seen["names"] = len(ask("get_names_of_all_objects", world.get_names_of_all_objects))
high = car.get_location() + carla.Location(z=50.0)
hits = ask("cast_ray", lambda: world.cast_ray(high, car.get_location() - carla.Location(z=5.0)))
seen["cast_ray"] = [[hit.label == label.Car, hit.label == label.Roads] for hit in hits]
point = ask("ground_projection", lambda: world.ground_projection(high, 100.0))
seen["ground_projection"] = point.location.z - car.get_location().z
seen["nothing above"] = world.project_point(high, carla.Vector3D(0, 0, 1), 100.0) is None
ask("weather", lambda: world.set_weather(carla.WeatherParameters.HardRainNoon))
ask("debug", lambda: world.debug.draw_point(start.location))
ask("day and night", lambda: world.get_lightmanager().set_day_night_cycle(True))
ask("lights", lambda: world.get_lightmanager().get_all_lights())
seen["walker location"] = ask("navigation", world.get_random_location_from_navigation) is None
ask("load_map_layer", lambda: world.load_map_layer(carla.MapLayer.Buildings))
ask("unload_map_layer", lambda: world.unload_map_layer(carla.MapLayer.Buildings))
ask("freeze lights", lambda: world.freeze_all_traffic_lights(True))
ask("reset lights", world.reset_all_traffic_lights)
for name, arguments in (
    ("start_recorder", ("a.log",)), ("stop_recorder", ()), ("show_recorder_file_info", ("a.log", False)),
    ("show_recorder_collisions", ("a.log", "a", "a")), ("show_recorder_actors_blocked", ("a.log", 1.0, 1.0)),
    ("replay_file", ("a.log", 0.0, 0.0, 0)), ("set_replayer_time_factor", (1.0,)),
    ("set_replayer_ignore_hero", (True,)), ("stop_replayer", (True,)),
):
    ask(name, lambda name=name, arguments=arguments: getattr(client, name)(*arguments))
ask("get_required_files", client.get_required_files)
ask("request_file", lambda: client.request_file("nothing"))

# every command of a batch
command, me = carla.command, car.id
vector = carla.Vector3D(0.0, 0.0, 0.0)
commands = [
    command.ApplyVehicleControl(me, carla.VehicleControl(throttle=math.nan, brake=math.nan)),
    command.ApplyVehicleAckermannControl(me, carla.VehicleAckermannControl()),
    command.ApplyWalkerControl(walker.id, carla.WalkerControl()),
    command.ApplyVehiclePhysicsControl(me, physics),
    command.ApplyTransform(me, start),
    command.ApplyWalkerState(walker.id, relative(10.0, 6.0, 1.0), 0.0),
    command.ApplyTargetVelocity(me, vector),
    command.ApplyTargetAngularVelocity(me, vector),
    command.ApplyImpulse(me, vector),
    command.ApplyForce(me, vector),
    command.ApplyAngularImpulse(me, vector),
    command.ApplyTorque(me, vector),
    command.SetSimulatePhysics(me, True),
    command.SetEnableGravity(me, True),
    command.SetVehicleLightState(me, carla.VehicleLightState(carla.VehicleLightState.NONE)),
    command.DestroyActor(target.id),
    command.SpawnActor(library.find("static.prop.streetbarrier"), relative(20.0)),
]
results = client.apply_batch_sync(commands, False)
seen["batch"] = {type(c).__name__: r.error for c, r in zip(commands, results) if r.error}  # noqa: B905 - Python 3.8
world.tick()
spot = car.get_location()
seen["finite"] = all(math.isfinite(v) for v in (spot.x, spot.y, spot.z))
car.destroy()
walker.destroy()
world.get_actor(results[-1].actor_id).destroy()
world.tick()
settings.synchronous_mode = False
world.apply_settings(settings)
print(json.dumps(seen))
