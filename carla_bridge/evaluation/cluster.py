"""Workers on the nodes of a Ray cluster, each attempt a Ray task; retries and journal stay with the evaluator.

This machine is one of the cluster's. Only nodes on which the same code, versions and checkpoint are installed drive;
the others are named, once. Every other file that an attempt needs goes with it, and its files come back with it, so no
folder need be shared. A node that dies spoils its attempts, and is not asked again before it has said anew what is
installed there: until then the attempts go elsewhere.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum, auto
from pathlib import Path
from types import TracebackType
from typing import Any

# Read when Ray is imported: what its daemons say would tear the live line, and what matters of it is said here.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from ray.exceptions import NodeDiedError, RayError, RayTaskError, TaskUnschedulableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from carla_bridge.client.server_process import parse_address
from carla_bridge.evaluation import cluster_node
from carla_bridge.evaluation.attempts import Attempt, Job, Kind, Task
from carla_bridge.evaluation.cluster_connection import check_reachable, connect
from carla_bridge.evaluation.installation import Installation
from carla_bridge.evaluation.pool import Finished
from carla_bridge.evaluation.request import Evaluation
from wamdiff2_core.errors import InfrastructureError, UserError

LOG = logging.getLogger(__name__)
NODES_PERIOD_S = 2.0
FIRST_ANSWERS_S = 30.0  # for nodes to answer before the first attempt
NO_NODE_S = 60.0  # without a usable node until that is the end
HEAD_S = 20.0  # for a head that is gone to be back; Ray ends this process after 60 s
SILENCE_S = 120.0  # of a node that has begun an attempt; it speaks twice a second
ARCHIVE_S = 600.0  # for an attempt's files to arrive
STOP_S = 12.0  # for attempts that are told to stop
ACCELERATORS = {"cpu": "", "cuda": "GPU", "npu": "NPU"}  # torch device -> what Ray calls it


class _State(Enum):
    """What is known of a node."""

    ASKED = auto()
    USABLE = auto()
    REFUSED = auto()


@dataclass
class _Node:
    """A node that is alive: how many attempts it has room for, what it was asked, until it has answered, and why it is
    refused."""

    address: str
    slots: int
    state: _State = _State.ASKED
    question: Any = None
    reason: str = ""


@dataclass
class _Running:
    """An attempt in hand: `stream` brings what `cluster_node.drive` yields; `heard_s`, of the steady clock, is when
    the last of it came, 0 before the first."""

    stream: Any
    node_id: str
    node: str
    folder: Path
    task: Task
    began: str
    began_s: float
    heard_s: float = 0.0
    completion: float = 0.0
    attempt: Attempt | None = None
    archive: Any = None


class _LostError(Exception):
    """An attempt will not come to an end; the message says why."""


@dataclass
class ClusterPool:
    """Attempts as tasks of a Ray cluster; a context manager, connected while it is open.

    Attributes:
        address: `HOST:PORT` of the cluster's head.
        evaluation: whose attempts.
        workers: at most so many at a time; 0 for as many as the nodes have CPUs, or accelerators where a planner needs
            one.
    """

    address: str
    evaluation: Evaluation
    workers: int = 0
    _nodes: dict[str, _Node] = field(default_factory=dict)
    _running: dict[Job, _Running] = field(default_factory=dict)
    _news: list[str] = field(default_factory=list)
    _looked_s: float = 0.0  # of the steady clock, as the next one
    _usable_s: float = 0.0
    _head_s: float = 0.0

    def __post_init__(self) -> None:
        parse_address(self.address, "--cluster")
        device, drive = self.evaluation.drive.device, self.evaluation.drive
        if drive.carla:
            raise UserError("--carla", "none with --cluster: each node starts a server for each route", drive.carla)
        if device not in ACCELERATORS:
            raise UserError("--device", " or ".join(ACCELERATORS) + " with --cluster: Ray gives out the nodes' own",
                            device)

    def __enter__(self) -> ClusterPool:
        check_reachable(self.address)
        try:
            connect(self.address)
            drive = self.evaluation.drive
            self._installation = Installation.here(drive.agent)
            self._inputs = ray.put(cluster_node.Inputs.read(drive.routes, self.evaluation.map_files()))
            accelerator = ACCELERATORS[drive.device] if drive.agent.folder is not None else ""
            self._resources = {"CPU": 1.0} | ({accelerator: 1.0} if accelerator else {})
            self._drive = ray.remote(num_returns="streaming", max_retries=0)(cluster_node.drive)
            self._describe = ray.remote(num_cpus=0, max_retries=0)(cluster_node.describe)
            self._wait_for_nodes()
        except BaseException:
            ray.shutdown()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for item in self._running.values():
            ray.cancel(item.stream)
        deadline = time.monotonic() + STOP_S
        while self._running and time.monotonic() < deadline:
            for job, item in list(self._running.items()):
                if _has_ended(item.stream):
                    del self._running[job]
            time.sleep(0.1)
        self._running.clear()
        ray.shutdown()  # what runs still is killed

    def capacity(self) -> int:
        """See `Pool`."""
        slots = sum(node.slots for node in self._nodes.values() if node.state is _State.USABLE)
        return min(slots, self.workers or slots)

    def has_room(self) -> bool:
        """See `Pool`."""
        return len(self._running) < self.capacity() and max(self._free().values()) > 0

    def start(self, job: Job, task: Task, folder: Path) -> None:
        """See `Pool`."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        task.save(folder)
        free = self._free()
        node_id = max(free, key=lambda node_id: free[node_id])
        stream = self._drive.options(
            num_cpus=self._resources["CPU"], num_gpus=self._resources.get("GPU", 0.0),
            resources={name: count for name, count in self._resources.items() if name not in ("CPU", "GPU")},
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False), name=f"route {folder.name}",
        ).remote(task, folder.name, self._inputs)
        began = datetime.now(UTC).isoformat(timespec="seconds")
        address = self._nodes[node_id].address
        self._running[job] = _Running(stream, node_id, address, folder, task, began, time.monotonic())

    def finished(self) -> list[Finished]:
        """See `Pool`.

        Raises:
            InfrastructureError: for a minute there has been no node to drive on.
        """
        self._look_at_nodes()
        over = []
        for job, item in list(self._running.items()):
            try:
                done = self._advance(item)
            except _LostError as error:
                done = self._lost(item, str(error))
            if done is not None:
                over.append(Finished(replace(done, node=item.node), item.folder))
                del self._running[job]
        return over

    def running(self) -> dict[Job, float]:
        """See `Pool`."""
        return {job: item.completion for job, item in self._running.items()}

    def news(self) -> list[str]:
        """See `Pool`."""
        news, self._news = self._news, []
        return news

    def _free(self) -> dict[str, int]:
        """Room left on each usable node."""
        hosts = [item.node_id for item in self._running.values()]
        return {node_id: node.slots - hosts.count(node_id) for node_id, node in self._nodes.items()
                if node.state is _State.USABLE}

    # ---- attempts ----------------------------------------------------------------------------------------------------

    def _advance(self, item: _Running) -> Attempt | None:
        """Take what has come of an attempt; the whole of it, with its files in their folder, once it is over.

        Raises:
            _LostError: it is not going to come.
        """
        try:
            while item.archive is None and _is_here(item.stream):
                reference = next(item.stream)
                item.heard_s = time.monotonic()
                if item.attempt is not None:
                    item.archive = reference
                elif isinstance(said := ray.get(reference), dict):
                    item.attempt = Attempt.from_json(said, f"node {item.node}")
                else:
                    item.completion = said
            if item.archive is not None and _is_here(item.archive):
                cluster_node.unpack(ray.get(item.archive), item.folder)
                return item.attempt
        except StopIteration:
            raise _LostError("its task ended without a result") from None
        except RayTaskError as error:
            LOG.warning("a task failed on node %s: %s", item.node, error)
            raise _LostError(f"its task failed: {_last_line(error)}") from error
        except RayError as error:
            raise _LostError(str(error).partition(". ")[0].partition("\n")[0]) from error
        limit_s = SILENCE_S if item.attempt is None else ARCHIVE_S
        if item.heard_s and time.monotonic() - item.heard_s > limit_s:
            ray.cancel(item.stream, force=True)
            raise _LostError(f"nothing came from it for {limit_s:g} s")
        return None

    def _lost(self, item: _Running, reason: str) -> Attempt:
        """An attempt that will not come to an end; its node is asked anew before it gets another one."""
        node = self._nodes.get(item.node_id)
        if node is not None and node.state is _State.USABLE:
            self._ask(item.node_id, node)
        task, wall_s = item.task, round(time.monotonic() - item.began_s, 2)
        return Attempt(task.route_id, task.repeat, 0, Kind.INFRASTRUCTURE, f"node {item.node}: {reason}", task.seed,
                       began=item.began, wall_s=wall_s)

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def _wait_for_nodes(self) -> None:
        """Return once there is a node to drive on, and the others have had time to answer.

        Raises:
            InfrastructureError: there is none.
        """
        began_s = self._usable_s = time.monotonic()
        while not self.capacity() or (self._asked() and time.monotonic() - began_s < FIRST_ANSWERS_S):
            self._look_at_nodes()
            if self._nodes and all(node.state is _State.REFUSED for node in self._nodes.values()):
                raise self._no_node()
            time.sleep(0.1)

    def _look_at_nodes(self) -> None:
        """Notice nodes that came, went or have answered.

        Raises:
            InfrastructureError: there has been none to drive on for too long.
        """
        now_s = time.monotonic()
        if now_s - self._looked_s > NODES_PERIOD_S:
            self._looked_s = now_s
            self._update_nodes()
        for node_id, node in list(self._nodes.items()):
            if node.state is _State.ASKED and _is_here(node.question):
                self._take_answer(node_id, node)
        if self.capacity() or self._running:
            self._usable_s = now_s
        elif now_s - self._usable_s > NO_NODE_S + self._asked() * cluster_node.CHECK_LIMIT_S:
            raise self._no_node()

    def _update_nodes(self) -> None:
        if not self._head_answers():
            return  # Ray would wait for it
        alive: dict[str, Mapping[str, Any]] = {entry["NodeID"]: entry for entry in ray.nodes() if entry["Alive"]}
        for node_id in self._nodes.keys() - alive.keys():
            self._forget(node_id)
        for node_id, entry in alive.items():
            if node_id in self._nodes:
                continue
            has = entry["Resources"]
            slots = int(min(has.get(name, 0.0) // count for name, count in self._resources.items()))
            node = self._nodes[node_id] = _Node(entry["NodeManagerAddress"], slots)
            if slots:
                self._ask(node_id, node)
            else:
                self._refuse(node, "it has no " + " and ".join(
                    name for name, count in self._resources.items() if has.get(name, 0.0) < count
                ) + " to give")

    def _head_answers(self) -> bool:
        """Whether the head's port is open.

        Raises:
            InfrastructureError: it has not been for too long.
        """
        now_s = time.monotonic()
        try:
            with socket.create_connection(parse_address(self.address), timeout=1.0):
                self._head_s = now_s
                return True
        except OSError as error:
            if self._head_s and now_s - self._head_s > HEAD_S:
                raise InfrastructureError(f"the head of the cluster at {self.address} is gone: {error}") from None
            return False

    def _ask(self, node_id: str, node: _Node) -> None:
        pinned = NodeAffinitySchedulingStrategy(node_id, soft=False)
        node.state = _State.ASKED
        node.question = self._describe.options(scheduling_strategy=pinned, name="check of the installation").remote(
            Task.of(self.evaluation.jobs[0], self.evaluation.drive).planner
        )

    def _take_answer(self, node_id: str, node: _Node) -> None:
        try:
            found, reason = ray.get(node.question)
        except (NodeDiedError, TaskUnschedulableError):
            self._forget(node_id)  # if it is alive after all, it is asked when the nodes are next looked at
            return
        except RayError as error:
            found, reason = None, _last_line(error)
        node.question = None
        if found is None:
            self._refuse(node, reason)
        elif differences := Installation(**found).differences(self._installation):
            self._refuse(node, "it has " + ", ".join(differences))
        else:
            node.state = _State.USABLE

    def _forget(self, node_id: str) -> None:
        self._news.append(f"node {self._nodes.pop(node_id).address} is gone")

    def _refuse(self, node: _Node, reason: str) -> None:
        node.state, node.reason = _State.REFUSED, reason
        self._news.append(f"node {node.address} is not used: {reason}")

    def _asked(self) -> bool:
        """Whether a node has not answered yet."""
        return any(node.state is _State.ASKED for node in self._nodes.values())

    def _no_node(self) -> InfrastructureError:
        why = "; ".join(f"{node.address}: {node.reason or 'no answer'}" for node in self._nodes.values())
        return InfrastructureError(f"no node of the cluster at {self.address} can drive: {why or 'none is alive'}")


def _is_here(reference: Any) -> bool:
    """Whether the value of a reference, or the next one of a stream, is on this machine, or will never be."""
    return bool(ray.wait([reference], timeout=0)[0])


def _has_ended(stream: Any) -> bool:
    """Whether a task has come to its end; takes what it has brought."""
    try:
        while _is_here(stream):
            next(stream)
    except (StopIteration, RayError):
        return True
    return False


def _last_line(error: RayError) -> str:
    return str(error).strip().splitlines()[-1]
