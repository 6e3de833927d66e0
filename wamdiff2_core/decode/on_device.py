"""Block diffusion with the whole step on the accelerator: forward, head, choice, selection, token write, EOS.

The host replays graphs and reads two numbers that the device copies to it: masks left in the block, and whether the
answers are over. It looks at them late, while the next replay runs already; a replay that was not needed finds no mask
and changes nothing.

Two ways to go from block to block. `free`: every step runs the block before it too, 2B tokens a row, and moves on to
the next block by itself when no mask is left; so the host looks at the end of the answers only, and at most `ahead`
replays are too many in all. Up to about a hundred tokens a forward takes as long as its weights take to be read, so the
second half costs nothing. `by_block`: the first step of a block runs 2B tokens a row, the others B, and the host waits
for a block's end; it serves attention that must know lengths on the host, and batches beyond that many tokens.

Without a grammar, temperature, deadline and warm start, whose steps need the host. Tokens are those of `decode_blocks`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode.block_diffusion import DecodedBatch
from wamdiff2_core.decode.deadline import CLOCK, Clock
from wamdiff2_core.decode.schedule import schedule
from wamdiff2_core.decode.selection import select_positions
from wamdiff2_core.decode.trace import TraceRecorder
from wamdiff2_core.model.backends.device_ops import DeviceOps, Event, Graph
from wamdiff2_core.model.backends.graphed import GraphedBackend, StepShape
from wamdiff2_core.model.block_model import BlockModel
from wamdiff2_core.model.masks import block_count

FREE_TOKENS = 128  # of a forward, below which their number does not matter


class BlockState:
    """Answers in the making, in memory that stays where it is; all methods but `begin` are for the inside of graphs.

    Attributes:
        ids: (N, R) long, answers so far.
        masked: (N, B) bool, open positions of the block.
        rows: (N, 2B) long, the block before it and the block.
        first: () long, answer column of `rows`.
        flags: (2,) int32, masks left and whether the answers are over.
        steps, decoded: (N,) long, steps that each row took part in, blocks that it decoded.
        trace: when each token was fixed.
    """

    def __init__(
        self, rows: int, columns: int, config: DecodeConfig, mask: int, eos: int, device: torch.device
    ) -> None:
        """Make room.

        Args:
            rows: N.
            columns: R, answer tokens a row at most.
            config: block size, strategy and threshold.
            mask, eos: token ids.
            device: of the model.
        """

        def zeros(*size: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        size = config.block_size
        self._config, self._size = config, size
        # as tensors: a number beside tensors in `torch.where` is copied to the device, which a graph cannot record
        self._mask, self._eos = zeros().fill_(mask), zeros().fill_(eos)
        self.ids, self.rows = zeros(rows, columns), zeros(rows, 2 * size)
        self.masked, self._finished = zeros(rows, size, dtype=torch.bool), zeros(rows, 1, dtype=torch.bool)
        self.first, self._block, self._step = zeros(), zeros(), zeros()
        self._last_block, self._last_step = zeros(), zeros()
        self._counts = zeros(size)
        self.steps, self.decoded = zeros(rows), zeros(rows)
        self.flags = zeros(2, dtype=torch.int32)
        self.trace = TraceRecorder(rows, columns, device)

    @property
    def tokens(self) -> Tensor:
        """(N, B) long, the block."""
        return self.rows[:, self._size :]

    def begin(self, blocks: int, counts: Sequence[int]) -> None:
        """Start answers of so many blocks, with so many tokens to fix at each step."""
        self.ids.copy_(self._eos)
        self.rows.copy_(self._mask)  # before the first block, too, where EOS need not be a token of the vocabulary
        self.masked.fill_(True)
        self._finished.fill_(False)
        self._block.zero_()
        self._step.zero_()
        self._last_block.fill_(blocks - 1)
        self._last_step.fill_(len(counts) - 1)
        self._counts.fill_(self._size)
        self._counts[: len(counts)].copy_(torch.tensor(counts))
        self.steps.zero_()
        self.decoded.fill_(1)
        self.flags.zero_()
        self.trace.clear()

    def advance(self, behind: int) -> None:
        """Go on to the next block if this one has no mask left and there is more to do.

        Args:
            behind: tokens before the block that the forward runs, B or 0; with 0 the block stays, as its last tokens
                would never be run.
        """
        if not behind:
            self.first.copy_(self._block * self._size)
            return
        go = ~self.masked.any() & (self._block < self._last_block) & ~self._finished.all()
        open_ = go & ~self._finished
        self.decoded.add_(open_[:, 0])
        self._block.add_(go)
        self._step.mul_(~go)
        before, tokens = self.rows[:, : self._size], self.tokens
        before.copy_(torch.where(go, tokens, before))
        tokens.copy_(torch.where(go, torch.where(self._finished, self._eos, self._mask), tokens))
        self.masked.logical_or_(open_)
        self.first.copy_(self._block * self._size - behind)

    def fix(self, candidates: Tensor, confidence: Tensor) -> None:
        """Fix what the strategy wants of a step's candidates (N, B) with their probabilities (N, B)."""
        masked, columns = self.masked, self._block * self._size + torch.arange(self._size, device=self.ids.device)
        self.steps.add_(masked.any(-1))
        step = self._step.clamp(max=self._size - 1)
        chosen = select_positions(confidence, masked, self._config, self._counts.index_select(0, step[None])[0])
        fixed = torch.where(step >= self._last_step, masked, chosen)
        self.trace.fix_at(columns, step, fixed, confidence)
        self.tokens.copy_(torch.where(fixed, candidates, self.tokens))
        masked.logical_and_(~fixed)
        self._step.add_(1)
        self.ids.index_copy_(1, columns, self.tokens)
        done = ~masked.any()
        self._finished.logical_or_(done & (self.tokens == self._eos).any(-1, keepdim=True))
        over = done & (self._finished.all() | (self._block >= self._last_block))
        self.flags.copy_(torch.stack([masked.sum(), over.long()]))


