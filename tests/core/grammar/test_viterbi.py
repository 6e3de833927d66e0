from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.doubles import EOS, byte_tokenizer
from tests.core.grammar.walker import codec_of, random_answer, spelled_box, steps_of
from wamdiff2_core.config import PlanningTask
from wamdiff2_core.decode.grammar import detection_language, waypoint_language
from wamdiff2_core.decode.grammar.automaton import Automaton, Draft
from wamdiff2_core.decode.grammar.boxes import best_boxes
from wamdiff2_core.decode.grammar.viterbi import Carry, Tables, best_block
from wamdiff2_core.tasks.grounding import format_grounding, parse_grounding

CODEC = codec_of(byte_tokenizer(), EOS)
CPU = torch.device("cpu")
NEVER = -torch.inf
SEEDS = st.integers(0, 2**32)


def small_language() -> Automaton:
    """Numbers of one or two digits without leading zero, one or more, divided by commas."""
    draft = Draft(CODEC.encode_text, EOS)
    start, tens, done = (draft.state() for _ in range(3))
    draft.digit(start, "012", done)
    draft.digit(start, "12", tens)
    draft.digit(tens, "012", done)
    draft.text(done, ",", start, "0", "0")
    return draft.finish(start, [done])


def padded(ids: list[int], length: int) -> list[int]:
    return [*ids, *[EOS] * (length - len(ids))]


def random_scores(seed: int, rows: int, columns: int, letters: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(rows, columns, letters, generator=generator)).log_softmax(-1)


def enumerate_best(language: Automaton, scores: np.ndarray, state: int, room: int) -> float:
    """Highest score of all token sequences that can still end."""
    steps, best = steps_of(language), -np.inf
    for tokens in itertools.product(range(len(language.alphabet)), repeat=len(scores)):
        at: int | None = state
        for token in tokens:
            at = steps[at].get(language.alphabet[token])
            if at is None:
                break
        if at is not None and language.shortest[at] <= room:
            best = max(best, sum(scores[column, token] for column, token in enumerate(tokens)))
    return best


@settings(max_examples=20)
@given(seed=SEEDS, room=st.integers(0, 4), fixed=st.sets(st.integers(0, 4), max_size=3), state=st.booleans())
def test_the_best_path_is_the_best_of_all(seed, room, fixed, state):
    language = small_language()
    tables = Tables(language, CPU)
    scores = random_scores(seed, 1, 5, len(language.alphabet))
    answer = padded(random_answer(language, seed, 5 + room), 5 + room)
    place = {token: index for index, token in enumerate(language.alphabet)}
    for column in fixed:
        scores[0, column] = NEVER
        scores[0, column, place[answer[column]]] = 0
    chosen, carry = best_block(tables, scores, Carry.start(1), room)
    got = scores[0].gather(1, chosen[0, :, None]).sum()
    assert got.item() == pytest.approx(enumerate_best(language, scores[0].numpy(), 0, room), abs=1e-4)
    assert language.shortest[int(carry.states[0])] <= room


def test_of_equal_tokens_of_a_group_the_lowest_is_taken():
    language = small_language()
    tables = Tables(language, CPU)
    for group in range(tables.group_count):
        lowest = tables.tokens(torch.zeros(1, 2, len(language.alphabet)), torch.full((1, 2), group))
        assert lowest.tolist() == [[language.groups.index(group)] * 2]


def test_rows_do_not_touch_each_other():
    language = waypoint_language(CODEC, PlanningTask(decimals=1))
    tables = Tables(language, CPU)
    scores = random_scores(1, 4, 32, len(language.alphabet))
    together, carry = best_block(tables, scores, Carry.start(4), 32)
    for row in range(4):
        alone, own = best_block(tables, scores[row : row + 1], Carry.start(1), 32)
        assert alone[0].tolist() == together[row].tolist()
        assert own.states[0] == carry.states[row]


def box_scores_of(digits: np.ndarray, separators: np.ndarray, gap: int, lengths: tuple[int, ...]) -> float:
    """The best box of given lengths, by all pairs of numbers."""
    firsts = (0, 10, 100, 1000, 1001)
    at, tables = 0, []
    total = 0.0
    for index, length in enumerate(lengths):
        numbers = range(firsts[length - 1], firsts[length])
        tables.append(np.array([sum(digits[at + i, int(d)] for i, d in enumerate(str(n))) for n in numbers]))
        at += length
        if index < 3:
            total += separators[at]
            at += gap
    for low, high in ((0, 2), (1, 3)):
        if lengths[low] > lengths[high]:
            return -np.inf
        pairs = tables[low][:, None] + tables[high][None]
        if lengths[low] == lengths[high]:
            pairs = np.where(np.triu(np.ones_like(pairs)) > 0, pairs, -np.inf)
        total += pairs.max()
    return total


