"""The leaderboard's criteria on drives that are laid out by hand. Oracles: the drive itself, and the rules' arithmetic.

The ego vehicle is carried along a planned route of Wamtown01, point by point; lights, signs, traffic and contacts are
put where a test needs them. No server: the town's `carla.Map` is real, the surroundings are written down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from shapely.geometry import LineString

carla = pytest.importorskip("carla")

from carla_bridge.client.surroundings import Actor, LightState, StopLine, StopSign, Surroundings, TrafficLight  # noqa: E402
from carla_bridge.leaderboard.criteria import RouteCriteria  # noqa: E402
from carla_bridge.leaderboard.criteria_rules import segments_meet  # noqa: E402
from carla_bridge.leaderboard.infractions import Infraction  # noqa: E402
from carla_bridge.leaderboard.record import RouteStatus  # noqa: E402
from carla_bridge.leaderboard.verdict import Outcome, Verdict  # noqa: E402
from carla_bridge.routes import ROUTES_FOLDER  # noqa: E402
from carla_bridge.routes.route_file import load_routes  # noqa: E402
from carla_bridge.routes.route_planner import RoutePlanner  # noqa: E402
from carla_bridge.server.town.town import Town  # noqa: E402
from wamdiff2_core.types import EgoState, Pose2D  # noqa: E402

pytestmark = pytest.mark.carla
DT_NS = 50_000_000
HALF_LENGTH_M = 2.45


@dataclass(frozen=True)
class Contact:
    other_type: str
    other_id: int
    carla_xyz_m: tuple[float, float, float] = (1.25, -2.5, 0.5)


@dataclass
class Watch:
    """Scenarios that allow what a test says."""

    waiting_allowed: bool = False
    wrong_way_allowed: bool = False

    def take_infractions(self) -> list[Infraction]:
        return []


@pytest.fixture(scope="module")
def town() -> Town:
    return Town.load()


@pytest.fixture(scope="module")
def route(town):
    return RoutePlanner(town.map).plan(load_routes(ROUTES_FOLDER / "demo.xml")[0])


def actor(pose: Pose2D, speed_mps: float, *, id: int = 1, kind: str = "vehicle.audi.tt", role: str = "hero") -> Actor:
    velocity = speed_mps * np.array([math.cos(pose.yaw_rad), math.sin(pose.yaw_rad)])
    return Actor(id, kind, role, pose, 0.0, velocity, 0.0, (HALF_LENGTH_M, 1.08, 0.74), np.zeros(2))


class Drive:
    """Carries the ego vehicle along a route and shows every tick to the criteria."""

    def __init__(self, route, town: Town, watch: Watch | None = None) -> None:
        self.route, self.criteria = route, RouteCriteria(route, town.map, watch)
        self.others: Sequence[Actor] = ()
        self.lights: Sequence[TrafficLight] = ()
        self.signs: Sequence[StopSign] = ()
        self.dt_ns = DT_NS
        self.stamp_ns = 7 * DT_NS
        self.arc_m = 0.0

    def pose(self, arc_m: float, left_m: float = 0.0) -> Pose2D:
        x, y = self.route.at(np.array([arc_m]))[0]
        yaw = float(np.interp(arc_m, self.route.arc_m, np.unwrap(self.route.yaw_rad)))
        return Pose2D(float(x - left_m * math.sin(yaw)), float(y + left_m * math.cos(yaw)), yaw)

    def tick(self, pose: Pose2D, speed_mps: float, contacts: Sequence[Contact] = ()) -> Verdict | None:
        self.stamp_ns += self.dt_ns
        around = Surroundings(
            1, self.stamp_ns, actor(pose, speed_mps), tuple(self.others), tuple(self.lights), tuple(self.signs)
        )
        ego = EgoState(np.array([speed_mps, 0.0]), np.zeros(2), 0.0, pose, self.stamp_ns)
        return self.criteria.update(self.stamp_ns, ego, around, contacts)

    def to(
        self, arc_m: float, speed_mps: float = 8.0, left_m: Callable[[float], float] = lambda arc: 0.0
    ) -> Verdict | None:
        while self.arc_m < arc_m:
            self.arc_m += speed_mps * self.dt_ns * 1e-9
            verdict = self.tick(self.pose(self.arc_m, left_m(self.arc_m)), speed_mps)
            if verdict is not None:
                return verdict
        return None

    def stand(self, seconds: float) -> Verdict | None:
        for _ in range(round(seconds / (self.dt_ns * 1e-9))):
            verdict = self.tick(self.pose(self.arc_m), 0.0)
            if verdict is not None:
                return verdict
        return None

    def kinds(self) -> list[str]:
        self.criteria.finish()
        return [i.infraction.kind for i in self.criteria.incidents if i.infraction.kind != "min_speed_infractions"]


@pytest.fixture
def drive(route, town) -> Drive:
    return Drive(route, town)


def test_the_whole_route_is_completed_without_a_fault(drive: Drive) -> None:
    verdict = drive.to(math.inf)
    assert verdict is not None
    assert verdict.outcome is Outcome.COMPLETED
    assert drive.arc_m == pytest.approx(drive.route.length_m, abs=0.01 * drive.route.length_m)
    record = drive.criteria.record()
    assert (record.status, record.score_route, record.score_penalty) == (RouteStatus.COMPLETED, 100.0, 1.0)
    assert drive.kinds() == []
    assert [i.percentage for i in record.infractions] == [100.0] * 20
    assert record.duration_game_s == pytest.approx((drive.arc_m - 0.4) / 8.0, abs=0.01)


@pytest.mark.parametrize("share", [0.2, 0.55])
def test_completion_is_the_arc_of_the_last_point_passed(drive: Drive, share: float) -> None:
    drive.to(share * drive.route.length_m)
    expected = 100.0 * math.floor(drive.arc_m) / math.floor(drive.route.length_m)
    assert drive.criteria.completion_pct == pytest.approx(expected, abs=0.5)
    assert drive.criteria.record().status == RouteStatus.FAILED


def test_speed_is_measured_against_the_mean_of_all_background_vehicles(drive: Drive) -> None:
    far = Pose2D(900.0, 900.0, 0.0)
    drive.others = [
        actor(far, 4.0, id=2, role="background"), actor(far, 8.0, id=3, role="background"),
        actor(far, 99.0, id=4, role="scenario"), actor(far, 99.0, id=5, kind="walker.pedestrian.0001",
                                                       role="background"),
    ]
    drive.to(math.inf)
    entries = [i.infraction for i in drive.criteria.incidents if i.infraction.kind == "min_speed_infractions"]
    assert len(entries) == 19
    assert {entry.percentage for entry in entries} == {133.33}
    assert drive.criteria.record().score_composed == 100.0


def test_collisions_are_counted_once_by_actor_and_place(drive: Drive) -> None:
    car, wall, other = Contact("vehicle.audi.tt", 5), Contact("static.prop.container", 6), Contact("walker.x", 7)
    hits = []

    def collisions() -> list[Infraction]:
        return [i.infraction for i in drive.criteria.incidents if "collisions" in i.infraction.kind]

    def hit(arc_m: float, contact: Contact, speed_mps: float = 8.0) -> None:
        drive.to(arc_m)
        before = len(collisions())
        drive.tick(drive.pose(drive.arc_m), speed_mps, [])
        drive.tick(drive.pose(drive.arc_m), 0.0 if contact is wall else speed_mps, [contact])  # a wall stops it
        hits.append(len(collisions()) - before)

    hit(5.0, car)  # counts
    hit(7.0, wall)  # within 5 m of the last
    hit(12.0, car)  # same actor within 5 s
    hit(13.0, wall, 0.05)  # standing
    hit(14.0, wall)  # counts
    hit(22.0, other)  # counts
    hit(70.0, car)  # more than 5 s later: counts
    assert hits == [1, 0, 0, 0, 1, 1, 1]
    assert {infraction.carla_xyz_m for infraction in collisions()} == {Contact.carla_xyz_m}
    record = drive.criteria.record()
    assert record.score_penalty == pytest.approx(0.6 * 0.65 * 0.5 * 0.6)


def light(drive: Drive, town: Town, arc_m: float, state: LightState, left_m: float = 0.0) -> TrafficLight:
    """A light over the route's lane (or beside it) at an arc length."""
    pose = drive.pose(arc_m, left_m)
    lane = town.map.get_waypoint(carla.Location(pose.x_m, -pose.y_m, 0.0))
    heading = -math.radians(lane.transform.rotation.yaw)
    place = lane.transform.location
    line = StopLine((lane.road_id, lane.lane_id), Pose2D(place.x, -place.y, heading), 0.0, lane.lane_width)
    return TrafficLight(40, state, drive.pose(arc_m, -5.0), 0.0, np.array([place.x, -place.y]), (line,))


