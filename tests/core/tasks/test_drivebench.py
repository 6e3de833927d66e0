"""DriveBench and DriveLM: the published prompt, and answers by letter."""

from __future__ import annotations

import pytest

from wamdiff2_core.chat import split_at_images
from wamdiff2_core.errors import UserError
from wamdiff2_core.tasks.drivebench import (
    VIEWS,
    DriveBenchAnswer,
    DriveBenchRequest,
    drivebench_prompt,
    format_drivebench,
    options_of,
    parse_drivebench,
)
from wamdiff2_core.tasks.text import AnswerError

CHOICE = (
    "What is the moving status of object <c2,CAM_BACK,864.2,468.3>? Please select the correct answer from the "
    "following options: A. Going ahead. B. Turn left. C. Back up."
)


def test_one_view_is_the_published_text():
    expected = """[CAM_BACK] <image>
What does {object} <c1,CAM_BACK,10,20> do?"""
    request = DriveBenchRequest("What does {object} <c1,CAM_BACK,10,20> do?", ("CAM_BACK",))
    assert drivebench_prompt(request).encode() == expected.encode()


def test_six_views_stand_in_the_published_order_each_identifier_before_its_image():
    expected = (
        "[CAM_FRONT] <image> [CAM_FRONT_LEFT] <image> [CAM_FRONT_RIGHT] <image> "
        "[CAM_BACK] <image> [CAM_BACK_LEFT] <image> [CAM_BACK_RIGHT] <image>\nWhat now?"
    )
    prompt = drivebench_prompt(DriveBenchRequest("What now?"))
    assert prompt.encode() == expected.encode()
    layout = split_at_images(prompt, 6)
    assert layout[::2] == [*(f"[{view}]" for view in VIEWS), "What now?"]
    assert layout[1::2] == [None] * 6


@pytest.mark.parametrize(
    ("views", "problem"),
    [
        ((), "expected one view, or all six"),
        (("CAM_FRONT", "CAM_BACK"), "expected one view, or all six"),
        (VIEWS[::-1], "expected one view, or all six in the order CAM_FRONT, CAM_FRONT_LEFT"),
        (("CAM_FRNT",), "did you mean 'CAM_FRONT'"),
    ],
)
def test_other_views_are_refused(views, problem):
    with pytest.raises(UserError, match=problem):
        DriveBenchRequest("What?", views)


def test_a_question_takes_no_image_of_its_own():
    with pytest.raises(UserError, match="question: expected text without the image mark"):
        drivebench_prompt(DriveBenchRequest("What is in <image>?"))


def test_options_are_read_from_the_question():
    assert options_of(CHOICE) == {"A": "Going ahead.", "B": "Turn left.", "C": "Back up."}
    assert options_of("Vitamin A. is it? Choose: A. yes B. no") == {"A": "yes", "B": "no"}
    assert options_of("Pick (A) the car (B) the bus") == {"A": "the car", "B": "the bus"}
    assert options_of("A. yes B. no, unlike case A. 7") == {"A": "yes", "B": "no, unlike case A. 7"}
    assert options_of("Which?\nA) the car\nB) the bus") == {"A": "the car", "B": "the bus"}
    for question in ("What is ahead?", "Is it A. or not?", "B. first, then A. second", ""):
        assert options_of(question) == {}


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("B", "B"), ("B.", "B"), ("B:", "B"), ("(B)", "B"), ("(B) Turn left", "B"), (" B. Turn left.\n", "B"),
        ("A car is ahead.", None), ("B Turn left", None), ("Turn left", None), ("b", None), ("AB", None), ("B.C", None),
    ],
)
def test_a_choice_is_a_letter_alone_or_set_off_from_words(text, option):
    assert parse_drivebench(text) == DriveBenchAnswer(text.strip(), option)


def test_an_answer_must_be_one_of_the_options_that_were_offered():
    letters = options_of(CHOICE)
    assert parse_drivebench("C", letters).option == "C"
    for text, position in (("D", 0), ("  Turn left.", 2), ("A car.", 0)):
        with pytest.raises(AnswerError, match="expected one of A, B, C") as caught:
            parse_drivebench(text, letters)
        assert caught.value.position == position
    with pytest.raises(AnswerError, match="expected words"):
        parse_drivebench("\n")


def test_answers_are_written_as_the_data_set_has_them():
    for answer in (DriveBenchAnswer("B", "B"), DriveBenchAnswer("The car brakes.")):
        assert parse_drivebench(format_drivebench(answer)) == answer
    for text, option in (("", None), ("Turn left", "B"), ("B", None)):
        with pytest.raises(ValueError, match="expected words that say option"):
            format_drivebench(DriveBenchAnswer(text, option))