class Watch:
    """Flags on their way from the device to the host, the oldest first."""

    def __init__(self, ops: DeviceOps, depth: int) -> None:
        """Make room for the flags of `depth` replays at a time."""
        self._ops = ops
        self._free: deque[tuple[Tensor, Event]] = deque(
            (ops.host_buffer(2, dtype=torch.int32), ops.event()) for _ in range(depth)
        )
        self._coming: deque[tuple[Tensor, Event]] = deque()

    def note(self, flags: Tensor) -> None:
        """Send the flags as they will be behind all that was given out."""
        host, event = self._free.popleft()
        self._ops.to_host(host, flags)
        event.record()
        self._coming.append((host, event))

    def read(self, ahead: int) -> tuple[int, bool] | None:
        """Masks left and whether all is over, after the latest replay that is known to be done.

        Args:
            ahead: replays whose flags need not be waited for.

        Returns:
            None when no flags have come since the last call.
        """
        seen = None
        while self._coming and (len(self._coming) > ahead or self._coming[0][1].query()):
            host, event = self._coming.popleft()
            event.synchronize()
            left, over = host.tolist()
            seen = int(left), bool(over)
            self._free.append((host, event))
        return seen


def decodes_on_device(model: BlockModel, config: DecodeConfig, grammars: object) -> bool:
    """Whether `decode_on_device` serves such a request."""
    plain = grammars is None and config.temperature == 0 and not config.deadline_ms and config.warm_start == "off"
    blocks = config.strategy != "autoregressive" and not model.stepwise
    return isinstance(model.backend, GraphedBackend) and plain and blocks


