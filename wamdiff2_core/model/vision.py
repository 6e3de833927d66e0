"""The vision tower, run on the stock modules and weights with less waiting.

Equal-sized images go through as one batch instead of a Python loop over images; the patch convolution, whose stride is
its kernel, is one matrix product; tables that depend on the grid alone are kept. The values are those of the stock
forward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb_vision
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids


class VisionEncoder:
    """Encodes images with a stock `Qwen3VLVisionModel`."""

    def __init__(self, visual: Any) -> None:
        """Take the `model.visual` of a stock model."""
        self.visual = visual
        self._grids: dict[tuple[int, int, int], tuple[Tensor, Tensor, tuple[Tensor, Tensor]]] = {}

    def __call__(self, pixel_values: Tensor, image_grid_thw: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Encode images of any sizes.

        Args:
            pixel_values: (patches, patch_dim) normalised pixels, image after image.
            image_grid_thw: (images, 3) long.

        Returns:
            image tokens (tokens, D) in the order of the images, and the same for each deepstack layer.
        """
        grids = [(int(t), int(h), int(w)) for t, h, w in image_grid_thw.tolist()]
        patches = torch.split(pixel_values, [t * h * w for t, h, w in grids])
        encoded: list[list[Tensor]] = [[] for _ in grids]
        for grid in dict.fromkeys(grids):
            members = [index for index, other in enumerate(grids) if other == grid]
            levels = self._encode_equal(torch.stack([patches[index] for index in members]), grid)
            for row, index in enumerate(members):
                encoded[index] = [level[row] for level in levels]
        tokens, *deepstack = [torch.cat(level) for level in zip(*encoded, strict=True)]
        return tokens, deepstack

    def _tables(self, grid: tuple[int, int, int]) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Index and weight of the learned position grid, and cosine and sine of the rotary one."""
        if grid not in self._grids:
            visual = self.visual
            device = visual.pos_embed.weight.device
            grid_thw = torch.tensor([grid], device=device)
            indices, weights = get_vision_interpolation_indices_and_weights(
                grid_thw,
                num_grid_per_side=visual.num_grid_per_side,
                mode=visual.interpolation_mode,
                align_corners=visual.interpolation_align_corners,
                spatial_merge_size=visual.spatial_merge_size,
            )
            position_ids = get_vision_position_ids(grid_thw, visual.spatial_merge_size)
            rotary = visual.rotary_pos_emb(visual.pos_embed.weight, position_ids)
            self._grids[grid] = indices, weights, rotary
        return self._grids[grid]

    def _encode_equal(self, patches: Tensor, grid: tuple[int, int, int]) -> list[Tensor]:
        """Encode (N, P, patch_dim) patches of N images of one grid; returns merged tokens, then deepstack levels."""
        visual = self.visual
        indices, weights, (cos, sin) = self._tables(grid)
        learned = (visual.pos_embed(indices) * weights[:, :, None]).sum(1)
        projection = visual.patch_embed.proj
        x = functional.linear(patches.to(projection.weight.dtype), projection.weight.flatten(1), projection.bias)
        x = x + learned.to(x.dtype)
        deepstack = []
        for index, block in enumerate(visual.blocks):
            x = x + self._attend(block.attn, block.norm1(x), cos, sin)
            x = x + block.mlp(block.norm2(x))
            if index in visual.deepstack_visual_indexes:
                merger = visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(index)]
                deepstack.append(merger(x).unflatten(0, (len(patches), -1)))
        return [visual.merger(x).unflatten(0, (len(patches), -1)), *deepstack]

    @staticmethod
    def _attend(attention: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Any:
        """Full attention inside each image; without a mask `sdpa` and `eager` are the same sum."""
        query, key, value = attention.qkv(x).unflatten(-1, (3, attention.num_heads, -1)).unbind(2)
        query, key = apply_rotary_pos_emb_vision(query, key, cos, sin)
        out = functional.scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
        return attention.proj(out.transpose(1, 2).flatten(2))
