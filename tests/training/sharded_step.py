"""One step with PyTorch's FSDP2 on the CPU, run by `test_sharded.py` on two processes.

accelerate leaves FSDP to accelerators, so the wrapping that its configuration asks for is done here by hand: decoder
layers, vision blocks, then the whole of `AnswerModel`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from threading import Event
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from training.config import DiffusionConfig, DistillationConfig, OnPolicyConfig, TeacherConfig
from training.data.encode import EncodedSample
from training.forward import AnswerModel
from training.layout import View
from training.losses import Totals
from training.model_factory import NanoShape, build_model
from training.stages.block_adaptation import BlockAdaptation
from training.stages.block_distillation import Teacher
from training.stages.cross_scale import CrossScale
from training.stages.stage import Slots, Stage, TokenIds
from training.tokenizer import build_tokenizer
from training.trainer import Trainer
from training.trajectories import StudentDecoder
from wamdiff2_core.model.positions import prompt_positions

SHAPE = NanoShape(text_width=48, text_layers=2, text_heads=2, text_mlp=64, head_dim=24, vision_width=32,
                  vision_layers=2, vision_heads=2, vision_mlp=48, deepstack_layers=(0,))


def sample(seed: int, image_id: int, image: bool = True) -> EncodedSample:
    """A prompt, with one image of 2 x 4 patches or without, and an answer, all random."""
    draw = torch.Generator().manual_seed(seed)
    prompt = torch.randint(100, 800, (10,), generator=draw)
    pixels, grid = torch.randn(8, 3 * 2 * 16 * 16, generator=draw), torch.tensor([[1, 2, 4]])
    answer = torch.randint(100, 800, (9,), generator=draw)
    if not image:
        return EncodedSample(prompt, prompt_positions(prompt, None, image_id, 2), answer, None, None, "", "")
    prompt[3:5] = image_id
    return EncodedSample(prompt, prompt_positions(prompt, grid, image_id, 2), answer, pixels, grid, "", "")


class Step:
    """A model, in shards or whole, and the stages that it can take a step of."""

    def __init__(self, shards: bool) -> None:
        """Make both alike."""
        tokenizer = build_tokenizer()
        stock, taught = build_model(SHAPE, tokenizer, seed=1), build_model(SHAPE, tokenizer, seed=2)
        stock.activation_checkpointing_enable({"use_reentrant": False})
        stock.train()
        self.shards, self.model = shards, AnswerModel(stock, stock_vision=shards, score_rows=7)
        self.rank, self.world = (distributed.get_rank(), distributed.get_world_size()) if shards else (0, 1)
        if shards:
            mesh = init_device_mesh("cpu", (self.world,))
            for layer in (*stock.model.language_model.layers, *stock.model.visual.blocks):
                fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        self.image_id = int(stock.config.image_token_id)
        ids = TokenIds(tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.mask_token_id, self.image_id)
        diffusion = DiffusionConfig(8, copies=2)
        teacher = Teacher(AnswerModel(taught.requires_grad_(False)), View(8, "strict"))
        # just about where this student is sure, so that one process takes more steps than another
        policy = OnPolicyConfig(
            every=1, strategy="low_confidence_dynamic", confidence_threshold=0.0016, max_new_tokens=16
        )
        distillation = DistillationConfig(TeacherConfig("none"), on_policy=policy)
        self.decoder = decoder = StudentDecoder(policy, 8, ids.mask, ids.eos)
        self.stages: dict[str, Stage] = {
            "adaptation": BlockAdaptation(self.model, ids, diffusion),
            "own order": BlockAdaptation(self.model, ids, replace(diffusion, own_order=True)),
            "cross-scale": CrossScale(self.model, teacher, ids, diffusion, distillation, decoder),
        }

    def gradients(self, name: str, images: tuple[bool, ...]) -> dict[str, Tensor]:
        """Of a step of one sample for each of `images`, of all parameters."""
        stage = self.stages[name]
        self.model.zero_grad()
        parts = [
            stage.prepare([sample(slot, self.image_id, image)], Slots(0, 0, (slot,)))
            for slot, image in list(enumerate(images))[self.rank :: self.world]
        ]
        own = torch.tensor(float(sum(part.totals.tokens for part in parts)))
        if self.shards:
            distributed.all_reduce(own)
        totals = Totals(float(len(images)), float(own))
        for part in parts:
            loss, _ = stage.loss(part, totals)
            (loss * self.world).backward()  # FSDP averages over processes
        whole = {}
        for parameter_name, parameter in self.model.named_parameters():
            gradient = parameter.grad
            assert gradient is not None or not any(images), parameter_name
            if gradient is None:
                continue
            whole[parameter_name] = gradient.full_tensor() if self.shards else gradient
        return whole

    def steps(self, slot: int) -> int:
        """That the student takes for the answer to a sample."""
        (trajectory,) = self.decoder.decode(self.model, [sample(slot, self.image_id)], Slots(0, 0, (slot,)))
        return int((trajectory.fixed_at.view(-1, 8).amax(-1) + 1).sum())

    def validation_loss(self) -> float:
        """Of five samples, two at a time: an odd number of micro-batches."""
        trainer: Any = Trainer.__new__(Trainer)
        trainer.config = SimpleNamespace(run=SimpleNamespace(micro_batch=2))
        trainer._stop = Event()
        trainer._accelerator = SimpleNamespace(
            process_index=self.rank, num_processes=self.world, device=torch.device("cpu")
        )
        samples = [sample(slot, self.image_id, slot % 2 == 0) for slot in range(5)]
        trainer._parts = SimpleNamespace(validation=samples, plain_stage=self.stages["own order"])
        loss: float = trainer.validation_loss()
        return loss


def main() -> None:
    """Compare; the exit code tells."""
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    whole, sharded = Step(False), Step(True)
    assert whole.steps(0) != whole.steps(3)
    # on-policy first: a student may decode before it has ever been trained
    for name in ("cross-scale", "adaptation", "own order"):
        for images in ((True,) * 4, (True, False, False, True, True, False), (False, True)):
            expected, got = whole.gradients(name, images), sharded.gradients(name, images)
            for parameter, gradient in expected.items():
                place = f"{name}, {images}, {parameter}"
                assert torch.allclose(got[parameter], gradient, rtol=1e-4, atol=1e-6), place
    torch.testing.assert_close(sharded.validation_loss(), whole.validation_loss(), rtol=1e-5, atol=0)
    distributed.destroy_process_group()
    print("equal")
