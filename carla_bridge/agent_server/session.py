"""One leaderboard route on the planner's side: from raw sensors to pedals.

Sensors -> localisation -> route -> planner -> controller, all of it at the leaderboard's 20 Hz except the planner,
whose plan is held for some ticks. Numbers come in and go out as the leaderboard has them, left-handed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from carla_bridge.agent_server.localization import Georeference, Localizer
from carla_bridge.client.vehicle_control import PedalMap, to_pedals
from carla_bridge.routes.global_plan import route_from_global_plan
from carla_bridge.routes.navigation import Navigator
from wamdiff2_core.config import CameraSpec, TargetRule
from wamdiff2_core.control.controller import Controller, PlanInMap
from wamdiff2_core.errors import UserError
from wamdiff2_core.frames import angular_velocity_from_carla, flip_y, rotation_to_carla, yaw_from_compass
from wamdiff2_core.types import CameraFrame, EgoState, Observation, Plan, Pose2D, VehicleCommand, not_finite_at

SETTLED_STD_M = 0.2
MAX_OFF_PLAN_M = 50.0
DEFAULT_MAX_STEER_DEG = 70.0
PlanFunction = Callable[[Observation], Plan]


def leaderboard_sensors(rig: tuple[CameraSpec, ...]) -> list[dict[str, Any]]:
    """The leaderboard's specifications of a rig's cameras and of what localisation needs.

    GNSS and IMU sit at the origin of base_link, so that their readings need no lever arm.
    """
    sensors = []
    for camera in rig:
        pitch, yaw, roll = rotation_to_carla(camera.roll_deg, camera.pitch_deg, camera.yaw_deg)
        x, y, z = flip_y(np.array([camera.x_m, camera.y_m, camera.z_m])).tolist()
        sensors.append({
            "type": "sensor.camera.rgb", "id": camera.name, "x": x, "y": y, "z": z, "roll": roll, "pitch": pitch,
            "yaw": yaw, "width": camera.width_px, "height": camera.height_px, "fov": camera.hfov_deg,
        })
    origin = dict.fromkeys(("x", "y", "z", "roll", "pitch", "yaw"), 0.0)
    return [
        *sensors,
        {"type": "sensor.other.gnss", "id": "gnss", **origin},
        {"type": "sensor.other.imu", "id": "imu", **origin},
        {"type": "sensor.speedometer", "id": "speed", "reading_frequency": 20},
    ]


@dataclass(frozen=True)
class Driving:
    """How plans are asked for.

    Attributes:
        plan: the planner.
        rig: its cameras.
        target_rule: which points of the route it is shown.
        every_ticks: ticks for which a plan is held.
        jpeg_quality: pictures go through JPEG of this quality first, as with agents trained on stored frames; 0: not.
    """

    plan: PlanFunction
    rig: tuple[CameraSpec, ...]
    target_rule: TargetRule
    every_ticks: int = 5
    jpeg_quality: int = 0


class AgentSession:
    """One route.

    Attributes:
        length_m: of the route.
        progress_m: how far along it the ego has come.
        pose: where the ego is, map frame.
    """

    def __init__(self, driving: Driving, message: Mapping[str, Any]) -> None:
        """Take a `route` request.

        Raises:
            UserError: it is not what `protocol` says.
        """
        positions = _matrix(message, "positions", 3)
        options = message.get("options")
        if not isinstance(options, list) or not all(type(option) is int for option in options):
            raise UserError("options", "a list of integers", type(options).__name__)
        degrees = _matrix(message, "degrees", 2)
        if len(degrees) != len(positions):
            raise UserError("degrees", f"one of each of the {len(positions)} positions", len(degrees))
        route = route_from_global_plan(positions, options, str(message.get("name", "")))
        self._localizer = Localizer(Georeference.fit(degrees, flip_y(positions)[:, :2]))
        self._driving, self._start_m = driving, route.xy_m[0]
        self._navigator = Navigator(route, driving.target_rule)
        self._navigator.progress_m = _number(message, "progress_m", 0.0)
        self._resumed = self._navigator.progress_m > 0
        self._controller = Controller()
        max_steer_deg = _number(message, "max_steer_deg", DEFAULT_MAX_STEER_DEG)
        if not 1 <= max_steer_deg <= 90:
            raise UserError("max_steer_deg", "1..90", max_steer_deg)
        self._pedal_map = PedalMap(math.radians(max_steer_deg))
        self.length_m = route.length_m
        self._plan: PlanInMap | None = None
        self._refused = ""
        self._last_s: float | None = None
        self._ticks_since_plan = driving.every_ticks

    @property
    def progress_m(self) -> float:
        """How far along the route the ego vehicle has come, metres."""
        return self._navigator.progress_m

    @property
    def pose(self) -> Pose2D:
        """Where base_link is, map frame."""
        return self._localizer.pose

    def step(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a `step` request with a `control` reply.

        Raises:
            UserError: it is not what `protocol` says.
        """
        time_s, speed_mps = _number(message, "time_s"), _number(message, "speed_mps", math.nan)
        gnss, imu = _vector(message, "gnss", 3), _vector(message, "imu", 7)
        images = self._images(message, round(time_s * 1e9))
        ego = self._ego(time_s, speed_mps, gnss, imu)
        why = self._unready(speed_mps)
        if why:
            command = VehicleCommand(0.0, -self._controller.config.emergency_decel_mps2)
        else:
            command, why = self._drive(ego, images)
        pedals = to_pedals(command, self._pedal_map)
        return {
            "type": "control", "throttle": pedals.throttle, "steer": pedals.steer, "brake": pedals.brake,
            "reason": why, "wants_images": self._ticks_since_plan + 1 >= self._driving.every_ticks,
            "progress_m": self.progress_m,
        }

    def _ego(self, time_s: float, speed_mps: float, gnss: np.ndarray, imu: np.ndarray) -> EgoState:
        dt_s = 0.0 if self._last_s is None else time_s - self._last_s
        if not 0 <= dt_s < 10:
            raise UserError("time_s", "a time that goes on", f"{time_s:g} after {self._last_s:g}")
        self._last_s = time_s
        turn = float(angular_velocity_from_carla(imu[3:6])[2])
        compass = yaw_from_compass(float(imu[6])) if np.isfinite(imu[6]) else math.nan
        pose = self._localizer.step(dt_s, speed_mps, turn, gnss[:2].tolist(), compass)
        acceleration = flip_y(imu[:2]) if np.isfinite(imu[:2]).all() else np.zeros(2)
        return EgoState(
            np.array([speed_mps if math.isfinite(speed_mps) else 0.0, 0.0]), acceleration,
            turn if math.isfinite(turn) else 0.0, pose, round(time_s * 1e9),
        )

    def _unready(self, speed_mps: float) -> str:
        """Why the pose is of no use yet; empty when it is.

        Raises:
            UserError: it will never be, as the plan's degrees are not those of this map.
        """
        if not math.isfinite(speed_mps):
            return "no speed"
        if not math.isfinite(self._localizer.position_std_m):
            return "no position: GNSS and compass have given nothing yet"
        if not self._resumed:
            off_m = float(np.linalg.norm(np.subtract([self.pose.x_m, self.pose.y_m], self._start_m)))
            if off_m > MAX_OFF_PLAN_M:
                raise UserError("GNSS", f"within {MAX_OFF_PLAN_M:g} m of the plan's beginning", f"{off_m:.0f} m",
                                "the plan's degrees are of another map reference than the sensor's")
            self._resumed = True
        if self._plan is None and self._localizer.position_std_m > SETTLED_STD_M:
            return f"position known to {self._localizer.position_std_m:.2f} m only"
        return ""

    def _drive(self, ego: EgoState, images: tuple[CameraFrame, ...]) -> tuple[VehicleCommand, str]:
        navigation = self._navigator.update(ego.map_from_base)
        self._ticks_since_plan += 1
        if images and self._ticks_since_plan >= self._driving.every_ticks:
            self._ticks_since_plan = 0
            plan = self._driving.plan(Observation(images, ego, navigation))
            good = plan.check.ok and plan.waypoints is not None
            self._refused = "" if good else plan.check.message or "no waypoints"
            # A plan that may not be driven leaves the last one in force, which is braked for when it grows too old.
            if good or self._plan is None:
                self._plan = PlanInMap(plan, ego.map_from_base)
        command = self._controller.step(self._plan, ego, ego.stamp_ns)
        reason = self._controller.reason
        if reason and self._refused and self._refused not in reason:
            reason += f"; later plans were refused: {self._refused}"
        return command, reason

    def _images(self, message: Mapping[str, Any], stamp_ns: int) -> tuple[CameraFrame, ...]:
        images = message.get("images") or {}
        if not isinstance(images, dict):
            raise UserError("images", "a map", type(images).__name__)
        if not images:
            return ()
        frames = []
        for camera in self._driving.rig:
            image = images.get(camera.name)
            if not isinstance(image, dict) or not isinstance(image.get("rgb"), bytes):
                raise UserError("images", "all of " + ", ".join(c.name for c in self._driving.rig),
                                ", ".join(map(str, images)))
            shape = camera.height_px, camera.width_px, 3
            got = image.get("height"), image.get("width"), 3
            if got != shape or len(image["rgb"]) != math.prod(shape):
                raise UserError(f"images: {camera.name}", f"{shape} bytes", f"{got}, {len(image['rgb'])} bytes")
            pixels = np.frombuffer(image["rgb"], np.uint8).reshape(shape)
            frames.append(CameraFrame(self._through_jpeg(pixels), stamp_ns, camera.name))
        return tuple(frames)

    def _through_jpeg(self, rgb: np.ndarray) -> np.ndarray:
        if not self._driving.jpeg_quality:
            return rgb
        import simplejpeg

        quality = self._driving.jpeg_quality
        stored = simplejpeg.encode_jpeg(np.ascontiguousarray(rgb), quality=quality, colorsubsampling="420")
        return np.asarray(simplejpeg.decode_jpeg(stored))


def _number(message: Mapping[str, Any], name: str, missing: float | None = None) -> float:
    value = message.get(name)
    if value is None and missing is not None:
        return missing
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise UserError(name, "a finite number", value)
    return float(value)


def _vector(message: Mapping[str, Any], name: str, length: int) -> np.ndarray:
    """(length,) numbers; all NaN for nil."""
    value = message.get(name)
    if value is None:
        return np.full(length, np.nan)
    if not isinstance(value, list) or len(value) != length or not all(isinstance(v, int | float) for v in value):
        raise UserError(name, f"{length} numbers", value)
    return np.array(value, dtype=np.float64)


def _matrix(message: Mapping[str, Any], name: str, width: int) -> np.ndarray:
    value = message.get(name)
    try:
        matrix = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        matrix = np.empty(0)
    if matrix.ndim != 2 or matrix.shape[1] != width or len(matrix) < 2:
        raise UserError(name, f"at least two rows of {width} finite numbers", type(value).__name__)
    place = not_finite_at(matrix)
    if place is not None:
        raise UserError(f"{name}{list(place)}", "a finite number", matrix[place].item())
    return matrix
