"""The most probable block: a search over an automaton's states, column by column, for a batch at once.

The probability of a path is the product of its tokens' probabilities at their own columns, which is what one denoising
step knows. Columns that are fixed leave only their token; a path must be able to end within the room that is left.

What depends on the vocabulary is done where the logits are. The search knows groups of tokens alone; it runs on the
host, where a column of a few hundred states takes less time than a launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wamdiff2_core.decode.grammar.automaton import Automaton
from wamdiff2_core.decode.grammar.boxes import NEVER, Scores, best_boxes

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Carry:
    """Where each row stands between two blocks.

    Attributes:
        states: (N,) state; a box's source inside it, its target when it may have ended.
        depth: (N,) tokens since a box began that may still go on, otherwise 0.
    """

    states: Places
    depth: Places

    @classmethod
    def start(cls, rows: int) -> Carry:
        """Before empty answers."""
        return cls(np.zeros(rows, np.int64), np.zeros(rows, np.int64))


class Tables:
    """An automaton laid out for the search.

    Attributes:
        incoming: (source, group) of the edges to each state.
        history: columns before a block that a box can have begun in.
        digits, separator: tokens of a box, as positions in the alphabet.
    """

    def __init__(self, automaton: Automaton, device: torch.device) -> None:
        """Lay the edges out by their target, padded with edges from a state that is never reached."""
        self.automaton = automaton
        self.states = len(automaton.shortest)
        self.group_count = max(automaton.groups) + 1
        self.incoming: list[list[tuple[int, int]]] = [[] for _ in range(self.states)]
        for source, group, target in automaton.edges:
            self.incoming[target].append((source, group))
        widest = max(map(len, self.incoming))
        # (edges * states), so that the best edge of all states is found along memory
        table = np.array([[*edges, *[(self.states, 0)] * (widest - len(edges))] for edges in self.incoming])
        self.sources, self.edge_groups = (part.T.ravel().copy() for part in (table[..., 0], table[..., 1]))
        self.shortest = np.array(automaton.shortest)
        self.alphabet = torch.tensor(automaton.alphabet, device=device)
        self.groups = torch.tensor(automaton.groups, device=device)
        box, index = automaton.box, {token: position for position, token in enumerate(automaton.alphabet)}
        self.history = box.longest - 1 if box is not None else 0
        self.digits = [index[token] for token in box.digits] if box is not None else []
        self.separator = [index[token] for token in box.separator] if box is not None else []
        self._shown = torch.tensor(self.digits + self.separator, dtype=torch.long, device=device)

    def shown(self, log_probs: Tensor) -> tuple[Scores, Scores]:
        """What the search looks at, on the host.

        Returns:
            (N, B, G) the best score in each group, and (N, B, 10 + n) those of digits and of a separator's n tokens;
            without boxes the latter has no columns.
        """
        groups = self.groups.expand_as(log_probs)
        best = log_probs.new_full((*log_probs.shape[:2], self.group_count), -torch.inf)
        best.scatter_reduce_(-1, groups, log_probs, "amax")
        if self.automaton.box is None:
            return best.cpu().numpy(), np.empty((*log_probs.shape[:2], 0), np.float32)
        both = torch.cat([best, log_probs[..., self._shown]], -1).cpu().numpy()
        return both[..., : self.group_count], both[..., self.group_count :]

    def tokens(self, log_probs: Tensor, groups: Tensor) -> Tensor:
        """(N, B) the lowest token of the alphabet that has the best score in a given group, of (N, B) groups."""
        own = self.groups == groups[..., None]
        scores = log_probs.masked_fill(~own, -torch.inf)
        own &= scores == scores.amax(-1, keepdim=True)
        last = log_probs.shape[-1] - 1
        return torch.where(own, torch.arange(last + 1, device=log_probs.device), last).amin(-1)


def best_block(
    tables: Tables, log_probs: Tensor, carry: Carry, room: int, history: Places | None = None
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
    best, spelling = tables.shown(log_probs)
    # before each column, and behind the last; the last state is never reached
    scores = np.full((size + 1, rows, states + 1), NEVER)
    inside = (carry.depth > 0) & (carry.states == (box.source if box is not None else -1))
    scores[0, np.arange(rows), np.where(inside, states, carry.states)] = 0.0
    scores[0, :, states] = NEVER
    gains = best.transpose(1, 0, 2).take(tables.edge_groups, -1)  # (B, N, edges * states)
    search = _BoxSearch(tables, spelling, carry, history) if box is not None and history is not None else None
    ways = np.empty_like(gains[0])
    by_edge = ways.reshape(rows, -1, states)
    for column in range(size):
        if search is not None:
            search.open(column, scores[column])
        # "clip" writes to `out` without a copy in between
        np.take(scores[column], tables.sources, -1, out=ways, mode="clip")
        ways += gains[column]
        np.maximum.reduce(by_edge, 1, out=scores[column + 1, :, :states])
        if search is not None:
            search.close(column + 1, scores[column + 1])
    final = np.where(tables.shortest > room, NEVER, scores[size, :, :states])
    state = final.argmax(-1)
    paths = _Paths(tables.incoming, scores, best)
    # tokens of boxes, -1 where the token is the best of its group
    groups, boxed = np.zeros((rows, size), np.int64), np.full((rows, size), -1)
    if search is not None:
        ahead = search.trace(final, state, room, paths, groups, boxed)
    else:
        ahead = Carry(state, np.zeros(rows, np.int64))
        for row, at in enumerate(state.tolist()):
            for column in range(size, 0, -1):
                groups[row, column - 1], at = paths.back(row, column, at)
    chosen, spelled = (torch.from_numpy(part).to(log_probs.device) for part in (groups, boxed))
    return torch.where(spelled < 0, tables.tokens(log_probs, chosen), spelled), ahead


@dataclass(frozen=True)
class _Paths:
    """What the search left behind, along which a path is followed back.

    Attributes:
        incoming: (source, group) of the edges to each state.
        scores: (B + 1, N, states + 1) of the best paths to each state.
        best: (N, B, G) score of each group.
    """

    incoming: list[list[tuple[int, int]]]
    scores: Scores
    best: Scores

    def back(self, row: int, column: int, state: int) -> tuple[int, int]:
        """The group of the token before a column on the best path to a state, and the state before the token."""
        edges = self.incoming[state]
        if len(edges) == 1:
            return edges[0][1], edges[0][0]
        before, gain = self.scores[column - 1, row], self.best[row, column - 1]
        source, group = max(edges, key=lambda edge: before[edge[0]] + gain[edge[1]])
        return group, source


class _BoxSearch:
    """The steps of several tokens in one search; columns count from the block's first, below 0 is history."""

    def __init__(self, tables: Tables, spelling: Scores, carry: Carry, history: Places) -> None:
        box = tables.automaton.box
        assert box is not None
        self.tables, self.box = tables, box
        self.rows, self.size, tokens = spelling.shape
        self.past = tables.history
        known = np.where(history[..., None] == tables.digits + tables.separator, np.float32(0), NEVER)
        beyond = np.zeros((self.rows, box.longest, tokens), np.float32)
        window = np.concatenate([known, spelling, beyond], 1)
        separators = np.zeros_like(window[..., 0])
        for offset in range(len(tables.separator)):
            later = window[:, offset:, len(tables.digits) + offset]
            separators[:, : later.shape[1]] += later
        self.found = best_boxes(window[..., : len(tables.digits)], separators, len(tables.separator))
        self.begun = np.full((self.rows, self.past + self.size + box.longest), NEVER)
        inside = np.flatnonzero(carry.depth)
        self.begun[inside, self.past - carry.depth[inside]] = 0.0
        # longest first: the starts of boxes that end before a column are then neighbours in rising order
        self.lengths = np.arange(box.longest, box.shortest - 1, -1)
        ends = np.arange(1, self.size + box.longest)
        self.ending = self.found.scores[:, self.past + ends[:, None] - self.lengths, self.lengths].transpose(1, 0, 2)
        self.taken = np.zeros((self.size + 1, self.rows), bool)

    def open(self, column: int, score: Scores) -> None:
        """A box may begin at this column."""
        self.begun[:, self.past + column] = score[:, self.box.source]

    def close(self, column: int, score: Scores) -> None:
        """A box may have ended before this column; the better way to its target stays."""
        total, plain = self._ending(column).max(-1), score[:, self.box.target]
        np.greater(total, plain, out=self.taken[column])
        np.maximum(total, plain, out=plain)

    def _ending(self, column: int) -> Scores:
        """(N, lengths) the best boxes that end before a column."""
        first = self.past + column - self.box.longest
        scores: Scores = self.begun[:, first : first + len(self.lengths)] + self.ending[column - 1]
        return scores

    def trace(
        self, final: Scores, state: Places, room: int, paths: _Paths, groups: Places, boxed: Places
    ) -> Carry:
        """Follow the best paths back, those inside a box at the block's end among them.

        Returns:
            Where the rows stand behind the block. Tokens of boxes are written to `boxed`, groups of others to `groups`.
        """
        tables, box = self.tables, self.box
        need = tables.automaton.shortest[box.target]
        beyond = [self._ending(self.size + extra) for extra in range(1, min(box.longest - 1, room - need) + 1)]
        totals = np.stack([final.max(-1), *(ends.max(-1) for ends in beyond)], 1)
        # a box that may have ended can also go on, so its end is the better place to stand at equal scores
        crossing = totals.argmax(1).tolist()
        end = Carry(state.copy(), np.zeros(self.rows, np.int64))
        for row, at in enumerate(state.tolist()):
            column, length = self.size + crossing[row], 0
            if crossing[row]:
                length = int(self.lengths[beyond[crossing[row] - 1][row].argmax()])
                end.states[row], end.depth[row] = box.source, length - crossing[row]
            while column > 0:
                if not length and at == box.target and self.taken[column, row]:
                    length = int(self.lengths[self._ending(column)[row].argmax()])
                    if column == self.size:
                        end.states[row], end.depth[row] = box.target, length
                if not length:
                    groups[row, column - 1], at = paths.back(row, column, at)
                    column -= 1
                    continue
                first = column - length
                tokens = self.found.spell(row, self.past + first, length, tables.digits, tables.separator)
                inner = slice(max(first, 0), min(column, self.size))
                boxed[row, inner] = tokens[inner.start - first : inner.stop - first]
                at, column, length = box.source, first, 0
        return end
