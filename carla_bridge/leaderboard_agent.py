"""wamdiff2 as an agent of CARLA's leaderboard and of Bench2Drive: `--agent=.../leaderboard_agent.py`.

This one file is all that their Python needs: 3.8, numpy, carla, and their own base class. It plans nothing itself: it
sends what the sensors say to a planner process over loopback (`agent_server`; the messages are described in
`agent_server.protocol`) and gives the pedals back. That process it starts itself, unless it is told the address of one.

`--agent-config` is `HOST:PORT` of a running `wamdiff2 agent-server`, or a checkpoint folder; empty takes
WAMDIFF2_CHECKPOINT. The evaluator appends "+" and a name of the route's results on every route, cumulatively, so a
folder's name must not have a "+" in it. Further environment:

    WAMDIFF2_PYTHON         Python that has wamdiff2; by default .venv of the checkout that this file lies in
    WAMDIFF2_DEVICE         torch device of the planner, `cpu` by default
    WAMDIFF2_AGENT_OPTIONS  further options of `wamdiff2 agent-server`, such as `--jpeg-quality 20`
    WAMDIFF2_START_S        seconds that a planner may take to start, 300 by default
    WAMDIFF2_STEP_S         seconds that a step may take, 60 by default
    SAVE_PATH               Bench2Drive's folder for metric_info.json and, here, the planner's log
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import carla
import numpy as np

# The evaluator puts this file's folder first on the path, where the folders `leaderboard` and `agents` beside it would
# hide packages of its own.
_FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _FOLDER]

from leaderboard.autoagents.autonomous_agent import AutonomousAgent, Track  # noqa: E402

MAGIC = b"WMD2"
VERSION = 1
HEADER = struct.Struct(">4sHI")
MAX_BODY_BYTES = 64 * 2**20
MAX_DEPTH = 32
MAX_RESTARTS = 3
STANDING_MPS = 0.1
STOP_S = 5.0


def get_entry_point():
    """Name of the agent's class, as the leaderboard asks for it."""
    return "WamDiff2Agent"


class PlannerError(Exception):
    """There is no planner, or it gave no proper answer; the message says which."""


class PlannerRefusedError(PlannerError):
    """The planner is there, and says what is wrong with a request: asking again would not help."""


# ---- msgpack: the part of it that the messages use -------------------------------------------------------------------


def pack(value):
    """`value` as msgpack: None, bool, int, float, str, bytes, list, tuple, dict, and numpy's numbers.

    Raises:
        TypeError: something else.
        ValueError: longer than a message may be, or an integer of more than 64 bits.
    """
    parts = []
    _pack(value, parts)
    body = b"".join(parts)
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"message length: expected at most {MAX_BODY_BYTES} bytes, got {len(body)}")
    return body


def _pack(value, parts):
    if value is None:
        parts.append(b"\xc0")
    elif isinstance(value, (bool, np.bool_)):
        parts.append(b"\xc3" if value else b"\xc2")
    elif isinstance(value, (int, np.integer)):
        parts.append(_pack_integer(int(value)))
    elif isinstance(value, (float, np.floating)):
        parts.append(struct.pack(">Bd", 0xCB, float(value)))
    elif isinstance(value, str):
        data = value.encode("utf-8")
        parts.append(_length(len(data), (0xA0, 31), (0xD9, 0xDA, 0xDB)))
        parts.append(data)
    elif isinstance(value, (bytes, bytearray)):
        parts.append(_length(len(value), None, (0xC4, 0xC5, 0xC6)))
        parts.append(bytes(value))
    elif isinstance(value, (list, tuple)):
        parts.append(_length(len(value), (0x90, 15), (None, 0xDC, 0xDD)))
        for item in value:
            _pack(item, parts)
    elif isinstance(value, dict):
        parts.append(_length(len(value), (0x80, 15), (None, 0xDE, 0xDF)))
        for key, item in value.items():
            _pack(key, parts)
            _pack(item, parts)
    else:
        raise TypeError(f"cannot pack a {type(value).__name__}")


