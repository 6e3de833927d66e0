"""The training forward: stock Qwen3-VL modules called in one straight line, so that a step batches and compiles.

Numerically it is the stock forward (a test holds the two equal). What differs is cost. Equal-sized images pass the
vision tower as one batch, the patch convolution (stride = kernel) is one matrix product, and attention is split by who
may see whom: context rows [prefix | clean answer] see the context, and each noisy copy sees the context and itself, so
no score is computed only to be masked. Written out as products and a softmax, attention takes 34 ms where PyTorch's
fused CPU kernel takes 78 ms forward and backward (16 x 6 heads x 278 tokens, bf16, one core).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration

HIDDEN_SCORE = -1e4  # finite, so that a padding row stays free of NaN


@dataclass(frozen=True)
class ImageTokens:
    """Output of the vision tower for equal-sized images, one image a row.

    Attributes:
        features: (N, M, D) tokens that replace the image placeholders.
        deepstack: per deepstack layer (N, M, D), added after the first text layers.
    """

    features: Tensor
    deepstack: tuple[Tensor, ...]


@dataclass(frozen=True)
class VisionGeometry:
    """What the vision tower needs to know of an image grid of P patches.

    Attributes:
        indices, weights: (P, 4) corners of the learned position grid and their bilinear weights.
        cos, sin: (P, head_dim) axial rotary embedding.
    """

    indices: Tensor
    weights: Tensor
    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, model: Qwen3VLForConditionalGeneration, grid_thw: tuple[int, int, int]) -> VisionGeometry:
        """Compute it for one grid (patches in time, height, width)."""
        from transformers.models.qwen3_vl import modeling_qwen3_vl as stock

        visual = model.model.visual
        grid = torch.tensor([grid_thw])
        merge = visual.config.spatial_merge_size
        indices, weights = stock.get_vision_interpolation_indices_and_weights(
            grid, num_grid_per_side=visual.num_grid_per_side, mode=visual.interpolation_mode,
            align_corners=visual.interpolation_align_corners, spatial_merge_size=merge,
        )
        cos, sin = visual.rotary_pos_emb(weights, stock.get_vision_position_ids(grid, merge))
        return cls(indices, weights, cos, sin)


def encode_images(model: Qwen3VLForConditionalGeneration, geometry: VisionGeometry, patches: Tensor) -> ImageTokens:
    """Vision tower on N equal-sized images; `patches` (N, P, patch_dim) in the image processor's order."""
    visual = model.model.visual
    embed = visual.patch_embed.proj
    count, length, _ = patches.shape
    learned = (visual.pos_embed(geometry.indices) * geometry.weights[:, :, None]).sum(1)
    patches, learned = patches.to(embed.weight.dtype), learned.to(embed.weight.dtype)
    x = functional.linear(patches, embed.weight.flatten(1), embed.bias) + learned
    cos, sin = geometry.cos[None, None].to(x.dtype), geometry.sin[None, None].to(x.dtype)
    deepstack = []
    for index, block in enumerate(visual.blocks):
        attention = block.attn
        qkv = attention.qkv(block.norm1(x)).view(count, length, 3, attention.num_heads, attention.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = _attend(_rotate(q, cos, sin), _rotate(k, cos, sin), v, attention.scaling)
        x = x + attention.proj(y.transpose(1, 2).flatten(2))
        x = x + block.mlp(block.norm2(x))
        if index in visual.deepstack_visual_indexes:
            merger = visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(index)]
            deepstack.append(_merge(merger, x))
    return ImageTokens(_merge(visual.merger, x), tuple(deepstack))


def hidden_states(
    model: Qwen3VLForConditionalGeneration,
    ids: Tensor,
    positions: Tensor,
    context_bias: Tensor,
    copy_bias: Tensor | None,
    images: ImageTokens | None = None,
    image_slots: Tensor | None = None,
) -> Tensor:
    """Language model on [context | noisy copy x K].

    Args:
        ids: (N, C + K * R) token ids.
        positions: (3, N, C + K * R) mrope positions.
        context_bias: (N, 1, C, C) added to the scores of context rows.
        copy_bias: (N, 1, 1, R, C + R) added to the scores of a copy against [context | itself], or None when K = 0.
        images: one image a row, or None.
        image_slots: (N, M) columns of the image placeholders in `ids`.

    Returns:
        (N, C + K * R, D) after the final norm.
    """
    text = model.model.language_model
    x = text.embed_tokens(ids)
    deepstack: tuple[Tensor, ...] = ()
    if images is not None and image_slots is not None:
        where = image_slots[:, :, None].expand(-1, -1, x.shape[-1])
        x = x.scatter(1, where, images.features.to(x.dtype))
        deepstack = images.deepstack
    cos, sin = (table[:, None] for table in text.rotary_emb(x, positions))
    for index, layer in enumerate(text.layers):
        attention = layer.self_attn
        y = layer.input_layernorm(x)
        heads = (*y.shape[:2], -1, attention.head_dim)
        q = _rotate(attention.q_norm(attention.q_proj(y).view(heads)).transpose(1, 2), cos, sin)
        k = _rotate(attention.k_norm(attention.k_proj(y).view(heads)).transpose(1, 2), cos, sin)
        v = attention.v_proj(y).view(heads).transpose(1, 2)
        if groups := attention.num_key_value_groups - 1:
            k, v = k.repeat_interleave(groups + 1, 1), v.repeat_interleave(groups + 1, 1)
        y = _block_attention(q, k, v, attention.scaling, context_bias, copy_bias)
        x = x + attention.o_proj(y.transpose(1, 2).flatten(2))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        if index < len(deepstack):
            x = x.scatter_add(1, where, deepstack[index].to(x.dtype))
    return text.norm(x)


def _block_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, context_bias: Tensor, copy_bias: Tensor | None
) -> Tensor:
    """(N, H, L, d) attention of context rows on the context, and of each copy on the context and itself."""
    context = context_bias.shape[-1]
    seen = _attend(q[:, :, :context], k[:, :, :context], v[:, :, :context], scale, context_bias)
    if copy_bias is None:
        return seen
    batch, heads, length, width = q.shape
    rows = copy_bias.shape[-2]
    copies = (length - context) // rows

    def by_copy(x: Tensor) -> Tensor:
        return x[:, :, context:].reshape(batch, heads, copies, rows, width)

    def with_context(x: Tensor) -> Tensor:
        shared = x[:, :, None, :context].expand(-1, -1, copies, -1, -1)
        return torch.cat([shared, by_copy(x)], -2)

    y = _attend(by_copy(q), with_context(k), with_context(v), scale, copy_bias)
    return torch.cat([seen, y.flatten(2, 3)], 2)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    scores = (q * scale) @ k.transpose(-1, -2)
    return (scores if bias is None else scores + bias).softmax(-1) @ v


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def _merge(merger: torch.nn.Module, x: Tensor) -> Tensor:
    """Apply a stock patch merger, which flattens images, and bring the images back."""
    merged = merger(x)
    return merged.view(x.shape[0], -1, merged.shape[-1])
