"""A run folder of many routes, written through the recorder and the dataclasses of the real one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from carla_bridge.client.surroundings import Actor, LightState, StopLine, Surroundings, TrafficLight
from carla_bridge.leaderboard.infractions import Infraction as Entry
from carla_bridge.leaderboard.record import RouteRecord, RouteStatus
from carla_bridge.leaderboard.verdict import Outcome
from carla_bridge.recording.recorder import RouteRecorder
from carla_bridge.recording.results import DriveResults, NotDriven, PlanRecord, RouteResult, Tick, TimedInfraction
from tests.carla_bridge.drive_doubles import straight_route
from wamdiff2_core.config import CameraSpec
from wamdiff2_core.types import CameraFrame, EgoState, Pose2D

SCENARIOS = ("ParkedObstacle", "MergerIntoSlowTraffic", "DynamicObjectCrossing", "InvadingTurn", "T_Junction")
SPEED_MPS = 5.0


def entries_of(index: int) -> list[Entry]:
    """Infractions of the route of an index: every sixth hits a vehicle, every tenth runs a red light."""
    found = []
    if index % 6 == 5:
        found.append(Entry.collision("vehicle.audi.tt", 2, (30.0, 0.0, 0.0)))
    if index % 10 == 9:
        found.append(Entry.red_light(500, (55.0, 0.0, 0.0)))
    return [entry for entry in found if entry is not None]


def write_route(folder: Path, index: int, *, route_id: str, town: str = "Nowhere", pictures: bool = False,
                type_id: str = "vehicle.audi.tt", name: str = "", ticks: int = 200) -> RouteResult:
    """One route of a straight drive at `SPEED_MPS`; every seventh ends blocked half-way."""
    blocked = index % 7 == 6
    route = replace(straight_route(ticks * 0.05 * SPEED_MPS), route_id=route_id, town=town)
    name = name or f"{index}"
    with RouteRecorder(folder / "routes" / name, route) as recorder:
        for k in range(ticks // 2 if blocked else ticks):
            t_ns, x_m = k * 50_000_000, SPEED_MPS * 0.05 * k
            recorder.tick(Tick(t_ns, x_m, 0.0, 0.0, SPEED_MPS, 0.0, 0.0, 0.0, 0.0, x_m, 0.0, t_ns),
                          EgoState([SPEED_MPS, 0.0], map_from_base=Pose2D(x_m, 0.0, 0.0)))
            if k % 4 == 0:
                recorder.scene(t_ns, _around(x_m, t_ns, type_id))
            if k % 5 == 0:
                image = f"{t_ns // 1_000_000:07d}.jpg" if pictures else ""
                if pictures:
                    shown = CameraFrame(np.full((32, 64, 3), k % 250, np.uint8), t_ns)
                    recorder.pictures(image, None, shown)
                waypoints = [[2.5 * (i + 1), 0.0] for i in range(6)]
                recorder.plan(PlanRecord(t_ns, (x_m, 0.0, 0.0), SPEED_MPS, "FOLLOW", [[20.0, 0.0]], True, True, "",
                                         "2.5,0.0", waypoints, 0.5, 12.0, 0.0, 3.0, 8.0, 4, 3, 2, 33, image))
    entries = entries_of(index)
    completion = 50.0 if blocked else 100.0
    record = RouteRecord.of_drive(route_id, completion, entries, RouteStatus.BLOCKED, town=town,
                                  route_length_m=route.length_m, duration_game_s=recorder.ticks[-1].t_ns * 1e-9)
    return RouteResult(
        route_id=route_id, town=town, outcome=Outcome.BLOCKED if blocked else Outcome.COMPLETED,
        reason="stood for 60 s" if blocked else "reached the goal", completion_pct=completion,
        length_m=route.length_m, driven_m=recorder.ticks[-1].x_m, duration_s=recorder.ticks[-1].t_ns * 1e-9,
        wall_s=3.0, max_deviation_m=0.0, off_lane_s=0.0, frames_sent=40, plans=40, plans_unreadable=0,
        plans_refused=0, plans_missing=0, latency_ms={"p50": 12.0, "p95": 12.0, "max": 12.0},
        decode={"prefill_ms": 3.0, "decode_ms": 8.0, "forwards": 4.0, "steps": 3.0, "blocks": 2.0, "tokens": 33.0},
        infractions=tuple(TimedInfraction(str(entry.kind), 4.0, 20.0, 0.0, entry.text) for entry in entries),
        folder=f"routes/{name}", record=record.to_json(0), scenario=SCENARIOS[index % len(SCENARIOS)],
    )


def results_of(routes: tuple[RouteResult, ...], *, missing: tuple[NotDriven, ...] = (), wanted: int | None = None,
               **changes: object) -> DriveResults:
    """The results of a run of these routes."""
    results = DriveResults(
        label="embedded world", planner="nano", link="in-process", source="0123abcd", latency_mode="lockstep",
        latency_ms=0.0, plan_wait_s=5.0, server="embedded", routes_file="many.xml", seed=3,
        started="2026-11-29T12:00:00+00:00", machine="m", commit="c", planner_camera=None,
        display_camera=CameraSpec(name="display", width_px=64, height_px=32), routes=routes,
        routes_wanted=len(routes) + len(missing) if wanted is None else wanted, not_driven=missing,
    )
    return replace(results, **changes)


def _around(x_m: float, t_ns: int, type_id: str) -> Surroundings:
    """A car that comes towards the ego vehicle 0.2 m beside it, one that is parked, and a light."""
    def actor(key: int, x_m: float, y_m: float, yaw_rad: float, speed_mps: float, kind: str) -> Actor:
        velocity = speed_mps * np.array([np.cos(yaw_rad), np.sin(yaw_rad)])
        return Actor(key, kind, "", Pose2D(x_m, y_m, yaw_rad), 0.0, velocity, 0.0, (2.0, 1.0, 0.7), np.zeros(2))

    t_s = t_ns * 1e-9
    light = TrafficLight(500, LightState.RED if t_s < 5 else LightState.GREEN, Pose2D(40.0, 5.0, 0.0), 0.0,
                         np.zeros(2), (StopLine((1, -1), Pose2D(38.0, 0.0, 0.0), 0.0, 3.5),))
    return Surroundings(0, t_ns, actor(1, x_m, 0.0, 0.0, SPEED_MPS, "vehicle.lincoln.mkz_2020"),
                        (actor(2, 45.0 - 3.0 * t_s, 2.2, np.pi, 3.0, type_id),
                         actor(3, 20.0, -4.0, 0.0, 0.0, "vehicle.carlamotors.firetruck")), (light,), ())
