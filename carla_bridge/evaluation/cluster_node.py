"""What `cluster` lets a node do: say what is installed there, and drive one attempt in a folder of its own.

The folder is the node's, and goes with the attempt: its files travel back as one archive. A folder that a killed
attempt has left is taken away by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from carla_bridge.evaluation.attempts import Job, Task
from carla_bridge.evaluation.pool import LocalPool
from wamdiff2_core.processes import child_environment

CHECK_LIMIT_S = 180.0  # a large checkpoint is read whole
BEAT_S = 0.5
# Ray sets the first by the CPUs it was asked for; a planner must compute with as many threads as without a cluster.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Inputs:
    """Files of the head that every attempt needs.

    Attributes:
        routes: the route file's text.
        maps: OpenDRIVE texts of towns by their names; none of shipped ones.
        threads: values of `THREAD_VARIABLES`; None for one that is not set.
    """

    routes: bytes
    maps: dict[str, bytes]
    threads: dict[str, str | None]

    @classmethod
    def read(cls, routes: Path, maps: Mapping[str, Path]) -> Inputs:
        """From the head's files: the route file, and the OpenDRIVE files by town."""
        return cls(
            routes.read_bytes(), {town: path.read_bytes() for town, path in maps.items()},
            {name: os.environ.get(name) for name in THREAD_VARIABLES},
        )

    def put(self, task: Task, folder: Path) -> Task:
        """Write them below `folder`, and name them in the task."""
        routes = folder / "routes.xml"
        routes.write_bytes(self.routes)
        if not self.maps:
            return replace(task, routes=str(routes), maps="")
        maps = folder / "maps"
        maps.mkdir()
        for town, text in self.maps.items():
            (maps / f"{town}.xodr").write_bytes(text)
        return replace(task, routes=str(routes), maps=str(maps))

    def set_threads(self) -> None:
        """Let children of this process compute with as many threads as on the head."""
        for name, value in self.threads.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def describe(planner: str) -> tuple[dict[str, Any] | None, str]:
    """What is installed here, as JSON values, for a planner; without it, why it cannot be said."""
    command = [sys.executable, "-m", "carla_bridge.evaluation.installation", planner]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_LIMIT_S, check=False,
                              stdin=subprocess.DEVNULL, env=child_environment())
    except subprocess.TimeoutExpired:
        return None, f"it could not say within {CHECK_LIMIT_S:g} s what is installed there"
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        return None, said[-1] if said else f"its check ended with exit code {done.returncode}"
    return json.loads(done.stdout.splitlines()[-1]), ""


def drive(task: Task, name: str, inputs: Inputs) -> Iterator[float | dict[str, Any] | bytes]:
    """Drive one attempt.

    Args:
        task: what to drive.
        name: of its folder.
        inputs: its files.

    Yields:
        The driven share of the route, twice a second; then the `Attempt` as JSON values; then its files, as `pack` has
        them.
    """
    inputs.set_threads()
    with scratch_folder() as scratch, LocalPool(1) as pool:
        folder = scratch / name
        pool.start(Job(task.route_id, task.repeat), inputs.put(task, scratch), folder)
        while not (over := pool.finished()):
            yield sum(pool.running().values())
            time.sleep(BEAT_S)
        yield over[0].attempt.to_json()
        yield pack(folder)


def pack(folder: Path) -> bytes:
    """The files of a folder as a compressed tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()


def unpack(data: bytes, folder: Path) -> None:
    """Put files that were packed into a folder, whose earlier files go."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        archive.extractall(folder, filter="data")


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder until the end of the block; those whose holder was killed go first.

    A holder locks its folder, and the kernel gives the lock back when it ends.
    """
    parent = Path(tempfile.gettempdir()) / f"wamdiff2-attempts-{os.getuid()}"
    parent.mkdir(mode=0o700, exist_ok=True)
    for left in parent.iterdir():
        _remove_if_left(left)
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent))
        lock = _lock(folder)
        if lock is not None and folder.exists():
            break
        # Before it was locked, another attempt has taken it for one that was left.
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_if_left(folder: Path) -> None:
    lock = _lock(folder)
    if lock is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _lock(folder: Path) -> int | None:
    """Descriptor that holds a folder's lock; None where another process holds it, or the folder is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
