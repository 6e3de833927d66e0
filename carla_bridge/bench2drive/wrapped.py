"""`wamdiff2 closed-loop` with Bench2Drive's own evaluator around the drives: when that is meant, and what it takes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from carla_bridge.agents.choice import AgentChoice
from carla_bridge.bench2drive.command import API_VARIABLE, PYTHON38, PYTHON_VARIABLE, bench2drive_evaluator
from wamdiff2_core.errors import UserError

ROOT_VARIABLE, CARLA_VARIABLE = "BENCH2DRIVE_ROOT", "CARLA_ROOT"
PLANNERS = ("checkpoint", "random")  # what its agent file can load
# Options of closed-loop that speak of our own drives.
OTHERS = ("link", "latency", "deadline_ms", "backend", "vehicles", "walkers", "scenarios", "plan_wait", "video",
          "repeats", "overwrite", "blank_camera", "passive", "hero", "tick_wait", "carla", "cluster")


def is_meant(asked: bool | None, agent: AgentChoice, carla: str, passive: bool) -> bool:
    """Whether Bench2Drive's evaluator is to drive.

    Args:
        asked: what the user said; None leaves it to the environment: with `BENCH2DRIVE_ROOT` it drives the planners
            that it can, unless a running server is named.
        agent: who is to drive.
        carla: address of a running server; empty without.
        passive: whether another's vehicle is to be driven.
    """
    if asked is not None:
        return asked
    return bool(_folder(ROOT_VARIABLE)) and agent.kind in PLANNERS and not carla and not passive


def run_wrapped(
    agent: AgentChoice, given: Iterable[str], *, out: Path | None, routes: Path | None, routes_subset: str | None,
    maps: Path | None, workers: int, retries: int, seed: int, device: str,
) -> int:
    """Let the evaluator drive, and return the command's exit code.

    Args:
        agent: who drives.
        given: names of the options that the user gave.
        out: folder of the run.
        routes: route file; None for Bench2Drive's 220.
        routes_subset: as of the command.
        maps: OpenDRIVE files of the embedded world.
        workers: evaluators at a time; 0 is 1.
        retries: more attempts at a route that a program has spoilt.
        seed: of CARLA's traffic manager.
        device: torch device of the planner.

    Raises:
        UserError: something is missing, or an option has no meaning there.
    """
    for name in given:
        if name in OTHERS:
            raise UserError("--" + name.replace("_", "-"), "none with Bench2Drive's evaluator, which has its own rules",
                            "it", "leave it out, or add --no-bench2drive")
    if seed < 0:
        raise UserError("--seed", "0 or more", seed)
    if _folder(ROOT_VARIABLE) is None:
        raise UserError(ROOT_VARIABLE, "Bench2Drive's checkout, for --bench2drive", "nothing", "set it")
    if agent.kind not in PLANNERS:
        raise UserError("--planner", "a checkpoint or random, with Bench2Drive's evaluator", agent.spec)
    if out is None:
        raise UserError("--out", "a folder, by which a run is gone on with", "none", "add --out FOLDER")
    carla_root = _folder(CARLA_VARIABLE)
    world = f"CARLA at {carla_root}" if carla_root else f"the embedded world, as {CARLA_VARIABLE} is not set"
    Console(highlight=False, soft_wrap=True).print(
        f"Bench2Drive's own evaluator drives in {world} (--no-bench2drive: our own drives)"
    )
    return bench2drive_evaluator(
        out, _folder(ROOT_VARIABLE), agent_config="random" if agent.folder is None else str(agent.folder),
        routes=routes, routes_subset=routes_subset, carla_root=carla_root, carla_api=_folder(API_VARIABLE), maps=maps,
        python=_folder(PYTHON_VARIABLE) or PYTHON38, device=device, workers=max(1, workers), retries=retries,
        traffic_seed=seed,
    )


def _folder(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value) if value else None
