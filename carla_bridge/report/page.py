"""The pages of a run: `index.html` with figures, table and worst moments, and the routes.

A run of few routes has them all on the first page; one of many has a page a route in `report/`. Pages need no network;
pictures lie beside them in `report/pictures/`, and films beside the routes.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from carla_bridge.leaderboard.infractions import count_kinds
from carla_bridge.recording.results import DriveResults, RouteResult, latency_figures
from carla_bridge.report.lanes import load_all_lanes
from carla_bridge.report.moments import worst
from carla_bridge.report.radar import radar
from carla_bridge.report.route_view import (
    INFRACTION_STYLE,
    ShownMoment,
    film_of,
    kind_text,
    ms_text,
    route_view,
    state_class,
)
from carla_bridge.report.run import Entry, Figures, Run, load_run
from wamdiff2_core.journal import replace_file

PAGE_NAME, VIDEO_NAME, REPORT_NAME = "index.html", "drive.mp4", "report"
ROUTES_ON_FIRST_PAGE = 6
MOMENTS_SHOWN = 12
PICTURES = (6, 3)  # of a route, in a run of few and of many: drawing them is most of the time that a report takes
WORLD_REMARKS = {
    "embedded world": "The world is the embedded CARLA-protocol server; these are not Bench2Drive scores.",
    "routes only": "Routes only: Bench2Drive's own evaluator was not used, so these are not Bench2Drive scores.",
}
OTHER_REMARK = "Result files of Bench2Drive's evaluator; a Bench2Drive score is only one over all routes of its set."


def templates() -> jinja2.Environment:
    """The templates of this folder; everything that is filled in is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"ms": ms_text, "kind": kind_text}
    return environment


def write_page(folder: Path) -> Path:
    """Write the pages of a run folder, and return the path of the first one.

    Raises:
        UserError: the folder holds no run.
    """
    run, environment = load_run(folder), templates()
    report_folder = folder / REPORT_NAME
    shutil.rmtree(report_folder, ignore_errors=True)
    lanes = load_all_lanes(folder)
    recorded = run.recorded()
    together = len(recorded) <= ROUTES_ON_FIRST_PAGE
    numbers = [number for number, entry in enumerate(run.entries) if entry in recorded]
    pictures = PICTURES[0] if together else PICTURES[1]
    sections, rows, moments, wall_ms = [], [], [], []
    for number, entry in enumerate(run.entries):
        link = ""
        if entry in recorded:
            view = route_view(run, entry, number, lanes.get(entry.town, ()), report_folder, pictures)
            wall_ms += view["wall_ms"]
            link = f"#{view['anchor']}" if together else f"{REPORT_NAME}/{number:03d}.html"
            moments += [shown.linked(f"route {entry.route_id}", link) for shown in view["moments"]]
            if together:
                sections.append(view)
            else:
                report_folder.mkdir(exist_ok=True)
                (folder / link).write_text(environment.get_template("route_page.html").render(
                    title=f"Route {entry.route_id}", run=run, route=view, report_url="", run_url="../",
                    up=f"../{PAGE_NAME}", neighbours=_neighbours(run, numbers, number),
                ))
        rows.append(_row(run, entry, link))
    html = environment.get_template("page.html").render(
        title=f"{run.name}: {_headline(run)}", run=run, results=run.results, headline=_headline(run), pill=_pill(run),
        tiles=_tiles(run, wall_ms), setup=_setup(run), remark=WORLD_REMARKS.get(run.label, OTHER_REMARK),
        radar=radar([(run.name, run.figures.abilities)]) if run.figures else "",
        problems=[*run.problems, *(run.figures.problems if run.figures else ())], rows=rows,
        choices=_choices(rows), hidden=_hidden(rows), moments=_worst(moments), routes=sections,
        report_url=f"{REPORT_NAME}/", run_url="", up="", neighbours=(), together=together,
        video=VIDEO_NAME if (folder / VIDEO_NAME).is_file() else "",
    )
    path = folder / PAGE_NAME
    replace_file(path, html)
    return path


def infraction_chips(entry: Entry) -> list[tuple[str, int, str]]:
    """(name, count, class) of the infractions of a drive by kind; minimum speed costs nothing and is left out."""
    if entry.result is not None:
        kinds = count_kinds(item.kind for item in entry.result.infractions)
    else:
        kinds = count_kinds(item.kind for item in entry.record.infractions) if entry.record else count_kinds(())
    return [(kind_text(kind), count, INFRACTION_STYLE[kind]) for kind, count in kinds.items()]


def _worst(moments: list[ShownMoment]) -> list[ShownMoment]:
    by_moment = {id(shown.moment): shown for shown in moments}
    return [by_moment[id(moment)] for moment in worst([shown.moment for shown in moments], MOMENTS_SHOWN)]


def _headline(run: Run) -> str:
    if run.results is not None:
        return f"{run.results.completed} of {run.results.routes_wanted} routes completed"
    reached = sum(bool(entry.record and entry.record.reached) for entry in run.entries)
    return f"{reached} of {run.wanted} routes completed"


def _pill(run: Run) -> str:
    """Class of the headline: all is well, all goals were reached but not without infractions, or neither."""
    states = {state_class(entry) for entry in run.entries}
    if len(run.entries) < run.wanted or not run.entries or states - {"ok", "part"}:
        return ""
    return "part" if "part" in states else "ok"


def _neighbours(run: Run, numbers: list[int], number: int) -> list[tuple[str, str]]:
    """(words, address) of the pages before and after a route's page."""
    place = numbers.index(number)
    near = [("before: {}", other) for other in numbers[max(0, place - 1) : place]]
    near += [("next: {}", other) for other in numbers[place + 1 : place + 2]]
    return [(words.format(run.entries[other].route_id), f"{other:03d}.html") for words, other in near]


