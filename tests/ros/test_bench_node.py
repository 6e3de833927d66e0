"""`wamdiff2 bench node`: a real node in a process of its own, with times and drops known beforehand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.ros.conftest import SCRIPTED_NODE
from wamdiff2_core.cli.main import as_command, exit_code_of
from wamdiff2_core.errors import InfrastructureError, UserError
from wamdiff2_core.types import CameraFrame, EgoState, Navigation, Observation

pytestmark = pytest.mark.ros

SEEN = Observation(
    (CameraFrame(np.arange(64 * 32 * 3, dtype=np.uint8).reshape(32, 64, 3), 0),),
    EgoState(np.array([6.0, 0.0])), Navigation(np.array([[10.0, 0.0], [20.0, 0.0]])),
)
MS = 1_000_000


@pytest.fixture
def scripted_command(ros_domain):
    """Command line of the scripted planner in the real node, as the measurement starts the real one."""
    from wamdiff2_ros.bench import node_command

    real = node_command("scripted", "measured")
    return [sys.executable, str(SCRIPTED_NODE), *real[real.index("--ros-args"):]]


def test_a_slow_planners_latency_and_drops_are_found(scripted_command, monkeypatch, tmp_path):
    from wamdiff2_ros.bench import measure_node

    monkeypatch.setenv("SCRIPT_PLAN_S", "0.4")
    told = []
    figures = measure_node(scripted_command, "measured", SEEN, 10.0, 20, tmp_path / "node.log", told.append)
    rows = {row.name: row for row in figures.rows}
    assert list(rows) == ["start_to_ready", "start_to_first_plan", "latency", "model", "plan", "way"]
    assert rows["start_to_first_plan"].ms_median >= rows["start_to_ready"].ms_median + 300  # `ready` may be heard late
    assert rows["plan"].ms_median >= 400
    assert rows["latency"].ms_median >= rows["plan"].ms_median
    assert 0 < rows["way"].ms_median < 400
    assert rows["model"].ms_median == pytest.approx(3.0 + 4.5)  # what the script says of itself
    inputs = figures.inputs
    assert inputs["published"] == told[-1] == 20
    assert inputs["images"] + inputs["lost"] == 20
    assert inputs["plans"] == rows["latency"].calls
    # two seconds of images, and a plan from each at most every 0.4 s
    assert 1 <= inputs["plans"] <= 7
    assert inputs["dropped_busy"] >= 10
    assert inputs["plans"] + inputs["dropped_busy"] + inputs["unpaired"] == inputs["images"]
    assert inputs["rejected"] == inputs["refused"] == inputs["dropped_loading"] == 0
    assert figures.seconds >= 0.4 * inputs["plans"]
    assert 0.01 < figures.peak_memory_gib < 4


def test_every_frame_has_another_picture_and_its_own_stamp(ros_domain, peer):
    from sensor_msgs.msg import Image

    from wamdiff2_ros import conversions, qos
    from wamdiff2_ros.bench import Feeder

    images = []
    peer.node.create_subscription(Image, "/measured/planner/input/image", images.append, qos.SENSOR)
    feeder = Feeder("measured", SEEN)
    try:
        assert peer.spin_until(lambda: feeder._image.get_subscription_count())
        for _ in range(3):
            feeder.publish()
            heard = len(images)
            assert peer.spin_until(lambda heard=heard: len(images) > heard)
    finally:
        feeder.close()
    pictures = [conversions.image_from_msg(image).rgb for image in images]
    for columns, rgb in enumerate(pictures):
        assert np.array_equal(rgb, np.roll(SEEN.frames[0].rgb, columns, axis=1))
    assert [conversions.stamp_to_ns(image.header.stamp) for image in images] == list(feeder.sent)


def test_what_comes_is_heard_at_a_rate_that_nobody_can_keep(ros_domain, peer):
    from std_msgs.msg import Bool

    from wamdiff2_ros import qos
    from wamdiff2_ros.bench import Feeder

    feeder = Feeder("measured", SEEN)
    try:
        peer.node.create_publisher(Bool, "/measured/planner/output/ready", qos.LATCHED).publish(Bool(data=True))
        feeder.feed(1e9, lambda: feeder.ready_ns is not None or len(feeder.sent) >= 20_000)
    finally:
        feeder.close()
    assert feeder.ready_ns is not None


def counts(**known: int) -> dict[str, int]:
    from wamdiff2_ros.bench import COUNTS

    return dict.fromkeys(COUNTS, 0) | known


def kept() -> SimpleNamespace:
    """A node that started at 1 ms, was ready at 5 s, planned at 6 s, then planned two of three images."""
    from wamdiff2_ros.bench import HeardPlan

    return SimpleNamespace(
        sent={10: 5_990 * MS, 11: 7_000 * MS, 12: 7_100 * MS, 13: 7_200 * MS}, ready_ns=5_001 * MS,
        plans=[HeardPlan(10, 6_001 * MS, 5.0, True), HeardPlan(11, 7_050 * MS, 30.0, True),
               HeardPlan(13, 7_270 * MS, 40.0, False)],
        plan_ms={1: 9.0, 3: 55.0},
    )


def test_figures_from_messages_known_beforehand():
    pytest.importorskip("rclpy", reason="needs the [ros] extra")
    from wamdiff2_ros.bench import Told, figures_of

    before = Told(counts(images=9, plans=1, dropped_loading=8), 9.0)
    after = Told(counts(images=11, plans=2, rejected=1, dropped_loading=8), 55.0)
    figures = figures_of(kept(), MS, 1, 1, before, after, 0.5)
    rows = {row.name: row for row in figures.rows}
    assert rows["start_to_ready"].ms_median == 5000
    assert rows["start_to_first_plan"].ms_median == 6000
    assert (rows["latency"].ms_median, rows["latency"].calls) == (60.0, 2)  # of 50 and 70
    assert rows["model"].ms_median == 35.0
    assert (rows["plan"].ms_median, rows["plan"].calls) == (55.0, 1)  # the third's alone is known
    assert rows["way"].ms_median == pytest.approx(70.0 - 55.0)
    assert figures.inputs == counts(images=2, plans=1, rejected=1) | {"published": 3, "lost": 1}
    assert figures.seconds == pytest.approx(0.27)
    silent = kept()
    silent.plans = silent.plans[:1]
    with pytest.raises(InfrastructureError, match="no plan for any of the measured images"):
        figures_of(silent, MS, 1, 1, before, before, 0.5)


def test_images_without_an_outcome_are_open():
    pytest.importorskip("rclpy", reason="needs the [ros] extra")
    from wamdiff2_ros.bench import Told

    told = Told(counts(images=9, plans=2, rejected=1, unpaired=1, dropped_busy=2, dropped_loading=1, refused=1), None)
    assert (told.answered, told.open) == (3, 1)


def test_a_node_that_refuses_its_planner_is_told_as_wrong_use(ros_domain, tmp_path):
    from wamdiff2_ros.bench import measure_node, node_command

    command = node_command(str(tmp_path / "nowhere"), "measured")
    with pytest.raises(UserError, match="one that the node can load, got error: parameter planner: expected a check"):
        measure_node(command, "measured", SEEN, 10.0, 3, tmp_path / "node.log")


def test_a_node_that_breaks_is_an_infrastructure_error(scripted_command, monkeypatch, tmp_path):
    from wamdiff2_ros.bench import measure_node

    monkeypatch.setenv("SCRIPT_ANSWER", "missing")  # an error that the script itself does not catch
    with pytest.raises(InfrastructureError, match=r"exit code 1: .*got scripted"):
        measure_node(scripted_command, "measured", SEEN, 10.0, 3, tmp_path / "node.log")


def test_the_node_is_started_as_its_launch_file_does(ros_domain):
    from wamdiff2_ros.bench import node_command
    from wamdiff2_ros.launch_setup import PLANNER

    launched = PLANNER.nodes[0].ros_arguments(PLANNER.defaults() | {"checkpoint": "DIR", "namespace": "apart"})
    command = node_command("DIR", "apart", backend="eager", threads=2, deadline_ms=80.0)
    assert command[:3] == [sys.executable, "-m", "wamdiff2_ros.planner_node"]
    assert command[3 : 3 + len(launched)] == launched
    assert command[3 + len(launched):] == [
        "-r", "/diagnostics:=/apart/diagnostics", "-p", "diagnostics_period_s:=0.1", "-p", "backend:=eager",
        "-p", "torch_threads:=2", "-p", "deadline_ms:=80.000000",
    ]


def run(*arguments: object) -> int:
    from wamdiff2_ros.command import bench_node

    command = as_command(bench_node, "node")
    return exit_code_of(lambda: command([str(word) for word in arguments], standalone_mode=False))


def test_the_command_measures_the_random_planner(ros_domain, tmp_path, capsys):
    file = tmp_path / "bench.json"
    assert run("random", "--rate", 20, "--frames", 10, "--log", tmp_path / "node.log", "--json", file) == 0
    result = json.loads(file.read_text())
    assert result["rate_hz"] == 20
    assert result["inputs"]["published"] == 10
    assert result["inputs"]["plans"] >= 1
    assert {"latency", "start_to_first_plan"} <= {row["name"] for row in result["rows"]}
    printed = " ".join(capsys.readouterr().out.split())
    assert "random: planner node, 10 images at 20 Hz" in printed
    assert "images: 10 published" in printed


@pytest.mark.parametrize(("arguments", "expected"), [
    (["random", "--rate", "0"], "rate: expected a finite number of images a second > 0"),
    (["random", "--rate", "inf"], "rate: expected a finite number of images a second > 0"),
    (["random", "--threads", "999"], "--threads: expected at most 256, got 999"),
    (["random", "--log", "x", "--json", "./x"], "json: expected another file than --log"),
    (["nowhere"], "checkpoint: expected a checkpoint folder, got nowhere"),
    (["random", "--device", "cpu", "--backend", "cuda"], "backend: expected"),
    (["random", "--json", "."], "json: expected a file"),
])
def test_wrong_use_is_told_before_anything_starts(arguments, expected, ros_domain, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    assert expected in " ".join(capsys.readouterr().err.split())
    assert not list(Path(tmp_path).iterdir())
