"""What a drive leaves behind: the schema of `results.json`, and of the files of each route.

A run folder holds::

    results.json                 DriveResults
    map.json                     lane centre lines of the town, map frame
    routes/<id>/trajectory.csv   one Tick a line, full precision, simulated time only: two equal drives give equal bytes
    routes/<id>/plans.jsonl      one PlanRecord a line, wall-clock latencies included
    routes/<id>/scene.jsonl      other actors and lights around the vehicle (`scene_track`)
    routes/<id>/metric_info.json motion on every tick, for comfort (`leaderboard.metric_info`)
    routes/<id>/route.json       the planned route, map frame
    routes/<id>/frames/*.jpg     display camera, named by the stamp in milliseconds since the route began
    routes/<id>/model/*.jpg      what the planner's camera showed at the same stamps, if it has one
    logs/                        output of the processes that were started
    index.html, report/, *.mp4   the report

The map frame is CARLA's world with y negated (REP-103).
"""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from carla_bridge.leaderboard.infractions import InfractionKind
from carla_bridge.leaderboard.verdict import Outcome
from carla_bridge.recording.spread import Spread
from wamdiff2_core.config import CameraSpec, Strict, parse
from wamdiff2_core.errors import ExitCode, UserError
from wamdiff2_core.journal import replace_file

SCHEMA = 2
RESULTS_NAME, TRAJECTORY_NAME, PLANS_NAME = "results.json", "trajectory.csv", "plans.jsonl"
EVALUATION_KIND = "closed-loop evaluation"  # `kind` of the first line of an evaluation's journal


@dataclass(frozen=True)
class TimedInfraction(Strict):
    """Something that happened on the way.

    Attributes:
        kind: as in the leaderboard's records (`leaderboard.infractions.InfractionKind`), or `planner lost`.
        t_s: simulated time since the route began, seconds.
        x_m, y_m: where, map frame.
        detail: in words, with its figure.
    """

    kind: str
    t_s: float
    x_m: float
    y_m: float
    detail: str = ""


@dataclass(frozen=True)
class RouteResult(Strict):
    """One driven route.

    Attributes:
        route_id: id in the routes file.
        town: map the route lies in.
        outcome: how it ended.
        reason: the same in words, with figures.
        completion_pct: driven share of the route's length, 0..100.
        length_m: length of the route to its goal.
        driven_m: length of the driven path.
        duration_s: simulated seconds.
        wall_s: wall-clock seconds.
        max_deviation_m: largest distance from the route's line.
        off_lane_s: simulated seconds with the vehicle's centre farther than 1.75 m from the route's line.
        frames_sent: camera frames given to the planner.
        plans: answers received.
        plans_unreadable: answers whose text holds no waypoints.
        plans_refused: answers with waypoints that failed the planner's check.
        plans_missing: frames without an answer within the wait.
        latency_ms: wall time from sending a frame to receiving its plan: quantiles `p50`, `p95`, and `max`.
        decode: means over the answers: `prefill_ms`, `decode_ms`, `forwards`, `steps`, `blocks`, `tokens`.
        infractions: in order of time.
        folder: folder of this route's files, relative to the run folder.
        repeat: which drive of this route, counted from 0.
        record: the drive in the CARLA leaderboard's schema (`leaderboard.record.RouteRecord`).
        scenario: type of the route's first scenario, such as `ParkedObstacle`; empty without one.
        red_lights_met: red lights of its own lane that the vehicle came up to; those run are infractions.
    """

    route_id: str
    town: str
    outcome: Outcome
    reason: str
    completion_pct: float
    length_m: float
    driven_m: float
    duration_s: float
    wall_s: float
    max_deviation_m: float
    off_lane_s: float
    frames_sent: int
    plans: int
    plans_unreadable: int
    plans_refused: int
    plans_missing: int
    latency_ms: dict[str, float]
    decode: dict[str, float]
    infractions: tuple[TimedInfraction, ...]
    folder: str
    repeat: int = 0
    record: dict[str, Any] | None = None
    scenario: str = ""
    red_lights_met: int = 0

    @property
    def completed(self) -> bool:
        """Whether the goal was reached."""
        return self.outcome is Outcome.COMPLETED


@dataclass(frozen=True)
class NotDriven(Strict):
    """A drive that an evaluation has no verdict about.

    Attributes:
        route_id, repeat: which one.
        kind: `infrastructure`: all attempts were spoilt; `unusable`: the route cannot be driven here; `not tried`.
        attempts: how many there were.
        reason: of the last one.
        town: map the route lies in.
        scenario: as in `RouteResult`.
    """

    route_id: str
    repeat: int
    kind: str
    attempts: int
    reason: str
    town: str = ""
    scenario: str = ""


