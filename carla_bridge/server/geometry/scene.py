"""What a picture is made of: cameras, actors, signals, lanes, marks and scenery.

Everything here is in CARLA's left-handed world: x, y right, z up, metres; pitch, yaw (clockwise from above), roll in
degrees, signs as in `carla.Rotation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntFlag

import numpy as np

Rgb = tuple[int, int, int]


@dataclass(frozen=True)
class RenderCamera:
    """A pinhole camera.

    Attributes:
        x, y, z: optical centre, metres.
        pitch, yaw, roll: degrees; it looks along its x axis.
        width, height: image size, pixels.
        fov: horizontal field of view, degrees.
    """

    x: float
    y: float
    z: float
    pitch: float = 0.0
    yaw: float = 0.0
    roll: float = 0.0
    width: int = 256
    height: int = 128
    fov: float = 90.0


class Lamp(IntFlag):
    """Lamps of a vehicle that burn; bits of `carla.VehicleLightState`."""

    NONE = 0
    POSITION = 0x1
    LOW_BEAM = 0x2
    HIGH_BEAM = 0x4
    BRAKE = 0x8
    RIGHT_BLINKER = 0x10
    LEFT_BLINKER = 0x20
    REVERSE = 0x40
    FOG = 0x80
    INTERIOR = 0x100
    SPECIAL1 = 0x200  # blue lights of emergency vehicles
    SPECIAL2 = 0x400


@dataclass(frozen=True)
class RenderActor:
    """A moving thing, placed by the middle of its foot on the ground.

    Attributes:
        kind: `vehicle`, `walker`, or anything else for a plain box.
        x, y, z: actor origin, on the ground.
        pitch, yaw, roll: degrees.
        extent_x, extent_y, extent_z: half sizes, metres.
        color_rgb: body colour.
        type_id: blueprint, such as `vehicle.ford.ambulance`; it decides the shape. Empty gives the plain one.
        lamps: lamps that burn.
        speed_mps: a walker at more than a stroll's start shows its legs in stride.
        visible: False for the carrier of the camera, whose lamps still light the road.
        label: what it is for a semantic camera, `Label`.
    """

    kind: str
    x: float
    y: float
    z: float
    pitch: float = 0.0
    yaw: float = 0.0
    roll: float = 0.0
    extent_x: float = 2.45
    extent_y: float = 0.92
    extent_z: float = 0.75
    color_rgb: Rgb = (140, 140, 150)
    type_id: str = ""
    lamps: Lamp = Lamp.NONE
    speed_mps: float = 0.0
    visible: bool = True
    label: int = 20


class SignalKind(Enum):
    """Things beside the road that traffic obeys."""

    TRAFFIC_LIGHT = "traffic_light"
    STOP = "stop"
    YIELD = "yield"


class LampColor(Enum):
    """What a traffic light shows; values as `carla.TrafficLightState`."""

    RED = 0
    YELLOW = 1
    GREEN = 2
    OFF = 3


@dataclass(frozen=True)
class RenderSignal:
    """A traffic light or sign: a pole, and a head that may hang from an arm over the lane.

    Attributes:
        kind: what it is.
        x, y, z: foot of the pole, on the ground.
        yaw: heading of the traffic it speaks to, degrees; its face looks the other way.
        head_x, head_y, head_z: middle of the head or sign. Where it is not above the pole, an arm joins the two.
        lamp: of a traffic light, what it shows.
    """

    kind: SignalKind
    x: float
    y: float
    z: float
    yaw: float
    head_x: float
    head_y: float
    head_z: float
    lamp: LampColor = LampColor.OFF


class BoxKind(Enum):
    """Kinds of scenery."""

    BUILDING = "building"
    TREE = "tree"  # the box is the trunk; the crown is `crown_radius` wide and cannot be hit
    LAMP = "lamp"
    HEDGE = "hedge"
    POLE = "pole"  # of a light or sign, which is drawn with what it shows


@dataclass(frozen=True)
class StaticBox:
    """Scenery that can be seen and hit: an upright box.

    Attributes:
        kind: what it is.
        x, y, z: middle of the box (z of its middle, not its foot).
        yaw: degrees.
        extent_x, extent_y, extent_z: half sizes.
        color_rgb: main colour.
        crown_radius: of a tree, metres; else 0.
        floors: of a building; else 0.
    """

    kind: BoxKind
    x: float
    y: float
    z: float
    yaw: float
    extent_x: float
    extent_y: float
    extent_z: float
    color_rgb: Rgb
    crown_radius: float = 0.0
    floors: int = 0


@dataclass(frozen=True)
class LaneStrip:
    """A lane's surface as two edges with the same number of points, in the direction of travel.

    Attributes:
        road_id, section_s_m, lane_id, in_junction: as in the OpenDRIVE file; a section is known by its start.
        kind: OpenDRIVE lane type (`driving`, `sidewalk`, ...).
        left_m, right_m: (N, 3) edges as seen by traffic in the lane.
    """

    road_id: int
    section_s_m: float
    lane_id: int
    in_junction: bool
    kind: str
    left_m: np.ndarray
    right_m: np.ndarray


@dataclass(frozen=True)
class MarkLine:
    """A painted line or kerb between two lanes, or across one.

    Attributes:
        line_m: (N, 3) middle of the line.
        kind: `solid`, `broken` or `curb`, double lines are given as two; `stop_line` or `yield_line` across a lane.
        color: `white` or `yellow`.
        width_m: width of the paint.
    """

    line_m: np.ndarray
    kind: str
    color: str
    width_m: float
