"""The vision tower, run on the stock modules and weights with less waiting.

Equal-sized images go through as one batch instead of a Python loop over images; the patch convolution, whose stride is
its kernel, is one matrix product; tables that depend on the grid alone are kept. The values are those of the stock
forward.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from wamdiff2_core.model.cached_prompt import ImageKey

Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]


@dataclass(frozen=True)
class GridTables:
    """What depends on an image grid of P patches alone.

    Attributes:
        indices, weights: (P, 4) corners of the learned position grid and their bilinear weights.
        cos, sin: (P, head_dim) axial rotary embedding.
    """

    indices: Tensor
    weights: Tensor
    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, visual: Any, grid: tuple[int, int, int]) -> GridTables:
        """Compute them for one grid (patches in time, height, width) of a stock `Qwen3VLVisionModel`."""
        grid_thw = torch.tensor([grid], device=visual.pos_embed.weight.device)
        indices, weights = get_vision_interpolation_indices_and_weights(
            grid_thw,
            num_grid_per_side=visual.num_grid_per_side,
            mode=visual.interpolation_mode,
            align_corners=visual.interpolation_align_corners,
            spatial_merge_size=visual.spatial_merge_size,
        )
        position_ids = get_vision_position_ids(grid_thw, visual.spatial_merge_size)
        return cls(indices, weights, *visual.rotary_pos_emb(visual.pos_embed.weight, position_ids))


def fused_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Full attention of (N, H, P, d) heads by PyTorch's kernel."""
    return functional.scaled_dot_product_attention(query, key, value, scale=scale)


def _turned(heads: Tensor, tables: GridTables) -> Tensor:
    """(N, P, h, d) query and key heads turned by their place, in fp32 as the stock forward does it."""
    wide = heads.float()
    first, second = wide.chunk(2, -1)
    cos, sin = tables.cos[:, None].float(), tables.sin[:, None].float()
    return (wide * cos + torch.cat([-second, first], -1) * sin).to(heads.dtype)


def _run_block(block: Any, x: Tensor, tables: GridTables, attend: Attend) -> Tensor:
    attention = block.attn
    qkv = attention.qkv(block.norm1(x)).unflatten(-1, (3 * attention.num_heads, -1))  # (N, P, 3 H, d)
    query, key = _turned(qkv[:, :, : 2 * attention.num_heads], tables).transpose(1, 2).chunk(2, 1)
    value = qkv[:, :, 2 * attention.num_heads :].transpose(1, 2)
    x = x + attention.proj(attend(query, key, value, attention.scaling).transpose(1, 2).flatten(2))
    mixed: Tensor = x + block.mlp(block.norm2(x))
    return mixed


def encode_equal(visual: Any, tables: GridTables, patches: Tensor, attend: Attend = fused_attention) -> list[Tensor]:
    """Encode N images of one grid.

    Args:
        visual: a stock `Qwen3VLVisionModel`.
        tables: of the grid.
        patches: (N, P, patch_dim) in the image processor's order.
        attend: full attention inside each image: query, key, value (N, H, P, d) and scale to (N, H, P, d).

    Returns:
        image tokens (N, M, D), then the same for each deepstack layer.
    """
    learned = (visual.pos_embed(tables.indices) * tables.weights[:, :, None]).sum(1)
    projection = visual.patch_embed.proj
    x = functional.linear(patches.to(projection.weight.dtype), projection.weight.flatten(1), projection.bias)
    x = x + learned.to(x.dtype)
    deepstack = []
    for index, block in enumerate(visual.blocks):
        if block.gradient_checkpointing and block.training and torch.is_grad_enabled():
            x = block._gradient_checkpointing_func(_run_block, block, x, tables, attend)
        else:
            x = _run_block(block, x, tables, attend)
        if index in visual.deepstack_visual_indexes:
            merger = visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(index)]
            deepstack.append(merger(x).unflatten(0, (len(patches), -1)))
    return [visual.merger(x).unflatten(0, (len(patches), -1)), *deepstack]


