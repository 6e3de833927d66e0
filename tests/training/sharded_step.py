"""One step with PyTorch's FSDP2 on the CPU, run by `test_sharded.py` on two processes.

accelerate leaves FSDP to accelerators, so the wrapping that its configuration asks for is done here by hand: decoder
layers, vision blocks, then the whole of `AnswerModel`.
"""

from __future__ import annotations

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from training.config import DiffusionConfig
from training.data.encode import EncodedSample
from training.forward import AnswerModel
from training.losses import Totals
from training.model_factory import NanoShape, build_model
from training.stages.block_adaptation import BlockAdaptation
from training.stages.stage import Slots, TokenIds
from training.tokenizer import build_tokenizer
from wamdiff2_core.model.positions import prompt_positions

SHAPE = NanoShape(text_width=48, text_layers=2, text_heads=2, text_mlp=64, head_dim=24, vision_width=32,
                  vision_layers=2, vision_heads=2, vision_mlp=48, deepstack_layers=(0,))


def sample(seed: int, image_id: int) -> EncodedSample:
    """A prompt with one image of 2 x 4 patches, and an answer, all random."""
    draw = torch.Generator().manual_seed(seed)
    prompt = torch.randint(100, 800, (10,), generator=draw)
    prompt[3:5] = image_id
    grid = torch.tensor([[1, 2, 4]])
    pixels = torch.randn(8, 3 * 2 * 16 * 16, generator=draw)
    answer = torch.randint(100, 800, (9,), generator=draw)
    return EncodedSample(prompt, prompt_positions(prompt, grid, image_id, 2), answer, pixels, grid, "", "")


def step(shards: bool) -> dict[str, torch.Tensor]:
    """Gradients of a step of four samples, of all parameters."""
    tokenizer = build_tokenizer()
    stock = build_model(SHAPE, tokenizer, seed=1)
    stock.activation_checkpointing_enable({"use_reentrant": False})
    stock.train()
    model = AnswerModel(stock, stock_vision=shards, score_rows=7)
    rank, world = (distributed.get_rank(), distributed.get_world_size()) if shards else (0, 1)
    if shards:
        mesh = init_device_mesh("cpu", (world,))
        for layer in (*stock.model.language_model.layers, *stock.model.visual.blocks):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    image_id = int(stock.config.image_token_id)
    ids = TokenIds(tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.mask_token_id, image_id)
    stage = BlockAdaptation(model, ids, DiffusionConfig(8, copies=2))
    parts = [stage.prepare([sample(slot, image_id)], Slots(0, 0, (slot,))) for slot in range(4)]
    totals = Totals(4.0, sum(part.totals.tokens for part in parts))
    for part in parts[rank::world]:
        loss, _ = stage.loss(part, totals)
        (loss * world).backward()  # FSDP averages over processes
    gradients = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        gradients[name] = parameter.grad.full_tensor() if shards else parameter.grad
    return gradients


def main() -> None:
    """Compare; the exit code tells."""
    distributed.init_process_group("gloo")
    whole, sharded = step(False), step(True)
    for name, gradient in whole.items():
        torch.testing.assert_close(sharded[name], gradient, rtol=1e-4, atol=1e-6)
    distributed.destroy_process_group()
    print("equal")
