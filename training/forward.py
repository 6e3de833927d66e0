"""The training forward: stock Qwen3-VL layers on [context | noisy copies], and scores of the rows that carry loss.

Numerically it is the stock forward (a test holds the two equal). What differs is cost: context rows see the context,
and each noisy copy sees the context and itself, so no score is computed only to be masked, and the context is encoded
once for all copies. Rows without loss are never projected to the vocabulary, and those with loss in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from training.config import Kernel
from training.frozen_vision import FrozenVision
from training.layout import Images, Inputs
from wamdiff2_core.model.vision import VisionEncoder, fused_attention

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration

ATTENTION_NAME = "wamdiff2_training"
SCORE_ROWS = 4096  # rows that are projected to the vocabulary at a time
HIDDEN_SCORE = -1e4  # finite, so that a padding row stays free of NaN
ScoreRows = Callable[[Tensor, slice], tuple[Tensor, ...]]
T = TypeVar("T")


@dataclass(frozen=True)
class Visible:
    """What attention layers are told: masks of the two kinds of rows.

    Attributes:
        context: (N, 1, C, C) bool, or floats that are added to the scores.
        copies: (N, 1, R, C + R) likewise, or None without copies.
        kernel: `written`: products and a softmax, of which PyTorch's CPU backward is fast; `fused`: PyTorch's kernel.
    """

    context: Tensor
    copies: Tensor | None
    kernel: Kernel


def written_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    """Attention of heads (..., L, d), with `bias` added to the scores."""
    scores = (q * scale) @ k.transpose(-1, -2)
    return (scores if bias is None else scores + bias).softmax(-1) @ v


def block_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Visible, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Attention function of transformers' interface: (N, H, L, d) heads to (N, L, H, d).

    Context rows attend to the context, and each copy to the context and itself.
    """
    visible = attention_mask
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    attend = written_attention if visible.kernel == "written" else _fused
    context = visible.context.shape[-1]
    y = attend(query[:, :, :context], key[:, :, :context], value[:, :, :context], scaling, visible.context)
    if visible.copies is not None:
        rows = visible.copies.shape[-2]
        batch, heads, length, width = query.shape
        copies = (length - context) // rows

        def by_copy(x: Tensor) -> Tensor:  # copies become rows of the batch
            return x[:, :, context:].unflatten(2, (copies, rows)).transpose(1, 2).flatten(0, 1)

        def with_context(x: Tensor) -> Tensor:
            shared = x[:, None, :, :context].expand(-1, copies, -1, -1, -1).flatten(0, 1)
            return torch.cat([shared, by_copy(x)], 2)

        mask = visible.copies.repeat_interleave(copies, 0)
        own = attend(by_copy(query), with_context(key), with_context(value), scaling, mask)
        own = own.unflatten(0, (batch, copies)).transpose(1, 2).reshape(batch, heads, copies * rows, width)
        y = torch.cat([y, own], 2)
    return y.transpose(1, 2), None


def _fused(q: Tensor, k: Tensor, v: Tensor, scale: float, allowed: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale)


AttentionInterface.register(ATTENTION_NAME, block_attention)


@contextmanager
def _in_one_piece(model: nn.Module) -> Iterator[bool]:
    """All of FSDP2's parameters gathered, and left so by the forwards inside; gives whether there are any."""
    shards = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in shards:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield bool(shards)
    finally:
        for module in shards:
            module.set_reshard_after_forward(module is not model, recurse=False)
            module.reshard()


