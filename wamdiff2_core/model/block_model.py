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
from wamdiff2_core.model.backends import Backend, Batch, make_backend
from wamdiff2_core.model.positions import answer_positions, prompt_positions
from wamdiff2_core.model.vision import ImageMemory

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration


class BlockModel:
    """One batch at a time: `prefill` the prompts, then `forward` rows of answer tokens at their columns.

    Attributes:
        model: the stock model.
        backend: what runs it.
        stepwise: whether all steps go through `forward`, also where a device could decode whole answers by itself.
        prompt_columns: columns that hold prompts; an answer token with offset j has column `prompt_columns + j`.
    """

    def __init__(
        self, model: Qwen3VLForConditionalGeneration, backend: Backend | str = "eager", reused_images: int = 0
    ) -> None:
        """Take a stock model in evaluation mode.

        Args:
            model: with `eager`, its weights are read anew at every call.
            backend: one made for this model, or the name of one.
            reused_images: images whose features are kept for when they come again; not for weights that change.

        Raises:
            UserError: see `make_backend`.
        """
        self.model: Any = model
        self.backend = make_backend(backend, model) if isinstance(backend, str) else backend
        self._encode_images = ImageMemory(self.backend.encode_images, reused_images)
        self.stepwise = False
        self.prompt_columns = 0

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return self.backend.device

    @property
    def vocabulary(self) -> int:
        """Rows of the head."""
        return self.backend.vocabulary

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
        padding = None if min(lengths) == width else valid.to(device)
        batch = Batch(
            ids.to(device), positions.to(device), block_size, padding, answers.to(device), *self._images(requests, ids)
        )
        return self.backend.prefill(batch)

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

    def _images(
        self, requests: Sequence[ModelInputs], ids: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Sequence[Tensor]]:
        """Mask of the image tokens in `ids`, their features and the deepstack levels."""
        pixels = [request.pixel_values for request in requests if request.pixel_values is not None]
        grids = [request.image_grid_thw for request in requests if request.image_grid_thw is not None]
        if not pixels:
            return None, None, ()
        tokens, deepstack = self._encode_images(torch.cat(pixels), torch.cat(grids), self.device)
        where = ids == self.model.config.image_token_id
        for row, request in enumerate(requests):  # a literal image token in a prompt without images stays a token
            if request.pixel_values is None:
                where[row] = False
        return where.to(self.device), tokens, deepstack
