"""The planner node as a process, seen from its topics."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from wamdiff2_core.cli.main import main

pytestmark = pytest.mark.ros

T0_NS = 12_250_000_000


def statuses(peer):
    return [status for array in peer.diagnostics for status in array.status if status.name == "planner: inference"]


def values(status):
    return {pair.key: pair.value for pair in status.values}


def test_plan_and_path_carry_the_stamp_of_the_image(start_scripted, peer):
    start_scripted()
    peer.wait_ready()
    peer.send_partners(T0_NS, speed_mps=4.0)
    peer.send_image(T0_NS)
    assert peer.spin_until(lambda: peer.plans and peer.paths)
    plan, path = peer.plans[0], peer.paths[0]
    assert (plan.header.stamp.sec, plan.header.stamp.nanosec) == (12, 250_000_000)
    assert plan.header.frame_id == "base_link"
    assert plan.header.stamp == path.header.stamp
    assert [(w.x_m, w.y_m) for w in plan.waypoints] == [(2.0 * i, 0.0) for i in range(1, 7)]
    assert plan.dt_s == 0.5
    assert plan.ok
    assert (plan.prefill_ms, plan.decode_ms, plan.forwards, plan.blocks, plan.tokens) == (3.0, 4.5, 5, 2, 33)
    assert (plan.interventions, plan.hurried_steps, plan.overshoot_ms) == (6, 3, 1.5)
    assert [p.pose.position.x for p in path.poses] == [w.x_m for w in plan.waypoints]
    assert (path.poses[-1].header.stamp.sec, path.poses[-1].header.stamp.nanosec) == (15, 250_000_000)


def test_image_waits_for_odometry_that_comes_later(start_scripted, peer):
    start_scripted()
    peer.wait_ready()
    peer.send_image(T0_NS)
    peer.spin_for(0.3)
    assert not peer.plans
    peer.send_partners(T0_NS)
    assert peer.spin_until(lambda: peer.plans)


def test_odometry_outside_the_tolerance_gives_no_plan_and_a_diagnostic(start_scripted, peer):
    start_scripted("--ros-args", "-p", "planner:=scripted", "-p", "diagnostics_period_s:=0.1")
    peer.wait_ready()
    peer.send_partners(T0_NS - 60_000_000)
    peer.send_image(T0_NS)
    assert peer.spin_until(lambda: any("image without odometry and navigation" in s.message for s in statuses(peer)))
    assert not peer.plans


def test_images_that_come_while_the_planner_is_busy_are_dropped_and_counted(start_scripted, peer):
    start_scripted("--ros-args", "-p", "planner:=scripted", "-p", "diagnostics_period_s:=0.1", SCRIPT_PLAN_S="0.8")
    peer.wait_ready()
    for i in range(4):
        stamp_ns = T0_NS + i * 50_000_000
        peer.send_partners(stamp_ns)
        peer.send_image(stamp_ns)
        peer.spin_for(0.05)
    assert peer.spin_until(lambda: statuses(peer) and values(statuses(peer)[-1])["plans"] == "1")
    peer.spin_for(1.0)
    assert [p.header.stamp.nanosec for p in peer.plans] == [250_000_000]  # the first, not a queue of old ones
    assert values(statuses(peer)[-1])["dropped_busy"] == "3"
    peer.send_partners(T0_NS + 900_000_000)
    peer.send_image(T0_NS + 900_000_000)
    assert peer.spin_until(lambda: len(peer.plans) == 2)


def test_diagnostics_go_on_during_inference(start_scripted, peer):
    start_scripted("--ros-args", "-p", "planner:=scripted", "-p", "diagnostics_period_s:=0.1", SCRIPT_PLAN_S="1.5")
    peer.wait_ready()
    peer.send_partners(T0_NS)
    peer.send_image(T0_NS)
    peer.spin_for(0.3)
    before = len(statuses(peer))
    peer.spin_for(0.8)
    assert not peer.plans
    assert len(statuses(peer)) - before >= 4


def test_lockstep_never_drops_a_frame_sent_in_answer_to_a_plan(start_scripted, peer):
    strict = ("-p", "reliable_inputs:=true", "-p", "sync_tolerance_s:=0.0")
    start_scripted("--ros-args", "-p", "planner:=scripted", *strict)
    peer.wait_ready()
    for i in range(100):
        stamp_ns = T0_NS + i * 250_000_000
        peer.send_image(stamp_ns)
        peer.send_partners(stamp_ns)
        assert peer.spin_until(lambda i=i: len(peer.plans) == i + 1, 5.0), f"no plan for frame {i}"


def test_rejected_plan_is_published_as_such_with_an_empty_path(start_scripted, peer):
    start_scripted(SCRIPT_ANSWER="unreadable")
    peer.wait_ready()
    peer.send_partners(T0_NS)
    peer.send_image(T0_NS)
    assert peer.spin_until(lambda: peer.plans and peer.paths)
    assert not peer.plans[0].ok
    assert peer.plans[0].message == "not waypoints"
    assert peer.plans[0].text == "1.0,x"
    assert list(peer.paths[0].poses) == []


def test_planner_that_raises_is_reported_and_the_node_lives(start_scripted, peer):
    node = start_scripted(SCRIPT_ANSWER="raise")
    peer.wait_ready()
    for i in range(2):
        peer.send_partners(T0_NS + i)
        peer.send_image(T0_NS + i)
        assert peer.spin_until(lambda i=i: len(peer.plans) == i + 1)
    assert not any(plan.ok for plan in peer.plans)
    assert "RuntimeError: no idea" in peer.plans[0].message
    assert node.process.poll() is None
    assert "Traceback" in node.output


def test_deadline_grammar_and_backend_of_the_parameters_reach_the_checkpoint(nano_folder):
    from wamdiff2_core.serving_record import ServingRecord
    from wamdiff2_ros.params import PlannerParameters
    from wamdiff2_ros.planner_node import planner_from

    record = ServingRecord.load(nano_folder).decode
    assert planner_from(PlannerParameters(str(nano_folder))).decode == record
    hurried = planner_from(PlannerParameters(str(nano_folder), deadline_ms=40.0)).decode
    assert (hurried.deadline_ms, hurried.grammar) == (40.0, "task")
    assert planner_from(PlannerParameters(str(nano_folder), grammar="task")).decode.grammar == "task"
    assert planner_from(PlannerParameters(str(nano_folder), backend="eager"))._checkpoint.backend == "eager"


def test_seed_of_the_parameters_is_the_random_planners_only(nano_folder):
    from wamdiff2_core.serving_record import ServingRecord
    from wamdiff2_ros.params import PlannerParameters
    from wamdiff2_ros.planner_node import planner_from

    assert planner_from(PlannerParameters("random", seed=7))._seed == 7
    seed = ServingRecord.load(nano_folder).decode.seed
    assert planner_from(PlannerParameters(str(nano_folder), seed=seed + 7)).decode.seed == seed


def test_diagnostics_tell_of_hurry_and_lateness(start_scripted, peer):
    start_scripted("--ros-args", "-p", "planner:=scripted", "-p", "diagnostics_period_s:=0.1")
    peer.wait_ready()
    peer.send_partners(T0_NS)
    peer.send_image(T0_NS)
    assert peer.spin_until(lambda: statuses(peer) and "overshoot_ms" in values(statuses(peer)[-1]))
    told = values(statuses(peer)[-1])
    assert [told[name] for name in ("interventions", "hurried_steps", "overshoot_ms")] == ["6", "3", "1.5"]


def test_not_ready_and_no_plan_before_warm_up(start_scripted, peer, tmp_path):
    loaded = tmp_path / "loaded"
    parameters = ("-p", "planner:=scripted", "-p", "diagnostics_period_s:=0.1")
    start_scripted("--ros-args", *parameters, SCRIPT_LOADED=str(loaded))
    inputs = (peer.image, peer.odometry, peer.navigation)
    assert peer.spin_until(lambda: peer.ready and all(p.get_subscription_count() for p in inputs))
    assert peer.ready == [False]
    peer.send_partners(T0_NS)
    peer.send_image(T0_NS)
    assert peer.spin_until(lambda: any(values(s)["dropped_loading"] == "1" for s in statuses(peer)))
    assert statuses(peer)[-1].level != b"\x00"
    loaded.touch()
    assert peer.spin_until(lambda: peer.ready[-1:] == [True])
    assert peer.spin_until(lambda: statuses(peer)[-1].message != "loading")
    assert not peer.plans


def test_image_of_another_size_than_the_rig_is_refused(start_scripted, peer):
    start_scripted("--ros-args", "-p", "planner:=scripted", "-p", "diagnostics_period_s:=0.1", SCRIPT_RIG="128x64")
    peer.wait_ready()
    peer.send_partners(T0_NS)
    peer.send_image(T0_NS)
    assert peer.spin_until(lambda: any("expected 128x64 pixels" in s.message for s in statuses(peer)))
    peer.send_image(T0_NS, width=128, height=64)
    assert peer.spin_until(lambda: peer.plans)


def test_camera_with_another_field_of_view_than_the_rig_is_refused(start_scripted, peer):
    from wamdiff2_core.config import CameraSpec
    from wamdiff2_ros.conversions import camera_info_to_msg

    start_scripted("--ros-args", "-p", "planner:=scripted", "-p", "diagnostics_period_s:=0.1", SCRIPT_RIG="64x32")
    peer.wait_ready()
    assert peer.spin_until(lambda: peer.camera_info.get_subscription_count())
    peer.camera_info.publish(camera_info_to_msg(CameraSpec(width_px=64, height_px=32, hfov_deg=60.0), T0_NS, "optical"))
    peer.spin_for(0.3)
    peer.send_partners(T0_NS)
    peer.send_image(T0_NS)
    assert peer.spin_until(lambda: any("focal length" in s.message for s in statuses(peer)))
    assert not peer.plans


def test_compressed_transport_plans_from_a_jpeg(start_scripted, peer):
    import numpy as np

    from wamdiff2_core.types import CameraFrame
    from wamdiff2_ros.conversions import compressed_to_msg

    start_scripted("--ros-args", "-p", "planner:=scripted", "-p", "image_transport:=compressed")
    peer.wait_ready("compressed")
    peer.send_partners(T0_NS)
    peer.compressed.publish(compressed_to_msg(CameraFrame(np.zeros((32, 64, 3), np.uint8), T0_NS), "optical"))
    assert peer.spin_until(lambda: peer.plans)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_node_with_code_0(start_scripted, peer, signum):
    node = start_scripted()
    peer.wait_ready()
    assert node.end(signum) == 0, node.output
    assert "Traceback" not in node.output


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "parameter planner"),
        (("--ros-args", "-p", "planner:=random", "-p", "sync_tolerance_s:=9.0"), "expected float in 0..1, got 9.0"),
        (("--ros-args", "-p", "planner:=random", "-p", "sync_tolerance_s:=0"), "write 0.0"),
        (("--ros-args", "-p", "planner:=random", "-p", "image_transport:=compresed"), "did you mean 'compressed'?"),
        (("--ros-args", "-p", "planner:=random", "-p", "deadline_ms:=-1.0"), "expected float in 0..60000, got -1.0"),
        (("--ros-args", "-p", "planner:=random", "-p", "grammar:=tusk"), "did you mean 'task'?"),
        (("--ros-args", "--params-file", "/nowhere.yaml"), "/nowhere.yaml"),
        (("--ros-args", "--no-such-flag"), "--no-such-flag"),
        (("--ros-args", "-p", "planner:=/nowhere"), "/nowhere"),
    ],
)
def test_wrong_use_ends_with_code_2_and_one_line(start_node, arguments, named):
    node = start_node(sys.executable, "-m", "wamdiff2_ros.planner_node", *arguments)
    assert node.wait() == 2
    assert named in node.output
    assert "Traceback" not in node.output
    assert sum(line.startswith("error:") for line in node.output.splitlines()) == 1


def test_failure_to_load_the_planner_ends_the_node_with_its_error(start_scripted):
    node = start_scripted(SCRIPT_ANSWER="missing")
    assert node.wait() != 0
    assert "parameter planner: expected a checkpoint folder" in node.output


def test_checkpoint_with_a_prompt_that_tells_an_acceleration_is_refused(start_scripted):
    node = start_scripted(SCRIPT_PROMPT="navsim_paper")
    assert node.wait() != 0
    assert "expected a checkpoint with the bench2drive prompt, got one with navsim_paper" in node.output


def test_inputs_in_another_frame_are_refused_with_a_diagnostic(start_scripted, peer):
    start_scripted("--ros-args", "-p", "planner:=scripted", "-p", "base_frame:=hull", "-p", "diagnostics_period_s:=0.1")
    peer.wait_ready()
    peer.send_partners(T0_NS)
    peer.send_image(T0_NS)
    assert peer.spin_until(lambda: any("expected hull, or none, got base_link" in s.message for s in statuses(peer)))
    assert values(statuses(peer)[-1])["refused"] == "2"
    assert not peer.plans


def test_diagnostics_before_the_first_plan_have_none_of_its_figures(start_scripted, peer):
    start_scripted("--ros-args", "-p", "planner:=scripted", "-p", "diagnostics_period_s:=0.1",
                   SCRIPT_PROMPT="bench2drive")
    peer.wait_ready()
    assert peer.spin_until(lambda: statuses(peer))
    assert "plan_ms" not in values(statuses(peer)[-1])
    peer.send_partners(T0_NS)
    peer.send_image(T0_NS)
    assert peer.spin_until(lambda: "plan_ms" in values(statuses(peer)[-1]))
    assert statuses(peer)[-1].hardware_id == "scripted"


def test_misspelt_parameter_is_pointed_out(start_scripted, peer):
    node = start_scripted("--ros-args", "-p", "planner:=scripted", "-p", "sync_tolerance:=0.1")
    peer.wait_ready()
    assert "parameter sync_tolerance: the planner has none" in node.output
    assert "did you mean 'sync_tolerance_s'?" in node.output


def test_wamdiff2_node_runs_the_same_node_and_passes_ros_arguments_on(start_node, ros_domain):
    from tests.ros.conftest import Peer

    peer = Peer(ros_domain, planner="/ego/planner")
    command = (sys.executable, "-m", "wamdiff2_core.cli.main", "node", "--checkpoint", "random")
    node = start_node(*command, "--ros-args", "-r", "__ns:=/ego")
    peer.wait_ready()
    assert node.end() == 0
    peer.close()


def test_wamdiff2_node_without_such_a_checkpoint_ends_with_code_2(start_node):
    node = start_node(sys.executable, "-m", "wamdiff2_core.cli.main", "node", "--checkpoint", "/no such folder")
    assert node.wait() == 2
    assert "/no such folder" in node.output
    assert "Traceback" not in node.output


SURPLUS = [
    ["--bogus"],
    ["surplus"],
    ["--bogus", "--ros-args", "-r", "__ns:=/ego"],
    ["--ros-args", "-r", "__ns:=/ego", "--", "--bogus"],
]


def assert_surplus_is_named(line, said):
    assert line[0] in said or line[-1] in said
    assert said.startswith("error: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("line", SURPLUS)
def test_what_is_neither_an_option_nor_a_ros_argument_is_refused_by_the_node(start_node, line):
    node = start_node(sys.executable, "-m", "wamdiff2_ros.planner_node", *line)
    assert node.wait() == 2
    assert_surplus_is_named(line, node.output)


@pytest.mark.parametrize("line", SURPLUS)
def test_what_is_neither_an_option_nor_a_ros_argument_is_refused_by_the_command(ros_domain, capsys, line):
    assert main(["node", *line]) == 2
    assert_surplus_is_named(line, capsys.readouterr().err)


def test_a_misspelt_option_of_wamdiff2_node_gets_a_suggestion(ros_domain, capsys):
    assert main(["node", "--checkpont=random"]) == 2
    assert "--checkpont=random; did you mean '--checkpoint'?" in capsys.readouterr().err


@pytest.mark.slow
def test_shipped_checkpoint_plans_from_topics(start_node, peer, nano_folder):
    node = start_node(sys.executable, "-m", "wamdiff2_ros.planner_node", "--ros-args", "-p", f"planner:={nano_folder}")
    assert peer.spin_until(lambda: peer.ready[-1:] == [True], 120.0), node.output
    peer.wait_ready()
    peer.send_partners(T0_NS)
    peer.send_image(T0_NS, width=256, height=128)
    assert peer.spin_until(lambda: peer.plans, 30.0), node.output
    plan = peer.plans[0]
    assert plan.ok, plan.message
    assert len(plan.waypoints) == 6
    assert plan.blocks >= 1
    assert plan.decode_ms > 0
    assert plan.source
    assert node.end() == 0


@pytest.mark.parametrize(("given", "policy"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_of_torch_wait_without_spinning_unless_the_user_has_chosen(ros_domain, monkeypatch, given, policy):
    """The variable must stand before torch is there, which reads it once."""
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    program = """
import os, sys
from wamdiff2_ros import planner_node
def make(settings):
    print("torch" in sys.modules, os.environ.get("OMP_WAIT_POLICY"))
    raise planner_node.UserError("planner", "another", "this")
