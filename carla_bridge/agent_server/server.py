"""A planner in a process of its own, for the agent that CARLA's leaderboard runs.

The leaderboard's Python is 3.8, where the model stack cannot run; so its agent file sends what the sensors say over
loopback, and gets pedals. Several evaluators may share one server: they take turns at the planner.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from typing import Any

from carla_bridge.agent_server.protocol import MAX_BODY_BYTES, MAX_HELLO_BYTES, VERSION, ProtocolError, receive, send
from carla_bridge.agent_server.session import AgentSession, Driving, leaderboard_sensors
from wamdiff2_core.errors import InfrastructureError, UserError
from wamdiff2_core.planner import Planner
from wamdiff2_core.tasks.planning import check_drivable
from wamdiff2_core.types import Observation, Plan

LOG = logging.getLogger(__name__)
MAX_CONNECTIONS = 16
HELLO_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 10.0
LAST_WORD_S = 1.0
REFUSED_PAUSE_S = 0.2


class AgentServer:
    """Accepts agents on 127.0.0.1 until it is closed.

    Attributes:
        port: where.
    """

    def __init__(
        self, planner: Planner, source: str, *, port: int = 0, every_ticks: int = 5, jpeg_quality: int = 0
    ) -> None:
        """Bind; `planner` must have a rig, `source` names it to the agents.

        Raises:
            UserError: the planner's answers are not to be driven as they are.
            InfrastructureError: the port is taken.
        """
        from carla_bridge.nano import NANO_CAMERA, NANO_TASK

        self._planner, self._source, self._closed = planner, source, False
        task = planner.record.planning if planner.record is not None else None
        if task is not None:
            check_drivable(task, "--checkpoint")
        rig, rule = planner.rig or (NANO_CAMERA,), (task or NANO_TASK).target_rule
        self._driving = Driving(self._plan, rig, rule, every_ticks, jpeg_quality)
        self._turn, self._places = threading.Lock(), threading.Semaphore(MAX_CONNECTIONS)
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._listener.bind(("127.0.0.1", port))
        except OSError as error:
            self._listener.close()
            raise InfrastructureError(f"port {port} of 127.0.0.1: {error.strerror}") from None
        self._listener.listen(MAX_CONNECTIONS)
        self.port = int(self._listener.getsockname()[1])

    def serve(self) -> None:
        """Accept agents, each in a thread of its own, until `close`."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._closed:
                    return
                LOG.warning("a connection was not accepted: %s", error)
                time.sleep(REFUSED_PAUSE_S)  # out of files, most likely: until a connection ends
                continue
            if not self._places.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Accept no more; `serve` returns."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _plan(self, observation: Observation) -> Plan:
        with self._turn:
            return self._planner.plan(observation)

    def _attend(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    self._converse(connection)
                except ProtocolError as error:
                    LOG.warning("connection dropped: %s", error)
                    _tell_and_hang_up(connection, str(error))
        except (EOFError, OSError) as error:
            LOG.info("connection ended: %s", error)
        finally:
            self._places.release()

    def _converse(self, connection: socket.socket) -> None:
        connection.settimeout(HELLO_TIMEOUT_S)
        hello = receive(connection, MAX_HELLO_BYTES)
        if hello["type"] != "hello":
            raise ProtocolError(f"expected hello first, got {hello['type']}")
        LOG.info("agent: %s", hello.get("client"))
        send(connection, {
            "type": "ready", "protocol": VERSION, "checkpoint": self._source,
            "sensors": leaderboard_sensors(self._driving.rig), "plan_every_ticks": self._driving.every_ticks,
        })
        session: AgentSession | None = None
        while True:
            connection.settimeout(None)  # between ticks the simulator may take its time
            message = receive(connection, MAX_BODY_BYTES)
            connection.settimeout(SEND_TIMEOUT_S)
            try:
                session, reply = self._answer(session, message)
            except UserError as error:
                reply = {"type": "error", "message": str(error)}
            except Exception as error:  # one agent's trouble must not end the planner of the others
                LOG.exception("request %s", message["type"])
                reply = {"type": "error", "message": f"{type(error).__name__}: {error}"}
            send(connection, reply)

    def _answer(
        self, session: AgentSession | None, message: dict[str, Any]
    ) -> tuple[AgentSession | None, dict[str, Any]]:
        if message["type"] == "route":
            session = AgentSession(self._driving, message)
            LOG.info("route %s: %.0f m", message.get("name"), session.length_m)
            return session, {"type": "route_ready", "length_m": session.length_m}
        if message["type"] == "step":
            if session is None:
                raise UserError("step", "a route before the first step", "none")
            return session, session.step(message)
        raise UserError("type", "route or step", message["type"])


def _tell_and_hang_up(connection: socket.socket, problem: str) -> None:
    """Send an error as the last word, and wait a moment for the other side to close.

    Closing while bytes of theirs lie unread would reset the connection, and the error could be lost on the way.
    """
    connection.settimeout(SEND_TIMEOUT_S)
    send(connection, {"type": "error", "message": problem})
    connection.shutdown(socket.SHUT_WR)
    connection.settimeout(LAST_WORD_S)
    for _ in range(64):
        if not connection.recv(1 << 20):
            break
