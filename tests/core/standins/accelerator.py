"""`torch.cuda` and `torch.npu` on the CPU: graphs that record and replay, events that come late, pinned copies.

A capture records every operator that reaches the dispatcher, with its memory and its host numbers, and undoes what it
wrote: a real capture runs nothing. A replay runs the same operators on the same memory, and then spoils all
intermediate results, as the next graph of the pool would. Memory from outside is held weakly: freed or moved, it fails
the replay.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from wamdiff2_core.model.backends.device_ops import DeviceOps

# by the name of a torch function: what makes the host wait for the device
WAITING = {
    "item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__", "nonzero",
    "masked_select", "unique", "equal", "allclose", "is_nonzero", "argwhere",
}
# copies from pageable host memory
FROM_HOST = {"tensor", "as_tensor", "from_numpy", "scalar_tensor"}
FACTORIES = {"zeros", "ones", "empty", "full", "arange", "eye", "rand", "randn", "randint", "linspace"}
WAITING_OPERATORS = {"_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal", "_unique2"}
RANDOM_OPERATORS = {"rand", "randn", "randint", "bernoulli_", "uniform_", "normal_", "multinomial", "native_dropout"}


class StandInError(RuntimeError):
    """Use that a real device or library would not survive."""


@dataclass
class Outside:
    """A tensor in memory that the graph does not own."""

    storage: StorageWeakRef
    pointer: int
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Outside:
        storage = tensor.untyped_storage()
        return cls(
            StorageWeakRef(storage), storage.data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(),
            tensor.dtype,
        )

    def tensor(self) -> Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None:
            raise StandInError("memory that the graph reads or writes was freed after the capture")
        if storage.data_ptr() != self.pointer:
            raise StandInError("memory that the graph reads or writes has moved since the capture")
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.size, self.stride)


@dataclass
class Operation:
    """One recorded operator.

    Attributes:
        fresh: results in memory of the graph, by place.
        host: a library's call.
        lists: the caller's own lists of host numbers, and what they held at the capture.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    fresh: dict[int, Tensor]
    host: bool = False
    lists: dict[str, tuple[list[Any], list[Any]]] = field(default_factory=dict)


def found(kept: Any) -> Any:
    """Arguments as they were kept, with the tensors that stand outside; `tree_map` takes ten times as long."""
    if isinstance(kept, Outside):
        return kept.tensor()
    if isinstance(kept, (list, tuple)):
        return type(kept)([found(one) for one in kept])
    return {key: found(one) for key, one in kept.items()} if isinstance(kept, dict) else kept


def address(tensor: Tensor) -> int:
    """Of the memory that a tensor looks at."""
    number: int = tensor.untyped_storage()._cdata
    return number


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


class Recorder(TorchDispatchMode):
    """What happens during a capture."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.paused = False
        self._own: dict[int, Tensor] = {}
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in WAITING_OPERATORS:
            raise StandInError(f"the host waits for the device during a capture: {name}")
        if name in RANDOM_OPERATORS:
            raise StandInError(f"random numbers during a capture: {name}")
        if name in ("index", "index_put", "index_put_") and any(
            index.dtype in (torch.bool, torch.uint8) for index in tensors(args[1])
        ):
            raise StandInError("a boolean index during a capture: its result's shape depends on the device")
        if name == "repeat_interleave" and "output_size" not in kwargs:
            raise StandInError("repeat_interleave without output_size waits for the device")
        if func._schema.is_mutable:
            for argument, value in zip(func._schema.arguments, args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self.remember(value)
            self.remember(kwargs.get("out"))
        out = func(*args, **kwargs)
        self.add(func, args, kwargs, out)
        return out

    def remember(self, written: Any) -> None:
        """Keep what is in memory that a capture must leave alone."""
        for tensor in tensors(written):
            where = address(tensor)
            if where not in self._own and where not in self._before:
                self.paused = True
                whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                self._before[where] = whole, whole.clone()
                self.paused = False

    def add(self, func: Any, args: Any, kwargs: Any, out: Any, host: bool = False) -> None:
        taken = {address(tensor) for tensor in tensors((args, kwargs))}
        fresh = {
            place: tensor for place, tensor in enumerate(tensors(out)) if address(tensor) not in taken
        }
        mutable = host or func._schema.is_mutable
        if fresh or mutable:
            lists = {key: (value, copy.deepcopy(value)) for key, value in kwargs.items() if isinstance(value, list)}
            kept = tree_map(self._keep, (args, kwargs))
            self.operations.append(Operation(func, *kept, fresh, host, lists))
        for tensor in fresh.values():
            self._own[address(tensor)] = tensor

    def undo(self) -> None:
        """End of the capture: nothing has run."""
        for whole, before in self._before.values():
            whole.copy_(before)
        spoil(self.operations)

    def _keep(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return copy.deepcopy(leaf)
        return leaf if address(leaf) in self._own else Outside.of(leaf)


class CaptureRules(TorchFunctionMode):
    """What Python code may not say during a capture, though on a CPU it would pass."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._recorder.paused:
            name = getattr(func, "__name__", "")
            if name in WAITING:
                raise StandInError(f"the host waits for the device during a capture: {name}")
            if name in FROM_HOST:
                raise StandInError(f"a copy from pageable memory during a capture: {name}")
            if name in FACTORIES and kwargs.get("device") is None:
                raise StandInError(f"{name} without a device during a capture: a tensor on the host")
            if name == "to" and any(str(value) == "cpu" for value in (*args[1:], kwargs.get("device"))):
                raise StandInError("the host waits for the device during a capture: to")
            if name == "where" and (len(args) < 3 or any(not isinstance(value, Tensor) for value in args)):
                raise StandInError("where with a number or without choices during a capture")
        return func(*args, **kwargs)