@pytest.mark.parametrize(
    ("state", "left_m", "runs"),
    [(LightState.RED, 0.0, 1), (LightState.GREEN, 0.0, 0), (LightState.YELLOW, 0.0, 0), (LightState.RED, 3.5, 0)],
)
def test_a_red_light_of_the_own_lane_is_run_once(drive: Drive, town: Town, state, left_m: float, runs: int) -> None:
    drive.lights = [light(drive, town, 40.0, state, left_m)]
    drive.to(40.0 + 0.8 * HALF_LENGTH_M - 0.4)
    assert all(incident.infraction.kind != "red_light" for incident in drive.criteria.incidents)
    drive.to(55.0)
    assert drive.kinds() == ["red_light"] * runs
    if runs:
        incident = next(i for i in drive.criteria.incidents if i.infraction.kind == "red_light")
        middle_m = incident.t_s * 8.0 + 0.4
        assert 40.0 + 0.8 * HALF_LENGTH_M <= middle_m <= 40.0 + HALF_LENGTH_M + 1.0
        assert incident.infraction.other_id == 40


def test_a_light_that_turns_green_before_the_tail_has_crossed_is_not_run(drive: Drive, town: Town) -> None:
    drive.lights = [light(drive, town, 40.0, LightState.RED)]
    drive.to(40.0)
    drive.lights = [light(drive, town, 40.0, LightState.GREEN)]
    drive.to(55.0)
    assert drive.kinds() == []


