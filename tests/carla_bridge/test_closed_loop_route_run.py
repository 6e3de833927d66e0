"""The drive loop: who sees what, when plans act, what happens without them."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.agents.agent import Needs, View
from carla_bridge.agents.in_process import ConstantVelocity, InProcessAgent, NoPlanner, RouteOnly
from carla_bridge.agents.linked import Patience
from carla_bridge.drive.latency import LatencyMode
from carla_bridge.drive.planner_loss import PlannerLoss
from carla_bridge.drive.route_run import HOLD, PLAN_EVERY_TICKS, RouteRun, RouteSetup, Uneventful
from carla_bridge.leaderboard.criteria import RouteCriteria
from carla_bridge.leaderboard.record import RouteRecord, RouteStatus
from carla_bridge.leaderboard.verdict import Outcome
from carla_bridge.recording.recorder import RouteRecorder
from carla_bridge.recording.results import read_plans, read_ticks
from tests.carla_bridge.drive_doubles import (
    TICK_NS,
    FakeLink,
    FakeWorld,
    drive_route,
    linked,
    straight_map,
    straight_plan,
    straight_route,
    unreadable_plan,
)
from wamdiff2_core.config import CameraSpec
from wamdiff2_core.types import EgoState, Pose2D, VehicleCommand

MS = 1_000_000
PATIENT = Patience()


def drive(tmp_path, agent, world=None, *, patience=PATIENT, route=None, display="display", **setup):
    route = route or straight_route()
    agent = linked(agent, patience) if isinstance(agent, FakeLink) else agent
    setup = RouteSetup(route, display, **setup)
    result = drive_route(tmp_path, agent, world or FakeWorld(), route, setup)
    return result, read_ticks(tmp_path), read_plans(tmp_path)


def promptly(wall_ms=20):
    return FakeLink(lambda stamp_ns: (straight_plan(stamp_ns), wall_ms * MS))


def test_straight_plans_complete_a_straight_route(tmp_path):
    result, ticks, plans = drive(tmp_path, promptly())
    assert result.outcome is Outcome.COMPLETED
    assert result.completion_pct == 100.0
    assert (result.plans, result.plans_missing, result.plans_unreadable) == (result.frames_sent, 0, 0)
    assert result.driven_m == pytest.approx(60.0, abs=1.5)
    assert result.latency_ms == {"p50": 20.0, "p95": 20.0, "max": 20.0}
    assert result.decode["forwards"] == 4.0
    assert np.diff([tick.t_ns for tick in ticks]).tolist() == [TICK_NS] * (len(ticks) - 1)
    assert np.diff([plan.t_ns for plan in plans]).tolist() == [5 * TICK_NS] * (len(plans) - 1)
    assert {path.name for path in (tmp_path / "frames").iterdir()} == {plan.image for plan in plans}


def test_lockstep_uses_the_plan_of_a_frame_on_that_very_tick(tmp_path):
    _, ticks, plans = drive(tmp_path, promptly(wall_ms=3000))
    stamps = {plan.t_ns for plan in plans}
    assert all(tick.plan_t_ns == max(s for s in stamps if s <= tick.t_ns) for tick in ticks)


@pytest.mark.parametrize(("mode", "wall_ms", "delay_ms"), [("measured", 180, 180), ("300", 20, 300), ("0", 500, 0)])
def test_no_plan_acts_before_its_delay_and_frames_due_meanwhile_are_not_sent(tmp_path, mode, wall_ms, delay_ms):
    result, ticks, plans = drive(tmp_path, promptly(wall_ms), latency=LatencyMode.parse(mode))
    assert result.outcome is Outcome.COMPLETED
    acted = [tick for tick in ticks if tick.plan_t_ns >= 0]
    assert all(tick.t_ns - tick.plan_t_ns >= delay_ms * MS for tick in acted)
    first: dict[int, int] = {}
    for tick in acted:
        first.setdefault(tick.plan_t_ns, tick.t_ns - tick.plan_t_ns)
    assert all(delay <= delay_ms * MS + TICK_NS for delay in first.values())
    gaps = np.diff([plan.t_ns for plan in plans])
    assert gaps.min() >= max(delay_ms * MS, 5 * TICK_NS)
    assert all(plan.acts_after_ms == delay_ms for plan in plans)


def test_a_blanked_camera_shows_black_to_the_planner_and_the_recording_and_nothing_else(tmp_path):
    sent = []
    link = promptly()
    plain = link.send
    link.send = lambda frame, navigation: (sent.append(frame), plain(frame, navigation))[1]
    _, ticks, _ = drive(tmp_path / "blank", link, blank_camera=True)
    assert sent
    for frame in sent:
        for name, image in frame.images.items():
            assert image.rgb.any() == (name == "display")
    _, seeing, _ = drive(tmp_path / "seeing", promptly())
    assert ticks == seeing


def test_before_the_first_plan_acts_the_vehicle_brakes(tmp_path):
    world = FakeWorld(speed_mps=0.0)
    _, ticks, _ = drive(tmp_path, promptly(), world, latency=LatencyMode.parse("400"))
    waiting = [tick for tick in ticks if tick.plan_t_ns < 0]
    assert len(waiting) == 8
    assert all(tick.accel_cmd_mps2 < 0 for tick in waiting)


def test_lost_planner_is_waited_for_once_then_the_vehicle_brakes_at_once_and_the_route_says_why(tmp_path):
    link = FakeLink(lambda stamp_ns: (straight_plan(stamp_ns), MS) if stamp_ns < 8 * 10**9 else None)
    result, ticks, plans = drive(tmp_path, link, patience=Patience(5.0, 0.05), route=straight_route(300.0))
    assert result.outcome is Outcome.PLANNER_LOST
    assert "no plan within 5 s" in result.reason
    assert "SIGKILL" in result.reason
    assert [limit for _, limit in link.waits if limit == 5.0] == [5.0] * (result.plans + 1)
    assert {limit for _, limit in link.waits[result.plans + 1 :]} == {0.05}
    lost_ns = next(plan.t_ns for plan in plans if not plan.received)
    after = [tick for tick in ticks if tick.t_ns >= lost_ns]
    assert after[0].speed_mps > 5.5
    assert all(tick.accel_cmd_mps2 < 0 and tick.plan_t_ns == -1 for tick in after)
    assert next(tick.t_ns for tick in after if tick.speed_mps < 0.1) - lost_ns < 3 * 10**9
    assert [item.kind for item in result.infractions] == ["planner lost"]


def test_planner_that_only_hangs_gets_time_once_the_vehicle_stands(tmp_path):
    link = FakeLink(lambda stamp_ns: (straight_plan(stamp_ns), MS) if stamp_ns < 4 * 10**9 else None, why="")
    _, ticks, plans = drive(tmp_path, link, patience=Patience(5.0, 0.05, 1.0))
    speeds = {tick.t_ns: tick.speed_mps for tick in ticks}
    silent = [(plan, limit) for plan, (_, limit) in zip(plans, link.waits, strict=True) if not plan.received]
    assert silent[0][1] == 5.0
    assert [limit for _, limit in silent[1:]] == [1.0 if speeds[plan.t_ns] < 0.1 else 0.05 for plan, _ in silent[1:]]
    assert silent[-1][1] == 1.0
    assert [plan.message for plan, _ in silent] == [f"no plan within {limit:g} s of wall time" for _, limit in silent]


def test_silence_is_of_the_last_moment_alone():
    answers = iter([None, (straight_plan(1), MS), None])
    planner = linked(FakeLink(lambda stamp_ns: next(answers), why=""), Patience(5.0, 0.05, 1.0))
    said = []
    for _ in range(3):
        planner.act(View(FakeWorld().tick(), None))
        said.append(planner.silence())
    assert said == ["no plan within 5 s of wall time", "", "no plan within 5 s of wall time"]


def test_planner_that_comes_back_is_trusted_again(tmp_path):
    def answer(stamp_ns):
        return None if 4 * 10**9 < stamp_ns < 5 * 10**9 else (straight_plan(stamp_ns), MS)

    result, ticks, _ = drive(tmp_path, FakeLink(answer))
    assert result.outcome is Outcome.COMPLETED
    assert result.plans_missing == 3
    assert [item.kind for item in result.infractions] == ["planner lost"]
    assert min(tick.accel_cmd_mps2 for tick in ticks) < -5.0


def test_late_plan_of_an_old_frame_restores_the_full_wait(tmp_path):
    silent_from, late_at = 2 * 10**9, 2 * 10**9 + 4 * 250 * MS

    def answer(stamp_ns):
        link.late += stamp_ns == late_at
        return (straight_plan(stamp_ns), MS) if stamp_ns < silent_from else None

    link = FakeLink(answer)
    drive(tmp_path, link, patience=Patience(5.0, 0.05))
    waits = dict(link.waits)
    full = [stamp_ns for stamp_ns, limit in waits.items() if limit == 5.0 and stamp_ns >= silent_from]
    assert full == [silent_from, late_at + 250 * MS]


def test_unreadable_answer_leaves_the_last_good_plan_in_force_until_it_is_stale(tmp_path):
    def answer(stamp_ns):
        return (straight_plan(stamp_ns) if stamp_ns < 4 * 10**9 else unreadable_plan(stamp_ns)), MS

    result, ticks, plans = drive(tmp_path, FakeLink(answer), route=straight_route(300.0))
    good = [plan for plan in plans if plan.ok]
    bad_ns = next(plan.t_ns for plan in plans if not plan.ok)
    soon = [tick for tick in ticks if bad_ns <= tick.t_ns < bad_ns + 5 * 10**8]
    late = [tick for tick in ticks if tick.t_ns > good[-1].t_ns + 11 * 10**8]
    assert all(tick.plan_t_ns == good[-1].t_ns and tick.accel_cmd_mps2 > -1 for tick in soon)
    assert all(tick.accel_cmd_mps2 <= -3 for tick in late)
    assert result.plans_unreadable == len(plans) - len(good) > 0
    assert result.outcome is Outcome.BLOCKED
    assert "s old" in result.reason


def test_without_a_planner_the_vehicle_stands_no_plan_is_missing_and_the_route_is_blocked(tmp_path):
    result, ticks, plans = drive(tmp_path, NoPlanner())
    assert result.outcome is Outcome.BLOCKED
    assert result.plans_missing == 0
    assert [item.kind for item in result.infractions] == ["vehicle_blocked"]
    assert {plan.message for plan in plans} == {"no planner"}
    assert ticks[-1].t_ns == pytest.approx(60 * 10**9, abs=3 * TICK_NS)


def test_a_wall_is_a_collision_of_the_record_and_the_vehicle_is_blocked_there(tmp_path):
    result, _, _ = drive(tmp_path, promptly(), FakeWorld(wall_x_m=30.0))
    assert result.outcome is Outcome.BLOCKED
    assert [item.kind for item in result.infractions] == ["collisions_layout", "vehicle_blocked"]
    assert "static.building" in result.infractions[0].detail
    assert result.completion_pct == pytest.approx(50.0, abs=2.0)
    record = RouteRecord.from_json(result.record)
    assert record.status == RouteStatus.BLOCKED
    assert record.score_composed == pytest.approx(0.65 * result.completion_pct, abs=1e-3)


def test_target_points_are_those_of_the_route_seen_from_the_vehicle(tmp_path):
    _, _, plans = drive(tmp_path, promptly(), FakeWorld(y_m=0.5))
    assert plans[0].targets_m[0] == pytest.approx([10.0, -0.5], abs=1e-6)
    assert plans[0].targets_m[1] == pytest.approx([20.0, -0.5], abs=1e-6)


def test_loss_ends_the_route_after_two_seconds_of_standing_and_a_plan_forgives_it():
    loss, ego = PlannerLoss(), EgoState(map_from_base=Pose2D(3.0, 4.0, 0.0))
    loss.lost(1.0, ego, "no plan")
    assert [loss.update(t_s, speed) for t_s, speed in ((1.0, 5.0), (3.0, 0.05), (4.95, 0.0))] == [None] * 3
    loss.back()
    assert loss.update(5.0, 0.0) is None
    loss.lost(6.0, ego, "no plan again")
    assert [loss.update(t_s, 0.0) for t_s in (6.0, 7.95)] == [None] * 2
    verdict = loss.update(8.0, 0.0)
    assert (verdict.outcome, verdict.reason) == (
        Outcome.PLANNER_LOST, "no plan again at 6.00 s; the vehicle braked and stood 0.00 s later"
    )
    assert [(item.kind, item.t_s, item.x_m) for item in loss.infractions] == [
        ("planner lost", 1.0, 3.0), ("planner lost", 6.0, 3.0)
    ]


def test_scenarios_are_stepped_before_the_agent_acts_may_disturb_the_command_and_are_closed(tmp_path):
    world, steps, closed = FakeWorld(), [], []

    class Slippery(Uneventful):
        def step(self, around):
            steps.append(around.stamp_ns)

        def disturb(self, command):
            return VehicleCommand(command.steer_rad, min(command.accel_mps2, 0.5))

        def close(self):
            closed.append(len(steps))

    route, agent = straight_route(), RouteOnly()
    agent.start(route, straight_map())
    with RouteRecorder(tmp_path, route) as recorder:
        run = RouteRun(RouteSetup(route), world, agent, RouteCriteria(route, straight_map()), recorder, Slippery())
        result = run.drive()
    ticks = read_ticks(tmp_path)
    assert result.completed
    assert len(steps) == len(ticks)
    assert closed == [len(steps)]
    assert max(tick.accel_cmd_mps2 for tick in ticks) > 1.5
    assert max(np.diff([tick.speed_mps for tick in ticks])) == pytest.approx(0.5 * 0.05)


@pytest.mark.parametrize("ticks_before", [0, 1, 3, 4, 17])
def test_vehicle_is_held_equally_long_before_every_route(tmp_path, ticks_before):
    """Actuators lag: otherwise the first second would depend on how long the sensors took to come alive."""
    world = FakeWorld(ticks=ticks_before)
    drive(tmp_path, promptly(), world)
    held = [command is HOLD for command in world.commands]
    assert sum(held) == 10
    assert held[held.index(True) :][:10] == [True] * 10


def test_an_agent_that_raises_ends_the_route_and_its_words_are_the_reason(tmp_path):
    class Clumsy(InProcessAgent):
        def plan(self, view):
            if view.frame.stamp_ns > 3 * 10**9:
                raise ZeroDivisionError("division by zero")
            return straight_plan(view.frame.stamp_ns)

    result, ticks, plans = drive(tmp_path, Clumsy("clumsy", Needs()))
    assert (result.outcome, result.reason) == (Outcome.AGENT_CRASHED, "ZeroDivisionError: division by zero")
    assert result.plans == len(plans) > 5
    assert ticks[-1].t_ns < 3 * 10**9


def test_an_agent_without_cameras_plans_at_the_same_pace_and_takes_no_pictures(tmp_path):
    result, _, plans = drive(tmp_path, RouteOnly(), display="")
    assert result.outcome is Outcome.COMPLETED
    assert result.plans == result.frames_sent == len(plans)
    assert np.diff([plan.t_ns for plan in plans]).tolist() == [PLAN_EVERY_TICKS * TICK_NS] * (len(plans) - 1)
    assert {plan.image for plan in plans} == {""}
    assert not any((tmp_path / "frames").iterdir())


@pytest.mark.parametrize("ticks_before", [0, 2, 4])
def test_pictures_for_people_do_not_shift_the_plans_of_an_agent_without_cameras(tmp_path, ticks_before):
    worlds = [FakeWorld(ticks=ticks_before) for _ in range(2)]
    (result, shown_ticks, shown_plans), (_, ticks, plans) = (
        drive(tmp_path / f"run{name}", RouteOnly(), world, display=name)
        for name, world in zip(("display", ""), worlds, strict=True)
    )
    assert result.outcome is Outcome.COMPLETED
    assert worlds[0].commands == worlds[1].commands, "from the very first tick on, as the brake lags"
    assert shown_ticks == ticks
    assert [plan.t_ns for plan in shown_plans] == [plan.t_ns for plan in plans]
    assert all(plan.image for plan in shown_plans)


class Thinker(InProcessAgent):
    """Takes its time, in a world that does not wait."""

    def plan(self, view):
        time.sleep(0.03)
        return straight_plan(view.frame.stamp_ns)


class Passing(FakeWorld):
    """A world whose owner ticks every 3 ms, and whose pictures come two ticks after their step."""

    def tick(self):
        time.sleep(0.003)
        frame = super().tick()
        self.steps = [*getattr(self, "steps", []), frame][-3:]
        late = self.steps[0] if len(self.steps) == 3 and self.steps[0].images else None
        return replace(frame, images={}, pictured=late)


def test_a_world_that_goes_on_is_steered_while_the_agent_thinks(tmp_path):
    agent = Thinker("thinker", Needs((CameraSpec(),)))
    result, ticks, plans = drive(tmp_path, agent, Passing(), latency=LatencyMode("live"))
    assert result.outcome is Outcome.COMPLETED
    assert [round(step) for step in np.diff([tick.t_ns for tick in ticks]) / TICK_NS] == [1] * (len(ticks) - 1)
    for plan in plans:
        acting = next((tick for tick in ticks if tick.plan_t_ns == plan.t_ns), None)
        if acting is not None:
            assert acting.t_ns - plan.t_ns == pytest.approx(plan.acts_after_ms * 1e6)
            assert plan.acts_after_ms >= 3 * 50.0  # two ticks for the picture, and at least one of thinking
        assert (plan.t_ns // TICK_NS) % 5 == (plans[0].t_ns // TICK_NS) % 5
        assert plan.image
    assert (plans[0].t_ns, ticks[0].t_ns) == (0, 2 * TICK_NS), "the route begins with the first picture"


def test_an_agent_that_raises_while_the_world_goes_on_ends_the_route(tmp_path):
    class Clumsy(Thinker):
        def plan(self, view):
            raise ZeroDivisionError("division by zero")

    result, _, _ = drive(tmp_path, Clumsy("clumsy", Needs((CameraSpec(),))), Passing(), latency=LatencyMode("live"))
    assert (result.outcome, result.reason) == (Outcome.AGENT_CRASHED, "ZeroDivisionError: division by zero")


def test_constant_velocity_keeps_its_speed_and_direction_whatever_the_route_does(tmp_path):
    agent = ConstantVelocity()
    result, ticks, _ = drive(tmp_path, agent, FakeWorld(yaw_rad=0.2))
    assert result.outcome is Outcome.OFF_ROUTE
    assert ticks[-1].speed_mps == pytest.approx(agent.speed_mps, abs=0.3)
    assert [tick.yaw_rad for tick in ticks] == pytest.approx([0.2] * len(ticks), abs=1e-9)


def test_surroundings_are_for_the_agents_that_need_them_only(tmp_path):
    class Curious(InProcessAgent):
        def plan(self, view):
            seen.append(view.surroundings and view.surroundings.frame)
            return straight_plan(view.frame.stamp_ns)

    seen: list[int | None] = []
    drive(tmp_path / "a", Curious("eye", Needs(surroundings=True)))
    assert seen[:2] == [11, 16]
    seen.clear()
    drive(tmp_path / "b", Curious("blind", Needs()))
    assert set(seen) == {None}
