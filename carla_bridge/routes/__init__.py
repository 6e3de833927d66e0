"""Routes: reading the leaderboard's XML, planning over a map, and where the ego is on its way.

The shipped route files lie beside the modules; `carla_bridge.route_sets` makes them.
"""

from pathlib import Path

ROUTES_FOLDER = Path(__file__).resolve().parent
DEMO_ROUTES = ROUTES_FOLDER / "demo.xml"
