"""The report of a drive, made from its run folder alone: `index.html` and `drive.mp4`."""

from __future__ import annotations

from pathlib import Path


def write_report(folder: Path, *, video: bool = True) -> None:
    """Write the page and, with `video`, the film of a run folder."""
    from carla_bridge.report.page import VIDEO_NAME, write_page
    from carla_bridge.report.video import write_video

    if video:
        write_video(folder, folder / VIDEO_NAME)
    write_page(folder)