def _pack_integer(value):
    if -32 <= value < 128:
        return struct.pack(">B", value & 0xFF)
    for code, form, low, high in (
        (0xCC, "B", 0, 1 << 8), (0xCD, "H", 0, 1 << 16), (0xCE, "I", 0, 1 << 32), (0xCF, "Q", 0, 1 << 64),
        (0xD0, "b", -(1 << 7), 0), (0xD1, "h", -(1 << 15), 0), (0xD2, "i", -(1 << 31), 0), (0xD3, "q", -(1 << 63), 0),
    ):
        if low <= value < high:
            return struct.pack(">B" + form, code, value)
    raise ValueError(f"integer {value} has more than 64 bits")


def _length(count, short, codes):
    """Head of a string, array or map: `short` is its base code and limit, `codes` those of 8, 16 and 32 bit lengths."""
    if short is not None and count <= short[1]:
        return struct.pack(">B", short[0] | count)
    for code, form, limit in zip(codes, "BHI", (1 << 8, 1 << 16, 1 << 32)):
        if code is not None and count < limit:
            return struct.pack(">B" + form, code, count)
    raise ValueError(f"{count} items are too many")


def unpack(body):
    """The value of a whole msgpack text.

    Raises:
        ValueError: it is cut off, goes on after its end, is nested too deep, or uses what messages do not.
    """
    value, end = _unpack(memoryview(body), 0, 0)
    if end != len(body):
        raise ValueError(f"msgpack: {len(body) - end} bytes after the end")
    return value


NUMBERS = {0xCA: "f", 0xCB: "d", 0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q", 0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q"}
CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
LENGTHS = {
    0xD9: ("str", "B"), 0xDA: ("str", "H"), 0xDB: ("str", "I"), 0xC4: ("bin", "B"), 0xC5: ("bin", "H"),
    0xC6: ("bin", "I"), 0xDC: ("array", "H"), 0xDD: ("array", "I"), 0xDE: ("map", "H"), 0xDF: ("map", "I"),
}


def _unpack(body, at, depth):
    if depth > MAX_DEPTH:
        raise ValueError("msgpack: nested too deep")
    code = _take(body, at, "B")
    at += 1
    if code in CONSTANTS:
        return CONSTANTS[code], at
    if code < 0x80:
        return code, at
    if code >= 0xE0:
        return code - 0x100, at
    if code in NUMBERS:
        return _take(body, at, NUMBERS[code]), at + struct.calcsize(NUMBERS[code])
    if code in LENGTHS:
        kind, form = LENGTHS[code]
        count = _take(body, at, form)
        at += struct.calcsize(form)
    elif code < 0xC0:
        kind, count = ("map", code & 15) if code < 0x90 else ("array", code & 15) if code < 0xA0 else ("str", code & 31)
    else:
        raise ValueError(f"msgpack: type 0x{code:02x} is not used here")
    if count > len(body) - at:  # every item takes a byte at least
        raise ValueError("msgpack: cut off")
    if kind == "str":
        return str(body[at : at + count], "utf-8"), at + count
    if kind == "bin":
        return bytes(body[at : at + count]), at + count
    if kind == "array":
        items = []
        for _ in range(count):
            item, at = _unpack(body, at, depth + 1)
            items.append(item)
        return items, at
    mapping = {}
    for _ in range(count):
        key, at = _unpack(body, at, depth + 1)
        if not isinstance(key, (str, bytes, int, float, bool, type(None))):
            raise ValueError(f"msgpack: a {type(key).__name__} as key")
        mapping[key], at = _unpack(body, at, depth + 1)
    return mapping, at


def _take(body, at, form):
    try:
        return struct.unpack_from(">" + form, body, at)[0]
    except struct.error:
        raise ValueError("msgpack: cut off") from None


# ---- the way to the planner ------------------------------------------------------------------------------------------


