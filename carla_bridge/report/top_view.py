"""Routes and moments seen from above, SVG text, north up: lanes, planned route, driven path, actors and lights."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from carla_bridge.recording.scene_track import Body, Lamp, Scene, SceneMoment
from carla_bridge.report.charts import MAX_POINTS, Marker
from wamdiff2_core.types import Pose2D

MARGIN_M, LEAST_SIZE_M = 18.0, 60.0
CLOSE_UP_M = 60.0
LEAST_ACTOR_PX = 5.0  # a walker is smaller than a pixel on the map of a long route
TRAIL_S = 3.0
MOVED_M = 1.0
PLAYED_STEP_S = 0.2


class TopView:
    """A rectangle of the map frame on a drawing, and what was drawn on it."""

    def __init__(self, width: int, height: int, middle_m: np.ndarray, scale: float) -> None:
        """Place it: `scale` in pixels a metre, `middle_m` (2,) in the middle of the drawing."""
        self.width, self.height, self._middle, self.scale = width, height, middle_m, scale
        self.parts: list[str] = []

    def pixels(self, xy_m: np.ndarray) -> np.ndarray:
        """(N, 2) pixels of (N, 2) map points."""
        offset = np.asarray(xy_m, dtype=np.float64).reshape(-1, 2) - self._middle
        return np.array([self.width / 2, self.height / 2]) + offset * [self.scale, -self.scale]

    def line(self, xy_m: np.ndarray, style: str, extra: str = "") -> None:
        """A polyline."""
        self.parts.append(f'<polyline class="{style}" points="{self._points(xy_m)}" {extra}/>')

    def lanes(self, lanes: Sequence[np.ndarray]) -> None:
        """Lane edges, cut to what the drawing shows."""
        reach = np.array([self.width, self.height]) / self.scale / 2 + 5.0
        for lane in lanes:
            inside = (np.abs(lane - self._middle) < reach).all(axis=1)
            if inside.any():
                first, last = int(inside.argmax()), len(inside) - int(inside[::-1].argmax())
                self.line(lane[max(0, first - 1) : last + 1], "lane")

    def box(self, body: Body, pose: Pose2D, style: str, title: str) -> None:
        """An actor, with a line at its front; a small one is drawn larger than it is."""
        corners = body.corners_m(pose)
        least_m = LEAST_ACTOR_PX / self.scale / (2 * max(body.half_m))
        corners = corners.mean(axis=0) + (corners - corners.mean(axis=0)) * max(1.0, least_m)
        front = (corners[0] + corners[3]) / 2
        self.parts.append(f'<polygon class="{style}" points="{self._points(corners)}"><title>{escape(title)}</title>'
                          f"</polygon>")
        if max(body.half_m) > 1.0:
            self.line(np.stack([front + 0.3 * (corners.mean(axis=0) - front), front]), "nose")

    def stop_lines(self, lamp: Lamp, state: str) -> None:
        """A light's stop lines in its colour."""
        for ends in lamp.ends_m():
            self.parts.append(
                f'<polyline class="light {escape(state)}" data-light="{lamp.id}" points="{self._points(ends)}">'
                f"<title>light {lamp.id}, {escape(state)}</title></polyline>"
            )

    def dot(self, xy_m: np.ndarray, style: str, radius: float, title: str) -> None:
        """A circle with a tool tip."""
        x, y = self.pixels(xy_m)[0]
        self.parts.append(f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">'
                          f"<title>{escape(title)}</title></circle>")

    def name(self, xy_m: np.ndarray, text: str) -> None:
        """A word beside a place."""
        x, y = self.pixels(xy_m)[0]
        self.parts.append(f'<text class="tick over" x="{x + 9:.1f}" y="{y - 7:.1f}">{escape(text)}</text>')

    def scale_bar(self) -> None:
        """A length to compare with, lower left."""
        bar = next(length for length in (100, 50, 20, 10) if length * self.scale < self.width / 3 or length == 10)
        end, y = 12 + bar * self.scale, self.height - 10
        self.parts.append(f'<line class="axis" x1="12" x2="{end:.1f}" y1="{y}" y2="{y}"/>'
                          f'<text class="tick over" x="12" y="{y - 5}">{bar} m</text>')

    def svg(self, label: str) -> str:
        """The drawing."""
        return (f'<svg class="map" viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(label)}">'
                f'{"".join(self.parts)}</svg>')

    def _points(self, xy_m: np.ndarray) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in self.pixels(xy_m).tolist())


