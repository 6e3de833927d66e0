"""Messages with images <-> token ids, the same for training and serving.

Messages are laid out by the checkpoint's own chat template, but user text never passes through it: the template is
rendered with stand-ins, and the text goes in afterwards as plain text. A user who types `<|im_end|>` has typed ten
characters, not ended the turn. Text is tokenised together with the template's text around it, up to the next special
token, so ids equal those of the whole rendered string.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wamdiff2_core.config import ImagePolicy
from wamdiff2_core.conversations import Turn
from wamdiff2_core.errors import UserError
from wamdiff2_core.images import preprocess_images

if TYPE_CHECKING:
    import torch

IMAGE_PLACEHOLDER = "<image>"
QWEN_CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' -}}"
    "{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- else -%}{{- part.text -}}{%- endif -%}"
    "{%- endfor -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
# For every message its role, and for every part of it whether it is an image.
_Shape = tuple[tuple[str, tuple[bool, ...]], ...]
_STAND_IN = re.compile("\ue000(\\d+)\ue001")  # private-use characters: no template contains them


@dataclass(frozen=True)
class ChatRequest:
    """One question to the model.

    Attributes:
        text: the user's message; each `<image>` marks where the next image goes.
        images: (H, W, 3) uint8 RGB, as many as there are marks, those of the history first.
        system: system message, or None.
        history: earlier human and gpt turns, in order; marks of human turns take images too.
    """

    text: str
    images: tuple[np.ndarray, ...] = ()
    system: str | None = None
    history: tuple[Turn, ...] = ()


@dataclass(frozen=True)
class ModelInputs:
    """A request as the model takes it.

    Attributes:
        input_ids: (L,) long; every image holds t * h * w / merge^2 image tokens.
        pixel_values: (patches, patch_dim) float, or None without images.
        image_grid_thw: (images, 3) long, or None without images.
    """

    input_ids: torch.Tensor
    pixel_values: torch.Tensor | None = None
    image_grid_thw: torch.Tensor | None = None


def split_at_images(text: str, image_count: int) -> list[str | None]:
    """Lay text and images out as the authors' loader does: parts stripped, empty parts dropped; None is an image.

    Text without images is kept as it is.

    Raises:
        UserError: the number of `<image>` marks is not the number of images.
    """
    parts = text.split(IMAGE_PLACEHOLDER)
    _check_marks(len(parts) - 1, image_count)
    if image_count == 0:
        return [text]
    layout: list[str | None] = []
    for index, part in enumerate(parts):
        if index:
            layout.append(None)
        if part.strip():
            layout.append(part.strip())
    return layout


def _check_marks(marks: int, image_count: int) -> None:
    if marks != image_count:
        raise UserError(
            "image",
            f"as many images as {IMAGE_PLACEHOLDER} marks in the text ({marks} marks)",
            f"{image_count} images",
            f"write one {IMAGE_PLACEHOLDER} for each image",
        )


class ChatCodec:
    """Encodes requests and answers with one tokenizer, chat template and image policy."""

    def __init__(
        self,
        tokenizer: Any,
        image_processor: Any,
        images: ImagePolicy,
        image_token_id: int,
        eos_token_id: int,
        chat_template: str | None = None,
    ) -> None:
        """Collect the parts.

        Args:
            tokenizer: a fast Hugging Face tokenizer.
            image_processor: of `images.make_image_processor`.
            images: image policy.
            image_token_id: of the model's configuration.
            eos_token_id: ends an answer.
            chat_template: Jinja template; defaults to the tokenizer's own, else Qwen's form.
        """
        self.tokenizer, self.image_processor, self.images = tokenizer, image_processor, images
        self.image_token_id, self.eos_token_id = image_token_id, eos_token_id
        self._template = chat_template or getattr(tokenizer, "chat_template", None) or QWEN_CHAT_TEMPLATE
        added = tokenizer.added_tokens_decoder.items()
        special: dict[str, int] = {token.content: index for index, token in added if token.special}
        self._special = special
        longest_first = sorted(special, key=len, reverse=True)
        self._special_pattern = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if special else None
        self._skeletons: dict[_Shape, list[str | int]] = {}
        self._limited: dict[ImagePolicy, ChatCodec] = {}

    def with_pixel_limits(self, low: int | None, high: int | None, *, fixed: bool = False) -> ChatCodec:
        """This codec with the image limits that a sample asks for, the same in training and serving.

        Args:
            low, high: least and largest area in pixels; None keeps the policy's.
            fixed: refuse other limits than the policy's.

        Raises:
            UserError: the limits cross, or are other ones where the policy is fixed or has one size for every image.
        """
        own = self.images
        policy = replace(own, min_pixels=own.min_pixels if low is None else low,
                         max_pixels=own.max_pixels if high is None else high)
        if policy == own:
            return self
        if fixed or own.size_px is not None:
            raise UserError("min_pixels, max_pixels", f"the policy's ({own.min_pixels}, {own.max_pixels})",
                            (policy.min_pixels, policy.max_pixels))
        if policy not in self._limited:
            from transformers.image_utils import SizeDict

            codec, processor = copy(self), copy(self.image_processor)
            processor.size = SizeDict(shortest_edge=policy.min_pixels, longest_edge=policy.max_pixels)
            codec.images, codec.image_processor = policy, processor
            self._limited[policy] = codec
        return self._limited[policy]

    def encode(self, request: ChatRequest) -> ModelInputs:
        """Token ids and pixels of a request, up to and including the assistant's opening.

        Raises:
            UserError: images do not match their marks, or the template has no place for images.
        """
        import torch

        ids = self._placed_ids(request, len(request.images))
        if not request.images:
            return ModelInputs(torch.tensor(ids))
        pixels, grids = preprocess_images(request.images, self.images, self.image_processor)
        return ModelInputs(self._expand(ids, grids), pixels, grids)

    def prompt_ids(self, request: ChatRequest, grids: torch.Tensor | None = None) -> torch.Tensor:
        """Token ids of a request whose images have been cut into patches elsewhere.

        Args:
            request: its images are not looked at.
            grids: (images, 3) patches in time, height and width of each image, or None without images.

        Returns:
            (L,) long; every image holds t * h * w / merge^2 image tokens.

        Raises:
            UserError: see `encode`.
        """
        import torch

        ids = self._placed_ids(request, 0 if grids is None else len(grids))
        return torch.tensor(ids) if grids is None else self._expand(ids, grids)

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text; special tokens in it are spelled out, not recognised."""
        return list(self.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids)

    def encode_answer(self, text: str) -> list[int]:
        """Ids of an answer, closed by EOS."""
        return [*self.encode_text(text), self.eos_token_id]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of answer ids, special tokens left out, stripped."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    def token_spans(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Where each token stands in `decode(ids)`: (start, end) characters.

        A special token stands nowhere: its span is empty. So is that of a token that ends inside a character; the token
        that completes the character has it.
        """
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=True)
        pieces = [stream.step(self.tokenizer.backend_tokenizer, int(token)) or "" for token in ids]
        whole = "".join(pieces)
        lead, length = len(whole) - len(whole.lstrip()), len(whole.strip())
        spans, at = [], -lead
        for piece in pieces:
            spans.append((min(max(at, 0), length), min(max(at + len(piece), 0), length)))
            at += len(piece)
        return spans

    def _placed_ids(self, request: ChatRequest, image_count: int) -> list[int]:
        """Ids of a request with one image token an image; refuses what has another number of marks or places."""
        shape, texts = _shape_and_texts(request, image_count)
        ids = self._encode_shape(shape, texts)
        if ids.count(self.image_token_id) != image_count:
            raise UserError(
                "chat_template", f"{image_count} image tokens (id {self.image_token_id})",
                str(ids.count(self.image_token_id)), "the checkpoint's template or tokenizer has no place for images",
            )
        return ids

    def _expand(self, ids: Sequence[int], grids: torch.Tensor) -> torch.Tensor:
        """Each image token as often as its image has merged patches."""
        import torch

        counts = iter((grids.prod(-1) // self.image_processor.merge_size**2).tolist())
        expanded: list[int] = []
        for token in ids:
            expanded.extend([token] * (next(counts) if token == self.image_token_id else 1))
        return torch.tensor(expanded)

    def _encode_shape(self, shape: _Shape, texts: Sequence[str]) -> list[int]:
        if shape not in self._skeletons:
            self._skeletons[shape] = self._skeleton(shape)
        ids: list[int] = []
        plain = ""
        for piece in self._skeletons[shape]:
            if isinstance(piece, str):
                plain += _STAND_IN.sub(lambda match: texts[int(match.group(1))], piece)
                continue
            ids.extend(self.encode_text(plain) if plain else ())
            ids.append(piece)
            plain = ""
        ids.extend(self.encode_text(plain) if plain else ())
        return ids

    def _skeleton(self, shape: _Shape) -> list[str | int]:
        """The rendered conversation with stand-ins for text, cut at the template's special tokens (given as ids)."""
        count = itertools.count()
        messages = [
            {"role": role, "content": [
                {"type": "image"} if image else {"type": "text", "text": f"\ue000{next(count)}\ue001"}
                for image in parts
            ]}
            for role, parts in shape
        ]
        rendered = self.tokenizer.apply_chat_template(
            messages, chat_template=self._template, tokenize=False, add_generation_prompt=True
        )
        pieces = self._special_pattern.split(rendered) if self._special_pattern else [rendered]
        skeleton: list[str | int] = []
        for piece in filter(None, pieces):
            skeleton.append(self._special.get(piece, piece))
        return skeleton


def _shape_and_texts(request: ChatRequest, image_count: int) -> tuple[_Shape, list[str]]:
    """What the skeleton of a request depends on, and the texts that fill it."""
    humans = [turn.text for turn in request.history if turn.role == "human"] + [request.text]
    _check_marks(sum(text.count(IMAGE_PLACEHOLDER) for text in humans), image_count)
    shape: list[tuple[str, tuple[bool, ...]]] = []
    texts: list[str] = []
    if request.system is not None:
        shape.append(("system", (False,)))
        texts.append(request.system)
    for turn in (*request.history, Turn("human", request.text)):
        if turn.role == "human":
            layout = split_at_images(turn.text, turn.text.count(IMAGE_PLACEHOLDER))
            shape.append(("user", tuple(part is None for part in layout)))
            texts.extend(part for part in layout if part is not None)
        else:
            shape.append(("assistant", (False,)))
            texts.append(turn.text)
    return tuple(shape), texts
