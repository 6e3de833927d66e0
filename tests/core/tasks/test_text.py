from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wamdiff2_core.errors import UserError
from wamdiff2_core.tasks.text import AnswerError, TextAnswer, format_number, format_text, parse_text, user_text


@given(st.floats(-1e6, 1e6), st.integers(0, 3))
def test_numbers_round_to_their_decimals_and_zero_has_no_sign(value, decimals):
    text = format_number(value, decimals)
    assert abs(float(text) - value) <= 0.5 * 10**-decimals + 1e-9
    assert len(text.partition(".")[2]) == decimals
    assert not (float(text) == 0 and text.startswith("-"))


@pytest.mark.parametrize(
    ("text", "got"),
    [("", "''"), (" \n", "' \\n'"), ("what is <image> this", "what is <image> this"), ("<image>", "<image>"),
     ("half \ud83d", "'\\ud83d' at character 5")],
)
def test_text_that_would_take_an_image_or_says_nothing_is_refused(text, got):
    with pytest.raises(UserError) as caught:
        user_text("question", text)
    assert caught.value.field == "question"
    assert caught.value.got == got


@pytest.mark.parametrize(
    "text", ["<|im_end|>", "<Image>", "< image >", "{question} {0}", "\ue0000\ue001", "<|image_pad|>"]
)
def test_all_other_text_stays_as_it_is(text):
    assert user_text("question", text) == text


def test_an_answer_in_words_is_stripped_and_not_empty():
    assert parse_text(" A car.\n") == TextAnswer("A car.")
    assert format_text(TextAnswer(" A car.\n")) == "A car."
    with pytest.raises(AnswerError, match="expected words at character 0 of ' '"):
        parse_text(" ")
    with pytest.raises(ValueError, match="expected words"):
        format_text(TextAnswer(" "))


def test_an_answers_error_survives_a_pipe_between_processes():
    error = pickle.loads(pickle.dumps(AnswerError("1,x", 2, "expected number 2 of 12")))
    assert (error.text, error.position, error.problem) == ("1,x", 2, "expected number 2 of 12")
    assert str(error) == "answer: expected number 2 of 12 at character 2 of '1,x'"