class Connection:
    """One TCP connection to a planner process; every request has a deadline."""

    def __init__(self, host, port, timeout_s):
        """Connect.

        Raises:
            PlannerError: nobody listens there.
        """
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise PlannerError(f"no planner at {host}:{port}: {error}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, message, timeout_s):
        """The reply to a request.

        Raises:
            PlannerError: none came in time, or it was an error; the connection is of no use any more.
        """
        deadline = time.monotonic() + timeout_s
        try:
            body = pack(message)
            self._socket.settimeout(timeout_s)
            self._socket.sendall(HEADER.pack(MAGIC, VERSION, len(body)) + body)
            magic, version, length = HEADER.unpack(self._exactly(HEADER.size, deadline))
            if magic != MAGIC or version != VERSION or length > MAX_BODY_BYTES:
                raise PlannerError(f"what answers is no planner of protocol version {VERSION}")
            reply = unpack(self._exactly(length, deadline))
        except socket.timeout:
            raise PlannerError(f"no answer from the planner within {timeout_s:g} s") from None
        except (OSError, ValueError) as error:
            raise PlannerError(f"the planner's connection failed: {error}") from None
        if not isinstance(reply, dict) or reply.get("type") == "error":
            said = reply.get("message") if isinstance(reply, dict) else "its answer is no map"
            raise PlannerRefusedError("the planner refused {}: {}".format(message["type"], said))
        return reply

    def close(self):
        """Close it; safe to call twice."""
        self._socket.close()

    def _exactly(self, count, deadline):
        received = bytearray()
        while len(received) < count:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise socket.timeout()
            self._socket.settimeout(left_s)
            part = self._socket.recv(min(count - len(received), 1 << 20))
            if not part:
                raise OSError("closed by the planner")
            received += part
        return bytes(received)


class PlannerProcess:
    """A planner process of our own: it ends with this one, however that ends."""

    def __init__(self, checkpoint, log_path, timeout_s):
        """Start it and wait until it is ready.

        Raises:
            PlannerError: it did not come up.
        """
        checkout = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        python = os.environ.get("WAMDIFF2_PYTHON") or os.path.join(checkout, ".venv", "bin", "python")
        command = [
            python, "-m", "carla_bridge.agent_server.command", "--checkpoint", checkpoint, "--port", "0",
            "--with-parent", str(os.getpid()), "--device", os.environ.get("WAMDIFF2_DEVICE") or "cpu",
            *shlex.split(os.environ.get("WAMDIFF2_AGENT_OPTIONS", "")),
        ]
        # The evaluator's search paths belong to another Python.
        strange = ("PYTHONHOME", "LD_LIBRARY_PATH", "_ROS_WHEELS_BOOTSTRAP_COMPLETE")
        environment = {name: value for name, value in os.environ.items() if name not in strange}
        environment["PYTHONPATH"] = checkout
        self._log_path = log_path
        with open(log_path or os.devnull, "ab") as log:
            try:
                # A group of its own: Ctrl-C is for the evaluator, which ends this in good order.
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise PlannerError(
                    f"cannot start the planner with {python}: {error}; set WAMDIFF2_PYTHON"
                ) from None
        self._line = b""
        self._reader = threading.Thread(target=self._read_ready, daemon=True)
        self._reader.start()
        self._reader.join(timeout_s)
        late = self._reader.is_alive()
        found = re.match(rb"ready 127\.0\.0\.1:(\d+) ", self._line)
        if not found:
            self.stop()
            why = f"not ready within {timeout_s:g} s" if late else self._why()
            raise PlannerError(f"the planner did not start: {why}")
        self.address = "127.0.0.1", int(found.group(1))

    def _read_ready(self):
        self._line = self._process.stdout.readline()

    def _why(self):
        try:
            with open(self._log_path, errors="replace") as log:
                return log.read().strip().splitlines()[-1]
        except (OSError, TypeError, IndexError):
            return f"exit code {self._process.returncode}"

    def stop(self):
        """End it, and what it has started; safe to call twice. It takes three times `STOP_S` at most."""
        if self._process.stdout.closed:
            return
        # SIGKILL in any case: what it has started may have stayed.
        for signum in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signum)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        # Closing the pipe would wait for the thread that reads it.
        self._reader.join(STOP_S)
        if not self._reader.is_alive():
            self._process.stdout.close()


