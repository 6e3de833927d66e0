"""Write all shipped route files again; they come out the same: `python -m carla_bridge.route_sets FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from carla_bridge.route_sets.scenario_sets import build_sets
from carla_bridge.route_sets.walks import build_walks


def main(folder: Path) -> None:
    """Write all route files into a folder."""
    for name, text in {**build_sets(), **build_walks()}.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
