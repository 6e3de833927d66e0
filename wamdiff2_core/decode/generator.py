"""Requests in, answers out: the one way to a model's text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch

from wamdiff2_core.chat import ChatCodec, ModelInputs
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode.autoregressive import decode_autoregressive
from wamdiff2_core.decode.block_diffusion import decode_blocks
from wamdiff2_core.decode.deadline import CLOCK, Clock, Pace
from wamdiff2_core.decode.grammar.automaton import Automaton
from wamdiff2_core.decode.on_device import decode_on_device, decodes_on_device
from wamdiff2_core.decode.trace import DecodeTrace
from wamdiff2_core.decode.warm_start import Guesses
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.backends import Backend
from wamdiff2_core.model.block_model import BlockModel
from wamdiff2_core.model.checkpoint import Checkpoint
from wamdiff2_core.model.masks import block_count
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_core.types import DecodeStats

REUSED_IMAGES = 8  # whose features are kept


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
        trace: when each token was fixed; None unless it was asked for.
    """

    token_ids: tuple[int, ...]
    raw_ids: tuple[int, ...]
    text: str
    ended: bool
    stats: DecodeStats
    trace: DecodeTrace | None = None


class Generator:
    """Decodes batches with one model, one after the other whoever asks.

    Requests leave behind what a later answer does not depend on: features of images and the keys and values of a
    prompt, for when they come again, and the length of their steps, which only a deadline looks at. With `prompt_reuse:
    always` it may depend on them by rounding.

    Attributes:
        model: the stock model; with the backend `eager`, its weights may change between calls.
        blocks: what runs it, step by step.
        clock: monotonic nanoseconds; deadlines and all statistics go by it.
    """

    def __init__(self, checkpoint: Checkpoint, *, enforce_record: bool = True) -> None:
        """Take a checkpoint, to be run by the backend that it was loaded for.

        Args:
            checkpoint: loaded weights.
            enforce_record: refuse decoding that the serving record does not allow; False is for experiments.

        Raises:
            UserError: the backend lacks something on this machine.
        """
        chat = checkpoint.chat if checkpoint.tokenizer is not None else None
        record = checkpoint.record if enforce_record else None
        blocks = BlockModel(checkpoint.model, checkpoint.runner, REUSED_IMAGES, reuse_prompts=True)
        self._take(blocks, chat, record, checkpoint.mask_token_id, checkpoint.eos_token_id, checkpoint.lock)

    @classmethod
    def of(
        cls, model: Any, chat: ChatCodec | None, record: ServingRecord, *, enforce_record: bool = True,
        backend: Backend | str = "eager",
    ) -> Generator:
        """Take a model in memory, for example one in training.

        The caller sees to its device, dtype, autocast and evaluation mode.

        Args:
            model: stock Qwen3-VL, not wrapped; `eager` reads its weights anew at every call.
            chat: decodes text; None leaves answers without text.
            record: what the weights are trained for; gives the ids of mask and EOS.
            enforce_record: refuse decoding that the record does not allow.
            backend: what runs it, or its name; others than `eager` take the weights as they are now.

        Raises:
            UserError: no such backend, or it lacks something on this machine.
        """
        generator = cls.__new__(cls)
        checked = record if enforce_record else None
        generator._take(
            BlockModel(model, backend), chat, checked, record.mask_token_id, record.eos_token_id, Lock()
        )
        return generator

    def _take(
        self, blocks: BlockModel, chat: ChatCodec | None, record: ServingRecord | None, mask_token_id: int,
        eos_token_id: int, lock: Lock,
    ) -> None:
        self.model, self.blocks, self._chat, self._record = blocks.model, blocks, chat, record
        self._lock = lock
        self._mask_token_id, self._eos_token_id = mask_token_id, eos_token_id
        self.clock: Clock = CLOCK
        self._paces: dict[tuple[int, int], Pace] = {}  # by rows and block size

    @torch.inference_mode()
    def generate(
        self, requests: Sequence[ModelInputs], config: DecodeConfig, *, trace: bool = False,
        grammars: Sequence[Automaton | None] | None = None, full_head: bool = False, began_ns: int | None = None,
        guesses: Sequence[Sequence[int] | None] | None = None, candidates: int = 1,
    ) -> list[Generation]:
        """Decode requests as one batch; each answer is the one it would have alone, unless a deadline hurries them all.

        With several candidates, all of a request share its prompt, which is run once, and the k-th is the answer that
        `seed` + k gives.

        Args:
            requests: prompts.
            config: decoding.
            trace: also tell when each token was fixed, and how sure the model was of it.
            grammars: language of each answer, None for a free one (`grammar.task_language`); not looked at with
                `grammar: off`, needed with `grammar: task`.
            full_head: with grammars, compute the logits of the whole vocabulary, not of the grammar's tokens alone.
                Answers are the same; `interventions` then also counts where the model preferred a token that no answer
                of the task has.
            began_ns: when the time of `deadline_ms` began, on `clock`; None is now.
            guesses: tokens of each answer as guessed before, None for no guess; not looked at with `warm_start: off`.
            candidates: answers to each request, at a temperature above 0.

        Returns:
            Answers in the order of the requests, the candidates of one request behind each other.

        Raises:
            UserError: the request contradicts the serving record, is empty, or does not fit the model; or the model is
                in training mode, where dropout and gradient checkpointing would change answers.
        """
        if self.model.training:
            raise UserError("model", "a model in evaluation mode", "one in training mode", "call model.eval() first")
        if self._record is not None:
            self._record.check_request(config)
        if not requests:
            return []
        self._check_lengths(requests, config)
        if candidates < 1 or (candidates > 1 and config.temperature == 0):
            raise UserError("candidates", "1 at temperature 0, where all would be equal, else 1 or more", candidates,
                            "set temperature above 0")
        if guesses is not None and candidates > 1:
            guesses = [guess for guess in guesses for _ in range(candidates)]
        if config.grammar == "off":
            grammars = None
        elif grammars is None or len(grammars) != len(requests):
            raise UserError("grammars", f"one for each of {len(requests)} requests, with grammar task",
                            "none" if grammars is None else len(grammars), "give grammars, or set grammar off")
        with self._lock:
            if config.strategy == "autoregressive":
                batch = decode_autoregressive(
                    self.blocks, requests, config, self._eos_token_id, trace, grammars, full_head, self.clock,
                    candidates,
                )
            elif decodes_on_device(self.blocks, config, grammars):
                batch = decode_on_device(
                    self.blocks, requests, config, self._mask_token_id, self._eos_token_id, trace, self.clock
                )
            else:
                size = len(requests) * candidates, config.block_size
                batch = decode_blocks(
                    self.blocks, requests, config, self._mask_token_id, self._eos_token_id, trace, grammars, full_head,
                    began_ns, self.clock, self._paces.get(size), self._guesses(guesses, config),
                    candidates,
                )
                if batch.pace is not None:
                    self._paces[size] = batch.pace
            reused = self.blocks.reused_columns
        width = 1 if config.strategy == "autoregressive" else config.block_size
        decoded = batch.blocks.tolist()
        traces: list[DecodeTrace | None] = [None] * len(decoded)
        if batch.trace is not None:
            traces = [*batch.trace.traces([blocks * width for blocks in decoded])]
        intervened = [[False]] * len(decoded) if batch.interventions is None else batch.interventions.tolist()
        hurried = [0] * len(decoded) if batch.hurried is None else batch.hurried.tolist()
        answers = []
        for raw, steps, blocks, traced, strange, sooner in zip(
            batch.ids.tolist(), batch.steps.tolist(), decoded, traces, intervened, hurried, strict=True
        ):
            ended = self._eos_token_id in raw
            tokens = tuple(raw[: raw.index(self._eos_token_id)] if ended else raw)
            stats = DecodeStats(
                prefill_ms=batch.prefill_ms,
                decode_ms=batch.decode_ms,
                forwards=steps if config.strategy == "autoregressive" else 1 + steps,
                steps=steps,
                blocks=blocks,
                tokens=len(tokens) + ended,
                interventions=sum(strange[: len(tokens) + ended]),
                hurried_steps=sooner,
                overshoot_ms=batch.overshoot_ms,
                prefill_reused_tokens=reused,
            )
            text = self._chat.decode(tokens) if self._chat is not None else ""
            answers.append(Generation(tokens, tuple(raw), text, ended, stats, traced))
        return answers

    def _guesses(self, answers: Sequence[Sequence[int] | None] | None, config: DecodeConfig) -> Guesses | None:
        if config.warm_start == "off" or answers is None:
            return None
        columns = block_count(config.max_new_tokens, config.block_size) * config.block_size
        return Guesses.of(answers, columns, self._eos_token_id, self.model.device)

    def _check_lengths(self, requests: Sequence[ModelInputs], config: DecodeConfig) -> None:
        longest = max(len(request.input_ids) for request in requests)
        if min(len(request.input_ids) for request in requests) == 0:
            raise UserError("input_ids", "at least one prompt token", "none")
        limit = int(self.model.config.get_text_config().max_position_embeddings)
        size = 1 if config.strategy == "autoregressive" else config.block_size
        wanted = longest + block_count(config.max_new_tokens, size) * size
        if wanted > limit:
            raise UserError(
                "max_new_tokens", f"prompt and answer within {limit} tokens", f"{longest} + {wanted - longest}",
                "shorten the prompt, lower max_pixels or max_new_tokens",
            )
