"""The picture of the README: one frame of a route's film, from a run folder with pictures.

    wamdiff2 closed-loop --link in-process --routes carla_bridge/routes/embedded-20.xml --routes-subset 20020 \\
        --vehicles 40 --walkers 40 --out runs/picture
    python -m benchmarks.drive_picture runs/picture --route 20020 --at 13
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image

from carla_bridge.report.video import film_picture
from wamdiff2_core.cli.main import run_alone


def drive_picture(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of a drive with pictures.")],
    route: Annotated[str, typer.Option(help="Id of the route.")],
    at: Annotated[float, typer.Option(help="Simulated seconds since the route began.")],
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("docs/images/drive.png"),
) -> None:
    """Write one frame of a route's film as a picture."""
    Image.fromarray(film_picture(run, route, at)).save(out, optimize=True)
    typer.echo(out)


if __name__ == "__main__":
    sys.exit(run_alone(drive_picture, "benchmarks.drive_picture"))
