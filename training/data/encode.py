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
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from torch import Tensor, tensor

from training.data.pixels import encode_images
from wamdiff2_core.chat import IMAGE_PLACEHOLDER, ChatCodec, ChatRequest
from wamdiff2_core.config import ImagePolicy, Strict
from wamdiff2_core.conversations import ConversationError, Exchange, read_rgb
from wamdiff2_core.dataset import Sample
from wamdiff2_core.errors import UserError, unknown_name
from wamdiff2_core.model.positions import prompt_positions

OverLong = Literal["refuse", "drop", "shorten"]
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*(?=\s)|\n+|$")
_NUMBERS = re.compile(r"[-+\d.,\s]+")


@dataclass(frozen=True)
class LengthLimits(Strict):
    """How long a sample may be.

    Attributes:
        prompt_tokens: image tokens included.
        answer_tokens: EOS included.
        over_long: `refuse` stops, `drop` leaves the sample out and counts it, `shorten` applies the module's rule.
    """

    prompt_tokens: int = 8192
    answer_tokens: int = 512
    over_long: OverLong = "refuse"

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.answer_tokens < 2:
            got = (self.prompt_tokens, self.answer_tokens)
            raise UserError("prompt_tokens, answer_tokens", "at least 1 and 2", got)
        if self.over_long not in get_args(OverLong):
            raise unknown_name("over_long", self.over_long, get_args(OverLong))


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
        self._codecs: dict[ImagePolicy, ChatCodec] = {codec.images: codec}
        self.dropped: Counter[str] = Counter()
        self.shortened: Counter[str] = Counter()

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
        codec = self._codec_for(sample, name)
        paths, exchange = list(sample.images), sample.conversation.exchange
        # The images of a prompt that cannot be shortened enough are read for nothing; that is rare.
        images = [self._image(path, written, name) for path, written in
                  zip(paths, sample.conversation.images, strict=True)]
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

    def _codec_for(self, sample: Sample, name: str) -> ChatCodec:
        """The codec with the pixel limits that a sample asks for, as `predict` applies them."""
        from transformers.image_utils import SizeDict

        default, wanted = self.codec.images, sample.conversation
        low, high = wanted.min_pixels or default.min_pixels, wanted.max_pixels or default.max_pixels
        policy = replace(default, min_pixels=low, max_pixels=high)
        if policy not in self._codecs:
            if default.size_px is not None:
                raise UserError(f"{name}: min_pixels, max_pixels",
                                f"the policy's ({default.min_pixels}, {default.max_pixels})", (low, high))
            codec = copy(self.codec)
            codec.images, codec.image_processor = policy, copy(self.codec.image_processor)
            codec.image_processor.size = SizeDict(shortest_edge=low, longest_edge=high)
            self._codecs[policy] = codec
        return self._codecs[policy]

    @staticmethod
    def _image(path: Path, written: str, name: str) -> np.ndarray:
        """Pixels of an image beside the file, else below the working directory, as upstream's files name them."""
        found = path if path.is_file() else Path(written)
        if not found.is_file():
            raise UserError(f"{name}: image", "an image file", f"none at {path}", "wamdiff2 data check lists them all")
        try:
            return read_rgb(found)
        except ConversationError as error:
            raise UserError(f"{name}: {found}", "an image", str(error), "wamdiff2 data check lists them all") from None


def is_free_text(answer: str) -> bool:
    """Whether an answer is words, of which the end may be left out: not numbers alone, and not JSON."""
    return not _NUMBERS.fullmatch(answer) and answer.lstrip()[:1] not in ("[", "{", "`")


def sentence_ends(text: str) -> list[int]:
    """Positions behind each sentence or line of a text, the last one behind all of it."""
    ends = {len(text[: match.end()].rstrip()) for match in _SENTENCE_END.finditer(text)}
    return sorted(ends - {0})


def without_oldest(exchange: Exchange) -> tuple[Exchange, int]:
    """An exchange without its oldest question and answer, and the number of images that went with them."""
    answers = [number for number, turn in enumerate(exchange.history) if turn.role == "gpt"]
    count = answers[0] + 1 if answers else len(exchange.history)
    images = sum(turn.text.count(IMAGE_PLACEHOLDER) for turn in exchange.history[:count] if turn.role == "human")
    return replace(exchange, history=exchange.history[count:]), images
