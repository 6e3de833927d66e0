"""Warm start from the plan before: forwards, and distance to the recorded plan, on consecutive frames.

    python -m benchmarks.warm_start --data data/nano2-val/samples.jsonl --pairs 96

Pairs are frames of one car, one waypoint's time apart, of samples that carry `episode`, `vehicle`, `route` and `t_s`.
An unreadable answer counts as a car that stays where it is.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from wamdiff2_core.bench.deadline import Case, distance_m, read_case
from wamdiff2_core.dataset import Sample, read_dataset
from wamdiff2_core.model.checkpoint import load_checkpoint
from wamdiff2_core.planner import CheckpointPlanner
from wamdiff2_core.types import Plan

TOLD_EVERY = 20


def consecutive(samples: list[Sample], dt_s: float) -> list[tuple[Sample, Sample]]:
    """Each sample with the one of the same car `dt_s` before it, where there is one."""
    last: dict[tuple[object, ...], Sample] = {}
    pairs = []
    for sample in samples:
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


def main() -> None:
    """Plan the second frame of every pair, cold and with the first frame's plan before it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", default="checkpoints/wamdiff2-nano")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=100)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    checkpoint = load_checkpoint(arguments.checkpoint)
    cold = CheckpointPlanner(checkpoint)
    planning = cold.record.planning
    assert planning is not None
    warm = CheckpointPlanner(checkpoint, replace(cold.record.decode, warm_start="previous"))
    pairs = consecutive(read_dataset(arguments.data), planning.dt_s)
    count = min(arguments.pairs, len(pairs))
    cases: list[Case] = []
    plans: dict[str, list[Plan]] = {"off": [], "previous": []}
    for index in range(count):
        before, case = (read_case(sample, planning, cold.rig) for sample in pairs[index * len(pairs) // count])
        case = at(case, round(planning.dt_s * 1e9))
        warm.plan(at(before, 0).observation)
        cases.append(case)
        plans["off"].append(cold.plan(case.observation))
        plans["previous"].append(warm.plan(case.observation))
        if len(cases) % TOLD_EVERY == 0 or len(cases) == count:
            tell(plans, cases)


if __name__ == "__main__":
    main()
