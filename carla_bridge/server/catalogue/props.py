"""Walkers, props and triggers, with CARLA's ids and attributes; sizes of props are half extents in metres."""

from __future__ import annotations

from carla_bridge.server.catalogue.blueprint import (
    DRIVER,
    ROLE_NAME,
    Attribute,
    Blueprint,
    boolean,
    integer,
    real,
    text,
)
from carla_bridge.server.protocol.wire import AttributeType

Extent = tuple[float, float, float]

WALKERS_COUNT = 51
_TODDLERS = frozenset((9, 10, 11, 48, 49))
_CHILDREN = frozenset((12, 13, 14))
_ADULT_M: Extent = (0.19, 0.19, 0.93)
_CHILD_M: Extent = (0.19, 0.19, 0.65)
_TODDLER_M: Extent = (0.25, 0.25, 0.55)

_SOLID: dict[str, Extent] = {
    "advertisement": (0.5, 0.5, 1.2), "atm": (0.4, 0.4, 0.8), "barbeque": (0.5, 0.3, 0.5), "barrel": (0.3, 0.3, 0.45),
    "bench01": (0.8, 0.3, 0.45), "bench02": (0.8, 0.3, 0.45), "bench03": (0.8, 0.3, 0.45),
    "bikeparking": (1.0, 0.3, 0.45), "bin": (0.25, 0.25, 0.5), "box01": (0.3, 0.3, 0.3), "box02": (0.3, 0.3, 0.3),
    "box03": (0.3, 0.3, 0.3), "briefcase": (0.25, 0.1, 0.2), "busstop": (2.0, 0.9, 1.4),
    "chainbarrier": (0.75, 0.1, 0.4), "chainbarrierend": (0.1, 0.1, 0.4), "clothcontainer": (0.6, 0.5, 0.9),
    "clothesline": (1.0, 0.3, 0.8), "constructioncone": (0.17, 0.17, 0.3), "container": (1.0, 1.0, 1.0),
    "creasedbox01": (0.3, 0.3, 0.25), "creasedbox02": (0.3, 0.3, 0.25), "creasedbox03": (0.3, 0.3, 0.25),
    "doghouse": (0.5, 0.6, 0.5), "fountain": (1.5, 1.5, 1.0), "garbage01": (0.3, 0.3, 0.2),
    "gardenlamp": (0.1, 0.1, 0.4), "glasscontainer": (0.6, 0.6, 0.8), "gnome": (0.1, 0.1, 0.2),
    "haybale": (0.6, 0.4, 0.4), "kiosk_01": (1.2, 1.2, 1.4), "mailbox": (0.2, 0.2, 0.6), "maptable": (0.6, 0.4, 0.5),
    "motorhelmet": (0.15, 0.15, 0.13), "plantpot01": (0.3, 0.3, 0.4), "plasticchair": (0.3, 0.3, 0.45),
    "plastictable": (0.6, 0.6, 0.4), "platformgarbage01": (0.5, 0.5, 0.3), "pushchair": (0.3, 0.5, 0.5),
    "shop01": (1.0, 1.0, 1.2), "shoppingcart": (0.3, 0.5, 0.5), "slide": (1.5, 0.5, 1.0),
    "streetbarrier": (0.6, 0.2, 0.5), "streetfountain": (0.3, 0.3, 0.5), "streetsign": (0.4, 0.1, 1.2),
    "streetsign01": (0.4, 0.1, 1.2), "streetsign04": (0.4, 0.1, 1.2), "swing": (1.5, 0.8, 1.1),
    "table": (0.7, 0.4, 0.4), "trafficcone01": (0.43, 0.43, 0.5), "trafficcone02": (0.2, 0.2, 0.4),
    "trafficwarning": (1.3, 1.2, 1.8), "trampoline": (1.5, 1.5, 0.4), "trashbag": (0.3, 0.3, 0.3),
    "trashcan01": (0.3, 0.3, 0.5), "trashcan02": (0.3, 0.3, 0.5), "trashcan03": (0.6, 0.5, 0.6),
    "trashcan04": (0.3, 0.3, 0.5), "trashcan05": (0.3, 0.3, 0.5), "travelcase": (0.25, 0.15, 0.35),
    "vendingmachine": (0.5, 0.45, 1.0), "warningaccident": (0.5, 0.5, 0.6), "warningconstruction": (0.5, 0.4, 0.7),
    "wateringcan": (0.2, 0.1, 0.15),
}  # fmt: skip
_FLAT: dict[str, Extent] = {  # cars drive over these
    "dirtdebris01": (1.0, 1.0, 0.05), "dirtdebris02": (1.0, 1.0, 0.05), "dirtdebris03": (1.0, 1.0, 0.05),
    "brokentile01": (0.2, 0.2, 0.03), "brokentile02": (0.2, 0.2, 0.03), "brokentile03": (0.2, 0.2, 0.03),
    "brokentile04": (0.2, 0.2, 0.03), "colacan": (0.03, 0.03, 0.06), "garbage02": (0.1, 0.1, 0.05),
    "garbage03": (0.1, 0.1, 0.05), "garbage04": (0.1, 0.1, 0.05), "garbage05": (0.1, 0.1, 0.05),
    "garbage06": (0.1, 0.1, 0.05), "ironplank": (0.6, 0.4, 0.03),
}  # fmt: skip
_PARKED_CAR_M: Extent = (2.3, 0.95, 0.75)  # `static.prop.mesh` names a mesh by path: what it stands for is a parked car


def _walker(number: int) -> Blueprint:
    extent_m, age = _ADULT_M, "adult"
    if number in _TODDLERS:
        extent_m, age = _TODDLER_M, "child"
    elif number in _CHILDREN:
        extent_m, age = _CHILD_M, "child"
    attributes = (
        boolean("is_invincible", True),
        text("gender", "female" if number % 2 else "male", modifiable=False),
        text("age", age, modifiable=False),
        Attribute("speed", AttributeType.FLOAT, "1.4", ("0.0", "1.4", "2.8")),
        integer("generation", 1, modifiable=False),
        boolean("can_use_wheelchair", False, modifiable=False),
        DRIVER,
        ROLE_NAME,
    )
    return Blueprint(f"walker.pedestrian.{number:04d}", attributes, extent_m, solid=True)


def _prop(name: str, extent_m: Extent, solid: bool, *more: Attribute) -> Blueprint:
    size = "small" if max(extent_m) < 0.3 else "medium" if max(extent_m) < 1.0 else "big"
    return Blueprint(f"static.prop.{name}", (text("size", size, False), *more, ROLE_NAME), extent_m, solid)


WALKERS = tuple(_walker(number) for number in range(1, WALKERS_COUNT + 1))
CONTROLLER = Blueprint(
    "controller.ai.walker",
    (ROLE_NAME,),
    missing="there is no pedestrian navigation mesh; spawn the walker with driver=server, or steer it by WalkerControl",
)
PROPS = (
    *(_prop(name, extent_m, True) for name, extent_m in _SOLID.items()),
    *(_prop(name, extent_m, False) for name, extent_m in _FLAT.items()),
    _prop("mesh", _PARKED_CAR_M, True, text("mesh_path", ""), real("mass", 0.0), real("scale", 1.0)),
    Blueprint(
        "static.trigger.friction",
        (real("friction", 3.5), real("extent_x", 1.0), real("extent_y", 1.0), real("extent_z", 1.0), ROLE_NAME),
    ),
)
