"""The training forward: stock Qwen3-VL modules called in one straight line, so that a step batches and compiles.

Numerically it is the stock forward (a test holds the two equal). What differs is cost: attention is split by who may
see whom: context rows [prefix | clean answer] see the context, and each noisy copy sees the context and itself, so no
score is computed only to be masked. Attention is written out as products and a softmax because PyTorch's fused CPU
kernel is slow backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration

HIDDEN_SCORE = -1e4  # finite, so that a padding row stays free of NaN


def hidden_states(
    model: Qwen3VLForConditionalGeneration,
    ids: Tensor,
    positions: Tensor,
    context_bias: Tensor,
    copy_bias: Tensor | None,
    images: Sequence[Tensor] = (),
    image_slots: Tensor | None = None,
) -> Tensor:
    """Language model on [context | noisy copy x K].

    Args:
        ids: (N, C + K * R) token ids.
        positions: (3, N, C + K * R) mrope positions.
        context_bias: (N, 1, C, C) added to the scores of context rows.
        copy_bias: (N, 1, 1, R, C + R) added to the scores of a copy against [context | itself], or None when K = 0.
        images: of `vision.encode_equal`, one image a row: tokens, then deepstack levels; empty without images.
        image_slots: (N, M) columns of the image placeholders in `ids`.

    Returns:
        (N, C + K * R, D) after the final norm.
    """
    text = model.model.language_model
    x = text.embed_tokens(ids)
    deepstack = images[1:]
    if images and image_slots is not None:
        where = image_slots[:, :, None].expand(-1, -1, x.shape[-1])
        x = x.scatter(1, where, images[0].to(x.dtype))
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
    seen = written_attention(q[:, :, :context], k[:, :, :context], v[:, :, :context], scale, context_bias)
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

    y = written_attention(by_copy(q), with_context(k), with_context(v), scale, copy_bias)
    return torch.cat([seen, y.flatten(2, 3)], 2)


def written_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    """Attention of heads (..., L, d), with `bias` added to the scores."""
    scores = (q * scale) @ k.transpose(-1, -2)
    return (scores if bias is None else scores + bias).softmax(-1) @ v


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin
