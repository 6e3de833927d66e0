"""Proof that the suite can fail: breaks one line at a time in a copy of the tree and expects the tests to turn red.

    make mutants

Each mutant is a defect that someone could really write. A mutant whose line is no longer there is an error, so the
list cannot rot. Exit code 1 when a mutant survives, or when the unbroken tree is red.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 900
JOBS = 2


@dataclass(frozen=True)
class Mutant:
    """One broken line.

    Attributes:
        area: part of the package.
        defect: what a user would see.
        file: file to break.
        old, new: text that stands there exactly once, and what replaces it.
        tests: test file that must turn red, or one test of it as FILE::TEST.
    """

    area: str
    defect: str
    file: str
    old: str
    new: str
    tests: str


MUTANTS = (
    Mutant(
        "training",
        "two trainings write into one folder",
        "training/checkpoints.py",
        "lock_or_writer(lock, out)",
        "\"\"",
        "tests/training/test_trainer.py",
    ),
    Mutant(
        "training",
        "a compiled forward is compiled anew for every picture",
        "training/frozen_vision.py",
        "    @torch.compiler.disable  #",
        "    #",
        "tests/training/test_frozen_vision.py",
    ),
    Mutant(
        "leaderboard",
        "waypoints of the rear axle are driven as the vehicle's centre",
        "wamdiff2_core/tasks/planning.py",
        'if task.prompt != "bench2drive":',
        'if task.prompt == "":',
        "tests/carla_bridge/test_agent_choice.py",
    ),
    Mutant(
        "collect",
        "the label of a picture from beside begins where the vehicle is",
        "carla_bridge/collect/pilot.py",
        "return self.plan if self.aside == NOWHERE else rejoined(self.plan, self.aside)",
        "return self.plan",
        "tests/carla_bridge/test_collect_labels.py",
    ),
    Mutant(
        "collect",
        "people are said to be on the side of the path, not of the picture",
        "carla_bridge/collect/questions.py",
        "left_px + right_px < NANO_CAMERA.width_px",
        "person.left_m > 0",
        "tests/carla_bridge/test_collect_labels.py",
    ),
    Mutant(
        "collect",
        "a learner's contact is cut out of its set",
        "carla_bridge/collect/pilot.py",
        "if touched and not self.learner_drives else",
        "if touched else",
        "tests/carla_bridge/test_collect_labels.py",
    ),
    Mutant(
        "collect",
        "something is put before a vehicle too near to brake for",
        "carla_bridge/collect/encounters.py",
        "braking_m = speed_mps * REACTION_S + speed_mps**2 / (2 * BRAKES_MPS2)",
        "braking_m = 0.0",
        "tests/carla_bridge/test_collect_encounters.py",
    ),
    Mutant(
        "collect",
        "walkers cross before the vehicle is there",
        "carla_bridge/collect/encounters.py",
        "encounter.sets_off = encounter.sets_off or away_m < arrives_m",
        "encounter.sets_off = True",
        "tests/carla_bridge/test_collect_encounters.py",
    ),
    Mutant(
        "collect",
        "a collected set has towns in other shares than its routes",
        "carla_bridge/collect/schedule.py",
        "GOLDEN_RATIO = (5**0.5 - 1) / 2",
        "GOLDEN_RATIO = 0.5",
        "tests/carla_bridge/test_collect_labels.py",
    ),
    Mutant(
        "training",
        "a source of a mixture takes all samples of its file, whatever slices it names",
        "training/data/sources.py",
        "return isinstance(line, Mapping) and is_among(line, self._where)",
        "return isinstance(line, Mapping)",
        "tests/training/test_data_sources.py",
    ),
    Mutant(
        "training",
        "loss grows with the number of micro-batches",
        "training/losses.py",
        "return counted / max(totals.tokens, 1.0)",
        "return counted / max(float(counted.sum()), 1.0)",
        "tests/training/test_stages.py",
    ),
    Mutant(
        "training",
        "noise depends on who computes a sample",
        "training/stages/block_adaptation.py",
        "generator=seeds.generator(slots.seed, slots.step, slot, seeds.NOISE),",
        "generator=seeds.generator(slots.seed, slots.step, len(drawn), seeds.NOISE),",
        "tests/training/test_stages.py",
    ),
    Mutant(
        "training",
        "a teacher with smaller blocks is asked about padding it never saw",
        "training/stages/block_distillation.py",
        "else padded(answer_lengths, self.view.block_size)",
        "else padded(answer_lengths, 1024)",
        "tests/training/test_stages.py",
    ),
    Mutant(
        "training",
        "on-policy states show tokens that decoding had not fixed yet",
        "training/trajectories.py",
        "masked = fixed_at >= steps.clamp(max=last)",
        "masked = fixed_at > steps.clamp(max=last)",
        "tests/training/test_stages.py",
    ),
    Mutant(
        "training",
        "a resumed run forgets the optimiser's moments",
        "training/optimizer.py",
        'for key in ("step", "exp_avg", "exp_avg_sq")',
        'for key in ("step",)',
        "tests/training/test_trainer.py",
    ),
    Mutant(
        "training",
        "every step of shards has the peak rate",
        "training/parallel.py",
        'group["lr"] = peak * share',
        'group["lr"] = peak',
        "tests/training/test_sharded.py",
    ),
    Mutant(
        "training",
        "a stage that was stopped ends like one that is done",
        "training/command.py",
        "    if step < end:",
        "    if step < 0:",
        "tests/training/test_trainer.py",
    ),
    Mutant(
        "training",
        "evaluation leaves the grammar of serving out",
        "training/evaluate.py",
        "grammars=[language] * len(requests)",
        "grammars=[None] * len(requests)",
        "tests/training/test_evaluate.py",
    ),
    Mutant(
        "routes",
        "a way through a junction turns only as far as its first lane section",
        "carla_bridge/routes/lane_graph.py",
        "        if self.lanes[key].in_junction:",
        "        if not self.lanes[key].in_junction:",
        "tests/carla_bridge/test_lane_graph.py",
    ),
    Mutant(
        "criteria",
        "a red light is run when the front crosses the line, not the tail",
        "carla_bridge/leaderboard/criteria_rules.py",
        "[[-TAIL_NEAR * half_m, 0.0], [-half_m - TAIL_BEYOND_M, 0.0]]",
        "[[TAIL_NEAR * half_m, 0.0], [half_m + TAIL_BEYOND_M, 0.0]]",
        "tests/carla_bridge/test_criteria.py",
    ),
    Mutant(
        "criteria",
        "the oncoming lane is a fault while a scenario makes the vehicle use it",
        "carla_bridge/leaderboard/criteria.py",
        "if outside or (self._wrong_lane and not wrong_way_allowed):",
        "if outside or self._wrong_lane:",
        "tests/carla_bridge/test_criteria.py",
    ),
    Mutant(
        "surroundings",
        "velocities of other actors are mirrored",
        "carla_bridge/client/surroundings.py",
        "velocity_mps=xy_from_carla(velocity.x, velocity.y),",
        "velocity_mps=xy_from_carla(velocity.x, -velocity.y),",
        "tests/carla_bridge/test_surroundings.py",
    ),
    Mutant(
        "scenarios",
        "walkers come out of the wrong side of the road",
        "carla_bridge/scenarios/crossings.py",
        'return turn if side == "right" else -turn',
        'return -turn if side == "right" else turn',
        "tests/carla_bridge/test_scenarios.py",
    ),
    Mutant(
        "scenarios",
        "two drives with one seed differ",
        "carla_bridge/scenarios/engine.py",
        'stage = Stage(self._simulation, np.random.default_rng(int.from_bytes(digest[:8], "big")))',
        "stage = Stage(self._simulation, np.random.default_rng())",
        "tests/carla_bridge/test_scenarios.py",
    ),
    Mutant(
        "scenarios",
        "a light stays as its scenario left it",
        "carla_bridge/scenarios/stage.py",
        "held.handle.set_green_time(green_s)",
        "held.handle.set_green_time(HELD_LIGHT_S)",
        "tests/carla_bridge/test_scenarios_signs.py",
    ),
    Mutant(
        "codec",
        "waypoints of a checkpoint with y to the right come out mirrored",
        "wamdiff2_core/tasks/planning.py",
        'return Waypoints(flip_y(points) if task.y_axis == "right" else points, task.dt_s)',
        'return Waypoints(flip_y(points) if task.y_axis == "left" else points, task.dt_s)',
        "tests/core/tasks/test_planning.py",
    ),
    Mutant(
        "codec",
        "an answer with one waypoint too many is taken",
        "wamdiff2_core/tasks/planning.py",
        "if position != len(text):",
        "if position > len(text):",
        "tests/core/tasks/test_planning.py",
    ),
    Mutant(
        "codec",
        "a question takes an image of the prompt",
        "wamdiff2_core/tasks/text.py",
        "if IMAGE_PLACEHOLDER in text:",
        "if IMAGE_PLACEHOLDER == text:",
        "tests/core/tasks/test_text.py",
    ),
    Mutant(
        "codec",
        "boxes come out with x first",
        "wamdiff2_core/tasks/grounding.py",
        "return y_min, x_min, y_max, x_max",
        "return x_min, y_min, x_max, y_max",
        "tests/core/tasks/test_grounding.py",
    ),
    Mutant(
        "decode",
        "a trace shows the state after the step instead of before it",
        "wamdiff2_core/decode/trace.py",
        "self._fixed_at[:, columns].masked_fill_(fixed, step)",
        "self._fixed_at[:, columns].masked_fill_(fixed, step - 1)",
        "tests/core/test_decode_trace.py",
    ),
    Mutant(
        "masks",
        "noisy tokens see the clean answer that they are to predict",
        "wamdiff2_core/model/masks.py",
        "noisy_sees = ((query > key) & (key_part <= CLEAN)) | own",
        "noisy_sees = ((query >= key) & (key_part <= CLEAN)) | own",
        "tests/core/test_masks.py",
    ),
    Mutant(
        "masks",
        "block boundaries depend on padding, and so on the neighbours in a batch",
        "wamdiff2_core/model/masks.py",
        "return (valid.long().cumsum(-1) - 1).div(",
        "return (torch.ones_like(valid).long().cumsum(-1) - 1).div(",
        "tests/core/test_masks.py",
    ),
    Mutant(
        "cache",
        "keys and values of the first block stay those of its masks",
        "wamdiff2_core/decode/block_diffusion.py",
        "if step == 0 and block:",
        "if step == 0 and block > 1:",
        "tests/core/test_decode_block_diffusion.py",
    ),
    Mutant(
        "cache",
        "a block's keys are written one column too early",
        "wamdiff2_core/model/cache.py",
        "        self._start = column",
        "        self._start = max(0, column - 1)",
        "tests/core/test_decode_block_diffusion.py",
    ),
    Mutant(
        "frames",
        "a vehicle that CARLA turns clockwise turns the other way on the map",
        "wamdiff2_core/frames.py",
        "return Pose2D(float(x_m), 0.0 - float(y_m), wrap_angle(yaw_from_carla(yaw_deg)))",
        "return Pose2D(float(x_m), 0.0 - float(y_m), wrap_angle(-yaw_from_carla(yaw_deg)))",
        "tests/core/test_frames.py",
    ),
    Mutant(
        "control",
        "a plan that ages is moved along with the vehicle, the wrong way round",
        "wamdiff2_core/control/controller.py",
        "now_from_t0 = compose(inverse(ego_now.map_from_base), plan.map_from_base_at_t0)",
        "now_from_t0 = compose(inverse(plan.map_from_base_at_t0), ego_now.map_from_base)",
        "tests/core/control/test_controller.py",
    ),
    Mutant(
        "control",
        "a plan is driven however old it is",
        "wamdiff2_core/control/controller.py",
        "if age_s > self.config.max_plan_age_s:",
        "if age_s < -self.config.max_plan_age_s:",
        "tests/core/control/test_controller.py",
    ),
    Mutant(
        "wire format",
        "clients read accelerations as turn rates",
        "carla_bridge/server/protocol/wire.py",
        "*velocity_mps, *angular_velocity_degps, *acceleration_mps2",
        "*velocity_mps, *acceleration_mps2, *angular_velocity_degps",
        "tests/carla_bridge/server/test_wire.py",
    ),
    Mutant(
        "wire format",
        "CARLA 0.9.15 clients get the world state under the number of 0.9.16, and die",
        "carla_bridge/server/protocol/dialect.py",
        'Dialect("0.9.15", world_state_type=16,',
        'Dialect("0.9.15", world_state_type=17,',
        "tests/carla_bridge/server/test_dialect.py",
    ),
    Mutant(
        "server",
        "answers pile up in memory while a client does not read them",
        "carla_bridge/server/protocol/rpc.py",
        "        self._clogged = True\n",
        "        self._clogged = False\n",
        "tests/carla_bridge/server/test_app.py",
    ),
    Mutant(
        "server",
        "lidar beams look down as far as they should look up",
        "carla_bridge/server/sensors/ranging.py",
        "np.linspace(upper, lower, channels)",
        "np.linspace(lower, upper, channels)",
        "tests/carla_bridge/server/test_ranging.py",
    ),
    Mutant(
        "node",
        "a planner that raised is published as a plan to be driven",
        "wamdiff2_ros/planner_node.py",
        "plan = Plan(observation.stamp_ns, None, check=Check(False, message), source=self.settings.planner)",
        "plan = Plan(observation.stamp_ns, None, check=Check(True, message), source=self.settings.planner)",
        "tests/ros/test_planner_node.py",
    ),
    Mutant(
        "node",
        "images of another size than the checkpoint's rig are planned from",
        "wamdiff2_ros/planner_node.py",
        "if spec is not None and (width, height) != (spec.width_px, spec.height_px):",
        "if spec is not None and (width, height) == (0, 0):",
        "tests/ros/test_planner_node.py",
    ),
    Mutant(
        "node",
        "a checkpoint whose prompt tells an acceleration is served with none",
        "wamdiff2_ros/planner_node.py",
        '        check_drivable(task, "parameter planner")',
        "        pass",
        "tests/ros/test_planner_node.py",
    ),
    Mutant(
        "node",
        "targets and speeds in another frame are taken for the vehicle's",
        "wamdiff2_ros/conversions.py",
        "if frame and frame != base_frame:",
        "if frame and not base_frame:",
        "tests/ros/test_conversions.py",
    ),
    Mutant(
        "record",
        "a record may contradict its own prompt",
        "wamdiff2_core/tasks/planning.py",
        "if task.waypoints != waypoints:",
        "if task.waypoints < 1:",
        "tests/core/test_serving_record.py",
    ),
    Mutant(
        "predict",
        "--overwrite keeps answers that a run of more processes left",
        "wamdiff2_core/cli/predict_worker.py",
        "for path in own if request.overwrite else request.journal_paths():",
        "for path in request.journal_paths():",
        "tests/core/test_predict.py",
    ),
    Mutant(
        "physics",
        "a car brakes with all of its grip and turns with all of it too",
        "carla_bridge/server/dynamics/vehicle_dynamics.py",
        "    return math.sqrt(1.0 - used * used)",
        "    return math.sqrt(1.0 - 0.0 * used)",
        "tests/carla_bridge/server/test_vehicle_dynamics.py",
    ),
    Mutant(
        "physics",
        "fast bodies are found deep inside each other, or behind",
        "carla_bridge/server/contact/physics.py",
        "return next((n for n in STEPS if travel_m <= n * STEP_M), STEPS[-1])",
        "return 1",
        "tests/carla_bridge/server/test_physics.py",
    ),
    Mutant(
        "physics",
        "a car that leans on a wall collides with it in every tick",
        "carla_bridge/server/contact/contacts.py",
        "            self._touched_s[pair] = time_s\n        self._impulses.clear()",
        "            self._touched_s.pop(pair, None)\n        self._impulses.clear()",
        "tests/carla_bridge/server/test_physics.py",
    ),
    Mutant(
        "physics",
        "a blow off the middle does not turn the car it hits",
        "carla_bridge/server/contact/contacts.py",
        "        return Body(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)\n    vx, vy, rate = actor.planar_velocity()",
        "        return Body(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)\n    point = actor.pose.location\n"
        "    vx, vy, rate = actor.planar_velocity()",
        "tests/carla_bridge/server/test_physics.py",
    ),
    Mutant(
        "signals",
        "arms whose traffic crosses get green together",
        "carla_bridge/server/town/junctions.py",
        "                if all(other.compatible(member) for member in phase):",
        "                if all(other.compatible(member) for member in phase) or len(phase) == 2:",
        "tests/carla_bridge/server/test_opendrive_signals.py",
    ),
    Mutant(
        "signals",
        "green follows yellow's red at once, with no time to clear the junction",
        "carla_bridge/server/actors/signals.py",
        "                TrafficLightState.RED: phase.red_s,\n",
        "                TrafficLightState.RED: 0.0,\n",
        "tests/carla_bridge/server/test_signals.py",
    ),
    Mutant(
        "signals",
        "a car is told about the light of oncoming traffic",
        "carla_bridge/server/actors/signals.py",
        "            if along > SIDEWAYS_COS and light.covers(x_m, y_m) ",
        "            if light.covers(x_m, y_m) ",
        "tests/carla_bridge/server/test_signals.py",
    ),
    Mutant(
        "traffic",
        "drivers go through red lights",
        "carla_bridge/server/traffic/right_of_way.py",
        "            return braking is not None and speed_mps**2 <= 2 * braking * max(line_m, 0.0) + 0.01",
        "            return False",
        "tests/carla_bridge/server/test_traffic.py",
    ),
    Mutant(
        "traffic",
        "crossing traffic is not given way to",
        "carla_bridge/server/traffic/right_of_way.py",
        "        if out_s + margin_s < their_in_s:\n            return False",
        "        return False",
        "tests/carla_bridge/server/test_traffic.py",
    ),
    Mutant(
        "traffic",
        "a body counts as in the way only if its middle is",
        "carla_bridge/server/traffic/sight.py",
        "(np.abs(across) < reach_across + wide[i])",
        "(np.abs(across) < wide[i])",
        "tests/carla_bridge/server/test_traffic_roads.py",
    ),
    Mutant(
        "traffic",
        "drivers do not see that the vehicle ahead is slower",
        "carla_bridge/server/traffic/following.py",
        "speed_mps * (speed_mps - lead_mps) / scale",
        "0.0 * lead_mps",
        "tests/carla_bridge/server/test_traffic_following.py",
    ),
    Mutant(
        "traffic",
        "background vehicles stay where a client spawns",
        "carla_bridge/server/traffic/population.py",
        "            if gap < room:",
        "            if gap < -100.0:",
        "tests/carla_bridge/server/test_traffic.py",
    ),
    Mutant(
        "towns",
        "a ramp merges into the lane beyond the one it touches",
        "carla_bridge/server/town_builder/builder.py",
        "    if entry.plan.one_way:\n        return [(ways_in - k, ways_out - k)",
        "    if entry.plan.one_way:\n        return [(ways_in - k, 1 + k)",
        "tests/carla_bridge/server/test_town.py",
    ),
    Mutant(
        "towns",
        "a car on a bridge falls to the road below",
        "carla_bridge/server/town/ground.py",
        "                if best is None or abs(z - wanted) < abs(best - wanted):",
        "                if best is None or z < best:",
        "tests/carla_bridge/server/test_ground.py",
    ),
    Mutant(
        "score",
        "a duplicated shard is averaged over",
        "carla_bridge/score/checks.py",
        "        if len(several) > 1:",
        "        if len(several) > 2:",
        "tests/carla_bridge/test_score_bench2drive.py",
    ),
    Mutant(
        "score",
        "bounds take missing routes for failures",
        "carla_bridge/score/checks.py",
        "for record in self.records] or [(0.0, 100.0)]",
        "for record in self.records] or [(0.0, 0.0)]",
        "tests/carla_bridge/test_score_bench2drive.py",
    ),
    Mutant(
        "score",
        "routes count for traffic signs one hop before they are past the junction",
        "carla_bridge/score/junction_rule.py",
        "flags.index(True) + 1 + HOPS_BEYOND",
        "flags.index(True) + HOPS_BEYOND",
        "tests/carla_bridge/test_score_junction_rule.py",
    ),
    Mutant(
        "score",
        "the corrected comfort takes the yaw rate for the yaw acceleration too",
        "carla_bridge/score/comfort.py",
        "_within(smoothed(rate, info.step_s), YAW_ACCEL_RADPS2)",
        "_within(smoothed(rate), YAW_ACCEL_RADPS2)",
        "tests/carla_bridge/test_score_comfort.py",
    ),
    Mutant(
        "leaderboard",
        "red and blue are swapped in what the planner sees",
        "carla_bridge/leaderboard_agent.py",
        "rgb = np.ascontiguousarray(bgra[:, :, 2::-1])",
        "rgb = np.ascontiguousarray(bgra[:, :, :3])",
        "tests/carla_bridge/test_leaderboard_agent.py",
    ),
    Mutant(
        "leaderboard",
        "localisation follows every jump of the noisy GNSS",
        "carla_bridge/agent_server/localization.py",
        "slip_mps: float = 0.2",
        "slip_mps: float = 20.0",
        "tests/carla_bridge/test_localization.py",
    ),
    Mutant(
        "leaderboard",
        "a route whose scenario was left out counts as driven",
        "carla_bridge/bench2drive/attempt.py",
        'SKIPPED = "Skipping scenario"',
        'SKIPPED = "Skipped scenario"',
        "tests/carla_bridge/test_bench2drive_run.py",
    ),
    Mutant(
        "training data",
        "a changed data file is read by its old index",
        "training/data/sources.py",
        "digest.update(os.pread(self._file.fileno(), _ENDS, 0))",
        "pass",
        "tests/training/test_data_sources.py",
    ),
    Mutant(
        "training data",
        "places in a list are counted in characters",
        "training/data/sources.py",
        "self._byte += len(self._text[self._at : at].encode())",
        "self._byte += at - self._at",
        "tests/training/test_data_sources.py",
    ),
    Mutant(
        "training data",
        "every pass over the data has the same order",
        "training/data/mixture.py",
        'f"{seed}/{epoch}/{name}"',
        'f"{seed}/{name}"',
        "tests/training/test_data_mixture.py",
    ),
    Mutant(
        "training data",
        "a seldom source is drawn as often as the others",
        "training/data/mixture.py",
        "self._turns = [int(share * common) for share in self.shares]",
        "self._turns = [1 for _ in self.shares]",
        "tests/training/test_data_mixture.py",
    ),
    Mutant(
        "training data",
        "an answer is cut in the middle of a sentence",
        "training/data/encode.py",
        "for end in sentence_ends(text)[-2::-1]:",
        "for end in range(len(text) - 1, 0, -1):",
        "tests/training/test_data_encode.py",
    ),
    Mutant(
        "training data",
        "a shortened prompt keeps the images of what it lost",
        "training/data/encode.py",
        "images = images[gone:]",
        "images = images[: len(images) - gone]",
        "tests/training/test_data_encode.py",
    ),
    Mutant(
        "training data",
        "a dropped sample is replaced by one of another source",
        "training/data/loader.py",
        "self._mixture.row(position, seed)",
        "self._mixture.row(position + attempt, seed)",
        "tests/training/test_data_loader.py",
    ),
    Mutant(
        "training data",
        "ranks of one step share slots",
        "training/data/loader.py",
        "position = self._start * self._world + self._rank",
        "position = self._start * self._world",
        "tests/training/test_data_loader.py",
    ),
    Mutant(
        "training data",
        "cut images pass the check",
        "training/data/check.py",
        "                    image.load()",
        "                    pass",
        "tests/training/test_data_check.py",
    ),
    Mutant(
        "training data",
        "a NAVSIM log runs code",
        "training/data/converters/navsim.py",
        "if (module, name) not in _RECONSTRUCTORS:",
        'if module == "builtins":',
        "tests/training/test_data_converters.py",
    ),
    Mutant(
        "training data",
        "NAVSIM's right becomes straight",
        "training/data/converters/navsim.py",
        "(NavCommand.LEFT, NavCommand.STRAIGHT, NavCommand.RIGHT, None)",
        "(NavCommand.LEFT, NavCommand.RIGHT, NavCommand.STRAIGHT, None)",
        "tests/training/test_data_converters.py",
    ),
    Mutant(
        "training data",
        "SimLingo's waypoints are mirrored",
        "training/data/converters/simlingo.py",
        "Waypoints(flip_y(_in_ego_frame(now, future)), TASK.dt_s)",
        "Waypoints(_in_ego_frame(now, future), TASK.dt_s)",
        "tests/training/test_data_converters.py",
    ),
    Mutant(
        "training data",
        "an answer of the history is learnt",
        "wamdiff2_core/conversations.py",
        "return Exchange(spoken[:-2], spoken[-2].text, spoken[-1].text, self.system)",
        "return Exchange((), spoken[0].text, spoken[1].text, self.system)",
        "tests/core/test_dataset.py",
    ),
    Mutant(
        "training",
        "the vision tower learns boxes with x and y exchanged",
        "training/vision_pretraining.py",
        'pixels_from_box(tuple(o["bbox_2d"]), 1, 1)',
        "tuple(v / 1000 for v in o[\"bbox_2d\"])",
        "tests/training/test_vision_pretraining.py",
    ),
    Mutant(
        "training",
        "a resumed run with frozen vision has other image tokens",
        "training/frozen_vision.py",
        "ImageMemory(_one_by_one(encode) if kept_images else encode, kept_images)",
        "ImageMemory(encode, kept_images)",
        "tests/training/test_frozen_vision.py",
    ),
    Mutant(
        "backends",
        "a plan is made from the features of another picture",
        "wamdiff2_core/model/vision.py",
        "return [(grid, _fingerprint(image)) for grid, image in zip(grids, images, strict=True)]",
        "return [(grid, b'') for grid, image in zip(grids, images, strict=True)]",
        "tests/core/test_backends.py",
    ),
    Mutant(
        "backends",
        "a question is answered with the keys of another picture",
        "wamdiff2_core/model/cached_prompt.py",
        "equal = min([equal, *(first for _, first, _ in self.images ^ other.images)])",
        "equal = min([equal])",
        "tests/core/test_prompt_reuse.py",
    ),
    Mutant(
        "backends",
        "half a block of the prompt before is taken for this one's",
        "wamdiff2_core/model/cached_prompt.py",
        "return equal // self.block_size * self.block_size",
        "return equal",
        "tests/core/test_prompt_reuse.py",
    ),
    Mutant(
        "backends",
        "a cache that grows loses the prompt that is reused",
        "wamdiff2_core/model/backends/packed.py",
        "new[:, :kept] = before[:, :kept]",
        "new[:, :kept] = 0",
        "tests/core/test_prompt_reuse.py",
    ),
    Mutant(
        "backends",
        "tokens of a finished block see the next block's masks",
        "wamdiff2_core/model/backends/cpu.py",
        "high[:, :commit] = start + commit",
        "high[:, :commit] = start + count",
        "tests/core/test_backends.py",
    ),
    Mutant(
        "backends",
        "of equally probable tokens not the lowest wins",
        "wamdiff2_core/model/backends/packed.py",
        "torch.where(highest > best, where + first, chosen)",
        "torch.where(highest >= best, where + first, chosen)",
        "tests/core/test_backends.py",
    ),
    Mutant(
        "backends",
        "an Ascend device is taken before a CUDA one",
        "wamdiff2_core/model/devices.py",
        'ACCELERATORS = ("cuda", "npu")',
        'ACCELERATORS = ("npu", "cuda")',
        "tests/core/test_devices.py",
    ),
    Mutant(
        "backends",
        "an answer within a grammar is read off by other edges than the best ones",
        "wamdiff2_core/decode/grammar/viterbi.py",
        "source, group = max(edges,",
        "source, group = min(edges,",
        "tests/core/grammar/test_viterbi.py",
    ),
    Mutant(
        "backends",
        "a box of two numbers with as many digits may end left of where it begins",
        "wamdiff2_core/decode/grammar/boxes.py",
        "lead_smaller + free[:, 1:-1] + free[:, 2:]",
        "lead_equal + free[:, 1:-1] + free[:, 2:]",
        "tests/core/grammar/test_viterbi.py",
    ),
    Mutant(
        "backends",
        "an accelerator goes on to the next block before this one is done",
        "wamdiff2_core/decode/on_device.py",
        "go = ~self.masked.any() & (self._block < self._last_block) & ~self._finished.all()",
        "go = (self._block < self._last_block) & ~self._finished.all()",
        "tests/core/test_accelerator_backends.py",
    ),
    Mutant(
        "engine",
        "half a block of the conversation before is taken for this one's",
        "wamdiff2_core/model/cached_prompt.py",
        "return equal // self.block_size * self.block_size",
        "return equal",
        "tests/core/test_engine_bugs.py"
        "::test_bug_01_a_block_that_was_never_committed_is_never_seen_by_another_request",
    ),
    Mutant(
        "engine",
        "an answer on an accelerator ends with the flags of a request that was dropped",
        "wamdiff2_core/decode/on_device.py",
        "        self._watch.read(0)  # flags of a request that was dropped half way\n",
        "",
        "tests/core/test_engine_bugs.py"
        "::test_bug_02_a_request_dropped_at_any_step_costs_no_memory_and_changes_nothing",
    ),
    Mutant(
        "engine",
        "a plan overwrites the one of a request that was dropped, while it is copied",
        "wamdiff2_core/model/backends/graphed.py",
        "        self.ops.wait()  # a request that was dropped half way may still be running\n",
        "",
        "tests/core/test_engine_bugs.py"
        "::test_bug_02_a_request_dropped_at_any_step_costs_no_memory_and_changes_nothing",
    ),
    Mutant(
        "engine",
        "every answer on an accelerator leaves its graphs behind",
        "wamdiff2_core/decode/on_device.py",
        'self._name = ("blocks",',
        'self._name = ("blocks", object(),',
        "tests/core/test_engine_bugs.py"
        "::test_bug_02_a_request_dropped_at_any_step_costs_no_memory_and_changes_nothing",
    ),
    Mutant(
        "engine",
        "mask tokens are cut out of a prompt",
        "wamdiff2_core/decode/block_diffusion.py",
        "model.prefill(requests,",
        "model.prefill([ModelInputs(one.input_ids[one.input_ids != mask_token_id], one.pixel_values, "
        "one.image_grid_thw) for one in requests],",
        "tests/core/test_engine_bugs.py::test_bug_03_a_mask_token_in_the_prompt_stays_put",
    ),
    Mutant(
        "engine",
        "mask tokens are cut out of a prompt for an accelerator",
        "wamdiff2_core/decode/on_device.py",
        "model.prefill(requests,",
        "model.prefill([ModelInputs(one.input_ids[one.input_ids != mask_token_id], one.pixel_values, "
        "one.image_grid_thw) for one in requests],",
        "tests/core/test_engine_bugs.py::test_bug_03_a_mask_token_in_the_prompt_stays_put",
    ),
    Mutant(
        "engine",
        "the keys of a finished block are those that its last step saw",
        "wamdiff2_core/decode/block_diffusion.py",
        "both = torch.cat([ids[:, first - size : first], tokens], 1)",
        "both = torch.cat([ids[:, first - size : first].masked_fill(fixed, mask_token_id), tokens], 1)",
        "tests/core/test_engine_bugs.py"
        "::test_bug_04_keys_and_values_of_a_committed_block_are_those_of_its_final_tokens",
    ),
    Mutant(
        "engine",
        "an accelerator never commits the first block",
        "wamdiff2_core/decode/on_device.py",
        "behind, last = block > 0 and step == 0,",
        "behind, last = block > 1 and step == 0,",
        "tests/core/test_engine_bugs.py"
        "::test_bug_04_keys_and_values_of_a_committed_block_are_those_of_its_final_tokens",
    ),
    Mutant(
        "engine",
        "an accelerator commits the masks of the block to come",
        "wamdiff2_core/decode/on_device.py",
        "        before.copy_(torch.where(go, tokens, before))\n"
        "        tokens.copy_(torch.where(go, torch.where(self._finished, self._eos, self._mask), "
        "tokens))\n",
        "        tokens.copy_(torch.where(go, torch.where(self._finished, self._eos, self._mask), "
        "tokens))\n"
        "        before.copy_(torch.where(go, tokens, before))\n",
        "tests/core/test_engine_bugs.py"
        "::test_bug_04_keys_and_values_of_a_committed_block_are_those_of_its_final_tokens",
    ),
    Mutant(
        "engine",
        "tokens that are fixed keep the keys of the masks they were",
        "wamdiff2_core/model/backends/packed.py",
        "            cache[:, start:end] = qkv[:, :, self.heads :]\n",
        "            kept = read if seen.even and not commit and rows == 1 else torch.arange(count)\n"
        "            cache[:, start + kept] = qkv[:, kept, self.heads :]\n",
        "tests/core/test_engine_bugs.py::test_bug_05_the_cache_is_exact_answers_are_those_without_one",
    ),
    Mutant(
        "engine",
        "rows of a batch share what the schedule lets each fix",
        "wamdiff2_core/decode/selection.py",
        "    if config.strategy == \"sequential\":\n"
        "        return masked & (masked.cumsum(-1) <= count)\n"
        "    if",
        "    if config.strategy == \"sequential\":\n"
        "        return masked & (masked.flatten().cumsum(-1).view_as(masked) <= count)\n"
        "    if",
        "tests/core/test_engine_bugs.py"
        "::test_bug_06_a_batch_equals_the_singles_whether_prompts_are_of_one_length_or_not",
    ),
    Mutant(
        "engine",
        "rows of a batch draw from one generator",
        "wamdiff2_core/decode/block_diffusion.py",
        "            torch.rand(count, generator=generator) if on else torch.zeros(count)\n"
        "            for generator,",
        "            torch.rand(count, generator=self._generators[0]) if on else torch.zeros(count)\n"
        "            for generator,",
        "tests/core/test_engine_bugs.py"
        "::test_bug_06_a_batch_equals_the_singles_whether_prompts_are_of_one_length_or_not",
    ),
    Mutant(
        "engine",
        "the last layer reads rows of another answer of the batch",
        "wamdiff2_core/model/backends/packed.py",
        "flat[read - skipped * (read // count + 1)]",
        "flat[read - skipped]",
        "tests/core/test_engine_bugs.py"
        "::test_bug_06_a_batch_equals_the_singles_whether_prompts_are_of_one_length_or_not",
    ),
    Mutant(
        "engine",
        "an accelerator writes all rows where the first one's prompt ends",
        "wamdiff2_core/model/backends/graphed.py",
        "(torch.arange(shape.rows, device=device)[:, None] * room.capacity + column).flatten()",
        "(torch.arange(shape.rows, device=device)[:, None] * room.capacity + column[:1]).flatten()",
        "tests/core/test_engine_bugs.py"
        "::test_bug_06_a_batch_equals_the_singles_whether_prompts_are_of_one_length_or_not",
    ),
    Mutant(
        "engine",
        "an accelerator takes a prompt to be as long as the one before",
        "wamdiff2_core/model/backends/graphed.py",
        "        room.lengths.copy_(width - pad)\n",
        "        room.lengths.copy_(torch.maximum(room.lengths, width - pad))\n",
        "tests/core/test_engine_bugs.py::test_bug_07_buffers_of_longer_and_wider_requests_leave_no_trace",
    ),
    Mutant(
        "engine",
        "attention goes by the lengths of the request before",
        "wamdiff2_core/model/backends/cuda.py",
        "        if plan.lengths == lengths:\n",
        "        if plan.lengths:\n",
        "tests/core/test_engine_bugs.py::test_bug_07_buffers_of_longer_and_wider_requests_leave_no_trace",
    ),
    Mutant(
        "engine",
        "an answer that ended ends the next one, too",
        "wamdiff2_core/decode/on_device.py",
        "        self._finished.fill_(False)\n",
        "",
        "tests/core/test_engine_bugs.py::test_bug_07_buffers_of_longer_and_wider_requests_leave_no_trace",
    ),
    Mutant(
        "engine",
        "an overflow on an accelerator comes back in later answers",
        "wamdiff2_core/model/backends/graphed.py",
        "        room.cache[:, :, :, min(self._lengths) : self._columns].zero_()\n",
        "",
        "tests/core/test_engine_bugs.py::test_bug_08_leftovers_in_a_reused_buffer_change_no_bit",
    ),
    Mutant(
        "engine",
        "an overflow on a CPU comes back in later answers",
        "wamdiff2_core/model/backends/native.c",
        "const int64_t end = up_to(written, NR);",
        "const int64_t end = written = up_to(written, NR);",
        "tests/core/test_engine_bugs.py::test_bug_08_leftovers_in_a_reused_buffer_change_no_bit",
    ),
    Mutant(
        "engine",
        "an answer's positions count the tokens of images",
        "wamdiff2_core/model/positions.py",
        "    start = positions.max() + 1\n",
        "    start = positions.shape[-1]\n",
        "tests/core/test_engine_bugs.py::test_bug_09_positions_are_those_of_the_request_whatever_came_before",
    ),
    Mutant(
        "engine",
        "positions begin anew behind a prompt's part that is reused",
        "wamdiff2_core/model/backends/cpu.py",
        "self._text.rotary(batch.positions[..., reused:])",
        "self._text.rotary(batch.positions[..., : width - reused])",
        "tests/core/test_engine_bugs.py::test_bug_09_positions_are_those_of_the_request_whatever_came_before",
    ),
    Mutant(
        "engine",
        "positions of an answer are those of the request before",
        "wamdiff2_core/model/backends/packed.py",
        "        self._answer_rotary = self.rotary(answer_positions)\n",
        "        if self._answer_rotary[0].shape[:2] != answer_positions.shape[1:]:\n"
        "            self._answer_rotary = self.rotary(answer_positions)\n",
        "tests/core/test_engine_bugs.py::test_bug_09_positions_are_those_of_the_request_whatever_came_before",
    ),
    Mutant(
        "engine",
        "all blocks are run after an answer has ended",
        "wamdiff2_core/decode/block_diffusion.py",
        "        if finished.all():\n"
        "            break\n",
        "",
        "tests/core/test_engine_bugs.py"
        "::test_bug_10_an_answer_ends_at_its_first_eos_and_whole_blocks_fit_beside_the_prompt",
    ),
    Mutant(
        "engine",
        "an accelerator runs all blocks after an answer has ended",
        "wamdiff2_core/decode/on_device.py",
        "            if seen is not None and seen[1]:\n"
        "                break\n",
        "",
        "tests/core/test_engine_bugs.py"
        "::test_bug_10_an_answer_ends_at_its_first_eos_and_whole_blocks_fit_beside_the_prompt",
    ),
    Mutant(
        "engine",
        "an answer's last block does not fit behind a long prompt",
        "wamdiff2_core/decode/generator.py",
        "wanted = longest + block_count(config.max_new_tokens, size) * size",
        "wanted = longest + config.max_new_tokens",
        "tests/core/test_engine_bugs.py"
        "::test_bug_10_an_answer_ends_at_its_first_eos_and_whole_blocks_fit_beside_the_prompt",
    ),
    Mutant(
        "engine",
        "of equally probable tokens the highest wins on an accelerator",
        "wamdiff2_core/model/backends/graphed.py",
        "        best, tokens = logits.max(-1)\n",
        "        best, tokens = logits.max(-1)\n"
        "        tokens = logits.shape[-1] - 1 - logits.flip(-1).argmax(-1)\n",
        "tests/core/test_engine_bugs.py"
        "::test_bug_11_ties_go_to_the_lowest_token_and_place_and_neighbours_do_not_matter",
    ),
    Mutant(
        "engine",
        "places that are equally sure are all fixed at once",
        "wamdiff2_core/decode/selection.py",
        "return torch.where(sure.any(-1, keepdim=True), sure, most_confident(confidence, masked, 1))",
        "likely = confidence.masked_fill(~masked, 0)\n"
        "    return torch.where(sure.any(-1, keepdim=True), sure, masked & (likely >= likely.amax(-1, "
        "keepdim=True) - 1e-5))",
        "tests/core/test_engine_bugs.py"
        "::test_bug_11_ties_go_to_the_lowest_token_and_place_and_neighbours_do_not_matter",
    ),
    Mutant(
        "engine",
        "probabilities are summed in bfloat16",
        "wamdiff2_core/model/backends/eager.py",
        "            logits: Tensor = head(hidden).float()\n",
        "            logits: Tensor = head(hidden)\n",
        "tests/core/test_engine_bugs.py::test_bug_11_probabilities_are_summed_in_float32_whatever_the_weights_are_in",
    ),
    Mutant(
        "engine",
        "padding is looked at, but in the first step of a block",
        "wamdiff2_core/model/backends/eager.py",
        "        if commit or self._padding is not None:\n",
        "        if commit:\n",
        "tests/core/test_engine_bugs.py::test_bug_12_padding_on_the_left_changes_nothing",
    ),
    Mutant(
        "engine",
        "padding is looked at on a CPU",
        "wamdiff2_core/model/backends/cpu.py",
        "            self._low = (~batch.padding).sum(-1, dtype=torch.int32)\n",
        "            pass\n",
        "tests/core/test_engine_bugs.py::test_bug_12_padding_on_the_left_changes_nothing",
    ),
    Mutant(
        "engine",
        "padding is looked at on an accelerator",
        "wamdiff2_core/model/backends/graphed.py",
        "        room.lengths.copy_(width - pad)\n",
        "        room.lengths.fill_(width)\n",
        "tests/core/test_engine_bugs.py::test_bug_12_padding_on_the_left_changes_nothing",
    ),
    Mutant(
        "engine",
        "the schedule leaves the remainder out",
        "wamdiff2_core/decode/schedule.py",
        "    return [base + (step < remainder) for step in range(steps)]",
        "    return [base] * (block_size // base)",
        "tests/core/test_engine_bugs.py::test_bug_13_every_step_fixes_a_token_and_no_block_takes_more_than_its_steps",
    ),
    Mutant(
        "engine",
        "a step in which no token is sure fixes none",
        "wamdiff2_core/decode/selection.py",
        "return torch.where(sure.any(-1, keepdim=True), sure, most_confident(confidence, masked, 1))",
        "return sure",
        "tests/core/test_engine_bugs.py::test_bug_13_every_step_fixes_a_token_and_no_block_takes_more_than_its_steps",
    ),
    Mutant(
        "engine",
        "an accelerator lets a finished block see the next one's masks",
        "wamdiff2_core/model/backends/graphed.py",
        "(token < shape.commit) * (shape.count - shape.commit))",
        "(token < shape.commit) * 0)",
        "tests/core/test_engine_bugs.py::test_bug_14_a_mask_hides_what_it_says_and_nothing_else",
    ),
    Mutant(
        "engine",
        "an Ascend device lets a finished block see the next one's masks",
        "wamdiff2_core/model/backends/npu.py",
        "for parts in lengths for length in parts]",
        "for parts in lengths for length in [parts[-1]] * len(parts)]",
        "tests/core/test_engine_bugs.py::test_bug_14_a_mask_hides_what_it_says_and_nothing_else",
    ),
    Mutant(
        "engine",
        "an accelerator decodes with the threshold of the request before",
        "wamdiff2_core/decode/on_device.py",
        ", config.confidence_threshold, mask, eos)",
        ", mask, eos)",
        "tests/core/test_engine_bugs.py::test_bug_15_an_answer_is_decoded_as_its_request_says_not_as_the_one_before",
    ),
    Mutant(
        "engine",
        "an answer is decoded with the published threshold, not with the one asked for",
        "wamdiff2_core/decode/selection.py",
        "(confidence >= config.confidence_threshold)",
        "(confidence >= 0.9)",
        "tests/core/test_engine_bugs.py::test_bug_15_an_answer_is_decoded_as_its_request_says_not_as_the_one_before",
    ),
    Mutant(
        "engine",
        "block sizes that the weights were not trained for are decoded with",
        "wamdiff2_core/decode/generator.py",
        "        if self._record is not None:\n"
        "            self._record.check_request(config)\n",
        "",
        "tests/core/test_engine_bugs.py"
        "::test_bug_15_what_the_record_holds_is_decoded_with_and_what_it_forbids_is_refused",
    ),
    Mutant(
        "engine",
        "a finished block is committed by a forward of its own",
        "wamdiff2_core/decode/block_diffusion.py",
        "                both = torch.cat([ids[:, first - size : first], tokens], 1)\n"
        "                hidden = model.forward(both, first - size, commit=size, wanted=masked)\n",
        "                model.forward(ids[:, first - size : first], first - size)\n"
        "                hidden = model.forward(tokens, first, wanted=masked)\n",
        "tests/core/test_backends.py"
        "::test_forwards_are_one_for_the_prompt_and_one_a_step_none_to_commit_none_after_the_last_block",
    ),
    Mutant(
        "engine",
        "the last block is committed, too",
        "wamdiff2_core/decode/block_diffusion.py",
        "    if budget is not None:\n"
        "        pace,",
        "    model.forward(ids[:, first : first + size], first)\n"
        "    if budget is not None:\n"
        "        pace,",
        "tests/core/test_backends.py"
        "::test_forwards_are_one_for_the_prompt_and_one_a_step_none_to_commit_none_after_the_last_block",
    ),
    Mutant(
        "engine",
        "an accelerator runs a forward more at the end of each block",
        "wamdiff2_core/decode/on_device.py",
        "            seen = self._watch.read(0) or seen\n",
        "            backend.replay(graph, shape)\n"
        "            seen = self._watch.read(0) or seen\n",
        "tests/core/test_backends.py"
        "::test_forwards_are_one_for_the_prompt_and_one_a_step_none_to_commit_none_after_the_last_block",
    ),
    Mutant(
        "engine",
        "an accelerator runs one more step when the answers are over",
        "wamdiff2_core/decode/on_device.py",
        "                self._watch.read(0)\n"
        "                return replays\n",
        "                self._watch.read(0)\n"
        "                backend.replay(graph, shape)\n"
        "                return replays\n",
        "tests/core/test_backends.py"
        "::test_forwards_are_one_for_the_prompt_and_one_a_step_none_to_commit_none_after_the_last_block",
    ),
    Mutant(
        "decoding",
        "a warm start fixes tokens that the model does not choose",
        "wamdiff2_core/decode/warm_start.py",
        "return (candidates == guess) & (confidence >= AGREED_CONFIDENCE)",
        "return confidence >= AGREED_CONFIDENCE",
        "tests/core/test_decode_warm_start.py",
    ),
    Mutant(
        "decoding",
        "a deadline hurries nothing",
        "wamdiff2_core/decode/selection.py",
        "return most_confident(confidence, masked, share)",
        "return most_confident(confidence, masked, 1)",
        "tests/core/test_decode_deadline.py",
    ),
    Mutant(
        "bench",
        "plans that may not be driven score",
        "wamdiff2_core/bench/deadline.py",
        "(far <= near_m) & [plan.check.ok for plan in each]",
        "(far <= near_m) | [plan.check.ok for plan in each]",
        "tests/core/test_bench_deadline.py",
    ),
)


def copy_tree(target: Path) -> Path:
    """A working copy of what git would commit, with the shared test inputs beside it as in a checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    tree = target / "tree"
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    if (ROOT.parent / "shared").is_dir():
        (target / "shared").symlink_to(ROOT.parent / "shared")
    if (ROOT / ".venv38").is_dir():  # it holds nothing of this package
        (tree / ".venv38").symlink_to(ROOT / ".venv38")
    return tree


