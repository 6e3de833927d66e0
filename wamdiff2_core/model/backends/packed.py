"""The text layers with their weights joined, and few operations a layer: what a CPU waits for is mostly calls.

Query, key and value are one product, gate and up another; keys and values of a step are written with one copy; the
rows of query heads that share a key head go through attention together; the last layer runs only rows that somebody
reads. Joined weights take the place of the model's own, which become views of them, so nothing is held twice.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from wamdiff2_core.errors import UserError

HEAD_CHUNK = 8192  # rows of the head at a time


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


class TextEngine(ABC):
    """The language model of a stock Qwen3-VL without its head, and the keys and values of one batch."""

    def __init__(self, text: Any) -> None:
        """Take a stock `Qwen3VLTextModel`.

        Raises:
            UserError: its MLP has another activation than Qwen3's.
        """
        if text.config.hidden_act != "silu":
            raise UserError("backend", "a model with the activation silu", text.config.hidden_act,
                            "choose the backend eager")
        self.head_dim: int = text.config.head_dim
        self._rotary_of = text.rotary_emb
        self._answer_rotary: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Tables at positions (3, N, L), both (N, L, d) fp32: cosines, and sines with the sign of `rotate_half`."""
        cos, sin = self._rotary_of(torch.empty(0), positions)
        half = self.head_dim // 2
        return cos, torch.cat([-sin[..., :half], sin[..., half:]], -1)

    def begin(self, rows: int, columns: int, answer_positions: Tensor, kept: int = 0) -> None:
        """Make room for a batch.

        Args:
            rows, columns: of the cache.
            answer_positions: (3, N, R) of its answer columns.
            kept: leading columns that stay as they are; the batch before had as many rows.
        """
        self._make_room(rows, columns, kept)
        self._answer_rotary = self.rotary(answer_positions)

    def spread(self, copies: int) -> None:
        """Make each row of the batch `copies` rows, one behind the other."""
        self._spread_cache(copies)
        cos, sin = self._answer_rotary
        self._answer_rotary = cos.repeat_interleave(copies, 0), sin.repeat_interleave(copies, 0)

    def answer_rotary(self, offset: int, count: int) -> tuple[Tensor, Tensor]:
        """`rotary` of answer columns [offset, offset + count)."""
        cos, sin = self._answer_rotary
        return cos[:, offset : offset + count], sin[:, offset : offset + count]

    @abstractmethod
    def embed(self, ids: Tensor) -> Tensor:
        """(N, n, D) in the dtype of `run`."""

    @abstractmethod
    def run(
        self, hidden: Tensor, rotary: tuple[Tensor, Tensor], start: int, seen: Seen, read: Tensor,
        image_slots: Tensor | None = None, deepstack: Sequence[Tensor] = (),
    ) -> Tensor:
        """All layers and the final norm.

        Args:
            hidden: (N, n, D) of `embed`; overwritten.
            rotary: of `rotary`, for these tokens.
            start: column of the first token; all n are written to the cache.
            seen: what each token attends to.
            read: (rows,) indices into the N n tokens whose output is wanted, ascending.
            image_slots: (N, n) bool, where `deepstack` is added.
            deepstack: features for the first layers.

        Returns:
            (rows, D).
        """

    @abstractmethod
    def columns(self, first: int, last: int) -> list[tuple[Tensor, Tensor]]:
        """See `Backend.columns`."""

    @abstractmethod
    def _make_room(self, rows: int, columns: int, kept: int) -> None: ...

    @abstractmethod
    def _spread_cache(self, copies: int) -> None: ...


@dataclass(frozen=True)
class Seen:
    """Columns that the tokens of a forward attend to: [low, high) each.

    Attributes:
        low: (N,) int32, columns of padding.
        high: (N, n) int32; none are seen where it is not above `low`.
        even: all tokens see all columns, but for the first `commit`, which do not see the rest of the forward.
        commit: see `even`.
    """

    low: Tensor
    high: Tensor
    even: bool
    commit: int = 0


