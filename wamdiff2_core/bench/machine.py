"""This machine, and the least time that the forwards of an answer can take on it.

A forward must read its weights and its keys and values from memory, and do its multiplications: it can take no less
than the longer of the two at the rates that this machine was just measured at. Only what every implementation has to
do is counted, so the floor is low rather than high. Weights that fit into a cache can be read faster than memory gives
them; a small model may come close to its floor, or below it, for that reason.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.cli.doctor import SPEED_FLAGS
from wamdiff2_core.model.block_model import BlockModel
from wamdiff2_core.model.devices import ACCELERATORS

_TRIAD_MIB = 256  # an array; beyond every cache
_GEMM_SIZE = {"cpu": 1024}
_GEMM_SIZE_ELSEWHERE = 8192
_TRIES = 5


@dataclass(frozen=True)
class Machine:
    """What ran the measurement."""

    cpu: str
    vector_extensions: tuple[str, ...]
    cores: int
    threads: int
    torch_version: str
    device: str

    @classmethod
    def of(cls, device: torch.device) -> Machine:
        """This machine, seen from a process that runs on `device`."""
        cpuinfo = Path("/proc/cpuinfo")
        lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
        fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
        flags = fields.get("flags", "").split()
        name = getattr(torch, device.type).get_device_name(device) if device.type in ACCELERATORS else ""
        return cls(
            fields.get("model name") or platform.processor() or platform.machine(),
            tuple(flag for flag in SPEED_FLAGS if flag in flags), len(os.sched_getaffinity(0)),
            torch.get_num_threads(), torch.__version__, f"{device} ({name})" if name else str(device),
        )


@dataclass(frozen=True)
class Rates:
    """Measured speed of a device.

    Attributes:
        bytes_per_s: of the better of a copy and a triad, both directions counted.
        flops_per_s: of a square matrix product in the model's dtype or in float32, whichever is quicker here; a
            multiplication and an addition as two.
    """

    bytes_per_s: float
    flops_per_s: float

    @classmethod
    def measure(
        cls, device: torch.device, dtype: torch.dtype, array_mib: int = _TRIAD_MIB, gemm_size: int | None = None
    ) -> Rates:
        """Measure now: the best of a few tries.

        Args:
            device: where.
            dtype: of the model.
            array_mib: size of each of the triad's three arrays.
            gemm_size: rows of the square matrices; None suits the device.
        """
        result, left, right = (torch.ones(array_mib * 2**18, device=device) for _ in range(3))
        copied = 2 * result.nbytes / _best(lambda: result.copy_(left), device)
        added = 3 * result.nbytes / _best(lambda: torch.add(left, right, alpha=3.0, out=result), device)
        rows = gemm_size or _GEMM_SIZE.get(device.type, _GEMM_SIZE_ELSEWHERE)
        multiplied = 0.0
        for kind in {dtype, torch.float32}:
            factor = torch.ones(rows, rows, device=device, dtype=kind)
            product = torch.empty_like(factor)
            seconds = _best(partial(torch.mm, factor, factor, out=product), device)
            multiplied = max(multiplied, 2 * rows**3 / seconds)
        return cls(max(copied, added), multiplied)


@dataclass
class Forward:
    """One forward of the language model: tokens that went through its layers, and rows of logits made."""

    rows: int
    head_rows: int = 0


@contextmanager
def counted_blocks(blocks: BlockModel) -> Iterator[list[Forward]]:
    """Every forward inside the block of a model that a backend runs."""
    seen: list[Forward] = []
    prefill, forward, pick, logits = blocks.prefill, blocks.forward, blocks.pick, blocks.logits

    def counted_prefill(*arguments: Any) -> Tensor:
        hidden = prefill(*arguments)
        seen.append(Forward(blocks.prompt_columns))
        return hidden

    def counted_forward(ids: Tensor, *arguments: Any, **named: Any) -> Tensor:
        seen.append(Forward(ids.shape[1]))
        return forward(ids, *arguments, **named)

    def counted_pick(hidden: Tensor, masked: Tensor, mask_token_id: int) -> tuple[Tensor, Tensor]:
        seen[-1].head_rows += int(masked.sum())
        return pick(hidden, masked, mask_token_id)

    def counted_logits(hidden: Tensor, *arguments: Any) -> Tensor:
        seen[-1].head_rows += hidden.numel() // hidden.shape[-1]
        return logits(hidden, *arguments)

    own = {"prefill": counted_prefill, "forward": counted_forward, "pick": counted_pick, "logits": counted_logits}
    vars(blocks).update(own)
    before, blocks.stepwise = blocks.stepwise, True
    try:
        yield seen
    finally:
        blocks.stepwise = before
        for name in own:
            del vars(blocks)[name]


@contextmanager
def counted(model: Any) -> Iterator[list[Forward]]:
    """Every forward of a stock model's language part inside the block, whoever calls its layers."""
    seen: list[Forward] = []

    def layer(_: Any, arguments: tuple[Any, ...]) -> None:
        seen.append(Forward(arguments[0].shape[1]))

    def head(_: Any, arguments: tuple[Any, ...]) -> None:
        seen[-1].head_rows += arguments[0].numel() // arguments[0].shape[-1]

    hooks = [
        model.model.language_model.layers[0].register_forward_pre_hook(layer),
        model.lm_head.register_forward_pre_hook(head),
    ]
    try:
        with torch.compiler.set_stance("force_eager"):  # compiled code would not call the hooks
            yield seen
    finally:
        for hook in hooks:
            hook.remove()


