"""Fire hostile bytes at both ports of the embedded server while a real CARLA client drives in it.

    python -m benchmarks.server_fuzz --shots 100000

A shot is one connection: random bytes, a damaged or cut request, an unknown method, a request with random arguments, a
claim of a giant message, a random subscription; some are reset instead of closed, some stay open for a while. The
driving client ticks all the time. At the end the server must still be there and have grown by no more than a few
megabytes, no tick may be missing, and a client that was killed while it held sensors must have left no subscription.
Prints one line of numbers; exits with 1 when something of that is not so.
"""

from __future__ import annotations

import json
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Annotated, Any

import msgpack
import typer

from benchmarks.world_memory import resident_mib
from carla_bridge.leases import lease_ports
from carla_bridge.server.handlers import all_methods
from wamdiff2_core.cli.main import run_alone
from wamdiff2_core.processes import child_environment

OPEN_AT_ONCE = 40
GROWTH_LIMIT_MIB = 40.0
METHODS = sorted(all_methods())
DISTURBING = {"tick_cue", "load_new_episode", "set_episode_settings", "copy_opendrive_to_file", "apply_batch"}


def drive(port: int) -> None:
    """Tick until standard input closes; print what was seen as JSON. Runs in a process of its own."""
    import queue
    import threading

    import carla

    client = carla.Client("127.0.0.1", port)
    client.set_timeout(60.0)
    world = client.get_world()
    settings = world.get_settings()
    settings.synchronous_mode, settings.fixed_delta_seconds = True, 0.05
    world.apply_settings(settings)
    library = world.get_blueprint_library()
    car = world.spawn_actor(library.find("vehicle.lincoln.mkz_2020"), world.get_map().get_spawn_points()[0])
    imu, measured = world.spawn_actor(library.find("sensor.other.imu"), carla.Transform(), attach_to=car), queue.Queue()
    imu.listen(measured.put)
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    time.sleep(0.3)
    print("driving", flush=True)
    frames, seconds = [], []
    while not stop.is_set():
        started = time.monotonic()
        frames.append(world.tick())
        seconds.append(time.monotonic() - started)
        time.sleep(0.01)
    received = {measured.get(timeout=20).frame}
    while max(received) < frames[-1]:
        received.add(measured.get(timeout=20).frame)
    seconds.sort()
    missed = len(set(frames[5:]) - received)
    median, worst = (1000 * seconds[i] for i in (len(seconds) // 2, -1))
    print(json.dumps({"ticks": len(frames), "missed": missed, "median_ms": median, "worst_ms": worst}), flush=True)


def hold_sensors(port: int) -> None:
    """Spawn and listen to sensors until killed. Runs in a process of its own."""
    import carla

    client = carla.Client("127.0.0.1", port)
    client.set_timeout(60.0)
    world = client.get_world()
    library, start = world.get_blueprint_library(), world.get_map().get_spawn_points()[7]
    held = [
        world.spawn_actor(library.find(kind), start)
        for kind in ("sensor.camera.rgb", "sensor.lidar.ray_cast", "sensor.other.imu", "sensor.other.gnss")
    ]
    for sensor in held:
        sensor.listen(lambda _: None)
    print("holding", flush=True)
    time.sleep(3600)


def shot(chooser: random.Random) -> tuple[int, bytes]:
    """(port offset, bytes) of one shot."""
    if chooser.random() < 0.3:
        sizes = (1, 2, 3, 4, 5, 64)
        return 1, chooser.randbytes(chooser.choice(sizes)) if chooser.random() < 0.7 else struct.pack(
            "<I", chooser.randrange(0, 2000)
        )
    kind = chooser.randrange(6)
    if kind == 0:
        return 0, chooser.randbytes(chooser.randrange(1, 2000))
    request = msgpack.packb([0, chooser.randrange(1 << 31), _name(chooser), [[False], *_arguments(chooser)]])
    if kind == 1:
        return 0, request[: chooser.randrange(1, len(request))]
    if kind == 2:
        damaged = bytearray(request)
        for _ in range(chooser.randrange(1, 6)):
            damaged[chooser.randrange(len(damaged))] = chooser.randrange(256)
        return 0, bytes(damaged)
    if kind == 3:
        claims = (b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff")
        return 0, chooser.choice((*claims, b"\x94\x00" + b"\x91" * 3000))
    return 0, request * chooser.randrange(1, 4)


def _name(chooser: random.Random) -> str:
    known = [name for name in METHODS if name not in DISTURBING]
    return chooser.choice(known) if chooser.random() < 0.8 else "m" + str(chooser.randrange(1 << 20))


def _arguments(chooser: random.Random) -> list:
    def value(depth: int) -> Any:
        kinds = [
            None, True, chooser.randrange(-9, 300), 2**63, chooser.uniform(-1e3, 1e3), float("nan"), 1e308, "x", b"y",
            "vehicle.lincoln.mkz_2020", [[0.0] * 3, [0.0] * 3],
        ]  # fmt: skip
        if depth < 3 and chooser.random() < 0.3:
            return [value(depth + 1) for _ in range(chooser.randrange(6))]
        return chooser.choice(kinds)

    return [value(0) for _ in range(chooser.randrange(5))]


def fire(port: int, shots: int, seed: int) -> int:
    """Fire; returns how many connections could not be made."""
    chooser, waiting, failed = random.Random(seed), deque[socket.socket](), 0
    for _ in range(shots):
        offset, data = shot(chooser)
        try:
            sock = socket.create_connection(("127.0.0.1", port + offset), timeout=30)
        except OSError:
            failed += 1
            continue
        try:
            sock.sendall(data)
            if chooser.random() < 0.3:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not close
        except OSError:
            pass
        waiting.append(sock)
        while len(waiting) > OPEN_AT_ONCE * chooser.random():
            waiting.popleft().close()
    for sock in waiting:
        sock.close()
    return failed


def open_files(pid: int) -> int:
    """Number of open files of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _die_holding_sensors(port: int) -> None:
    """Let a client be killed while it listens to sensors."""
    holder = _child("-m", "benchmarks.server_fuzz", "--role", "hold", "--port", str(port))
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holding\n"
    time.sleep(0.5)
    holder.send_signal(signal.SIGKILL)
    holder.wait()


def _child(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, *arguments]
    return subprocess.Popen(
        command, env=child_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
    )


def main(
    shots: Annotated[int, typer.Option(help="How many connections to make.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Seed of the shots.")] = 0,
    role: Annotated[str, typer.Option(hidden=True)] = "",
    port: Annotated[int, typer.Option(hidden=True)] = 0,
) -> int:
    """Run the bombardment and print what came of it."""
    if role:
        {"drive": drive, "hold": hold_sensors}[role](port)
        return 0
    port = lease_ports().number
    server = _child("-m", "carla_bridge.server", "--port", str(port), stderr=subprocess.DEVNULL)
    assert server.stdout is not None
    assert server.stdout.readline().startswith("ready")
    driver = _child("-m", "benchmarks.server_fuzz", "--role", "drive", "--port", str(port))
    assert driver.stdout is not None
    assert driver.stdout.readline() == "driving\n"
    files_before = open_files(server.pid)
    _die_holding_sensors(port)
    fire(port, min(shots, 5000), seed + 1)  # what is allocated once is allocated now
    before_mib, started = resident_mib(server.pid), time.monotonic()
    failed = fire(port, shots, seed)
    wall_s = time.monotonic() - started
    for _ in range(3):
        _die_holding_sensors(port)
    time.sleep(2.0)
    alive = server.poll() is None
    result: dict[str, Any] = {"shots": shots, "refused_connections": failed, "wall_s": round(wall_s, 1), "alive": alive}
    if alive:
        result["files_left"] = open_files(server.pid) - files_before
        result["growth_mib"] = round(resident_mib(server.pid) - before_mib, 1)
        out, _ = driver.communicate("", timeout=120)
        result |= json.loads(out.splitlines()[-1])
        server.terminate()
        result["exit_code"] = server.wait(timeout=20)
    print(json.dumps(result))
    good = alive and not failed and not result["files_left"] and not result["missed"] and result["exit_code"] == 0
    return 0 if good and result["growth_mib"] < GROWTH_LIMIT_MIB else 1


if __name__ == "__main__":
    sys.exit(run_alone(main, "benchmarks.server_fuzz"))
