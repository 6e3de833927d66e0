"""AdamW in groups of parameters, fp32 master weights of a model that computes in bf16, and the schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from training.config import OptimizerConfig

MERGERS = ("visual.merger", "visual.deepstack_merger_list")


def share_of_peak(step: int, config: OptimizerConfig, steps: int) -> float:
    """Learning rate of step 0..steps-1 as a share of its peak: linear rise, then cosine fall."""
    warmup = config.warmup_steps or round(config.warmup_share * steps)
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return config.min_lr_share + (1 - config.min_lr_share) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def parameter_groups(named: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig) -> list[dict[str, Any]]:
    """Groups with `lr`, `weight_decay`, `name` and `params`: language, vision and merger, with and without decay.

    Args:
        named: parameters by their names in a stock model, whatever stands before.
        config: learning rates and decay.
    """
    rates = {
        "language": config.lr,
        "vision": config.lr if config.vision_lr is None else config.vision_lr,
        "merger": config.lr if config.merger_lr is None else config.merger_lr,
    }
    groups: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for name, parameter in named:
        kind = "merger" if any(part in name for part in MERGERS) else "vision" if "visual." in name else "language"
        decays = parameter.ndim >= 2 and not any(part in name for part in ("norm", "embed_tokens", "pos_embed"))
        groups.setdefault((kind, decays), []).append(parameter)
    return [
        {"name": kind if decays else f"{kind}, no decay", "params": members, "lr": rates[kind], "peak_lr": rates[kind],
         "weight_decay": config.weight_decay if decays else 0.0}
        for (kind, decays), members in sorted(groups.items())
    ]


class MasterWeights:
    """fp32 copies of a model's parameters under AdamW, written back in the model's own type after every step.

    Gradients are summed in fp32 over micro-batches and processes.

    Attributes:
        names: of the parameters.
        master: their fp32 copies.
        adam: the optimiser over `master`.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig, dtype: torch.dtype) -> None:
        """Take over a model's parameters; they become `dtype`."""
        named = list(model.named_parameters())
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.master = [nn.Parameter(parameter.detach().float().clone()) for parameter in self.parameters]
        for parameter in self.parameters:  # not model.to(): it would round the rotary frequencies, which are buffers
            parameter.data = parameter.data.to(dtype)
        fused = all(weight.device.type in ("cpu", "cuda") for weight in self.master)
        self.adam = torch.optim.AdamW(
            parameter_groups(zip(self.names, self.master, strict=True), config), betas=config.betas, fused=fused
        )
        self._clip_norm = config.clip_norm

    def accumulate(self) -> None:
        """Add the gradients of the model's parameters to the masters', and clear them."""
        for weight, parameter in zip(self.master, self.parameters, strict=True):
            if parameter.grad is not None:
                gradient = parameter.grad.float()
                weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
                parameter.grad = None

    def sum_over_processes(self) -> None:
        """Sum gradients over all processes of the default group, in one message."""
        gradients = [w.grad if w.grad is not None else torch.zeros_like(w) for w in self.master]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        torch.distributed.all_reduce(flat)
        for weight, part in zip(self.master, flat.split([w.numel() for w in self.master]), strict=True):
            weight.grad = part.view_as(weight)

    def set_rates(self, share: float) -> None:
        """Set the learning rates to a share of their peaks."""
        for group in self.adam.param_groups:
            group["lr"] = group["peak_lr"] * share

    def step(self) -> float:
        """Apply the accumulated gradients; returns their norm before clipping."""
        norm = nn.utils.clip_grad_norm_(self.master, self._clip_norm)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        self.write_back()
        return float(norm)

    @torch.no_grad()
    def write_back(self) -> None:
        """Copy the fp32 weights into the model."""
        torch._foreach_copy_(self.parameters, self.master)

    def state(self) -> dict[str, Tensor]:
        """Everything a resumed stage needs, as flat tensors."""
        tensors = {}
        for name, weight in zip(self.names, self.master, strict=True):
            tensors[f"weight.{name}"] = weight.detach()
            for key, value in self.adam.state[weight].items():
                tensors[f"{key}.{name}"] = value
        return tensors

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore `state()`."""
        for name, weight in zip(self.names, self.master, strict=True):
            weight.copy_(tensors[f"weight.{name}"])
            keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}.{name}" in tensors]
            if keys:
                self.adam.state[weight] = {key: tensors[f"{key}.{name}"].clone().to(weight.device) for key in keys}
        self.write_back()


def group_names(groups: Sequence[Mapping[str, Any]]) -> str:
    """Groups with their sizes and peak rates, in one line."""
    return ", ".join(
        f"{group['name']} {sum(p.numel() for p in group['params']):,} at {group['peak_lr']:g}" for group in groups
    )
