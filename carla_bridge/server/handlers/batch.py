"""`apply_batch`: many commands in one request.

A command is `[[index, body]]`, a variant. One command's failure is its own result and does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from carla_bridge.server.handlers import actors, motion, signals, vehicle_parts, vehicles, walkers
from carla_bridge.server.protocol import wire
from carla_bridge.server.protocol.arguments import RpcError, optional, transform, whole
from carla_bridge.server.protocol.rpc import LOG, Envelope, Method, MethodTable
from carla_bridge.server.world import World

METHODS = MethodTable()
FUTURE_ACTOR = 0  # stands for the actor that the surrounding SpawnActor makes
SPAWN, DESTROY, CONSOLE = 0, 1, 20

_COMMANDS: dict[int, Callable[..., Any]] = {  # index of the variant -> what a single request of that kind calls
    2: vehicles.apply_control_to_vehicle,
    3: vehicles.apply_ackermann_control_to_vehicle,
    4: walkers.apply_control_to_walker,
    5: vehicle_parts.apply_physics_control,
    6: motion.set_actor_transform,
    7: walkers.set_walker_state,
    8: motion.set_actor_target_velocity,
    9: motion.set_actor_target_angular_velocity,
    10: motion.add_actor_impulse,
    11: motion.add_actor_force,
    12: motion.add_actor_angular_impulse,
    13: motion.add_actor_torque,
    14: motion.set_actor_simulate_physics,
    15: motion.set_actor_enable_gravity,
    16: actors.set_actor_autopilot,
    17: vehicles.show_vehicle_debug_telemetry,
    18: vehicles.set_vehicle_light_state,
    19: motion.set_actor_location,
    21: signals.set_traffic_light_state,
}
_METHODS = {index: Method.of(function, Envelope.VALUE) for index, function in _COMMANDS.items()}


@METHODS.returns_bare
def apply_batch(world: World, commands: list, do_tick: bool = False) -> list:
    """Run commands in order; the results are not wrapped as a whole, each is an envelope of an actor id."""
    if not isinstance(commands, list):
        raise RpcError("commands: expected a list")
    results = [_result(world, command) for command in commands]
    if do_tick:
        world.step(world.delta_s)
    return results


def _result(world: World, command: Any) -> list:
    try:
        return wire.value(_run(world, command))
    except RpcError as error:
        return wire.value_error(str(error))
    except Exception as error:
        LOG.exception("batch command failed")
        return wire.value_error(f"{type(error).__name__}: {error}")


def _run(world: World, command: Any, spawned_id: int | None = None) -> int:
    index, body = _variant(command)
    if index == SPAWN:
        return _spawn(world, body)
    if index == CONSOLE:
        return 0  # no command is recognised
    if not body:
        raise RpcError(f"batch command {index}: expected an actor id")
    actor_id = whole(body[0], "actor id")
    if actor_id == FUTURE_ACTOR and spawned_id is not None:
        actor_id = spawned_id
    arguments = body[1:]
    if index == DESTROY:
        actors.destroy(world, actor_id)
    elif index in _METHODS:
        method = _METHODS[index]
        if not method.accepts(len(body)):
            raise RpcError(f"batch command {index}: cannot be called with {len(arguments)} arguments")
        method.function(world, actor_id, *arguments)
    else:
        raise RpcError(f"batch command {index} is not known to the embedded server")
    return actor_id


def _spawn(world: World, body: list) -> int:
    fields = world.dialect.batch_spawn_fields
    if len(body) != fields:
        raise RpcError(f"SpawnActor: expected {fields} fields in CARLA {world.dialect.version}, got {len(body)}")
    parent_id = optional(body[2], "parent")
    actor = world.spawn(body[0], transform(body[1]), None if parent_id is None else whole(parent_id, "parent"))
    for command in body[-1] if isinstance(body[-1], list) else ():
        try:
            _run(world, command, spawned_id=actor.id)
        except RpcError as error:  # the actor is there: as in CARLA its id is the answer
            LOG.warning("a command after a spawn failed: %s", error)
        except Exception:
            LOG.exception("a command after a spawn failed")
    return actor.id


def _variant(command: Any) -> tuple[int, list]:
    if (
        not isinstance(command, list)
        or len(command) != 1
        or not isinstance(command[0], list)
        or len(command[0]) != 2
        or not isinstance(command[0][1], list)
    ):
        raise RpcError("command: expected [[index, body]]")
    return whole(command[0][0], "command index"), command[0][1]