class AnswerModel(nn.Module):
    """A stock model as training sees it; a module of its own so that wrappers of parallelism see one forward.

    Attributes:
        model: the stock model; its text attention is replaced by `block_attention`.
        score_all: whether callers score all answer rows, so that shapes stay the same and a compiled forward is kept.
    """

    def __init__(
        self, model: Qwen3VLForConditionalGeneration, *, kernel: Kernel = "written", stock_vision: bool = False,
        score_rows: int = SCORE_ROWS, frozen_vision: bool = False, kept_images: int = 0,
    ) -> None:
        """Take a stock model.

        Args:
            model: see above.
            kernel: of attention.
            stock_vision: run the vision tower through its own forward, which sharded parameters need.
            score_rows: rows that are projected to the vocabulary at a time.
            frozen_vision: vision has no gradients.
            kept_images: of `FrozenVision`.
        """
        super().__init__()
        self.model: Any = model
        self.score_all = False
        self.kernel, self.stock_vision, self.score_rows = kernel, stock_vision, score_rows
        model.model.language_model.config._attn_implementation = ATTENTION_NAME
        attend = written_attention if kernel == "written" else fused_attention
        encoder = VisionEncoder(model.model.visual, attend)
        self._encode_images = FrozenVision(encoder, kept_images) if frozen_vision else encoder
        if frozen_vision:
            model.model.visual.requires_grad_(False)

    def forward(
        self, inputs: Inputs | None, rows: Tensor | None, score: ScoreRows | None,
        decode: Callable[[], Any] | None = None,
    ) -> Any:
        """Score rows of the layout.

        Args:
            inputs: of `layout`.
            rows: (M,) indices into the flattened (N, L) rows of `inputs`.
            score: gives values (m,) of logits (m, V) of a slice of `rows`; what it computes is computed again
                in the backward pass when there are several slices.
            decode: of `AnswerModel.decode`; stands in for all others, which are None.

        Returns:
            values of all rows, for each output of `score`; or what `decode` returns.
        """
        if decode is not None:
            return decode()
        assert inputs is not None
        assert rows is not None
        assert score is not None
        picked = self.hidden(inputs).flatten(0, 1)[rows]
        head = self.model.lm_head

        def values(part: Tensor, where: slice) -> tuple[Tensor, ...]:
            return score(head(part), where)

        if len(rows) <= self.score_rows:
            return values(picked, slice(0, len(rows)))
        pieces = []
        for first in range(0, len(rows), self.score_rows):
            where = slice(first, min(first + self.score_rows, len(rows)))
            if torch.is_grad_enabled():
                pieces.append(checkpoint(values, picked[where], where, use_reentrant=False))
            else:
                pieces.append(values(picked[where], where))
        return tuple(torch.cat(piece) for piece in zip(*pieces, strict=True))

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        device: torch.device = self.model.model.language_model.embed_tokens.weight.device
        return device

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Lets the stock model decode: evaluation mode, and attention as serving has it."""
        config, training = self.model.model.language_model.config, self.model.training
        config._attn_implementation = "sdpa"
        self.model.eval()
        try:
            yield
        finally:
            config._attn_implementation = ATTENTION_NAME
            self.model.train(training)

    def decode(self, decode: Callable[[], T]) -> T:
        """What `decode` makes of the stock model, which may decode meanwhile.

        Of sharded parameters every process holds the whole model meanwhile, so that one may take more steps than
        another; all processes have to come here together.
        """
        with self.decoding(), _in_one_piece(self) as sharded:
            # shards want to be entered from the outermost module; a compiled forward is not for decoding
            result: T = self(None, None, None, decode) if sharded else decode()
        return result

    def hidden(self, inputs: Inputs) -> Tensor:
        """(N, L, D) hidden states after the final norm."""
        text = self.model.model.language_model
        x = text.embed_tokens(inputs.ids)
        dtype = x.dtype
        levels: list[Tensor] = []
        slots = None
        if inputs.images is None and self.stock_vision:
            # shards of the vision tower are gathered by all processes together, whoever has images
            tokens, levels = self._encode(self._blank_image())
            x = x + 0 * sum(part.sum() for part in (tokens, *levels)).to(dtype)
            levels = []
        elif inputs.images is not None:
            copies = inputs.ids.shape[1] - inputs.images.slots.shape[1]
            slots = functional.pad(inputs.images.slots, (0, copies))[:, :, None]
            tokens, levels = self._encode(inputs.images)
            x = x.masked_scatter(slots, tokens.to(dtype))
        visible = self._visible(inputs, dtype)
        rotary = text.rotary_emb(x, inputs.positions)
        for index, layer in enumerate(text.layers):
            x = layer(x, position_embeddings=rotary, attention_mask=visible)
            if slots is not None and index < len(levels):
                x = x + torch.zeros_like(x).masked_scatter(slots, levels[index].to(dtype))
        normed: Tensor = text.norm(x)
        return normed

    def _blank_image(self) -> Images:
        vision = self.model.config.vision_config
        side = vision.spatial_merge_size
        width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        nowhere = torch.zeros(0, 0, dtype=torch.bool)
        return Images(torch.zeros(side * side, width, device=self.device), ((1, side, side),), nowhere)

    def _visible(self, inputs: Inputs, dtype: torch.dtype) -> Visible:
        def told(allowed: Tensor) -> Tensor:
            if self.kernel == "fused":
                return allowed[:, None]
            return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, HIDDEN_SCORE)[:, None]

        copies = None if inputs.copy_allowed is None else told(inputs.copy_allowed)
        return Visible(told(inputs.context_allowed), copies, self.kernel)

    def _encode(self, images: Images) -> tuple[Tensor, list[Tensor]]:
        """Image tokens (T, D) in order, and the same for each deepstack level."""
        grids = torch.tensor(images.grids)
        if self.stock_vision:
            out = self.model.model.get_image_features(
                images.pixel_values, grids.to(images.pixel_values.device), return_dict=True
            )
            return torch.cat(list(out.pooler_output)), [torch.cat(list(level)) for level in out.deepstack_features]
        return self._encode_images(images.pixel_values, grids)