def route_map(
    lanes: Sequence[np.ndarray], route_xy: np.ndarray, length_m: float, driven_xy: np.ndarray,
    markers: Sequence[Marker] = (), scene: Scene | None = None, *, width: int = 540, max_height: int = 460,
) -> tuple[str, dict[str, Any] | None]:
    """A map of a whole route, cut to it, with the paths of other actors.

    Actors are drawn where they were when last seen near the ego vehicle; lights show what they showed when it was
    nearest to them.

    Args:
        lanes: (N, 2) lines, map frame.
        route_xy: (N, 2) planned route, overrun included.
        length_m: arc length of the goal.
        driven_xy: (M, 2) driven path.
        markers: places to point out.
        scene: what was around.
        width, max_height: of the drawing, pixels.

    Returns:
        the drawing, and the scene as `replay` has it, None without one.
    """
    planned = planned_part(route_xy, length_m)
    shown = np.vstack([planned, driven_xy]) if len(driven_xy) else planned
    low, high = shown.min(axis=0) - MARGIN_M, shown.max(axis=0) + MARGIN_M
    size = np.maximum(high - low, LEAST_SIZE_M)
    scale = min(width / size[0], max_height / size[1])
    view = TopView(width, max(160, round(size[1] * scale)), (low + high) / 2, scale)
    view.lanes(lanes)
    view.line(planned, "planned", f'stroke-width="{3.0 * scale:.1f}"')
    with_scene = scene is not None and scene.ego is not None and bool(scene.moments)
    if scene is not None and with_scene:
        _actors_of_route(view, scene)
    if len(driven_xy) > 1:
        view.line(driven_xy[:: max(1, len(driven_xy) // MAX_POINTS)], "line s1")
        view.dot(driven_xy[-1], "end", 4, "end of the drive")
    for place, name in ((planned[0], "start"), (planned[-1], "goal")):
        view.dot(place, name, 6, name)
        view.name(place, name)
    for marker in markers:
        view.dot(np.array([marker.x, marker.y]), f"spot {marker.style}", 5, marker.title)
    view.scale_bar()
    return view.svg("map of the route"), replay(view, scene) if scene is not None and with_scene else None


def close_up(
    lanes: Sequence[np.ndarray], route_xy: np.ndarray, length_m: float, driven_xy: np.ndarray, scene: Scene,
    t_s: float, *, width: int = 330, height: int = 230,
) -> str:
    """The surroundings of the ego vehicle at a time: `CLOSE_UP_M` wide, with the last seconds' paths.

    Empty without a scene.
    """
    if scene.ego is None or not scene.moments:
        return ""
    times = [moment.t_s for moment in scene.moments]
    at = nearest_index(times, t_s)
    moment = scene.moments[at]
    view = TopView(width, height, np.array([moment.ego.x_m, moment.ego.y_m]), width / CLOSE_UP_M)
    view.lanes(lanes)
    view.line(planned_part(route_xy, length_m), "planned", f'stroke-width="{3.0 * view.scale:.1f}"')
    _lights(view, scene, {key: state for key, state in moment.lights.items() if key in scene.lamps})
    trail = scene.moments[nearest_index(times, t_s - TRAIL_S) : at + 1]
    for key, pose in moment.poses.items():
        past = np.array([[one.poses[key].x_m, one.poses[key].y_m] for one in trail if key in one.poses])
        if _reach_m(past) > MOVED_M:
            view.line(past, f"trail {_kind(scene.bodies[key])}")
        view.box(scene.bodies[key], pose, f"actor {_kind(scene.bodies[key])}", scene.bodies[key].type_id)
    past = np.array([[one.ego.x_m, one.ego.y_m] for one in trail])
    if _reach_m(past) > MOVED_M:
        view.line(past, "trail ego")
    view.box(scene.ego, moment.ego, "actor ego", "the ego vehicle")
    view.scale_bar()
    return view.svg(f"seen from above at {moment.t_s:.1f} s")


def replay(view: TopView, scene: Scene) -> dict[str, Any]:
    """The scene as `replay.js` shows it: every body's outline, and its poses at the moments, in pixels of a drawing.

    Moments are thinned to `PLAYED_STEP_S`; poses are [x, y, angle in degrees, clockwise], null while it is not there.
    A small body is drawn `grown` times as large while the whole route is in view; what follows the ego vehicle is
    `near_px` of the drawing wide.
    """
    if scene.ego is None:
        raise ValueError("replay: expected a scene with an ego vehicle, got none")
    moments, last = [], -np.inf
    for moment in scene.moments:
        if moment.t_s >= last + PLAYED_STEP_S - 1e-6:
            moments.append(moment)
            last = moment.t_s
    keys = [key for key, body in scene.bodies.items() if any(key in moment.poses for moment in moments)]
    tracks = [_track(view, scene.ego, "ego", [moment.ego for moment in moments])]
    tracks += [_track(view, scene.bodies[key], _kind(scene.bodies[key]), [one.poses.get(key) for one in moments])
               for key in keys]
    lights = {str(key): [moment.lights.get(key, "unknown") for moment in moments] for key in scene.lamps}
    return {
        "t_s": [round(moment.t_s, 2) for moment in moments], "tracks": tracks,
        "lights": {key: _runs(states) for key, states in lights.items()},
        "near_px": round(min(CLOSE_UP_M * view.scale, view.width), 1),
    }


def replay_text(data: dict[str, Any]) -> str:
    """As JSON that may stand in a script element: no character in it can end the element."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def planned_part(route_xy: np.ndarray, length_m: float) -> np.ndarray:
    """The planned route up to its goal."""
    arc = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(route_xy, axis=0).T))])
    return np.asarray(route_xy[arc <= length_m + 0.5])


def nearest_index(times: Sequence[float], t_s: float) -> int:
    """Index of the time nearest to `t_s` among rising times, at least one."""
    after = min(bisect_left(times, t_s), len(times) - 1)
    return after - 1 if after and t_s - times[after - 1] < times[after] - t_s else after


def _actors_of_route(view: TopView, scene: Scene) -> None:
    _lights(view, scene, _states_when_near(scene))
    paths: dict[int, list[tuple[float, float]]] = {}
    last: dict[int, Pose2D] = {}
    for moment in scene.moments:
        for key, pose in moment.poses.items():
            path = paths.setdefault(key, [])
            if not path or abs(path[-1][0] - pose.x_m) + abs(path[-1][1] - pose.y_m) > MOVED_M / 2:
                path.append((pose.x_m, pose.y_m))
        last |= moment.poses
    for key in last:
        body, path_m = scene.bodies[key], np.array(paths[key])
        if _reach_m(path_m) > MOVED_M:
            view.line(path_m, f"trail {_kind(body)}")
    for key, pose in last.items():
        body = scene.bodies[key]
        view.box(body, pose, f"actor still {_kind(body)}", f"{body.type_id}, when last seen")


def _lights(view: TopView, scene: Scene, states: dict[int, str]) -> None:
    for key, state in states.items():
        view.stop_lines(scene.lamps[key], state)


def _states_when_near(scene: Scene) -> dict[int, str]:
    """What each light showed when the ego vehicle was nearest to one of its stop lines."""
    ego = np.array([[moment.ego.x_m, moment.ego.y_m] for moment in scene.moments])
    states = {}
    for key, lamp in scene.lamps.items():
        if lamp.stop_lines:
            lines = np.array(lamp.stop_lines)[:, :2]
            distance = np.linalg.norm(ego[:, None] - lines[None], axis=-1).min(axis=1)
            states[key] = _state(scene.moments, int(distance.argmin()), key)
    return states


def _state(moments: Sequence[SceneMoment], index: int, key: int) -> str:
    return moments[index].lights.get(key, "unknown")


def _track(view: TopView, body: Body, kind: str, poses: Sequence[Pose2D | None]) -> dict[str, Any]:
    outline = (body.outline_m * [view.scale, -view.scale]).round(2).tolist()
    least = max(1.0, LEAST_ACTOR_PX / (2 * max(body.half_m) * view.scale))
    pixels = []
    for pose in poses:
        if pose is None:
            pixels.append(None)
            continue
        x, y = view.pixels(np.array([pose.x_m, pose.y_m]))[0]
        pixels.append([round(float(x), 1), round(float(y), 1), round(float(-np.rad2deg(pose.yaw_rad)), 1)])
    return {"kind": kind, "name": body.type_id, "outline": outline, "grown": round(least, 2), "poses": _runs(pixels)}


def _runs(values: Sequence[Any]) -> list[list[Any]]:
    """[first index, value] wherever the value changes."""
    return [[index, value] for index, value in enumerate(values) if index == 0 or value != values[index - 1]]


def _reach_m(path_m: np.ndarray) -> float:
    return float(np.ptp(path_m, axis=0).max()) if len(path_m) > 1 else 0.0


def _kind(body: Body) -> str:
    """Class of the style sheet."""
    return "walker" if body.type_id.startswith("walker.") else "car" if body.type_id.startswith("vehicle.") else "prop"
