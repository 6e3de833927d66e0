"""One driven route as the pages show it: all that the templates `route.html` and `moment.html` need."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from carla_bridge.leaderboard.infractions import SHORT_NAMES
from carla_bridge.recording.results import (
    PlanRecord,
    RouteResult,
    Tick,
    latencies_ms,
    read_plans,
    read_shape,
    read_ticks,
)
from carla_bridge.recording.scene_track import read_scene
from carla_bridge.report.charts import Marker, Series, histogram, line_chart
from carla_bridge.report.moments import Moment, moments_of
from carla_bridge.report.pictures import PictureBook
from carla_bridge.report.run import Entry, Run
from carla_bridge.report.top_view import close_up, replay_text, route_map

FILM_NAME = "film.mp4"
REASONS_SHOWN = 4
MOMENTS_PER_ROUTE = 4
# Classes of the style sheet: what costs little or nothing stands back.
INFRACTION_STYLE = defaultdict(lambda: "bad", outside_route_lanes="warn", min_speed_infractions="warn")


@dataclass(frozen=True)
class ShownMoment:
    """A moment as `moment.html` shows it: `cost` in words, file of its picture, and its drawing."""

    moment: Moment
    cost: str
    picture: str
    close_up: str
    title: str = ""
    link: str = ""

    @property
    def t_s(self) -> float:
        """Simulated time since the route began."""
        return self.moment.t_s

    @property
    def reason(self) -> str:
        """In words."""
        return self.moment.reason

    def linked(self, title: str, link: str) -> ShownMoment:
        """With a link to its route."""
        return replace(self, title=title, link=link)


def route_view(
    run: Run, entry: Entry, number: int, lanes: Sequence[np.ndarray], report_folder: Path, pictures: int
) -> dict[str, Any]:
    """Everything about a driven route; its pictures are written.

    Args:
        run: the run, one of our own.
        entry: the drive, with a result.
        number: of the drive in the run; names its pictures.
        lanes: lane edges of its town.
        report_folder: where pictures go.
        pictures: how many to spread over the drive, beside those of its moments.
    """
    route = entry.result
    if route is None or run.results is None:
        raise ValueError(f"route {entry.route_id}: expected a drive of ours with a result")
    folder = run.folder / route.folder
    ticks, plans, shape, scene = read_ticks(folder), read_plans(folder), read_shape(folder), read_scene(folder)
    route_xy = np.array(shape.xy_m)
    driven = np.array([[tick.x_m, tick.y_m] for tick in ticks]).reshape(-1, 2)
    places = [
        Marker(item.x_m, item.y_m, f"{kind_text(item.kind)} at {item.t_s:.1f} s: {item.detail}",
               INFRACTION_STYLE[item.kind])
        for item in route.infractions
    ]
    drawn, replayed = route_map(lanes, route_xy, shape.length_m, driven, places, scene)
    received = [plan for plan in plans if plan.received]
    book = PictureBook(folder, report_folder, f"{number:03d}", run.results.display_camera, plans)
    moments = [
        ShownMoment(moment, cost_text(moment), book.at(moment.t_s),
                    close_up(lanes, route_xy, shape.length_m, driven, scene, moment.t_s))
        for moment in moments_of(entry, scene)[:MOMENTS_PER_ROUTE]
    ]
    return {
        "entry": entry, "result": route, "repeats": run.repeats, "anchor": f"route-{number}",
        "state": state_class(entry), "map": drawn,
        "replay": replay_text(replayed) if replayed is not None else "",
        "charts": _charts(route, ticks, received), "pictures": book.spread(pictures), "moments": moments,
        "decode": _decode(received), "not_driven": _not_driven(received),
        "film": film_of(run, entry),
        "dt_s": next((plan.dt_s for plan in received if plan.dt_s), None),
        "wall_ms": latencies_ms(received),
    }


def film_of(run: Run, entry: Entry) -> str:
    """The film of a drive alone, relative to the run folder; empty without one."""
    film = f"{entry.result.folder}/{FILM_NAME}" if entry.result is not None else ""
    return film if film and (run.folder / film).is_file() else ""


def state_class(entry: Entry) -> str:
    """Class of the style sheet: success, goal reached with infractions, failed, or nothing known."""
    if entry.missing is not None:
        return "none"
    reached = entry.result.completed if entry.result is not None else bool(entry.record and entry.record.reached)
    return "ok" if entry.success or (reached and entry.success is None) else "part" if reached else ""


def cost_text(moment: Moment) -> str:
    """What a moment cost, in words."""
    if moment.kind == "near miss":
        return "near miss"
    what = "not finished" if moment.kind == "end" else kind_text(moment.kind)
    return f"{what}, -{100 * moment.cost:.0f} %" if moment.cost else what


def kind_text(kind: str) -> str:
    """A kind of infraction in a word or two."""
    return SHORT_NAMES.get(kind, kind.replace("_", " "))


def ms_text(value: float) -> str:
    """Milliseconds in words, with a decimal where a whole number would say little."""
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def _charts(route: RouteResult, ticks: list[Tick], received: list[PlanRecord]) -> list[str]:
    if not ticks:
        return []
    t = [tick.t_ns * 1e-9 for tick in ticks]
    moments = [
        Marker(item.t_s, 0.0, f"{kind_text(item.kind)}: {item.detail}", INFRACTION_STYLE[item.kind])
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
            "Plans by latency, frame sent to plan received", "wall time, ms", latencies_ms(received),
            [(f"{name} {ms_text(figures[name])}", figures[name]) for name in ("p50", "p95") if name in figures],
        ))
    return charts


def _planned_speed(plan: PlanRecord) -> float:
    """Speed of a plan's first second, or of its first step when that is longer."""
    points = np.array(plan.waypoints_m)[: max(1, round(1.0 / plan.dt_s))]
    steps = np.diff(points, axis=0, prepend=0.0)
    return float(np.sqrt((steps**2).sum(axis=1)).sum() / (len(steps) * plan.dt_s))


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
