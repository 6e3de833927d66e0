"""Films of drives, made from the recorded pictures: `drive.mp4` of a short run, `film.mp4` beside each route of others.

Large: the display camera with the plan on it. Right: the surroundings from above, and what the planner's camera saw.
Below: figures, and the speed over the route. Pictures come at the pace of planning, so the film plays faster than time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import simplejpeg
from PIL import Image, ImageDraw, ImageFont

from carla_bridge.recording.results import (
    PLANS_NAME,
    DriveResults,
    PlanRecord,
    RouteResult,
    read_plans,
    read_shape,
    read_ticks,
)
from carla_bridge.recording.scene_track import SceneMoment, read_scene
from carla_bridge.report.lanes import load_lanes
from carla_bridge.report.overlay import draw_plan
from carla_bridge.report.page import ROUTES_ON_FIRST_PAGE, VIDEO_NAME
from carla_bridge.report.route_view import FILM_NAME
from carla_bridge.report.run import load_run
from carla_bridge.report.top_view import nearest_index, planned_part
from wamdiff2_core.errors import UserError, did_you_mean
from wamdiff2_core.frames import transform_points
from wamdiff2_core.outputs import disk_errors_named
from wamdiff2_core.types import Pose2D

SIZE_PX = (960, 480)
VIEW_PX = (640, 320)
SIDE_PX = 320
FRAMES_PER_S = 12
HOLD_FRAMES = 18
INK, SOFT, PAGE, CARD, EDGE = (230, 235, 240), (151, 165, 179), (17, 22, 28), (26, 33, 41), (43, 53, 63)
TEAL, ROAD, LANE = (45, 212, 191), (29, 69, 65), (69, 82, 95)
AMBER, RED, GREEN, BLUE = (251, 191, 36), (248, 113, 113), (74, 222, 128), (143, 168, 234)
LIGHTS = {"red": RED, "yellow": AMBER, "green": GREEN}
NEAR_M = 80.0
SCALE = SIDE_PX / NEAR_M  # pixels a metre
LEAST_OTHER_PX = 5.0  # a walker seen from above is smaller


def write_films(folder: Path) -> list[Path]:
    """Write the films of a run folder that are not there yet or older than their route, and return their paths."""
    run = load_run(folder)
    if run.results is None:  # result files of another evaluator come without pictures
        return []
    recorded = tuple(entry.result for entry in run.recorded() if entry.result is not None)
    if len(recorded) <= ROUTES_ON_FIRST_PAGE:
        films = {folder / VIDEO_NAME: recorded}
    else:
        films = {folder / route.folder / FILM_NAME: (route,) for route in recorded}
    written = []
    for path, routes in films.items():
        newest = max(((folder / route.folder / PLANS_NAME).stat().st_mtime for route in routes), default=0.0)
        if path.is_file() and path.stat().st_mtime > newest:
            continue
        with disk_errors_named(path):
            if write_video(folder, run.results, routes, path):
                written.append(path)
    return written


def write_video(folder: Path, results: DriveResults, routes: Sequence[RouteResult], path: Path) -> bool:
    """Write a film of routes of a run as H.264; False when they have no pictures.

    Args:
        folder: run folder.
        results: of the run.
        routes: those to show, one after the other.
        path: file to write; it appears when it is whole.
    """
    frames = (frame for route in routes for frame in _RouteFilm(folder, results, route).frames())
    first = next(frames, None)
    if first is None:
        return False
    partial = path.with_suffix(".part.mp4")
    with av.open(str(partial), "w", options={"movflags": "faststart"}) as container:
        options = {"crf": "23", "preset": "veryfast"}
        stream = container.add_stream("libx264", rate=Fraction(FRAMES_PER_S), options=options)
        stream.width, stream.height, stream.pix_fmt = *SIZE_PX, "yuv420p"
        for rgb in (first, *frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(rgb, format="rgb24")))
        container.mux(stream.encode())
    partial.replace(path)
    return True


def film_picture(folder: Path, route_id: str, t_s: float) -> np.ndarray:
    """(480, 960, 3) uint8: the frame of a route's film at a simulated time, or the next one after it.

    Raises:
        UserError: no such route in the run, or no picture of it from that time on.
    """
    run = load_run(folder)
    routes = {route.route_id: route for route in run.results.routes} if run.results is not None else {}
    if run.results is None or route_id not in routes:
        raise UserError("--route", "a route of the run", route_id, did_you_mean(route_id, routes))
    frame = next(_RouteFilm(folder, run.results, routes[route_id]).frames(t_s), None)
    if frame is None:
        raise UserError("--at", "a time with a picture at or after it", t_s, "the run must be without --no-video")
    return frame


class _RouteFilm:
    """The frames of one route."""

    def __init__(self, folder: Path, results: DriveResults, route: RouteResult) -> None:
        self._results, self._route, self._folder = results, route, folder / route.folder
        self._plans = read_plans(self._folder)
        ticks = read_ticks(self._folder)
        self._t_s = np.array([tick.t_ns for tick in ticks]) * 1e-9
        self._speed_mps = np.array([tick.speed_mps for tick in ticks])
        self._top_mps = max(10.0, float(self._speed_mps.max(initial=0.0)) * 1.1)
        self._progress_m = np.array([tick.progress_m for tick in ticks])
        self._driven = np.array([[tick.x_m, tick.y_m] for tick in ticks]).reshape(-1, 2)
        self._map = _MapPane(load_lanes(folder, route.town), np.array(read_shape(self._folder).xy_m), route.length_m)
        self._scene = read_scene(self._folder)
        self._scene_t_s = [moment.t_s for moment in self._scene.moments]
        self._small, self._middle, self._large = (ImageFont.load_default(size) for size in (13, 17, 34))

    def frames(self, from_s: float = 0.0) -> Iterator[np.ndarray]:
        """(480, 960, 3) uint8 frames from a simulated time on, the last one held with the verdict on it."""
        frame = None
        for plan in self._plans:
            file = self._folder / "frames" / plan.image
            if plan.image and plan.t_ns * 1e-9 >= from_s - 1e-6 and file.is_file():
                frame = self._compose(simplejpeg.decode_jpeg(file.read_bytes(), "RGB"), plan)
                yield frame
        if frame is not None:
            yield from [self._with_verdict(frame)] * HOLD_FRAMES

    def _compose(self, view: np.ndarray, plan: PlanRecord) -> np.ndarray:
        canvas = np.full((SIZE_PX[1], SIZE_PX[0], 3), PAGE, np.uint8)
        camera = self._results.display_camera
        drawn = draw_plan(view, camera, np.array(plan.waypoints_m), np.array(plan.targets_m), plan.ok)
        canvas[: VIEW_PX[1], : VIEW_PX[0]] = cv2.resize(drawn, VIEW_PX, interpolation=cv2.INTER_AREA)
        until = int(np.searchsorted(self._t_s, plan.t_ns * 1e-9, side="right"))
        canvas[:SIDE_PX, VIEW_PX[0] :] = self._map.draw(self._driven[:until], plan, self._others(plan.t_ns * 1e-9))
        if self._results.planner_camera is not None:
            seen = simplejpeg.decode_jpeg((self._folder / "model" / plan.image).read_bytes(), "RGB")
            pane = SIZE_PX[1] - SIDE_PX
            canvas[SIDE_PX:, VIEW_PX[0] :] = cv2.resize(seen, (SIDE_PX, pane), interpolation=cv2.INTER_NEAREST)
        self._draw_speed(canvas, until)
        return self._write(canvas, plan, until)

    def _others(self, t_s: float) -> list[tuple[np.ndarray, tuple[int, int, int]]]:
        """Outline and colour of the actors around, and of the stop lines of lights."""
        if not self._scene_t_s:
            return []
        moment: SceneMoment = self._scene.moments[nearest_index(self._scene_t_s, t_s)]
        shapes = [
            (self._scene.bodies[key].corners_m(pose),
             AMBER if self._scene.bodies[key].type_id.startswith("walker.") else BLUE)
            for key, pose in moment.poses.items()
        ]
        for key, state in moment.lights.items():
            shapes += [(ends, LIGHTS.get(state, LANE)) for ends in self._scene.lamps[key].ends_m()]
        return shapes

    def _draw_speed(self, canvas: np.ndarray, until: int) -> None:
        """The speed so far, over the whole route's time."""
        left, top, right, bottom = 232, 378, 626, 466
        cv2.rectangle(canvas, (left - 6, top - 6), (right + 6, bottom + 6), CARD, -1)
        if until < 2:
            return
        x = left + self._t_s[:until] / max(1e-6, float(self._t_s[-1])) * (right - left)
        y = bottom - np.clip(self._speed_mps[:until], 0, None) / self._top_mps * (bottom - top)
        line = np.int32(np.stack([x, y], axis=1) * 16)
        cv2.polylines(canvas, [line], False, TEAL, 2, cv2.LINE_AA, shift=4)
        cv2.circle(canvas, tuple(int(v) for v in line[-1]), 4 * 16, INK, -1, cv2.LINE_AA, shift=4)

    def _write(self, canvas: np.ndarray, plan: PlanRecord, until: int) -> np.ndarray:
        image = Image.fromarray(canvas)
        draw = ImageDraw.Draw(image)
        route, results = self._route, self._results
        progress = float(self._progress_m[max(0, until - 1)]) if len(self._progress_m) else 0.0
        draw.text((18, 332), f"{plan.speed_mps:.1f}", INK, self._large)
        draw.text((24 + draw.textlength(f"{plan.speed_mps:.1f}", self._large), 348), "m/s", SOFT, self._middle)
        draw.text((18, 378), plan.command.replace("_", " ").lower(), AMBER, self._middle)
        state = f"plan in {plan.wall_ms:.0f} ms" if plan.received else plan.message
        if plan.received and not plan.ok:
            state = _shortened(f"not driven: {plan.message}", 30)
        draw.text((18, 404), state, SOFT if plan.ok else RED, self._small)
        if plan.forwards:
            draw.text((18, 422), f"{plan.forwards} forwards, {plan.tokens} tokens", SOFT, self._small)
        draw.text((18, 452), f"{results.planner}, {results.latency_mode}", SOFT, self._small)
        name = " ".join(filter(None, (f"route {route.route_id}", route.scenario)))
        draw.text((226, 332), _shortened(name, 44), INK, self._middle)
        share = min(1.0, progress / route.length_m)
        done = f"{plan.t_ns * 1e-9:.1f} s   {100 * share:.0f} % of {route.length_m:.0f} m"
        draw.text((226, 352), done, SOFT, self._small)
        draw.text((556, 352), "speed, m/s", SOFT, self._small)
        draw.text((606, 374), f"{self._top_mps:.0f}", SOFT, self._small)
        draw.rectangle((0, VIEW_PX[1], VIEW_PX[0], VIEW_PX[1] + 3), EDGE)
        draw.rectangle((0, VIEW_PX[1], VIEW_PX[0] * share, VIEW_PX[1] + 3), TEAL)
        seen = "what the planner sees" if results.planner_camera is not None else "no camera: it knows the route"
        _label(draw, (VIEW_PX[0] + 8, SIDE_PX + 6), seen, self._small)
        return np.asarray(image)

    def _with_verdict(self, frame: np.ndarray) -> np.ndarray:
        image = Image.fromarray(frame)
        draw = ImageDraw.Draw(image)
        colour = GREEN if self._route.completed else RED
        draw.rectangle((0, 122, VIEW_PX[0], 198), PAGE)
        draw.rectangle((0, 122, 6, 198), colour)
        draw.text((24, 130), f"Route {self._route.route_id}: {self._route.outcome.value}", colour, self._large)
        draw.text((24, 172), _shortened(self._route.reason, 84), INK, self._small)
        return np.asarray(image)


