"""What a town knows of its traffic lights and signs; `signal_reader` makes it, `signals` lets actors come of it."""

from __future__ import annotations

from dataclasses import dataclass

from carla_bridge.server.geometry.poses import Pose
from carla_bridge.server.geometry.scene import SignalKind

ACTOR_TYPES = {
    SignalKind.TRAFFIC_LIGHT: "traffic.traffic_light",
    SignalKind.STOP: "traffic.stop",
    SignalKind.YIELD: "traffic.yield",
}
LIGHT_TYPE, STOP_TYPE, YIELD_TYPE = "1000001", "206", "205"  # of an OpenDRIVE signal
POLE_GAP_M = 0.8  # from the edge of the outermost lane that wheels may use
POLE_STEP_M, POLE_TRIES = 0.5, 16  # how far, and how often, a pole gives way to a road that is there


@dataclass(frozen=True)
class LaneStop:
    """Where a lane's traffic stops.

    Attributes:
        road_id, lane_id, s_m: at the stop line; s in the road's own direction.
        end_lane_id: number of the lane where it leaves the road, which another lane section may have changed.
    """

    road_id: int
    lane_id: int
    s_m: float
    end_lane_id: int


@dataclass(frozen=True)
class Post:
    """A pole with a head, CARLA's world.

    Attributes:
        foot_m: foot of the pole on the ground.
        head_m: middle of the head; beside the pole it hangs from an arm.
        yaw_deg: heading of the traffic that it speaks to.
    """

    foot_m: tuple[float, float, float]
    head_m: tuple[float, float, float]
    yaw_deg: float


@dataclass(frozen=True)
class SignalSpec:
    """A signal as it stands in the town.

    Attributes:
        sign_id: id of the OpenDRIVE signal.
        kind: what it is.
        junction_id: junction behind it; -1 for none.
        phase: number of its controller within the junction, from 0; lights of a phase change together.
        stops: lanes that it governs.
        pose: of the actor: foot of the pole, x axis to the right of traffic.
        trigger: middle of the trigger volume, and its half sizes (across, along, up), in the actor's frame.
        posts: what can be seen of it.
        yaw_deg: heading of the traffic it governs.
    """

    sign_id: str
    kind: SignalKind
    junction_id: int
    phase: int
    stops: tuple[LaneStop, ...]
    pose: Pose
    trigger: tuple[tuple[float, float, float], tuple[float, float, float]]
    posts: tuple[Post, ...]
    yaw_deg: float