class VisionEncoder:
    """Encodes images with a stock `Qwen3VLVisionModel`."""

    def __init__(self, visual: Any, attend: Attend = fused_attention) -> None:
        """Take the `model.visual` of a stock model, and full attention inside an image as `encode_equal` has it."""
        self.visual, self._attend = visual, attend
        self._tables: dict[tuple[int, int, int], GridTables] = {}

    def __call__(self, pixel_values: Tensor, image_grid_thw: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Encode images of any sizes.

        Args:
            pixel_values: (patches, patch_dim) normalised pixels, image after image.
            image_grid_thw: (images, 3) long.

        Returns:
            image tokens (tokens, D) in the order of the images, and the same for each deepstack layer.
        """
        grids = [(int(t), int(h), int(w)) for t, h, w in image_grid_thw.tolist()]
        kinds = list(dict.fromkeys(grids))
        for grid in kinds:
            if grid not in self._tables:
                self._tables[grid] = GridTables.of(self.visual, grid)
        if len(kinds) == 1:
            together = pixel_values.view(len(grids), -1, pixel_values.shape[-1])
            tokens, *deepstack = encode_equal(self.visual, self._tables[kinds[0]], together, self._attend)
            return tokens.flatten(0, 1), [level.flatten(0, 1) for level in deepstack]
        patches = torch.split(pixel_values, [t * h * w for t, h, w in grids])
        encoded: list[list[Tensor]] = [[] for _ in grids]
        for grid in kinds:
            members = [index for index, other in enumerate(grids) if other == grid]
            stacked = torch.stack([patches[index] for index in members])
            levels = encode_equal(self.visual, self._tables[grid], stacked, self._attend)
            for row, index in enumerate(members):
                encoded[index] = [level[row] for level in levels]
        tokens, *deepstack = [torch.cat(level) for level in zip(*encoded, strict=True)]
        return tokens, deepstack


class ImageMemory:
    """Features of the last images, found again by their pixels.

    An image that comes again, pixel for pixel, is not encoded again: its features are those of the first time, exactly.
    Weights must not change meanwhile.
    """

    def __init__(self, encode: Callable[[Tensor, Tensor], tuple[Tensor, list[Tensor]]], capacity: int) -> None:
        """Remember up to `capacity` images, 0 for none, of an encoder that is called as `VisionEncoder` is."""
        self._encode, self._capacity = encode, capacity
        self._kept: OrderedDict[ImageKey, tuple[Tensor, list[Tensor]]] = OrderedDict()

    def __call__(
        self, pixel_values: Tensor, image_grid_thw: Tensor, device: torch.device,
        keys: Sequence[ImageKey] | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """See `VisionEncoder.__call__`; features are on `device`, and pixels best on the host, which compares them.

        `keys` are those of `image_keys`, where they are known already.
        """
        if not self._capacity:
            return self._encode(pixel_values.to(device), image_grid_thw)
        keys = keys if keys is not None else image_keys(pixel_values, image_grid_thw)
        images = torch.split(pixel_values, image_grid_thw.prod(-1).tolist())
        found = {key: self._kept[key] for key in keys if key in self._kept}
        new = [index for index, key in enumerate(keys) if key not in found and key not in keys[:index]]
        if new:
            merged = self._merged(new, images, image_grid_thw, device)
            found.update((keys[index], features) for index, features in zip(new, merged, strict=True))
        for key in keys:
            self._kept[key] = found[key]
            self._kept.move_to_end(key)
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)
        if len(keys) == 1:
            return found[keys[0]]
        tokens, *deepstack = [
            torch.cat(level) for level in zip(*([found[key][0], *found[key][1]] for key in keys), strict=True)
        ]
        return tokens, deepstack

    def _merged(
        self, new: Sequence[int], images: Sequence[Tensor], image_grid_thw: Tensor, device: torch.device
    ) -> list[tuple[Tensor, list[Tensor]]]:
        """Features of each new image, encoded together."""
        pixels = torch.cat([images[index] for index in new]).to(device)
        tokens, deepstack = self._encode(pixels, image_grid_thw[list(new)])
        patches = [len(images[index]) for index in new]
        shares = [count * len(tokens) // len(pixels) for count in patches]  # all images merge alike
        levels = [torch.split(level, shares) for level in (tokens, *deepstack)]
        return [(own[0], list(own[1:])) for own in zip(*levels, strict=True)]


def image_keys(pixel_values: Tensor, image_grid_thw: Tensor) -> list[ImageKey]:
    """What tells images apart; arguments are those of `VisionEncoder.__call__`, pixels best on the host."""
    grids = [(int(t), int(h), int(w)) for t, h, w in image_grid_thw.tolist()]
    images = torch.split(pixel_values, [t * h * w for t, h, w in grids])
    return [(grid, _fingerprint(image)) for grid, image in zip(grids, images, strict=True)]


def _fingerprint(image: Tensor) -> bytes:
    """256 bits of the pixels' SHA-256."""
    return hashlib.sha256(image.cpu().contiguous().view(torch.uint8).numpy().data).digest()
