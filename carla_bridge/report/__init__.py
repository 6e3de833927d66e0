"""The report of a run, made from its run folder alone: `index.html`, pages and pictures in `report/`, and films.

    run                          a run folder as the pages see it: drives, records, scores
    page, route_view             what the templates are filled with: the first page, and a route
    compare, compare_page        two runs, pair by pair
    moments                      the worst moments, near misses among them
    charts, radar, top_view      drawings, SVG text
    overlay, pictures, video     camera pictures with plans, and films
    lanes                        the lanes of a run's towns, kept in its folder
"""

from __future__ import annotations

from pathlib import Path

from wamdiff2_core.outputs import disk_errors_named


def write_report(folder: Path, *, video: bool = True) -> Path:
    """Write the pages and, with `video`, the films of a run folder, and return the path of the first page.

    A run that has all its routes on the first page gets one film, a larger one a film beside each route; those that
    are there and newer than the route's plans are kept.

    Raises:
        UserError: the folder holds no run.
    """
    from carla_bridge.report.page import PAGE_NAME, VIDEO_NAME, write_page
    from carla_bridge.report.video import write_films

    if video:
        with disk_errors_named(folder / VIDEO_NAME):
            write_films(folder)
    with disk_errors_named(folder / PAGE_NAME):
        return write_page(folder)
