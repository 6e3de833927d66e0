"""Requests in, answers out: the one way to a model's text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode.autoregressive import decode_autoregressive
from wamdiff2_core.decode.block_diffusion import decode_blocks
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.block_model import BlockModel
from wamdiff2_core.model.checkpoint import Checkpoint
from wamdiff2_core.model.masks import block_count
from wamdiff2_core.types import DecodeStats


@dataclass(frozen=True)
class Generation:
    """One answer.

    Attributes:
        token_ids: up to the first EOS, which is left out.
        raw_ids: whole blocks up to the length limit; what follows the block of the first EOS is EOS. With
            `autoregressive`, the tokens and EOS up to the limit.
        text: of `token_ids`; empty when the checkpoint has no tokenizer.
        ended: whether EOS was reached.
        stats: forwards and steps are this answer's own; times are those of its batch.
    """

    token_ids: tuple[int, ...]
    raw_ids: tuple[int, ...]
    text: str
    ended: bool
    stats: DecodeStats


class Generator:
    """Decodes batches with one checkpoint; requests leave nothing behind that a later one could see."""

    def __init__(self, checkpoint: Checkpoint, *, enforce_record: bool = True) -> None:
        """Take a checkpoint.

        Args:
            checkpoint: loaded weights.
            enforce_record: refuse decoding that the serving record does not allow; False is for experiments.
        """
        self.checkpoint = checkpoint
        self._record = checkpoint.record if enforce_record else None
        self._model = BlockModel(checkpoint.model)

    @torch.inference_mode()
    def generate(self, requests: Sequence[ModelInputs], config: DecodeConfig) -> list[Generation]:
        """Decode requests as one batch; each answer is the one it would have alone.

        Raises:
            UserError: the request contradicts the serving record, is empty, or does not fit the model.
        """
        if self._record is not None:
            self._record.check_request(config)
        if not requests:
            return []
        self._check_lengths(requests, config)
        if config.strategy == "autoregressive":
            batch = decode_autoregressive(self._model, requests, config, self.checkpoint.eos_token_id)
        else:
            batch = decode_blocks(
                self._model, requests, config, self.checkpoint.mask_token_id, self.checkpoint.eos_token_id
            )
        answers = []
        for raw, steps, blocks in zip(batch.ids.tolist(), batch.steps.tolist(), batch.blocks.tolist(), strict=True):
            ended = self.checkpoint.eos_token_id in raw
            tokens = tuple(raw[: raw.index(self.checkpoint.eos_token_id)] if ended else raw)
            stats = DecodeStats(
                prefill_ms=batch.prefill_ms,
                decode_ms=batch.decode_ms,
                forwards=steps if config.strategy == "autoregressive" else 1 + steps,
                steps=steps,
                blocks=blocks,
                tokens=len(tokens) + ended,
            )
            text = self.checkpoint.chat.decode(tokens) if self.checkpoint.tokenizer is not None else ""
            answers.append(Generation(tokens, tuple(raw), text, ended, stats))
        return answers

    def _check_lengths(self, requests: Sequence[ModelInputs], config: DecodeConfig) -> None:
        longest = max(len(request.input_ids) for request in requests)
        if min(len(request.input_ids) for request in requests) == 0:
            raise UserError("input_ids", "at least one prompt token", "none")
        limit = int(self.checkpoint.model.config.get_text_config().max_position_embeddings)
        size = 1 if config.strategy == "autoregressive" else config.block_size
        wanted = longest + block_count(config.max_new_tokens, size) * size
        if wanted > limit:
            raise UserError(
                "max_new_tokens", f"prompt and answer within {limit} tokens", f"{longest} + {wanted - longest}",
                "shorten the prompt, lower max_pixels or max_new_tokens",
            )
