"""Motion and collisions of everybody, against conservation laws and closed forms; no sockets, no town."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carla_bridge.server.actors.actor import Actor
from carla_bridge.server.actors.spawning import make_actor
from carla_bridge.server.actors.vehicle import Vehicle
from carla_bridge.server.actors.walker import Walker
from carla_bridge.server.contact.contacts import Hit, Scenery
from carla_bridge.server.contact.physics import Physics
from carla_bridge.server.dynamics.collisions import overlap
from carla_bridge.server.dynamics.motion import Pedals
from carla_bridge.server.geometry.poses import Pose
from carla_bridge.server.geometry.scene import BoxKind, StaticBox

MKZ, BUS = "vehicle.lincoln.mkz_2020", "vehicle.mitsubishi.fusorosa"
CONE, WALKER = "static.prop.constructioncone", "walker.pedestrian.0001"
DT_S = 0.05


class Stage:
    """Actors in an empty place."""

    def __init__(self, *scenery: StaticBox, height_m: object = None) -> None:
        self.physics = Physics(Scenery(scenery), height_m)  # type: ignore[arg-type]
        self.actors: dict[int, Actor] = {}
        self.time_s = 0.0

    def add(self, type_id: str, x: float, y: float = 0.0, yaw: float = 0.0, z: float = 0.0, **attributes: str) -> Actor:
        description = [0, type_id, [[name, 4, value] for name, value in attributes.items()]]
        if type_id.startswith("walker.") and z == 0.0:
            z = 0.93
        actor = make_actor(len(self.actors) + 1, description, Pose(x, y, z, yaw=yaw), random.Random(0))
        self.actors[actor.id] = actor
        return actor

    def car(self, x: float, y: float = 0.0, yaw: float = 0.0, speed: float = 0.0, type_id: str = MKZ) -> Vehicle:
        car = self.add(type_id, x, y, yaw)
        assert isinstance(car, Vehicle)
        car.motion.speed_mps = speed
        return car

    def run(self, seconds: float) -> list[Hit]:
        hits = []
        for _ in range(round(seconds / DT_S)):
            self.time_s += DT_S
            hits += self.physics.step(self.actors, DT_S, self.time_s)
        return hits


def wall(x: float, y: float = 0.0, yaw: float = 0.0, half_x: float = 0.1, half_y: float = 20.0) -> StaticBox:
    return StaticBox(BoxKind.BUILDING, x, y, 2.0, yaw, half_x, half_y, 2.0, (0, 0, 0))


def of(hits: list[Hit], actor: Actor) -> list[Hit]:
    return [hit for hit in hits if hit.actor is actor]


def kinetic_energy(car: Vehicle) -> float:
    vx, vy, rate = car.planar_velocity()
    return 0.5 * car.mass_kg * (vx * vx + vy * vy + car.model.gyration_m2 * rate * rate)


@pytest.mark.parametrize("dt_s", [0.02, 0.1, 1.0])
def test_long_and_short_ticks_stop_at_the_same_wall_once(dt_s: float) -> None:
    stage = Stage(wall(25.0))
    car = stage.car(0.0, speed=30.0)
    hits = []
    for _ in range(round(4.0 / dt_s)):
        stage.time_s += dt_s
        hits += stage.physics.step(stage.actors, dt_s, stage.time_s)
    assert len(of(hits, car)) == 1
    assert car.pose.x + 2.45 == pytest.approx(24.9, abs=0.02)
    assert car.velocity[0] == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("offset", [0.0, 0.013, 0.37, 0.8, 1.2])
@pytest.mark.parametrize("what", [CONE, WALKER, "lamp", "wall"])
def test_nothing_is_passed_through_at_30_mps(what: str, offset: float) -> None:
    thing = StaticBox(BoxKind.LAMP, 12.0 + offset, 0.0, 2.0, 0.0, 0.08, 0.08, 2.0, (0, 0, 0))
    stage = Stage(*({"lamp": [thing], "wall": [wall(12.0 + offset)]}.get(what, [])))
    if what in (CONE, WALKER):
        stage.add(what, 12.0 + offset)
    car = stage.car(0.0, speed=30.0)
    hits = of(stage.run(3.0), car)
    assert len(hits) == 1
    if what != WALKER:  # a walker is no obstacle for two tons
        assert car.pose.x + 2.45 <= 12.2 + offset
        assert hits[0].impulse_ns[0] == pytest.approx(-1800 * 30, rel=0.02)


def test_head_on_crash_at_60_mps_is_not_missed_and_stops_both() -> None:
    stage = Stage()
    one, other = stage.car(0.0, speed=30.0), stage.car(80.0, yaw=180.0, speed=30.0)
    hits = stage.run(2.0)
    assert len(of(hits, one)) == len(of(hits, other)) == 1
    assert one.pose.x + 2.45 <= other.pose.x - 2.45 + 0.02
    assert abs(one.velocity[0]) < 0.5


def test_rear_end_push_keeps_momentum_and_moves_a_parked_car() -> None:
    stage = Stage()
    back, front = stage.car(0.0, speed=8.0), stage.car(5.2, type_id="vehicle.nissan.micra")
    stage.run(DT_S * 2)
    total = 1800 * back.motion.speed_mps + 1050 * front.motion.speed_mps
    assert total == pytest.approx(1800 * 8.0, rel=0.01)
    stage.run(3.0)
    assert front.pose.x > 15.0
    assert abs(front.pose.y) < 0.05


def test_parked_car_with_its_hand_brake_on_is_pushed_less_far() -> None:
    places = []
    for hand_brake in (False, True):
        stage = Stage()
        stage.car(0.0, speed=8.0)
        parked = stage.car(6.0)
        parked.pedals = Pedals(hand_brake=hand_brake)
        stage.run(4.0)
        places.append(parked.pose.x)
    assert 6.1 < places[1] < places[0] - 2.0


def test_blow_off_the_middle_turns_the_car_it_hits() -> None:
    stage = Stage()
    stage.car(0.0, -7.0, yaw=90.0, speed=10.0)
    struck = stage.car(-1.7)  # hit on its front half, from its left side
    stage.run(0.5)
    assert struck.motion.yaw_rad > 0.1
    struck.pedals = Pedals(brake=1.0)
    stage.run(4.0)
    assert struck.planar_velocity() == (0.0, 0.0, 0.0)


def test_sideways_blow_is_braked_by_the_tyres() -> None:
    stage = Stage()
    stage.car(0.0, -8.0, yaw=90.0, speed=10.0)
    struck = stage.car(0.0)
    stage.run(3.0)
    together = 10.0 / 2
    assert 0.3 < struck.pose.y < together**2 / (2 * 4.0)
    assert not struck.motion.sliding


def test_scraping_along_a_wall_is_one_event_and_slows_down() -> None:
    stage = Stage(wall(0.0, 2.0, yaw=90.0, half_y=200.0))
    car = stage.car(-100.0, 0.0, yaw=3.0, speed=15.0)
    car.pedals = Pedals(throttle=0.3, steer=0.02)
    hits = of(stage.run(12.0), car)
    assert len(hits) == 1
    assert hits[0].other_type == "static.building"
    assert car.pose.x > 0.0


def test_contact_is_one_event_until_the_two_have_been_apart_for_a_while() -> None:
    stage = Stage(wall(8.0))
    car = stage.car(0.0, speed=4.0)
    car.pedals = Pedals(throttle=0.4)
    assert len(of(stage.run(8.0), car)) == 1  # it leans on the wall
    car.pedals = Pedals(throttle=0.4, reverse=True)
    assert of(stage.run(2.5), car) == []
    car.pedals = Pedals(throttle=0.4)
    assert len(of(stage.run(6.0), car)) == 1


def test_destroyed_partner_leaves_no_memory() -> None:
    stage = Stage()
    car, other = stage.car(0.0, speed=5.0), stage.car(5.0)
    assert len(of(stage.run(0.3), car)) == 1
    del stage.actors[other.id]
    stage.physics.contacts.forget(other.id)
    assert stage.physics.contacts._touched_s == {}


def test_row_of_touching_cars_stays_where_it_is() -> None:
    stage = Stage(wall(0.0))
    cars = [stage.car(2.55 + 4.9 * i - 0.05 * i) for i in range(6)]  # each 5 cm inside the next
    stage.run(5.0)
    assert max(abs(car.velocity[0]) for car in cars) < 1e-3
    assert cars[-1].pose.x < 2.55 + 4.9 * 5 + 0.1
    for a, b in itertools.pairwise(cars):
        contact = overlap(a.box(), b.box())
        assert contact is None or contact.depth_m < 0.03


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_pile_up_loses_energy_and_comes_to_rest(seed: int) -> None:
    rng = random.Random(seed)
    stage = Stage()
    cars = []
    for i in range(6):
        angle = i * math.pi / 3 + rng.uniform(-0.2, 0.2)
        heading = math.degrees(angle) + 180 + rng.uniform(-15, 15)
        type_id = rng.choice([MKZ, BUS, "vehicle.kawasaki.ninja", "vehicle.audi.tt"])
        cars.append(
            stage.car(14 * math.cos(angle), 14 * math.sin(angle), heading, rng.uniform(3, 20), type_id)
        )
    energy = sum(map(kinetic_energy, cars))
    for _ in range(120):
        stage.run(DT_S)
        now = sum(map(kinetic_energy, cars))
        assert now <= energy * (1 + 1e-9) + 1e-6
        energy = now
    for car in cars:
        car.pedals = Pedals(brake=1.0)
    stage.run(8.0)
    assert sum(map(kinetic_energy, cars)) < 1.0
    for i, a in enumerate(cars):
        for b in cars[:i]:
            contact = overlap(a.box(), b.box())
            assert contact is None or contact.depth_m < 0.1


def test_cars_on_a_bridge_and_below_it_do_not_meet() -> None:
    stage = Stage()
    low, high = stage.car(0.0, speed=10.0), stage.car(40.0, yaw=180.0, speed=10.0)
    high.gravity, high.pose.z = False, 6.0
    assert stage.run(4.0) == []
    assert low.pose.x > high.pose.x


def test_walker_hit_is_thrown_and_gets_up_after_a_while() -> None:
    stage = Stage()
    car, walker = stage.car(0.0, speed=12.0), stage.add(WALKER, 10.0)
    assert isinstance(walker, Walker)
    walker.direction, walker.speed_mps = (0.0, 1.0, 0.0), 0.5
    car.pedals = Pedals(brake=1.0)
    hits = stage.run(2.0)
    assert len(of(hits, car)) == len(of(hits, walker)) == 1
    assert walker.down
    assert walker.pose.x > 13.0
    assert walker.pose.z < 0.5
    assert car.motion.speed_mps > 11.0 or car.motion.speed_mps == 0.0
    stage.run(7.0)
    assert not walker.down
    assert (walker.pose.z, walker.pose.pitch) == pytest.approx((0.93, 0.0))


@pytest.mark.parametrize("simulated", [True, False])
def test_blow_without_a_part_in_the_plane_knocks_nobody_down(simulated: bool) -> None:
    stage = Stage()
    walker = stage.add(WALKER, 10.0)
    assert isinstance(walker, Walker)
    walker.simulated = simulated
    walker.kick(0.0, 0.0, 1.0)
    assert not walker.down


def test_walker_who_is_not_invincible_stays_down() -> None:
    stage = Stage()
    car, walker = stage.car(0.0, speed=8.0), stage.add(WALKER, 6.0, is_invincible="false")
    car.pedals = Pedals(brake=1.0)
    stage.run(12.0)
    assert isinstance(walker, Walker)
    assert walker.down


def test_walker_cannot_walk_through_a_car_and_does_not_fall_over_it() -> None:
    stage = Stage()
    car, walker = stage.car(0.0), stage.add(WALKER, 0.0, -4.0)
    assert isinstance(walker, Walker)
    walker.direction, walker.speed_mps = (0.0, 1.0, 0.0), 1.4
    stage.run(6.0)
    assert not walker.down
    assert walker.pose.y < car.pose.y - 1.0


def test_passing_close_by_does_not_change_the_way_a_car_drives() -> None:
    alone, together = Stage(), Stage()
    together.car(30.0, 2.4)
    cars = [stage.car(0.0, speed=10.0) for stage in (alone, together)]
    for stage, car in zip((alone, together), cars, strict=True):
        car.pedals = Pedals(throttle=0.4, steer=-0.02)
        assert stage.run(5.0) == []
    assert cars[0].pose.as_transform()[0] == pytest.approx(cars[1].pose.as_transform()[0], abs=1e-9)


def test_pushing_against_a_held_speed_is_an_event_and_the_holder_does_not_give_way() -> None:
    stage = Stage()
    holder, other = stage.car(0.0), stage.car(12.0)
    holder.constant_velocity = (6.0, 0.0, 0.0)
    hits = stage.run(4.0)
    assert len(of(hits, other)) == 1
    assert holder.velocity[0] == 6.0
    assert other.pose.x > holder.pose.x + 4.8


def slope(gradient: float) -> object:
    return lambda x, y, near_z: gradient * x


def test_vehicle_takes_the_pitch_and_roll_of_the_ground_and_its_height() -> None:
    angle = math.degrees(math.atan(0.1))
    for yaw, pitch, roll in ((0.0, angle, 0.0), (180.0, -angle, 0.0), (90.0, 0.0, angle), (-90.0, 0.0, -angle)):
        stage = Stage(height_m=slope(0.1))
        car = stage.car(20.0, yaw=yaw)
        car.pose.z, car.pedals, car.motion.brake_mps2 = 2.5, Pedals(brake=1.0), 8.0
        stage.run(4.0)
        assert (car.pose.pitch, car.pose.roll) == pytest.approx((pitch, roll), abs=0.01)
        assert car.pose.z == pytest.approx(0.1 * car.pose.x, abs=1e-6)
        assert car.velocity == (0.0, 0.0, 0.0)


def test_vehicle_driven_over_a_crest_keeps_to_the_ground_and_its_velocity_follows_the_slope() -> None:
    stage = Stage(height_m=lambda x, y, near_z: 3.0 * math.exp(-(((x - 60.0) / 20.0) ** 2)))
    car = stage.car(0.0, speed=12.0)
    car.constant_velocity = (12.0, 0.0, 0.0)
    for _ in range(240):
        before = car.pose.z
        stage.run(DT_S)
        assert car.grounded
        assert car.velocity[2] == pytest.approx((car.pose.z - before) / DT_S, abs=0.25)
        assert math.hypot(*car.velocity) == pytest.approx(12.0, abs=0.05)
    assert car.pose.z == pytest.approx(0.0, abs=0.02)


def test_free_vehicle_rolls_down_and_gains_the_height_it_loses() -> None:
    stage = Stage(height_m=slope(-0.08))
    car = stage.car(0.0)
    stage.run(6.0)
    dropped = -car.pose.z
    travelled = car.pose.x / math.cos(math.atan(0.08))
    gained = 9.81 * dropped - car.model.rolling_mps2 * travelled
    assert 0.5 * car.motion.speed_mps**2 == pytest.approx(gained, rel=0.02)


def test_friction_trigger_and_wet_road_lengthen_braking() -> None:
    def stopping_place(water: float, friction: str | None) -> float:
        stage = Stage()
        stage.physics.terrain.wet(water)
        if friction is not None:
            extents = {f"extent_{axis}": "10000" for axis in "xyz"}
            stage.add("static.trigger.friction", 40.0, friction=friction, **extents)
        car = stage.car(0.0, speed=20.0)
        car.pedals = Pedals(brake=1.0)
        stage.run(12.0)
        return car.pose.x

    dry = stopping_place(0.0, None)
    assert stopping_place(0.0, "3.5") == pytest.approx(dry)
    assert stopping_place(1.0, None) > dry + 3.0
    assert stopping_place(0.0, "1.0") > 2 * dry
    assert 155.0 < stopping_place(0.0, "0.0") < 140.0 + dry  # the ice ends at 140 m


def test_state_stays_finite_whatever_is_written_into_it() -> None:
    stage = Stage()
    car = stage.car(1.0, 2.0, yaw=30.0)
    car.pedals = Pedals(math.nan, math.nan, math.nan)
    stage.run(0.2)
    car.pedals = Pedals(throttle=1.0)
    stage.run(1.0)
    assert math.isfinite(car.pose.x + car.pose.y + car.pose.yaw + sum(car.velocity))
    assert car.motion.speed_mps > 1.0
    car.set_velocity((1e30, -1e30, 1e30))
    car.set_yaw_rate(1e30)
    stage.run(1.0)
    assert math.isfinite(car.pose.x + car.pose.y + car.pose.yaw + sum(car.velocity))


def test_same_commands_give_bitwise_the_same_pile_up() -> None:
    def places() -> list[tuple]:
        rng = random.Random(4)
        stage = Stage(wall(25.0), height_m=lambda x, y, *z: 0.02 * x)
        for i in range(8):
            stage.car(8.0 * (i % 4) - 12.0, 9.0 * (i // 4) - 4.0, rng.uniform(-180, 180), rng.uniform(0, 20))
            stage.add(WALKER, 8.0 * (i % 4) - 8.0, 9.0 * (i // 4) - 8.0)
        seen = []
        for tick in range(100):
            for actor in stage.actors.values():
                if isinstance(actor, Vehicle):
                    actor.pedals = Pedals(0.5, math.sin(0.1 * tick + actor.id))
            hits = stage.run(DT_S)
            seen.append((*(a.pose.as_transform() for a in stage.actors.values()), *(h.impulse_ns for h in hits)))
        return seen

    assert places() == places()


@pytest.mark.parametrize("turns", [-360.0, 0.0, 360.0, 720.0])
def test_angles_of_full_turns_are_none(turns: float) -> None:
    stage = Stage()
    car = stage.car(0.0, yaw=turns - 90.0)
    car.place(Pose(0.0, 0.0, 0.3, pitch=turns, yaw=turns - 90.0, roll=turns))
    for _ in range(20):
        stage.run(DT_S)
        assert (car.pose.pitch, car.pose.yaw, car.pose.roll) == pytest.approx((0.0, -90.0, 0.0))
        assert car.angular_velocity == (0.0, 0.0, 0.0)


def test_a_vehicle_placed_anew_drives_on_as_a_new_one_whatever_it_did_before() -> None:
    stage = Stage()
    used, fresh = stage.car(0.0, speed=12.0), stage.car(500.0, 0.0)
    used.pedals = Pedals(throttle=0.3, steer=0.8, brake=0.9)
    stage.run(0.3)
    used.place(Pose(0.0, 0.0, 0.0))
    used.set_yaw_rate(0.0)
    for car in (used, fresh):
        car.set_velocity((8.0, 0.0, 0.0))
        car.pedals = Pedals(throttle=0.5)
    stage.run(0.5)
    assert (used.motion.x_m, used.motion.speed_mps) == pytest.approx(
        (fresh.motion.x_m - 500.0, fresh.motion.speed_mps), abs=1e-9
    )
    assert (used.motion.y_m, used.motion.yaw_rad, used.motion.sliding) == (0.0, 0.0, False)


def test_a_prop_without_physics_stays_where_it_is_and_falls_when_it_gets_it_back() -> None:
    stage = Stage()
    ball = stage.add(CONE, 0.0, z=5.0)
    ball.simulated = False
    ball.set_velocity((3.0, 0.0, 0.0))
    stage.run(1.0)
    assert (ball.pose.x, ball.pose.z, ball.velocity) == (0.0, 5.0, (0.0, 0.0, 0.0))
    ball.simulated = True
    stage.run(2.0)
    assert ball.pose.z == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("start_m", [0.1, 2.0, 4.0, 6.0, 7.9])
def test_a_post_stops_the_fastest_car_wherever_it_comes_from(start_m: float) -> None:
    for ahead_m in (3.0, 5.0, 7.0, 8.6, 9.7, 11.0):
        stage = Stage(StaticBox(BoxKind.POLE, start_m + ahead_m, 0.0, 2.0, 0.0, 0.08, 0.08, 2.0, (0, 0, 0)))
        car = stage.car(start_m)
        car.set_velocity((1e6, 0.0, 0.0))
        stage.run(0.5)
        assert car.pose.x < start_m + ahead_m - 2.0
        assert abs(car.motion.speed_mps) < 1.0


@pytest.mark.parametrize("distance_m", [4.0, 9.3, 11.0, 12.5, 30.0])
def test_nothing_passes_a_wall_in_one_tick(distance_m: float) -> None:
    for y in (0.0, 3.0, 6.1):
        stage = Stage(wall(distance_m), wall(distance_m + 40.0))
        car = stage.car(0.0, y)
        car.set_velocity((1e6, 0.0, 0.0))
        held = stage.car(-0.1, y + 7.0)
        held.constant_velocity = (1e6, 0.0, 0.0)
        walker = stage.add(WALKER, 0.0, y - 7.0)
        assert isinstance(walker, Walker)
        walker.direction, walker.speed_mps = (1.0, 0.0, 0.0), 12.0
        stage.physics.step(stage.actors, DT_S, DT_S)
        stage.time_s = DT_S
        hits = [hit.actor for hit in stage.run(5.0)]
        assert car.pose.x < distance_m
        assert walker.pose.x < distance_m
        assert held in hits or held.pose.x < distance_m
