"""`wamdiff2 town`: write a generated town as an OpenDRIVE file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from carla_bridge.server.town_builder.builder import build_town
from carla_bridge.server.town_builder.plans import TOWN_PLANS
from wamdiff2_core.errors import unknown_name
from wamdiff2_core.journal import replace_file
from wamdiff2_core.outputs import writable_file


def town(
    name: Annotated[str, typer.Option(help=f"Town to write: {', '.join(TOWN_PLANS)}.")] = "Wamtown01",
    out: Annotated[
        Path | None, typer.Option(help="File to write the OpenDRIVE text to.", show_default="NAME.xodr")
    ] = None,
) -> None:
    """Write a town of the embedded world as an OpenDRIVE file; the same bytes every time."""
    plan = TOWN_PLANS.get(name)
    if plan is None:
        raise unknown_name("--name", name, TOWN_PLANS)
    path = writable_file(out or Path(f"{name}.xodr"), "--out")
    replace_file(path, build_town(plan))
    typer.echo(f"{path}: {len(plan.junctions)} junctions, {len(plan.roads)} roads")
