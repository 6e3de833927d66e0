"""Every way to run a model on this machine: backends, accelerators' ones on stand-ins, and prompts that are reused."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tests.core.standins.accelerator import FakeDevice
from tests.core.standins.libraries import fake_flashinfer, fake_torch_npu
from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.config import DecodeConfig, PromptReuse
from wamdiff2_core.decode import Generation, Generator
from wamdiff2_core.model.backends import Backend, cuda, make_backend, npu
from wamdiff2_core.model.backends.cpu import CpuBackend
from wamdiff2_core.model.backends.graphed import GraphedBackend
from wamdiff2_core.model.block_model import BlockModel
from wamdiff2_core.serving_record import ServingRecord

STAND_INS = ("cuda", "cuda-flashinfer", "npu")
_REUSING = "-reusing"
REUSING = tuple(name + _REUSING for name in ("eager", "cpu", "cuda-flashinfer"))
ENGINES = ("eager", "cpu", "cpu-operators", *STAND_INS, *REUSING)  # `cpu-operators` is `cpu` without a compiler


def stand_in(kind: str, model: Any, latency: int = 1) -> tuple[GraphedBackend, FakeDevice]:
    """An accelerator's backend and the device it believes in.

    Its kernels are let run in float32 and with small heads, so that answers can be compared token by token.

    Args:
        kind: of `STAND_INS`.
        model: stock, in float32.
        latency: see `FakeDevice`.
    """
    device = FakeDevice("npu" if kind == "npu" else "cuda", latency)
    if kind == "cuda":
        return cuda.CudaBackend(model, device.ops()), device
    if kind == "npu":
        with mock.patch.object(npu, "DTYPES", (torch.float32,)):
            return npu.NpuBackend(model, device.ops(), fake_torch_npu(device, torch.float32), page=64), device
    with (
        mock.patch.object(cuda, "FLASHINFER_DTYPES", (torch.float32,)),
        mock.patch.object(cuda, "FLASHINFER_HEAD_DIMS", (8, 16, 32)),
    ):
        return cuda.FlashInferBackend(model, device.ops(), fake_flashinfer(device, torch.float32)), device


def make_engine(name: str, model: Any) -> Backend:
    """A backend for a stock model."""
    name = name.removesuffix(_REUSING)
    if name in STAND_INS:
        return stand_in(name, model)[0]
    return CpuBackend(model, compiled=False) if name == "cpu-operators" else make_backend(name, model)


class ReusingModel(BlockModel):
    """Reuses what can be reused of every prompt: one that shares nothing with the one before is run twice."""

    def prefill(
        self, requests: Sequence[ModelInputs], block_size: int, answer_columns: int, reuse: PromptReuse = "float32",
        copies: int = 1,
    ) -> Tensor:
        """See `BlockModel.prefill`."""
        hidden = super().prefill(requests, block_size, answer_columns, reuse, copies)
        if not self.reused_columns:
            hidden = super().prefill(requests, block_size, answer_columns, reuse, copies)
        return hidden


def engine_blocks(name: str, model: Any) -> BlockModel:
    """A stock model run by that engine."""
    backend = make_engine(name, model)
    return ReusingModel(model, backend, reuse_prompts=True) if name in REUSING else BlockModel(model, backend)


def engine_generator(name: str, model: Any, mask: int, eos: int, record: ServingRecord | None = None) -> Generator:
    """A generator on that engine; without a record, all decoding is allowed."""
    ids = record or ServingRecord(mask_token_id=mask, eos_token_id=eos)
    generator = Generator.of(model, None, ids, enforce_record=record is not None, backend="eager")
    generator.blocks = blocks = engine_blocks(name, model)
    if isinstance(blocks.backend, GraphedBackend):
        device, generate = blocks.backend.ops.fake, generator.generate

        def watched(*arguments: Any, **named: Any) -> list[Generation]:
            with device.watching():
                return generate(*arguments, **named)

        generator.generate = watched  # type: ignore[method-assign]
    return generator


@contextmanager
def each_forward(backend: Backend, seen: Callable[[int], None]) -> Iterator[None]:
    """Inside, `seen` is called after every forward behind a prompt, with its tokens a row; replays are forwards."""
    name = "replay" if isinstance(backend, GraphedBackend) else "step"
    run = getattr(backend, name)

    def watched(*arguments: Any, **named: Any) -> Any:
        result = run(*arguments, **named)
        seen(arguments[1].count if name == "replay" else arguments[0].shape[1])
        return result

    setattr(backend, name, watched)
    try:
        yield
    finally:
        delattr(backend, name)


def idle_replays(engine: str, config: DecodeConfig, blocks: int) -> int:
    """Forwards beyond its steps that an answer may take at most, as docs/accelerators.md states."""
    if engine == "cuda":
        return 1
    return blocks if engine.startswith("cuda") and config.strategy == "low_confidence_dynamic" else 0


def held_memory(owner: Any) -> tuple[int, int]:
    """Bytes and number of the tensor memories that an object of this package holds, however deep; no module's."""
    todo, visited, memories = [owner], set[int](), dict[int, int]()
    while todo:
        one = todo.pop()
        if id(one) in visited:
            continue
        visited.add(id(one))
        if isinstance(one, Tensor):
            memory = one.untyped_storage()
            memories[memory._cdata] = memory.nbytes()
        elif isinstance(one, Mapping):
            todo += one.values()
        elif isinstance(one, (list, tuple, deque)):
            todo += one
        elif type(one).__module__.startswith(("wamdiff2_core", __name__)):
            todo += vars(one).values()
    return sum(memories.values()), len(memories)