@pytest.mark.parametrize(
    ("state", "left_m", "met"),
    [(LightState.RED, 0.0, 1), (LightState.GREEN, 0.0, 0), (LightState.YELLOW, 0.0, 0), (LightState.RED, 3.5, 0)],
)
def test_a_red_light_of_the_own_lane_is_met_once_on_the_way_to_it(drive, town: Town, state, left_m, met) -> None:
    drive.lights = [light(drive, town, 40.0, state, left_m)]
    drive.to(40.0 - HALF_LENGTH_M - 13.0)
    assert drive.criteria.red_lights_met == 0
    drive.to(40.0 - HALF_LENGTH_M - 1.0)
    drive.stand(3.0)
    assert drive.criteria.red_lights_met == met
    drive.to(90.0)
    assert drive.criteria.red_lights_met == met


def test_a_light_that_turns_red_behind_the_vehicle_is_not_met(drive: Drive, town: Town) -> None:
    drive.lights = [light(drive, town, 40.0, LightState.GREEN)]
    drive.to(41.0)
    drive.lights = [light(drive, town, 40.0, LightState.RED)]
    drive.to(60.0)
    assert drive.criteria.red_lights_met == 0


def test_segments_meet_as_shapely_says() -> None:
    rng = np.random.default_rng(3)
    points = rng.integers(0, 5, size=(2000, 4, 2)).astype(float)  # small integers: many touch or are parallel
    points = np.array([p for p in points if (p[0] != p[1]).any() and (p[2] != p[3]).any()])
    found = [segments_meet(*four) for four in points]
    expected = [not LineString(four[:2]).intersection(LineString(four[2:])).is_empty for four in points]
    assert found == expected
    assert 0.2 < np.mean(found) < 0.8


@pytest.mark.parametrize(("stand_s", "runs"), [(0.0, 1), (1.0, 0)])
def test_a_stop_sign_wants_a_standstill_within_its_reach(drive: Drive, stand_s: float, runs: int) -> None:
    pose = drive.pose(30.0)
    drive.signs = [StopSign(50, drive.pose(30.0, -5.0), 0.0, pose, (1.5, 1.5, 1.0))]
    drive.to(29.0)
    drive.stand(stand_s)
    drive.to(60.0)
    assert drive.kinds() == ["stop_infraction"] * runs
    assert drive.criteria.record().score_penalty == pytest.approx(0.8 if runs else 1.0)


