"""The real `carla` client library, in a process of its own, against a real server process."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from carla_bridge.leases import lease_ports
from carla_bridge.server.sensors.payloads import GeoReference
from tests.carla_bridge.server.whole_api_check import check_whole_api
from wamdiff2_core.processes import child_environment

pytest.importorskip("carla", reason="needs the carla client library")
pytestmark = [pytest.mark.carla, pytest.mark.timeout(180)]
ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = Path(__file__).parent / "client_scripts"


def start_server(port: int) -> subprocess.Popen[str]:
    """A server process that has printed its ready line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "carla_bridge.server", "--port", str(port)],
        env=child_environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(f"ready 127.0.0.1:{port}"), line + (process.stdout.read() or "")
    return process


@pytest.fixture(scope="module")
def server_port() -> Iterator[int]:
    """Port of a server process with the shipped town."""
    port = lease_ports().number
    process = start_server(port)
    yield port
    assert process.poll() is None, "the server died"
    process.terminate()
    assert process.wait(timeout=10) == 0


@pytest.fixture(scope="module")
def drive(server_port: int) -> dict[str, Any]:
    """What the driving client saw; one drive serves all tests below."""
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "drive.py"), str(server_port)],
        env=child_environment(), cwd=ROOT, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_versions_match_so_that_the_client_does_not_warn(drive: dict[str, Any]) -> None:
    assert drive["versions"] == ["0.9.16", "0.9.16"]


def test_image_imu_and_snapshot_of_every_tick_carry_its_frame(drive: dict[str, Any]) -> None:
    assert drive["misses"] == 0


def test_images_have_the_asked_size_and_show_something(drive: dict[str, Any]) -> None:
    width, height, fov, size, different_bytes = drive["image"]
    assert (width, height, fov, size) == (256, 128, 90.0, 256 * 128 * 4)
    assert different_bytes > 50


def test_camera_with_a_sensor_tick_measures_every_fifth_frame(drive: dict[str, Any]) -> None:
    frames = drive["slow_image_frames"]
    assert len(frames) == 20
    assert {b - a for a, b in itertools.pairwise(frames)} == {5}


def test_car_drives_and_positive_steer_turns_it_right(drive: dict[str, Any]) -> None:
    assert 15 < drive["travelled_m"] < 40
    assert 0 < drive["yaw_gain_deg"] < 90
    assert drive["control"] == [0.5, 1]
    assert drive["same_pose"]


def test_imu_and_gnss_agree_with_the_pose(drive: dict[str, Any]) -> None:
    up, yaw_rate, compass = drive["imu"]
    assert up == pytest.approx(9.81, abs=1e-3)
    assert abs(yaw_rate) < 0.1
    assert 0 <= compass < 2 * math.pi
    # the shipped town's origin is 49 N 8 E; GNSS sits on the car's origin
    assert drive["gnss"] == pytest.approx(GeoReference(49.0, 8.0).geodetic((*drive["location"], 0.0)), abs=1e-7)


def test_second_car_in_the_same_place_is_refused(drive: dict[str, Any]) -> None:
    assert drive["double_spawn_refused"]


def test_collision_event_names_both_and_its_impulse(drive: dict[str, Any]) -> None:
    is_ego, other, impulse = drive["collision"]
    assert is_ego
    assert other == "vehicle.audi.tt"
    assert impulse > 1000


def test_ego_geometry_can_be_read(drive: dict[str, Any]) -> None:
    assert drive["wheelbase_m"] == pytest.approx(2.86, abs=1e-3)
    assert drive["max_steer_deg"] == pytest.approx(35.0)
    assert drive["extent"] == pytest.approx([2.45, 0.74])
    assert drive["role_name"] == "hero"


def test_weather_lights_and_teleport_are_kept(drive: dict[str, Any]) -> None:
    assert drive["sun"] == 12.5
    assert drive["light"] == 8
    assert drive["teleported_m"] < 0.6


def test_destroying_twice_is_no_error_and_leaves_only_the_spectator(drive: dict[str, Any]) -> None:
    assert drive["batch_errors"] == ["", ""]
    assert drive["destroyed"] is True
    assert drive["left"] == ["spectator"]


