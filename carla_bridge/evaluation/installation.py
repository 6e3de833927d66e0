"""What a machine drives with: code, versions and checkpoint. Machines that agree in it drive a route alike.

`python -m carla_bridge.evaluation.installation PLANNER` prints it as JSON, as the Python that would drive sees it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from carla_bridge.agents.choice import AgentChoice
from carla_bridge.provenance import code_hash, versions_of
from wamdiff2_core.cli.main import run_alone
from wamdiff2_core.config import Strict


@dataclass(frozen=True)
class Installation(Strict):
    """What is installed.

    Attributes:
        code: hash of the packages that drive, their towns and tables included.
        checkpoint: its hash; empty for a planner without one.
        versions: of what is not in `code`, by name.
    """

    code: str
    checkpoint: str
    versions: dict[str, str]

    @classmethod
    def here(cls, agent: AgentChoice) -> Installation:
        """This machine's, for an agent."""
        return cls(code_hash(), checkpoint_of(agent), versions())

    def differences(self, other: Installation) -> list[str]:
        """What differs from `other`, each in words: `carla 0.9.15 (here 0.9.16)`, where here is `other`."""
        mine, theirs = (
            {"code": found.code, "checkpoint": found.checkpoint, **found.versions} for found in (self, other)
        )
        return [f"{name} {mine.get(name) or 'none'} (here {theirs.get(name) or 'none'})"
                for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)]


def versions() -> dict[str, str]:
    """Versions that decide about the outcome of a drive, by name."""
    return versions_of("wamdiff2", "carla", "numpy", "torch")


def checkpoint_of(agent: AgentChoice) -> str:
    """Hash of an agent's checkpoint; empty without one."""
    if agent.folder is None:
        return ""
    from wamdiff2_core.model.checkpoint import checkpoint_hash

    return checkpoint_hash(agent.folder)


def main(planner: Annotated[str, typer.Argument(metavar="PLANNER", help="As for `closed-loop --planner`.")]) -> None:
    """Print what is installed here."""
    print(json.dumps(dataclasses.asdict(Installation.here(AgentChoice.parse(planner)))))


if __name__ == "__main__":
    sys.exit(run_alone(main, "carla_bridge.evaluation.installation"))
