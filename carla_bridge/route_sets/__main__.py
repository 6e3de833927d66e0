"""Write all shipped route files again; they come out the same: `python -m carla_bridge.route_sets FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from carla_bridge.route_sets.scenario_sets import build_sets
from carla_bridge.route_sets.walks import build_walks
from wamdiff2_core.cli.main import run_alone
from wamdiff2_core.outputs import writable_folder


def write_sets(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write them.")]) -> None:
    """Write all route files into a folder."""
    writable_folder(folder, "FOLDER")
    for name, text in {**build_sets(), **build_walks()}.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run_alone(write_sets, "carla_bridge.route_sets"))
