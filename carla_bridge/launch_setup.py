"""What carla.launch.py starts: the bridge, and the planner wired to it."""

from __future__ import annotations

from carla_bridge.routes import DEMO_ROUTES
from wamdiff2_ros.launch_setup import (
    FASTDDS_ARGUMENT,
    FASTDDS_VARIABLE,
    PLANNER_ARGUMENTS,
    PLANNER_ON_BRIDGE,
    Argument,
    LaunchSetup,
    NodeSetup,
)

BRIDGE = NodeSetup(
    executable="bridge_node",
    name="bridge",
    namespace="{namespace}",
    parameters={
        "checkpoint": "{checkpoint}",
        "routes": "{routes}",
        "carla": "{carla}",
        "latency": "{latency}",
        "out": "{out}",
    },
    flags={"seed": "{seed}"},
    remappings=(
        ("~/plan", "/{namespace}/planner/output/plan"),
        ("~/planner_ready", "/{namespace}/planner/output/ready"),
    ),
    ends_launch=True,
)

CARLA = LaunchSetup(
    arguments=(
        *PLANNER_ARGUMENTS,
        Argument("routes", str(DEMO_ROUTES), "route file in Bench2Drive's XML form"),
        Argument("carla", "", "HOST:PORT of a CARLA server; empty starts the embedded one"),
        Argument("latency", "lockstep", "when plans act: lockstep, measured or milliseconds"),
        Argument("out", "runs/carla-launch", "folder for results and report"),
        Argument("seed", "0", "seed of the embedded world"),
        FASTDDS_ARGUMENT,
    ),
    nodes=(PLANNER_ON_BRIDGE, BRIDGE),
    environment={FASTDDS_VARIABLE: "{fastdds_profile}"},
)