def test_worlds_are_reloaded_generated_and_refused_by_name(drive: dict[str, Any]) -> None:
    assert drive["map"].endswith("/Wamtown01")
    name, synchronous = drive["reloaded"]
    assert name.endswith("/Wamtown01")
    assert synchronous is True
    assert drive["generated"].endswith("/OpenDriveMap")
    assert "Nowhere" in drive["unknown_map"]
    assert drive["asynchronous_tick"] is True


def test_blueprints_can_be_filtered_by_typed_attributes(drive: dict[str, Any]) -> None:
    assert drive["bicycles"] == 3


def test_whole_api_is_served_or_refused_by_name(server_port: int) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "whole_api.py"), str(server_port)],
        env=child_environment(), cwd=ROOT, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    check_whole_api(json.loads(done.stdout.splitlines()[-1]))


def _shoot(port: int, chooser: random.Random) -> None:
    """One hostile connection to either port."""
    requests = [
        msgpack.packb([0, 1, "spawn_actor", [[False], "x", 3]]),
        msgpack.packb([0, 1, "no_such_method", [[False]]]),
        msgpack.packb([0, 1, "tick_cue", [[False], 1, 2]]),
        msgpack.packb([0, 1, "get_episode_info", [[False]]])[:-3],
        b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 5000,
        struct.pack("<I", 1), struct.pack("<I", 77777), b"\x01\x00",
    ]  # fmt: skip
    data = chooser.choice([*requests, chooser.randbytes(chooser.randrange(1, 3000))])
    with socket.create_connection(("127.0.0.1", port + chooser.randrange(2)), timeout=30) as sock:
        try:
            sock.sendall(data)
            if chooser.random() < 0.5:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not close
        except OSError:
            pass


def test_garbage_on_both_ports_disturbs_neither_client(server_port: int) -> None:
    process = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "under_fire.py"), str(server_port)],
        env=child_environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ticking\n"
    half_open = socket.create_connection(("127.0.0.1", server_port))
    half_open.sendall(msgpack.packb([0, 1, "version", [[False]]])[:5])  # a request that never ends
    chooser, shots = random.Random(5), 0
    while process.poll() is None or shots < 50:
        _shoot(server_port, chooser)
        shots += 1
        time.sleep(0.002)
    half_open.close()
    output = process.stdout.read()
    assert process.returncode == 0, output
    assert '"ticks": 600, "steady": true' in output
    assert shots >= 50


def test_signal_while_a_new_town_is_laid_out_still_gives_exit_code_zero() -> None:
    port = lease_ports().number
    process = start_server(port)
    shipped = ROOT / "carla_bridge" / "server" / "towns" / "Wamtown01.xodr"
    town = shipped.read_text().replace("<header", "<!-- another --><header")
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        for name, arguments in (
            ("copy_opendrive_to_file", [town, []]),
            ("load_new_episode", ["OpenDriveMap", True, 0]),
        ):
            sock.sendall(msgpack.packb([0, 1, name, [[False], *arguments]]))
            assert msgpack.unpackb(sock.recv(4096)) == [1, 1, None, [[False]]]
        process.terminate()
    assert process.wait(timeout=60) == 0
    assert process.stdout is not None
    assert process.stdout.read() == ""


def test_taken_port_is_an_infrastructure_error_that_names_the_way_out() -> None:
    port = lease_ports().number
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        done = subprocess.run(
            [sys.executable, "-m", "carla_bridge.server", "--port", str(port)],
            env=child_environment(), cwd=ROOT, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 3
    assert f"127.0.0.1:{port + 1}" in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_town_is_wrong_use() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "carla_bridge.server", "--port", str(lease_ports().number), "--town", "Wamtown1"],
        env=child_environment(), cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Wamtown01" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_server_quickly_with_exit_code_zero(number: signal.Signals) -> None:
    process = start_server(lease_ports().number)
    started = time.monotonic()
    os.kill(process.pid, number)
    assert process.wait(timeout=10) == 0
    assert time.monotonic() - started < 3
    assert process.stdout is not None
    assert process.stdout.read() == ""
