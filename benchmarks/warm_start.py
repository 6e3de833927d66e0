"""Warm start from the plan before: forwards, and distance to the recorded plan, on consecutive frames.

    python -m benchmarks.warm_start --data data/nano2-val/samples.jsonl --pairs 96

Pairs are frames of one car, one waypoint's time apart, of samples that carry `episode`, `vehicle`, `route` and `t_s`;
the set must be of one `collect`, and pictures from beside the vehicle are left out.
An unreadable answer counts as a car that stays where it is.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from wamdiff2_core.bench.deadline import Case, distance_m, read_case
from wamdiff2_core.cli.main import run_alone
from wamdiff2_core.dataset import Sample, read_dataset, spread_over
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.checkpoint import load_checkpoint
from wamdiff2_core.planner import CheckpointPlanner
from wamdiff2_core.types import Plan

TOLD_EVERY = 20


def consecutive(samples: list[Sample], dt_s: float) -> list[tuple[Sample, Sample]]:
    """Each sample with the one of the same car `dt_s` before it, where there is one."""
    last: dict[tuple[object, ...], Sample] = {}
    pairs = []
    for sample in samples:
        if "camera_aside" in sample.extra:
            continue  # its plan is that of another place
        car = tuple(sample.extra.get(key) for key in ("episode", "vehicle", "route"))
        before = last.get(car)
        if before is not None and abs(sample.extra["t_s"] - before.extra["t_s"] - dt_s) < 1e-6:
            pairs.append((before, sample))
        last[car] = sample
    return pairs


def at(case: Case, stamp_ns: int) -> Case:
    """The case with its frames taken at `stamp_ns`."""
    frames = tuple(replace(frame, stamp_ns=stamp_ns) for frame in case.observation.frames)
    return replace(case, observation=replace(case.observation, frames=frames))


def measured(plans: list[Plan], cases: list[Case]) -> str:
    """One line of figures."""
    unreadable = sum(plan.waypoints is None for plan in plans)
    away = np.mean([distance_m(plan, case) for plan, case in zip(plans, cases, strict=True)])
    forwards = np.mean([plan.stats.forwards for plan in plans])
    return f"unreadable {unreadable} of {len(plans)}, L2 {away:.3f} m, forwards {forwards:.2f}"


def tell(plans: dict[str, list[Plan]], cases: list[Case]) -> None:
    """Print the figures so far, and the interval of the change in distance over resampled pairs."""
    for name, each in plans.items():
        print(f"warm_start {name}: {measured(each, cases)}", flush=True)
    away = {name: [distance_m(plan, case) for plan, case in zip(each, cases, strict=True)]
            for name, each in plans.items()}
    change = np.subtract(away["previous"], away["off"])
    low, high = np.percentile(np.random.default_rng(0).choice(change, (2000, len(change))).mean(1), (2.5, 97.5))
    print(f"L2 with it by {change.mean():+.3f} m, 95 % interval {low:+.3f} to {high:+.3f} m", flush=True)


def main(
    data: Annotated[Path, typer.Option(help="Planning samples, such as those of `wamdiff2 collect`.")],
    checkpoint: Annotated[Path, typer.Option(help="Checkpoint folder.")] = Path("checkpoints/wamdiff2-nano"),
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of frames, spread over the file.")] = 100,
) -> None:
    """Plan the second frame of every pair, cold and with the first frame's plan before it."""
    torch.set_num_threads(1)
    loaded = load_checkpoint(checkpoint)
    cold = CheckpointPlanner(loaded)
    planning = cold.record.planning
    if planning is None:
        raise UserError("--checkpoint", "one with a record of how it plans", str(checkpoint))
    warm = CheckpointPlanner(loaded, replace(cold.record.decode, warm_start="previous"))
    found = consecutive(read_dataset(data), planning.dt_s)
    if not found:
        raise UserError("--data", f"samples of one car that are {planning.dt_s:g} s apart", f"none in {data}")
    cases: list[Case] = []
    plans: dict[str, list[Plan]] = {"off": [], "previous": []}
    chosen = spread_over(found, pairs)
    for pair in chosen:
        before, case = (read_case(sample, planning, cold.rig) for sample in pair)
        case = at(case, round(planning.dt_s * 1e9))
        warm.plan(at(before, 0).observation)
        cases.append(case)
        plans["off"].append(cold.plan(case.observation))
        plans["previous"].append(warm.plan(case.observation))
        if len(cases) % TOLD_EVERY == 0 or len(cases) == len(chosen):
            tell(plans, cases)


if __name__ == "__main__":
    sys.exit(run_alone(main, "benchmarks.warm_start"))
