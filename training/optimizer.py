"""AdamW on fp32 master weights of a model that computes in another type, and its learning-rate schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from wamdiff2_core.config import Strict


@dataclass(frozen=True)
class OptimizerConfig(Strict):
    """AdamW with linear warm-up and cosine decay.

    Attributes:
        lr: peak learning rate.
        min_lr_share: last learning rate as a share of the peak.
        warmup_steps: linear rise from 0.
        weight_decay: on matrices; norms, biases and embeddings of positions have none.
        betas: of Adam.
        clip_norm: gradient norm limit.
    """

    lr: float = 2e-3
    min_lr_share: float = 0.05
    warmup_steps: int = 100
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    clip_norm: float = 1.0


def learning_rate(step: int, optimizer: OptimizerConfig, steps: int) -> float:
    """Rate of step 0..steps-1."""
    rise = min(1.0, (step + 1) / max(1, optimizer.warmup_steps))
    fall = 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(1, steps))))
    return optimizer.lr * rise * (optimizer.min_lr_share + (1 - optimizer.min_lr_share) * fall)


class MasterWeights:
    """fp32 copies of the parameters under AdamW, written back to the model's own dtype after every step."""

    def __init__(self, model: torch.nn.Module, config: OptimizerConfig, dtype: torch.dtype) -> None:
        self.config = config
        self.names = [name for name, _ in model.named_parameters()]
        self.master = [parameter.detach().float().clone() for parameter in model.parameters()]
        self.parameters = list(model.parameters())
        for parameter in self.parameters:  # not model.to(): it would round the rotary frequencies, which are buffers
            parameter.data = parameter.data.to(dtype)
        decayed = [w for name, w in zip(self.names, self.master, strict=True) if w.ndim >= 2 and "embed" not in name]
        others = [w for name, w in zip(self.names, self.master, strict=True) if w.ndim < 2 or "embed" in name]
        self.adam = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=config.lr, betas=config.betas, fused=True,
        )

    def step(self, lr: float) -> float:
        """Apply the gradients of the model's parameters and clear them; returns the gradient norm before clipping."""
        for group in self.adam.param_groups:
            group["lr"] = lr
        for weight, parameter in zip(self.master, self.parameters, strict=True):
            weight.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        norm = torch.nn.utils.clip_grad_norm_(self.master, self.config.clip_norm)
        self.adam.step()
        self.write_back()
        return float(norm)

    @torch.no_grad()
    def write_back(self) -> None:
        """Copy the fp32 weights into the model."""
        torch._foreach_copy_(self.parameters, self.master)

    def state(self) -> dict[str, torch.Tensor]:
        """Everything a resumed stage needs, as flat tensors."""
        tensors = {}
        for name, weight in zip(self.names, self.master, strict=True):
            tensors[f"weight.{name}"] = weight
            for key, value in self.adam.state[weight].items():
                tensors[f"{key}.{name}"] = value
        return tensors

    @torch.no_grad()
    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """Restore `state()`."""
        for name, weight in zip(self.names, self.master, strict=True):
            weight.copy_(tensors[f"weight.{name}"])
            keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}.{name}" in tensors]
            if keys:
                self.adam.state[weight] = {key: tensors[f"{key}.{name}"].clone() for key in keys}
        self.write_back()
