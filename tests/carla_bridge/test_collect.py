"""Collecting: labels are the expert's, runs repeat, and a killed one goes on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge import collect as collecting
from carla_bridge.agents.route_follower import RouteFollower
from carla_bridge.client.client import CameraMount, Simulation
from carla_bridge.client.server_process import ServerProcess
from carla_bridge.collect import RouteDriver, collect, driven_episode
from carla_bridge.nano import NANO_CAMERA, NANO_TASK
from carla_bridge.perturbation import NoiseBursts, sample_state
from carla_bridge.routes.navigation import RoutePlan
from carla_bridge.routes.route_file import load_routes
from carla_bridge.routes.route_planner import RoutePlanner
from carla_bridge.server.town.town import Town
from wamdiff2_core.conversations import read_rgb
from wamdiff2_core.dataset import read_dataset
from wamdiff2_core.errors import UserError
from wamdiff2_core.frames import pose_from_carla
from wamdiff2_core.tasks.planning import parse_waypoints
from wamdiff2_core.types import VehicleCommand

pytestmark = pytest.mark.carla
TRAIN = Path(__file__).resolve().parents[2] / "carla_bridge" / "routes" / "train.xml"
LIT_TOWN, LIT_SEED = "Wamtown02", 0  # with this seed the car drives up to a traffic light


@pytest.fixture(scope="module")
def routes_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first training routes, for short planning."""
    from xml.etree import ElementTree

    tree = ElementTree.parse(TRAIN)
    root = tree.getroot()
    for route in root.findall("route")[6:]:
        root.remove(route)
    file = tmp_path_factory.mktemp("routes") / "few.xml"
    tree.write(file)
    return file


@pytest.fixture(scope="module")
def route(routes_file: Path) -> RoutePlan:
    return RoutePlanner(Town.load().map).plan(load_routes(routes_file)[0])


def place(routes: Path, out: Path, samples: int, seed: int = 3) -> str:
    collect(routes, out, samples, seed, images=False, carla="")
    return (out / "samples.jsonl").read_text()


def test_placed_samples_hold_the_question_and_a_readable_answer(routes_file: Path, tmp_path: Path) -> None:
    place(routes_file, tmp_path, 300)
    samples = read_dataset(tmp_path / "samples.jsonl")
    assert len(samples) == 300
    for sample in samples:
        waypoints = parse_waypoints(sample.answer, NANO_TASK)
        assert np.abs(waypoints.xy_m - np.array(sample.extra["waypoints_m"])).max() <= 0.051
        # the text has y to the right, the extra keys are REP-103
        x, y = sample.extra["targets_m"][0]
        shown = sample.prompt.partition("Target: [")[2].partition("]")[0].split(", ")
        assert [float(v) for v in shown] == pytest.approx([x, -y], abs=0.051)
        speed = float(sample.prompt.partition("Current velocity is: ")[2].partition("\n")[0])
        assert speed == pytest.approx(sample.extra["speed_mps"], abs=0.051)
        assert sample.extra["source"] == "states"
        assert "<image>" not in sample.prompt
    assert {"LEFT", "RIGHT", "FOLLOW"} <= {sample.extra["command"] for sample in samples}


def test_a_seed_gives_the_same_file_and_another_seed_another(routes_file: Path, tmp_path: Path) -> None:
    first = place(routes_file, tmp_path / "a", 150)
    assert place(routes_file, tmp_path / "b", 150) == first
    assert place(routes_file, tmp_path / "c", 150, seed=4) != first


