"""The backend for a CPU: joined weights, few calls, and a head that never writes the logits of a whole vocabulary.

In float32 its tokens are those of `eager`; sums may be taken in another order, so hidden states differ in their last
bits. Weights in another dtype are turned into float32 once, where the CPU has no instructions for them: products in
bfloat16 are then several times slower than in float32. They take the memory of both.
"""

from __future__ import annotations

import logging
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wamdiff2_core.model.backends.backend import Batch, step_mask
from wamdiff2_core.model.backends.packed import PackedText
from wamdiff2_core.model.vision import VisionEncoder

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration

HEAD_CHUNK = 8192  # rows of the head at a time: their logits stay in the cache
log = logging.getLogger(__name__)


def fast_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to run weights of `dtype` in on this CPU: float32, or bfloat16 where there are instructions for it."""
    quick = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return dtype if dtype == torch.bfloat16 and quick else torch.float32


class CpuBackend:
    """See `Backend`. The model's joined weights become views of those held here; their values stay.

    Attributes:
        dtype: that it runs in.
    """

    name = "cpu"

    def __init__(self, model: Qwen3VLForConditionalGeneration) -> None:
        """Take a stock model on the CPU."""
        stock: Any = model
        own: torch.dtype = stock.lm_head.weight.dtype
        self.dtype = fast_dtype(own)
        if self.dtype != own:
            log.info("weights in %s run in %s, which is faster on this CPU", own, self.dtype)
        self._text = PackedText(stock.model.language_model, self.dtype)
        visual = stock.model.visual
        self._vision = VisionEncoder(visual if self.dtype == own else deepcopy(visual).to(self.dtype))
        tied = stock.lm_head.weight is stock.model.language_model.embed_tokens.weight
        self._head: Tensor = self._text.embedding if tied else stock.lm_head.weight.detach().to(self.dtype)
        bias = stock.lm_head.bias
        self._head_bias: Tensor | None = None if bias is None else bias.detach().to(self.dtype)
        self._prompt_columns = 0
        self._padding: Tensor | None = None

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return self._head.device

    @property
    def vocabulary(self) -> int:
        """Rows of the head."""
        return len(self._head)

    def encode_images(self, pixel_values: Tensor, image_grid_thw: Tensor) -> tuple[Tensor, list[Tensor]]:
        """See `Backend.encode_images`."""
        return self._vision(pixel_values, image_grid_thw)

    def prefill(self, batch: Batch) -> Tensor:
        """See `Backend.prefill`."""
        rows, width = batch.ids.shape
        self._prompt_columns, self._padding = width, batch.padding
        self._text.begin(rows, width + batch.answer_positions.shape[-1], batch.answer_positions)
        embeds = torch.nn.functional.embedding(batch.ids, self._text.embedding)
        if batch.image_slots is not None and batch.image_tokens is not None:
            embeds[batch.image_slots] = batch.image_tokens.to(self.dtype)
        last = torch.arange(1, rows + 1) * width - 1
        return self._text.run(
            embeds, self._text.rotary(batch.positions), 0, last, batch.allowed[:, None],
            image_slots=batch.image_slots, deepstack=batch.deepstack,
        )

    def step(self, ids: Tensor, offset: int, commit: int = 0, wanted: Tensor | None = None) -> Tensor:
        """See `Backend.step`."""
        rows, count = ids.shape
        start = self._prompt_columns + offset
        mask = None
        if self._padding is not None:
            mask = step_mask(start + count, start, count, commit, self._padding, self.device)[:, None]
        if wanted is None:
            wanted = torch.ones(rows, count - commit, dtype=torch.bool)
        read = torch.nn.functional.pad(wanted, (commit, 0)).view(-1).nonzero()[:, 0]
        embeds = torch.nn.functional.embedding(ids, self._text.embedding)
        found = self._text.run(embeds, self._text.answer_rotary(offset, count), start, read, mask, commit)
        if found.shape[0] == wanted.numel():
            return found.view(rows, count - commit, -1)
        hidden = torch.zeros(*wanted.shape, found.shape[-1], dtype=found.dtype)
        hidden[wanted] = found
        return hidden

    def pick(self, hidden: Tensor, masked: Tensor, mask_token_id: int) -> tuple[Tensor, Tensor]:
        """See `Backend.pick`."""
        rows = hidden[masked]
        best = torch.full((len(rows),), -torch.inf)
        total = torch.zeros(len(rows))
        chosen = torch.zeros(len(rows), dtype=torch.long)
        for first in range(0, self.vocabulary, HEAD_CHUNK):
            part = slice(first, first + HEAD_CHUNK)
            bias = None if self._head_bias is None else self._head_bias[part]
            logits = torch.nn.functional.linear(rows, self._head[part], bias).float()
            if first <= mask_token_id < first + HEAD_CHUNK:
                logits[:, mask_token_id - first] = -torch.inf
            highest, where = logits.max(-1)
            chosen = torch.where(highest > best, where + first, chosen)  # an earlier chunk keeps a tie
            top = torch.maximum(best, highest)
            total = total * (best - top).exp() + logits.sub_(top[:, None]).exp_().sum(-1)
            best = top
        tokens = torch.zeros(masked.shape, dtype=torch.long)
        confidence = torch.zeros(masked.shape)
        return tokens.masked_scatter_(masked, chosen), confidence.masked_scatter_(masked, 1 / total)

    def logits(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
        """See `Backend.logits`."""
        head = self._head if tokens is None else self._head[tokens]
        bias = self._head_bias if tokens is None or self._head_bias is None else self._head_bias[tokens]
        return torch.nn.functional.linear(hidden, head, bias).float()

    def columns(self, first: int, last: int) -> list[tuple[Tensor, Tensor]]:
        """See `Backend.columns`."""
        return self._text.columns(first, last)
