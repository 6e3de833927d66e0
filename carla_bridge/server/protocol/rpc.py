"""msgpack-rpc: reading requests off a connection, calling the method, sending the envelope.

A request is `[0, id, method, [metadata, *arguments]]`; messages carry no length, so a streaming unpacker finds their
ends. Whatever cannot be a request closes that one connection; whatever goes wrong inside a method becomes an error
envelope of the kind the method's client stub expects. A method whose work takes seconds returns `Later`: its connection
waits, others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import socket
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import msgpack

from carla_bridge.server.protocol import wire
from carla_bridge.server.protocol.arguments import RpcError
from carla_bridge.server.protocol.doorkeeper import Doorkeeper
from carla_bridge.server.protocol.worker import Worker

LOG = logging.getLogger(__name__)
MAX_MESSAGE_BYTES = 64 << 20  # an OpenDRIVE text may be long
FIRST_BUFFER_BYTES = 1 << 14  # not the library's megabyte for each connection
MAX_ITEMS = 1 << 16  # unpacking reserves memory for the claimed length of an array: random bytes must not claim more
REQUESTS_PER_TURN = 16
REQUEST, RESPONSE, NOTIFICATION = 0, 1, 2
_NO_MORE = object()
_PACKER = msgpack.Packer(unicode_errors="surrogateescape")  # one for all: a megabyte each, and all in one thread

F = TypeVar("F", bound=Callable[..., Any])


class Envelope(Enum):
    """How a method's result and failure are wrapped."""

    VALUE = "value"
    VOID = "void"
    BARE = "bare"  # the result is sent as it is; a failure goes to the error slot


@dataclass(frozen=True)
class Later:
    """What a method returns that has long work to do before it can have a result.

    Attributes:
        work: done in another thread, one after the other, where it must not touch the world; or what is done already.
        then: takes what `work` returned, in the world's thread, and returns the method's result, or what is left to do;
            what `work` raises is the method's failure.
    """

    work: Callable[[], Any] | Future[Any]
    then: Callable[[Any], Any]


@dataclass(frozen=True)
class Method:
    """A registered RPC: `function(world, *arguments)`."""

    function: Callable[..., Any]
    envelope: Envelope
    min_arguments: int
    max_arguments: float

    @classmethod
    def of(cls, function: Callable[..., Any], envelope: Envelope) -> Method:
        """A function, with what its signature says about its arguments."""
        parameters = list(inspect.signature(function).parameters.values())[1:]
        positional = [p for p in parameters if p.kind is not p.VAR_POSITIONAL]
        least = sum(p.default is p.empty for p in positional)
        most = len(positional) if len(positional) == len(parameters) else float("inf")
        return cls(function, envelope, least, most)

    def accepts(self, count: int) -> bool:
        """Whether it can be called with this many arguments."""
        return self.min_arguments <= count <= self.max_arguments


class MethodTable(dict[str, Method]):
    """RPC methods by name; the decorators register a function under its own name."""

    def returns_value(self, function: F) -> F:
        """Register a method whose client stub expects a value."""
        return self._register(function, Envelope.VALUE)

    def returns_nothing(self, function: F) -> F:
        """Register a method whose client stub expects no value."""
        return self._register(function, Envelope.VOID)

    def returns_bare(self, function: F) -> F:
        """Register a method whose result travels without an envelope."""
        return self._register(function, Envelope.BARE)

    def _register(self, function: F, envelope: Envelope) -> F:
        self[function.__name__] = Method.of(function, envelope)
        return function


Reply = tuple[str | None, Any]  # error slot and result slot of the response


@dataclass(frozen=True)
class Unfinished:
    """A call whose method returned `Later`."""

    name: str
    method: Method
    later: Later

    def finish(self, made: Callable[[], Any]) -> Reply | Unfinished:
        """The reply, where `made` returns or raises what the work did."""
        return _reply(self.name, self.method, lambda: self.later.then(made()))


def answer(table: MethodTable, world: Any, name: str, arguments: list) -> Reply:
    """Call a method, long work included."""
    reply = begin(table, world, name, arguments)
    while isinstance(reply, Unfinished):
        work = reply.later.work
        reply = reply.finish(work.result if isinstance(work, Future) else work)
    return reply


def begin(table: MethodTable, world: Any, name: str, arguments: list) -> Reply | Unfinished:
    """Call a method; its long work is left to be done."""
    method = table.get(name)
    if method is None:
        LOG.warning("unknown method %r called", name)
        return f"method '{name}' is not known to the embedded server", None
    if not method.accepts(len(arguments)):
        return f"method '{name}' cannot take {len(arguments)} arguments", None
    return _reply(name, method, lambda: method.function(world, *arguments))


def _reply(name: str, method: Method, call: Callable[[], Any]) -> Reply | Unfinished:
    try:
        result = call()
    except RpcError as error:
        return _failure(method, str(error))
    except Exception as error:  # a defect of ours: the server lives on, the client is told, the log has the traceback
        LOG.exception("method %s failed", name)
        return _failure(method, f"{name}: {type(error).__name__}: {error}")
    if isinstance(result, Later):
        return Unfinished(name, method, result)
    if method.envelope is Envelope.VOID:
        return None, wire.void()
    return None, wire.value(result) if method.envelope is Envelope.VALUE else result


