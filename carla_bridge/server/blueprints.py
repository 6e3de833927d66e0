"""The blueprint library: what may be spawned, with CARLA's ids, attributes and attribute types.

Ids and attribute names are CARLA's, so that filters such as `base_type == car` work; sizes are rounded half extents.
Sensors that are not listed cannot be spawned: a client learns at once that the embedded world has no such sensor.
"""

from __future__ import annotations

from dataclasses import dataclass

from carla_bridge.server.dialect import Dialect
from carla_bridge.server.vehicle_model import VehicleModel, model_for
from carla_bridge.server.wire import AttributeType


@dataclass(frozen=True)
class Attribute:
    """One attribute of a blueprint; `recommended` are the values a user may pick from."""

    name: str
    type: AttributeType
    default: str
    recommended: tuple[str, ...] = ()
    modifiable: bool = True

    def as_wire(self, dialect: Dialect) -> list:
        """`ActorAttribute` of the protocol."""
        type_number = dialect.first_attribute_type + self.type
        return [self.name, type_number, self.default, list(self.recommended), self.modifiable, False]


@dataclass(frozen=True)
class Blueprint:
    """One kind of actor.

    Attributes:
        id: for example `vehicle.lincoln.mkz_2020`.
        attributes: in the order a client sees them.
        extent_m: half sizes x, y, z; zeros for what has no body.
        solid: takes part in collisions.
        model: motion parameters; vehicles only.
    """

    id: str
    attributes: tuple[Attribute, ...] = ()
    extent_m: tuple[float, float, float] = (0.0, 0.0, 0.0)
    solid: bool = False
    model: VehicleModel | None = None

    def as_wire(self, uid: int, dialect: Dialect) -> list:
        """`ActorDefinition` of the protocol."""
        attributes = [attribute.as_wire(dialect) for attribute in self.attributes]
        return [uid, self.id, ",".join(self.id.split(".")), attributes]


def _bool(name: str, default: bool, modifiable: bool = True) -> Attribute:
    return Attribute(name, AttributeType.BOOL, "true" if default else "false", modifiable=modifiable)


def _int(name: str, default: int, modifiable: bool = True) -> Attribute:
    return Attribute(name, AttributeType.INT, str(default), modifiable=modifiable)


def _float(name: str, default: float) -> Attribute:
    return Attribute(name, AttributeType.FLOAT, str(default))


def _text(name: str, default: str, modifiable: bool = True) -> Attribute:
    return Attribute(name, AttributeType.STRING, default, modifiable=modifiable)


ROLE_NAME = _text("role_name", "default")
SENSOR_TICK = _float("sensor_tick", 0.0)
COLORS = ("180,30,30", "30,60,170", "200,200,205", "35,35,38", "235,235,235", "60,110,70")


@dataclass(frozen=True)
class _Car:
    """Row of the vehicle table; extents in metres, mass in kilograms."""

    id: str
    base_type: str = "car"
    extent_m: tuple[float, float, float] = (2.3, 1.0, 0.76)
    mass_kg: float = 1600.0
    wheels: int = 4
    generation: int = 2
    special_type: str = ""
    has_lights: bool = True

    def blueprint(self) -> Blueprint:
        wheelbase_m = EGO_WHEELBASE_M if self.id == EGO_ID else None
        model = model_for(self.base_type, self.extent_m, self.mass_kg, self.wheels, wheelbase_m)
        attributes = (
            _int("number_of_wheels", self.wheels, modifiable=False),
            _int("generation", self.generation, modifiable=False),
            _text("base_type", self.base_type, modifiable=False),
            _text("special_type", self.special_type, modifiable=False),
            _text("object_type", "", modifiable=False),
            _bool("has_lights", self.has_lights, modifiable=False),
            _bool("has_dynamic_doors", False, modifiable=False),
            _bool("sticky_control", True),
            _bool("terramechanics", False),
            Attribute("color", AttributeType.COLOR, COLORS[0], COLORS),
            ROLE_NAME,
        )
        return Blueprint(self.id, attributes, self.extent_m, True, model)


EGO_ID = "vehicle.lincoln.mkz_2020"
EGO_WHEELBASE_M = 2.86

