"""`metric_info.json` of a drive: the vehicle's motion on every tick, from which Bench2Drive's tools tell comfort.

A JSON object with an entry for each tick, by its number from 0. Entries are in CARLA's left-handed world, angular
velocity in degrees per second. Ours are planar: height, roll and pitch are 0, and so is what moves in them. Source:
`get_metric_info` of `autonomous_agent.py`, Bench2Drive 0.0.4.
"""

from __future__ import annotations

from wamdiff2_core.frames import flip_y, pose_to_carla, rotation, yaw_rate_to_carla
from wamdiff2_core.types import EgoState

METRIC_FILE = "metric_info.json"


def metric_entry(ego: EgoState) -> dict[str, list[float]]:
    """The entry of a tick."""
    map_from_base = rotation(ego.map_from_base.yaw_rad)
    x_m, y_m, yaw_deg = pose_to_carla(ego.map_from_base)
    accel, forward, right = (
        [*flip_y(map_from_base @ vector).tolist(), 0.0] for vector in (ego.acceleration_mps2, [1.0, 0.0], [0.0, -1.0])
    )
    return {
        "acceleration": accel,
        "angular_velocity": [0.0, 0.0, yaw_rate_to_carla(ego.yaw_rate_radps)],
        "forward_vector": forward,
        "right_vector": right,
        "location": [x_m, y_m, 0.0],
        "rotation": [0.0, 0.0, yaw_deg],
    }