def decode_on_device(
    model: BlockModel, requests: Sequence[ModelInputs], config: DecodeConfig, mask_token_id: int, eos_token_id: int,
    trace: bool = False, clock: Clock = CLOCK,
) -> DecodedBatch:
    """Decode a batch by block diffusion; see `decode_blocks`.

    Args:
        model: with a `GraphedBackend`; see `decodes_on_device`.
        requests: prompts.
        config: block size, step budget and strategy.
        mask_token_id: fills open positions; never chosen.
        eos_token_id: ends an answer after the block that holds it.
        trace: note when each token is fixed.
        clock: monotonic nanoseconds.
    """
    size, counts = config.block_size, schedule(config.block_size, config.denoising_steps)
    blocks, rows = block_count(config.max_new_tokens, size), len(requests)
    started_ns = clock()
    model.prefill(requests, size, blocks * size, config.prompt_reuse)
    prefilled_ns = clock()
    decoder = _Decoder(model, config, mask_token_id, eos_token_id)
    state = decoder.state
    free = blocks > 1 and 2 * size * rows <= FREE_TOKENS and not decoder.backend.attention.host_lengths
    for behind in (True,) if free else (False, True)[: min(blocks, 2)]:
        decoder.prepare(behind, blocks, counts)
    state.begin(blocks, counts)
    replays = decoder.free() if free else decoder.by_block(blocks, len(counts))
    ids, steps, decoded = state.ids[:, : blocks * size].clone(), state.steps.cpu(), state.decoded.cpu()
    prefill_ms, decode_ms = (prefilled_ns - started_ns) / 1e6, (clock() - prefilled_ns) / 1e6
    return DecodedBatch(
        ids, steps, decoded, prefill_ms, decode_ms, state.trace.copy() if trace else None,
        idle_replays=replays - int(steps.max()),
    )


class _Decoder:
    """Graphs of one batch and the loops that replay them."""

    def __init__(self, model: BlockModel, config: DecodeConfig, mask: int, eos: int) -> None:
        assert isinstance(model.backend, GraphedBackend)
        self.backend = backend = model.backend
        self._size, self._mask = config.block_size, mask
        self._dynamic = config.strategy == "low_confidence_dynamic"
        # all that the recorded arithmetic takes from the host
        self._name = ("blocks", config.block_size, config.strategy, config.confidence_threshold, mask, eos)
        rows, columns = backend.room.cos.shape[:2]
        self.state = backend.kept(
            self._name, lambda: BlockState(rows, columns, config, mask, eos, backend.device)
        )
        self._watch = backend.kept("watch", lambda: Watch(backend.ops, backend.ahead + 1))
        self._watch.read(0)  # flags of a request that was dropped half way

    def prepare(self, behind: bool, blocks: int, counts: Sequence[int]) -> None:
        """Capture a graph that there is not yet; this runs steps of answers like those to come."""
        before = self._size if behind else 0
        shape = self.backend.shape(before + self._size, before)
        if not self.backend.has(self._name, shape):
            self.state.begin(blocks, counts)
            self.backend.plan(shape, 0)
            self.graph(behind)

    def graph(self, behind: bool) -> tuple[Graph, StepShape]:
        """The graph of a step; `behind`: it runs the block before, too."""
        state, backend, before = self.state, self.backend, self._size if behind else 0
        shape = backend.shape(before + self._size, before)

        def body() -> None:
            state.advance(before)
            hidden = backend.forward(state.rows if behind else state.tokens, state.first, shape)
            state.fix(*backend.pick(hidden, state.masked, self._mask))

        return backend.captured(self._name, shape, body), shape

    def free(self) -> int:
        """Replay until the answers are over; returns the number of replays."""
        backend, replays = self.backend, 0
        graph, shape = self.graph(behind=True)
        while True:
            backend.replay(graph, shape)
            replays += 1
            self._watch.note(self.state.flags)
            seen = self._watch.read(backend.ahead)
            if seen is not None and seen[1]:
                self._watch.read(0)
                return replays

    def by_block(self, blocks: int, most: int) -> int:
        """Replay block by block, with at most so many steps each; returns the number of replays."""
        backend, replays = self.backend, 0
        for block in range(blocks):
            seen = None
            for step in range(most):
                behind, last = block > 0 and step == 0, step + 1 == most
                graph, shape = self.graph(behind)
                backend.plan(shape, block * self._size - shape.commit)
                backend.replay(graph, shape)
                replays += 1
                # the other strategies fix their last token in the last step
                if last or self._dynamic or backend.ahead == 0:
                    self._watch.note(self.state.flags)
                    seen = self._watch.read(0 if last else backend.ahead)
                if seen is not None and seen[0] == 0:
                    break
            seen = self._watch.read(0) or seen
            if seen is not None and seen[1]:
                break
        return replays
