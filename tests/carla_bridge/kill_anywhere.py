"""Kills an evaluation again and again, and compares what it comes to with an undisturbed one.

    python tests/carla_bridge/kill_anywhere.py FOLDER [--routes 10] [--kills 20] [--seed 0] [--planner expert]

Every kill is SIGKILL, at a random moment, to a random process: the evaluator, a route's worker, or a server.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from carla_bridge.routes import ROUTES_FOLDER
from wamdiff2_core.processes import child_environment

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROUTES_FOLDER / "train.xml"
SHORTEST_PAUSE_S, LIMIT_S = 2.5, 900.0  # of the longest pause; of the disturbed run, beside its pauses
WALL_CLOCK = ("duration_system",)  # the only figures of a record that may differ


def write_routes(path: Path, count: int) -> None:
    """The first routes of the training set, as a file of their own."""
    root = ElementTree.parse(TRAIN).getroot()
    for route in root.findall("route")[count:]:
        root.remove(route)
    path.write_text(ElementTree.tostring(root, encoding="unicode"))


class Run:
    """One evaluation in a folder, which may take several calls."""

    def __init__(self, folder: Path, routes: Path, planner: str) -> None:
        self.folder, self.calls = folder, 0
        self._command = [
            sys.executable, "-m", "wamdiff2_core.cli.main", "closed-loop", "--routes", str(routes), "--planner",
            planner, "--no-video", "--workers", "2", "--retries", "40", "--out", str(folder),
        ]

    def start(self) -> subprocess.Popen[bytes]:
        """Begin, or go on."""
        self.calls += 1
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log, env=child_environment())

    def scores(self) -> list[dict[str, object]]:
        """The records, without wall-clock figures."""
        data = json.loads((self.folder / "leaderboard.json").read_text())
        records = data["_checkpoint"]["records"]
        for record in records:
            for name in WALL_CLOCK:
                record["meta"].pop(name)
        return records

    def trajectories(self) -> dict[str, bytes]:
        """The driven paths by route, to the bit."""
        return {path.parent.name: path.read_bytes() for path in self.folder.glob("routes/*/trajectory.csv")}


def family(pid: int) -> list[int]:
    """A process and all that it has started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(grandchild for child in children for grandchild in family(int(child)))]


def kind_of(pid: int) -> str:
    """What a process of the evaluation is."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return "gone"
    return next((name for name in ("worker", "server") if f"carla_bridge.{name}" in line or f".{name}\0" in line),
                "evaluator")


def disturb(run: Run, kills: int, chance: random.Random, calm_s: float) -> Counter[str]:
    """Run to the end, with kills on the way; which processes were hit.

    Pauses go by the undisturbed run's wall clock, so that on a slow machine too routes are under way when a kill comes.
    """
    hit: Counter[str] = Counter()
    longest_s = max(SHORTEST_PAUSE_S, calm_s / kills)
    deadline = time.monotonic() + LIMIT_S + kills * longest_s
    process = run.start()
    while process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
            raise TimeoutError(f"not done within {LIMIT_S + kills * longest_s:.0f} s")
        if hit.total() < kills:
            time.sleep(chance.uniform(0.1, longest_s))
            chosen = chance.choice(family(process.pid) or [process.pid])
            kind = kind_of(chosen)
            if kind == "gone" or process.poll() is not None:
                continue
            os.kill(chosen, signal.SIGKILL)
            hit[kind] += 1
            if chosen == process.pid:
                process.wait()
                process = run.start()
        else:
            time.sleep(0.1)
    if process.returncode != 0:
        raise RuntimeError(f"exit code {process.returncode}")
    return hit


def compare(folder: Path, routes: int, kills: int, seed: int, planner: str) -> str:
    """Evaluate undisturbed and with kills; a sentence about both.

    Raises:
        AssertionError: they came to something different.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "routes.xml"
    write_routes(file, routes)
    calm, troubled = (Run(folder / name, file, planner) for name in ("calm", "troubled"))
    began = time.monotonic()
    code = calm.start().wait()
    assert code == 0, f"the undisturbed run ended with {code}"
    hit = disturb(troubled, kills, random.Random(seed), time.monotonic() - began)
    assert len(calm.scores()) == routes
    assert troubled.scores() == calm.scores()
    assert troubled.trajectories() == calm.trajectories()
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(hit.items()))
    return f"{hit.total()} kills ({kinds}), {troubled.calls} calls: the same {routes} scores and trajectories"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    for name, default in (("routes", 10), ("kills", 20), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--planner", default="expert")
    given = parser.parse_args()
    print(compare(given.folder, given.routes, given.kills, given.seed, given.planner))


if __name__ == "__main__":
    main()
