"""One batch of prompts, and answers decoded against it, in blocks.

The stock model would build its own causal mask, look up remembered positions and project the whole prompt to the
vocabulary; here none of that happens. What runs the layers is a backend (`wamdiff2_core.model.backends`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.config import PromptReuse
from wamdiff2_core.model.backends import Backend, Batch, make_backend
from wamdiff2_core.model.cached_prompt import CachedPrompt, ImageKey, placed_images
from wamdiff2_core.model.positions import answer_positions, prompt_positions
from wamdiff2_core.model.vision import ImageMemory, image_keys

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration


class BlockModel:
    """One batch at a time: `prefill` the prompts, then `forward` rows of answer tokens at their columns.

    Attributes:
        model: the stock model.
        backend: what runs it.
        stepwise: whether all steps go through `forward`, also where a device could decode whole answers by itself.
        prompt_columns: columns that hold prompts; an answer token with offset j has column `prompt_columns + j`.
        reused_columns: of these, the leading ones that the last `prefill` did not run.
    """

    def __init__(
        self, model: Qwen3VLForConditionalGeneration, backend: Backend | str = "eager", reused_images: int = 0,
        reuse_prompts: bool = False,
    ) -> None:
        """Take a stock model in evaluation mode.

        Args:
            model: with `eager`, its weights are read anew at every call.
            backend: one made for this model, or the name of one.
            reused_images: images whose features are kept for when they come again; not for weights that change.
            reuse_prompts: whether a prompt may be reused, if `prefill` is told so, too.

        Raises:
            UserError: see `make_backend`.
        """
        self.model: Any = model
        self.backend = make_backend(backend, model) if isinstance(backend, str) else backend
        self._encode_images = ImageMemory(self.backend.encode_images, reused_images)
        self._remembers = reused_images > 0 or reuse_prompts
        self._reuse_prompts = reuse_prompts
        self.stepwise = False
        self.prompt_columns = self.reused_columns = 0

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return self.backend.device

    @property
    def vocabulary(self) -> int:
        """Rows of the head."""
        return self.backend.vocabulary

    def prefill(
        self, requests: Sequence[ModelInputs], block_size: int, answer_columns: int, reuse: PromptReuse = "off",
        copies: int = 1,
    ) -> Tensor:
        """Run the prompts, block-causally in width `block_size`, and make room for the answers.

        Blocks with which all of them begin as the prompts of the batch before did are not run again: their keys and
        values are still there. That needs as many prompts, all of one length in either batch.

        Args:
            requests: prompts of any lengths; each counts blocks and positions from its own first token.
            block_size: 1 gives causal attention.
            answer_columns: columns that answers may take.
            reuse: of `DecodeConfig.prompt_reuse`.
            copies: rows that each prompt gets, one behind the other; it is run once.

        Returns:
            (N, D) hidden state of the last token of each row's prompt, after the final norm.
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
        padding = None if min(lengths) == width else valid.to(device)
        keys = self._image_keys(requests)
        prompt, before = None, self.backend.prompt
        allowed = reuse == "always" or (reuse == "float32" and self.backend.dtype == torch.float32)
        if self._reuse_prompts and allowed and padding is None:
            prompt = self._prompt(ids, positions, block_size, keys)
        reused = 0 if before is None or prompt is None else before.shared_columns(prompt)
        self.reused_columns = reused
        batch = Batch(
            ids.to(device), positions.to(device), block_size, padding, answers.to(device),
            *self._images(requests, ids, keys, reused), reused=reused,
        )
        hidden = self.backend.prefill(batch)
        self.backend.prompt = prompt  # only now: a prefill that fails leaves nothing to go by
        if copies > 1:
            self.backend.spread(copies)
            hidden = hidden.repeat_interleave(copies, 0)
        return hidden

    def forward(self, ids: Tensor, offset: int, commit: int = 0, wanted: Tensor | None = None) -> Tensor:
        """Run answer tokens against the prompt and all earlier answer columns, writing their keys and values.

        Tokens see each other both ways, except the first `commit` of them, which do not see the rest: they are the
        final tokens of a block whose keys and values become right by this.

        Args:
            ids: (N, n) token ids.
            offset: answer offset of the first token.
            commit: leading tokens that are a finished block, 0 for none.
            wanted: (N, n - commit) bool, whose hidden states will be looked at; those of others may be without meaning.

        Returns:
            (N, n - commit, D) hidden states of the others, after the final norm; good until the next forward.
        """
        return self.backend.step(ids, offset, commit, wanted)

    def pick(self, hidden: Tensor, masked: Tensor, mask_token_id: int) -> tuple[Tensor, Tensor]:
        """Most probable token (N, B) and fp32 probability (N, B) at each open position; see `Backend.pick`."""
        return self.backend.pick(hidden, masked, mask_token_id)

    def logits(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
        """(..., V) fp32 logits of hidden states after the final norm; (..., n) of n tokens alone when given."""
        return self.backend.logits(hidden, tokens)

    def _image_keys(self, requests: Sequence[ModelInputs]) -> list[list[ImageKey]]:
        """What tells the images of each request apart; nothing where nobody asks."""
        return [
            image_keys(request.pixel_values, request.image_grid_thw)
            if self._remembers and request.pixel_values is not None and request.image_grid_thw is not None else []
            for request in requests
        ]

    def _prompt(
        self, ids: Tensor, positions: Tensor, block_size: int, keys: Sequence[Sequence[ImageKey]]
    ) -> CachedPrompt:
        config = self.model.config
        images = [
            placed
            for row, own in enumerate(keys)
            for placed in placed_images(
                row, (ids[row] == config.image_token_id).nonzero()[:, 0], own, config.vision_config.spatial_merge_size
            )
        ]
        return CachedPrompt(ids, positions, block_size, frozenset(images), self.backend.weights_state())

    def _images(
        self, requests: Sequence[ModelInputs], ids: Tensor, keys: Sequence[Sequence[ImageKey]], reused: int
    ) -> tuple[Tensor | None, Tensor | None, Sequence[Tensor]]:
        """Mask of the image tokens in `ids` from column `reused` on, their features and the deepstack levels."""
        pixels = [request.pixel_values for request in requests if request.pixel_values is not None]
        grids = [request.image_grid_thw for request in requests if request.image_grid_thw is not None]
        if not pixels:
            return None, None, ()
        where = ids == self.model.config.image_token_id
        for row, request in enumerate(requests):  # a literal image token in a prompt without images stays a token
            if request.pixel_values is None:
                where[row] = False
        late = where.nonzero()[:, 1] >= reused
        if reused and not late.any():
            return None, None, ()
        known = [key for own in keys for key in own] if self._remembers else None
        tokens, deepstack = self._encode_images(torch.cat(pixels), torch.cat(grids), self.device, known)
        if reused:  # an image may begin in a block that is there, and end in one that is not
            late = late.to(self.device)
            tokens, deepstack = tokens[late], [level[late] for level in deepstack]
        return where[:, reused:].to(self.device), tokens, deepstack
