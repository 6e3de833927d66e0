"""A blueprint: what kind of actor may be spawned, and the attributes a client sees and sets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from carla_bridge.server.dynamics.vehicle_model import VehicleModel
from carla_bridge.server.protocol.arguments import LARGEST_NUMBER
from carla_bridge.server.protocol.dialect import Dialect
from carla_bridge.server.protocol.wire import AttributeType


@dataclass(frozen=True)
class Attribute:
    """One attribute of a blueprint; `recommended` are the values a user may pick from, `limits` those of a number."""

    name: str
    type: AttributeType
    default: str
    recommended: tuple[str, ...] = ()
    modifiable: bool = True
    limits: tuple[float, float] = (-LARGEST_NUMBER, LARGEST_NUMBER)

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
        missing: why it cannot be spawned although clients may look it up; empty when it can.
    """

    id: str
    attributes: tuple[Attribute, ...] = ()
    extent_m: tuple[float, float, float] = (0.0, 0.0, 0.0)
    solid: bool = False
    model: VehicleModel | None = None
    missing: str = ""

    def check(self, values: Iterable[tuple[str, str]]) -> None:
        """Check values that a client gives to attributes; unknown attributes may have any.

        Raises:
            ValueError: a value is none of its attribute's type, a number outside of its limits, or no known driver.
        """
        known = {attribute.name: attribute for attribute in self.attributes}
        for name, value in values:
            if name == DRIVER.name and value not in DRIVER.recommended:
                raise ValueError(f"{name}: expected {' or '.join(DRIVER.recommended)}, got {value!r}")
            if name in known and known[name].type in (AttributeType.INT, AttributeType.FLOAT):
                read = int if known[name].type is AttributeType.INT else float
                least, most = known[name].limits
                try:
                    fits = least <= read(value) <= most
                except ValueError:
                    fits = False
                if not fits:
                    raise ValueError(f"{name}: expected {read.__name__} from {least:.9g} to {most:.9g}, got {value!r}")

    def as_wire(self, uid: int, dialect: Dialect) -> list:
        """`ActorDefinition` of the protocol."""
        attributes = [attribute.as_wire(dialect) for attribute in self.attributes]
        return [uid, self.id, ",".join(self.id.split(".")), attributes]


def boolean(name: str, default: bool, modifiable: bool = True) -> Attribute:
    """A bool attribute."""
    return Attribute(name, AttributeType.BOOL, "true" if default else "false", modifiable=modifiable)


def integer(
    name: str, default: int, modifiable: bool = True, limits: tuple[float, float] = Attribute.limits
) -> Attribute:
    """An int attribute."""
    return Attribute(name, AttributeType.INT, str(default), modifiable=modifiable, limits=limits)


def real(name: str, default: float, limits: tuple[float, float] = Attribute.limits) -> Attribute:
    """A float attribute."""
    return Attribute(name, AttributeType.FLOAT, str(default), limits=limits)


def text(name: str, default: str, modifiable: bool = True, recommended: tuple[str, ...] = ()) -> Attribute:
    """A string attribute."""
    return Attribute(name, AttributeType.STRING, default, recommended, modifiable)


ROLE_NAME = text("role_name", "default")
DRIVER = text("driver", "client", recommended=("client", "server"))  # who moves it; not an attribute of CARLA