def _row(run: Run, entry: Entry, link: str) -> dict[str, Any]:
    return {
        "entry": entry, "link": link, "film": film_of(run, entry), "chips": infraction_chips(entry),
        "state": state_class(entry),
        "abilities": [name.replace("_", " ") for name in entry.abilities],
        "reason": entry.missing.reason if entry.missing else entry.result.reason if entry.result else "",
    }


def _choices(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """What the table can be filtered by."""
    return {
        "status": sorted({row["entry"].status for row in rows}),
        "ability": sorted({name for row in rows for name in row["abilities"]}),
        "town": sorted({row["entry"].town for row in rows} - {""}),
        "infraction": sorted({name for row in rows for name, _, _ in row["chips"]}),
    }


def _hidden(rows: list[dict[str, Any]]) -> set[str]:
    """Columns that would say nothing."""
    columns = {
        "scenario": any(row["entry"].scenario for row in rows), "ability": any(row["abilities"] for row in rows),
        "town": len({row["entry"].town for row in rows}) > 1, "film": any(row["film"] for row in rows),
    }
    return {name for name, shown in columns.items() if not shown}


def _tiles(run: Run, wall_ms: list[float]) -> list[tuple[str, str, str]]:
    """(figure, what it is, remark) of the head of the page."""
    tiles = _score_tiles(run.figures) if run.figures else []
    if run.results is None:
        return tiles
    results, routes = run.results, run.results.routes
    tiles += [
        (f"{results.completed} / {results.routes_wanted}", "routes completed",
         f"{_mean_completion(routes):.1f} % on average"),
        (f"{sum(route.driven_m for route in routes):.0f} m", "driven",
         f"in {sum(route.duration_s for route in routes):.0f} s of simulated time"),
        (f"{sum(len(route.infractions) for route in routes)}", "infractions",
         f"{sum(route.off_lane_s for route in routes):.1f} s off the lane"),
        (f"{sum(route.plans for route in routes)}", "plans", ", ".join(
            f"{sum(getattr(route, f'plans_{kind}') for route in routes)} {kind}"
            for kind in ("unreadable", "refused", "missing")
        )),
    ]
    if latency := latency_figures(wall_ms):
        tiles.append((ms_text(latency["p50"]), "frame to plan, median", f"95 % below {ms_text(latency['p95'])}"))
    decode_ms = _mean(routes, "decode_ms")
    if decode_ms is not None:
        tiles.append((f"{_mean(routes, 'forwards'):.1f}", "model forwards a plan", f"{decode_ms:.0f} ms decoding"))
    return tiles


def _score_tiles(figures: Figures) -> list[tuple[str, str, str]]:
    low, high = figures.driving_score_bounds
    rate_low, rate_high = (100 * bound for bound in figures.success_rate_bounds)
    return [
        ("withheld" if figures.driving_score is None else f"{figures.driving_score:.2f}", "driving score",
         f"over {figures.routes} routes" if high - low < 0.005 else f"{low:.2f} to {high:.2f}"),
        ("withheld" if figures.success_rate is None else f"{100 * figures.success_rate:.1f} %", "success rate",
         "goal reached, no infraction" if rate_high - rate_low < 0.05 else f"{rate_low:.1f} to {rate_high:.1f} %"),
    ]


def _mean_completion(routes: tuple[RouteResult, ...]) -> float:
    return float(np.mean([route.completion_pct for route in routes])) if routes else 0.0


def _mean(routes: tuple[RouteResult, ...], name: str) -> float | None:
    values = [route.decode[name] for route in routes if name in route.decode]
    return float(np.mean(values)) if values else None


def _setup(run: Run) -> list[tuple[str, str]]:
    towns = ("town", ", ".join(sorted({entry.town for entry in run.entries})) or "none")
    if run.results is None:
        return [("results", str(run.folder)), towns]
    return _drive_setup(run.results, towns)


def _drive_setup(results: DriveResults, towns: tuple[str, str]) -> list[tuple[str, str]]:
    modes = {
        "lockstep": f"lockstep: the world waits for each plan, up to {results.plan_wait_s:g} s of wall time",
        "measured": "measured: a plan acts after the wall time it took",
        "live": "live: the world is somebody else's and goes on; a plan acts once it has come",
        "fixed": f"fixed: a plan acts {results.latency_ms:g} ms after its frame",
    }
    camera = results.planner_camera
    run, met = results.red_lights
    spread = results.spread_in_words() if results.repeats > 1 else []
    limit = f"{results.deadline_ms:g} ms of wall time a plan: not reproducible"
    deadline = [("deadline", limit)] if results.deadline_ms else []
    return [
        ("planner", f"{results.planner}, {results.link}"), ("plans signed by", results.source or "nobody"),
        ("latency mode", modes.get(results.latency_mode, results.latency_mode)),
        *deadline,
        ("camera", "none" if camera is None else
         f"{camera.name}, {camera.width_px} x {camera.height_px} px, {camera.hfov_deg:g}° wide, "
         f"{camera.z_m:g} m above ground" + (", black for the planner" if results.blank_camera else "")),
        towns, ("routes", results.routes_file), ("server", results.server),
        ("background traffic", f"{results.vehicles} vehicles, {results.walkers} walkers"),
        ("scenarios", "played" if results.scenarios else "left out"),
        *([("red lights", f"{met - run} of {met} respected")] if met else []), ("seed", str(results.seed)),
        *spread,
        ("date", results.started.replace("T", " ").replace("+00:00", " UTC")), ("machine", results.machine),
        ("commit", results.commit or "unknown"),
    ]