@dataclass(frozen=True)
class DriveResults(Strict):
    """A whole drive, `results.json`.

    Attributes:
        label: what the figures may be called: `embedded world` or `routes only`.
        planner: planner as it was asked for, a word such as `nano` or a folder.
        link: how it is asked: `ros` or `in-process`.
        source: what signed the plans: checkpoint hash, or the name of the planner.
        latency_mode: `lockstep`, `measured`, `fixed`, or `live` in a world that somebody else moves.
        latency_ms: the delay of `fixed`, in simulated milliseconds.
        deadline_ms: wall-clock milliseconds the drive gave the checkpoint for a plan; 0 for what its record says.
        plan_wait_s: wall-clock seconds the bridge waits for the plan of a frame before it goes on without.
        server: `embedded`, or `host:port` of a CARLA server.
        routes_file: file the routes came from.
        seed: seed of the world and of a random planner.
        started: ISO 8601 time of the start, UTC.
        machine: processor, cores, operating system and Python.
        commit: commit of the working tree, empty outside of one.
        planner_camera: camera the planner sees, in base_link; None for one that sees none.
        display_camera: camera of the pictures and the video, in base_link.
        routes: one result a driven route, in the order of the file.
        routes_wanted: how many routes the drive was asked for.
        repeats: how often each route was to be driven; `routes_wanted` counts all drives.
        not_driven: drives without a verdict; they are counted neither as successes nor as failures.
        spread: `driving_score`, `success_rate_pct` and `completion_pct` over the repeats, each the mean of those of its
            drives that have a verdict.
        vehicles, walkers: how many of background traffic were asked for.
        scenarios: whether those of the routes were played.
        blank_camera: whether the planner was given black pictures.
        error: why the drive ended early, empty otherwise.
        schema: version of this schema.
    """

    label: str
    planner: str
    link: str
    source: str
    latency_mode: str
    latency_ms: float
    plan_wait_s: float
    server: str
    routes_file: str
    seed: int
    started: str
    machine: str
    commit: str
    planner_camera: CameraSpec | None
    display_camera: CameraSpec
    routes: tuple[RouteResult, ...]
    routes_wanted: int
    repeats: int = 1
    not_driven: tuple[NotDriven, ...] = ()
    spread: dict[str, Spread] = field(default_factory=dict)
    vehicles: int = 0
    walkers: int = 0
    scenarios: bool = True
    blank_camera: bool = False
    deadline_ms: float = 0.0
    error: str = ""
    schema: int = SCHEMA

    @property
    def red_lights(self) -> tuple[int, int]:
        """Red lights that were run, and that were met, on all routes; one met just as it turned may be run unmet."""
        run = sum(item.kind == InfractionKind.RED_LIGHT for route in self.routes for item in route.infractions)
        return run, max(run, sum(route.red_lights_met for route in self.routes))

    @property
    def completed(self) -> int:
        """Number of routes that reached their goal."""
        return sum(route.completed for route in self.routes)

    def spread_in_words(self) -> list[tuple[str, str]]:
        """(name, figure with its unit) of the figures over the repeats."""
        return [(name.removesuffix("_pct").replace("_", " "), figure.in_words(" %" if name.endswith("_pct") else ""))
                for name, figure in self.spread.items()]

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the drive: infrastructure before routes."""
        lost = any(item.kind == "infrastructure" for item in self.not_driven)
        if self.error or lost or any(route.outcome is Outcome.SERVER_LOST for route in self.routes):
            return ExitCode.INFRASTRUCTURE
        return ExitCode.DONE if self.completed == self.routes_wanted > 0 else ExitCode.FAILED_ITEMS

    def save(self, folder: Path) -> Path:
        """Write `results.json` into a run folder; the one before stays when that fails."""
        path = folder / RESULTS_NAME
        replace_file(path, json.dumps(dataclasses.asdict(self), indent=2) + "\n")
        return path

    @classmethod
    def load(cls, folder: Path) -> DriveResults:
        """Read the results of a run folder.

        Raises:
            UserError: no such file, or not of this schema.
        """
        path = folder / RESULTS_NAME
        if not path.is_file():
            raise UserError("run folder", f"a folder with {RESULTS_NAME}", str(folder))
        try:
            data = json.loads(path.read_text())
        except ValueError as error:
            raise UserError(str(path), "the results of a run", f"a damaged file ({error})") from None
        if not isinstance(data, dict):
            raise UserError(str(path), "the results of a run", "other JSON")
        if data.get("schema") != SCHEMA:
            raise UserError(str(path), f"results of schema {SCHEMA}", data.get("schema"),
                            "drive again, or read them with the version that wrote them")
        return parse(cls, data, str(path))


@dataclass(frozen=True)
class Tick:
    """One simulation step, a line of `trajectory.csv`; the command is the one applied for the step that follows.

    Attributes:
        t_ns: simulated time since the route began.
        x_m, y_m, yaw_rad: pose of base_link in the map frame.
        speed_mps, accel_mps2: forward speed and acceleration.
        yaw_rate_radps: left positive.
        steer_rad, accel_cmd_mps2: command, left and forward positive.
        progress_m: arc of the route that lies behind.
        deviation_m: distance from the route's line.
        plan_t_ns: stamp of the plan in force since the route began, -1 without one.
    """

    t_ns: int
    x_m: float
    y_m: float
    yaw_rad: float
    speed_mps: float
    accel_mps2: float
    yaw_rate_radps: float
    steer_rad: float
    accel_cmd_mps2: float
    progress_m: float
    deviation_m: float
    plan_t_ns: int

    def row(self) -> list[str]:
        """The CSV line: `repr` keeps every bit of a float."""
        return [repr(value if isinstance(value, int) else float(value)) for value in dataclasses.astuple(self)]


@dataclass(frozen=True)
class PlanRecord:
    """One frame given to the planner and what came back, a line of `plans.jsonl`.

    Attributes:
        t_ns: stamp of the frame since the route began, simulated time.
        pose: (x_m, y_m, yaw_rad) of base_link in the map frame at the stamp.
        speed_mps: forward speed at the stamp.
        command: route command given.
        targets_m: target points given, base_link at the stamp.
        received: whether an answer came within the wait.
        ok: whether the answer may be driven.
        message: why not.
        text: the answer, verbatim.
        waypoints_m: base_link at the stamp; empty when unreadable.
        dt_s: their spacing in time.
        wall_ms: wall time from sending the frame to receiving the answer.
        acts_after_ms: simulated time from the stamp until the plan may act.
        prefill_ms, decode_ms, forwards, steps, blocks, tokens: decode statistics of the answer.
        image: file name in `frames/` and `model/`.
    """

    t_ns: int
    pose: tuple[float, float, float]
    speed_mps: float
    command: str
    targets_m: list[list[float]]
    received: bool
    ok: bool
    message: str
    text: str
    waypoints_m: list[list[float]]
    dt_s: float
    wall_ms: float
    acts_after_ms: float
    prefill_ms: float
    decode_ms: float
    forwards: int
    steps: int
    blocks: int
    tokens: int
    image: str


@dataclass(frozen=True)
class RouteShape:
    """The planned route of `route.json`.

    Attributes:
        xy_m: points about 1 m apart, map frame, overrun beyond the goal included.
        length_m: arc from the start to the goal.
    """

    xy_m: list[list[float]]
    length_m: float


def read_ticks(route_folder: Path) -> list[Tick]:
    """Read `trajectory.csv` of a route."""
    kinds = {f.name: int if f.type == "int" else float for f in dataclasses.fields(Tick)}
    with (route_folder / TRAJECTORY_NAME).open(newline="") as file:
        return [Tick(**{name: kinds[name](value) for name, value in row.items()}) for row in csv.DictReader(file)]


def read_plans(route_folder: Path) -> list[PlanRecord]:
    """Read `plans.jsonl` of a route."""
    with (route_folder / PLANS_NAME).open() as file:
        return [PlanRecord(**json.loads(line)) for line in file]


def latencies_ms(plans: Iterable[PlanRecord]) -> list[float]:
    """Wall-clock milliseconds from frame to answer, of the frames that were answered."""
    return [plan.wall_ms for plan in plans if plan.received]


def latency_figures(wall_ms: list[float]) -> dict[str, float]:
    """`p50`, `p95` and `max` of latencies in milliseconds; empty without any."""
    if not wall_ms:
        return {}
    p50, p95 = np.percentile(wall_ms, [50, 95])
    return {"p50": round(float(p50), 2), "p95": round(float(p95), 2), "max": round(max(wall_ms), 2)}


def read_shape(route_folder: Path) -> RouteShape:
    """Read `route.json` of a route."""
    data: dict[str, Any] = json.loads((route_folder / "route.json").read_text())
    return RouteShape(**data)