class PlannerLink:
    """A planner that is there again after it was lost, within limits.

    Attributes:
        sensors: what the planner needs, as the leaderboard specifies sensors.
        wants_images: whether the next step has to bring pictures.
    """

    def __init__(self, target, log_path=""):
        """Reach or start a planner.

        Args:
            target: `HOST:PORT`, or a checkpoint folder to start a process for.
            log_path: file for the output of a process of our own.

        Raises:
            PlannerError: that failed.
        """
        address = re.match(r"^([\w.-]+):(\d+)$", target)
        self._address = (address.group(1), int(address.group(2))) if address else None
        self._target, self._log_path = target, log_path
        self._start_s = float(os.environ.get("WAMDIFF2_START_S") or 300.0)
        self._step_s = float(os.environ.get("WAMDIFF2_STEP_S") or 60.0)
        self._process = self._connection = self._route = None
        self._restarts = 0
        self._open()

    def begin(self, route):
        """Tell the planner its route.

        Raises:
            PlannerError: it does not take it.
        """
        self._route, self._restarts = dict(route, type="route", progress_m=0.0), 0
        self._connection.ask(self._route, self._step_s)

    def step(self, message):
        """The planner's answer to a step; one that was lost is started again and asked again.

        Raises:
            PlannerError: it stays lost.
        """
        while True:
            try:
                if self._connection is None:
                    self._open()
                    self._connection.ask(self._route, self._step_s)
                return self._step(message)
            except PlannerRefusedError:
                raise
            except PlannerError as error:
                if self._restarts == MAX_RESTARTS:
                    raise
                self._restarts += 1
                print(f"wamdiff2: {error}; restart {self._restarts} of {MAX_RESTARTS}", file=sys.stderr)
                self.close()

    def close(self):
        """End the connection, and the process if it is our own."""
        for part, end in ((self._connection, "close"), (self._process, "stop")):
            if part is not None:
                getattr(part, end)()
        self._process = self._connection = None

    def _open(self):
        try:
            if self._address is None:
                self._process = PlannerProcess(self._target, self._log_path, self._start_s)
            self._connection = Connection(*(self._address or self._process.address), timeout_s=self._step_s)
            client = "leaderboard agent, Python {}.{}".format(*sys.version_info[:2])
            ready = self._connection.ask({"type": "hello", "client": client}, self._step_s)
        except PlannerError:
            self.close()
            raise
        self.sensors = ready["sensors"]
        self.wants_images = True

    def _step(self, message):
        reply = self._connection.ask(message, self._step_s)
        pedals = [reply.get(name) for name in ("throttle", "steer", "brake")]
        if reply.get("type") != "control" or not all(isinstance(p, float) and math.isfinite(p) for p in pedals):
            raise PlannerError("the planner's answer to a step is no control")
        self.wants_images = bool(reply.get("wants_images", True))
        self._route["progress_m"] = reply.get("progress_m", 0.0)
        return reply


# ---- the agent -------------------------------------------------------------------------------------------------------


class MetricFile:
    """`metric_info.json`: a JSON object with one entry per tick, whole after each of them.

    Bench2Drive's tools read it after the route. A tick is one write over the closing brace, so the cost of a tick does
    not grow with the route, and a killed evaluator leaves a valid file.
    """

    def __init__(self, folder):
        """Begin it anew in `folder`, which is made."""
        os.makedirs(folder, exist_ok=True)
        self._file = open(os.path.join(folder, "metric_info.json"), "wb", buffering=0)  # noqa: SIM115
        self._file.write(b"{}")
        self._ticks = 0

    def add(self, info):
        """Add the next tick."""
        entry = json.dumps({str(self._ticks): info}).encode("ascii")
        self._file.seek(-1, os.SEEK_END)
        self._file.write((b",\n" if self._ticks else b"") + entry[1:])
        self._ticks += 1

    def close(self):
        """Close it."""
        self._file.close()


