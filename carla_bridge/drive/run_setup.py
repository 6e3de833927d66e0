"""What a drive needs around it: its folder, its ROS domain, its signals, and the words for machine and commit."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from carla_bridge.leases import lease_ros_domain
from carla_bridge.recording.results import RESULTS_NAME
from wamdiff2_core.errors import UserError
from wamdiff2_core.journal import JOURNAL_NAME
from wamdiff2_core.outputs import writable_folder

# Moved in this order: by the last one a folder is known as that of a run.
OWN_FILES = ("map.json", "index.html", "compare.html", "report", "drive.mp4", "routes", "logs", RESULTS_NAME)
PREVIOUS_NAME = "previous"


def prepare_folder(out: Path) -> Path | None:
    """Make the run folder; an earlier run in it moves to `previous/START`, named by its start (UTC).

    Returns:
        Where the earlier run is now; None without one.

    Raises:
        UserError: it is a file, cannot be written to, or holds an evaluation or something that is not a run.
    """
    if out.exists() and not out.is_dir():
        raise UserError("--out", "a folder", f"a file, {out}")
    writable_folder(out, "--out")
    if (out / JOURNAL_NAME).exists():
        raise UserError("--out", "an empty folder, or that of an earlier drive", f"{out}, that of an evaluation",
                        "choose another --out, or add --workers to go on with it")
    if not any(entry.name != PREVIOUS_NAME for entry in out.iterdir()):
        return None
    started = _start_of_run(out)
    if started is None:
        raise UserError("--out", "an empty folder, or that of an earlier run", str(out), "choose another folder")
    previous = _new_folder(out / PREVIOUS_NAME, started)
    for name in OWN_FILES:
        if (out / name).exists():
            (out / name).rename(previous / name)
    return previous


def _start_of_run(folder: Path) -> str | None:
    """Start of the run in a folder, as a file name; None when there is no run."""
    path = folder / RESULTS_NAME
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict) or not {"schema", "planner", "routes", "latency_mode"} <= data.keys():
        return None
    try:
        start = datetime.fromisoformat(data["started"])
    except (KeyError, TypeError, ValueError):  # of another version
        start = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return start.strftime("%Y%m%d-%H%M%S")


def _new_folder(parent: Path, name: str) -> Path:
    """Make a folder of that name, or with a number behind it where there is one already."""
    folder = next(path for n in count(1) if not (path := parent / (name if n == 1 else f"{name}-{n}")).exists())
    folder.mkdir(parents=True)
    return folder


def choose_ros_domain(keep: bool) -> None:
    """Give this process and its children a ROS domain of their own, on this machine only, unless the user has chosen.

    Args:
        keep: leave the domain alone, as the planner is somewhere else.

    Raises:
        InfrastructureError: all domains are taken.
    """
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    if not keep and "ROS_DOMAIN_ID" not in os.environ:
        os.environ["ROS_DOMAIN_ID"] = str(lease_ros_domain().number)  # held until this process ends


@contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the drive as Ctrl-C does."""
    def interrupt(signum: int, _: object) -> None:
        raise KeyboardInterrupt(signal.Signals(signum).name)

    previous = {signum: signal.signal(signum, interrupt) for signum in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def describe_machine() -> str:
    """Processor, cores, operating system and Python, in one line."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = models[0] if models else platform.processor() or platform.machine()
    system = f"{platform.system()} {platform.release()}"
    return f"{processor}, {os.cpu_count()} cores, {system}, Python {platform.python_version()}"


def describe_commit() -> str:
    """Commit of the working tree this package lies in, `+` behind it when it has changes; empty outside of one."""
    folder = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        commit = git("rev-parse", "--short", "HEAD")
        return commit + ("+" if commit and git("status", "--porcelain", "--untracked-files=no") else "")
    except FileNotFoundError:
        return ""
