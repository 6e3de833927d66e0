"""The text layers with their weights joined, and few operations a layer: what a CPU waits for is mostly calls.

Query, key and value are one product, gate and up another; keys and values of a step are written with one copy; the
rows of query heads that share a key head go through attention together; the last layer runs only rows that somebody
reads. Joined weights take the place of the model's own, which become views of them, so nothing is held twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class PackedLayer:
    """Weights of one layer, rows being outputs.

    Attributes:
        qkv, qkv_bias: ((H + 2 Hkv) d, D), queries first.
        query_norm, key_norm: (d,).
        out, out_bias: (D, H d).
        gate_up: (2 F, D), gate first.
        down: (D, F).
        norm_in, norm_mlp: (D,).
    """

    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor
    key_norm: Tensor
    out: Tensor
    out_bias: Tensor | None
    gate_up: Tensor
    down: Tensor
    norm_in: Tensor
    norm_mlp: Tensor

    @classmethod
    def of(cls, layer: Any, dtype: torch.dtype) -> PackedLayer:
        """Join the weights of a stock layer; where it has the dtype already, its weights become views."""
        attention, mlp = layer.self_attn, layer.mlp
        three = attention.q_proj, attention.k_proj, attention.v_proj
        biases = [one.bias.detach().to(dtype) for one in three if one.bias is not None]

        def own(weight: Any) -> Tensor:
            kept: Tensor = weight.detach().to(dtype)
            return kept

        return cls(
            join_rows(three, dtype), torch.cat(biases) if biases else None,
            own(attention.q_norm.weight), own(attention.k_norm.weight), own(attention.o_proj.weight),
            None if attention.o_proj.bias is None else own(attention.o_proj.bias),
            join_rows((mlp.gate_proj, mlp.up_proj), dtype), own(mlp.down_proj.weight),
            own(layer.input_layernorm.weight), own(layer.post_attention_layernorm.weight),
        )


def join_rows(modules: Sequence[Any], dtype: torch.dtype) -> Tensor:
    """(sum of rows, D) weights of linear modules one below the other; of this dtype already, they become views of it.

    Joined before, they are only looked at.
    """
    weights: list[Tensor] = [module.weight.detach() for module in modules]
    first, rows = weights[0], sum(len(weight) for weight in weights)
    following = [weight.data_ptr() == before.data_ptr() + before.nbytes
                 for before, weight in itertools.pairwise(weights)]
    one_storage = len({weight.untyped_storage().data_ptr() for weight in weights}) == 1
    if one_storage and all(following) and all(weight.is_contiguous() for weight in weights) and first.dtype == dtype:
        return first.as_strided((rows, first.shape[1]), (first.shape[1], 1))
    joined = torch.cat([weight.to(dtype) for weight in weights])
    if first.dtype == dtype:
        for module, part in zip(modules, torch.split(joined, [len(weight) for weight in weights]), strict=True):
            module.weight.data = part
    return joined


class PackedText:
    """The language model of a stock Qwen3-VL without its head, and the keys and values of one batch.

    Attributes:
        dtype: that it runs in.
        embedding: (V, D).
    """

    def __init__(self, text: Any, dtype: torch.dtype) -> None:
        """Take a stock `Qwen3VLTextModel`; see `PackedLayer.of`."""
        config = text.config
        if config.hidden_act != "silu":
            raise NotImplementedError(f"hidden_act {config.hidden_act}")
        self.dtype = dtype
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim, self.hidden, self.eps = config.head_dim, config.hidden_size, config.rms_norm_eps
        self.layers = [PackedLayer.of(layer, dtype) for layer in text.layers]
        self.norm = text.norm.weight.detach().to(dtype)
        self.embedding = text.embed_tokens.weight.detach().to(dtype)
        self._rotary = text.rotary_emb
        self._cache: list[Tensor] = []
        self._answer_rotary: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    def begin(self, rows: int, columns: int, answer_positions: Tensor) -> None:
        """Make room for a batch; `answer_positions` (3, N, R) of its answer columns."""
        have = self._cache[0].shape if self._cache else (0, 0)
        if have[0] != rows or have[1] < columns:
            shape = rows, columns, 2 * self.key_heads, self.head_dim
            self._cache = [torch.empty(shape, dtype=self.dtype) for _ in self.layers]
        self._answer_rotary = self.rotary(answer_positions)

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Tables at positions (3, N, L), both (N, L, 1, d): cosines, and sines with the sign of `rotate_half`."""
        cos, sin = self._rotary(self.embedding[:1], positions)
        half = self.head_dim // 2
        return cos[:, :, None], torch.cat([-sin[..., :half], sin[..., half:]], -1)[:, :, None]

    def answer_rotary(self, offset: int, count: int) -> tuple[Tensor, Tensor]:
        """`rotary` of answer columns [offset, offset + count)."""
        cos, sin = self._answer_rotary
        return cos[:, offset : offset + count], sin[:, offset : offset + count]

    def columns(self, first: int, last: int) -> list[tuple[Tensor, Tensor]]:
        """See `Backend.columns`."""
        parts = [cache[:, first:last].transpose(1, 2) for cache in self._cache]
        return [(part[:, : self.key_heads], part[:, self.key_heads :]) for part in parts]

    def run(
        self, hidden: Tensor, rotary: tuple[Tensor, Tensor], start: int, read: Tensor, mask: Tensor | None = None,
        commit: int = 0, image_slots: Tensor | None = None, deepstack: Sequence[Tensor] = (),
    ) -> Tensor:
        """All layers and the final norm.

        Args:
            hidden: (N, n, D) embeddings; overwritten.
            rotary: of `rotary`, for these tokens.
            start: column of the first token.
            read: (rows,) indices into the N n tokens whose output is wanted.
            mask: (1 or N, 1, n, start + n) bool, True = may attend; None when all may.
            commit: without a mask: leading tokens that do not see the rest.
            image_slots: (N, n) bool, where `deepstack` is added.
            deepstack: features for the first layers.

        Returns:
            (rows, D).
        """
        rows, count, width = hidden.shape
        end = start + count
        x = hidden.view(-1, width)
        for index, (layer, cache) in enumerate(zip(self.layers, self._cache, strict=True)):
            seen = cache[:, :end]
            last = index + 1 == len(self.layers)
            normed = functional.rms_norm(x, (width,), layer.norm_in, self.eps)
            qkv = functional.linear(normed, layer.qkv, layer.qkv_bias)
            qkv = qkv.view(rows, count, self.heads + 2 * self.key_heads, self.head_dim)
            self._rotate(qkv, layer, rotary)
            cache[:, start:end] = qkv[:, :, self.heads :]
            query = qkv[:, :, : self.heads]
            if commit and mask is None:
                parts = [] if last else [self._attend(query[:, :commit], cache[:, : start + commit])]
                attended = torch.cat([*parts, self._attend(query[:, commit:], seen)], 1)
            else:
                attended = self._attend(query, seen, mask)
            flat = attended.reshape(-1, self.heads * self.head_dim)
            if last:  # nobody reads the other rows
                skipped = count - attended.shape[1]
                x = x[read]
                flat = flat[read - skipped * (read // count + 1)] if skipped else flat[read]
            x = torch.addmm(x, flat, layer.out.t())
            if layer.out_bias is not None:
                x += layer.out_bias
            normed = functional.rms_norm(x, (width,), layer.norm_mlp, self.eps)
            gate, up = functional.linear(normed, layer.gate_up).chunk(2, -1)
            x = torch.addmm(x, functional.silu(gate).mul_(up), layer.down.t())
            if index < len(deepstack) and image_slots is not None and not last:
                x.view(rows, count, width)[image_slots] += deepstack[index].to(self.dtype)
        return functional.rms_norm(x, (width,), self.norm, self.eps)

    def _rotate(self, qkv: Tensor, layer: PackedLayer, rotary: tuple[Tensor, Tensor]) -> None:
        """Normalise and turn queries and keys in place."""
        cos, sin = rotary
        half = self.head_dim // 2
        queries, keys = qkv[:, :, : self.heads], qkv[:, :, self.heads : self.heads + self.key_heads]
        for weight, part in ((layer.query_norm, queries), (layer.key_norm, keys)):
            normed = functional.rms_norm(part, (self.head_dim,), weight, self.eps)
            turned = normed.roll(half, -1).mul_(sin)
            torch.addcmul(turned, normed, cos, out=part)

    def _attend(self, query: Tensor, seen: Tensor, mask: Tensor | None = None) -> Tensor:
        """(N, n, H, d) of queries over (N, K, 2 Hkv, d) keys and values."""
        rows, count = query.shape[:2]
        both = seen.transpose(1, 2)
        keys, values = both[:, : self.key_heads], both[:, self.key_heads :]
        group = self.heads // self.key_heads
        folded = query.transpose(1, 2)
        if group > 1:
            folded = folded.reshape(rows, self.key_heads, group * count, self.head_dim)
            if mask is not None:
                mask = mask.repeat(1, 1, group, 1)
        attended = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
        return attended.reshape(rows, self.heads, count, self.head_dim).transpose(1, 2)
