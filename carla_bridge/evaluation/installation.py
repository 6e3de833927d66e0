"""What a machine drives with: code, versions and checkpoint. Machines that agree in it drive a route alike.

`python -m carla_bridge.evaluation.installation PLANNER` prints it as JSON, as the Python that would drive sees it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from carla_bridge.agents.choice import AgentChoice
from wamdiff2_core.cli.main import exit_code_of
from wamdiff2_core.config import Strict

PACKAGES = ("carla_bridge", "wamdiff2_core", "wamdiff2_ros")
KINDS = frozenset({".py", ".json", ".xml", ".xodr", ".yaml"})  # what a drive depends on
HASH_LENGTH = 12


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
    return {name: metadata.version(name) for name in ("wamdiff2", "carla", "numpy", "torch")} | {
        "python": platform.python_version()
    }


def code_hash() -> str:
    """First digits of the SHA-256 over the files of `PACKAGES` that a drive depends on, by path."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for root in map(Path, (spec.submodule_search_locations if spec is not None else None) or ()):
            for path in sorted(path for path in root.rglob("*") if path.suffix in KINDS):
                digest.update(f"{package}/{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:HASH_LENGTH]


def checkpoint_of(agent: AgentChoice) -> str:
    """Hash of an agent's checkpoint; empty without one."""
    if agent.folder is None:
        return ""
    from wamdiff2_core.model.checkpoint import checkpoint_hash

    return checkpoint_hash(agent.folder)


def main(planner: str) -> None:
    """Print what is installed here."""
    print(json.dumps(dataclasses.asdict(Installation.here(AgentChoice.parse(planner)))))


if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: main(sys.argv[1])))
