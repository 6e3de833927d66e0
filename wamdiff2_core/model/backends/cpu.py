"""The backend for a CPU: compiled kernels where there is a compiler, few operators otherwise.

In float32 its tokens are those of `eager`; sums may be taken in another order, so hidden states differ in their last
bits. Weights in bfloat16 stay so in memory where kernels are compiled, and sums are in float32. What is multiplied with
them is rounded to bfloat16 where the processor multiplies such pairs (AVX-512 BF16); elsewhere they are widened as they
are read, and the tokens are those of the same weights in float32. Both come closer to the weights' own answer than
`eager` in bfloat16. PyTorch's operators take weights in bfloat16 as they are where the processor has instructions for
them, and widened to float32 where it has none, because there such products are several times slower. With AMX, whose
tiles the kernels do not use, they run the layers of such weights, and the kernels the head.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wamdiff2_core.model.backends.backend import Batch
from wamdiff2_core.model.backends.native import NativeHead, NativeText, kernels
from wamdiff2_core.model.backends.packed import PackedHead, PackedText, Seen, TextEngine
from wamdiff2_core.model.cached_prompt import CachedPrompt
from wamdiff2_core.model.vision import VisionEncoder

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration

log = logging.getLogger(__name__)


def has_amx() -> bool:
    """Whether this CPU multiplies tiles of bfloat16."""
    return bool(torch.cpu._is_amx_tile_supported())


def has_bfloat16() -> bool:
    """Whether this CPU multiplies in bfloat16."""
    return has_amx() or bool(torch.cpu._is_avx512_bf16_supported())


class CpuBackend:
    """See `Backend`.

    Attributes:
        dtype: that sums are in.
        compiled: whether it runs on compiled kernels.
    """

    name = "cpu"

    def __init__(self, model: Qwen3VLForConditionalGeneration, compiled: bool = True) -> None:
        """Take a stock model on the CPU. Its values stay; some weights may become views of joined ones.

        Args:
            model: in evaluation mode.
            compiled: False does without compiled kernels.
        """
        stock: Any = model
        text, visual, own = stock.model.language_model, stock.model.visual, stock.lm_head.weight.dtype
        narrow = own == torch.bfloat16
        library = kernels() if compiled else None
        for_layers = None if narrow and has_amx() else library
        self.compiled = library is not None
        self.dtype: torch.dtype = own if narrow and for_layers is None and has_bfloat16() else torch.float32
        if self.dtype != own:
            log.info("weights in %s are summed up in %s, which is faster on this CPU", own, self.dtype)
        self._stock_head = stock.lm_head
        self._text: TextEngine
        self._head: NativeHead | PackedHead
        self._text = PackedText(text, self.dtype) if for_layers is None else NativeText(text, for_layers)
        self._head = PackedHead(stock.lm_head, self.dtype) if library is None else NativeHead(stock.lm_head, library)
        self._vision = VisionEncoder(visual if self.dtype == own else deepcopy(visual).to(self.dtype))
        self.prompt: CachedPrompt | None = None
        self._prompt_columns = 0
        self._low, self._padded = torch.empty(0, dtype=torch.int32), False

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @property
    def vocabulary(self) -> int:
        """Rows of the head."""
        return int(self._stock_head.weight.shape[0])

    def encode_images(self, pixel_values: Tensor, image_grid_thw: Tensor) -> tuple[Tensor, list[Tensor]]:
        """See `Backend.encode_images`."""
        return self._vision(pixel_values, image_grid_thw)

    def prefill(self, batch: Batch) -> Tensor:
        """See `Backend.prefill`."""
        rows, width = batch.ids.shape
        reused, self.prompt = batch.reused, None
        self._prompt_columns, self._padded = width, batch.padding is not None
        self._low = torch.zeros(rows, dtype=torch.int32)
        if batch.padding is not None:
            self._low = (~batch.padding).sum(-1, dtype=torch.int32)
        self._text.begin(rows, width + batch.answer_positions.shape[-1], batch.answer_positions, reused)
        embeds = self._text.embed(batch.ids[:, reused:])
        if batch.image_slots is not None and batch.image_tokens is not None:
            embeds[batch.image_slots] = batch.image_tokens.to(embeds.dtype)
        block = (torch.arange(reused, width, dtype=torch.int32) - self._low[:, None]).div(
            batch.block_size, rounding_mode="floor"
        )
        high = (self._low[:, None] + (block + 1) * batch.block_size).clamp(max=width)
        seen = Seen(self._low, high.to(torch.int32), even=False)
        last = torch.arange(1, rows + 1) * (width - reused) - 1
        return self._text.run(
            embeds, self._text.rotary(batch.positions[..., reused:]), reused, seen, last, batch.image_slots,
            batch.deepstack,
        )

    def spread(self, copies: int) -> None:
        """See `Backend.spread`."""
        self.prompt = None
        self._text.spread(copies)
        self._low = self._low.repeat_interleave(copies)

    def step(self, ids: Tensor, offset: int, commit: int = 0, wanted: Tensor | None = None) -> Tensor:
        """See `Backend.step`."""
        rows, count = ids.shape
        start = self._prompt_columns + offset
        high = torch.full((rows, count), start + count, dtype=torch.int32)
        high[:, :commit] = start + commit
        seen = Seen(self._low, high, even=not self._padded, commit=commit)
        if wanted is None:
            wanted = torch.ones(rows, count - commit, dtype=torch.bool)
        read = torch.nn.functional.pad(wanted, (commit, 0)).view(-1).nonzero()[:, 0]
        found = self._text.run(self._text.embed(ids), self._text.answer_rotary(offset, count), start, seen, read)
        if found.shape[0] == wanted.numel():
            return found.view(rows, count - commit, -1)
        hidden = torch.zeros(*wanted.shape, found.shape[-1], dtype=found.dtype)
        hidden[wanted] = found
        return hidden

    def pick(self, hidden: Tensor, masked: Tensor, mask_token_id: int) -> tuple[Tensor, Tensor]:
        """See `Backend.pick`."""
        chosen, probabilities = self._head.pick(hidden[masked], mask_token_id)
        tokens, confidence = torch.zeros(masked.shape, dtype=torch.long), torch.zeros(masked.shape)
        return tokens.masked_scatter_(masked, chosen), confidence.masked_scatter_(masked, probabilities)

    def logits(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
        """See `Backend.logits`."""
        weight, bias = self._stock_head.weight, self._stock_head.bias
        if tokens is not None:
            weight, bias = weight[tokens], None if bias is None else bias[tokens]
        weight = weight.to(self.dtype)
        return torch.nn.functional.linear(hidden, weight, None if bias is None else bias.to(self.dtype)).float()

    def weights_state(self) -> Hashable:
        """See `Backend.weights_state`: they never change."""
        return ()

    def columns(self, first: int, last: int) -> list[tuple[Tensor, Tensor]]:
        """See `Backend.columns`."""
        return self._text.columns(first, last)
