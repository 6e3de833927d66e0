"""What a run of Bench2Drive's evaluator needs from outside: their checkout, a Python 3.8, a CARLA, CARLA's `agents`."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from wamdiff2_core.errors import UserError

STARTER = "CarlaUE4.sh"
EVALUATOR = Path("leaderboard") / "leaderboard" / "leaderboard_evaluator.py"
REPOSITORY = Path(__file__).resolve().parents[2]
EMBEDDED_ROOT = REPOSITORY / "tools" / "carla_root"
AGENT_FILE = REPOSITORY / "carla_bridge" / "leaderboard_agent.py"
PROBE_LIMIT_S = 120.0
# What the evaluator imports from outside; an older `agents` package would import too, and fail late and strangely.
PROBE = """
import sys, pkg_resources, carla
import agents.navigation.global_route_planner as planner, inspect
import srunner.scenariomanager.carla_data_provider, leaderboard.scenarios.route_scenario
parameters = list(inspect.signature(planner.GlobalRoutePlanner.__init__).parameters)
if "sampling_resolution" not in parameters:
    sys.exit("CARLA's agents package: expected the one of 0.9.13 or later (GlobalRoutePlanner(map, resolution))")
print(pkg_resources.get_distribution("carla").version)
"""


@dataclass(frozen=True)
class Checkout:
    """Where everything is.

    Attributes:
        root: Bench2Drive's checkout.
        carla_root: folder with `CarlaUE4.sh`, which the evaluator starts.
        python: Python that runs the evaluator.
        api: folder that holds CARLA's `agents` package.
        maps: OpenDRIVE files of the embedded world; None for its own towns only.
    """

    root: Path
    carla_root: Path
    python: Path
    api: Path
    maps: Path | None = None

    @property
    def embedded(self) -> bool:
        """Whether the starter is that of our own embedded world."""
        return b"carla_bridge.server" in (self.carla_root / STARTER).read_bytes()[: 1 << 16]

    def check(self) -> str:
        """The version of their `carla` package.

        Raises:
            UserError: something is not there, or does not import; says what and how to mend it.
        """
        for field, folder, part in (
            ("BENCH2DRIVE_ROOT", self.root, EVALUATOR),
            ("BENCH2DRIVE_ROOT", self.root, Path("scenario_runner") / "srunner" / "__init__.py"),
            ("CARLA_ROOT", self.carla_root, Path(STARTER)),
            ("--carla-api", self.api, Path("agents") / "navigation" / "basic_agent.py"),
        ):
            if not (folder / part).is_file():
                raise UserError(field, f"a folder with {part}", str(folder), "see docs/bench2drive.md")
        if not os.access(self.python, os.X_OK):
            raise UserError("--python", "a Python 3.8 that has the evaluator's requirements", str(self.python),
                            "see docs/bench2drive.md")
        if self.maps is not None and not any(self.maps.glob("*.xodr")):
            raise UserError("--maps", "a folder with .xodr files", str(self.maps))
        try:
            probe = subprocess.run(
                [str(self.python), "-c", PROBE], cwd=self.root, env=self.environment(self.root), text=True,
                capture_output=True, timeout=PROBE_LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise UserError("--python", f"one that imports the evaluator within {PROBE_LIMIT_S:g} s",
                            str(self.python)) from None
        if probe.returncode != 0:
            reason = (probe.stderr.strip().splitlines() or [f"exit code {probe.returncode}"])[-1]
            raise UserError("--python", "one that imports the evaluator and all it needs", f"{self.python}: {reason}",
                            "see docs/bench2drive.md")
        return probe.stdout.strip()

    def environment(self, save_path: Path) -> dict[str, str]:
        """The evaluator's environment, as Bench2Drive's scripts set it; agent and embedded world run on our Python."""
        strange = ("PYTHONHOME", "_ROS_WHEELS_BOOTSTRAP_COMPLETE", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
        environment = {name: value for name, value in os.environ.items() if name not in strange}
        paths = [self.api, self.root / "leaderboard", self.root / "scenario_runner"]
        environment |= {
            "CARLA_ROOT": str(self.carla_root), "SCENARIO_RUNNER_ROOT": str(self.root / "scenario_runner"),
            "LEADERBOARD_ROOT": str(self.root / "leaderboard"), "IS_BENCH2DRIVE": "True",
            "SAVE_PATH": str(save_path), "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "WAMDIFF2_PYTHON": os.environ.get("WAMDIFF2_PYTHON") or sys.executable,
        }  # fmt: skip
        if self.maps is not None:
            environment["WAMDIFF2_MAPS"] = str(self.maps)
        return environment
