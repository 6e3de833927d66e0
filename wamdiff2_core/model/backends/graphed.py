"""Backends that record their forwards once and replay them: what CUDA and Ascend share.

All state of a step lives in memory that never moves: token ids, the answer column that it begins at, prompt lengths,
rotary tables, keys and values. A graph reads them there, so one serves every block and every request that fits its
bucket. Rows are kept left-aligned in the cache, each prompt at column 0 and its answer behind it, so what a token may
see is one length a row: no padding is stored, and pages need no gaps.

A bucket is the number of cache columns that a graph looks at. Columns behind a row's length hold leftovers of earlier
requests; they are masked, and cleared at every prefill, because zero times a leftover NaN is NaN.

Attention of a graph is one of `Attention`. Those that read lengths on the host are told them once a block.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb

from wamdiff2_core.model.backends.backend import Batch
from wamdiff2_core.model.backends.device_ops import DeviceOps, Event, Graph
from wamdiff2_core.model.backends.eager import EagerBackend

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration

BUCKET = 256  # columns; a multiple of every page size
ANSWER_BUCKET = 128
T = TypeVar("T")


@dataclass(frozen=True)
class StepShape:
    """What a graph of one forward is made for.

    Attributes:
        rows: N.
        count: n, tokens a row.
        commit: of these, the finished block that leads them; it does not see the rest.
        columns: K, of the cache, that attention looks at.
        capacity: C, columns of the cache.
    """

    rows: int
    count: int
    commit: int
    columns: int
    capacity: int

    @property
    def parts(self) -> tuple[int, ...]:
        """Tokens a row that share what they see: the finished block, and the others."""
        return (self.commit, self.count - self.commit) if self.commit else (self.count,)


@dataclass(frozen=True)
class Step:
    """One forward, as its attention sees it; tensors are on the device.

    Attributes:
        shape: of the graph.
        ends: (N, n) long, columns that each token may see.
        shared: what `Attention.begin` made for all layers.
    """

    shape: StepShape
    ends: Tensor
    shared: Any = None


class Attention(Protocol):
    """Full attention of a step's tokens over the leading columns of their row.

    Attributes:
        host_lengths: lengths are host integers, told by `plan`; otherwise they are read from `Step.ends`.
        host_values: its operators keep host integers in the graph, which `before_replay` updates.
    """

    host_lengths: bool
    host_values: bool

    def begin(self, step: Step) -> Any:
        """What all layers of a forward share, recorded before the first of them."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, step: Step) -> Tensor:
        """One layer.

        Args:
            query: (N, n, H, d).
            keys, values: (N, C, G, d) cache, of which the first K columns are looked at.
            step: see `Step`.

        Returns:
            (N, n, H * d).
        """

    def plan(self, shape: StepShape, lengths: tuple[tuple[int, ...], ...]) -> None:
        """Tell the lengths of the block to come.

        Args:
            shape: of the graph that will be replayed.
            lengths: of each row, columns that each of `shape.parts` sees.
        """

    def before_replay(self, ops: DeviceOps, graph: Graph, shape: StepShape) -> None:
        """Whatever a graph needs before each of its replays."""


@dataclass
class Room:
    """Memory for batches of N rows, and the graphs that work on it.

    Attributes:
        cache: (layers, 2, N, C, G, d) keys and values; column C - 1 takes what nobody reads.
        cos, sin: (N, R, d) rotary table of the answers.
        lengths: (N,) long, tokens of each prompt.
        first: () long, answer column of a step's first token.
        ids: (N, n) long by n, tokens of `step`.
        hidden: (N, n - commit, D) by n and commit, results of `step`.
        graphs: by whatever they were captured for.
        kept: other memory that graphs refer to.
    """

    cache: Tensor
    cos: Tensor
    sin: Tensor
    lengths: Tensor
    first: Tensor
    ids: dict[int, Tensor] = field(default_factory=dict)
    hidden: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    graphs: dict[Hashable, Graph] = field(default_factory=dict)
    kept: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def capacity(self) -> int:
        """C."""
        return self.cache.shape[3]


