"""A sample as a model takes it: token ids, positions and patches, the same that serving makes.

User text never becomes a special token, whatever it spells (`chat.py`). A sample over a length limit is refused,
dropped and counted, or shortened by rule; nothing is ever cut silently.

The rule: a prompt loses its oldest exchanges, whole, with their images; an answer in words loses sentences from its
end, whole. Waypoints and JSON have no part that may be left out, so they are refused, and so is a first sentence that
is too long by itself.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace

from torch import Tensor, tensor

from training.data.limits import LengthLimits
from training.data.pixels import encode_images
from wamdiff2_core.chat import IMAGE_PLACEHOLDER, ChatCodec, ChatRequest
from wamdiff2_core.conversations import Exchange
from wamdiff2_core.dataset import Sample, read_images
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.positions import prompt_positions

OVER_LONG = ("dropped_prompt_tokens", "dropped_answer_tokens", "shortened_prompt_tokens", "shortened_answer_tokens")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*(?=\s)|\n+|$")
_LIST_MARK = re.compile(r"[-*\u2022]|\(?([0-9]+|[A-Za-z]|[ivxIVX]+)[.)]+")
_NUMBERS = re.compile(r"[-+\d.,\s]+")


@dataclass(frozen=True)
class EncodedSample:
    """One sample, unpadded.

    Attributes:
        prompt_ids: (P,) long, up to and including the assistant's opening.
        prompt_positions: (3, P) long.
        answer_ids: (A,) long, closed by EOS.
        pixel_values: (patches, patch_dim) float32, or None without images.
        image_grid_thw: (images, 3) long, or None without images.
        id: of the sample, or empty.
        source: name of the source, or the sample's own datasource.
    """

    prompt_ids: Tensor
    prompt_positions: Tensor
    answer_ids: Tensor
    pixel_values: Tensor | None
    image_grid_thw: Tensor | None
    id: str
    source: str


class SampleEncoder:
    """Encodes samples with one codec under one set of limits.

    Attributes:
        dropped: samples left out, by reason (`prompt_tokens`, `answer_tokens`).
        shortened: samples shortened, likewise.
    """

    def __init__(self, codec: ChatCodec, image_token_id: int, merge_size: int, limits: LengthLimits) -> None:
        self.codec, self.limits = codec, limits
        self._image_token_id, self._merge_size = image_token_id, merge_size
        self.dropped: Counter[str] = Counter()
        self.shortened: Counter[str] = Counter()

    @property
    def over_long(self) -> Counter[str]:
        """Both counts by the names of `OVER_LONG`."""
        return Counter({f"{done}_{reason}": count for done in ("dropped", "shortened")
                        for reason, count in getattr(self, done).items()})

    def encode(self, sample: Sample, source: str = "") -> EncodedSample | None:
        """Encode a sample, images included.

        Returns:
            None when it was dropped for its length.

        Raises:
            UserError: an image cannot be read, or the sample is over a limit and may not be dropped or shortened.
        """
        name = f"sample {sample.conversation.id!r}" + (f" of {source}" if source else "")
        answer = self._answer(sample.answer, name)
        if answer is None:
            return None
        try:
            codec = self.codec.with_pixel_limits(sample.conversation.min_pixels, sample.conversation.max_pixels)
        except UserError as error:
            raise UserError(f"{name}: {error.field}", error.expected, error.got, error.fix) from None
        exchange = sample.conversation.exchange
        # The images of a prompt that cannot be shortened enough are read for nothing; that is rare.
        images = read_images(sample, name)
        while True:
            pixels, grids = encode_images(images, codec.images, codec.image_processor) if images else (None, None)
            request = ChatRequest(exchange.question, system=exchange.system, history=exchange.history)
            ids = codec.prompt_ids(request, grids)
            if len(ids) <= self.limits.prompt_tokens:
                break
            if self.limits.over_long == "drop":
                self.dropped["prompt_tokens"] += 1
                return None
            if self.limits.over_long == "refuse" or not exchange.history:
                raise UserError(f"{name}: prompt", f"at most {self.limits.prompt_tokens} tokens", f"{len(ids)}",
                                "raise prompt_tokens, lower the image size, or set over_long to drop")
            exchange, gone = without_oldest(exchange)
            images = images[gone:]
        if exchange != sample.conversation.exchange:
            self.shortened["prompt_tokens"] += 1
        return EncodedSample(
            ids, prompt_positions(ids, grids, self._image_token_id, self._merge_size), tensor(answer), pixels, grids,
            "" if sample.conversation.id is None else str(sample.conversation.id),
            source or sample.conversation.datasource or "",
        )

    def _answer(self, text: str, name: str) -> list[int] | None:
        limit = self.limits.answer_tokens
        ids = self.codec.encode_answer(text)
        if len(ids) <= limit:
            return ids
        if self.limits.over_long == "drop":
            self.dropped["answer_tokens"] += 1
            return None
        fix = "raise answer_tokens, or set over_long to drop"
        if self.limits.over_long == "shorten":
            if is_free_text(text):
                for end in sentence_ends(text)[-2::-1]:
                    shorter = self.codec.encode_answer(text[:end])
                    if len(shorter) <= limit:
                        self.shortened["answer_tokens"] += 1
                        return shorter
                fix = "its first sentence alone is longer: " + fix
            else:
                fix = "waypoints and JSON are not shortened: " + fix
        raise UserError(f"{name}: answer", f"at most {limit} tokens with EOS", f"{len(ids)}", fix)


def is_free_text(answer: str) -> bool:
    """Whether an answer is words, of which the end may be left out: not numbers alone, and not JSON."""
    return not _NUMBERS.fullmatch(answer) and answer.lstrip()[:1] not in ("[", "{", "`")


def sentence_ends(text: str) -> list[int]:
    """Positions behind each sentence or line of a text, the last one behind all of it.

    The number of an item of a list, such as `3.`, is no sentence: it belongs to what follows.
    """
    ends = sorted({len(text[: match.end()].rstrip()) for match in _SENTENCE_END.finditer(text)} - {0})
    pieces = (text[start:end].strip() for start, end in zip([0, *ends], ends, strict=False))
    return [end for end, piece in zip(ends, pieces, strict=True) if end == ends[-1] or not _LIST_MARK.fullmatch(piece)]


def without_oldest(exchange: Exchange) -> tuple[Exchange, int]:
    """An exchange without its oldest question and answer, and the number of images that went with them."""
    answers = [number for number, turn in enumerate(exchange.history) if turn.role == "gpt"]
    count = answers[0] + 1 if answers else len(exchange.history)
    images = sum(turn.text.count(IMAGE_PLACEHOLDER) for turn in exchange.history[:count] if turn.role == "human")
    return replace(exchange, history=exchange.history[count:]), images
