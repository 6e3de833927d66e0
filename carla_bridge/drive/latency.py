"""When a plan acts: the latency modes of a drive.

The world stands still in wall time while a plan is made, so a planner's slowness must be put back on purpose. Frames
that fall due while a plan is still being made, in simulated time, are not sent: a busy planner drops them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from wamdiff2_core.errors import UserError


@dataclass(frozen=True)
class LatencyMode:
    """How much simulated time passes between a frame and the moment its plan acts.

    Attributes:
        kind: `lockstep`: none; `measured`: as much as the plan took in wall time; `fixed`: `fixed_ms`; `live`: as much
            as has passed until the plan has come, as the world is somebody else's and does not wait.
        fixed_ms: delay of `fixed`, simulated milliseconds.
    """

    kind: Literal["lockstep", "measured", "fixed", "live"] = "lockstep"
    fixed_ms: float = 0.0

    @classmethod
    def parse(cls, text: str) -> LatencyMode:
        """Read `lockstep`, `measured` or a number of milliseconds.

        Raises:
            UserError: anything else, or a delay outside 0..10000 ms.
        """
        if text == "lockstep":
            return cls("lockstep")
        if text == "measured":
            return cls("measured")
        try:
            fixed_ms = float(text.removesuffix("ms"))
        except ValueError:
            fixed_ms = -1.0
        if not 0 <= fixed_ms <= 10_000:
            raise UserError("--latency", "lockstep, measured or milliseconds in 0..10000", text)
        return cls("fixed", fixed_ms)

    def delay_ns(self, measured_ns: int, passed_ns: int = 0) -> int:
        """Simulated nanoseconds from a frame's stamp to the moment its plan acts.

        Args:
            measured_ns: wall time from sending the frame to receiving the plan.
            passed_ns: simulated time that has passed since the frame's stamp.
        """
        if self.kind == "live":
            return passed_ns
        if self.kind == "measured":
            return max(0, measured_ns)
        return round(self.fixed_ms * 1e6)

    def __str__(self) -> str:
        return f"{self.fixed_ms:g} ms" if self.kind == "fixed" else self.kind


class Stamped(Protocol):
    """Anything with the stamp of the frame it was made from."""

    @property
    def stamp_ns(self) -> int: ...


T = TypeVar("T", bound=Stamped)


class PlanSchedule(Generic[T]):
    """Plans on their way into force, in simulated time."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, T]] = []
        self._active: T | None = None
        self._busy_until_ns = -1

    def occupy(self, until_ns: int) -> None:
        """Mark the planner as busy until a moment, whether or not its answer can be driven."""
        self._busy_until_ns = max(self._busy_until_ns, until_ns)

    def busy(self, now_ns: int) -> bool:
        """Whether a plan is still being made at `now_ns`."""
        return now_ns < self._busy_until_ns

    def offer(self, plan: T, acts_from_ns: int) -> None:
        """Let `plan` come into force at `acts_from_ns`."""
        self._waiting.append((acts_from_ns, plan))

    def in_force(self, now_ns: int) -> T | None:
        """The plan that acts at `now_ns`: of those due, the one made from the newest frame. Time must not run back."""
        due = [plan for acts_from_ns, plan in self._waiting if acts_from_ns <= now_ns]
        self._waiting = [(acts_from_ns, plan) for acts_from_ns, plan in self._waiting if acts_from_ns > now_ns]
        for plan in due:
            if self._active is None or plan.stamp_ns >= self._active.stamp_ns:
                self._active = plan
        return self._active

    def clear(self) -> None:
        """Drop every plan: none acts until another is offered."""
        self._waiting.clear()
        self._active = None