class PromptWriter:
    """A cache for the stock layers of a prefill, which puts right-aligned prompts left-aligned into a room.

    Attributes:
        room: where to.
        slots: of each token that is run, row after row, among all columns of the room.
        reused: leading columns that were there before.
    """

    def __init__(self) -> None:
        self.room: Room | None = None
        self.slots: Tensor | None = None
        self.reused = 0

    def begin(self, *_: Any) -> None:
        """Nothing: the room is there."""

    def write_at(self, column: int) -> None:
        """Nothing: slots say it."""

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write (N, G, n, d) keys and values of a layer; return them with those of the reused columns before them."""
        assert self.room is not None
        assert self.slots is not None
        for which, new in enumerate((keys, values)):
            flat = self.room.cache[layer, which].flatten(0, 1)
            flat.index_copy_(0, self.slots, new.transpose(1, 2).flatten(0, 1))
        if self.reused:
            whole = self.room.cache[layer, :, :, : self.reused + keys.shape[2]].transpose(2, 3)
            return whole[0], whole[1]
        return keys, values


class GraphedBackend(EagerBackend):
    """A backend whose steps are graphs; see `Backend`.

    On its own device it agrees with `eager` within the rounding of two attention kernels and of matrix products over
    other numbers of rows: tokens are the same but where two are as good as equally probable.

    Attributes:
        ops: of the device.
        attention: of steps.
        ahead: replays given out beyond the one whose result is being looked at.
    """

    name = "graphed"
    ahead = 1

    def __init__(self, model: Qwen3VLForConditionalGeneration, ops: DeviceOps, attention: Attention) -> None:
        """Take a stock model.

        Args:
            model: its weights must stay where they are.
            ops: of the device it is on.
            attention: of steps.
        """
        super().__init__(model)
        self.ops, self.attention = ops, attention
        self._writer = PromptWriter()
        self._cache: Any = self._writer
        self._rooms: dict[int, Room] = {}
        self._lengths: list[int] = []
        self._columns = 0
        self._over: Event | None = None

    @property
    def room(self) -> Room:
        """Memory of the batch that runs."""
        assert self._writer.room is not None
        return self._writer.room

    @property
    def bucket(self) -> int:
        """Cache columns that graphs of this batch look at."""
        return self._columns

    def prefill(self, batch: Batch) -> Tensor:
        """See `Backend.prefill`."""
        self.prompt = None
        self.ops.wait()  # a request that was dropped half way may still be running
        rows, width = batch.ids.shape
        answers = batch.answer_positions.shape[-1]
        self._columns = -(-(width + answers + 1) // BUCKET) * BUCKET
        room = self._fitting_room(rows, answers, batch.reused)
        if batch.padding is None:
            self._lengths = [width] * rows
            pad = torch.zeros(rows, dtype=torch.long, device=self.device)
        else:
            pad = width - batch.padding.sum(-1)
            self._lengths = [width - skipped for skipped in pad.tolist()]
        room.lengths.copy_(width - pad)
        column = torch.arange(width, device=self.device) - pad[:, None]
        column = torch.where(column >= 0, column, room.capacity - 1)
        row = torch.arange(rows, device=self.device)[:, None] * room.capacity
        self._writer.room, self._writer.reused = room, batch.reused
        self._writer.slots = (row + column)[:, batch.reused :].flatten()
        room.cache[:, :, :, min(self._lengths) : self._columns].zero_()
        last = super().prefill(batch)
        self._take_rotary(answers)
        return last

    def spread(self, copies: int) -> None:
        """See `Backend.spread`: the rows go to the memory of batches of so many."""
        self.prompt = None
        old, columns, answers = self.room, self._columns, self._rotary[0].shape[1]
        self._lengths = [length for length in self._lengths for _ in range(copies)]
        room = self._fitting_room(len(self._lengths), answers, 0)
        room.cache[:, :, :, :columns].copy_(old.cache[:, :, :, :columns].repeat_interleave(copies, 2))
        room.lengths.copy_(old.lengths.repeat_interleave(copies))
        self._rotary = self._rotary[0].repeat_interleave(copies, 0), self._rotary[1].repeat_interleave(copies, 0)
        self._writer.room = room
        self._take_rotary(answers)

    def step(self, ids: Tensor, offset: int, commit: int = 0, wanted: Tensor | None = None) -> Tensor:
        """See `Backend.step`; `wanted` is not looked at."""
        room, shape = self.room, self.shape(ids.shape[1], commit)
        if shape.count not in room.ids:
            room.ids[shape.count] = torch.zeros_like(ids)
        room.ids[shape.count].copy_(ids)
        room.first.fill_(offset)
        kept = (shape.count, commit)
        if kept not in room.hidden:
            size = shape.rows, shape.count - commit, self._text.config.hidden_size
            room.hidden[kept] = torch.zeros(size, dtype=room.cache.dtype, device=self.device)

        def body() -> None:
            room.hidden[kept].copy_(self.forward(room.ids[shape.count], room.first, shape))

        self.plan(shape, offset)  # before the capture, too, which runs the body to warm up
        self.replay(self.captured("step", shape, body), shape)
        return room.hidden[kept]

    def pick(self, hidden: Tensor, masked: Tensor, mask_token_id: int) -> tuple[Tensor, Tensor]:
        """See `Backend.pick`; all positions are looked at, so no shape depends on the mask."""
        logits = self.logits(hidden)
        logits.select(-1, mask_token_id).fill_(-torch.inf)
        best, tokens = logits.max(-1)
        return tokens, 1 / (logits - best[..., None]).exp_().sum(-1)

    def columns(self, first: int, last: int) -> list[tuple[Tensor, Tensor]]:
        """See `Backend.columns`; copies, right-aligned as the batch was."""
        room, width = self.room, max(self._lengths)
        at = torch.arange(first, last, device=self.device) + room.lengths[:, None] - width
        row = torch.arange(len(at), device=self.device)[:, None]
        keys, values = ([layer[row, at].transpose(1, 2) for layer in room.cache[:, which]] for which in (0, 1))
        return list(zip(keys, values, strict=True))

    def shape(self, count: int, commit: int = 0) -> StepShape:
        """Of a step of the batch that runs."""
        return StepShape(len(self._lengths), count, commit, self._columns, self.room.capacity)

    def forward(self, ids: Tensor, first: Tensor, shape: StepShape) -> Tensor:
        """A step for the inside of a graph: all that it depends on is on the device.

        Args:
            ids: (N, n) long.
            first: () long, answer column of the first token; tokens before column 0 are run, and written nowhere.
            shape: see `StepShape`.

        Returns:
            (N, n - commit, D) hidden states of all but the finished block, after the final norm.
        """
        room, device = self.room, self.device
        token = torch.arange(shape.count, device=device)
        at = first + token
        column = (room.lengths[:, None] + at).masked_fill(at < 0, room.capacity - 1)
        slots = (torch.arange(shape.rows, device=device)[:, None] * room.capacity + column).flatten()
        place = at.clamp(min=0)
        rotary = room.cos.index_select(1, place), room.sin.index_select(1, place)
        ends = room.lengths[:, None] + first + (shape.count - (token < shape.commit) * (shape.count - shape.commit))
        step = Step(shape, ends)
        step = Step(shape, ends, self.attention.begin(step))
        hidden = self._text.embed_tokens(ids)
        for layer, keys_and_values in zip(self._text.layers, room.cache, strict=True):
            hidden = self._layer(layer, hidden, rotary, keys_and_values, slots, step)
        normed: Tensor = self._text.norm(hidden[:, shape.commit :])
        return normed

    def has(self, name: Hashable, shape: StepShape) -> bool:
        """Whether that graph was captured."""
        return (name, shape) in self.room.graphs

    def captured(self, name: Hashable, shape: StepShape, body: Callable[[], None]) -> Graph:
        """The graph of that name and shape on this batch's memory; captured now if there is none.

        Args:
            name: says, with `shape`, all that `body` depends on beside device memory.
            shape: of the forward inside.
            body: see `DeviceOps.capture`; calls `forward`.
        """
        graphs = self.room.graphs
        if (name, shape) not in graphs:
            graphs[name, shape] = self.ops.capture(body, self.attention.host_values)
        return graphs[name, shape]

    def kept(self, name: Hashable, make: Callable[[], T]) -> T:
        """Memory that lives as long as the graphs of this batch's room; made now if there is none of that name."""
        kept = self.room.kept
        if name not in kept:
            kept[name] = make()
        value: T = kept[name]
        return value

    def plan(self, shape: StepShape, offset: int) -> None:
        """Tell attention where a step begins, if it must know on the host; once a block is enough."""
        if self.attention.host_lengths:
            ends = [offset + end for end in accumulate(shape.parts)]
            self.attention.plan(shape, tuple(tuple(length + end for end in ends) for length in self._lengths))

    def replay(self, graph: Graph, shape: StepShape) -> None:
        """Give a graph to the device; one with host values waits until the replay before is over."""
        if self._over is not None:
            self._over.synchronize()
        self.attention.before_replay(self.ops, graph, shape)
        graph.replay()
        if self.attention.host_values:
            self._over = self._over or self.ops.event()
            self._over.record()

    def _layer(
        self, layer: Any, hidden: Tensor, rotary: tuple[Tensor, Tensor], cache: Tensor, slots: Tensor, step: Step
    ) -> Tensor:
        attention = layer.self_attn
        normed = layer.input_layernorm(hidden)
        heads = (*normed.shape[:-1], -1, attention.head_dim)
        query = attention.q_norm(attention.q_proj(normed).view(heads))
        key = attention.k_norm(attention.k_proj(normed).view(heads))
        query, key = apply_rotary_pos_emb(query, key, *rotary, unsqueeze_dim=2)
        for which, new in enumerate((key, attention.v_proj(normed).view(heads))):
            cache[which].flatten(0, 1).index_copy_(0, slots, new.flatten(0, 1))
        hidden = hidden + attention.o_proj(self.attention.attend(query, cache[0], cache[1], step))
        result: Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return result

    def weights_state(self) -> Hashable:
        """See `Backend.weights_state`: they never change."""
        return ()

    def _take_rotary(self, answers: int) -> None:
        for table, new in zip((self.room.cos, self.room.sin), self._rotary, strict=True):
            table[:, :answers].copy_(new)

    def _fitting_room(self, rows: int, answers: int, kept: int) -> Room:
        """The memory of batches of so many rows; made anew, with the first `kept` columns, where it is too small."""
        room = self._rooms.get(rows)
        if room is None or room.capacity < self._columns or room.cos.shape[1] < answers:
            room = self._rooms[rows] = self._make_room(rows, answers, kept)
        return room

    def _make_room(self, rows: int, answers: int, kept: int) -> Room:
        """Memory for at least this batch and all before it of as many rows, so that it grows seldom.

        The first `kept` columns are those of the memory that it replaces.
        """
        config, old = self._text.config, self._rooms.get(rows)
        weight = self._text.embed_tokens.weight
        columns = self._columns if old is None else max(self._columns, old.capacity)
        table = -(-max(answers, 0 if old is None else old.cos.shape[1]) // ANSWER_BUCKET) * ANSWER_BUCKET

        def zeros(*size: int, dtype: torch.dtype = weight.dtype) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=self.device)

        room = Room(
            zeros(config.num_hidden_layers, 2, rows, columns, config.num_key_value_heads, config.head_dim),
            zeros(rows, table, config.head_dim), zeros(rows, table, config.head_dim),
            zeros(rows, dtype=torch.long), zeros(dtype=torch.long),
        )
        if old is not None:
            room.cache[:, :, :, :kept].copy_(old.cache[:, :, :, :kept])
        return room


