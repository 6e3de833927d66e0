"""LingoQA: a question about five frames of one camera, answered in words (paper appendix A.4)."""

from __future__ import annotations

from dataclasses import dataclass

from wamdiff2_core.tasks.text import user_text

FRAMES = 5
PROMPT = "<image> <image> <image> <image> <image>\n{question}"


@dataclass(frozen=True)
class LingoQaRequest:
    """A question; its images are the five frames in time order, the oldest first."""

    question: str


def lingoqa_prompt(request: LingoQaRequest) -> str:
    """The user message.

    Raises:
        UserError: the question is empty, or contains an image mark.
    """
    return PROMPT.format(question=user_text("question", request.question))
