"""Block diffusion decoding: each block of B masks is denoised against the prompt and all earlier blocks.

A step runs the B tokens of the block, picks a candidate for every mask and fixes some. A finished block's keys and
values must be those of its final tokens; that forward is shared with the first step of the next block, and the last
block needs none. So an answer costs one prefill and one forward a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode.deadline import CLOCK, Budget, Clock, Pace
from wamdiff2_core.decode.grammar.automaton import Automaton
from wamdiff2_core.decode.grammar.constraint import Constraint
from wamdiff2_core.decode.schedule import schedule
from wamdiff2_core.decode.selection import choose_tokens, hurry, select_positions
from wamdiff2_core.decode.trace import TraceRecorder
from wamdiff2_core.decode.warm_start import Guesses
from wamdiff2_core.model.block_model import BlockModel
from wamdiff2_core.model.masks import block_count


@dataclass
class DecodedBatch:
    """Answers of a batch before they are cut.

    Attributes:
        ids: (N, columns) whole blocks; EOS after the block that ended an answer.
        steps: (N,) steps each row took part in.
        blocks: (N,) blocks each row decoded.
        prefill_ms, decode_ms: wall clock of the batch.
        trace: when each token was fixed, if that was asked for.
        interventions: (N, columns) bool, tokens where a grammar chose another than the model; None without grammars.
        hurried: (N,) steps in which the deadline fixed tokens that the strategy would have left open; None without.
        overshoot_ms: how late the batch was, 0 when it was not.
        pace: how long its steps took; as it was given without a deadline.
        idle_replays: forwards given to an accelerator after the last one that was needed.
    """

    ids: Tensor
    steps: Tensor
    blocks: Tensor
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    trace: TraceRecorder | None = None
    interventions: Tensor | None = None
    hurried: Tensor | None = None
    overshoot_ms: float = 0.0
    pace: Pace | None = None
    idle_replays: int = 0


@dataclass
class UniformDraws:
    """Random numbers of each row's own generator, so that a row's answer does not depend on its neighbours.

    The rows of one prompt count their seeds up from `seed`.
    """

    rows: int
    seed: int
    copies: int = 1
    _generators: list[torch.Generator] = field(init=False)

    def __post_init__(self) -> None:
        self._generators = [
            torch.Generator().manual_seed(self.seed + row % self.copies) for row in range(self.rows)
        ]

    def draw(self, active: Sequence[bool], count: int) -> Tensor:
        """(rows, count) numbers in [0, 1); rows that are not active draw nothing and get zeros."""
        return torch.stack([
            torch.rand(count, generator=generator) if on else torch.zeros(count)
            for generator, on in zip(self._generators, active, strict=True)
        ])


def _possible_blocks(blocks: int, size: int, grammars: Sequence[Automaton | None] | None) -> int:
    """Blocks that an answer may have, of `blocks` at the most, as far as grammars tell."""
    longest = [None if grammar is None else grammar.longest for grammar in grammars or (None,)]
    known = [tokens for tokens in longest if tokens is not None]
    return blocks if len(known) < len(longest) else min(blocks, block_count(max(known), size))


def decode_blocks(
    model: BlockModel, requests: Sequence[ModelInputs], config: DecodeConfig, mask_token_id: int, eos_token_id: int,
    trace: bool = False, grammars: Sequence[Automaton | None] | None = None, full_head: bool = False,
    began_ns: int | None = None, clock: Clock = CLOCK, pace: Pace | None = None, guesses: Guesses | None = None,
    copies: int = 1,
) -> DecodedBatch:
    """Decode a batch by block diffusion.

    Args:
        model: the model; its cache is overwritten.
        requests: prompts.
        config: block size, step budget, strategy and sampling.
        mask_token_id: fills open positions; never chosen.
        eos_token_id: ends an answer after the block that holds it.
        trace: note when each token is fixed.
        grammars: of each request, None for a free one; at temperature 0 only.
        full_head: see `Constraint`.
        began_ns: when the time of a deadline began, on `clock`; None is now.
        clock: monotonic nanoseconds.
        pace: of the last batch of this size, for a deadline's first guesses.
        guesses: of whole answers, for a warm start.
        copies: answers to each request, which are rows one behind the other; grammars and guesses are by row.
    """
    size, counts = config.block_size, schedule(config.block_size, config.denoising_steps)
    blocks, rows = block_count(config.max_new_tokens, size), len(requests) * copies
    started_ns = clock()
    prompt = model.prefill(requests, size, blocks * size, config.prompt_reuse, copies)
    budget: Budget | None = None
    if config.deadline_ms:
        prompt[:1, :1].cpu()  # an accelerator is done with the prompt, not only told of it
        began_ns = started_ns if began_ns is None else began_ns
        budget = Budget(config, _possible_blocks(blocks, size, grammars), began_ns, clock, pace)
    prefilled_ns = clock()

    ids = torch.full((rows, blocks * size), eos_token_id, device=model.device)
    steps = torch.zeros(rows, dtype=torch.long, device=model.device)
    decoded = torch.zeros_like(steps)
    draws = UniformDraws(rows, config.seed, copies) if config.temperature > 0 else None
    recorder = TraceRecorder(rows, blocks * size, model.device) if trace else None
    hurried = torch.zeros_like(steps) if budget is not None else None
    # otherwise a block's last token is fixed in its last step, and the host need not ask the device after each
    may_end_early = budget is not None or guesses is not None or config.strategy == "low_confidence_dynamic"
    finished = torch.zeros(rows, 1, dtype=torch.bool, device=model.device)
    constraint, intervened, overshoot_ms = None, None, 0.0
    if grammars is not None:
        constraint = Constraint(grammars, blocks * size, model, mask_token_id, full_head)
        intervened = torch.zeros_like(ids, dtype=torch.bool)
    for block in range(blocks):
        first = block * size
        # which positions are open is state of its own: ids that equal the mask token may also be a prompt's or a user's
        masked = ~finished.expand(rows, size)
        tokens = torch.where(masked, mask_token_id, eos_token_id)
        decoded += ~finished[:, 0]
        for step, count in enumerate(counts):
            allowed = budget.allow(block, step, int(masked.sum(-1).max())) if budget is not None else None
            if step == 0 and block:
                both = torch.cat([ids[:, first - size : first], tokens], 1)
                hidden = model.forward(both, first - size, commit=size, wanted=masked)
            else:
                hidden = model.forward(tokens, first, wanted=masked)
            active = masked.any(-1)
            steps += active
            last = step + 1 == len(counts)
            if constraint is not None:
                choice = constraint.choose(hidden, masked, torch.cat([ids[:, :first], tokens], 1), first)
                candidates, confidence, strange = choice.tokens, choice.confidence, choice.tokens != choice.free
            elif draws is not None:
                strange = None
                logits = model.logits(hidden[masked])
                logits[:, mask_token_id] = -torch.inf
                uniform = draws.draw(active.tolist(), size).to(model.device)[masked]
                chosen, probabilities = choose_tokens(logits, config, uniform)
                candidates = tokens.masked_scatter(masked, chosen)
                confidence = torch.zeros(masked.shape, device=model.device).masked_scatter_(masked, probabilities)
            else:
                strange = None
                candidates, confidence = model.pick(hidden, masked, mask_token_id)
            fixed = masked if last else select_positions(confidence, masked, config, count)
            if guesses is not None:
                fixed = fixed | (masked & guesses.agreed(candidates, confidence, first))
            if allowed is not None and hurried is not None:
                sooner = hurry(confidence, masked, config, allowed) & ~fixed
                fixed = fixed | sooner
                hurried += sooner.any(-1)
            if recorder is not None:
                recorder.fix(first, step, fixed, confidence)
            if intervened is not None and strange is not None:
                intervened[:, first : first + size] |= fixed & strange
            tokens = torch.where(fixed, candidates, tokens)
            masked = masked & ~fixed
            if last or (may_end_early and not masked.any()):
                break
        if constraint is not None:
            constraint.advance()
        ids[:, first : first + size] = tokens
        finished = finished | (tokens == eos_token_id).any(-1, keepdim=True)
        if finished.all():
            break
    if budget is not None:
        pace, overshoot_ms = budget.finish()
    prefill_ms, decode_ms = (prefilled_ns - started_ns) / 1e6, (clock() - prefilled_ns) / 1e6
    return DecodedBatch(
        ids, steps.cpu(), decoded.cpu(), prefill_ms, decode_ms, recorder, intervened, hurried, overshoot_ms, pace
    )