class WamDiff2Agent(AutonomousAgent):
    """The leaderboard's agent, on its SENSORS track."""

    def set_global_plan(self, global_plan_gps, global_plan_world_coord):
        """Keep the plan as it comes: models that are shown the points 10 and 20 m ahead need it dense."""
        super().set_global_plan(global_plan_gps, global_plan_world_coord)
        self._dense_plan = list(zip(global_plan_gps, global_plan_world_coord))

    def setup(self, path_to_conf_file):
        """Reach or start the planner; see the module for the configuration.

        Raises:
            PlannerError: there is none, or it does not take the route.
        """
        self.track = Track.SENSORS
        self._metrics = self._link = None
        self._lost = ""
        self._said = ""
        parts = (path_to_conf_file or "").split("+")
        target = parts[0] or os.environ.get("WAMDIFF2_CHECKPOINT", "")
        if not target:
            raise PlannerError("--agent-config: expected HOST:PORT or a checkpoint folder, got nothing; or set "
                                     "WAMDIFF2_CHECKPOINT")
        folder = ""
        if os.environ.get("SAVE_PATH") and len(parts) > 1 and parts[-1]:
            folder = os.path.join(os.environ["SAVE_PATH"], parts[-1])
            self._metrics = MetricFile(folder)
        self._link = PlannerLink(target, os.path.join(folder, "planner.log") if folder else "")
        self._link.begin(self._route(parts[-1] if len(parts) > 1 else ""))

    def sensors(self):
        """The cameras of the checkpoint's rig, and GNSS, IMU and speedometer for its localisation."""
        return [dict(sensor) for sensor in self._link.sensors]

    def run_step(self, input_data, timestamp):
        """Pedals for one tick.

        Without a planner the vehicle brakes to a stand; then it raises, so that the route is recorded as one whose
        agent has crashed, and not as one that was driven badly.
        """
        if self._metrics is not None and self.hero_actor is not None:
            self._metrics.add(self.get_metric_info())
        speed_mps = self._reading(input_data, "speed", {}).get("speed")
        if not self._lost:
            try:
                return self._control(self._link.step(self._step(input_data, timestamp, speed_mps)))
            except PlannerError as error:
                self._lost = str(error)
                print(f"wamdiff2: braking: {error}", file=sys.stderr)
        if speed_mps is None or abs(speed_mps) < STANDING_MPS:
            raise PlannerError(self._lost)
        return carla.VehicleControl(throttle=0.0, steer=0.0, brake=1.0)

    def destroy(self):
        """Give back the planner; safe to call at any time."""
        for part in (getattr(self, "_link", None), getattr(self, "_metrics", None)):
            if part is not None:
                part.close()
        self._link = self._metrics = None

    def _route(self, name):
        """The planner's `route` request."""
        plan = [(gps, transform.location, option) for (gps, _), (transform, option) in self._dense_plan]
        return {
            "name": name,
            "positions": [[place.x, place.y, place.z] for _, place, _ in plan],
            "options": [int(getattr(option, "value", option)) for _, _, option in plan],
            "degrees": [[gps["lat"], gps["lon"]] for gps, _, _ in plan],
            "max_steer_deg": self._max_steer_deg(),
        }

    def _max_steer_deg(self):
        """Front-wheel angle at full steering: our own vehicle's data sheet, so to speak; None when unknown."""
        try:
            return float(max(wheel.max_steer_angle for wheel in self.hero_actor.get_physics_control().wheels))
        except (AttributeError, RuntimeError, ValueError):
            return None

    def _step(self, input_data, timestamp, speed_mps):
        """The planner's `step` request."""
        images = {}
        if self._link.wants_images:
            for sensor in self._link.sensors:
                if sensor["type"] == "sensor.camera.rgb":
                    bgra = input_data[sensor["id"]][1]
                    rgb = np.ascontiguousarray(bgra[:, :, 2::-1])
                    images[sensor["id"]] = {"height": rgb.shape[0], "width": rgb.shape[1], "rgb": rgb.tobytes()}
        return {
            "type": "step", "time_s": float(timestamp), "images": images,
            "speed_mps": None if speed_mps is None else float(speed_mps),
            "gnss": self._numbers(input_data, "gnss"), "imu": self._numbers(input_data, "imu"),
        }

    def _control(self, reply):
        """The answer as `carla.VehicleControl`; why it brakes is printed when it changes."""
        reason = re.sub(r"[\d.]+", "#", reply.get("reason") or "")
        if reason != self._said:
            self._said = reason
            print("wamdiff2: {}".format(reply["reason"] or "driving"), file=sys.stderr)
        return carla.VehicleControl(throttle=reply["throttle"], steer=reply["steer"], brake=reply["brake"])

    @staticmethod
    def _reading(input_data, sensor, missing):
        return input_data[sensor][1] if sensor in input_data else missing

    def _numbers(self, input_data, sensor):
        reading = self._reading(input_data, sensor, None)
        return None if reading is None else [float(value) for value in reading]
