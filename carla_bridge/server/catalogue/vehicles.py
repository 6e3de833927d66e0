"""Vehicles, with CARLA's ids, attributes and sizes (half extents of its bounding boxes, rounded to centimetres)."""

from __future__ import annotations

from dataclasses import dataclass

from carla_bridge.server.catalogue.blueprint import DRIVER, ROLE_NAME, Attribute, Blueprint, boolean, integer, text
from carla_bridge.server.dynamics.vehicle_model import model_for
from carla_bridge.server.protocol.wire import AttributeType

EGO_ID = "vehicle.lincoln.mkz_2020"
EGO_WHEELBASE_M = 2.86
COLORS = ("180,30,30", "30,60,170", "200,200,205", "35,35,38", "235,235,235", "60,110,70")


@dataclass(frozen=True)
class _Row:
    """Row of the table; extents in metres, mass in kilograms."""

    id: str
    extent_m: tuple[float, float, float]
    mass_kg: float
    base_type: str = "car"
    generation: int = 1
    special_type: str = ""
    doors: bool = False
    lights: bool = True

    @property
    def wheels(self) -> int:
        """Number of wheels."""
        return 2 if self.base_type in ("bicycle", "motorcycle") else 4

    def blueprint(self) -> Blueprint:
        """The blueprint."""
        wheelbase_m = EGO_WHEELBASE_M if self.id == EGO_ID else None
        model = model_for(self.base_type, self.extent_m, self.mass_kg, self.wheels, wheelbase_m)
        attributes = (
            integer("number_of_wheels", self.wheels, modifiable=False),
            integer("generation", self.generation, modifiable=False),
            text("base_type", self.base_type, modifiable=False),
            text("special_type", self.special_type, modifiable=False),
            text("object_type", "", modifiable=False),
            boolean("has_lights", self.lights, modifiable=False),
            boolean("has_dynamic_doors", self.doors, modifiable=False),
            boolean("sticky_control", True),
            boolean("terramechanics", False),
            Attribute("color", AttributeType.COLOR, COLORS[0], COLORS),
            DRIVER,
            ROLE_NAME,
        )
        return Blueprint(self.id, attributes, self.extent_m, True, model)


def _car(name: str, x: float, y: float, z: float, mass_kg: float, generation: int = 1, special: str = "") -> _Row:
    """A car; those of the second generation have doors that open."""
    doors = generation == 2
    return _Row(f"vehicle.{name}", (x, y, z), mass_kg, generation=generation, special_type=special, doors=doors)


def _heavy(
    name: str, kind: str, x: float, y: float, z: float, mass_kg: float, generation: int = 2, special: str = ""
) -> _Row:
    doors = generation == 2 and kind == "van"
    return _Row(f"vehicle.{name}", (x, y, z), mass_kg, kind, generation, special, doors)


def _motorcycle(name: str, x: float, y: float, z: float, mass_kg: float) -> _Row:
    return _Row(f"vehicle.{name}", (x, y, z), mass_kg, "motorcycle")


def _bicycle(name: str, x: float, y: float, z: float) -> _Row:
    return _Row(f"vehicle.{name}", (x, y, z), 90.0, "bicycle", lights=False)


_ROWS = (
    _car("lincoln.mkz_2020", 2.45, 1.08, 0.74, 1800.0, 2),
    _car("lincoln.mkz_2017", 2.45, 1.06, 0.76, 1750.0),
    _car("tesla.model3", 2.40, 1.08, 0.74, 1850.0, 2),
    _car("audi.a2", 1.85, 0.89, 0.77, 1000.0),
    _car("audi.etron", 2.43, 1.02, 0.82, 2500.0),
    _car("audi.tt", 2.09, 1.0, 0.69, 1400.0),
    _car("bmw.grandtourer", 2.31, 1.12, 0.83, 1500.0),
    _car("chevrolet.impala", 2.68, 1.02, 0.71, 1700.0),
    _car("citroen.c3", 1.99, 0.93, 0.81, 1100.0),
    _car("dodge.charger_2020", 2.50, 1.05, 0.77, 1900.0, 2),
    _car("dodge.charger_police", 2.49, 1.02, 0.77, 1900.0, 1, "emergency"),
    _car("dodge.charger_police_2020", 2.62, 1.05, 0.82, 1950.0, 2, "emergency"),
    _car("ford.crown", 2.68, 0.90, 0.79, 1850.0, 2, "taxi"),
    _car("ford.mustang", 2.36, 0.95, 0.65, 1650.0),
    _car("jeep.wrangler_rubicon", 1.93, 0.95, 0.94, 1900.0),
    _car("mercedes.coupe", 2.51, 1.08, 0.83, 1700.0),
    _car("mercedes.coupe_2020", 2.34, 1.0, 0.72, 1700.0, 2),
    _car("micro.microlino", 1.10, 0.74, 0.69, 500.0),
    _car("mini.cooper_s", 1.90, 0.99, 0.74, 1200.0),
    _car("mini.cooper_s_2021", 2.28, 1.05, 0.88, 1300.0, 2),
    _car("nissan.micra", 1.82, 0.92, 0.75, 1050.0),
    _car("nissan.patrol", 2.30, 0.97, 0.93, 2300.0),
    _car("nissan.patrol_2021", 2.78, 1.07, 1.02, 2700.0, 2),
    _car("seat.leon", 2.10, 0.91, 0.74, 1300.0),
    _car("tesla.cybertruck", 3.14, 1.19, 1.05, 3000.0, 2),
    _car("toyota.prius", 2.26, 1.0, 0.76, 1400.0),
    _heavy("volkswagen.t2", "van", 2.24, 1.03, 1.02, 1500.0, 1),
    _heavy("volkswagen.t2_2021", "van", 2.22, 0.94, 0.99, 1500.0),
    _heavy("mercedes.sprinter", "van", 2.96, 0.99, 1.28, 2500.0),
    _heavy("ford.ambulance", "van", 3.18, 1.18, 1.22, 4000.0, 2, "emergency"),
    _heavy("carlamotors.carlacola", "truck", 2.60, 1.31, 1.23, 5500.0, 1),
    _heavy("carlamotors.european_hgv", "truck", 3.97, 1.45, 1.73, 9000.0),
    _heavy("carlamotors.firetruck", "truck", 4.23, 1.45, 1.91, 14000.0, 2, "emergency"),
    _heavy("mitsubishi.fusorosa", "bus", 5.14, 1.97, 2.13, 9000.0),
    _motorcycle("harley-davidson.low_rider", 1.18, 0.38, 0.82, 350.0),
    _motorcycle("kawasaki.ninja", 1.02, 0.40, 0.76, 260.0),
    _motorcycle("vespa.zx125", 0.91, 0.43, 0.80, 180.0),
    _motorcycle("yamaha.yzf", 1.10, 0.43, 0.77, 260.0),
    _bicycle("bh.crossbike", 0.75, 0.43, 0.81),
    _bicycle("diamondback.century", 0.83, 0.29, 0.81),
    _bicycle("gazelle.omafiets", 0.92, 0.33, 0.89),
)

VEHICLES = tuple(row.blueprint() for row in _ROWS)
