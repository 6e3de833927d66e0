"""Grammars at work on a batch: candidates of a step that are one valid answer, and where every row stands.

The candidates of all open positions together are a valid path. So any of them may be fixed, and what is fixed never
makes the rest impossible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode.grammar.automaton import Automaton
from wamdiff2_core.decode.grammar.viterbi import Carry, Tables, best_block
from wamdiff2_core.decode.selection import choose_tokens
from wamdiff2_core.errors import UserError

LEAST_LOG_PROB = -1e4  # of a token that the grammar allows: the search must be able to take it
RESTRICTED_SHARE = 4  # head rows are picked out when they are at most one in this many

_tables = lru_cache(maxsize=16)(Tables)


class Head(Protocol):
    """What computes logits: a `BlockModel`."""

    @property
    def device(self) -> torch.device:
        """Where hidden states and logits are."""

    @property
    def vocabulary(self) -> int:
        """Rows of the head."""

    def logits(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
        """(..., V) fp32 logits of hidden states; (..., n) of n tokens alone when given."""


@dataclass(frozen=True)
class Choice:
    """What a step would fix.

    Attributes:
        tokens: (N, B) candidates; those of fixed positions without meaning.
        confidence: (N, B) probability of each, among the tokens of the grammar's alphabet.
        free: (N, B) what the model would have chosen there; among the alphabet where only its rows were computed.
    """

    tokens: Tensor
    confidence: Tensor
    free: Tensor


@dataclass
class _Group:
    """The rows that share a grammar; `rows` are indices, `ahead` is behind the block that is being decoded."""

    rows: Tensor
    tables: Tables | None
    carry: Carry
    ahead: Carry


class Constraint:
    """The grammars of one batch, from the first column to the last."""

    def __init__(
        self, grammars: Sequence[Automaton | None], columns: int, model: Head,
        mask_token_id: int | None, full_head: bool = False,
    ) -> None:
        """Begin answers.

        Args:
            grammars: one for each row; None leaves a row free.
            columns: tokens an answer may have, EOS included.
            model: computes logits.
            mask_token_id: never chosen; None when there is none.
            full_head: compute all rows of the head, so that `Choice.free` is the best of the whole vocabulary.

        Raises:
            UserError: no answer of a grammar is as short as that.
        """
        self._columns, self._model, self._mask, self._full = columns, model, mask_token_id, full_head
        device = model.device
        self._groups = []
        for grammar in dict.fromkeys(grammars):
            rows = torch.tensor([row for row, own in enumerate(grammars) if own is grammar], device=device)
            if grammar is not None and grammar.shortest[0] > columns:
                raise UserError("max_new_tokens", f"at least {grammar.shortest[0]}, the shortest answer of the task",
                                columns, "raise max_new_tokens, or set grammar off")
            tables = None if grammar is None else _tables(grammar, device)
            start = Carry.start(len(rows))
            self._groups.append(_Group(rows, tables, start, start))

    def choose(self, hidden: Tensor, masked: Tensor, ids: Tensor, first: int) -> Choice:
        """Candidates for the open positions of a block.

        Args:
            hidden: (N, B, D) after the final norm.
            masked: (N, B) open positions.
            ids: (N, first + B) all answer tokens so far; those of open positions are not looked at.
            first: column of the block.
        """
        if len(self._groups) == 1:
            return self._choose(self._groups[0], hidden, masked, ids, first)
        tokens = torch.zeros(masked.shape, dtype=torch.long, device=hidden.device)
        free = torch.zeros_like(tokens)
        confidence = torch.zeros(masked.shape, device=hidden.device)
        for group in self._groups:
            rows = group.rows
            chosen = self._choose(group, hidden[rows], masked[rows], ids[rows], first)
            tokens[rows], confidence[rows], free[rows] = chosen.tokens, chosen.confidence, chosen.free
        return Choice(tokens, confidence, free)

    def advance(self) -> None:
        """Go on to the next block: all open positions of the last `choose` are fixed, to its candidates."""
        for group in self._groups:
            group.carry = group.ahead

    def _choose(self, group: _Group, hidden: Tensor, masked: Tensor, ids: Tensor, first: int) -> Choice:
        if group.tables is None:
            return self._unbound(hidden, masked)
        return self._bound(group, group.tables, hidden, masked, ids, first)

    def _unbound(self, hidden: Tensor, masked: Tensor) -> Choice:
        logits = self._vocabulary(hidden)
        tokens, confidence = choose_tokens(logits.flatten(0, 1), DecodeConfig())
        tokens = tokens.view(masked.shape)
        return Choice(tokens, confidence.view(masked.shape), tokens)

    def _vocabulary(self, hidden: Tensor) -> Tensor:
        logits = self._model.logits(hidden)
        if self._mask is not None:
            logits[..., self._mask] = -torch.inf
        return logits

    def _bound(
        self, group: _Group, tables: Tables, hidden: Tensor, masked: Tensor, ids: Tensor, first: int
    ) -> Choice:
        alphabet, size = tables.alphabet, masked.shape[1]
        if self._full or len(alphabet) * RESTRICTED_SHARE > self._model.vocabulary:
            whole = self._vocabulary(hidden)
            free, logits = whole.argmax(-1), whole[..., alphabet]
        else:
            logits = self._model.logits(hidden, alphabet)
            free = alphabet[logits.argmax(-1)]
        scores = logits.log_softmax(-1)
        known = torch.full_like(scores, -torch.inf)
        known.scatter_(-1, _place(alphabet, ids[:, first : first + size])[..., None], 0.0)
        bounded = scores.nan_to_num(LEAST_LOG_PROB).clamp(min=LEAST_LOG_PROB)
        history = None
        if tables.history:
            before = torch.nn.functional.pad(ids[:, :first], (tables.history, 0), value=int(alphabet[0]))
            history = _place(alphabet, before[:, before.shape[1] - tables.history :]).cpu().numpy()
        room = self._columns - first - size
        log_probs = torch.where(masked[..., None], bounded, known)
        at, group.ahead = best_block(tables, log_probs, group.carry, room, history)
        return Choice(alphabet[at], scores.gather(-1, at[..., None])[..., 0].exp(), free)


def _place(alphabet: Tensor, ids: Tensor) -> Tensor:
    """Positions of tokens in a sorted alphabet; others, which stand where nobody looks, at its nearest token."""
    return torch.searchsorted(alphabet, ids.contiguous()).clamp_(max=len(alphabet) - 1)
