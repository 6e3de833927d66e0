"""What runs a model: one small interface, so that decoding is the same code on every device.

`BlockModel` prepares (ids, positions, padding, image features); a backend owns the keys and values and runs forwards.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from wamdiff2_core.model.cached_prompt import CachedPrompt
from wamdiff2_core.model.masks import prefix_mask


@dataclass(frozen=True)
class Batch:
    """Prompts, ready to run; all tensors are on the model's device.

    Prompts are right-aligned in P columns, so every row's answer begins at column P. R columns may hold answers.

    Attributes:
        ids: (N, P) long; any token on padding.
        positions: (3, N, P) long rotary positions.
        block_size: B of the block-causal mask; 1 is causal attention.
        padding: (N, P) bool, False on padding; None when no row has any.
        answer_positions: (3, N, R) long, equal on all three axes and counting up by one.
        image_slots: (N, P - K) bool, columns from K on that hold image tokens; None without images there.
        image_tokens: (slots, D) features, row after row of `image_slots`; None without images.
        deepstack: the same, to be added to the output of the first layers.
        reused: K, leading columns whose keys and values are in the cache already, from the batch before, which had
            as many rows; a multiple of B below P, and 0 with padding.
    """

    ids: Tensor
    positions: Tensor
    block_size: int
    padding: Tensor | None
    answer_positions: Tensor
    image_slots: Tensor | None = None
    image_tokens: Tensor | None = None
    deepstack: Sequence[Tensor] = ()
    reused: int = 0

    @property
    def allowed(self) -> Tensor:
        """(1 or N, P - K, P) bool, what a token that is run may attend to, [query, key]; padding sees itself."""
        valid = torch.ones_like(self.ids[:1], dtype=torch.bool) if self.padding is None else self.padding
        return prefix_mask(valid, self.block_size)[..., self.reused :, :]


class Backend(Protocol):
    """Runs one model's forwards, one batch at a time: `prefill`, perhaps `spread`, then `step` and `pick` by turns.

    All backends give the tokens of `eager`: on a CPU in float32 the same ones, elsewhere within the tolerance that
    their modules state. Calls come from one thread, under `torch.inference_mode`.

    A backend that captures graphs, or compiles for static shapes, may rely on this:

    - From one `prefill` to the next, N, P, R and the padding stay as they are, but for `spread` right after it. N, P
      and R differ between batches in any order; columns beyond those written since the last `prefill` hold leftovers,
      and must never be seen.
    - `step` gets (N, n) ids with n = B and commit 0, or n = 2B and commit B; with autoregressive decoding n = 1. B is
      one number from one `prefill` to the next. All steps of a block have the same `offset`, a multiple of B; only its
      first one commits the block before it, at `offset` - B. So lengths change once a block, and a graph is determined
      by (N, n, commit, columns rounded up to a bucket), with the start column and the padding read from the device.
    - `offset` and `commit` are host integers, known without waiting for the device. Nobody reads results on the host
      between `step` and `pick`, and none of them need wait for the device.
    - A step writes no column of a prompt: what `prefill` wrote to [0, P) stays until the next one.
    - What `step`, `pick` and `prefill` return may be a static buffer: callers are done with it before the next call of
      the same method.
    - Weights do not change after construction, but for `eager`, which reads them anew at every call.

    Attributes:
        name: of `BACKENDS`.
        device: where it runs.
        vocabulary: V, rows of the head.
        dtype: that sums are in.
        prompt: what lies in columns [0, P), told by whoever ran it; None, as after every `prefill`, is unknown.
    """

    name: str
    prompt: CachedPrompt | None

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def vocabulary(self) -> int: ...

    def encode_images(self, pixel_values: Tensor, image_grid_thw: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Features of images of any sizes.

        Args:
            pixel_values: (patches, patch_dim) normalised pixels, image after image, on the device.
            image_grid_thw: (images, 3) long.

        Returns:
            (tokens, D) in the order of the images, and the same for each deepstack layer.
        """

    def prefill(self, batch: Batch) -> Tensor:
        """Begin a batch: run its prompts, write their keys and values to columns [0, P), make room for R more.

        The first `batch.reused` columns are neither run nor written. `prompt` is None after it, also when it fails.

        Returns:
            (N, D) hidden state of each prompt's last token, after the final norm.
        """

    def spread(self, copies: int) -> None:
        """Make each row of a batch that has just been prefilled `copies` rows, one behind the other, of one prompt.

        `prompt` is None after it.
        """

    def step(self, ids: Tensor, offset: int, commit: int = 0, wanted: Tensor | None = None) -> Tensor:
        """Run answer tokens; their keys and values are written to columns [P + offset, P + offset + n).

        Every token sees columns [0, P + offset + n) but padding, and tokens see each other both ways; except the first
        `commit` ones, which do not see the rest: they are the final tokens of a block.

        Args:
            ids: (N, n) long, on the device.
            offset: answer offset of the first token; P + offset + n never exceeds P + R.
            commit: leading tokens that are a finished block, 0 for none.
            wanted: (N, n - commit) bool, whose hidden states will be looked at; a backend may leave work out for the
                others, which come out finite and without meaning, or may ignore this. None: all.

        Returns:
            (N, n - commit, D) hidden states of the others, after the final norm.
        """

    def pick(self, hidden: Tensor, masked: Tensor, mask_token_id: int) -> tuple[Tensor, Tensor]:
        """The most probable token of each open position, and its probability among all V tokens but the mask token.

        Logits are in the model's dtype, all that follows in fp32. Among equal logits the lowest id wins.

        Args:
            hidden: (N, B, D) of `step`, after the final norm.
            masked: (N, B) bool, open positions; there may be none.
            mask_token_id: never chosen, and no part of the probabilities.

        Returns:
            (N, B) long tokens and (N, B) fp32 probabilities; both without meaning at positions that are not open.
        """

    def logits(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
        """(..., V) fp32 logits of hidden states after the final norm; (..., k) of k tokens alone when given."""

    def weights_state(self) -> Hashable:
        """Equal before and after, as long as the weights are the same; of no use but to be compared."""

    def columns(self, first: int, last: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values at columns [first, last), one pair of (N, heads, columns, head_dim) a layer, to look at."""


def step_mask(columns: int, start: int | Tensor, count: int, commit: int, padding: Tensor | None,
              device: torch.device) -> Tensor:
    """What the tokens of a step may attend to.

    Args:
        columns: K, keys that attention is given; a bucket may hold more than have been written.
        start: column of the first token, P + offset; a 0-d tensor on the device lets a graph read it at replay.
        count: n, tokens of the step.
        commit: leading tokens that do not see the rest.
        padding: (N, P) bool, False on padding; None without.
        device: where to build the mask.

    Returns:
        (1 or N, n, K) bool, [query, key].
    """
    key = torch.arange(columns, device=device)
    query = torch.arange(count, device=device)[:, None]
    end = start + torch.where(query < commit, commit, count)  # (n, 1)
    allowed = (key < end)[None]
    if padding is not None:
        allowed = allowed & torch.nn.functional.pad(padding, (0, columns - padding.shape[1]), value=True)[:, None]
    return allowed
