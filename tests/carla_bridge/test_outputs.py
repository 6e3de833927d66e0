"""Places that the bridge's commands write to: refused before any work, or named when the disk takes no more."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from carla_bridge import report
from carla_bridge.recording.recorder import RouteRecorder
from carla_bridge.recording.results import PLANS_NAME, TRAJECTORY_NAME
from tests.carla_bridge.drive_doubles import straight_route
from wamdiff2_core.cli.main import main
from wamdiff2_core.dataset import DatasetWriter, read_dataset
from wamdiff2_core.types import CameraFrame

ROUTES = Path(__file__).resolve().parents[2] / "carla_bridge" / "routes" / "train.xml"
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullFile:
    """A file on a disk that is full; it notes whether it was closed."""

    closed = False

    def write(self, data):
        raise FULL

    def flush(self):
        raise FULL

    def close(self):
        self.closed = True
        raise FULL


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("line", [
    ["closed-loop", "--planner", "none", "--out"],
    ["closed-loop", "--planner", "none", "--workers", "1", "--out"],
    ["collect", "--routes", str(ROUTES), "--no-images", "--out"],
    ["town", "--out"],
])
@pytest.mark.parametrize("place", ["/proc/x", "/proc/x/y"])
def test_a_place_that_cannot_be_written_to_is_wrong_use(line, place, capsys):
    pytest.importorskip("carla", reason="needs the [carla] extra")
    assert main([*line, place]) == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith("error: --out: expected a place that can be written to, got /proc")
    assert stderr.count("\n") == 1


def test_the_recorder_names_the_file_that_the_disk_does_not_take_and_closes_both(tmp_path):
    recorder = RouteRecorder(tmp_path, straight_route())
    opened = recorder._trajectory, recorder._plans
    trajectory, plans = recorder._trajectory, recorder._plans = FullFile(), FullFile()
    with pytest.raises(OSError, match=PLANS_NAME):
        recorder.close()
    assert (trajectory.closed, plans.closed) == (True, True)
    recorder._plans = opened[1]
    with pytest.raises(OSError, match=TRAJECTORY_NAME):
        recorder.close()
    opened[0].close()


def test_the_recorder_names_the_picture_that_the_disk_does_not_take(tmp_path, monkeypatch):
    def write_bytes(path, data):
        raise FULL

    with RouteRecorder(tmp_path, straight_route()) as recorder:
        monkeypatch.setattr(Path, "write_bytes", write_bytes)
        with pytest.raises(OSError, match=r"model/0000250\.jpg"):
            recorder.pictures("0000250.jpg", CameraFrame(np.zeros((16, 32, 3), np.uint8), 0), None)


def test_a_data_set_on_a_full_disk_names_itself_and_keeps_its_whole_lines(tmp_path):
    writer = DatasetWriter(tmp_path)
    writer.add("0", "question", "answer")
    writer.flush()
    opened, writer._out = writer._out, FullFile()
    with pytest.raises(OSError, match=r"samples\.jsonl"), writer:
        writer.add("1", "question", "answer")
    opened.write('{"id": "1", "conver')  # what fitted
    opened.close()
    with DatasetWriter(tmp_path) as again:
        again.add("1", "question", "answer")
    assert [sample.conversation.id for sample in read_dataset(tmp_path / "samples.jsonl")] == ["0", "1"]


def test_a_report_names_the_file_that_the_disk_does_not_take(tmp_path, monkeypatch):
    def fill(*_):
        raise FULL

    monkeypatch.setattr("carla_bridge.report.page.write_page", fill)
    monkeypatch.setattr("carla_bridge.report.video.write_films", fill)
    with pytest.raises(OSError, match=r"index\.html"):
        report.write_report(tmp_path, video=False)
    with pytest.raises(OSError, match=r"drive\.mp4"):
        report.write_report(tmp_path)
