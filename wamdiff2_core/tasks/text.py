"""What the tasks share: numbers and user text on their way into a prompt, and answers that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass

from wamdiff2_core.chat import IMAGE_PLACEHOLDER
from wamdiff2_core.errors import UserError


class AnswerError(ValueError):
    """A model's answer is not what its task asks for.

    Attributes:
        text: the whole answer.
        position: index of the first character that does not fit.
        problem: what was expected there.
    """

    def __init__(self, text: str, position: int, problem: str) -> None:
        self.text, self.position, self.problem = text, position, problem
        super().__init__(f"answer: {problem} at character {position} of {text!r}")

    def __reduce__(self) -> tuple[type[AnswerError], tuple[str, int, str]]:
        """Pickled by its parts: an exception is otherwise made anew from its message."""
        return type(self), (self.text, self.position, self.problem)


@dataclass(frozen=True)
class TextAnswer:
    """An answer in words."""

    text: str


def format_number(value: float, decimals: int) -> str:
    """Fixed decimals, without a minus sign on zero."""
    text = f"{value:.{decimals}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text


def user_text(field: str, text: str) -> str:
    """`text` itself, when it may be written into a prompt.

    Special tokens in it are harmless, `ChatCodec` encodes them as the characters they are; a mark would take an image.

    Args:
        field: name of the text, for the message.
        text: what a user or a data set wrote.

    Raises:
        UserError: it is empty, contains an image mark, or cannot be written in UTF-8.
    """
    if not text.strip():
        raise UserError(field, "some text", repr(text))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(field, "text in UTF-8", f"{text[error.start]!r} at character {error.start}") from None
    if IMAGE_PLACEHOLDER in text:
        raise UserError(
            field, f"text without the image mark {IMAGE_PLACEHOLDER}", text,
            "take the mark out: the task's prompt places the images",
        )
    return text


def parse_text(text: str) -> TextAnswer:
    """An answer in words, stripped.

    Raises:
        AnswerError: it is empty.
    """
    if not text.strip():
        raise AnswerError(text, 0, "expected words")
    return TextAnswer(text.strip())


def format_text(answer: TextAnswer) -> str:
    """Answer text, stripped.

    Raises:
        ValueError: it is empty.
    """
    if not answer.text.strip():
        raise ValueError(f"text: expected words, got {answer.text!r}")
    return answer.text.strip()
