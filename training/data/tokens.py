"""How many tokens a sample takes, without opening its images."""

from __future__ import annotations

import torch

from wamdiff2_core.chat import ChatCodec, ChatRequest
from wamdiff2_core.conversations import Conversation


class TokenCounter:
    """Counts with one codec."""

    def __init__(self, codec: ChatCodec) -> None:
        self.codec = codec

    def answer(self, text: str) -> int:
        """Tokens of an answer, EOS included."""
        return len(self.codec.encode_answer(text))

    def prompt(self, conversation: Conversation, sizes: list[tuple[int, int]]) -> int:
        """Tokens of all before the last answer; `sizes` are (width, height) of its images, in order.

        Raises:
            UserError: it asks for image limits that the checkpoint's policy does not allow.
        """
        exchange = conversation.exchange
        request = ChatRequest(exchange.question, system=exchange.system, history=exchange.history)
        return len(self.codec.prompt_ids(request, self.grids(conversation, sizes)))

    def grids(self, conversation: Conversation, sizes: list[tuple[int, int]]) -> torch.Tensor | None:
        """(images, 3) patches in time, height and width of images of these sizes; None without images.

        Raises:
            UserError: see `prompt`.
        """
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        if not sizes:
            return None
        codec = self.codec.with_pixel_limits(conversation.min_pixels, conversation.max_pixels)
        policy, processor = codec.images, codec.image_processor
        grids = []
        for size in sizes:
            width, height = policy.size_px or size
            height, width = smart_resize(
                height, width, factor=processor.patch_size * processor.merge_size,
                min_pixels=policy.min_pixels, max_pixels=policy.max_pixels,
            )
            grids.append([1, height // processor.patch_size, width // processor.patch_size])
        return torch.tensor(grids)
