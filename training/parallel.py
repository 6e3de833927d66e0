"""Where parameters live and how an optimiser step is taken: copies on every process, or shards.

Copies (`Replicated`) serve one machine and every CPU run: bf16 compute with fp32 master weights, gradients summed in
fp32. Shards (`Sharded`) are accelerate's FSDP2 or DeepSpeed, by the accelerate configuration of the launch. DeepSpeed
takes its step inside the last backward, so the rates of a step are set before its first one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from training.config import OptimizerConfig
from training.forward import AnswerModel
from training.optimizer import MasterWeights, group_names, parameter_groups

if TYPE_CHECKING:
    from accelerate import Accelerator

STATE_NAME = "trainer.safetensors"
SHARDS_NAME = "shards"


class Parallel(Protocol):
    """Takes optimiser steps.

    Attributes:
        model: to be called for forwards.
    """

    model: AnswerModel

    def begin_step(self, share: float) -> None:
        """Set the learning rates of the coming step to a share of their peaks."""

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add the gradient of a micro-batch's share of the loss; `last` of the step."""

    def step(self) -> float | None:
        """Take the optimiser step; returns the gradient norm, None where it is not known."""

    def save_state(self, folder: Path) -> None:
        """Write what a resumed run needs beside the weights; called by every process."""

    def load_state(self, folder: Path) -> None:
        """Restore it; called by every process."""

    def weights(self) -> dict[str, Tensor] | None:
        """State dict of the stock model to store, on the main process; None lets the model store its own."""

    def describe(self) -> str:
        """Groups of parameters, in one line."""


class Replicated:
    """See `Parallel`."""

    def __init__(
        self, model: AnswerModel, config: OptimizerConfig, dtype: torch.dtype, accelerator: Accelerator
    ) -> None:
        self.model = model.to(accelerator.device)
        self._master = MasterWeights(model.model, config, dtype)
        self._accelerator = accelerator

    def begin_step(self, share: float) -> None:
        """See `Parallel`."""
        self._master.set_rates(share)

    def backward(self, loss: Tensor, last: bool) -> None:
        """See `Parallel`."""
        loss.backward()  # type: ignore[no-untyped-call]
        self._master.accumulate()

    def step(self) -> float | None:
        """See `Parallel`."""
        if self._accelerator.num_processes > 1:
            self._master.sum_over_processes()
        return self._master.step()

    def save_state(self, folder: Path) -> None:
        """See `Parallel`."""
        from safetensors.torch import save_file

        if self._accelerator.is_main_process:
            state = {name: tensor.contiguous().cpu() for name, tensor in self._master.state().items()}
            save_file(state, folder / STATE_NAME)

    def load_state(self, folder: Path) -> None:
        """See `Parallel`."""
        from safetensors.torch import load_file

        self._master.load_state(load_file(folder / STATE_NAME))

    def weights(self) -> dict[str, Tensor] | None:
        """See `Parallel`."""
        return None

    def describe(self) -> str:
        """See `Parallel`."""
        return group_names(self._master.adam.param_groups)


class Sharded:
    """See `Parallel`."""

    def __init__(self, model: AnswerModel, config: OptimizerConfig, accelerator: Accelerator) -> None:
        groups = parameter_groups(model.model.named_parameters(), config)
        self._described = group_names(groups)
        self._peaks = [group["peak_lr"] for group in groups]
        adam = torch.optim.AdamW(groups, betas=config.betas)
        prepared: Any = accelerator.prepare(model, adam)
        self.model, self._adam = prepared
        self._accelerator, self._clip_norm = accelerator, config.clip_norm

    def begin_step(self, share: float) -> None:
        """See `Parallel`."""
        for group, peak in zip(self._adam.param_groups, self._peaks, strict=True):
            group["lr"] = peak * share

    def backward(self, loss: Tensor, last: bool) -> None:
        """See `Parallel`; frameworks average over processes, so the loss is scaled up by their number."""
        self._accelerator.gradient_state._set_sync_gradients(last)
        self._accelerator.backward(loss * self._accelerator.num_processes)

    def step(self) -> float | None:
        """See `Parallel`; under DeepSpeed the step is taken, and the gradient clipped, by then."""
        norm = self._accelerator.clip_grad_norm_(self.model.parameters(), self._clip_norm)
        self._adam.step()
        self._adam.zero_grad()
        return None if norm is None else float(norm)

    def save_state(self, folder: Path) -> None:
        """See `Parallel`."""
        self._accelerator.save_state(str(folder / SHARDS_NAME), safe_serialization=True)

    def load_state(self, folder: Path) -> None:
        """See `Parallel`."""
        self._accelerator.load_state(str(folder / SHARDS_NAME))

    def weights(self) -> dict[str, Tensor] | None:
        """See `Parallel`."""
        state: dict[str, Tensor] = self._accelerator.get_state_dict(self.model)
        return {name.removeprefix("model."): tensor for name, tensor in state.items()}

    def describe(self) -> str:
        """See `Parallel`."""
        return self._described


def make_parallel(
    model: AnswerModel, config: OptimizerConfig, dtype: torch.dtype, accelerator: Accelerator
) -> Parallel:
    """What the launch asks for: shards under FSDP and DeepSpeed, else copies."""
    from accelerate.utils import DistributedType

    if accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED):
        return Sharded(model, config, accelerator)
    return Replicated(model, config, dtype, accelerator)