class PackedText(TextEngine):
    """Layers by PyTorch's operators.

    Attributes:
        dtype: that it runs in.
    """

    def __init__(self, text: Any, dtype: torch.dtype) -> None:
        """Take a stock `Qwen3VLTextModel`; see `PackedLayer.of`."""
        super().__init__(text)
        config = text.config
        self.dtype = dtype
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.eps = config.rms_norm_eps
        self.layers = [PackedLayer.of(layer, dtype) for layer in text.layers]
        self.norm = text.norm.weight.detach().to(dtype)
        self._embedding = text.embed_tokens.weight.detach().to(dtype)
        self._cache: list[Tensor] = []

    def _make_room(self, rows: int, columns: int, kept: int) -> None:
        have = self._cache[0].shape if self._cache else (0, 0)
        if have[0] != rows or have[1] < columns:
            shape = rows, columns, 2 * self.key_heads, self.head_dim
            old, self._cache = self._cache, [torch.empty(shape, dtype=self.dtype) for _ in self.layers]
            for new, before in zip(self._cache, old if kept else (), strict=bool(kept)):
                new[:, :kept] = before[:, :kept]

    def _spread_cache(self, copies: int) -> None:
        self._cache = [cache.repeat_interleave(copies, 0) for cache in self._cache]

    def embed(self, ids: Tensor) -> Tensor:
        """See `TextEngine.embed`."""
        return functional.embedding(ids, self._embedding)

    def columns(self, first: int, last: int) -> list[tuple[Tensor, Tensor]]:
        """See `Backend.columns`."""
        parts = [cache[:, first:last].transpose(1, 2) for cache in self._cache]
        return [(part[:, : self.key_heads], part[:, self.key_heads :]) for part in parts]

    def run(
        self, hidden: Tensor, rotary: tuple[Tensor, Tensor], start: int, seen: Seen, read: Tensor,
        image_slots: Tensor | None = None, deepstack: Sequence[Tensor] = (),
    ) -> Tensor:
        """See `TextEngine.run`."""
        rows, count, width = hidden.shape
        end, commit, mask = start + count, seen.commit, None
        if not seen.even:
            columns = torch.arange(end)
            mask = (columns >= seen.low[:, None, None]) & (columns < seen.high[:, :, None])
            mask = mask[:, None] | (seen.high <= seen.low[:, None])[:, None, :, None]  # whoever sees nothing gives NaN
        turns = rotary[0][:, :, None].to(self.dtype), rotary[1][:, :, None].to(self.dtype)
        x = hidden.view(-1, width)
        for index, (layer, cache) in enumerate(zip(self.layers, self._cache, strict=True)):
            last = index + 1 == len(self.layers)
            normed = functional.rms_norm(x, (width,), layer.norm_in, self.eps)
            qkv = functional.linear(normed, layer.qkv, layer.qkv_bias)
            qkv = qkv.view(rows, count, self.heads + 2 * self.key_heads, self.head_dim)
            self._rotate(qkv, layer, turns)
            cache[:, start:end] = qkv[:, :, self.heads :]
            query = qkv[:, :, : self.heads]
            if commit and mask is None:
                parts = [] if last else [self._attend(query[:, :commit], cache[:, : start + commit])]
                attended = torch.cat([*parts, self._attend(query[:, commit:], cache[:, :end])], 1)
            else:
                attended = self._attend(query, cache[:, :end], mask)
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


class PackedHead:
    """The best token of a row and its probability, by chunks of the vocabulary whose logits stay in the cache."""

    def __init__(self, head: Any, dtype: torch.dtype) -> None:
        """Take the stock `lm_head`."""
        self._weight: Tensor = head.weight.detach().to(dtype)
        self._bias: Tensor | None = None if head.bias is None else head.bias.detach().to(dtype)

    def pick(self, rows: Tensor, banned: int) -> tuple[Tensor, Tensor]:
        """Best token (rows,) and its fp32 probability (rows,) among all but `banned`, of (rows, D) hidden states."""
        best = torch.full((len(rows),), -torch.inf)
        total = torch.zeros(len(rows))
        chosen = torch.zeros(len(rows), dtype=torch.long)
        for first in range(0, len(self._weight), HEAD_CHUNK):
            part = slice(first, first + HEAD_CHUNK)
            bias = None if self._bias is None else self._bias[part]
            logits = functional.linear(rows, self._weight[part], bias).float()
            if first <= banned < first + HEAD_CHUNK:
                logits[:, banned - first] = -torch.inf
            highest, where = logits.max(-1)
            chosen = torch.where(highest > best, where + first, chosen)  # an earlier chunk keeps a tie
            top = torch.maximum(best, highest)
            total = total * (best - top).exp() + logits.sub_(top[:, None]).exp_().sum(-1)
            best = top
        return chosen, 1 / total
