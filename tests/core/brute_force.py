"""Block-diffusion decoding without a cache, written from the definition: the oracle of the cached decoder.

Every step runs the stock model over [prompt | finished blocks | open block] under one mask.
"""

from __future__ import annotations

from typing import Any

import torch

from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.config import DecodeConfig


def logits_of_block(model: Any, inputs: ModelInputs, answer: list[int], block_size: int) -> torch.Tensor:
    """(B, V) logits at the last `block_size` tokens of [prompt | answer]."""
    ids = torch.cat([inputs.input_ids, torch.tensor(answer, dtype=torch.long)])[None]
    prompt = len(inputs.input_ids)
    blocks = [i // block_size for i in range(prompt)]
    blocks += [-(-prompt // block_size) + j // block_size for j in range(len(answer))]
    allowed = torch.tensor([[key <= query for key in blocks] for query in blocks])[None, None]
    if model.config.get_text_config()._attn_implementation == "eager":
        allowed = torch.where(allowed, 0.0, torch.finfo(torch.float32).min)
    kinds = torch.zeros_like(ids, dtype=torch.int)
    if inputs.image_grid_thw is not None:
        kinds[0, :prompt] = (ids[0, :prompt] == model.config.image_token_id).int()
    positions, _ = model.model.get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=inputs.image_grid_thw)
    features: dict[str, Any] = {}
    if inputs.pixel_values is not None:
        features = {"pixel_values": inputs.pixel_values, "image_grid_thw": inputs.image_grid_thw}
    with torch.no_grad():
        out = model(
            input_ids=ids, position_ids=positions, attention_mask=allowed, mm_token_type_ids=kinds, use_cache=False,
            **features,
        )
    return out.logits[0, -block_size:].float()


def brute_force(model: Any, inputs: ModelInputs, config: DecodeConfig, mask_id: int, eos_id: int) -> list[int]:
    """Raw ids at temperature 0: whole blocks, EOS after the block that ended the answer."""
    size, limit = config.block_size, -(-config.max_new_tokens // config.block_size) * config.block_size
    budget = min(config.denoising_steps, size)
    answer: list[int] = []
    while len(answer) < limit:
        block: list[int | None] = [None] * size
        for step in range(budget):
            open_ = [i for i, token in enumerate(block) if token is None]
            if not open_:
                break
            ids = [mask_id if token is None else token for token in block]
            probabilities = logits_of_block(model, inputs, answer + ids, size)
            probabilities[:, mask_id] = -torch.inf
            probabilities = probabilities.softmax(-1)
            best = [int(row.argmax()) for row in probabilities]
            sure = [float(row.max()) for row in probabilities]
            share = size // budget + (1 if step < size % budget else 0)
            if step == budget - 1:
                chosen = open_
            elif config.strategy == "sequential":
                chosen = open_[:share]
            else:
                ranked = sorted(open_, key=lambda i: (-sure[i], i))
                chosen = ranked[:share]
                if config.strategy == "low_confidence_dynamic":
                    chosen = [i for i in open_ if sure[i] >= config.confidence_threshold] or ranked[:1]
            for i in chosen:
                block[i] = best[i]
        answer += [token for token in block if token is not None]
        if eos_id in answer[-size:]:
            break
    return answer + [eos_id] * (limit - len(answer))
