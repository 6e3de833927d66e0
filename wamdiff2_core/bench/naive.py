"""The rungs below: block diffusion as published code decodes it, and the plain forwards of Hugging Face.

`decode_naively` runs the stock model and does what upstream's `generate` does: logits of the whole prompt; keys and
values concatenated anew in every layer at every step; an all-true mask, which keeps attention off its fast path; a
softmax over the whole vocabulary, in the model's dtype, at every position of the block; a forward of its own to commit
each block, the last one too. Where it differs it is the quicker: its prompt mask is not built in a loop, and the mask
token is ruled out, so no position is masked again. In float32 it gives the tokens that `decode_blocks` gives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode.schedule import schedule
from wamdiff2_core.decode.selection import select_positions
from wamdiff2_core.model.masks import as_attention_mask, block_count, prefix_mask
from wamdiff2_core.model.positions import answer_positions, prompt_positions

NO_EOS = 2**31 - 1  # beyond every vocabulary: an answer that has a given length


@torch.inference_mode()
def decode_naively(
    model: Any, request: ModelInputs, config: DecodeConfig, mask_token_id: int, eos_token_id: int = NO_EOS
) -> list[int]:
    """Decode one request greedily.

    Args:
        model: stock Qwen3-VL.
        request: prompt.
        config: block size, steps, strategy and length.
        mask_token_id: never chosen.
        eos_token_id: ends the answer after its block.

    Returns:
        Whole blocks of token ids.
    """
    size, counts = config.block_size, schedule(config.block_size, config.denoising_steps)
    blocks, device = block_count(config.max_new_tokens, size), model.device
    positions = prompt_positions(
        request.input_ids, request.image_grid_thw, model.config.image_token_id,
        model.config.vision_config.spatial_merge_size,
    )
    answers = answer_positions(positions, blocks * size)[:, None].to(device)
    valid = torch.ones(1, len(request.input_ids), dtype=torch.bool, device=device)
    cache = _prefill(model, request, positions[:, None].to(device), prefix_mask(valid, size))
    ids: list[int] = []
    for first in range(0, blocks * size, size):
        tokens = torch.full((1, size), mask_token_id, device=device)
        masked = torch.ones_like(tokens, dtype=torch.bool)
        place = answers[:, :, first : first + size]
        for step, count in enumerate(counts):
            logits = _forward(model, tokens, cache, place)
            cache.crop(-size)
            logits[..., mask_token_id] = -torch.inf
            confidence, candidates = logits.softmax(-1).max(-1)
            last = step + 1 == len(counts)
            fixed = masked if last else select_positions(confidence, masked, config, count)
            tokens = torch.where(fixed, candidates, tokens)
            masked = masked & ~fixed
            if not masked.any():
                break
        _forward(model, tokens, cache, place)
        ids += tokens[0].tolist()
        if eos_token_id in ids:
            break
    return ids


@torch.inference_mode()
def plain_forwards(model: Any, request: ModelInputs, size: int, count: int) -> None:
    """Run the prompt, then `count` stock forwards of `size` tokens, each with a softmax over its logits."""
    from transformers import DynamicCache

    # positions of its own choice: stock code remembers those of the last request
    model.model.rope_deltas = None
    cache = DynamicCache(config=model.config)
    model(**stock_inputs(model, request), cache=cache, use_cache=True)
    tokens = torch.full((1, size), int(request.input_ids[-1]), device=model.device)
    for _ in range(count):
        model(input_ids=tokens, cache=cache, use_cache=True).logits.softmax(-1).max(-1)
        cache.crop(-size)


@torch.inference_mode()
def generate_stock(model: Any, request: ModelInputs, count: int) -> list[int]:
    """`count` tokens of Hugging Face's greedy `generate` with a static cache, whatever they are."""
    from transformers import GenerationConfig

    model.model.rope_deltas = None
    config = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=count, do_sample=False, eos_token_id=NO_EOS, pad_token_id=0, cache_implementation="static",
    )
    inputs = stock_inputs(model, request)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    ids: Tensor = model.generate(**inputs, generation_config=config)
    answer: list[int] = ids[0, len(request.input_ids) :].tolist()
    return answer


def stock_inputs(model: Any, request: ModelInputs) -> dict[str, Tensor]:
    """A request as the stock model's arguments, a batch of one."""
    ids = request.input_ids[None].to(model.device)
    if request.pixel_values is None or request.image_grid_thw is None:
        return {"input_ids": ids}
    return {
        "input_ids": ids, "pixel_values": request.pixel_values.to(model.device),
        "image_grid_thw": request.image_grid_thw.to(model.device),
        "mm_token_type_ids": (ids == model.config.image_token_id).int(),
    }


def _prefill(model: Any, request: ModelInputs, positions: Tensor, allowed: Tensor) -> Any:
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    model(
        **stock_inputs(model, request), attention_mask=_mask(model, allowed), position_ids=positions,
        cache=cache, use_cache=True,
    )
    return cache


def _forward(model: Any, tokens: Tensor, cache: Any, positions: Tensor) -> Tensor:
    """(1, B, V) logits; the cache grows by the block."""
    columns = cache.get_seq_length() + tokens.shape[1]
    allowed = torch.ones(1, tokens.shape[1], columns, dtype=torch.bool, device=tokens.device)
    logits: Tensor = model(
        input_ids=tokens, attention_mask=_mask(model, allowed), position_ids=positions, cache=cache,
        use_cache=True,
    ).logits
    return logits


def _mask(model: Any, allowed: Tensor) -> Tensor:
    text: Any = model.model.language_model
    return as_attention_mask(allowed, text.embed_tokens.weight.dtype, str(text.config._attn_implementation))
