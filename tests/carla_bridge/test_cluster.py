"""Evaluations on a Ray cluster: the same results as on one machine, through nodes that die, differ or do not answer."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("carla", reason="needs the carla client library")

from carla_bridge.agents.choice import AgentChoice
from carla_bridge.drive.driver import DriveConfig
from carla_bridge.evaluation.attempts import Job, Task
from carla_bridge.evaluation.cluster_node import Inputs, pack, scratch_folder, unpack
from carla_bridge.evaluation.installation import Installation
from carla_bridge.evaluation.request import Evaluation
from carla_bridge.provenance import PACKAGES
from carla_bridge.routes import ROUTES_FOLDER
from carla_bridge.routes.route_file import load_routes
from tests.carla_bridge import kill_anywhere
from wamdiff2_core.cli.main import main
from wamdiff2_core.errors import ExitCode, InfrastructureError, UserError
from wamdiff2_core.processes import child_environment

pytestmark = pytest.mark.carla
ROOT = Path(__file__).resolve().parents[2]
ROUTES = {"20014": 16, "20020": 24}  # key points kept of each, 2 m apart


@pytest.fixture
def config(tmp_path):
    routes = tmp_path / "routes.xml"
    root = ElementTree.parse(ROUTES_FOLDER / "embedded-20.xml").getroot()
    for route in root.findall("route"):
        if route.get("id") not in ROUTES:
            root.remove(route)
            continue
        points, scenarios = route.find("waypoints"), route.find("scenarios")
        for point in list(points)[ROUTES[route.get("id")]:]:
            points.remove(point)
        for scenario in list(scenarios):
            scenarios.remove(scenario)
    routes.write_text(ElementTree.tostring(root, encoding="unicode"))
    return DriveConfig(routes=routes, agent=AgentChoice.parse("route-only"), out=tmp_path / "run", video=False)


@pytest.fixture
def cluster_module():
    pytest.importorskip("ray", reason="needs Ray: pip install 'wamdiff2[cluster]'")
    from carla_bridge.evaluation import cluster

    return cluster


def evaluation(config):
    return Evaluation(config, tuple(load_routes(config.routes)))


class Nodes:
    """A cluster on loopback addresses of this machine: a head that drives nothing, and nodes for one attempt each."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        self._cluster = Cluster()
        self.head = self._add(2, 0)
        self.address = self._cluster.address

    def add(self, number, package_root=ROOT):
        """A node at 127.0.0.NUMBER, with the packages of a folder."""
        with contextlib.chdir(package_root):
            return self._add(number, 1, {"PYTHONPATH": str(package_root)})

    def _add(self, number, cpus, environment=None):
        return self._cluster.add_node(
            node_ip_address=f"127.0.0.{number}", num_cpus=cpus, include_dashboard=False, env_vars=environment,
            object_store_memory=80 * 2**20,
        )

    def kill(self, node):
        """As when its machine is lost."""
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self):
        for node in [*self._cluster.worker_nodes, self.head]:
            self.kill(node)


@pytest.fixture
def nodes(cluster_module, monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:  # sockets: no long path
        monkeypatch.setenv("RAY_TMPDIR", folder)
        found = Nodes()
        yield found
        found.close()


def command(config, *options):
    return [sys.executable, "-m", "wamdiff2_core.cli.main", "closed-loop", "--routes", str(config.routes), "--planner",
            "route-only", "--no-video", "--out", str(config.out), *options]


def lines(out):
    path = out / "journal.jsonl"
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True)[1:] if line.endswith(b"\n")] if (
        path.exists()) else []


def wait_until(condition, limit_s, process):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


