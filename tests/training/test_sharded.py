"""Parameters in shards: gradients under FSDP2, and rates and clipping where DeepSpeed takes the step itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.training import ranks, sharded_step
from training.assembly import make_accelerator
from training.config import DataConfig, OptimizerConfig, RunConfig, StageConfig
from training.data.sources import SourceConfig
from training.parallel import Sharded
from wamdiff2_core.errors import UserError

OPTIMIZER = OptimizerConfig(lr=0.1, clip_norm=0.5, weight_decay=0.0)


@pytest.mark.slow
def test_two_shards_have_the_gradients_of_the_whole_model(tmp_path: Path) -> None:
    ranks.run(tmp_path / "log", sharded_step.main, processes=2)
    assert (tmp_path / "log").read_text().count("equal") == 2


class Engine:
    """DeepSpeed's engine as accelerate uses it: `step` clips and takes the optimiser's step."""

    def __init__(self, model: nn.Module, adam: torch.optim.Optimizer, norm: float | None = None) -> None:
        self.model, self.adam, self.norm, self.boundary = model, adam, norm, False

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        self.boundary = is_boundary

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        assert self.boundary
        self.norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), OPTIMIZER.clip_norm))
        self.adam.step()
        self.adam.zero_grad()

    def get_global_grad_norm(self) -> float | None:
        return self.norm


class DeepSpeed:
    """The parts of `Accelerator` that a sharded step calls, with accelerate's own wrappers of DeepSpeed."""

    num_processes = 1

    def __init__(self) -> None:
        from accelerate.state import GradientState

        self.gradient_state: Any = GradientState()

    def prepare(self, model: nn.Module, adam: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        from accelerate import Accelerator
        from accelerate.utils.deepspeed import DeepSpeedEngineWrapper, DeepSpeedOptimizerWrapper

        Accelerator(cpu=True)  # the wrappers ask for its state
        self.wrapped = DeepSpeedEngineWrapper(Engine(model, adam))
        return model, DeepSpeedOptimizerWrapper(adam)

    def backward(self, loss: Tensor) -> None:
        self.wrapped.backward(loss, sync_gradients=self.gradient_state.sync_gradients)

    def clip_grad_norm_(self, parameters: Iterator[nn.Parameter], norm: float) -> float | None:
        found: float | None = self.wrapped.get_global_grad_norm()
        return found


def test_under_deepspeed_every_step_has_its_own_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    start = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    outer: Any = nn.Module()
    outer.model = nn.Linear(4, 3, bias=False)
    outer.model.weight.data.copy_(start)
    sharded = Sharded(outer, OPTIMIZER, DeepSpeed())  # type: ignore[arg-type]
    expected = nn.Parameter(start.clone())
    adam = torch.optim.AdamW([expected], lr=1.0, betas=OPTIMIZER.betas, weight_decay=0.0)
    for share in (0.25, 0.5, 1.0):
        sharded.begin_step(share)
        for part in range(3):
            sharded.backward(outer.model(inputs[2 * part : 2 * part + 2]).pow(2).sum(), last=part == 2)
        norm = sharded.step()
        (inputs @ expected.T).pow(2).sum().backward()
        whole = nn.utils.clip_grad_norm_([expected], OPTIMIZER.clip_norm)
        adam.param_groups[0]["lr"] = OPTIMIZER.lr * share
        adam.step()
        adam.zero_grad()
        torch.testing.assert_close(outer.model.weight.data, expected.data)
        assert norm == pytest.approx(float(whole), rel=1e-5)
    monkeypatch.setattr(Engine, "get_global_grad_norm", lambda engine: None)
    assert sharded.step() is None  # DeepSpeed does not know it yet, or not with this optimiser


def test_deepspeed_clips_by_the_stage_not_by_its_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = SimpleNamespace(deepspeed_config={"gradient_clipping": 1.0})
    made = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin), log_with=[])
    monkeypatch.setattr("accelerate.Accelerator", lambda **_: made)
    make_accelerator(StageConfig(
        "block_adaptation", "out", DataConfig((SourceConfig("a", "a.jsonl"),)), optimizer=OPTIMIZER,
        run=RunConfig(micro_batch=2, trackers=()),
    ))
    assert plugin.deepspeed_config == {"gradient_clipping": 0.5, "train_micro_batch_size_per_gpu": 2}


def test_a_tracker_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(state=SimpleNamespace(), log_with=[])  # accelerate has left it out
    monkeypatch.setattr("accelerate.Accelerator", lambda **_: made)
    config = StageConfig("autoregressive", "out", DataConfig((SourceConfig("a", "a.jsonl"),)),
                         run=RunConfig(trackers=("wandb",)))
    with pytest.raises(UserError, match=r"run\.trackers: expected installed packages, got wandb"):
        make_accelerator(config)
