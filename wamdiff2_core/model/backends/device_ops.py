"""Graphs, events and pinned copies of an accelerator: all that the graph backends ask of `torch.cuda` or `torch.npu`.

The two modules have the same names for the same things, so one class serves both. Where they differ: host integers are
part of an Ascend graph's operators, and a graph that was captured with them waits, at every replay, for an event that
only `update` records, and resets it. So such a graph needs one update for each replay, also when nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor

WARM_UPS = 2  # calls before a capture: libraries allocate workspaces and choose kernels in the first ones


class Graph(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Do it again, on the same memory; does not wait for it."""


class Event(Protocol):
    """A point in the device's work."""

    def record(self) -> None:
        """Set it behind all that was given out so far."""

    def query(self) -> bool:
        """Whether the device has passed it."""

    def synchronize(self) -> None:
        """Wait for that."""


class DeviceOps:
    """What one accelerator offers beside its kernels.

    Attributes:
        device: it.
        module: `torch.cuda` or `torch.npu`.
    """

    def __init__(self, device: torch.device, module: Any = None) -> None:
        """Take a device.

        Args:
            device: `cuda` or `npu`, with or without an index.
            module: of torch, for that kind of device; found by the device's name when not given.
        """
        self.device = device
        if module is None:
            if device.type == "npu":
                import_module("torch_npu")  # registers torch.npu
            module = getattr(torch, device.type)
        self.module = module
        self._pool: Any = None

    def capture(self, body: Callable[[], None], host_values: bool = False) -> Graph:
        """Record what `body` gives to the device; it is called a few times before, to warm up.

        Args:
            body: reads and writes memory that stays where it is, waits for nothing, and keeps no result but by copying
                it into such memory: graphs share one pool, and a replay may overwrite what another one has left there.
            host_values: operators take host integers that `update` will change.
        """
        stream = self.module.Stream(self.device)
        stream.wait_stream(self.module.current_stream(self.device))
        with self.module.stream(stream):
            for _ in range(WARM_UPS):
                body()
        self.module.current_stream(self.device).wait_stream(stream)
        self.module.synchronize(self.device)
        if self._pool is None:
            self._pool = self.module.graph_pool_handle()
        npu = hasattr(self.module, "NPUGraph")
        graph: Any = self.module.NPUGraph() if npu else self.module.CUDAGraph()
        # other threads of the process may use the device meanwhile
        options: dict[str, Any] = {"pool": self._pool, "stream": stream, "capture_error_mode": "thread_local"}
        if host_values:
            options["auto_dispatch_capture"] = True
        with self.module.graph(graph, **options):
            body()
        captured: Graph = graph
        return captured

    def update(self, graph: Graph, values: Mapping[str, Sequence[int]]) -> None:
        """Give all operators of an Ascend graph their host integers for the next replay.

        The replay before must be over: it would otherwise reset the event that this one waits for.

        Args:
            graph: captured with `host_values`.
            values: by parameter name.
        """
        npu_graph: Any = graph
        npu_graph.update(cpu_update_input=[{name: list(numbers) for name, numbers in values.items()}])

    def wait(self) -> None:
        """Until the device has done all that this thread's stream was given."""
        event = self.event()
        event.record()
        event.synchronize()

    def event(self) -> Event:
        """A new event."""
        event: Event = self.module.Event()
        return event

    def host_buffer(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Zeros in pinned host memory, which the device can copy to on its own."""
        return torch.zeros(*shape, dtype=dtype, pin_memory=True)

    def to_host(self, host: Tensor, source: Tensor) -> None:
        """Let the device copy `source` to a pinned buffer in its turn; read it behind an event recorded after this."""
        host.copy_(source, non_blocking=True)
