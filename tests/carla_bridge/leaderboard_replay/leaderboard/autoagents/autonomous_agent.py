"""The part of the CARLA leaderboard's base class that an agent can see, written from its contract.

Only names and call order are the leaderboard's: track, plan slots, the hero vehicle found by its role, and a call that
waits until every sensor has delivered exactly this tick's frame.
"""

import enum
import queue

WORLD = None  # the `carla.World`, set by the replay
FRAME = 0
TIME_S = 0.0


class Track(enum.Enum):
    SENSORS = "SENSORS"
    MAP = "MAP"


class SensorBarrier:
    """Measurements of all sensors; `get_data` gives those of one frame, and drops all others."""

    def __init__(self):
        self.tags, self._arrived = set(), queue.Queue()

    def put(self, tag, frame, data):
        self._arrived.put((tag, frame, data))

    def get_data(self, frame):
        found = {}
        while set(found) != self.tags:
            tag, of_frame, data = self._arrived.get(True, 30.0)
            if of_frame == frame:
                found[tag] = (of_frame, data)
        return found


class AutonomousAgent:
    def __init__(self, carla_host, carla_port, debug=False):
        self.track = Track.SENSORS
        self._global_plan = self._global_plan_world_coord = None
        self.sensor_interface = SensorBarrier()
        heroes = [] if WORLD is None else [a for a in WORLD.get_actors() if a.attributes.get("role_name") == "hero"]
        self.hero_actor = heroes[0] if heroes else None

    def __call__(self):
        control = self.run_step(self.sensor_interface.get_data(FRAME), TIME_S)
        control.manual_gear_shift = False
        return control

    @staticmethod
    def get_ros_version():
        return -1

    def set_global_plan(self, global_plan_gps, global_plan_world_coord):
        every = [*range(0, len(global_plan_gps), 50), len(global_plan_gps) - 1]
        self._global_plan = [global_plan_gps[k] for k in every]
        self._global_plan_world_coord = [global_plan_world_coord[k] for k in every]

    def get_metric_info(self):
        pose = self.hero_actor.get_transform()
        return {
            "acceleration": xyz(self.hero_actor.get_acceleration()),
            "angular_velocity": xyz(self.hero_actor.get_angular_velocity()),
            "forward_vector": xyz(pose.get_forward_vector()), "right_vector": xyz(pose.get_right_vector()),
            "location": xyz(pose.location), "rotation": [pose.rotation.roll, pose.rotation.pitch, pose.rotation.yaw],
        }


def xyz(vector):
    return [vector.x, vector.y, vector.z]
