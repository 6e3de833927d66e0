"""Token automata: which token may follow which, from the empty answer to EOS and the padding behind it.

An automaton is drawn as a graph with several ways for the same token (`Draft`), then made deterministic. Tokens that
may stand at exactly the same places form one group: what is searched later is groups, and the best token of each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from wamdiff2_core.errors import UserError

Encode = Callable[[str], list[int]]
_BOX = -1  # the symbol of a whole box in a draft
DIGITS = "0123456789"


@dataclass(frozen=True)
class Box:
    """Four whole numbers a, b, c, d from 0 to 1000 with a <= c and b <= d: one step of its automaton.

    The order needs both first numbers in memory, a million states; so boxes are searched by `boxes.py`, not by states.

    Attributes:
        source, target: states before the first digit and behind the last.
        digits: token of each digit.
        separator: tokens between two numbers.
    """

    source: int
    target: int
    digits: tuple[int, ...]
    separator: tuple[int, ...]

    @property
    def shortest(self) -> int:
        """Tokens of the shortest box."""
        return 4 + 3 * len(self.separator)

    @property
    def longest(self) -> int:
        """Tokens of the longest box."""
        return 16 + 3 * len(self.separator)


@dataclass(frozen=True, eq=False)
class Automaton:
    """A deterministic automaton over token ids; state 0 is the empty answer.

    Attributes:
        alphabet: every token that may occur, EOS among them, in rising order.
        groups: of each token of the alphabet.
        edges: (state, group, next state); a state has at most one for each group.
        shortest: tokens that complete the answer from each state, EOS included; 0 behind EOS.
        eos_token_id: closes the answer, and may follow itself.
        box: the step of several tokens, if the language has one.
    """

    alphabet: tuple[int, ...]
    groups: tuple[int, ...]
    edges: tuple[tuple[int, int, int], ...]
    shortest: tuple[int, ...]
    eos_token_id: int
    box: Box | None = None

    @cached_property
    def longest(self) -> int | None:
        """Tokens of the longest answer, EOS included; None where there is none."""
        steps = [(source, target, 1) for source, _, target in self.edges if self.shortest[source]]
        if self.box is not None:
            steps.append((self.box.source, self.box.target, self.box.longest))
        longest = [0] * len(self.shortest)
        for _ in longest:  # a way without a circle has no more steps than there are states
            before = list(longest)
            for source, target, cost in steps:
                longest[source] = max(longest[source], cost + longest[target])
            if longest == before:
                return longest[0]
        return None


class Draft:
    """An automaton while it is drawn; states are numbers that `state` hands out."""

    def __init__(self, encode: Encode, eos_token_id: int) -> None:
        """Take a tokenizer.

        Args:
            encode: text -> token ids (`ChatCodec.encode_text`).
            eos_token_id: ends an answer.

        Raises:
            UserError: the tokenizer does not spell every digit by itself, or joins two of them.
        """
        self._encode, self._eos, self._states = encode, eos_token_id, 0
        self._edges: list[tuple[int, frozenset[int], int]] = []
        self._skips: list[tuple[int, int]] = []
        self._pieces: dict[tuple[str, str, str], list[int]] = {}
        spelled = [encode(digit) for digit in DIGITS]
        for digit, tokens in zip(DIGITS, spelled, strict=True):
            if len(tokens) != 1:
                raise _joins(f"{digit!r} in a token of its own", digit, tokens)
        self.digits = tuple(token for tokens in spelled for token in tokens)
        for first, second in product(range(len(DIGITS)), repeat=2):
            pair = DIGITS[first] + DIGITS[second]
            if (joined := encode(pair)) != [self.digits[first], self.digits[second]]:
                raise _joins(f"{pair!r} as its two digits", pair, joined)
        self._separator: tuple[int, ...] = ()

    def state(self) -> int:
        """A new state."""
        self._states += 1
        return self._states - 1

    def tokens(self, source: int, tokens: Iterable[int], target: int) -> None:
        """Any one of these tokens leads from one state to another."""
        self._edges.append((source, frozenset(tokens), target))

    def digit(self, source: int, digits: str, target: int) -> None:
        """Any one of these digits leads from one state to another."""
        self.tokens(source, (self.digits[int(digit)] for digit in digits), target)

    def skip(self, source: int, target: int) -> None:
        """Nothing leads from one state to another."""
        self._skips.append((source, target))

    def box(self, source: int, separator: str, target: int) -> None:
        """A box leads from one state to another; all boxes of a draft have the same separator."""
        self._separator = tuple(self.canonical(DIGITS, separator, DIGITS))
        self._edges.append((source, frozenset([_BOX]), target))

    def text(self, source: int, text: str, target: int, before: str = "", after: str = "") -> None:
        """A text without digits leads from one state to another.

        Args:
            source: state.
            text: not empty.
            target: state.
            before, after: see `canonical`.

        Raises:
            UserError: the tokenizer joins the text with its neighbours.
        """
        ids = self.canonical(before, text, after)
        for index, token in enumerate(ids):
            following = target if index == len(ids) - 1 else self.state()
            self.tokens(source, [token], following)
            source = following

    def canonical(self, before: str, text: str, after: str) -> list[int]:
        """Tokens of `text` where it stands, the same beside each of its neighbours.

        Nothing then joins across a digit in a longer text either: of all merges that cross one, the first would have a
        digit alone on one side, and between the digits only what the piece between them is merged to by itself.

        Args:
            before: what may stand before it, one character each; empty where nothing does.
            text: not empty.
            after: what may stand behind it, alike.

        Raises:
            UserError: the tokenizer joins the text with a neighbour, or spells it otherwise beside another one.
        """
        found = self._pieces.get((before, text, after))
        if found is None:
            pairs = [*product(before or [""], after or [""])]
            found = self._between(pairs[0][0], text, pairs[0][1])
            for head, tail in pairs:
                if self._between(head, text, tail) != found:
                    raise _joins(f"{text!r} in the same tokens wherever it stands", head + text + tail,
                                 self._encode(head + text + tail))
            self._pieces[before, text, after] = found
        return found

    def _between(self, before: str, text: str, after: str) -> list[int]:
        """Tokens of `text` between two characters."""
        whole = self._encode(before + text + after)
        head, tail = (self._encode(part) if part else [] for part in (before, after))
        inner = whole[len(head) : len(whole) - len(tail)]
        if [*head, *inner, *tail] != whole or not inner:
            beside = " and ".join(repr(part) for part in (before, after) if part)
            raise _joins(f"{text!r} in tokens of its own beside {beside}", before + text + after, whole)
        return inner

    def finish(self, start: int, accepted: Iterable[int]) -> Automaton:
        """The automaton whose answers lead from `start` to an accepted state, and then to EOS."""
        end = self.state()
        for state in accepted:
            self.tokens(state, [self._eos], end)
        self.tokens(end, [self._eos], end)
        atoms = _atoms([tokens for _, tokens, _ in self._edges])
        steps: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for source, tokens, target in self._edges:
            steps[source] += [(atom, target) for atom in {atoms[token] for token in tokens}]
        closure = self._closures()

        numbers: dict[frozenset[int], int] = {}
        order: list[frozenset[int]] = []

        def number(states: Iterable[int]) -> int:
            whole = frozenset(inner for state in states for inner in closure[state])
            if whole not in numbers:
                numbers[whole] = len(order)
                order.append(whole)
            return numbers[whole]

        number([start])
        found: list[tuple[int, int, int]] = []
        for states in order:  # grows while it is walked
            targets: dict[int, list[int]] = defaultdict(list)
            for state in states:
                for atom, target in steps[state]:
                    targets[atom].append(target)
            found += [(numbers[states], atom, number(reached)) for atom, reached in sorted(targets.items())]
        return self._automaton(found, atoms, len(order), numbers[frozenset(closure[end])])

    def _closures(self) -> list[set[int]]:
        """Every state with those that nothing more is needed for."""
        following: dict[int, list[int]] = defaultdict(list)
        for source, target in self._skips:
            following[source].append(target)
        closures = []
        for state in range(self._states):
            reached, todo = {state}, [state]
            while todo:
                new = [target for target in following[todo.pop()] if target not in reached]
                reached.update(new)
                todo += new
            closures.append(reached)
        return closures

    def _automaton(
        self, found: list[tuple[int, int, int]], atoms: dict[int, int], states: int, end: int
    ) -> Automaton:
        alphabet = sorted({*atoms, *self._box_tokens(atoms)} - {_BOX})
        renumbered: dict[int, int] = {}
        box_only = max(atoms.values()) + 1  # digits and separators that stand in boxes alone
        groups = tuple(renumbered.setdefault(atoms.get(token, box_only), len(renumbered)) for token in alphabet)
        boxes = [(source, target) for source, atom, target in found if _BOX in atoms and atom == atoms[_BOX]]
        assert len(boxes) <= 1
        box = Box(*boxes[0], self.digits, self._separator) if boxes else None
        edges = tuple(
            (source, renumbered[atom], target) for source, atom, target in found if (source, target) not in boxes
        )
        costs = [(source, target, 1) for source, _, target in edges]
        if box is not None:
            costs.append((box.source, box.target, box.shortest))
        far = 1 << 20
        shortest = [far] * states
        shortest[end] = 0
        changed = True
        while changed:
            changed = False
            for source, target, cost in reversed(costs):
                if shortest[target] + cost < shortest[source]:
                    shortest[source], changed = shortest[target] + cost, True
        return Automaton(tuple(alphabet), groups, edges, tuple(shortest), self._eos, box)

    def _box_tokens(self, atoms: dict[int, int]) -> set[int]:
        return {*self.digits, *self._separator} if _BOX in atoms else set()


def _joins(expected: str, text: str, tokens: list[int]) -> UserError:
    return UserError("tokenizer", expected, f"{text!r} as {len(tokens)} token{'s' * (len(tokens) != 1)} {tokens}",
                     "a grammar needs a tokenizer that joins nothing across a digit: take one, or set grammar off")


def _atoms(sets: list[frozenset[int]]) -> dict[int, int]:
    """Number of the group of each symbol: those that are in the same sets are in one group."""
    membership: dict[int, list[int]] = defaultdict(list)
    for index, symbols in enumerate(dict.fromkeys(sets)):
        for symbol in symbols:
            membership[symbol].append(index)
    numbers: dict[tuple[int, ...], int] = {}
    return {symbol: numbers.setdefault(tuple(members), len(numbers)) for symbol, members in sorted(membership.items())}
