"""The public door for planning: `Planner.plan(Observation) -> Plan`.

ROS node, CARLA agent, evaluator, command line and benchmarks all come through here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from wamdiff2_core.checks import DEFAULT_LIMITS, PlanLimits, check_waypoints
from wamdiff2_core.config import CameraSpec, DecodeConfig, PlanningTask
from wamdiff2_core.errors import UserError, did_you_mean
from wamdiff2_core.serving_record import RECORD_NAME, ServingRecord
from wamdiff2_core.tasks.planning import format_waypoints, parse_waypoints, planning_prompt
from wamdiff2_core.tasks.text import AnswerError
from wamdiff2_core.types import CameraFrame, Check, EgoState, Navigation, Observation, Plan, Waypoints

if TYPE_CHECKING:
    import torch

    from wamdiff2_core.decode import Generator
    from wamdiff2_core.decode.grammar import Automaton
    from wamdiff2_core.model.checkpoint import Checkpoint

RANDOM = "random"


class Planner(Protocol):
    """Turns observations into plans.

    Attributes:
        record: what the weights were trained for; None for a planner without weights.
        rig: cameras it needs, in the order of `Observation.frames`; empty when any will do.
    """

    @property
    def record(self) -> ServingRecord | None: ...

    @property
    def rig(self) -> tuple[CameraSpec, ...]: ...

    def warm_up(self) -> None:
        """Do the slow first calls now, so that the first plan is as quick as any."""

    def plan(self, observation: Observation) -> Plan:
        """Plan for one observation; the plan carries its stamp.

        Raises:
            UserError: the observation is not what the planner was trained for.
        """


def check_frames(observation: Observation, rig: tuple[CameraSpec, ...]) -> None:
    """Raise `UserError` when the frames are not those of the rig: names, order and sizes."""
    if not rig:
        return
    names = [frame.camera for frame in observation.frames]
    wanted = [camera.name for camera in rig]
    if names != wanted:
        raise UserError("observation.frames", f"cameras {', '.join(wanted)}, in this order", ", ".join(names),
                        "send the cameras of the checkpoint's rig")
    for frame, camera in zip(observation.frames, rig, strict=True):
        height, width = frame.rgb.shape[:2]
        if (width, height) != (camera.width_px, camera.height_px):
            raise UserError(f"observation.frames[{camera.name}]", f"{camera.width_px} x {camera.height_px} pixels",
                            f"{width} x {height}", "set the camera to the size of the checkpoint's rig")


class CheckpointPlanner:
    """Plans with a checkpoint: prompt, decode, parse, check.

    Attributes:
        record, rig: see `Planner`.
        decode: how answers are decoded; with a deadline, `grammar` is on where it can be (`grammar.task_decoding`).
    """

    def __init__(
        self, checkpoint: Checkpoint, decode: DecodeConfig | None = None, limits: PlanLimits = DEFAULT_LIMITS
    ) -> None:
        """Take a loaded checkpoint.

        Args:
            checkpoint: with a record that holds a planning task.
            decode: defaults to the record's.
            limits: of the output check.

        Raises:
            UserError: the checkpoint does not plan, or its record does not allow this decoding.
        """
        from wamdiff2_core.decode import Generator
        from wamdiff2_core.decode.grammar import task_decoding

        record = checkpoint.record
        if record is None or record.planning is None:
            raise UserError(
                str(checkpoint.folder), f"a checkpoint whose {RECORD_NAME} has a planning task",
                "no record" if record is None else "no planning task",
                "prompt, rounding, axes and cameras are not guessed: write the record beside the weights",
            )
        self.record: ServingRecord = record
        self.rig = record.rig
        wanted = decode or record.decode
        record.check_request(wanted)
        self.decode, language = task_decoding("planning", checkpoint.chat, record, wanted)
        self._task: PlanningTask = record.planning
        self._limits = limits
        self._checkpoint = checkpoint
        self._generator: Generator = Generator(checkpoint)
        self._grammars: list[Automaton | None] = [language]
        self._before: Plan | None = None

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | str | None = None,
        attn_implementation: str = "sdpa",
        backend: str = "auto",
        limits: PlanLimits = DEFAULT_LIMITS,
        **decode: Any,
    ) -> CheckpointPlanner:
        """Load a checkpoint folder; `decode` overrides fields of the record's `DecodeConfig`.

        Raises:
            UserError: see `load_checkpoint` and `__init__`.
        """
        from wamdiff2_core.model.checkpoint import load_checkpoint

        checkpoint = load_checkpoint(
            folder, device=device, dtype=dtype, attn_implementation=attn_implementation, backend=backend
        )
        known = [field.name for field in dataclasses.fields(DecodeConfig)]
        for name in decode:
            if name not in known:
                raise UserError("decode", "fields of the decoding configuration", name, did_you_mean(name, known))
        base = checkpoint.record.decode if checkpoint.record is not None else DecodeConfig()
        return cls(checkpoint, replace(base, **decode), limits)

    def warm_up(self) -> None:
        """Plan twice on black images, standing."""
        cameras = self.rig or (CameraSpec(),)
        frames = tuple(
            CameraFrame(np.zeros((camera.height_px, camera.width_px, 3), np.uint8), 0, camera.name)
            for camera in cameras
        )
        blank = Observation(frames, EgoState(), Navigation(np.array([[10.0, 0.0], [20.0, 0.0]])))
        for _ in range(2):
            self.plan(blank)
        self._before = None

    def plan(self, observation: Observation) -> Plan:
        """See `Planner.plan`; an answer that cannot be read gives a plan without waypoints and a failed check.

        The time of a deadline runs from the beginning of this call to the answer's last token. With a warm start the
        answer may depend on the plan before, if that is at most a second older.
        """
        from wamdiff2_core.chat import ChatRequest

        began_ns = self._generator.clock()
        check_frames(observation, self.rig)
        request = ChatRequest(
            planning_prompt(observation, self._task), tuple(frame.rgb for frame in observation.frames)
        )
        inputs = self._checkpoint.chat.encode(request)
        guesses = self._guesses(observation.stamp_ns)
        answer = self._generator.generate(
            [inputs], self.decode, grammars=self._grammars, began_ns=began_ns, guesses=guesses
        )[0]
        waypoints: Waypoints | None = None
        try:
            waypoints = parse_waypoints(answer.text, self._task)
            check = check_waypoints(waypoints, observation.ego.speed_mps, self._task.waypoints, self._limits)
        except AnswerError as error:
            check = Check(False, str(error))
        plan = Plan(observation.stamp_ns, waypoints, answer.text, answer.stats, check, self._checkpoint.hash)
        self._before = plan
        return plan

    def _guesses(self, stamp_ns: int) -> list[list[int] | None] | None:
        """What the plan before lets one expect now, for a warm start."""
        if self.decode.warm_start == "off":
            return None
        from wamdiff2_core.decode.warm_start import guess_from

        guess = guess_from(self._before, stamp_ns)
        return [None if guess is None else self._checkpoint.chat.encode_answer(format_waypoints(guess, self._task))]


class RandomPlanner:
    """The negative control: plans that a car could drive, drawn without looking at camera, targets or command.

    The n-th frame of a run gives the same plan for the same seed and speed, whenever the run begins.
    The same frame again gives the same plan again, and time that goes back begins another run.
    """

    record: ServingRecord | None = None
    rig: tuple[CameraSpec, ...] = ()
    max_accel_mps2 = 2.0
    max_lateral_mps2 = 3.0
    max_curvature_radpm = 0.15
    max_speed_mps = 10.0

    def __init__(self, seed: int = 0, task: PlanningTask = PlanningTask()) -> None:
        """`task` gives number and spacing of waypoints, and the text form."""
        self._seed, self._task = seed, task
        self._count, self._latest_ns = 0, -1

    def warm_up(self) -> None:
        """Nothing to do."""

    def plan(self, observation: Observation) -> Plan:
        """One acceleration and one curvature, held over the plan."""
        rng = np.random.default_rng([self._seed, self._count_of(observation.stamp_ns)])
        speed = max(0.0, observation.ego.speed_mps)
        accel = rng.uniform(-self.max_accel_mps2, self.max_accel_mps2)
        times = self._task.dt_s * np.arange(1, self._task.waypoints + 1)
        fine = np.linspace(0.0, times[-1], 20 * len(times) + 1)
        top = max(speed, self.max_speed_mps)
        speeds = np.clip(speed + accel * fine, 0.0, top)
        sharpest = min(self.max_curvature_radpm, self.max_lateral_mps2 / max(speeds.max(), 1.0) ** 2)
        curvature = rng.uniform(-sharpest, sharpest)
        travelled = np.concatenate([[0.0], np.cumsum((speeds[1:] + speeds[:-1]) / 2 * np.diff(fine))])[20::20]
        angle = curvature * travelled
        xy = travelled[:, None] * np.stack([np.sinc(angle / np.pi), np.sin(angle / 2) * np.sinc(angle / 2 / np.pi)], 1)
        waypoints = Waypoints(xy, self._task.dt_s)
        text = format_waypoints(waypoints, self._task)
        check = check_waypoints(waypoints, speed, self._task.waypoints)
        return Plan(observation.stamp_ns, waypoints, text, check=check, source=RANDOM)

    def _count_of(self, stamp_ns: int) -> int:
        """How many frames of this run came before the one of `stamp_ns`."""
        if stamp_ns < self._latest_ns or self._latest_ns < 0:
            self._count = 0
        elif stamp_ns > self._latest_ns:
            self._count += 1
        self._latest_ns = stamp_ns
        return self._count


def make_planner(
    spec: str | Path, *, device: str = "cpu", seed: int | None = None, **options: Any
) -> Planner:
    """The planner that `spec` names: `random`, or the folder of a checkpoint.

    Args:
        spec: see above.
        device: for a checkpoint.
        seed: of the random planner (0), or of sampling (the record's).
        **options: of `CheckpointPlanner.load`.
    """
    if str(spec) == RANDOM:
        return RandomPlanner(seed or 0)
    if seed is not None:
        options["seed"] = seed
    return CheckpointPlanner.load(spec, device=device, **options)
