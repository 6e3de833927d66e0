"""Who goes first at junctions: lights, stop and yield signs, left turns, and gaps in crossing traffic.

A driver waits at its line until it is admitted. It is admitted when its light lets it go, its stop sign has been
obeyed, there is room beyond the junction, and everybody whose way crosses its own has passed, is far enough away, or
has to give way. Who has to give way to whom is a strict order (rank by signals and left turns, then order of arrival),
so no ring of drivers waits for each other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from carla_bridge.routes.lane_graph import LaneKey
from carla_bridge.server.actors.signals import SignalControl
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.geometry.scene import SignalKind
from carla_bridge.server.protocol.wire import TrafficLightState
from carla_bridge.server.traffic.following import travel_s
from carla_bridge.server.traffic.network import ARC, RoadNetwork
from carla_bridge.server.traffic.routes import Crossing

NOTICE_M = 70.0  # crossings further away than this need no decision
ARRIVED_M = 20.0  # from here on the order of arrival counts
YELLOW_MPS2, LAST_MPS2 = 3.5, 4.5  # braking that a yellow light, and a change of mind, may ask for
STOPPED_MPS, STOPPED_M = 0.15, 2.0  # a stop sign is obeyed at this speed, this near
ENTERED_M = 0.5
ROOM_M = 2.5  # beyond the junction, more than the own length
CRAWL_MPS = 1.0
AFTER_S, BEFORE_S, HASTY_S = 0.4, 1.2, 0.3  # margins behind and in front of others; the last after a long wait
PATIENCE_S = 30.0
IDLE_S = 4.0  # a client's vehicle that stands before a line for so long is not waited for
CLIENT_NOTICE_M = 45.0
LEFT_TURN, YIELD, STOP = 1, 2, 4  # parts of a rank; who has the higher one gives way


@dataclass(slots=True)
class Claim:
    """A vehicle that is on a way through a junction or about to be.

    Attributes:
        who: its actor id.
        start_m: from its front bumper to the beginning of the way; negative inside.
        speed_mps, length_m, top_mps: of the vehicle, and how fast it may get.
        rank, arrived: its place in the order; no time of arrival while it is far away.
        crossing: of a vehicle that the server drives.
        admitted: may go, or goes anyhow.
        stands: does not move, although it might.
    """

    who: int
    start_m: float
    speed_mps: float
    length_m: float
    top_mps: float
    rank: int
    arrived: int | None
    crossing: Crossing | None
    admitted: bool
    stands: bool

    def may_go(self) -> bool:
        """Whether it has been admitted by now."""
        return self.admitted if self.crossing is None else self.crossing.admitted


@dataclass(slots=True)
class Approaching:
    """A server-driven vehicle as the rules see it.

    Attributes:
        who: actor id.
        front_m, rear_m: arc lengths of its bumpers along its route.
        speed_mps, length_m: of the vehicle.
        crossings: of its route.
        lead_gap_m, lead_mps: to what stands in its way; inf for nothing.
        braking: slows down now.
        waited_s: how long it has been standing.
    """

    who: int
    front_m: float
    rear_m: float
    speed_mps: float
    length_m: float
    crossings: list[Crossing]
    lead_gap_m: float
    lead_mps: float
    braking: bool
    waited_s: float


class RightOfWay:
    """The rules of a town.

    Args:
        network: its roads.
        signals: its lights and signs; None for none.
    """

    def __init__(self, network: RoadNetwork, signals: SignalControl | None) -> None:
        self._network, self._signals = network, signals
        self._arrivals = 0
        self._claims: dict[LaneKey, list[Claim]] = defaultdict(list)
        self._client_arrivals: dict[int, int] = {}
        self._client_idle_s: dict[int, float] = {}

    def decide(self, vehicles: Sequence[Approaching], clients: Sequence[Vehicle], dt_s: float) -> list[float]:
        """Let everybody take turns.

        Args:
            vehicles: driven by the server.
            clients: other vehicles.
            dt_s: length of the tick.

        Returns:
            For each of the first: metres from its front bumper to the line where it has to wait; inf for none.
        """
        self._claims.clear()
        for vehicle in clients:
            self._claim_for_client(vehicle, dt_s)
        known = {vehicle.id for vehicle in clients}
        self._client_arrivals = {k: v for k, v in self._client_arrivals.items() if k in known}
        self._client_idle_s = {k: v for k, v in self._client_idle_s.items() if k in known}
        for vehicle in vehicles:
            self._claim(vehicle)
        return [self._hold_m(vehicle) for vehicle in vehicles]

    # --- claims

    def _claim(self, vehicle: Approaching) -> None:
        crossings = vehicle.crossings
        while crossings and vehicle.rear_m > crossings[0].leave_m:
            crossings.pop(0)
        for crossing in crossings:
            line_m = crossing.hold_m - vehicle.front_m
            if line_m > NOTICE_M:
                break
            entered = line_m < -ENTERED_M
            if entered:
                crossing.admitted = True
            elif crossing.arrived is None and line_m < ARRIVED_M:
                self._arrivals += 1
                crossing.arrived = self._arrivals
            if not entered and self._barred(crossing, line_m, vehicle.speed_mps):
                crossing.admitted = False
                continue
            queued = vehicle.lead_gap_m < line_m and vehicle.lead_mps < CRAWL_MPS
            if not crossing.admitted and (crossing.exit_full or queued):
                continue
            rank = self._rank(crossing)
            for key, start_m in crossing.ways:
                top = self._network.lanes[key].slowest_mps
                stands = entered and vehicle.speed_mps < CRAWL_MPS and vehicle.braking
                self._claims[key].append(
                    Claim(
                        vehicle.who, start_m - vehicle.front_m, vehicle.speed_mps, vehicle.length_m, top, rank,
                        crossing.arrived, crossing, crossing.admitted, stands,
                    )
                )  # fmt: skip

    def _claim_for_client(self, vehicle: Vehicle, dt_s: float) -> None:
        """A client's vehicle may take any way that leads on from where it is."""
        pose, motion, half_m = vehicle.pose, vehicle.motion, vehicle.blueprint.extent_m[0]
        speed = max(motion.speed_mps, 0.0)
        idle = self._client_idle_s.get(vehicle.id, 0.0) + dt_s if speed < CRAWL_MPS / 2 else 0.0
        self._client_idle_s[vehicle.id] = idle
        arrived = None
        for key, index in self._network.locate(pose.x, pose.y, pose.z, motion.yaw_rad, 2.5, 0.8):
            lane = self._network.lanes[key]
            front_m = float(lane.table[index, ARC]) + half_m
            if lane.in_junction:
                self._add_client(key, -front_m, vehicle, speed, 0, None, True, idle > 0.5)
                continue
            left_m = lane.length_m - front_m
            ways = [s for s in lane.successors if self._network.lanes[s].in_junction]
            if left_m > CLIENT_NOTICE_M or not ways:
                continue
            line_m = left_m if lane.hold is None else lane.hold.arc_m - front_m
            unstoppable = speed * speed > 2 * YELLOW_MPS2 * max(line_m, 0.0) and speed > CRAWL_MPS
            if idle > IDLE_S or (not unstoppable and lane.hold is not None and self._red(key)):
                continue
            if line_m < ARRIVED_M:
                self._arrivals += vehicle.id not in self._client_arrivals
                arrived = self._client_arrivals.setdefault(vehicle.id, self._arrivals)
            for way in ways:
                rank = self._sign_rank(key) + (LEFT_TURN if self._network.lanes[way].turn < 0 else 0)
                self._add_client(way, left_m, vehicle, speed, rank, arrived, unstoppable, False)
        if arrived is None:
            self._client_arrivals.pop(vehicle.id, None)

    def _add_client(
        self, key: LaneKey, start_m: float, vehicle: Vehicle, speed: float, rank: int, arrived: int | None,
        admitted: bool, stands: bool,
    ) -> None:  # fmt: skip
        length_m = 2 * vehicle.blueprint.extent_m[0]
        top = max(self._network.lanes[key].slowest_mps, speed)
        self._claims[key].append(
            Claim(vehicle.id, start_m, speed, length_m, top, rank, arrived, None, admitted, stands)
        )

    # --- signals

    def _light_state(self, approach: LaneKey | None) -> TrafficLightState | None:
        if self._signals is None or approach is None:
            return None
        light = self._signals.light_for(approach[0], approach[2])
        return None if light is None else light.state

    def _red(self, approach: LaneKey) -> bool:
        return self._light_state(approach) in (TrafficLightState.RED, TrafficLightState.YELLOW)

    def _barred(self, crossing: Crossing, line_m: float, speed_mps: float) -> bool:
        """Whether the light, or a stop sign not yet obeyed, tells to wait."""
        if crossing.hold is None:
            return False
        state = self._light_state(crossing.approach)
        if state is not None:
            braking = {TrafficLightState.RED: LAST_MPS2, TrafficLightState.YELLOW: YELLOW_MPS2}.get(state)
            return braking is not None and speed_mps**2 <= 2 * braking * max(line_m, 0.0) + 0.01
        if not crossing.stopped and any(spec.kind is SignalKind.STOP for spec in crossing.hold.specs):
            crossing.stopped = speed_mps < STOPPED_MPS and line_m < STOPPED_M
            return True
        return False

    def _rank(self, crossing: Crossing) -> int:
        left = LEFT_TURN if crossing.turn < 0 else 0
        return left + (self._sign_rank(crossing.approach) if crossing.hold is not None else 0)

    def _sign_rank(self, approach: LaneKey | None) -> int:
        hold = self._network.lanes[approach].hold if approach is not None else None
        kinds = {spec.kind for spec in hold.specs} if hold is not None else set()
        if SignalKind.TRAFFIC_LIGHT in kinds:
            return 0
        return STOP if SignalKind.STOP in kinds else YIELD if SignalKind.YIELD in kinds else 0

    # --- decisions

    def _hold_m(self, vehicle: Approaching) -> float:
        for crossing in vehicle.crossings:
            line_m = crossing.hold_m - vehicle.front_m
            if line_m > NOTICE_M:
                break
            if line_m < -ENTERED_M:
                continue
            if self._barred(crossing, line_m, vehicle.speed_mps):
                crossing.admitted = False
                return max(line_m, 0.0)
            committed = crossing.admitted and vehicle.speed_mps**2 > 2 * LAST_MPS2 * max(line_m, 0.0)
            if committed:
                continue
            crossing.admitted = self._admit(vehicle, crossing)
            if not crossing.admitted:
                return max(line_m, 0.0)
        return math.inf

    def _admit(self, vehicle: Approaching, crossing: Crossing) -> bool:
        if not crossing.ways:
            return True
        beyond_m = crossing.leave_m - vehicle.front_m
        slow = vehicle.lead_mps < CRAWL_MPS
        crossing.exit_full = slow and vehicle.lead_gap_m < beyond_m + vehicle.length_m + ROOM_M
        if crossing.exit_full:
            return False
        rank = self._rank(crossing)
        for key, start_m in crossing.ways:
            lane = self._network.lanes[key]
            for conflict in lane.conflicts:
                for claim in self._claims.get(conflict.other, ()):
                    if claim.who != vehicle.who and self._in_the_way(
                        vehicle, crossing, rank, start_m, lane.slowest_mps, conflict.own_m, claim, conflict.other_m
                    ):
                        return False
        return True

    @staticmethod
    def _in_the_way(
        vehicle: Approaching, crossing: Crossing, rank: int, start_m: float, top_mps: float,
        own_m: tuple[float, float], claim: Claim, other_m: tuple[float, float],
    ) -> bool:  # fmt: skip
        """Whether a vehicle would meet a claim that it has to respect."""
        their_end_m = claim.start_m + other_m[1] + claim.length_m
        if their_end_m < 0.0:
            return False
        admitted = claim.may_go()
        if not admitted:
            first = claim.arrived is not None and (crossing.arrived is None or claim.arrived < crossing.arrived)
            if not (claim.rank < rank or (claim.rank == rank and first)):
                return False
        hasty = min(vehicle.waited_s / PATIENCE_S, 1.0)
        margin_s = BEFORE_S + (HASTY_S - BEFORE_S) * hasty
        to_way_m = start_m - vehicle.front_m
        out_s = travel_s(to_way_m + own_m[1] + vehicle.length_m, vehicle.speed_mps, 1.4, top_mps)
        their_in_s = travel_s(claim.start_m + other_m[0], claim.speed_mps, 2.5, 1.1 * claim.top_mps)
        if out_s + margin_s < their_in_s:
            return False
        if not admitted or claim.stands:
            return True
        in_s = travel_s(to_way_m + own_m[0], vehicle.speed_mps, 2.0, top_mps)
        their_out_s = travel_s(their_end_m, claim.speed_mps, 1.0, max(0.9 * claim.top_mps, 3.0))
        return in_s < their_out_s + AFTER_S
