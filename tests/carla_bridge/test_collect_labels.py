"""Labels, disturbances, the schedule, and what is asked."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.collect.boxes import Thing
from carla_bridge.collect.fleet import rest_of
from carla_bridge.collect.perturbation import NOWHERE, Aside, NoiseBursts, Stalls, draw_camera, draw_push, rejoined
from carla_bridge.collect.pilot import Moment, Pilot
from carla_bridge.collect.questions import QuestionScene, ask, decision, lead, light, metres, pedestrian
from carla_bridge.collect.schedule import EPISODES_PER_BLOCK, PLAIN_WEIGHT, Schedule
from carla_bridge.collect.sight import Seen, Status
from carla_bridge.collect.situation import KEEP_RATES, Beside, Lead, Situation, keep_rate, tag_of
from carla_bridge.collect.weather import Weather, draw_weather
from carla_bridge.routes import ROUTES_FOLDER
from carla_bridge.routes.navigation import Manoeuvre
from carla_bridge.routes.route_file import load_routes
from tests.carla_bridge.drive_doubles import straight_route
from wamdiff2_core.control.controller import PlanInMap
from wamdiff2_core.types import Check, EgoState, NavCommand, Navigation, Plan, Pose2D, VehicleCommand, Waypoints

pytestmark = pytest.mark.carla
CALM = Situation(0, "", math.inf, None, (), (), math.inf, "", 0, 0.0, False)
DAY = Weather("clear", "day", False, {})


def straight(speed_mps: float) -> Waypoints:
    x = speed_mps * 0.5 * np.arange(1, 7)
    return Waypoints(np.stack([x, 0 * x], axis=1), 0.5)


def ego(x: float, speed: float, y: float = 0.0, yaw: float = 0.0) -> EgoState:
    return EgoState(velocity_mps=np.array([speed, 0.0]), map_from_base=Pose2D(x, y, yaw))


def drive(ticks: int, noted: int, plan: Waypoints, aside: Aside = NOWHERE, touched: bool = False,
          learner: bool = False) -> list[Moment]:
    """Drive along x at 8 m/s; one moment is noted."""
    pilot = Pilot("hero", 1, np.random.default_rng(0), None)
    pilot.begin(straight_route(400.0), learner_drives=learner)
    for tick in range(ticks):
        state = ego(0.4 * (tick + 1), 8.0)
        pilot.see(state)
        if tick == noted:
            navigation = Navigation(np.array([[10.0, 0.0], [20.0, 0.0]]), NavCommand.FOLLOW)
            pilot.note(Moment(pilot.tick, state, aside, navigation, plan, CALM, "free", None, (), 0.0, 0.0, {}))
    return pilot.end(touched=touched)


def test_the_label_is_the_experts_plan_whatever_was_driven() -> None:
    (found,) = drive(100, 10, straight(7.0))
    np.testing.assert_array_equal(found.label.xy_m, straight(7.0).xy_m)


def test_moments_before_a_contact_are_left_out_unless_a_learner_drove_into_it() -> None:
    assert drive(60, 10, straight(8.0), touched=True) == []
    assert len(drive(80, 10, straight(8.0), touched=True)) == 1
    assert len(drive(60, 55, straight(0.0), touched=True, learner=True)) == 1


def test_a_learners_plan_is_driven_without_noise_unless_the_check_refuses_it() -> None:
    pilot, state = Pilot("hero", 1, np.random.default_rng(0), None), ego(0.0, 5.0)
    pilot.begin(straight_route(400.0), learner_drives=True)
    pilot.see(state)
    pilot.follow(Plan(0, straight(5.0)), state)
    calm = [pilot.command(state, noise_allowed=True) for _ in range(3000)]
    assert max(abs(command.steer_rad) for command in calm) < 1e-6
    pilot.follow(Plan(0, straight(0.0), check=Check(False, "no")), state)
    assert pilot.command(state, noise_allowed=True).accel_mps2 > -1.0
    pilot.follow(Plan(0, straight(0.0)), state)
    assert pilot.command(state, noise_allowed=True).accel_mps2 < -1.0


def test_a_picture_from_beside_has_a_label_that_comes_back_to_the_path() -> None:
    aside = Aside(0.8, math.radians(5.0))
    (found,) = drive(100, 10, straight(8.0), aside=aside)
    path = found.label.xy_m
    back = path @ np.array([[math.cos(aside.turned_rad), math.sin(aside.turned_rad)],
                            [-math.sin(aside.turned_rad), math.cos(aside.turned_rad)]]) + [0.0, 0.8]
    assert back[-1] == pytest.approx([24.0, 0.0], abs=0.05)
    assert back[:, 1].min() > -0.3
    assert path[0, 1] == pytest.approx(0.0, abs=0.45)  # at first straight on from where it looks
    np.testing.assert_allclose(rejoined(straight(0.0), aside).xy_m, 0.0, atol=1e-9)
    np.testing.assert_allclose(rejoined(straight(6.0), NOWHERE).xy_m, straight(6.0).xy_m, atol=1e-9)


def test_disturbances_stay_within_their_bounds_and_begin_only_where_they_may() -> None:
    rng = np.random.default_rng(1)
    noise, command = NoiseBursts(rng, 0.03), VehicleCommand(0.1, 1.0)
    assert all(noise.disturb(command, 8.0, allowed=False) == command for _ in range(2000))
    changed = [noise.disturb(command, 8.0) != command for _ in range(4000)]
    assert 0.1 < np.mean(changed) < 0.5
    pushes = [draw_push(rng) for _ in range(500)]
    assert max(abs(aside.left_m) for aside, _ in pushes) <= 0.9
    assert max(abs(aside.turned_rad) for aside, _ in pushes) <= math.radians(12.001)
    assert 0.15 < np.mean([draw_camera(rng) != NOWHERE for _ in range(1000)]) < 0.45


def test_a_stall_brakes_to_a_standstill_stays_there_and_lets_go() -> None:
    stalls, go = Stalls(np.random.default_rng(2), 0.0), VehicleCommand(0.1, 1.0)
    assert stalls.disturb(go, 8.0) == go
    for _ in range(20):
        stalls.begin()
        assert all(stalls.disturb(go, 8.0) == VehicleCommand(0.1, -3.0) for _ in range(100))  # still driving
        assert stalls.disturb(VehicleCommand(0.0, -7.0), 8.0).accel_mps2 == -7.0  # an emergency brake goes first
        stood = 0
        while stalls.disturb(go, 0.0) != go:
            stood += 1
        assert 0.5 <= (stood + 1) * 0.05 <= 1.6


def test_stalls_begin_only_where_they_may_and_as_often_as_said() -> None:
    stalls, go = Stalls(np.random.default_rng(3), 0.01), VehicleCommand(0.0, 1.0)
    assert all(stalls.disturb(go, 0.0, allowed=False) == go for _ in range(2000))
    given = [stalls.disturb(go, 0.0) for _ in range(20000)]
    begun = sum(one == go and two != go for one, two in itertools.pairwise(given))
    assert 110 <= begun <= 220


def test_a_stretch_that_begins_at_rest_begins_with_a_stall() -> None:
    def first_seconds(speed_mps: float) -> list[float]:
        pilot = Pilot("hero", 1, np.random.default_rng(0), None)
        pilot.begin(straight_route(400.0))
        asked = []
        for tick in range(90):
            state = ego(0.05 * tick * speed_mps, speed_mps)
            pilot.see(state)
            pilot._in_force = PlanInMap(Plan(0, straight(6.0)), state.map_from_base)
            asked.append(pilot.command(state, noise_allowed=False).accel_mps2)
        return asked

    held = first_seconds(0.0)
    assert set(held[:9]) == {-3.0}
    assert held[-1] > 0.0
    assert min(first_seconds(5.0)) > -3.0


def test_the_rest_of_a_route_begins_where_it_is_cut() -> None:
    route = straight_route(100.0)
    turn = Manoeuvre(60.0, 80.0, NavCommand.LEFT)
    route = type(route)(**{**{k: getattr(route, k) for k in ("route_id", "town", "xy_m", "yaw_rad", "z_m", "commands",
                                                             "length_m", "lanes")}, "manoeuvres": (turn,)})
    rest = rest_of(route, 40.0)
    assert (rest.start.x_m, rest.length_m, rest.goal_m[0]) == (40.0, 60.0, 100.0)
    assert (rest.manoeuvres[0].start_m, rest.manoeuvres[0].end_m) == (20.0, 40.0)


def test_a_schedule_is_a_matter_of_its_seed_and_drives_every_route_of_a_town_once_before_one_twice() -> None:
    specs = load_routes(ROUTES_FOLDER / "embedded-40.xml")
    one, other = Schedule(specs, 5, 60.0), Schedule(specs, 5, 60.0)
    blocks = [one.block(k) for k in range(10)]
    assert [other.block(k) for k in (9, 3)] == [blocks[9], blocks[3]]
    episodes = [episode for block in blocks for episode in block.episodes]
    assert [episode.index for episode in episodes] == list(range(10 * EPISODES_PER_BLOCK))
    assert sorted(episode.spec.id for episode in episodes) == sorted(spec.id for spec in specs)
    assert len({episode.seed for episode in episodes}) == len(episodes)
    assert Schedule(specs, 6, 60.0).block(0) != blocks[0]
    assert Schedule(specs, 5, 60.0, scenarios=False).block(0).episodes[0].spec.scenarios == ()


@pytest.mark.parametrize("first", [0, 17])
@pytest.mark.parametrize("seed", [0, 70, 71])
def test_any_few_blocks_in_a_row_have_their_share_of_each_town(seed: int, first: int) -> None:
    specs = [*load_routes(ROUTES_FOLDER / "embedded-40.xml"), *load_routes(ROUTES_FOLDER / "train.xml")]
    with_scenarios = sum(bool(spec.scenarios) for spec in specs)
    share = with_scenarios / (with_scenarios + PLAIN_WEIGHT * (len(specs) - with_scenarios))
    schedule = Schedule(specs, seed, 60.0)
    for count in (8, 16, 40):
        towns = [schedule.block(k).town for k in range(first, first + count)]
        assert abs(towns.count("Wamtown02") - count * share) < 1.5


def test_weathers_have_the_words_that_their_numbers_mean() -> None:
    rng = np.random.default_rng(0)
    for weather in [draw_weather(rng) for _ in range(300)]:
        values = weather.values
        assert (values["precipitation"] > 0) == (weather.sky == "rain")
        assert (values["fog_density"] > 40) == (weather.sky == "fog")
        assert (values["sun_altitude_angle"] < -8) == (weather.time == "night")
        assert (values["wetness"] > 50) == weather.wet
    assert len({draw_weather(rng).id for _ in range(300)}) == 12


def seen(thing_id: int, label: str, state: str = "", status: Status = Status.SEEN, distance: float = 20.0) -> Seen:
    return Seen(Thing(thing_id, label, state), (125.0, 60.0, 145.0, 75.0), distance, 1.0, status)


def scene(found: list[Seen], waypoints: Waypoints, speed: float, **situation: object) -> QuestionScene:
    values = {**CALM.__dict__, **situation}
    return QuestionScene(found, Situation(**values), waypoints, speed, DAY)


def test_only_what_the_picture_shows_is_asked_about() -> None:
    red = {"light_id": 4, "light_state": "red", "light_m": 20.0, "reason": "red light", "reason_id": 4}
    shown = scene([seen(4, "traffic light", "red", distance=23.1)], straight(0.0), 0.0, **red)
    assert light(shown) == "Yes, red, 24 m."
    assert decision(shown) == "Wait, because the light is red."
    for status in (Status.UNSURE, Status.HIDDEN):
        hidden = scene([seen(4, "traffic light", "red", status)], straight(0.0), 0.0, **red)
        assert decision(hidden) is None
        assert light(hidden) == (None if status is Status.UNSURE else "No.")
    # another light that looks this way is no answer
    assert light(scene([seen(5, "traffic light", "green")], straight(8.0), 8.0)) is None
    assert light(scene([], straight(8.0), 8.0)) == "No."


def test_answers_about_who_is_ahead() -> None:
    ahead = Lead(9, "vehicle.audi.tt", 11.7, 0.0)
    assert lead(scene([seen(9, "car")], straight(0.0), 0.0, lead=ahead)) == "Yes, 12 m, standing."
    assert lead(scene([], straight(0.0), 0.0, lead=ahead)) is None
    assert lead(scene([seen(8, "car")], straight(8.0), 8.0)) is None  # in the middle of the picture, but no leader
    assert lead(scene([], straight(8.0), 8.0)) == "No."
    person = Beside(3, 9.0, -3.0)
    assert pedestrian(scene([seen(3, "pedestrian")], straight(8.0), 8.0, people=(person,))) == (
        "Yes, on the right, 8 m."
    )
    assert pedestrian(scene([], straight(8.0), 8.0, people=(person,))) is None
    # The path bends: what is on its right side is in the left half of the picture.
    bend = replace(seen(3, "pedestrian"), rect_px=(40.0, 60.0, 44.0, 75.0))
    assert pedestrian(scene([bend], straight(8.0), 8.0, people=(person,))) == "Yes, on the left, 8 m."
    assert pedestrian(scene([bend], straight(8.0), 8.0, people=(Beside(3, 9.0, 0.0),))) == "Yes, ahead, 8 m."
    braking = scene([seen(9, "car")], straight(4.0), 8.0, lead=ahead, reason="vehicle.audi.tt", reason_id=9)
    assert decision(braking) == "Slow down, because a vehicle is ahead."
    assert [metres(value) for value in (0.4, 9.0, 11.7, 29.4, 43.0)] == ["2 m", "8 m", "12 m", "30 m", "45 m"]


def test_questions_come_from_the_picture_and_the_draw_alone() -> None:
    free = scene([seen(9, "car")], straight(8.0), 8.0)
    drawn = [ask(free, np.random.default_rng(k)) for k in range(50)]
    assert drawn == [ask(free, np.random.default_rng(k)) for k in range(50)]
    assert max(map(len, drawn)) <= 4
    kinds = {question.kind for questions in drawn for question in questions}
    assert {"decision", "nearest", "weather"} <= kinds


def test_tags_name_what_decides() -> None:
    red = SimpleNamespace(**{**CALM.__dict__, "light_id": 4, "light_state": "red", "light_m": 20.0})
    cases = [
        (CALM, 8.0, NavCommand.FOLLOW, straight(8.0), "free"),
        (CALM, 0.0, NavCommand.FOLLOW, straight(0.0), "standing"),
        (CALM, 0.0, NavCommand.FOLLOW, straight(3.0), "starting"), (red, 8.0, NavCommand.FOLLOW, straight(8.0), "red"),
        (CALM, 8.0, NavCommand.FOLLOW, straight(2.0), "stopping"), (CALM, 8.0, NavCommand.LEFT, straight(8.0), "turn"),
    ]  # fmt: skip
    for situation, speed, command, plan, tag in cases:
        assert tag_of(situation, speed, command, plan) == tag  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tag", "speed_mps", "standing_s", "share"),
    [
        ("hazard", 0.0, 0.0, 1.0), ("hazard", 0.0, 1.4, 1.0), ("hazard", 0.0, 1.6, KEEP_RATES["standing"]),
        ("hazard", 3.0, 20.0, 1.0), ("standing", 0.0, 1.4, 1.0), ("standing", 0.0, 1.6, KEEP_RATES["standing"]),
        ("starting", 3.0, 20.0, 1.0), ("free", 8.0, 0.0, KEEP_RATES["free"]),
    ],
)  # fmt: skip
def test_who_stands_and_stays_is_kept_whole_for_its_first_moments_only(
    tag: str, speed_mps: float, standing_s: float, share: float
) -> None:
    assert keep_rate(tag, straight(speed_mps), standing_s) == share
