"""What differs between the CARLA versions whose clients the server can talk to.

A client does not say its version before it has read the world-state stream, which is among the things that differ; so
the dialect is chosen when the server starts. Everything that is not named here is the same in all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from wamdiff2_core.errors import unknown_name


@dataclass(frozen=True)
class Dialect:
    """The wire of one CARLA version.

    Attributes:
        version: what `get_server_version` returns; a client of another version warns.
        world_state_type: sensor type of the world-state stream; a client that is sent another one dies.
        first_attribute_type: number of the first blueprint attribute type, bool; the others follow in order.
        batch_spawn_fields: fields of the batch command `SpawnActor`; the first three and the last mean the same.
    """

    version: str
    world_state_type: int
    first_attribute_type: int
    batch_spawn_fields: int


DIALECTS = {
    dialect.version: dialect
    for dialect in (
        Dialect("0.9.15", world_state_type=16, first_attribute_type=0, batch_spawn_fields=4),
        Dialect("0.9.16", world_state_type=17, first_attribute_type=1, batch_spawn_fields=6),
    )
}
DEFAULT_VERSION = "0.9.16"


def dialect_of(version: str) -> Dialect:
    """The dialect of a CARLA version.

    Raises:
        UserError: the server does not speak it.
    """
    if version not in DIALECTS:
        raise unknown_name("--client-version", version, DIALECTS)
    return DIALECTS[version]