def other_code(folder):
    """The packages, one of whose files has another line."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "carla_bridge" / "leases.py").open("a") as file:
        file.write("# another\n")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cluster_that_is_stopped_and_loses_nodes_comes_to_the_results_of_one_machine(config, nodes, tmp_path):
    calm = kill_anywhere.Run(tmp_path / "calm", config.routes, "route-only")
    alone = calm.start()
    first, second = nodes.add(3), nodes.add(4)
    nodes.add(5, other_code(tmp_path / "other"))
    assert alone.wait() == 0
    call = [*command(config, "--cluster", nodes.address), "--retries", "1"]
    log = tmp_path / "cluster.log"
    with log.open("w") as file:
        one_by_one = [*call, "--workers", "1"]  # the second route has not ended when the first has
        process = subprocess.Popen(one_by_one, stdout=file, stderr=file, env=child_environment())
        wait_until(lambda: lines(config.out), 240.0, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(30.0) == ExitCode.FAILED_ITEMS
        done, = lines(config.out)
        assert done["result"]
        left, = ({str(spec.id) for spec in load_routes(config.routes)} - {done["route_id"]})
        nodes.kill(second)
        shutil.rmtree(config.out / "routes" / left, ignore_errors=True)
        process = subprocess.Popen(call, stdout=file, stderr=file, env=child_environment())
        wait_until((config.out / "routes" / left).is_dir, 60.0, process)
        nodes.add(6)
        nodes.kill(first)
        assert process.wait(120.0) == ExitCode.DONE
    said = log.read_text()
    here = Installation.here(config.agent).code
    assert re.search(rf"node 127.0.0.5 is not used: it has code \w+ \(here {here}\)", said)
    assert "node 127.0.0.2 is not used: it has no CPU to give" in said
    assert said.count("node 127.0.0.3 is gone") == 1
    assert "127.0.0.3 is not used" not in said
    assert "stopped; the same command goes on" in said
    _, lost, again = lines(config.out)
    assert (lost["route_id"], lost["kind"], lost["node"]) == (left, "infrastructure", "127.0.0.3")
    assert (again["route_id"], again["kind"], again["node"]) == (left, "driven", "127.0.0.6")
    troubled = kill_anywhere.Run(config.out, config.routes, "route-only")
    assert len(calm.scores()) == len(ROUTES)
    assert troubled.scores() == calm.scores()
    assert troubled.trajectories() == calm.trajectories()
    for route in ROUTES:
        names = [{path.name for path in (run.folder / "routes" / route).iterdir()} for run in (calm, troubled)]
        assert names[0] == names[1]


def test_an_address_without_a_cluster_is_an_error_soon(config, cluster_module, monkeypatch, capsys):
    monkeypatch.setattr("carla_bridge.evaluation.cluster_connection.OPEN_S", 0.2)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    began_s = time.monotonic()
    code = main(command(config, "--cluster", address)[3:])
    assert code == ExitCode.INFRASTRUCTURE
    assert f"no Ray cluster at {address}" in capsys.readouterr().err
    assert time.monotonic() - began_s < 20.0


def test_something_else_at_the_address_is_an_error_too(cluster_module, monkeypatch):
    monkeypatch.setattr("carla_bridge.evaluation.cluster_connection.ANSWER_S", 2.0)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(InfrastructureError, match="has not answered as a Ray cluster in 2 s"):
            cluster_module.check_reachable(f"127.0.0.1:{listener.getsockname()[1]}")


def test_without_ray_the_extra_is_named(config, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("cluster", "cluster_connection"):
        monkeypatch.delitem(sys.modules, f"carla_bridge.evaluation.{name}", raising=False)
    assert main(command(config, "--cluster", "127.0.0.1:6379")[3:]) == ExitCode.WRONG_USE
    assert "pip install 'wamdiff2[cluster]'" in capsys.readouterr().err
    assert not config.out.exists()


@pytest.mark.parametrize(("change", "address", "message"), [
    ({}, "cluster", "HOST:PORT"),
    ({"carla": "127.0.0.1:2000"}, "127.0.0.1:6379", "none with --cluster"),
    ({"device": "cuda:1"}, "127.0.0.1:6379", "cpu or cuda or npu with --cluster"),
])
def test_what_a_cluster_cannot_do_is_refused(config, cluster_module, change, address, message):
    with pytest.raises(UserError, match=message):
        cluster_module.ClusterPool(address, evaluation(replace(config, **change)))


def test_differences_between_installations_are_named():
    here = Installation("aaa", "ccc", {"carla": "0.9.16", "python": "3.11.7"})
    other = Installation("aaa", "", {"carla": "0.9.15", "python": "3.11.7"})
    assert other.differences(here) == ["carla 0.9.15 (here 0.9.16)", "checkpoint none (here ccc)"]
    assert here.differences(here) == []


def test_an_attempt_brings_its_inputs_and_takes_its_files_along(config, tmp_path):
    (tmp_path / "TownX.xodr").write_text("<OpenDRIVE/>")
    inputs = Inputs.read(config.routes, {"TownX": tmp_path / "TownX.xodr"})
    with scratch_folder() as node:
        task = inputs.put(Task.of(Job("20014", 0), config), node)
        assert Path(task.routes).read_bytes() == config.routes.read_bytes()
        assert (Path(task.maps) / "TownX.xodr").read_text() == "<OpenDRIVE/>"
        folder = node / "100"
        (folder / "frames").mkdir(parents=True)
        (folder / "frames" / "0.jpg").write_bytes(b"picture")
        data = pack(folder)
        assert not Inputs.read(config.routes, {}).put(replace(task, maps="/of the head"), node).maps
    assert not node.exists()
    target = tmp_path / "routes" / "100"
    target.mkdir(parents=True)
    (target / "of an earlier attempt").touch()
    unpack(data, target)
    assert [path.relative_to(target) for path in sorted(target.rglob("*"))] == [Path("frames"), Path("frames/0.jpg")]
    assert (target / "frames" / "0.jpg").read_bytes() == b"picture"


def test_threads_are_those_of_the_head(config, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    inputs = Inputs.read(config.routes, {})
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    inputs.set_threads()
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert "MKL_NUM_THREADS" not in os.environ


def test_folders_of_killed_attempts_go_and_those_in_use_stay():
    code = ("from carla_bridge.evaluation.cluster_node import scratch_folder; import time\n"
            "with scratch_folder() as folder: print(folder, flush=True); time.sleep(60)")
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                              env=child_environment({"PYTHONPATH": str(ROOT)}))
    try:
        held = Path(holder.stdout.readline().strip())
        with scratch_folder() as mine:
            assert held.is_dir()
            assert mine != held
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()
    with scratch_folder():
        assert not held.exists()
