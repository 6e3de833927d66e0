"""Stock Qwen3-VL driven layer by layer, with our masks, positions and cache.

The stock model would build its own causal mask, look up remembered positions and project the whole prompt to the
vocabulary; calling its layers in a straight line avoids all three. Weights, modules and values are stock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.model.cache import BlockCache
from wamdiff2_core.model.masks import as_attention_mask, prefix_mask
from wamdiff2_core.model.positions import answer_positions, prompt_positions
from wamdiff2_core.model.vision import VisionEncoder

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration


class BlockModel:
    """One batch at a time: `prefill` the prompts, then `forward` rows of answer tokens at their columns.

    Attributes:
        prompt_columns: columns that hold prompts; an answer token with offset j has column `prompt_columns + j`.
    """

    def __init__(self, model: Qwen3VLForConditionalGeneration) -> None:
        """Take a stock model; it is not changed."""
        self.model: Any = model
        self.text: Any = model.model.language_model
        self.encode_images = VisionEncoder(model.model.visual)
        self.cache = BlockCache()
        self.prompt_columns = 0
        self._attn = str(self.text.config._attn_implementation)
        self._padding: Tensor | None = None
        self._rotary: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        device: torch.device = self.text.embed_tokens.weight.device
        return device

    def prefill(self, requests: Sequence[ModelInputs], block_size: int, answer_columns: int) -> Tensor:
        """Run the prompts, block-causally in width `block_size`, and make room for the answers.

        Args:
            requests: prompts of any lengths; each counts blocks and positions from its own first token.
            block_size: 1 gives causal attention.
            answer_columns: columns that answers may take.

        Returns:
            (N, D) hidden state of each prompt's last token, after the final norm.
        """
        lengths = [len(request.input_ids) for request in requests]
        width, rows, device = max(lengths), len(requests), self.device
        self.prompt_columns = width
        ids = torch.zeros(rows, width, dtype=torch.long)
        positions = torch.zeros(3, rows, width, dtype=torch.long)
        answers = torch.zeros(3, rows, answer_columns, dtype=torch.long)
        valid = torch.zeros(rows, width, dtype=torch.bool)
        config = self.model.config
        for row, (request, length) in enumerate(zip(requests, lengths, strict=True)):
            own = prompt_positions(
                request.input_ids, request.image_grid_thw, config.image_token_id,
                config.vision_config.spatial_merge_size,
            )
            ids[row, width - length :] = request.input_ids
            positions[:, row, width - length :] = own
            answers[:, row] = answer_positions(own, answer_columns)
            valid[row, width - length :] = True
        ids, valid = ids.to(device), valid.to(device)
        embeds = self.text.embed_tokens(ids)
        self._padding = None if bool(valid.all()) else valid
        self._rotary = self.text.rotary_emb(embeds, answers.to(device))

        text_config = self.text.config
        shape = rows, text_config.num_key_value_heads, width + answer_columns, text_config.head_dim
        self.cache.begin(text_config.num_hidden_layers, shape, embeds.dtype, device)
        self.cache.write_at(0)
        mask = as_attention_mask(prefix_mask(valid, block_size), embeds.dtype, self._attn)
        rotary = self.text.rotary_emb(embeds, positions.to(device))
        where, deepstack = self._place_images(requests, ids, embeds)
        last: Tensor = self.text.norm(self._run(embeds, rotary, mask, where, deepstack)[:, -1])
        return last

    def forward(self, ids: Tensor, offset: int, commit: int = 0) -> Tensor:
        """Run answer tokens against the prompt and all earlier answer columns, writing their keys and values.

        Tokens see each other both ways, except the first `commit` of them, which do not see the rest: they are the
        final tokens of a block whose keys and values become right by this.

        Args:
            ids: (N, n) token ids.
            offset: answer offset of the first token.
            commit: leading tokens that are a finished block, 0 for none.

        Returns:
            (N, n - commit, D) hidden states of the others, after the final norm.
        """
        count = ids.shape[1]
        start = self.prompt_columns + offset
        self.cache.write_at(start)
        cos, sin = self._rotary
        rotary = cos[:, offset : offset + count], sin[:, offset : offset + count]
        hidden = self._run(self.text.embed_tokens(ids), rotary, self._answer_mask(count, start, commit))
        normed: Tensor = self.text.norm(hidden[:, commit:])
        return normed

    def logits(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
        """(..., V) fp32 logits of hidden states after the final norm; (..., n) of n tokens alone when given."""
        head = self.model.lm_head
        if tokens is None:
            logits: Tensor = head(hidden).float()
            return logits
        bias = None if head.bias is None else head.bias[tokens]
        return torch.nn.functional.linear(hidden, head.weight[tokens], bias).float()

    @property
    def vocabulary(self) -> int:
        """Rows of the head."""
        return int(self.model.lm_head.weight.shape[0])

    def _answer_mask(self, count: int, start: int, commit: int) -> Tensor | None:
        """None when every token may see every column written so far."""
        if self._padding is None and commit == 0:
            return None
        columns = start + count
        allowed = torch.ones(1, count, columns, dtype=torch.bool, device=self.device)
        if commit:
            allowed[:, :commit, start + commit :] = False
        if self._padding is not None:
            allowed = allowed.repeat(len(self._padding), 1, 1)
            allowed[:, :, : self.prompt_columns] &= self._padding[:, None]
        return as_attention_mask(allowed, self.text.embed_tokens.weight.dtype, self._attn)

    def _place_images(
        self, requests: Sequence[ModelInputs], ids: Tensor, embeds: Tensor
    ) -> tuple[Tensor | None, list[Tensor]]:
        """Write image tokens into `embeds`; returns their (rows, columns) mask and the deepstack levels."""
        pixels = [request.pixel_values for request in requests if request.pixel_values is not None]
        grids = [request.image_grid_thw for request in requests if request.image_grid_thw is not None]
        if not pixels:
            return None, []
        tokens, deepstack = self.encode_images(torch.cat(pixels).to(self.device), torch.cat(grids))
        where = ids == self.model.config.image_token_id
        for row, request in enumerate(requests):  # a literal image token in a prompt without images stays a token
            if request.pixel_values is None:
                where[row] = False
        embeds[where] = tokens.to(embeds.dtype)
        return where, deepstack

    def _run(
        self,
        hidden: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        image_slots: Tensor | None = None,
        deepstack: Sequence[Tensor] = (),
    ) -> Tensor:
        # without a mask, stock sdpa attention is causal unless it is told otherwise
        for index, layer in enumerate(self.text.layers):
            hidden = layer(
                hidden, position_embeddings=rotary, attention_mask=mask, cache=self.cache, is_causal=False
            )
            if index < len(deepstack):
                hidden[image_slots] += deepstack[index].to(hidden.dtype)
        return hidden