class SdpaAttention:
    """PyTorch's kernel over a whole bucket, with a mask made from the lengths on the device.

    Query heads that share a key head become rows of it, so keys are neither repeated nor read twice.
    """

    host_lengths = False
    host_values = False

    def __init__(self, heads: int, key_heads: int) -> None:
        """Take the numbers of query heads, H, and key-value heads, G."""
        self._groups, self._shared = key_heads, heads // key_heads

    def begin(self, step: Step) -> Tensor:
        """(N, 1, H / G * n, K) bool, True = may attend."""
        shape = step.shape
        allowed = torch.arange(shape.columns, device=step.ends.device) < step.ends[:, None, :, None]
        return allowed.expand(-1, self._shared, -1, -1).reshape(shape.rows, 1, -1, shape.columns)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, step: Step) -> Tensor:
        """See `Attention.attend`."""
        rows, count, _, width = query.shape
        keys, values = (part[:, : step.shape.columns].transpose(1, 2) for part in (keys, values))
        query = query.view(rows, count, self._groups, self._shared, width).permute(0, 2, 3, 1, 4).flatten(2, 3)
        out = functional.scaled_dot_product_attention(query, keys, values, attn_mask=step.shared)
        out = out.view(rows, self._groups, self._shared, count, width).permute(0, 3, 1, 2, 4)
        return out.reshape(rows, count, -1)

    def plan(self, shape: StepShape, lengths: tuple[tuple[int, ...], ...]) -> None:
        """Nothing: lengths are on the device."""

    def before_replay(self, ops: DeviceOps, graph: Graph, shape: StepShape) -> None:
        """Nothing."""
