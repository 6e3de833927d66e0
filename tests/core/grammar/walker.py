"""Walks over token automata, token by token: what a search is compared with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from wamdiff2_core.chat import ChatCodec
from wamdiff2_core.config import ImagePolicy
from wamdiff2_core.decode.grammar import Automaton

QWEN_EOS = 151645


def codec_of(tokenizer: Any, eos_token_id: int) -> ChatCodec:
    """A codec for text alone."""
    return ChatCodec(tokenizer, SimpleNamespace(merge_size=2), ImagePolicy(), -1, eos_token_id)


@cache  # a vocabulary of 150,000 tokens takes seconds
def steps_of(automaton: Automaton) -> dict[int, dict[int, int]]:
    """Next state by state and token."""
    members: dict[int, list[int]] = {}
    for token, group in zip(automaton.alphabet, automaton.groups, strict=True):
        members.setdefault(group, []).append(token)
    steps: dict[int, dict[int, int]] = {state: {} for state in range(len(automaton.shortest))}
    for source, group, target in automaton.edges:
        for token in members[group]:
            assert token not in steps[source], "two ways for a token"
            steps[source][token] = target
    return steps


def spelled_box(automaton: Automaton, numbers: Sequence[int]) -> list[int]:
    """Tokens of a box."""
    box = automaton.box
    assert box is not None
    ids: list[int] = []
    for index, number in enumerate(numbers):
        ids += [*(box.separator if index else ()), *(box.digits[int(digit)] for digit in str(number))]
    return ids


def box_at(automaton: Automaton, ids: Sequence[int]) -> int | None:
    """Tokens of the valid box that `ids` begin with, or None."""
    box = automaton.box
    assert box is not None
    at, numbers = 0, []
    for index in range(4):
        if index:
            if tuple(ids[at : at + len(box.separator)]) != box.separator:
                return None
            at += len(box.separator)
        digits = ""
        while at < len(ids) and ids[at] in box.digits:
            digits += str(box.digits.index(ids[at]))
            at += 1
        if not digits or digits != str(int(digits)) or int(digits) > 1000:
            return None
        numbers.append(int(digits))
    return at if numbers[0] <= numbers[2] and numbers[1] <= numbers[3] else None


def accepts(automaton: Automaton, ids: Sequence[int]) -> bool:
    """Whether these tokens, EOS included, are an answer of the language."""
    steps, state, at = steps_of(automaton), 0, 0
    while at < len(ids):
        if automaton.box is not None and state == automaton.box.source:
            length = box_at(automaton, ids[at:])
            if length is None:
                return False
            state, at = automaton.box.target, at + length
        elif ids[at] in steps[state]:
            state, at = steps[state][ids[at]], at + 1
        else:
            return False
    return automaton.shortest[state] == 0


@cache
def choices_at(automaton: Automaton, state: int) -> tuple[tuple[int, ...], int]:
    """The tokens that may follow in a state, and how many at most are still needed after one of them."""
    steps = steps_of(automaton)[state]
    return tuple(steps), max((automaton.shortest[target] for target in steps.values()), default=0)


def random_answer(automaton: Automaton, seed: int, room: int) -> list[int]:
    """A random path of at most `room` tokens, up to and including the first EOS."""
    rng, steps, state, ids = random.Random(seed), steps_of(automaton), 0, []
    while automaton.shortest[state]:
        box = automaton.box
        if box is not None and state == box.source:
            left = room - len(ids) - automaton.shortest[box.target]
            top = 1000 if left >= box.longest else 9
            pairs = [sorted(rng.randint(0, top) for _ in range(2)) for _ in range(2)]
            ids += spelled_box(automaton, [pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]])
            state = box.target
            continue
        allowed, needed = choices_at(automaton, state)
        if len(ids) + 1 + needed > room:
            allowed = tuple(
                token for token in allowed if len(ids) + 1 + automaton.shortest[steps[state][token]] <= room
            )
        token = rng.choice(allowed)
        ids.append(token)
        state = steps[state][token]
    return ids