def test_a_killed_collection_goes_on_to_the_same_end(
    routes_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = place(routes_file, tmp_path / "whole", 300)
    original, calls = collecting.placed_episode, []

    def killed(*args: object) -> object:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(collecting, "placed_episode", killed)
    with pytest.raises(KeyboardInterrupt):
        place(routes_file, tmp_path / "killed", 300)
    monkeypatch.undo()
    torn = tmp_path / "killed" / "samples.jsonl"
    torn.write_text(torn.read_text() + '{"id": "torn')
    assert place(routes_file, tmp_path / "killed", 300) == whole


def test_a_folder_of_other_settings_is_refused(routes_file: Path, tmp_path: Path) -> None:
    place(routes_file, tmp_path, 100)
    with pytest.raises(UserError, match="same routes, seed and kind"):
        place(routes_file, tmp_path, 100, seed=9)


def test_bad_options_are_user_errors(routes_file: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="routes"):
        collect(tmp_path / "none.xml", tmp_path / "x", 10, 0, images=False, carla="")
    with pytest.raises(UserError, match="HOST:PORT"):
        collect(routes_file, tmp_path / "y", 10, 0, images=True, carla="nonsense")


def test_states_cover_the_stated_ranges(route: RoutePlan) -> None:
    expert, rng = RouteFollower(route), np.random.default_rng(0)
    states = [sample_state(route, expert, rng) for _ in range(3000)]
    offsets, headings = [], []
    for state in states:
        x, y = route.at(np.array([state.progress_m]))[0]
        yaw = np.interp(state.progress_m, route.arc_m, np.unwrap(route.yaw_rad))
        dx, dy = state.map_from_base.x_m - x, state.map_from_base.y_m - y
        offsets.append(-dx * math.sin(yaw) + dy * math.cos(yaw))
        headings.append((state.map_from_base.yaw_rad - yaw + math.pi) % (2 * math.pi) - math.pi)
    speeds = [state.speed_mps for state in states]
    assert np.quantile(np.abs(offsets), 0.5) < 0.6
    assert 1.0 < np.quantile(np.abs(offsets), 0.97) < 2.05
    assert np.rad2deg(np.quantile(np.abs(headings), 0.97)) > 13.0
    assert abs(np.mean(offsets)) < 0.08
    assert (min(speeds), max(speeds)) == pytest.approx((0.0, 9.0), abs=0.1)


def test_noise_comes_in_bursts_and_leaves_the_command_alone_between_them() -> None:
    noise, command = NoiseBursts(np.random.default_rng(1)), VehicleCommand(0.1, 1.0)
    changed = [noise.disturb(command, 8.0) != command for _ in range(4000)]
    edges = np.flatnonzero(np.diff(np.array(changed, dtype=int)) == 1)
    assert 0.1 < np.mean(changed) < 0.5
    assert len(edges) > 30
    lengths = [next(k for k, on in enumerate(changed[edge + 1 :]) if not on) for edge in edges[:-1]]
    assert min(lengths) >= 6


def test_driven_samples_have_pictures_and_do_not_depend_on_what_was_driven_before(
    routes_file: Path, tmp_path: Path, server_port: int
) -> None:
    for name in ("a", "b"):
        collect(routes_file, tmp_path / name, 20, 5, images=True, carla=f"127.0.0.1:{server_port}")
    first, second = (read_dataset(tmp_path / name / "samples.jsonl") for name in ("a", "b"))
    assert len(first) == 20
    for one, other in zip(first, second, strict=True):
        assert one.prompt == other.prompt
        assert one.answer == other.answer
        assert read_rgb(one.images[0]).shape == (128, 256, 3)
        assert one.images[0].read_bytes() == other.images[0].read_bytes()
        assert one.extra["source"] == "drive"
    assert json.loads((tmp_path / "a" / "collect.json").read_text())["images"] is True


def test_an_episode_does_not_depend_on_how_the_car_was_driven_before_it_nor_on_what_the_lights_showed(
    tmp_path: Path,
) -> None:
    specs = [spec for spec in load_routes(TRAIN.with_name("embedded-40.xml")) if spec.town == LIT_TOWN]
    with ServerProcess(LIT_TOWN, 0, tmp_path / "server.log") as server:
        host, port = server.wait()
        start = specs[0].keypoints_carla[0]
        with Simulation(
            host, port, ego_pose=pose_from_carla(start[0], start[1], 0.0), cameras=[CameraMount(NANO_CAMERA, 8)]
        ) as simulation:
            plans = [RoutePlanner(simulation.map).plan(spec) for spec in specs[:4]]
            drivers = [RouteDriver(plan, RouteFollower(plan)) for plan in plans]
            episodes = []
            for ticks in (0, 45):
                for _ in range(ticks):
                    simulation.apply(VehicleCommand(0.3, -2.0 if simulation.tick().frame % 2 else 4.0))
                while not simulation.tick().images:
                    pass
                rng = np.random.default_rng(LIT_SEED)
                episodes.append(list(driven_episode(simulation, drivers, rng, NANO_TASK)))
    first, second = episodes
    assert len(first) == len(second) > 4
    for one, other in zip(first, second, strict=True):
        assert one.extra == other.extra
        assert one.rgb is not None
        assert np.array_equal(one.rgb, other.rgb)
