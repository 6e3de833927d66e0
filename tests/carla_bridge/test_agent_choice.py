"""Which checkpoints may drive: the others are refused before anything is started."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from carla_bridge.agent_server.server import AgentServer
from carla_bridge.agents.choice import AgentChoice
from wamdiff2_core.errors import UserError
from wamdiff2_core.planner import RandomPlanner
from wamdiff2_core.serving_record import ServingRecord


def navsim(record: dict[str, Any]) -> None:
    record["planning"] |= {"prompt": "navsim_upstream", "waypoints": 8}


def blind(record: dict[str, Any]) -> None:
    record["planning"], record["rig"], record["tasks"] = None, [], ["lingoqa"]


@pytest.fixture
def changed(nano_folder: Path, tmp_path: Path) -> Callable[..., Path]:
    def change(how: Callable[[dict[str, Any]], None]) -> Path:
        folder = shutil.copytree(nano_folder, tmp_path / "changed")
        record = json.loads((folder / "wamdiff2.json").read_text())
        how(record)
        (folder / "wamdiff2.json").write_text(json.dumps(record))
        return folder

    return change


@pytest.mark.parametrize(("how", "expected"), [
    (navsim, "--planner: expected a checkpoint with the bench2drive prompt, got one with navsim_upstream"),
    (blind, "--planner: expected a checkpoint that was trained to plan"),
])
def test_a_checkpoint_whose_answers_are_not_to_be_driven_is_refused(
    changed: Callable[..., Path], how: Callable[[dict[str, Any]], None], expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        AgentChoice.parse(str(changed(how)))


def test_the_agent_server_refuses_it_too(changed: Callable[..., Path]) -> None:
    planner = RandomPlanner()
    planner.record = ServingRecord.load(changed(navsim))  # type: ignore[misc]
    with pytest.raises(UserError, match="--checkpoint: expected a checkpoint with the bench2drive prompt"):
        AgentServer(planner, "navsim")