@settings(max_examples=3)
@given(seed=SEEDS, gap=st.integers(1, 2))
def test_boxes_are_the_best_of_all_numbers(seed, gap):
    width = 17 + 3 * gap
    digits = random_scores(seed, 1, width, 10)
    separators = random_scores(seed + 1, 1, width, 4)[..., 0]
    found = best_boxes(digits.numpy(), separators.numpy(), gap)
    by_total: dict[int, float] = {}
    for lengths in itertools.product(range(1, 5), repeat=4):
        score = box_scores_of(digits[0].numpy(), separators[0].numpy(), gap, lengths)
        total = sum(lengths) + 3 * gap
        by_total[total] = max(by_total.get(total, -np.inf), score)
    for total, score in by_total.items():
        assert found.scores[0, 0, total].item() == pytest.approx(score, abs=1e-4)
        spelled = found.spell(0, 0, total, range(10), [-1] * gap)
        assert len(spelled) == total
        groups = "".join("," if digit < 0 else str(digit) for digit in spelled).replace("," * gap, ",").split(",")
        a, b, c, d = map(int, groups)
        assert a <= c
        assert b <= d
        own = sum(digits[0, i, digit].item() for i, digit in enumerate(spelled) if digit >= 0)
        own += sum(separators[0, i].item() for i in range(total) if spelled[i] < 0 and spelled[i - 1] >= 0)
        assert own == pytest.approx(score, abs=1e-4)


@settings(max_examples=6)
@given(seed=SEEDS, size=st.sampled_from([5, 8, 32]), extra=st.integers(0, 60))
def test_detections_block_by_block_are_never_worse_than_a_valid_answer(seed, size, extra):
    """Greedy blocks: in each, the path is at least as good as those of random answers with the same beginning."""
    language = detection_language(CODEC, ["car", "bus"])
    tables = Tables(language, CPU)
    place = {token: index for index, token in enumerate(language.alphabet)}
    columns = -(-(60 + extra) // size) * size
    scores = random_scores(seed, 1, columns, len(language.alphabet))
    scores[0, :, place[EOS]] -= 20
    carry, ids = Carry.start(1), torch.zeros(1, 0, dtype=torch.long)
    for first in range(0, columns, size):
        history = torch.nn.functional.pad(ids, (tables.history, 0))[:, -tables.history :].numpy()
        block = scores[:, first : first + size]
        chosen, carry = best_block(tables, block, carry, columns - first - size, history)
        if first == 0:
            own = block[0].gather(1, chosen[0, :, None]).sum()
            for other in range(20):
                answer = [place[t] for t in padded(random_answer(language, seed + other, columns), columns)[:size]]
                assert own >= block[0].gather(1, torch.tensor(answer)[:, None]).sum() - 1e-4
        ids = torch.cat([ids, chosen], 1)
    answer = [language.alphabet[index] for index in ids[0].tolist()]
    assert EOS in answer
    found = CODEC.decode(answer[: answer.index(EOS)])
    assert format_grounding(parse_grounding(found)) == found


@settings(max_examples=10)
@given(seed=SEEDS, share=st.floats(0, 1), size=st.sampled_from([6, 32]), boxes=st.booleans())
def test_any_beginning_of_an_answer_forced_is_kept(seed, share, size, boxes):
    """Tokens of a valid answer, some of them fixed, leave a path through every block, and keep their places."""
    language = detection_language(CODEC, ["car"]) if boxes else waypoint_language(CODEC, PlanningTask(decimals=1))
    tables = Tables(language, CPU)
    columns = 96
    place = {token: index for index, token in enumerate(language.alphabet)}
    answer = torch.tensor([[place[t] for t in padded(random_answer(language, seed, columns), columns)]])
    fixed = torch.rand(columns, generator=torch.Generator().manual_seed(seed)) < share
    scores = random_scores(seed, 1, columns, len(language.alphabet))
    forced = torch.full_like(scores, NEVER).scatter_(-1, answer[..., None], 0.0)
    scores = torch.where(fixed[None, :, None], forced, scores)
    carry = Carry.start(1)
    for first in range(0, columns, size):
        # what stands before is the answer's own, so that the block begins where the answer does
        before = torch.nn.functional.pad(answer[:, :first], (tables.history, 0)).numpy()
        before = before[:, first : first + tables.history]
        block = slice(first, first + size)
        chosen, _ = best_block(tables, scores[:, block], carry, columns - first - size, before)
        assert scores[0, block].gather(1, chosen[0, :, None]).sum() > NEVER
        assert (chosen[0] == answer[0, block])[fixed[block]].all()
        _, carry = best_block(tables, forced[:, block], carry, columns - first - size, before)


def test_a_number_that_ended_at_the_block_may_go_on():
    language = detection_language(CODEC, ["car"])
    tables = Tables(language, CPU)
    place = {token: index for index, token in enumerate(language.alphabet)}
    assert language.box is not None
    opening = [*CODEC.encode_text('[{"bbox_2d": ['), *spelled_box(language, [1, 2, 3, 45])]
    whole = [*opening, *CODEC.encode_answer('6], "label": "car"}]')]
    answer = torch.tensor([[place[token] for token in padded(whole, 64)]])
    scores = torch.full((1, 64, len(language.alphabet)), -5.0).scatter_(-1, answer[..., None], 0.0)
    size = len(opening)
    first, carry = best_block(tables, scores[:, :size], Carry.start(1), 64, np.zeros((1, tables.history), int))
    assert first.tolist() == answer[:, :size].tolist()
    history = torch.nn.functional.pad(first, (tables.history, 0))[:, -tables.history :].numpy()
    second, _ = best_block(tables, scores[:, size:], carry, 64, history)
    assert second.tolist() == answer[:, size:].tolist()
