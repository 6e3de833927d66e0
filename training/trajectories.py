"""The student's own decoding as training states (paper section 3.2, "intermediate noisy states").

A token that decoding has fixed never changes. So the states that an answer passed through are all described by its
final tokens and the step at which each was fixed: at step s of a block, the tokens fixed before s are known, the others
masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from training import seeds
from training.config import DiffusionConfig, OnPolicyConfig
from training.data.encode import EncodedSample
from training.forward import AnswerModel
from training.layout import Batch, stack_noise
from training.noise import Noise
from training.stages.stage import Slots
from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode.block_diffusion import decode_blocks
from wamdiff2_core.model.block_model import BlockModel


@dataclass(frozen=True)
class Trajectory:
    """One decoded answer.

    Attributes:
        ids: (R,) whole blocks.
        fixed_at: (R,) step of its block at which each token was fixed.
        length: tokens up to the first EOS, which is included; all when there is none.
    """

    ids: Tensor
    fixed_at: Tensor
    length: int


class Decoder(Protocol):
    """Gives the student's own answers."""

    def decode(self, model: AnswerModel, samples: Sequence[EncodedSample], slots: Slots) -> list[Trajectory]:
        """One trajectory a sample."""


class StudentDecoder:
    """Decodes with the serving code and the student's present weights."""

    def __init__(self, config: OnPolicyConfig, block_size: int, mask_id: int, eos_id: int) -> None:
        self._mask, self._eos = mask_id, eos_id
        self._decode = DecodeConfig(
            block_size=block_size, denoising_steps=config.denoising_steps or block_size, strategy=config.strategy,
            confidence_threshold=config.confidence_threshold, temperature=config.temperature,
            max_new_tokens=config.max_new_tokens,
        )

    @torch.no_grad()
    def decode(self, model: AnswerModel, samples: Sequence[EncodedSample], slots: Slots) -> list[Trajectory]:
        """See `Decoder.decode`; temperature draws from the step's own seed."""
        requests = [ModelInputs(s.prompt_ids, s.pixel_values, s.image_grid_thw) for s in samples]
        config = replace(self._decode, seed=seeds.mix(slots.seed, slots.step, seeds.DECODE))
        blocks = BlockModel(model.model)
        done = model.decode(lambda: decode_blocks(blocks, requests, config, self._mask, self._eos, trace=True))
        assert done.trace is not None
        lengths = [blocks * config.block_size for blocks in done.blocks.tolist()]
        trajectories = []
        for ids, length, trace in zip(done.ids.cpu(), lengths, done.trace.traces(lengths), strict=True):
            ended = (ids[:length] == self._eos).nonzero()
            trajectories.append(Trajectory(
                ids[:length], torch.tensor(trace.fixed_at), int(ended[0]) + 1 if len(ended) else length
            ))
        return trajectories


def states_of(
    trajectories: Sequence[Trajectory], batch: Batch, config: DiffusionConfig, slots: Slots
) -> tuple[Batch, Noise]:
    """The batch with the student's answers, and K states that each of its blocks passed through.

    The step of a block's state is drawn evenly from its steps, so each copy has at least one mask in every block.
    """
    size, answer = config.block_size, max(len(trajectory.ids) for trajectory in trajectories)
    ids = torch.full((len(trajectories), answer), int(batch.answer_ids[0, -1]))
    drawn = []
    for row, (trajectory, slot) in enumerate(zip(trajectories, slots.slots, strict=True)):
        length = len(trajectory.ids)
        ids[row, :length] = trajectory.ids
        generator = seeds.generator(slots.seed, slots.step, slot, seeds.NOISE, 2)
        fixed_at = trajectory.fixed_at.view(-1, size)
        last = fixed_at.amax(-1, keepdim=True)
        steps = (torch.rand(config.copies, len(fixed_at), 1, generator=generator) * (last + 1)).floor()
        masked = fixed_at >= steps.clamp(max=last)
        time = masked.float().mean(-1, keepdim=True).expand(-1, -1, size)
        pad = answer - length
        drawn.append(Noise(
            torch.nn.functional.pad(masked.flatten(1), (0, pad), value=True),
            torch.nn.functional.pad(time.flatten(1), (0, pad), value=1.0),
        ))
    lengths = torch.tensor([trajectory.length for trajectory in trajectories])
    return batch.with_answers(ids, lengths), stack_noise(drawn)