class _MapPane:
    """The surroundings of the car from above, north up: lanes, the route, the path so far, the plan, and others."""

    def __init__(self, lanes: Sequence[np.ndarray], route_xy: np.ndarray, length_m: float) -> None:
        self._planned = planned_part(route_xy, length_m)
        self._lanes = lanes
        self._boxes = np.array([(*lane.min(axis=0), *lane.max(axis=0)) for lane in lanes]).reshape(-1, 4)
        self._middle = np.zeros(2)

    def draw(
        self, driven: np.ndarray, plan: PlanRecord, others: Sequence[tuple[np.ndarray, tuple[int, int, int]]] = ()
    ) -> np.ndarray:
        """(320, 320, 3) uint8, `NEAR_M` wide around the car; others are outlines with their colours."""
        pose = Pose2D(*plan.pose)
        self._middle = np.array([pose.x_m, pose.y_m])
        pane = np.full((SIDE_PX, SIDE_PX, 3), CARD, np.uint8)
        low, high = self._middle - NEAR_M / 2, self._middle + NEAR_M / 2
        near = (self._boxes[:, :2] < high).all(axis=1) & (self._boxes[:, 2:] > low).all(axis=1)
        self._line(pane, self._planned, ROAD, round(3.0 * SCALE))
        for index in np.flatnonzero(near):
            self._line(pane, self._lanes[index], LANE, 1)
        for place, thickness in ((self._planned[0], 2), (self._planned[-1], -1)):
            centre = tuple(int(v) for v in self._pixels(place[None])[0])
            cv2.circle(pane, centre, 6 * 16, TEAL, thickness, cv2.LINE_AA, shift=4)
        self._line(pane, driven, TEAL, 2)
        for outline, colour in others:
            if len(outline) == 2:
                self._line(pane, outline, colour, 3)
                continue
            middle = outline.mean(axis=0)
            least = LEAST_OTHER_PX / SCALE / max(1e-6, float(np.ptp(outline, axis=0).max()))
            grown = middle + (outline - middle) * max(1.0, least)
            cv2.fillPoly(pane, [self._pixels(grown)], colour, cv2.LINE_AA, shift=4)
        if plan.waypoints_m:
            self._line(pane, transform_points(pose, np.array(plan.waypoints_m)), AMBER, 2)
        arrow = transform_points(pose, np.array([[2.6, 0.0], [-2.0, 1.4], [-2.0, -1.4]]))
        cv2.fillPoly(pane, [self._pixels(arrow)], INK, cv2.LINE_AA, shift=4)
        return pane

    def _line(self, pane: np.ndarray, xy_m: np.ndarray, colour: tuple[int, int, int], width_px: int) -> None:
        if len(xy_m) > 1:
            cv2.polylines(pane, [self._pixels(xy_m)], False, colour, width_px, cv2.LINE_AA, shift=4)

    def _pixels(self, xy_m: np.ndarray) -> np.ndarray:
        """Fixed-point pixels, 4 fractional bits."""
        pixels = SIDE_PX / 2 + (np.asarray(xy_m) - self._middle) * [SCALE, -SCALE]
        return np.int32(np.clip(pixels, -4000, 4000) * 16)


def _label(draw: ImageDraw.ImageDraw, at: tuple[int, int], text: str, font: ImageFont.FreeTypeFont) -> None:
    box = draw.textbbox(at, text, font)
    draw.rectangle((box[0] - 4, box[1] - 3, box[2] + 4, box[3] + 3), PAGE)
    draw.text(at, text, INK, font)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
