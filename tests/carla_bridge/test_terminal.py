"""What a drive says on the terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.agents.choice import AgentChoice
from carla_bridge.drive import drive
from carla_bridge.drive.driver import DriveConfig
from carla_bridge.drive.terminal import final_line, route_line
from carla_bridge.leaderboard.infractions import Infraction as Entry
from carla_bridge.leaderboard.record import RouteRecord, RouteStatus
from carla_bridge.recording.results import TimedInfraction, latency_figures
from carla_bridge.routes.route_file import load_routes
from tests.carla_bridge import kill_anywhere
from tests.carla_bridge.run_doubles import write_route
from tests.carla_bridge.test_closed_loop_results import DRIVE, ROUTE
from wamdiff2_core.errors import ExitCode, UserError

pytestmark = pytest.mark.carla

HIT = Entry.collision("vehicle.audi.tt", 2, (30.0, 0.0, 0.0))
RED = replace(
    ROUTE,
    infractions=tuple(
        TimedInfraction(kind, 1.0, 0.0, 0.0) for kind in ("red_light", "red_light", "collisions_vehicle")
    ),
    record=RouteRecord.of_drive("1", 100.0, [HIT], RouteStatus.BLOCKED, town="Wamtown01").to_json(0),
)
SLOW = replace(ROUTE, infractions=(TimedInfraction("min_speed_infractions", 1.0, 0.0, 0.0),))


@pytest.fixture
def config(tmp_path):
    routes = tmp_path / "routes.xml"
    kill_anywhere.write_routes(routes, 1)
    return DriveConfig(routes=routes, agent=AgentChoice.parse("none"), out=tmp_path / "run", video=False)


class NoDriver:
    """Stopped by the user before it is ready."""

    def __init__(self, *_):
        pass

    def __enter__(self):
        raise KeyboardInterrupt

    def __exit__(self, *_):
        pass


def test_a_goal_reached_with_infractions_does_not_look_like_a_success():
    line = route_line("route 1", RED, "reached the goal")
    assert line.plain == ("! route 1 100.0 % of 50 m  completed, driving score 60.0, 2 x red light, 1 x hit vehicle"
                          "  reached the goal")
    assert "green" not in str(line.spans)
    assert route_line("route 1", SLOW, "").plain.startswith("✓ route 1 100.0 % of 50 m  completed ")
    last = final_line(replace(DRIVE, routes=(RED, SLOW), routes_wanted=2), {}, "there")
    assert last.plain.startswith("2/2 routes completed, 1 of them with infractions, ")
    assert "green" not in str(last.spans)
    assert "green" in str(final_line(replace(DRIVE, routes=(SLOW,)), {}, "there").spans)


def test_the_last_line_has_the_latency_over_all_plans(config):
    short = write_route(config.out, 0, route_id="0", ticks=20)
    long = write_route(config.out, 1, route_id="1", ticks=200)
    plans = config.out / long.folder / "plans.jsonl"
    plans.write_text(plans.read_text().replace('"wall_ms": 12.0', '"wall_ms": 30.0'))
    whole = drive.Drive(config, load_routes(config.routes))
    whole._results = replace(whole._results, routes=(short, long))
    assert whole._latency() == latency_figures([12.0] * 4 + [30.0] * 40)
    assert ", 30 ms median, 30 ms p95," in final_line(whole._results, whole._latency(), "there").plain


def test_a_drive_that_was_stopped_before_it_drove_leaves_no_page_and_keeps_the_earlier_run(config, monkeypatch, capsys):
    monkeypatch.setattr(drive, "Driver", NoDriver)
    config.out.mkdir()
    DRIVE.save(config.out)
    results = drive.Drive(config, load_routes(config.routes)).run()
    assert results.exit_code == ExitCode.FAILED_ITEMS
    assert not (config.out / "index.html").exists()
    assert (config.out / "previous" / "20261129-000000" / "results.json").is_file()
    assert "the earlier run is kept in " in capsys.readouterr().out


def test_arguments_are_checked_before_an_earlier_run_moves(config, tmp_path):
    with pytest.raises(UserError, match="carla: expected HOST:PORT"):
        replace(config, carla="localhost")
    config.out.mkdir()
    DRIVE.save(config.out)
    agent = AgentChoice("folder", "checkpoint", "in-process", tmp_path)
    with pytest.raises(UserError, match="device: expected a device of this machine"):
        drive.Drive(replace(config, agent=agent, device="cdua"), load_routes(config.routes)).run()
    assert not (config.out / "previous").exists()
