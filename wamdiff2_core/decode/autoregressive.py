"""Autoregressive decoding: its own convention, for weights with shifted labels.

The prompt is causal, the logits at one token predict the next, and there is no mask token. This is not block diffusion
with blocks of one, where the logits at a mask predict that same position.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode.block_diffusion import DecodedBatch, UniformDraws
from wamdiff2_core.decode.deadline import CLOCK, Clock
from wamdiff2_core.decode.grammar.automaton import Automaton
from wamdiff2_core.decode.grammar.constraint import Constraint
from wamdiff2_core.decode.selection import choose_tokens
from wamdiff2_core.decode.trace import TraceRecorder
from wamdiff2_core.model.block_model import BlockModel


def decode_autoregressive(
    model: BlockModel, requests: Sequence[ModelInputs], config: DecodeConfig, eos_token_id: int, trace: bool = False,
    grammars: Sequence[Automaton | None] | None = None, full_head: bool = False, clock: Clock = CLOCK,
    copies: int = 1,
) -> DecodedBatch:
    """Decode a batch token by token; at temperature 0 this equals Hugging Face's greedy `generate`.

    Args:
        model: the model; its cache is overwritten.
        requests: prompts.
        config: length limit and sampling.
        eos_token_id: ends an answer.
        trace: note how sure the model was of each token.
        grammars: of each request, None for a free one; at temperature 0 only.
        full_head: see `Constraint`.
        clock: monotonic nanoseconds.
        copies: answers to each request, which are rows one behind the other.
    """
    rows = len(requests) * copies
    started_ns = clock()
    hidden = model.prefill(requests, 1, config.max_new_tokens, config.prompt_reuse, copies)
    prefilled_ns = clock()

    ids = torch.full((rows, config.max_new_tokens), eos_token_id, device=model.device)
    steps = torch.zeros(rows, dtype=torch.long)
    draws = UniformDraws(rows, config.seed, copies) if config.temperature > 0 else None
    recorder = TraceRecorder(rows, config.max_new_tokens, model.device) if trace else None
    open_rows = torch.ones(rows, dtype=torch.bool, device=model.device)
    constraint = intervened = None
    if grammars is not None:
        constraint = Constraint(grammars, config.max_new_tokens, model, None, full_head)
        intervened = torch.zeros_like(ids, dtype=torch.bool)
    for position in range(config.max_new_tokens):
        if position:
            hidden = model.forward(ids[:, position - 1 : position], position - 1)[:, 0]
        active = open_rows.cpu()
        steps += active
        uniform = draws.draw(active.tolist(), 1)[:, 0].to(model.device) if draws else None
        if constraint is not None and intervened is not None:
            choice = constraint.choose(hidden[:, None], open_rows[:, None], ids[:, : position + 1], position)
            constraint.advance()
            tokens, probabilities = choice.tokens[:, 0], choice.confidence[:, 0]
            intervened[:, position] = open_rows & (tokens != choice.free[:, 0])
        else:
            tokens, probabilities = choose_tokens(model.logits(hidden), config, uniform)
        if recorder is not None:
            recorder.fix(position, position, open_rows[:, None], probabilities[:, None])
        ids[:, position] = torch.where(open_rows, tokens, eos_token_id)
        open_rows = open_rows & (tokens != eos_token_id)
        if not open_rows.any():
            break
    prefill_ms, decode_ms = (prefilled_ns - started_ns) / 1e6, (clock() - prefilled_ns) / 1e6
    return DecodedBatch(ids, steps, steps.clone(), prefill_ms, decode_ms, recorder, intervened)
