"""Frozen vision changes neither values nor weights, and keeps what it has encoded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from tests.training.test_trainer import final_state, losses, same, stage, trainer
from training.frozen_vision import FrozenVision
from wamdiff2_core.config import parse
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.vision import VisionEncoder

FROZEN = {"vision_lr": 0, "merger_lr": 0}


class Counting:
    """An encoder that notes how many images each call had."""

    def __init__(self, encoder: VisionEncoder) -> None:
        self.encoder, self.calls = encoder, []

    def __call__(self, pixels: Tensor, grids: Tensor) -> tuple[Tensor, list[Tensor]]:
        self.calls.append(len(grids))
        return self.encoder(pixels, grids)


@pytest.mark.parametrize("kept", [0, 2, 10])
def test_values_are_those_of_the_encoder_and_known_images_are_not_encoded_again(small_model: object, kept: int) -> None:
    encoder = VisionEncoder(small_model.model.visual)
    counting = Counting(encoder)
    frozen = FrozenVision(counting, kept)
    grids = torch.tensor([[1, 2, 4], [1, 4, 4], [1, 2, 4]])
    patches = small_model.config.vision_config
    width = patches.in_channels * patches.temporal_patch_size * patches.patch_size**2
    pixels = torch.randn(int(grids.prod(-1).sum()), width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted, wanted_levels = encoder(pixels, grids)
    for _ in range(2):
        tokens, levels = frozen(pixels, grids)
        torch.testing.assert_close(tokens, wanted, atol=1e-5, rtol=1e-4)
        for level, other in zip(levels, wanted_levels, strict=True):
            torch.testing.assert_close(level, other, atol=1e-5, rtol=1e-4)
        assert not tokens.requires_grad
    assert counting.calls == {0: [3, 3], 2: [1, 1, 1, 1], 10: [1, 1, 1]}[kept]


def test_a_compiled_forward_is_not_compiled_anew_for_every_picture(small_model: object) -> None:
    frozen, counter = FrozenVision(VisionEncoder(small_model.model.visual), 10), CompileCounter()
    patches = small_model.config.vision_config
    width = patches.in_channels * patches.temporal_patch_size * patches.patch_size**2
    compiled = torch.compile(lambda pixels: 2.0 * frozen(pixels, torch.tensor([[1, 2, 4]]))[0], backend=counter)
    for seed in range(12):
        compiled(torch.randn(8, width, generator=torch.Generator().manual_seed(seed)))
    assert counter.frame_count <= 2


def test_frozen_vision_keeps_its_weights_and_text_learns(picture_set: Path, tmp_path: Path) -> None:
    frozen = trainer(stage(tmp_path / "frozen", picture_set, optimizer={"lr": 2e-3, "warmup_steps": 2, **FROZEN}))
    before = {name: p.detach().clone() for name, p in frozen._parts.parallel.model.model.named_parameters()}
    frozen.train()
    for name, parameter in frozen._parts.parallel.model.model.named_parameters():
        assert torch.equal(parameter, before[name]) == ("visual." in name), name


def test_kept_images_change_no_step_and_survive_a_resume(picture_set: Path, tmp_path: Path) -> None:
    optimizer = {"lr": 2e-3, "warmup_steps": 2, **FROZEN}
    trainer(stage(tmp_path / "fresh", picture_set, optimizer=optimizer)).train()
    trainer(stage(tmp_path / "kept", picture_set, optimizer=optimizer, run={"kept_images": 100})).train()
    for (_, one), (_, other) in zip(losses(tmp_path / "fresh"), losses(tmp_path / "kept"), strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    trainer(stage(tmp_path / "again", picture_set, optimizer=optimizer, run={"kept_images": 100, "stop_at": 3})).train()
    trainer(stage(tmp_path / "again", picture_set, optimizer=optimizer, run={"kept_images": 100})).train()
    same(final_state(tmp_path / "kept"), final_state(tmp_path / "again"))


def test_half_frozen_vision_is_refused() -> None:
    from training.config import OptimizerConfig

    with pytest.raises(UserError, match="both 0"):
        parse(OptimizerConfig, {"vision_lr": 0}, "test")


def test_images_are_not_kept_while_vision_learns(picture_set: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="kept_images"):
        stage(tmp_path / "out", picture_set, run={"kept_images": 1})