def _failure(method: Method, message: str) -> Reply:
    if method.envelope is Envelope.BARE:
        return message, None
    return None, wire.value_error(message) if method.envelope is Envelope.VALUE else wire.void_error(message)


class RpcConnection(asyncio.Protocol):
    """One client connection on the RPC port.

    It answers a few requests a turn, so that others get theirs, and none while the client does not read the answers,
    so that neither unread answers nor unanswered requests can fill the memory.

    Args:
        table: the methods.
        world: their first argument.
        doorkeeper: of the port.
        worker: does the long work of all connections.
    """

    def __init__(self, table: MethodTable, world: Any, doorkeeper: Doorkeeper, worker: Worker) -> None:
        self._table, self._world, self._doorkeeper, self._worker = table, world, doorkeeper, worker
        self._transport: asyncio.Transport | None = None
        self._unpacker = msgpack.Unpacker(
            raw=False,
            strict_map_key=False,
            unicode_errors="surrogateescape",
            read_size=FIRST_BUFFER_BYTES,
            max_buffer_size=MAX_MESSAGE_BYTES,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
        )
        self._clogged = False  # the client is behind with reading
        self._resting = False  # the next turn is booked
        self._waiting = False  # for long work; what the client asks next is answered after it
        self.loitering = True
        self._told: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._doorkeeper.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._doorkeeper.leave(self)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def data_received(self, data: bytes) -> None:
        try:
            self._unpacker.feed(data)
        except (ValueError, msgpack.UnpackException) as error:
            self._give_up(error)
        if not self._resting:
            self._take_turn()

    def pause_writing(self) -> None:
        self._clogged = True
        if self._transport is not None and not self._resting:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._clogged = False
        if self._transport is not None and not self._resting:
            self._rest()

    def _take_turn(self) -> None:
        """Answer requests that have arrived whole, at most `REQUESTS_PER_TURN`."""
        for _ in range(REQUESTS_PER_TURN):
            if self._transport is None or self._clogged or self._waiting:
                return
            try:
                message = next(self._unpacker, _NO_MORE)
                if message is _NO_MORE:
                    return
                self._handle(message)
            except (ValueError, msgpack.UnpackException, RecursionError, MemoryError, TypeError) as error:
                self._give_up(error)
                return
        if self._transport is not None and not self._clogged and not self._waiting:
            self._transport.pause_reading()
            self._rest()

    def _rest(self) -> None:
        self._resting = True
        asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._resting = False
        if self._transport is not None and not self._clogged and not self._waiting:
            self._transport.resume_reading()
            self._take_turn()

    def _give_up(self, error: Exception) -> None:
        LOG.warning("connection dropped: it does not speak msgpack-rpc (%s: %s)", type(error).__name__, error)
        self.abort()

    def _handle(self, message: Any) -> None:
        if not isinstance(message, list) or not message:
            raise ValueError("a message is no list")
        if message[0] == REQUEST and len(message) == 4:
            _, message_id, name, parameters = message
        elif message[0] == NOTIFICATION and len(message) == 3:
            message_id, (_, name, parameters) = None, message
        else:
            raise ValueError("a message is neither request nor notification")
        if not isinstance(name, str) or not isinstance(parameters, list) or not isinstance(message_id, int | None):
            raise ValueError("a request has no method name or no parameter list")
        self.loitering = False
        untold = bool(parameters) and parameters[0] == [True] and name not in self._told
        reply = begin(self._table, self._world, name, parameters[1:])  # the first one is metadata
        self._send(name, reply, message_id, untold)

    def _send(self, name: str, reply: Reply | Unfinished, message_id: int | None, untold: bool) -> None:
        if isinstance(reply, Unfinished):
            self._wait(reply, message_id, untold)
            return
        if untold:
            self._tell(name, *reply)
        if message_id is not None and self._transport is not None:
            self._transport.write(self._pack(message_id, *reply))

    def _wait(self, call: Unfinished, message_id: int | None, untold: bool) -> None:
        """Have long work done, then answer and go on; the work counts, whether or not its client is still there."""
        loop, later = asyncio.get_running_loop(), call.later
        work = later.work if isinstance(later.work, Future) else self._worker.submit(later.work)

        def finish() -> None:
            self._waiting = False
            self._send(call.name, call.finish(work.result), message_id, untold)
            if self._transport is not None and not self._clogged and not self._resting:
                self._rest()

        def done(_: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(finish)

        self._waiting = True
        if self._transport is not None:
            self._transport.pause_reading()
        work.add_done_callback(done)

    def _tell(self, name: str, error: str | None, result: Any) -> None:
        """Put the failure of an asynchronous call, whose answer the client throws away, into the log once."""
        if not error:
            envelopes = result if self._table[name].envelope is Envelope.BARE else [result]  # a batch's, or the one
            error = next(filter(None, map(wire.failure_of, envelopes)), None)
        if error:
            self._told.add(name)
            LOG.warning("an asynchronous %s failed: %s", name, error)

    def _pack(self, message_id: int, error: str | None, result: Any) -> bytes:
        try:
            return _PACKER.pack([RESPONSE, message_id, error, result])
        except (ValueError, TypeError, OverflowError, RecursionError) as failure:
            LOG.exception("an answer cannot be packed")
            _PACKER.reset()
            return _PACKER.pack([RESPONSE, message_id, f"the answer cannot be sent: {failure}", None])