def spoil(operations: list[Operation]) -> None:
    """Overwrite results that no graph may hand out."""
    for operation in operations:
        for tensor in operation.fresh.values():
            if tensor.dtype.is_floating_point and 0 not in tensor.stride():
                tensor.fill_(torch.nan)


class FakeGraph:
    """`CUDAGraph`, or `NPUGraph`."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.operations: list[Operation] = []
        self.updates = False
        self._fresh_values = False
        self._given = 0

    def replay(self) -> None:
        """Run everything again."""
        device = self._device
        if device.recorder is not None:
            raise StandInError("a replay during a capture")
        if not self.operations:
            raise StandInError("a replay of a graph that holds nothing")
        if any(operation.host for operation in self.operations) and self.updates:
            if not self._fresh_values:
                raise StandInError("a replay without an update waits for ever: the last one has reset its event")
            self._fresh_values = False
        with device.library_call(), torch._C.DisableTorchFunction():  # nobody watches what the device does
            self._run()
        device.given += 1
        device.replays += 1
        self._given = device.given
        device.done = max(device.done, device.given - device.latency)
        device.deliver()

    def _run(self) -> None:
        device = self._device
        device.written.clear()
        for operation in self.operations:
            for key, (own, captured) in operation.lists.items():
                if own != captured:
                    raise StandInError(f"{key} was changed after the capture: only update changes what a graph holds")
            arguments, keywords = found((operation.arguments, operation.keywords))
            if getattr(operation.function, "__name__", "").startswith("index_copy"):
                device.written.setdefault(address(arguments[0]), []).append(arguments[2])
            out = operation.function(*arguments, **keywords)
            out = [out] if isinstance(out, Tensor) else tensors(out)
            for place, tensor in operation.fresh.items():
                if address(out[place]) != address(tensor):
                    tensor.copy_(out[place])
        spoil(self.operations)
        device.written.clear()

    def update(self, cpu_update_input: list[dict[str, Any]]) -> None:
        """New host values for the next replay, of an `NPUGraph`."""
        if not self.updates:
            raise StandInError("update of a graph that was captured without auto_dispatch_capture")
        if self._given > self._device.done:
            raise StandInError("update while a replay of the graph is under way: it would reset the new event")
        host = [operation for operation in self.operations if operation.host]
        values = cpu_update_input * len(host) if len(cpu_update_input) == 1 else cpu_update_input
        if len(values) != len(host):
            raise StandInError(f"{len(host)} operators to update, {len(values)} given")
        for operation, new in zip(host, values, strict=True):
            for key, value in new.items():
                if key in operation.keywords:
                    operation.keywords[key] = copy.deepcopy(value)
        self._fresh_values = True


class FakeEvent:
    """Passed `latency` replays after it was recorded, or when somebody waits."""

    def __init__(self, device: FakeDevice) -> None:
        self._device, self._at = device, -1

    def record(self) -> None:
        self._device.refuse_in_capture("event.record")
        self._at = self._device.given

    def query(self) -> bool:
        self._device.refuse_in_capture("event.query")
        return 0 <= self._at <= self._device.done

    def synchronize(self) -> None:
        self._device.refuse_in_capture("event.synchronize")
        if self._at < 0:
            raise StandInError("waiting for an event that was not recorded")
        self._device.waits += 1
        self._device.reach(self._at)


class FakeStream:
    """Order is that of the program; a stream only remembers whether work was warmed up on it."""

    def __init__(self, device: Any = None) -> None:
        self.warm = False

    def wait_stream(self, other: FakeStream) -> None:
        """Nothing: all is in order."""


class FakeDevice:
    """One accelerator.

    Attributes:
        latency: replays that must follow before one is seen to be done without waiting.
        replays, waits: counted.
        written: by address, slots that the running replay has copied to.
        busy: what runs is the device's or a library's own.
    """

    def __init__(self, kind: str = "cuda", latency: int = 1) -> None:
        self.kind, self.latency = kind, latency
        self.recorder: Recorder | None = None
        self.given = self.done = self.replays = self.waits = self.captures = 0
        self.synced = 0
        self.written: dict[int, list[Tensor]] = {}
        self.busy = False
        self._copies: list[tuple[int, Tensor, Tensor]] = []
        self._pinned: set[int] = set()
        self._stream = FakeStream()
        self._current = self._stream

    def ops(self) -> DeviceOps:
        """For a backend."""
        return StandInOps(self)

    def refuse_in_capture(self, what: str) -> None:
        if self.recorder is not None:
            raise StandInError(f"{what} during a capture")

    def reach(self, ticket: int) -> None:
        """The host has waited for so many replays."""
        self.done = max(self.done, ticket)
        if self.done == self.given:
            self.synced += 1
        self.deliver()

    def deliver(self) -> None:
        for ticket, host, value in [entry for entry in self._copies if entry[0] <= self.done]:
            host.copy_(value)
            self._copies = [entry for entry in self._copies if entry[1] is not host or entry[0] != ticket]

    def pinned(self, host: Tensor) -> Tensor:
        self._pinned.add(address(host))
        return host

    def send(self, host: Tensor, source: Tensor) -> None:
        """An asynchronous copy; until it is done the buffer holds nonsense."""
        self.refuse_in_capture("a copy to the host")
        if address(host) not in self._pinned:
            raise StandInError("an asynchronous copy to memory that is not pinned")
        if any(entry[1] is host for entry in self._copies):
            raise StandInError("a buffer is used again before its copy has arrived")
        self._copies.append((self.given, host, source.clone()))
        host.fill_(-(2**30))

    @contextmanager
    def watching(self) -> Iterator[FakeDevice]:
        """Reading a tensor on the host waits for the device; inside, that is counted."""
        with HostReads(self):
            yield self

    @contextmanager
    def library_call(self) -> Iterator[Recorder | None]:
        """The inside of a library's function, one operator to a graph."""
        recorder, before = self.recorder, self.busy
        self.busy = True
        if recorder is not None:
            recorder.paused = True
        try:
            yield recorder
        finally:
            self.busy = before
            if recorder is not None:
                recorder.paused = False

    @property
    def module(self) -> SimpleNamespace:
        """`torch.cuda`, or `torch.npu`."""
        names: dict[str, Any] = {
            "CUDAGraph" if self.kind == "cuda" else "NPUGraph": lambda: FakeGraph(self),
            "Event": lambda: FakeEvent(self), "Stream": FakeStream, "stream": self._on_stream, "graph": self._capture,
            "current_stream": lambda device=None: self._current, "graph_pool_handle": object,
            "synchronize": self._synchronize,
        }
        return SimpleNamespace(**names)

    def _synchronize(self, device: Any = None) -> None:
        self.refuse_in_capture("synchronize")
        self.reach(self.given)

    @contextmanager
    def _on_stream(self, stream: FakeStream) -> Iterator[None]:
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before
            stream.warm = True

    @contextmanager
    def _capture(
        self, graph: FakeGraph, pool: Any = None, stream: FakeStream | None = None, capture_error_mode: str = "global",
        **options: Any,
    ) -> Iterator[None]:
        if self.recorder is not None:
            raise StandInError("a capture during a capture")
        if stream is None or stream is self._stream:
            raise StandInError("a capture on the default stream")
        if not stream.warm:
            raise StandInError("a capture without a warm-up on its stream")
        if "auto_dispatch_capture" in options and self.kind != "npu":
            raise StandInError("CUDA graphs keep no host values")
        graph.updates = bool(options.get("auto_dispatch_capture"))
        self.recorder = recorder = Recorder()
        try:
            with CaptureRules(recorder), recorder:
                yield
        finally:
            self.recorder = None
            recorder.undo()
        graph.operations = recorder.operations
        self.captures += 1


class HostReads(TorchFunctionMode):
    """See `FakeDevice.watching`."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        device = self._device
        reads = name in WAITING and args and isinstance(args[0], Tensor) and address(args[0]) not in device._pinned
        if reads and device.recorder is None and not device.busy:
            device.waits += 1
            device.reach(device.given)
        return func(*args, **(kwargs or {}))


class StandInOps(DeviceOps):
    """`DeviceOps` of a `FakeDevice`, whose tensors are on the CPU."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__(torch.device("cpu"), device.module)
        self.fake = device

    def host_buffer(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return self.fake.pinned(torch.zeros(*shape, dtype=dtype))

    def to_host(self, host: Tensor, source: Tensor) -> None:
        self.fake.send(host, source)
