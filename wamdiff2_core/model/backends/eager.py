"""The reference backend: the stock layers, called one by one, on any device.

Weights, modules and values are stock, so hooks on the model's modules see every forward, and weights may change between
calls.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wamdiff2_core.model.backends.backend import Batch, step_mask
from wamdiff2_core.model.cache import BlockCache
from wamdiff2_core.model.cached_prompt import CachedPrompt
from wamdiff2_core.model.masks import as_attention_mask
from wamdiff2_core.model.vision import VisionEncoder

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration


class EagerBackend:
    """See `Backend`."""

    name = "eager"

    def __init__(self, model: Qwen3VLForConditionalGeneration) -> None:
        """Take a stock model; it is not changed."""
        self._model: Any = model
        self._text: Any = model.model.language_model
        self._vision = VisionEncoder(model.model.visual)
        self._cache = BlockCache()
        self.prompt: CachedPrompt | None = None
        self._attn = str(self._text.config._attn_implementation)
        self._prompt_columns = 0
        self._padding: Tensor | None = None
        self._rotary: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        device: torch.device = self._text.embed_tokens.weight.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        dtype: torch.dtype = self._text.embed_tokens.weight.dtype
        return dtype

    @property
    def vocabulary(self) -> int:
        """Rows of the head."""
        return int(self._model.lm_head.weight.shape[0])

    def encode_images(self, pixel_values: Tensor, image_grid_thw: Tensor) -> tuple[Tensor, list[Tensor]]:
        """See `Backend.encode_images`."""
        return self._vision(pixel_values, image_grid_thw)

    def prefill(self, batch: Batch) -> Tensor:
        """See `Backend.prefill`."""
        rows, width = batch.ids.shape
        self.prompt = None
        self._prompt_columns, self._padding = width, batch.padding
        embeds = self._text.embed_tokens(batch.ids[:, batch.reused :])
        if batch.image_slots is not None and batch.image_tokens is not None:
            embeds[batch.image_slots] = batch.image_tokens.to(embeds.dtype)
        self._rotary = self._text.rotary_emb(embeds, batch.answer_positions)
        config = self._text.config
        columns = width + batch.answer_positions.shape[-1]
        shape = rows, config.num_key_value_heads, columns, config.head_dim
        self._cache.begin(config.num_hidden_layers, shape, embeds.dtype, self.device, batch.reused)
        self._cache.write_at(batch.reused)
        mask = as_attention_mask(batch.allowed, embeds.dtype, self._attn)
        rotary = self._text.rotary_emb(embeds, batch.positions[..., batch.reused :])
        last: Tensor = self._text.norm(self._run(embeds, rotary, mask, batch.image_slots, batch.deepstack)[:, -1])
        return last

    def spread(self, copies: int) -> None:
        """See `Backend.spread`."""
        self.prompt = None
        self._cache.spread(copies)
        self._rotary = self._rotary[0].repeat_interleave(copies, 0), self._rotary[1].repeat_interleave(copies, 0)
        if self._padding is not None:
            self._padding = self._padding.repeat_interleave(copies, 0)

    def step(self, ids: Tensor, offset: int, commit: int = 0, wanted: Tensor | None = None) -> Tensor:
        """See `Backend.step`."""
        count, start = ids.shape[1], self._prompt_columns + offset
        self._cache.write_at(start)
        cos, sin = self._rotary
        rotary = cos[:, offset : offset + count], sin[:, offset : offset + count]
        embeds, mask = self._text.embed_tokens(ids), None
        if commit or self._padding is not None:
            allowed = step_mask(start + count, start, count, commit, self._padding, self.device)
            mask = as_attention_mask(allowed, embeds.dtype, self._attn)
        normed: Tensor = self._text.norm(self._run(embeds, rotary, mask)[:, commit:])
        return normed

    def pick(self, hidden: Tensor, masked: Tensor, mask_token_id: int) -> tuple[Tensor, Tensor]:
        """See `Backend.pick`."""
        logits = self.logits(hidden[masked])
        logits[:, mask_token_id] = -torch.inf
        best, chosen = logits.max(-1)
        sure = 1 / (logits - best[:, None]).exp_().sum(-1)
        tokens = torch.zeros(masked.shape, dtype=torch.long, device=hidden.device)
        confidence = torch.zeros(masked.shape, device=hidden.device)
        return tokens.masked_scatter_(masked, chosen), confidence.masked_scatter_(masked, sure)

    def logits(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
        """See `Backend.logits`."""
        head = self._model.lm_head
        if tokens is None:
            logits: Tensor = head(hidden).float()
            return logits
        bias = None if head.bias is None else head.bias[tokens]
        return torch.nn.functional.linear(hidden, head.weight[tokens], bias).float()

    def weights_state(self) -> Hashable:
        """See `Backend.weights_state`; writes to a parameter's `.data`, which PyTorch does not count, are not seen."""
        weights = list(self._model.parameters())
        if any(weight.is_inference() for weight in weights):
            return object()  # nobody counts their changes
        return tuple((weight.data_ptr(), weight._version, weight.dtype) for weight in weights)

    def columns(self, first: int, last: int) -> list[tuple[Tensor, Tensor]]:
        """See `Backend.columns`."""
        return self._cache.columns(first, last)

    def _run(
        self,
        hidden: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        image_slots: Tensor | None = None,
        deepstack: Sequence[Tensor] = (),
    ) -> Tensor:
        # without a mask, stock sdpa attention is causal unless it is told otherwise
        for index, layer in enumerate(self._text.layers):
            hidden = layer(
                hidden, position_embeddings=rotary, attention_mask=mask, cache=self._cache, is_causal=False
            )
            if index < len(deepstack):
                hidden[image_slots] += deepstack[index].to(hidden.dtype)
        return hidden