def test_standing_before_a_stop_sign_is_not_standing_at_it(drive: Drive) -> None:
    drive.signs = [StopSign(50, drive.pose(30.0, -5.0), 0.0, drive.pose(30.0), (1.5, 1.5, 1.0))]
    drive.to(20.0)
    drive.stand(1.0)
    drive.to(60.0)
    assert drive.kinds() == ["stop_infraction"]


@pytest.mark.parametrize(("left_m", "allowed", "outside"), [(3.6, False, True), (3.6, True, False), (-4.0, True, True)])
def test_metres_outside_the_lanes_are_a_share_of_the_metres_driven(
    route, town: Town, left_m: float, allowed: bool, outside: bool
) -> None:
    drive = Drive(route, town, Watch(wrong_way_allowed=allowed))
    drive.to(40.0, left_m=lambda arc: left_m if 10.0 < arc < 30.0 else 0.0)
    assert drive.kinds() == ["outside_route_lanes"] * outside
    if outside:
        infraction = next(i.infraction for i in drive.criteria.incidents if i.infraction.distance_m)
        assert infraction.distance_m == pytest.approx(20.0, abs=1.5)
        assert infraction.percentage == pytest.approx(50.0, abs=5.0)
        assert infraction.factor == pytest.approx(1.0 - infraction.percentage / 100.0)


@pytest.mark.parametrize(("away_m", "left"), [(29.0, False), (31.0, True)])
def test_thirty_metres_from_the_route_is_the_end(drive: Drive, away_m: float, left: bool) -> None:
    drive.to(20.0)
    verdict = drive.tick(drive.pose(20.0, away_m), 8.0)
    assert (verdict is not None) == left
    if left:
        assert verdict.outcome is Outcome.OFF_ROUTE
        assert drive.criteria.record().status == RouteStatus.DEVIATED
        assert "route_dev" in drive.kinds()


def test_driving_beside_the_route_for_too_long_is_the_end(drive: Drive) -> None:
    verdict = drive.to(math.inf, left_m=lambda arc: 16.0 if arc > 10.0 else 0.0)
    assert verdict is not None
    assert verdict.outcome is Outcome.OFF_ROUTE
    assert drive.arc_m == pytest.approx(10.0 + 0.3 * drive.route.length_m, abs=10.0)


def test_standing_for_a_minute_is_the_end_unless_a_scenario_lets_wait(route, town: Town) -> None:
    watch = Watch()
    drive = Drive(route, town, watch)
    drive.to(20.0)
    drive.dt_ns = 10 * DT_NS
    watch.waiting_allowed = True
    assert drive.stand(70.0) is None
    watch.waiting_allowed = False
    assert drive.stand(60.0) is None
    verdict = drive.stand(1.0)
    assert verdict is not None
    assert verdict.outcome is Outcome.BLOCKED
    assert drive.criteria.record().status == RouteStatus.BLOCKED


def test_two_hundred_seconds_are_the_end(drive: Drive) -> None:
    drive.dt_ns = 4 * DT_NS
    verdict = drive.to(math.inf, speed_mps=1.0)
    assert verdict is not None
    assert verdict.outcome is Outcome.TIMEOUT
    record = drive.criteria.record()
    assert record.status == RouteStatus.TICK_LIMIT
    assert record.duration_game_s == pytest.approx(200.2)
    assert record.score_route == pytest.approx(100.0 * 200.0 / drive.route.length_m, abs=0.5)


def test_surroundings_of_another_tick_are_refused(drive: Drive) -> None:
    drive.to(2.0)
    pose = drive.pose(2.0)
    ego = EgoState(np.zeros(2), np.zeros(2), 0.0, pose, drive.stamp_ns + 1)
    around = Surroundings(1, drive.stamp_ns, actor(pose, 0.0), (), (), ())
    with pytest.raises(ValueError, match="expected stamp"):
        drive.criteria.update(drive.stamp_ns + 1, ego, around, [])