try:
    planner_node.run(["planner", "--ros-args", "-p", "planner:=any"], make)
except planner_node.UserError:
    pass
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split() == ["False", policy]


def test_a_crash_of_a_library_at_exit_is_not_the_nodes(ros_domain):
    program = """
import atexit, ctypes
from wamdiff2_ros.shutdown import end_process
atexit.register(ctypes.string_at, 0)
print("a plan", end="")
end_process(3)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (3, "a plan")


@pytest.mark.parametrize("signum", ["SIGINT", "SIGTERM"])
def test_a_signal_leaves_the_context_open_for_the_work_in_hand(ros_domain, signum):
    """Whoever closes it under the node's hands, from a thread of rclpy's, may crash the process."""
    program = f"""
import os, signal, time
import rclpy
from wamdiff2_core.planner import make_planner
from wamdiff2_ros import planner_node
from wamdiff2_ros.shutdown import end_process
def make(settings):
    os.kill(os.getpid(), signal.{signum})
    time.sleep(0.5)
    print("open" if rclpy.ok() else "closed")
    return make_planner("random")
code = planner_node.run(["planner", "--ros-args", "-p", "planner:=random"], make)
print(code, "open" if rclpy.ok() else "closed", flush=True)
end_process(code)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["open", "0", "closed"]