_VEHICLES = (
    _Car(EGO_ID, extent_m=(2.45, 1.08, 0.74), mass_kg=1800.0),
    _Car("vehicle.tesla.model3", extent_m=(2.4, 1.08, 0.74), mass_kg=1850.0),
    _Car("vehicle.audi.tt", extent_m=(2.09, 1.0, 0.69), mass_kg=1400.0, generation=1),
    _Car("vehicle.nissan.micra", extent_m=(1.82, 0.92, 0.76), mass_kg=1050.0, generation=1),
    _Car("vehicle.nissan.patrol_2021", extent_m=(2.78, 1.08, 1.02), mass_kg=2700.0),
    _Car("vehicle.mini.cooper_s_2021", extent_m=(2.28, 1.05, 0.88), mass_kg=1300.0),
    _Car("vehicle.mercedes.coupe_2020", extent_m=(2.34, 1.0, 0.72), mass_kg=1700.0),
    _Car("vehicle.dodge.charger_2020", extent_m=(2.5, 1.05, 0.76), mass_kg=1900.0),
    _Car("vehicle.dodge.charger_police_2020", extent_m=(2.62, 1.05, 0.82), mass_kg=1950.0, special_type="emergency"),
    _Car("vehicle.ford.ambulance", "van", (3.18, 1.18, 1.22), 4000.0, special_type="emergency"),
    _Car("vehicle.mercedes.sprinter", "van", (2.96, 0.99, 1.28), 2500.0),
    _Car("vehicle.volkswagen.t2_2021", "van", (2.22, 0.94, 1.0), 1500.0),
    _Car("vehicle.carlamotors.carlacola", "truck", (2.6, 1.31, 1.24), 5500.0, generation=1),
    _Car("vehicle.mitsubishi.fusorosa", "bus", (5.14, 1.97, 2.13), 9000.0),
    _Car("vehicle.kawasaki.ninja", "motorcycle", (1.02, 0.4, 0.72), 260.0, 2, 1),
    _Car("vehicle.diamondback.century", "bicycle", (0.82, 0.25, 0.78), 90.0, 2, 1, has_lights=False),
    _Car("vehicle.bh.crossbike", "bicycle", (0.74, 0.43, 0.78), 90.0, 2, 1, has_lights=False),
)

_PROPS: dict[str, tuple[tuple[float, float, float], bool]] = {  # half extents, and whether cars bump into it
    "streetbarrier": ((0.6, 0.2, 0.5), True),
    "constructioncone": ((0.17, 0.17, 0.3), True),
    "trafficcone01": ((0.43, 0.43, 0.5), True),
    "warningconstruction": ((0.5, 0.4, 0.7), True),
    "trafficwarning": ((1.3, 1.2, 1.8), True),
    "warningaccident": ((0.5, 0.5, 0.6), True),
    "container": ((1.0, 1.0, 1.0), True),
    "vendingmachine": ((0.5, 0.45, 1.0), True),
    "advertisement": ((0.5, 0.5, 1.2), True),
    "dirtdebris01": ((1.0, 1.0, 0.05), False),
    "dirtdebris02": ((1.0, 1.0, 0.05), False),
}

_LENS = tuple(
    _float(name, default)
    for name, default in (
        ("lens_circle_falloff", 5.0), ("lens_circle_multiplier", 0.0), ("lens_k", -1.0), ("lens_kcube", 0.0),
        ("lens_x_size", 0.08), ("lens_y_size", 0.08), ("gamma", 2.2), ("shutter_speed", 200.0), ("iso", 100.0),
        ("fstop", 1.4), ("chromatic_aberration_intensity", 0.0), ("chromatic_aberration_offset", 0.0),
        ("bloom_intensity", 0.675), ("lens_flare_intensity", 0.1), ("motion_blur_intensity", 0.45),
    )
)  # fmt: skip


def _walker(number: int) -> Blueprint:
    attributes = (
        _bool("is_invincible", True),
        _text("gender", "female" if number % 2 else "male", modifiable=False),
        _text("age", "adult", modifiable=False),
        Attribute("speed", AttributeType.FLOAT, "1.4", ("0.0", "1.4", "2.8")),
        _int("generation", 1, modifiable=False),
        _bool("can_use_wheelchair", False, modifiable=False),
        ROLE_NAME,
    )
    return Blueprint(f"walker.pedestrian.{number:04d}", attributes, (0.19, 0.19, 0.93), solid=True)


def _noise(names: str) -> tuple[Attribute, ...]:
    return (*(_float(name, 0.0) for name in names.split()), _int("noise_seed", 0), SENSOR_TICK, ROLE_NAME)


def _sensors() -> tuple[Blueprint, ...]:
    camera = (
        _int("image_size_x", 800),
        _int("image_size_y", 600),
        _float("fov", 90.0),
        SENSOR_TICK,
        _bool("enable_postprocess_effects", True),
        *_LENS,
        ROLE_NAME,
    )
    imu_noise = [f"noise_{kind}_{axis}" for kind in ("accel_stddev", "gyro_stddev", "gyro_bias") for axis in "xyz"]
    gnss_noise = [f"noise_{axis}_{kind}" for kind in ("stddev", "bias") for axis in ("alt", "lat", "lon")]
    return (
        Blueprint("sensor.camera.rgb", camera),
        Blueprint("sensor.other.collision", (ROLE_NAME,)),
        Blueprint("sensor.other.lane_invasion", (ROLE_NAME,)),
        Blueprint("sensor.other.imu", _noise(" ".join(imu_noise))),
        Blueprint("sensor.other.gnss", _noise(" ".join(gnss_noise))),
    )


def _library() -> dict[str, Blueprint]:
    props = [
        Blueprint(f"static.prop.{name}", (_text("size", "medium", False), ROLE_NAME), extent_m, solid)
        for name, (extent_m, solid) in _PROPS.items()
    ]
    everything = [car.blueprint() for car in _VEHICLES] + [_walker(n) for n in range(1, 9)] + props + [*_sensors()]
    return {blueprint.id: blueprint for blueprint in everything}


LIBRARY: dict[str, Blueprint] = _library()


def definitions(dialect: Dialect) -> list:
    """`ActorDefinition` of every blueprint, as `get_actor_definitions` returns them."""
    return [blueprint.as_wire(uid, dialect) for uid, blueprint in enumerate(LIBRARY.values(), start=1)]
