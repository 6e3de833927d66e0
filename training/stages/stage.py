"""What a stage of training is: how it lays samples out, and the loss it takes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from training.data.encode import EncodedSample
from training.forward import AnswerModel
from training.layout import Batch, Inputs, collate
from training.losses import Totals, cross_entropy


@dataclass(frozen=True)
class TokenIds:
    """Ids that training needs, and the padding it makes.

    Attributes:
        pad, eos, mask, image: token ids.
        prompt_multiple: prompts are padded to a multiple of it.
    """

    pad: int
    eos: int
    mask: int
    image: int
    prompt_multiple: int = 1


@dataclass(frozen=True)
class Slots:
    """Which samples of a run a micro-batch holds: what their random numbers are drawn from.

    Attributes:
        seed: of the run.
        step: optimiser step.
        slots: place of each sample in the global batch.
    """

    seed: int
    step: int
    slots: tuple[int, ...]


@dataclass(frozen=True)
class Prepared:
    """A micro-batch, laid out.

    Attributes:
        batch: the samples.
        inputs: what the student reads.
        labels: (N, K * R) tokens to name.
        counted: (N, K * R) bool, tokens that carry loss.
        time: (N, K * R) t of each token's block, or None where the stage has none.
        lengths: (N,) padded answer lengths, times the number of copies.
        first_row: column of `inputs.ids` in which label 0 stands.
        extras: what the stage itself needs.
    """

    batch: Batch
    inputs: Inputs
    labels: Tensor
    counted: Tensor
    time: Tensor | None
    lengths: Tensor
    first_row: int
    extras: Mapping[str, Any] = field(default_factory=dict)

    @property
    def totals(self) -> Totals:
        """Totals of this micro-batch."""
        return Totals(float(len(self.labels)), float(self.counted.sum()))

    def rows(self, tokens: Tensor) -> Tensor:
        """(M,) rows of the flattened layout that name `tokens`, (N, K * R) bool."""
        sample, column = tokens.nonzero(as_tuple=True)
        return sample * self.inputs.ids.shape[1] + self.first_row + column


class Stage(Protocol):
    """One kind of training."""

    def prepare(self, samples: Sequence[EncodedSample], slots: Slots) -> Prepared:
        """Lay samples out, on the CPU; the same samples in the same slots give the same tensors."""

    def loss(self, prepared: Prepared, totals: Totals) -> tuple[Tensor, dict[str, Tensor]]:
        """This micro-batch's share of the step's loss, and sums over its tokens of what else is logged.

        A figure is logged as its sum over all micro-batches, divided by `totals.tokens`.
        """


def collate_for(samples: Sequence[EncodedSample], ids: TokenIds, block_size: int) -> Batch:
    """Samples as a stage with blocks of `block_size` takes them."""
    return collate(
        samples, answer_multiple=block_size, prompt_multiple=ids.prompt_multiple, pad_id=ids.pad, eos_id=ids.eos,
        image_id=ids.image,
    )


@dataclass(frozen=True)
class Scored:
    """What the student is called with, where it lives.

    Attributes:
        inputs: of the layout.
        tokens: (N, K * R) bool on the CPU, tokens that are scored: those that carry loss, or all of them where a
            compiled model wants the same shape every time.
        rows: (M,) rows that name them.
        labels: (M,) what they are.
    """

    inputs: Inputs
    tokens: Tensor
    rows: Tensor
    labels: Tensor

    @classmethod
    def of(cls, model: AnswerModel, prepared: Prepared) -> Scored:
        """Choose the tokens and move everything to the model's device."""
        device = model.device
        tokens = torch.ones_like(prepared.counted) if model.score_all else prepared.counted
        return cls(
            prepared.inputs.to(device), tokens, prepared.rows(tokens).to(device), prepared.labels[tokens].to(device)
        )

    def entropy(self, model: AnswerModel) -> Tensor:
        """(M,) cross-entropy of the scored tokens."""
        (values,) = model(self.inputs, self.rows, lambda logits, where: (cross_entropy(logits, self.labels[where]),))
        return values

    def total(self, values: Tensor, weights: Tensor) -> Tensor:
        """Sum of weight x value, of values (M,) of the scored tokens and weights of all, (N, K * R)."""
        chosen = weights[self.tokens].to(values.device, torch.float32)
        return (chosen * values.float()).sum()
