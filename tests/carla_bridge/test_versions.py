"""The library's version against the server's: told before it can end the process."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("carla", reason="needs the carla client library")

import carla

from carla_bridge.client import server_process, versions
from carla_bridge.client.server_process import ServerProcess
from carla_bridge.client.versions import check_versions, embedded_dialect
from carla_bridge.leases import lease_ports
from carla_bridge.ports import wait_for_port
from carla_bridge.server.protocol.dialect import DIALECTS
from wamdiff2_core.errors import UserError
from wamdiff2_core.processes import ManagedProcess, child_environment

ROOT = Path(__file__).resolve().parents[2]


def client(ours: str, theirs: str) -> SimpleNamespace:
    return SimpleNamespace(get_client_version=lambda: ours, get_server_version=lambda: theirs)


@pytest.mark.parametrize(("ours", "theirs"), [
    ("0.9.16", "0.9.16"), ("0.9.15", "0.9.15"), ("0.9.16", "0.9.16-12-gabcdef"), ("0.9.16-dirty", "0.9.16"),
])
def test_the_same_release_is_not_worth_a_word(ours, theirs, caplog):
    check_versions(client(ours, theirs), "here:2000")
    assert caplog.records == []


def test_another_release_is_told_once(caplog, monkeypatch):
    monkeypatch.setattr(versions, "_told", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            check_versions(client("0.9.16", "0.9.17"), "here:2000")
    assert [record.getMessage() for record in caplog.records] == [
        "carla library: expected 0.9.17, the version of the server at here:2000, got 0.9.16; going on, but calls may "
        "fail"
    ]


@pytest.mark.parametrize(("ours", "theirs"), [("0.9.16", "0.9.15"), ("0.9.15", "0.9.16"), ("0.9.16", "0.9.15-dirty")])
def test_releases_that_end_each_others_process_are_refused(ours, theirs):
    with pytest.raises(UserError, match=rf"carla library: expected {theirs}, the version of .*, got {ours}"):
        check_versions(client(ours, theirs), "here:2000")


@pytest.mark.carla
def test_a_server_of_the_other_release_is_wrong_use_and_not_the_end_of_the_process(tmp_path):
    mine = carla.Client("127.0.0.1", 1).get_client_version()
    other = next(version for version in DIALECTS if version != mine)
    port = lease_ports().number
    server = [sys.executable, "-m", "carla_bridge.server", "--port", str(port), "--client-version", other]
    with ManagedProcess("server", server, tmp_path / "log") as process:
        wait_for_port(port, process.alive, 90.0)
        done = subprocess.run(
            [sys.executable, "-m", "wamdiff2_core.cli.main", "closed-loop", "--planner", "none", "--no-video",
             "--carla", f"127.0.0.1:{port}", "--out", str(tmp_path / "run")],
            env=child_environment({"PYTHONPATH": str(ROOT)}), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert f"carla library: expected {other}, the version of the server at 127.0.0.1:{port}, got {mine}" in done.stderr


def test_the_embedded_server_speaks_what_is_installed(monkeypatch):
    assert embedded_dialect() == carla.Client("127.0.0.1", 1).get_client_version()
    assert tuple(DIALECTS) == versions.KNOWN
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.9.14")
    with pytest.raises(UserError, match=r"expected 0\.9\.15 or 0\.9\.16 for the embedded server, got 0\.9\.14"):
        embedded_dialect()


@pytest.mark.carla
@pytest.mark.parametrize("version", DIALECTS)
def test_a_drives_own_server_is_started_for_the_library(version, tmp_path, monkeypatch):
    monkeypatch.setattr(server_process, "embedded_dialect", lambda: version)
    with ServerProcess("Wamtown01", 0, tmp_path / "log") as server:
        reached = carla.Client(*server.wait())
        reached.set_timeout(30.0)
        assert reached.get_server_version() == version
