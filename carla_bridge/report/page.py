"""`index.html`: the whole drive on one page that needs no other file, but for the film beside it."""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import simplejpeg

from carla_bridge.report.charts import Marker, Series, histogram, line_chart, route_map
from carla_bridge.report.lanes import load_lanes
from carla_bridge.report.overlay import draw_plan
from carla_bridge.results import DriveResults, PlanRecord, RouteResult, Tick, read_plans, read_shape, read_ticks
from carla_bridge.route_run import latency_figures

PAGE_NAME, VIDEO_NAME = "index.html", "drive.mp4"
PICTURES_PER_ROUTE = 6
REASONS_SHOWN = 4
# Classes of the style sheet: what costs little or nothing stands back.
INFRACTION_STYLE = defaultdict(lambda: "bad", outside_route_lanes="warn", min_speed_infractions="warn")


@dataclass(frozen=True)
class Picture:
    """A camera picture with its plan, for the page."""

    data_url: str
    caption: str
    text: str


def write_page(folder: Path) -> Path:
    """Write the page of a run folder and return its path."""
    results = DriveResults.load(folder)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    html = environment.get_template("page.html").render(
        results=results, tiles=_tiles(folder, results), setup=_setup(results),
        routes=[_route(folder, results, route) for route in results.routes],
        video=VIDEO_NAME if (folder / VIDEO_NAME).is_file() else "",
    )
    path = folder / PAGE_NAME
    path.write_text(html)
    return path


def _tiles(folder: Path, results: DriveResults) -> list[tuple[str, str, str]]:
    """(figure, what it is, remark) of the head of the page."""
    routes = results.routes
    wall_ms = [plan.wall_ms for route in routes for plan in read_plans(folder / route.folder) if plan.received]
    latency = latency_figures(wall_ms)
    plans, sim_s = sum(route.plans for route in routes), sum(route.duration_s for route in routes)
    decode_ms = _mean(routes, "decode_ms")
    tiles = [
        (f"{results.completed} / {results.routes_wanted}", "routes completed",
         f"{_mean_completion(routes):.1f} % on average"),
        (f"{sum(route.driven_m for route in routes):.0f} m", "driven", f"in {sim_s:.0f} s of simulated time"),
        (f"{sum(len(route.infractions) for route in routes)}", "infractions",
         f"{sum(route.off_lane_s for route in routes):.1f} s off the lane"),
        (f"{plans}", "plans", ", ".join(
            f"{sum(getattr(route, f'plans_{kind}') for route in routes)} {kind}"
            for kind in ("unreadable", "refused", "missing")
        )),
    ]
    if latency:
        tiles.append((f"{latency['p50']:.0f} ms", "frame to plan, median", f"95 % below {latency['p95']:.0f} ms"))
    if decode_ms is not None:
        tiles.append((f"{_mean(routes, 'forwards'):.1f}", "model forwards a plan", f"{decode_ms:.0f} ms decoding"))
    return tiles


def _mean_completion(routes: tuple[RouteResult, ...]) -> float:
    return float(np.mean([route.completion_pct for route in routes])) if routes else 0.0


def _mean(routes: tuple[RouteResult, ...], name: str) -> float | None:
    values = [route.decode[name] for route in routes if name in route.decode]
    return float(np.mean(values)) if values else None


def _setup(results: DriveResults) -> list[tuple[str, str]]:
    modes = {
        "lockstep": f"lockstep: the world waits for each plan, up to {results.plan_wait_s:g} s of wall time",
        "measured": "measured: a plan acts after the wall time it took",
        "fixed": f"fixed: a plan acts {results.latency_ms:g} ms after its frame",
    }
    camera = results.planner_camera
    rows = [
        ("planner", f"{results.planner}, {results.link}"), ("plans signed by", results.source or "nobody"),
        ("latency mode", modes.get(results.latency_mode, results.latency_mode)),
        ("camera", "none" if camera is None else
         f"{camera.name}, {camera.width_px} x {camera.height_px} px, {camera.hfov_deg:g}° wide, "
         f"{camera.z_m:g} m above ground"),
        ("town", ", ".join(sorted({route.town for route in results.routes})) or "none"),
        ("routes", results.routes_file), ("server", results.server), ("seed", str(results.seed)),
        ("date", results.started.replace("T", " ").replace("+00:00", " UTC")), ("machine", results.machine),
        ("commit", results.commit or "unknown"),
    ]
    return rows


def _route(folder: Path, results: DriveResults, route: RouteResult) -> dict[str, Any]:
    """All that the template needs of one route."""
    route_folder = folder / route.folder
    ticks, plans, shape = read_ticks(route_folder), read_plans(route_folder), read_shape(route_folder)
    driven = np.array([[tick.x_m, tick.y_m] for tick in ticks]).reshape(-1, 2)
    places = [
        Marker(item.x_m, item.y_m, f"{item.kind} at {item.t_s:.1f} s: {item.detail}", INFRACTION_STYLE[item.kind])
        for item in route.infractions
    ]
    drawn = route_map(load_lanes(folder, route.town), np.array(shape.xy_m), shape.length_m, driven, places)
    received = [plan for plan in plans if plan.received]
    return {
        "result": route, "map": drawn, "charts": _charts(route, ticks, received),
        "pictures": _pictures(results, route_folder, plans), "decode": _decode(received),
        "not_driven": _not_driven(received),
        "dt_s": next((plan.dt_s for plan in received if plan.dt_s), None),
    }


