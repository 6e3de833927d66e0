"""Conversation files as tensors of one shape, so that a training step compiles once.

Prompts are padded on the left, so that all answers start in the same column; positions and block ids count from the
first real token, exactly as in decoding. Answers are padded with EOS, which is also how their last block is learnt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from training.data.pixels import image_patches
from wamdiff2_core.chat import ChatCodec, ChatRequest
from wamdiff2_core.config import ImagePolicy
from wamdiff2_core.dataset import Sample, read_dataset
from wamdiff2_core.errors import UserError

if TYPE_CHECKING:
    from transformers import Qwen3VLForConditionalGeneration


@dataclass(frozen=True)
class Batch:
    """Some rows of a `TrainingSet`; shapes as there."""

    prompt_ids: Tensor
    prompt_valid: Tensor
    prompt_positions: Tensor
    answer_ids: Tensor
    answer_lengths: Tensor
    answer_positions: Tensor
    patches: Tensor | None = None
    image_slots: Tensor | None = None


@dataclass(frozen=True)
class TrainingSet:
    """A conversation file, encoded.

    Attributes:
        samples: the N samples that fit.
        dropped: samples whose answer with EOS is longer than `answer_tokens`.
        prompt_ids: (N, P) long, padded on the left.
        prompt_valid: (N, P) bool, False on padding.
        prompt_positions: (3, N, P) mrope positions.
        answer_ids: (N, R) long, padded with EOS.
        answer_lengths: (N,) tokens of the answer, its first EOS included.
        answer_positions: (N, R) positions, equal on all three axes.
        image_slots: (N, M) columns of the image placeholders, or None for a set without images.
        grid_thw: patches of an image in time, height and width, or None.
    """

    samples: tuple[Sample, ...]
    dropped: int
    prompt_ids: Tensor
    prompt_valid: Tensor
    prompt_positions: Tensor
    answer_ids: Tensor
    answer_lengths: Tensor
    answer_positions: Tensor
    image_slots: Tensor | None
    grid_thw: tuple[int, int, int] | None

    def __len__(self) -> int:
        return len(self.samples)

    @classmethod
    def read(
        cls,
        file: Path | str,
        codec: ChatCodec,
        model: Qwen3VLForConditionalGeneration,
        *,
        answer_tokens: int,
        prompt_tokens: int = 0,
        limit: int = 0,
    ) -> TrainingSet:
        """Encode a file.

        Args:
            file: conversations with one image each, or with none at all.
            codec: encodes as serving does; its image policy must have a fixed size, for every image has one shape here.
            model: gives the rule for positions.
            answer_tokens: R; longer answers are dropped.
            prompt_tokens: P at least, so that several sets share one shape.
            limit: use the first samples only; 0 for all.

        Raises:
            UserError: the file mixes samples with and without images, or has several a sample.
        """
        samples = read_dataset(file)
        samples = samples[:limit] if limit else samples
        if any(sample.history or sample.conversation.system for sample in samples):
            raise UserError(f"dataset {file}", "one question and one answer a sample", "a history or a system message")
        image_counts = {len(sample.images) for sample in samples}
        if len(image_counts) != 1 or image_counts - {0, 1}:
            raise UserError(f"dataset {file}", "samples with one image each, or all without", sorted(image_counts),
                            "split the file")
        blank: tuple[np.ndarray, ...] = ()
        grid = None
        if image_counts == {1}:
            grid = image_grid(model, codec.images)
            width, height = codec.images.size_px or (0, 0)
            blank = (np.zeros((height, width, 3), np.uint8),)  # only its size matters to the ids
        prompts = [codec.encode(ChatRequest(sample.prompt, blank)).input_ids for sample in samples]
        answers = [codec.encode_answer(sample.answer) for sample in samples]
        kept = [row for row, answer in enumerate(answers) if len(answer) <= answer_tokens]
        samples_kept = tuple(samples[row] for row in kept)

        width = max(prompt_tokens, *(len(prompts[row]) for row in kept))
        prompt_ids = torch.full((len(kept), width), codec.tokenizer.pad_token_id)
        answer_ids = torch.full((len(kept), answer_tokens), codec.eos_token_id)
        for new, row in enumerate(kept):
            prompt_ids[new, width - len(prompts[row]) :] = prompts[row]
            answer_ids[new, : len(answers[row])] = torch.tensor(answers[row])
        lengths = torch.tensor([len(prompts[row]) for row in kept])
        valid = torch.arange(width) >= width - lengths[:, None]
        is_image = (prompt_ids == model.config.image_token_id) & valid
        positions, _ = model.model.get_rope_index(
            prompt_ids, image_grid_thw=None if grid is None else torch.tensor([grid] * len(kept)),
            mm_token_type_ids=is_image.int(), attention_mask=valid.long(),
        )
        next_position = positions.amax((0, 2)) + 1
        return cls(
            samples=samples_kept,
            dropped=len(samples) - len(kept),
            prompt_ids=prompt_ids,
            prompt_valid=valid,
            prompt_positions=positions,
            answer_ids=answer_ids,
            answer_lengths=torch.tensor([len(answers[row]) for row in kept]),
            answer_positions=next_position[:, None] + torch.arange(answer_tokens),
            image_slots=None if grid is None else is_image.nonzero()[:, 1].view(len(kept), -1),
            grid_thw=grid,
        )

    def batch(self, rows: Sequence[int] | Tensor, image_rows: Sequence[int] | Tensor | None = None) -> Batch:
        """Take rows; images are read and cut into patches here.

        Args:
            rows: indices into the set.
            image_rows: take the images of these samples instead (the shuffled-image control).
        """
        index = torch.as_tensor(rows)
        patches = None
        if self.grid_thw is not None:
            chosen = index if image_rows is None else torch.as_tensor(image_rows)
            patches = torch.stack([self._patches(self.samples[int(row)].images[0]) for row in chosen])
        return Batch(
            self.prompt_ids[index], self.prompt_valid[index], self.prompt_positions[:, index], self.answer_ids[index],
            self.answer_lengths[index], self.answer_positions[index], patches,
            None if self.image_slots is None else self.image_slots[index],
        )

    def _patches(self, path: Path) -> Tensor:
        from wamdiff2_core.conversations import read_rgb

        assert self.grid_thw is not None
        rgb = read_rgb(path)
        _, rows, columns = self.grid_thw
        if rgb.shape[0] % rows or rgb.shape[1] % columns or rgb.shape[0] // rows != rgb.shape[1] // columns:
            fix = "collect at the policy's size"
            raise UserError(str(path), f"an image of {columns} x {rows} patches", rgb.shape, fix)
        return torch.from_numpy(image_patches(rgb, rgb.shape[0] // rows))


def image_grid(model: Qwen3VLForConditionalGeneration, images: ImagePolicy) -> tuple[int, int, int]:
    """Patches in time, height and width of every image under a policy with a fixed size."""
    if images.size_px is None:
        raise UserError("images.size_px", "a fixed (width, height)", images.size_px, "set it in the record's images")
    patch = model.config.vision_config.patch_size
    width, height = images.size_px
    return 1, height // patch, width // patch
