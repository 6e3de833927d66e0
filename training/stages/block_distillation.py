"""Stage II: block-wise distillation from a diffusion teacher with smaller blocks (paper section 3.3, appendix A.3).

Teacher and student name the masked tokens of the very same corrupted states, each under its own mask; the student
minimises the divergence of the two distributions, mixed with the cross-entropy of the data set's answers. A teacher
with smaller blocks has never seen the padding beyond its own last block: there the student learns the label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from training.config import DiffusionConfig, DistillationConfig
from training.data.encode import EncodedSample
from training.forward import AnswerModel
from training.layout import Inputs, View, autoregressive_inputs, padded
from training.losses import Totals, cross_entropy, divergence, token_weights, top_k_overlap
from training.noise import Noise
from training.stages.block_adaptation import corrupted, draw_batch
from training.stages.stage import Prepared, Scored, Slots, TokenIds, collate_for
from training.trajectories import Decoder, states_of


@dataclass(frozen=True)
class Teacher:
    """A model that is learnt from.

    Attributes:
        model: frozen.
        view: block size and mask it reads with.
        alignment: `shifted` for an autoregressive teacher, which reads the clean answer.
    """

    model: AnswerModel
    view: View
    alignment: Literal["aligned", "shifted"] = "aligned"

    def reads(self, prepared: Prepared, noise: Noise, diffusion: DiffusionConfig, mask_id: int) -> tuple[Inputs, int]:
        """What it reads of a batch, and the column in which label 0 stands."""
        if self.alignment == "shifted":
            return autoregressive_inputs(prepared.batch), prepared.batch.prompt_ids.shape[1] - 1
        own = replace(diffusion, block_size=self.view.block_size, mask=self.view.mask)
        shared = min(self.view.block_size, diffusion.block_size)
        read = corrupted(prepared.batch, noise, own, mask_id, kept_blocks_of=shared)
        return read.inputs, read.first_row

    def knows(self, answer_lengths: Tensor) -> Tensor:
        """(N,) answer tokens that it was trained to name."""
        return answer_lengths if self.alignment == "shifted" else padded(answer_lengths, self.view.block_size)


class BlockDistillation:
    """See `stages.stage.Stage`."""

    def __init__(
        self, model: AnswerModel, teacher: Teacher, ids: TokenIds, diffusion: DiffusionConfig,
        distillation: DistillationConfig, decoder: Decoder | None = None,
    ) -> None:
        """Take student and teacher; `decoder` gives the student's own answers on on-policy steps."""
        self.model, self.teacher, self._ids = model, teacher, ids
        self._diffusion, self._distillation, self._decoder = diffusion, distillation, decoder

    def prepare(self, samples: Sequence[EncodedSample], slots: Slots) -> Prepared:
        """See `Stage.prepare`; on an on-policy step the student decodes here."""
        diffusion, policy = self._diffusion, self._distillation.on_policy
        batch = collate_for(samples, self._ids, diffusion.block_size)
        own = policy is not None and self._decoder is not None and slots.step % policy.every == 0
        if own:
            assert self._decoder is not None
            trajectories = self._decoder.decode(self.model, samples, slots)
            batch, noise = states_of(trajectories, batch, diffusion, slots)
        else:
            noise = draw_batch(batch, diffusion, slots)
        shared = diffusion.block_size
        if self.teacher.alignment == "aligned":
            shared = min(shared, self.teacher.view.block_size)
        prepared = corrupted(batch, noise, diffusion, self._ids.mask, kept_blocks_of=shared)
        teacher_inputs, teacher_first = self.teacher.reads(prepared, noise, diffusion, self._ids.mask)
        copies, answer = noise.masked.shape[1:]
        known = (torch.arange(answer) < self.teacher.knows(batch.answer_lengths)[:, None]).repeat(1, copies)
        extras = {"teacher": teacher_inputs, "teacher_first": teacher_first, "known": known, "own": own}
        return replace(prepared, extras=extras)

    def loss(self, prepared: Prepared, totals: Totals) -> tuple[Tensor, dict[str, Tensor]]:
        """See `Stage.loss`."""
        config = self._distillation
        scored = Scored.of(self.model, prepared)
        seen = self._teacher_rows(prepared, scored.tokens)
        head = self.teacher.model.model.lm_head
        names = [f"overlap_{k}" for k in config.overlap_at]

        def score(logits: Tensor, where: slice) -> tuple[Tensor, ...]:
            with torch.no_grad():
                wanted = head(seen[where]).to(logits.device)
            distance = divergence(logits, wanted, config.divergence, temperature=config.temperature, beta=config.beta)
            with torch.no_grad():
                overlaps = [top_k_overlap(logits, wanted, k) for k in config.overlap_at]
            return cross_entropy(logits, scored.labels[where]), distance, *overlaps

        entropy, distance, *overlaps = self.model(scored.inputs, scored.rows, score)
        counted, known = prepared.counted, prepared.extras["known"]
        by_label = token_weights(counted, prepared.time, prepared.lengths, self._diffusion.loss, totals)
        by_teacher = token_weights(counted, None, prepared.lengths, config.average, totals)
        ratio, own = config.kd_ratio, prepared.extras["own"]
        label_share = torch.where(known, 0.0 if own else 1 - ratio, 1.0)
        loss = scored.total(entropy, by_label * label_share) + scored.total(distance, by_teacher * known * ratio)
        compared = (counted & known).float()
        sums = {"cross_entropy": entropy, "divergence": distance, **dict(zip(names, overlaps, strict=True))}
        logged = {name: scored.total(value.detach(), compared) for name, value in sums.items()}
        return loss, {**logged, "known": compared.sum().to(loss.device)}

    @torch.no_grad()
    def _teacher_rows(self, prepared: Prepared, tokens: Tensor) -> Tensor:
        """(M, D) hidden rows of the teacher that name the scored tokens."""
        model = self.teacher.model
        inputs: Inputs = prepared.extras["teacher"]
        sample, column = tokens.nonzero(as_tuple=True)
        if self.teacher.alignment == "shifted":
            column = column % prepared.batch.answer_ids.shape[1]
        rows = sample * inputs.ids.shape[1] + prepared.extras["teacher_first"] + column
        return model.hidden(inputs.to(model.device)).flatten(0, 1)[rows.to(model.device)]