class Floor:
    """The least time of forwards of one model on one machine."""

    def __init__(self, model: Any, rates: Rates) -> None:
        """Take the sizes of a stock model."""
        text, vision = model.model.language_model.config, model.model.visual
        self._rates, self._itemsize = rates, int(model.dtype.itemsize)
        self._layers = _numel(model.model.language_model.layers)
        self._head = model.lm_head.weight.numel()
        self._pair = 4 * text.num_hidden_layers * text.num_attention_heads * text.head_dim
        self._column = 2 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim
        self._patch = _numel(vision.blocks) + _numel(vision.patch_embed)
        self._merged = _numel(vision.merger) + _numel(vision.deepstack_merger_list)
        self._merge = model.config.vision_config.spatial_merge_size**2
        self._vision_pair = 4 * model.config.vision_config.depth * model.config.vision_config.hidden_size

    def answer_s(self, request: ModelInputs, forwards: list[Forward]) -> float:
        """Seconds of an answer: its images, its prompt and each forward after it."""
        prompt = len(request.input_ids)
        later = sum(self._forward_s(forward, prompt) for forward in forwards[1:])
        return self.vision_s(request) + self._forward_s(forwards[0], 0) + later

    def prefill_s(self, request: ModelInputs) -> float:
        """Seconds of a prompt without logits, images included."""
        return self.vision_s(request) + self._forward_s(Forward(len(request.input_ids)), 0)

    def vision_s(self, request: ModelInputs) -> float:
        """Seconds of a prompt's images."""
        if request.image_grid_thw is None:
            return 0.0
        patches = request.image_grid_thw.prod(-1).tolist()
        multiplied = sum(
            2 * count * (self._patch + self._merged / self._merge) + self._vision_pair * count**2 for count in patches
        )
        return self._seconds(self._patch + self._merged, multiplied)

    def _forward_s(self, forward: Forward, before: int) -> float:
        """Of rows that see `before` columns and, on average at least, half of one another."""
        pairs = forward.rows * (before + (forward.rows + 1) / 2)
        read = self._layers + (self._head if forward.head_rows else 0) + self._column * before
        multiplied = 2 * (self._layers * forward.rows + self._head * forward.head_rows) + self._pair * pairs
        return self._seconds(read, multiplied)

    def _seconds(self, read: float, multiplied: float) -> float:
        return max(read * self._itemsize / self._rates.bytes_per_s, multiplied / self._rates.flops_per_s)


def synchronised(device: torch.device) -> float:
    """Seconds on a steady clock, once the device has done all it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def peak_memory_gib(device: torch.device) -> float:
    """Most memory this process has had: of the accelerator when it runs on one, else of the machine."""
    if device.type != "cpu":
        return int(torch.accelerator.max_memory_allocated(device)) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _numel(module: Any) -> int:
    return sum(weight.numel() for weight in module.parameters())


def _best(run: Callable[[], object], device: torch.device) -> float:
    run()
    seconds = []
    for _ in range(_TRIES):
        started = synchronised(device)
        run()
        seconds.append(synchronised(device) - started)
    return min(seconds)
