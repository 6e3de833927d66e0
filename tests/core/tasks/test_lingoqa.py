"""LingoQA's prompt, against a second typing of its published text."""

from __future__ import annotations

import pytest

from wamdiff2_core.chat import split_at_images
from wamdiff2_core.errors import UserError
from wamdiff2_core.tasks.lingoqa import FRAMES, LingoQaRequest, lingoqa_prompt


def test_the_prompt_is_the_published_text():
    expected = """<image> <image> <image> <image> <image>
Are there any pedestrians {crossing}?"""
    assert lingoqa_prompt(LingoQaRequest("Are there any pedestrians {crossing}?")).encode() == expected.encode()


def test_five_frames_stand_before_the_question():
    assert split_at_images(lingoqa_prompt(LingoQaRequest("Why?")), FRAMES) == [None] * 5 + ["Why?"]


def test_a_question_takes_no_image_of_its_own():
    with pytest.raises(UserError, match="question: expected text without the image mark"):
        lingoqa_prompt(LingoQaRequest("What is in <image>?"))
