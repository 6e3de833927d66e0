"""The most probable block: a search over an automaton's states, column by column, for a batch at once.

The probability of a path is the product of its tokens' probabilities at their own columns, which is what one denoising
step knows. Columns that are fixed leave only their token; a path must be able to end within the room that is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wamdiff2_core.decode.grammar.automaton import Automaton
from wamdiff2_core.decode.grammar.boxes import BestBoxes, best_boxes, spell_box

NEVER = -torch.inf


@dataclass(frozen=True)
class Carry:
    """Where each row stands between two blocks.

    Attributes:
        states: (N,) state; a box's source inside it, its target when it may have ended.
        depth: (N,) tokens since a box began that may still go on, otherwise 0.
    """

    states: Tensor
    depth: Tensor


class Tables:
    """An automaton as tensors."""

    def __init__(self, automaton: Automaton, device: torch.device) -> None:
        """Lay the edges out by their target, padded with an edge from a state that is never reached."""
        self.automaton = automaton
        self.states = len(automaton.shortest)
        self.group_count = max(automaton.groups) + 1
        incoming: list[list[tuple[int, int]]] = [[] for _ in range(self.states)]
        for source, group, target in automaton.edges:
            incoming[target].append((source, group))
        widest = max(map(len, incoming))
        # (states + 1, edges) source and group, for the host, which follows paths back
        padded = [[*edges, *[(self.states, 0)] * (widest - len(edges))] for edges in [*incoming, []]]
        self.edges = np.array(padded).reshape(self.states + 1, widest, 2)
        # (edges * states), so that the best edge of all states is found along memory
        table = torch.tensor(self.edges[:-1], device=device).transpose(0, 1)
        self.sources, self.edge_groups = table[..., 0].flatten(), table[..., 1].flatten()
        self.alphabet = torch.tensor(automaton.alphabet, device=device)
        self.groups = torch.tensor(automaton.groups, device=device)
        self.shortest = torch.tensor(automaton.shortest, device=device)
        index = {token: position for position, token in enumerate(automaton.alphabet)}
        self.index = index
        box = automaton.box
        self.history = box.longest - 1 if box is not None else 0
        if box is not None:
            self.digits = torch.tensor([index[token] for token in box.digits], device=device)
            self.separator = [index[token] for token in box.separator]

    def best_of_groups(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """(N, B, G) the best score in each group, and the lowest token of the alphabet that has it."""
        shape = (*log_probs.shape[:2], self.group_count)
        groups = self.groups.expand_as(log_probs)
        best = log_probs.new_full(shape, NEVER).scatter_reduce_(-1, groups, log_probs, "amax")
        tokens = torch.arange(log_probs.shape[-1], device=log_probs.device).expand_as(log_probs)
        losers = log_probs < best.gather(-1, groups)
        tokens = tokens.masked_fill(losers, log_probs.shape[-1])
        lowest = torch.full(shape, log_probs.shape[-1] - 1, device=log_probs.device)
        return best, lowest.scatter_reduce_(-1, groups, tokens, "amin")


def best_block(
    tables: Tables, log_probs: Tensor, carry: Carry, room: int, history: Tensor | None = None
) -> tuple[Tensor, Carry]:
    """The most probable path through a block from which the answer can still end.

    Args:
        tables: automaton.
        log_probs: (N, B, A) fp32 over its alphabet; -inf forbids a token there.
        carry: before the block.
        room: columns behind the block.
        history: (N, `tables.history`) tokens of the columns before the block, as positions in the alphabet; only with
            boxes. Columns that no box reaches are not looked at.

    Returns:
        (N, B) tokens as positions in the alphabet, and where the rows stand behind the block. A row that has no path
        gets tokens without meaning; `Constraint` sees to it that none is without.
    """
    rows, size, _ = log_probs.shape
    states, box = tables.states, tables.automaton.box
    best, lowest = tables.best_of_groups(log_probs)
    # before each column, and behind the last; the last state is never reached
    scores = log_probs.new_full((size + 1, rows, states + 1), NEVER)
    inside = (carry.depth > 0) & (carry.states == (box.source if box is not None else -1))
    scores[0].scatter_(1, torch.where(inside, states, carry.states)[:, None], 0.0)
    scores[0, :, states] = NEVER
    gains = best.transpose(0, 1).index_select(-1, tables.edge_groups)  # (B, N, edges * states)
    search = _BoxSearch(tables, log_probs, carry, history) if box is not None and history is not None else None
    before, reached = scores.unbind(), scores[1:, :, :states].unbind()
    for column, gain in enumerate(gains.unbind()):
        if search is not None:
            search.open(column, before[column])
        ways = before[column].index_select(-1, tables.sources).add_(gain)
        torch.amax(ways.view(rows, -1, states), 1, out=reached[column])
        if search is not None:
            search.close(column + 1, before[column + 1])
    final = scores[size, :, :states].masked_fill(tables.shortest > room, NEVER)
    state = final.argmax(-1)
    paths = _Paths(tables.edges, *(part.cpu().numpy() for part in (scores, best, lowest)))
    if search is not None:
        return search.trace(final, state, room, paths)
    chosen = []
    for row, at in enumerate(state.tolist()):
        line = []
        for column in range(size, 0, -1):
            token, at = paths.back(row, column, at)
            line.append(token)
        chosen.append(line[::-1])
    return torch.tensor(chosen, device=log_probs.device), Carry(state, torch.zeros_like(state))


@dataclass(frozen=True)
class _Paths:
    """What the search left behind, on the host, where a path is followed back without a launch for each token.

    Attributes:
        edges: (states + 1, edges, 2) source and group.
        scores: (B + 1, N, states + 1) of the best paths to each state.
        best, lowest: (N, B, G) score and token of each group.
    """

    edges: np.ndarray
    scores: np.ndarray
    best: np.ndarray
    lowest: np.ndarray

    def back(self, row: int, column: int, state: int) -> tuple[int, int]:
        """The token before a column on the best path to a state, and the state before the token."""
        sources, groups = self.edges[state].T
        way = (self.scores[column - 1, row, sources] + self.best[row, column - 1, groups]).argmax()
        return int(self.lowest[row, column - 1, groups[way]]), int(sources[way])


class _BoxSearch:
    """The steps of several tokens in one search; columns count from the block's first, below 0 is history."""

    def __init__(self, tables: Tables, log_probs: Tensor, carry: Carry, history: Tensor) -> None:
        box = tables.automaton.box
        assert box is not None
        self.tables, self.box, self.carry = tables, box, carry
        self.rows, self.size, alphabet = log_probs.shape
        self.past = tables.history
        known = log_probs.new_full((self.rows, self.past, alphabet), NEVER).scatter_(-1, history[..., None], 0.0)
        window = torch.cat([known, log_probs, log_probs.new_zeros(self.rows, box.longest, alphabet)], 1)
        separators = torch.zeros_like(window[..., 0])
        for offset, token in enumerate(tables.separator):
            later = window[:, offset:, token]
            separators[:, : later.shape[1]] += later
        self.found: BestBoxes = best_boxes(window[..., tables.digits], separators, len(tables.separator))
        starts = torch.arange(-self.past, 0, device=log_probs.device)
        begun = log_probs.new_zeros(self.rows, self.past).masked_fill_(starts != -carry.depth[:, None], NEVER)
        self.begun = torch.cat([begun, log_probs.new_full((self.rows, self.size + box.longest), NEVER)], 1)
        # longest first: the starts of boxes that end before a column are then neighbours in rising order
        self.lengths = torch.arange(box.longest, box.shortest - 1, -1, device=log_probs.device)
        ends = torch.arange(1, self.size + box.longest, device=log_probs.device)
        self.ending = self.found.scores[:, self.past + ends[:, None] - self.lengths, self.lengths].unbind(1)
        self.taken: list[Tensor] = []

    def open(self, column: int, score: Tensor) -> None:
        """A box may begin at this column."""
        self.begun[:, self.past + column] = score[:, self.box.source]

    def close(self, column: int, score: Tensor) -> None:
        """A box may have ended before this column; the better way to its target stays."""
        total, length = self._ending(column)
        better = total > score[:, self.box.target]
        score[:, self.box.target] = torch.where(better, total, score[:, self.box.target])
        self.taken.append(torch.where(better, length, 0))

    def _ending(self, column: int) -> tuple[Tensor, Tensor]:
        """(N,) the best boxes that end before a column, and their lengths."""
        first = self.past + column - self.box.longest
        total, at = (self.begun[:, first : first + len(self.lengths)] + self.ending[column - 1]).max(-1)
        return total, self.lengths[at]

    def trace(self, final: Tensor, state: Tensor, room: int, paths: _Paths) -> tuple[Tensor, Carry]:
        """Follow the best paths back, those inside a box at the block's end among them."""
        tables, box = self.tables, self.box
        need = tables.automaton.shortest[box.target]
        beyond = [self._ending(self.size + extra) for extra in range(1, min(box.longest - 1, room - need) + 1)]
        totals = torch.stack([final.max(-1).values, *(total for total, _ in beyond)], 1)
        # a box that may have ended can also go on, so its end is the better place to stand at equal scores
        crossing = torch.where(totals[:, 0] == totals.max(1).values, 0, totals.argmax(1)).tolist()
        taken = torch.stack(self.taken).tolist()
        digits = tables.digits.tolist()
        chosen, ends = [], []
        for row, at in enumerate(state.tolist()):
            line = [0] * self.size
            column = self.size + crossing[row]
            length = int(beyond[crossing[row] - 1][1][row]) if crossing[row] else 0
            end = (box.source, length - crossing[row]) if crossing[row] else (at, 0)
            while column > 0:
                if not length and at == box.target:
                    length = taken[column - 1][row]
                    if column == self.size and length:
                        end = (box.target, length)
                if not length:
                    line[column - 1], at = paths.back(row, column, at)
                    column -= 1
                    continue
                first = column - length
                spelled = spell_box(self.found, row, self.past + first, length, [-1] * len(tables.separator))
                marks = 0
                for offset, digit in enumerate(spelled):
                    token = digits[digit] if digit >= 0 else tables.separator[marks % len(tables.separator)]
                    marks += digit < 0
                    if 0 <= first + offset < self.size:
                        line[first + offset] = token
                at, column, length = box.source, first, 0
            chosen.append(line)
            ends.append(end)
        device = final.device
        where = torch.tensor(ends, device=device)
        return torch.tensor(chosen, device=device), Carry(where[:, 0], where[:, 1])
