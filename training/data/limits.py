"""How long a sample may be; apart from the encoder, so that a configuration can be read without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from wamdiff2_core.config import Strict
from wamdiff2_core.errors import UserError, unknown_name

OverLong = Literal["refuse", "drop", "shorten"]


@dataclass(frozen=True)
class LengthLimits(Strict):
    """Limits of a stage and of `data check`.

    Attributes:
        prompt_tokens: image tokens included.
        answer_tokens: EOS included.
        over_long: `refuse` stops, `drop` leaves the sample out and counts it, `shorten` applies the encoder's rule.
    """

    prompt_tokens: int = 8192
    answer_tokens: int = 1024
    over_long: OverLong = "drop"

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.answer_tokens < 2:
            got = (self.prompt_tokens, self.answer_tokens)
            raise UserError("prompt_tokens, answer_tokens", "at least 1 and 2", got)
        if self.over_long not in get_args(OverLong):
            raise unknown_name("over_long", self.over_long, get_args(OverLong))
