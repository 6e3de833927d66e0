"""The report of a drive, made from its run folder alone: `index.html` and `drive.mp4`."""

from __future__ import annotations

from pathlib import Path

from wamdiff2_core.outputs import disk_errors_named


def write_report(folder: Path, *, video: bool = True) -> None:
    """Write the page and, with `video`, the film of a run folder."""
    from carla_bridge.report.page import PAGE_NAME, VIDEO_NAME, write_page
    from carla_bridge.report.video import write_video

    if video:
        with disk_errors_named(folder / VIDEO_NAME):
            write_video(folder, folder / VIDEO_NAME)
    with disk_errors_named(folder / PAGE_NAME):
        write_page(folder)