def _charts(route: RouteResult, ticks: list[Tick], received: list[PlanRecord]) -> list[str]:
    if not ticks:
        return []
    t = [tick.t_ns * 1e-9 for tick in ticks]
    moments = [
        Marker(item.t_s, 0.0, f"{item.kind}: {item.detail}", INFRACTION_STYLE[item.kind])
        for item in route.infractions
    ]
    planned = [(plan.t_ns * 1e-9, _planned_speed(plan)) for plan in received if plan.waypoints_m]
    speed = [Series("driven", t, [tick.speed_mps for tick in ticks], "s1")]
    if planned:
        speed.insert(0, Series("planned", [a for a, _ in planned], [b for _, b in planned], "s2"))
    steer = [float(np.rad2deg(tick.steer_rad)) for tick in ticks]
    charts = [
        line_chart("Speed, m/s", "simulated time, s", speed, moments),
        line_chart("Front-wheel angle asked for, degrees, left positive", "simulated time, s",
                   [Series("steer", t, steer)], moments),
        line_chart("Distance from the route's line, m", "simulated time, s",
                   [Series("distance", t, [tick.deviation_m for tick in ticks])], moments),
    ]
    if received:
        figures = route.latency_ms
        charts.append(histogram(
            "Plans by latency, frame sent to plan received", "wall time, ms", [plan.wall_ms for plan in received],
            [(f"{name} {figures[name]:.0f}", figures[name]) for name in ("p50", "p95") if name in figures],
        ))
    return charts


def _planned_speed(plan: PlanRecord) -> float:
    """Speed of a plan's first second, or of its first step when that is longer."""
    steps = np.diff(np.vstack([[0.0, 0.0], plan.waypoints_m]), axis=0)[: max(1, round(1.0 / plan.dt_s))]
    return float(np.hypot(*steps.T).sum() / (len(steps) * plan.dt_s))


def _pictures(results: DriveResults, route_folder: Path, plans: list[PlanRecord]) -> list[Picture]:
    """Pictures spread over the drive; those in the middle of a turn first, as they show most."""
    with_image = [plan for plan in plans if plan.image and (route_folder / "frames" / plan.image).is_file()]
    if not with_image:
        return []
    chosen = {round(i) for i in np.linspace(0, len(with_image) - 1, PICTURES_PER_ROUTE)}
    pictures = []
    for index in sorted(chosen):
        plan = _most_turning(with_image, index, spread=max(1, len(with_image) // (2 * PICTURES_PER_ROUTE)))
        rgb = simplejpeg.decode_jpeg((route_folder / "frames" / plan.image).read_bytes(), "RGB")
        drawn = draw_plan(rgb, results.display_camera, np.array(plan.waypoints_m), np.array(plan.targets_m), plan.ok)
        jpeg = simplejpeg.encode_jpeg(drawn, quality=80, colorspace="RGB")
        caption = f"{plan.t_ns * 1e-9:.2f} s · {plan.speed_mps:.1f} m/s · {plan.command.lower().replace('_', ' ')}"
        if not plan.ok:
            caption += f" · {plan.message or 'no plan'}"
        pictures.append(Picture("data:image/jpeg;base64," + base64.b64encode(jpeg).decode(), caption, plan.text))
    return pictures


def _most_turning(plans: list[PlanRecord], index: int, spread: int) -> PlanRecord:
    """Of the plans around `index`, the one that turns most; the plan itself at the drive's ends."""
    if index in (0, len(plans) - 1):
        return plans[index]
    near = plans[max(0, index - spread) : index + spread + 1]
    return max(near, key=lambda plan: abs(plan.waypoints_m[-1][1]) if plan.ok else 0.0)


def _not_driven(received: list[PlanRecord]) -> list[tuple[str, int, str]]:
    """(reason, how often, answer) of plans that were not driven: the first of each kind, whatever the figures in it."""
    groups: dict[str, list[PlanRecord]] = {}
    for plan in received:
        if not plan.ok:
            groups.setdefault(re.sub(r"'.*|[-\d.]+", "…", plan.message), []).append(plan)
    largest = sorted(groups.items(), key=lambda item: -len(item[1]))[:REASONS_SHOWN]
    return [(plans[0].message, len(plans), plans[0].text) for _, plans in largest]


def _decode(received: list[PlanRecord]) -> list[tuple[str, str, str, str]]:
    """(quantity, median, 95 %, most) over the plans that a model has made."""
    decoded = [plan for plan in received if plan.forwards]
    if not decoded:
        return []
    rows = []
    for name, label in (
        ("prefill_ms", "prefill, ms"), ("decode_ms", "decoding, ms"), ("forwards", "forwards"),
        ("steps", "denoising steps"), ("blocks", "blocks"), ("tokens", "tokens"),
    ):
        values = np.array([getattr(plan, name) for plan in decoded], dtype=np.float64)
        median, high = np.percentile(values, [50, 95])
        rows.append((label, f"{median:.4g}", f"{high:.4g}", f"{values.max():.4g}"))
    return rows