def run_tests(tree: Path, tests: list[str]) -> tuple[int, str]:
    """Exit code and output of pytest on a tree; its modules come from that tree, in child processes too."""
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    run = subprocess.run(
        command,
        cwd=tree,
        env=environment,
        timeout=TIMEOUT_S,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return run.returncode, run.stdout


def try_mutant(mutant: Mutant) -> tuple[bool, str, float]:
    """(killed, first failing test or why it survived, seconds)."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_tree(Path(folder))
        path = tree / mutant.file
        source = path.read_text()
        if source.count(mutant.old) != 1:
            return False, f"line stands there {source.count(mutant.old)} times, expected once", 0.0
        path.write_text(source.replace(mutant.old, mutant.new))
        code, output = run_tests(tree, [mutant.tests])
    lines = output.splitlines() or ["no output"]
    failed = next((line for line in lines if line.startswith("FAILED")), "")
    verdict = failed.split(" - ")[0].rpartition("::")[2] if failed else lines[-1]
    return code == 1 and bool(failed), verdict, time.monotonic() - start


def main() -> int:
    """Run every mutant and show the table."""
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        files = sorted({mutant.tests.partition("::")[0] for mutant in MUTANTS})
        code, output = run_tests(copy_tree(Path(folder)), files)
    if code != 0:
        console.print(f"the unbroken tree is red:\n{output[-3000:]}", markup=False)
        return 1
    with ThreadPoolExecutor(JOBS) as pool:
        outcomes = list(track(pool.map(try_mutant, MUTANTS), "mutants", len(MUTANTS), console=console))
    table = Table("area", "defect", "verdict", "by", "s", title="mutants", title_justify="left")
    for mutant, (killed, by, seconds) in zip(MUTANTS, outcomes, strict=True):
        verdict = "[green]killed[/]" if killed else "[bold red]SURVIVED[/]"
        table.add_row(mutant.area, mutant.defect, verdict, escape(by), f"{seconds:.0f}")
    console.print(table)
    survivors = sum(not killed for killed, _, _ in outcomes)
    console.print(f"{len(MUTANTS) - survivors} of {len(MUTANTS)} mutants killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
