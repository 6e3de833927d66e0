"""The answers of tasks as token automata.

All three are canonical: their token paths are those of `ChatCodec.encode_answer`. Text is tokenised between digits,
and a tokenizer that joins anything across a digit is refused: `Draft` tries every pair of digits, and every piece
beside every digit that may stand there. The one exception is free labels, whose words may be spelled by other tokens
than the tokenizer's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from wamdiff2_core.chat import ChatCodec
from wamdiff2_core.config import DecodeConfig, PlanningTask
from wamdiff2_core.decode.grammar.automaton import DIGITS, Automaton, Draft
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.masks import block_count
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_core.tasks.grounding import GRID

WHOLE_DIGITS = 3  # of a waypoint: below 1000 m
_WORD = re.compile(r"\u0120?[A-Za-z]+")  # in a byte-level vocabulary, where \u0120 is a space


def waypoint_language(codec: ChatCodec, task: PlanningTask, whole_digits: int = WHOLE_DIGITS) -> Automaton:
    """What `format_waypoints` writes: numbers of fixed decimals, no leading zeros, no minus sign on zero.

    Args:
        codec: the checkpoint's.
        task: number of waypoints, and decimals.
        whole_digits: numbers are below 10 to the power of this, in metres.

    Raises:
        UserError: the tokenizer joins something across a digit.
    """
    draft = Draft(codec.encode_text, codec.eos_token_id)
    start, plus, minus = draft.state(), draft.state(), draft.state()
    draft.skip(start, plus)
    draft.text(start, "-", minus, after=DIGITS)
    for index in range(2 * task.waypoints):
        done = _number(draft, plus, minus, task.decimals, whole_digits)
        if index < 2 * task.waypoints - 1:
            plus, minus = draft.state(), draft.state()
            draft.text(done, ",", plus, DIGITS, DIGITS)
            draft.text(done, ",-", minus, DIGITS, DIGITS)
    return draft.finish(start, [done])


def _number(draft: Draft, plus: int, minus: int, decimals: int, whole_digits: int) -> int:
    """Draw one number from the states behind its sign; returns the state behind it."""
    whole, done = draft.state(), draft.state()
    after_digit = draft.state()
    draft.digit(plus, "0", whole)
    for sign in (plus, minus):
        draft.digit(sign, DIGITS[1:], after_digit)
    for index in range(whole_digits):
        draft.skip(after_digit, whole)
        if index < whole_digits - 1:
            longer = draft.state()
            draft.digit(after_digit, DIGITS, longer)
            after_digit = longer
    if not decimals:
        draft.skip(whole, done)
        return done
    fraction, zero_whole, zero = draft.state(), draft.state(), draft.state()
    draft.text(whole, ".", fraction, DIGITS, DIGITS)
    draft.digit(minus, "0", zero_whole)
    draft.text(zero_whole, ".", zero, DIGITS, DIGITS)
    for index in range(decimals):
        last = index == decimals - 1
        following = done if last else draft.state()
        draft.digit(fraction, DIGITS, following)
        draft.digit(zero, DIGITS[1:], following)
        if not last:
            longer = draft.state()
            draft.digit(zero, "0", longer)
            zero = longer
        fraction = following
    return done


def detection_language(codec: ChatCodec, labels: Sequence[str] | None = None) -> Automaton:
    """What `format_grounding` writes: a JSON list of boxes with labels, as many as the length limit holds.

    Args:
        codec: the checkpoint's.
        labels: the labels that may occur; None allows ASCII words separated by single spaces. Words are then made of
            any tokens of the vocabulary, which need not be the tokenizer's own choice for them.

    Raises:
        UserError: the tokenizer joins something across a digit, or a label is empty.
    """
    draft = Draft(codec.encode_text, codec.eos_token_id)
    start, opened, field, before, behind, done = (draft.state() for _ in range(6))
    draft.text(start, "[]", done)
    draft.text(start, '[{"bbox_', opened, after="2")
    draft.digit(opened, "2", field)
    draft.text(field, 'd": [', before, "2", DIGITS)
    draft.box(before, ", ", behind)
    assert GRID == 1000  # the numbers of `Box`
    opening, more, closing = '], "label": "', '"}, {"bbox_', '"}]'
    if labels is None:
        first, word, space = draft.state(), draft.state(), draft.state()
        vocabulary = codec.tokenizer.get_vocab()
        words = {index: text for text, index in vocabulary.items() if _WORD.fullmatch(text)}
        draft.text(behind, opening, first, DIGITS, DIGITS + "a")
        spaceless = [index for index, text in words.items() if text.isascii()]
        draft.tokens(first, spaceless, word)
        draft.tokens(space, spaceless, word)
        draft.tokens(word, words, word)
        draft.digit(first, DIGITS, word)
        draft.digit(word, DIGITS, word)
        draft.text(word, " ", space, DIGITS, DIGITS)
        draft.digit(space, DIGITS, word)
        draft.text(word, more, opened, DIGITS + "a", "2")
        draft.text(word, closing, done, DIGITS + "a")
        return draft.finish(start, [done])
    if not labels or not all(label.strip() for label in labels):
        raise UserError("labels", "at least one, none of them empty", list(labels))
    for label in dict.fromkeys(labels):
        written = json.dumps(label, ensure_ascii=False)[1:-1]
        for text, target, after in ((more, opened, "2"), (closing, done, "")):
            _spell(draft, behind, opening + written + text, target, after)
    return draft.finish(start, [done])


def _spell(draft: Draft, source: int, text: str, target: int, after: str) -> None:
    """A text behind a digit that may have digits of its own."""
    pieces = re.findall(r"[0-9]|[^0-9]+", text)
    for index, piece in enumerate(pieces):
        following = target if index == len(pieces) - 1 else draft.state()
        if piece in DIGITS:
            draft.digit(source, piece, following)
        else:
            before, behind = (pieces[at] if 0 <= at < len(pieces) else "" for at in (index - 1, index + 1))
            draft.text(source, piece, following, before or DIGITS, behind or after)
        source = following


def task_language(task: str, codec: ChatCodec, record: ServingRecord | None) -> Automaton | None:
    """The language of a task's answers; None for tasks whose answers are words.

    Args:
        task: name of a task; any other name is a free question.
        codec: the checkpoint's.
        record: gives the form of the planning task.

    Raises:
        UserError: the tokenizer joins something across a digit.
    """
    if task == "planning" and record is not None and record.planning is not None:
        return waypoint_language(codec, record.planning)
    return detection_language(codec) if task == "grounding" else None


def task_decoding(
    task: str, codec: ChatCodec, record: ServingRecord | None, decode: DecodeConfig
) -> tuple[DecodeConfig, Automaton | None]:
    """How a task's question is decoded, and the language of its answers.

    Planning with a deadline takes its grammar even with `grammar: off`: a plan in time is of no use when it cannot be
    read. The grammar stays off where it cannot be: above temperature 0, with a tokenizer that joins digits, and with a
    length limit below the shortest answer.

    Args:
        task: name of a task; any other name is a free question.
        codec: the checkpoint's.
        record: gives the form of the planning task.
        decode: as asked for.

    Raises:
        UserError: the grammar was asked for, and the tokenizer joins something across a digit.
    """
    if decode.grammar == "task":
        return decode, task_language(task, codec, record)
    if not decode.deadline_ms or task != "planning" or decode.temperature > 0:
        return decode, None
    try:
        language = task_language(task, codec, record)
    except UserError:
        return decode, None
    columns = block_count(decode.max_new_tokens, decode.block_size) * decode.block_size
    if language is None or language.shortest[0] > columns:
        return decode, None
    return replace(decode, grammar="task"), language
