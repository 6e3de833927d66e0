"""The most probable block: a search over an automaton's states, column by column, for a batch at once.

The probability of a path is the product of its tokens' probabilities at their own columns, which is what one denoising
step knows. Columns that are fixed leave only their token; a path must be able to end within the room that is left.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        padded = [[*edges, *[(self.states, 0)] * (widest - len(edges))] for edges in incoming]
        table = torch.tensor(padded, device=device).view(self.states, widest, 2)
        self.sources, self.edge_groups = table[..., 0].contiguous(), table[..., 1].contiguous()
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
    score = log_probs.new_full((rows, states + 1), NEVER)
    inside = (carry.depth > 0) & (carry.states == (box.source if box is not None else -1))
    score.scatter_(1, torch.where(inside, states, carry.states)[:, None], 0.0)
    score[:, states] = NEVER
    never = score[:, states:].clone()
    ways = [torch.empty(0, dtype=torch.long)] * (size + 1)
    gains = best[..., tables.edge_groups]  # (N, B, states, edges)
    search = _BoxSearch(tables, log_probs, carry, history) if box is not None and history is not None else None
    for column in range(size):
        if search is not None:
            search.open(column, score)
        reached, ways[column + 1] = (score[:, tables.sources] + gains[:, column]).max(-1)
        score = torch.cat([reached, never], 1)
        if search is not None:
            search.close(column + 1, score)
    final = score[:, :states].masked_fill(tables.shortest > room, NEVER)
    state = final.argmax(-1)
    if search is not None:
        return search.trace(final, state, room, ways, lowest)
    chosen = torch.empty(rows, size, dtype=torch.long, device=log_probs.device)
    end = state
    for column in range(size, 0, -1):
        way = ways[column].gather(1, state[:, None])[:, 0]
        chosen[:, column - 1] = lowest[:, column - 1].gather(1, tables.edge_groups[state, way][:, None])[:, 0]
        state = tables.sources[state, way]
    return chosen, Carry(end, torch.zeros_like(end))


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
        self.begun = torch.cat([begun, log_probs.new_full((self.rows, self.size), NEVER)], 1)
        lengths = torch.arange(box.shortest, box.longest + 1, device=log_probs.device)
        self.lengths = lengths
        self.taken: list[Tensor | None] = [None] * (self.size + 1)

    def open(self, column: int, score: Tensor) -> None:
        """A box may begin at this column."""
        self.begun[:, self.past + column] = score[:, self.box.source]

    def close(self, column: int, score: Tensor) -> None:
        """A box may have ended before this column; the better way to its target stays."""
        total, length = self._ending(column)
        better = total > score[:, self.box.target]
        score[:, self.box.target] = torch.where(better, total, score[:, self.box.target])
        self.taken[column] = torch.where(better, length, 0)

    def _ending(self, column: int) -> tuple[Tensor, Tensor]:
        """(N,) the best boxes that end before a column, and their lengths."""
        starts = self.past + column - self.lengths
        usable = (starts >= 0) & (starts < self.past + self.size)
        starts = starts.clamp(0, self.past + self.size - 1)
        totals = self.begun[:, starts] + self.found.scores[:, starts, self.lengths]
        total, at = totals.masked_fill(~usable, NEVER).max(-1)
        return total, self.lengths[at]

    def trace(
        self, final: Tensor, state: Tensor, room: int, ways: list[Tensor], lowest: Tensor
    ) -> tuple[Tensor, Carry]:
        """Follow the best paths back, those inside a box at the block's end among them."""
        tables, box = self.tables, self.box
        need = tables.automaton.shortest[box.target]
        beyond = [self._ending(self.size + extra) for extra in range(1, min(box.longest - 1, room - need) + 1)]
        totals = torch.stack([final.max(-1).values, *(total for total, _ in beyond)], 1)
        # a box that may have ended can also go on, so its end is the better place to stand at equal scores
        crossing = torch.where(totals[:, 0] == totals.max(1).values, 0, totals.argmax(1)).tolist()
        columns = [way.tolist() for way in ways]
        taken = [None if lengths is None else lengths.tolist() for lengths in self.taken]
        sources, groups, tokens = tables.sources.tolist(), tables.edge_groups.tolist(), lowest.tolist()
        digits = tables.digits.tolist()
        chosen, ends = [], []
        for row, at in enumerate(state.tolist()):
            line = [0] * self.size
            column = self.size + crossing[row]
            length = int(beyond[crossing[row] - 1][1][row]) if crossing[row] else 0
            end = (box.source, length - crossing[row]) if crossing[row] else (at, 0)
            while column > 0:
                if not length and at == box.target and taken[column] is not None:
                    length = taken[column][row]
                    if column == self.size and length:
                        end = (box.target, length)
                if not length:
                    way = columns[column][row][at]
                    line[column - 1] = tokens[row][column - 1][groups[at][way]]
                    at, column = sources[at][way], column - 1
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
