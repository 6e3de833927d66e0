"""Losses of all stages against a dense re-computation, and how little they care where they are computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.training.test_forward import stock_logits
from training.config import DiffusionConfig, DistillationConfig, OnPolicyConfig, TeacherConfig
from training.data.encode import EncodedSample
from training.layout import View
from training.losses import Totals
from training.stages.autoregressive import Autoregressive
from training.stages.block_adaptation import BlockAdaptation, corrupted
from training.stages.block_distillation import BlockDistillation, Teacher
from training.stages.cross_scale import CrossScale
from training.stages.stage import Prepared, Slots, Stage
from training.trajectories import StudentDecoder, Trajectory, states_of
from wamdiff2_core.errors import UserError

SLOTS = Slots(3, 5, (0, 1, 2))


def shared(stage: Stage, samples: Sequence[EncodedSample], parts: Sequence[tuple[int, ...]]) -> Tensor:
    """Loss of a step whose samples are spread over micro-batches."""
    prepared = [stage.prepare([samples[i] for i in part], replace(SLOTS, slots=part)) for part in parts]
    totals = Totals(sum(p.totals.samples for p in prepared), sum(p.totals.tokens for p in prepared))
    return torch.stack([stage.loss(part, totals)[0] for part in prepared]).sum()


def log_probabilities(logits: Tensor) -> np.ndarray:
    x = logits.double().numpy()
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def averaged(part: Prepared, values: np.ndarray, form: str, size: int, with_time: bool = True) -> float:
    """Formulas of the two forms, token by token."""
    n, answer = part.batch.answer_ids.shape
    copies = part.labels.shape[1] // answer
    total, count = 0.0, 0
    for row in range(n):
        length = math.ceil(int(part.batch.answer_lengths[row]) / size) * size
        for column in range(copies * answer):
            if not part.counted[row, column]:
                continue
            count += 1
            value = values[row, column]
            if form == "upstream":
                value = value / (copies * length * n)
                if with_time:
                    value = value / float(part.time[row, column])
            total += value
    return total / count if form == "paper" else total


@pytest.mark.parametrize("form", ["paper", "upstream"])
@pytest.mark.parametrize(("size", "mask", "copies"), [(4, "strict", 2), (8, "strict", 1), (32, "strict", 2),
                                                      (8, "upstream", 1)])
def test_adaptation_loss_equals_a_dense_computation(student, token_ids, encoded, form, size, mask, copies) -> None:
    stage = BlockAdaptation(student, token_ids, DiffusionConfig(size, mask, form, 0.3, copies, copies > 1))
    part = stage.prepare(encoded, SLOTS)
    log_p = log_probabilities(stock_logits(student, part, encoded, size, mask, copies))
    entropy = -np.take_along_axis(log_p, part.labels.numpy()[..., None], -1)[..., 0]
    loss, _ = stage.loss(part, part.totals)
    assert float(loss) == pytest.approx(averaged(part, entropy, form, size), rel=1e-5)


def test_autoregressive_loss_equals_a_dense_computation(student, token_ids, encoded) -> None:
    stage = Autoregressive(student, token_ids)
    part = stage.prepare(encoded, SLOTS)
    entropies = []
    for sample in encoded:
        ids = torch.cat([sample.prompt_ids, sample.answer_ids])[None]
        with torch.no_grad(), student.decoding():
            logits = student.model(
                input_ids=ids, pixel_values=sample.pixel_values, image_grid_thw=sample.image_grid_thw,
                mm_token_type_ids=(ids == token_ids.image).int(), use_cache=False,
            ).logits[0]
        first = len(sample.prompt_ids)
        log_p = log_probabilities(logits[first - 1 : -1])
        entropies.extend(-log_p[i, int(token)] for i, token in enumerate(sample.answer_ids))
    loss, _ = stage.loss(part, part.totals)
    assert float(loss) == pytest.approx(np.mean(entropies), rel=1e-5)


def teacher_of(student, view: View, alignment: str = "aligned") -> Teacher:
    """A teacher that differs from the student in its weights."""
    import copy

    from training.forward import AnswerModel

    other = copy.deepcopy(student.model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
    return Teacher(AnswerModel(other), view, alignment)


@pytest.mark.parametrize("average", ["paper", "upstream"])
@pytest.mark.parametrize("kind", ["jsd", "forward_kl", "reverse_kl"])
@pytest.mark.parametrize("teacher_size", [4, 32])
def test_distillation_loss_equals_a_dense_computation(
    student, token_ids, encoded, kind, teacher_size: int, average
) -> None:
    diffusion = DiffusionConfig(16 if teacher_size == 4 else 8, copies=2, loss="upstream")
    size = diffusion.block_size
    teacher = teacher_of(student, View(teacher_size))
    config = DistillationConfig(TeacherConfig(""), kind, kd_ratio=0.25, average=average)
    samples = encoded if teacher_size == 4 else [
        replace(s, answer_ids=s.answer_ids.repeat(9)[:27]) for s in encoded]  # 32 columns for both block sizes
    stage = BlockDistillation(student, teacher, token_ids, diffusion, config)
    part = stage.prepare(samples, SLOTS)

    s = log_probabilities(stock_logits(student, part, samples, size, "strict", 2))
    t = log_probabilities(stock_logits(teacher.model, part, samples, teacher_size, "strict", 2))
    p, q = np.exp(t), np.exp(s)
    m = np.log((p + q) / 2)
    value = {"jsd": ((p * (t - m)).sum(-1) + (q * (s - m)).sum(-1)) / 2, "forward_kl": (p * (t - s)).sum(-1),
             "reverse_kl": (q * (s - t)).sum(-1)}[kind]
    entropy = -np.take_along_axis(s, part.labels.numpy()[..., None], -1)[..., 0]
    answer = part.batch.answer_ids.shape[1]
    lengths = part.batch.answer_lengths.numpy()
    column = np.tile(np.arange(answer), 2)
    known = column < (np.ceil(lengths / teacher_size) * teacher_size)[:, None]
    wanted = averaged(part, np.where(known, 0.25 * value, 0.0), average, size, with_time=False)
    wanted += averaged(part, np.where(known, 0.75, 1.0) * entropy, "upstream", size)
    loss, figures = stage.loss(part, part.totals)
    assert float(loss) == pytest.approx(wanted, rel=1e-4)
    assert float(figures["known"]) == (part.counted.numpy() & known).sum()


def test_an_autoregressive_teacher_reads_the_clean_answer(student, token_ids, encoded) -> None:
    teacher = teacher_of(student, View(1), "shifted")
    config = DistillationConfig(TeacherConfig(""), "forward_kl", average="paper")
    stage = BlockDistillation(student, teacher, token_ids, DiffusionConfig(8), config)
    part = stage.prepare(encoded, SLOTS)
    loss, figures = stage.loss(part, part.totals)
    s = log_probabilities(stock_logits(student, part, encoded, 8, "strict", 1))
    wanted, known = 0.0, 0
    for row, sample in enumerate(encoded):
        ids = torch.cat([sample.prompt_ids, sample.answer_ids])[None]
        with torch.no_grad(), teacher.model.decoding():
            logits = teacher.model.model(
                input_ids=ids, pixel_values=sample.pixel_values, image_grid_thw=sample.image_grid_thw,
                mm_token_type_ids=(ids == token_ids.image).int(), use_cache=False,
            ).logits[0]
        t = log_probabilities(logits[len(sample.prompt_ids) - 1 : -1])
        for column in part.counted[row].nonzero()[:, 0].tolist():
            if column < len(sample.answer_ids):
                known += 1
                wanted += (np.exp(t[column]) * (t[column] - s[row, column])).sum()
            else:
                wanted -= s[row, column, int(part.labels[row, column])]
    assert float(loss) == pytest.approx(wanted / int(part.counted.sum()), rel=1e-4)
    assert float(figures["known"]) == known


@pytest.mark.parametrize("make", [
    lambda m, ids: Autoregressive(m, ids),
    lambda m, ids: BlockAdaptation(m, ids, DiffusionConfig(8, loss="paper", copies=2)),
    lambda m, ids: BlockAdaptation(m, ids, DiffusionConfig(16, loss="upstream")),
    lambda m, ids: BlockAdaptation(m, ids, DiffusionConfig(16, copies=2, own_order=True)),
    lambda m, ids: BlockDistillation(m, teacher_of(m, View(4)), ids, DiffusionConfig(16),
                                     DistillationConfig(TeacherConfig(""), kd_ratio=0.5)),
])
def test_micro_batches_change_neither_loss_nor_gradient(student, token_ids, encoded, make) -> None:
    stage = make(student, token_ids)
    weight = student.model.model.language_model.layers[0].mlp.up_proj.weight
    results = []
    for parts in ([(0, 1, 2)], [(0,), (1, 2)], [(2,), (1,), (0,)]):
        loss = shared(stage, encoded, parts)
        results.append((loss.detach(), torch.autograd.grad(loss, weight)[0]))
    for loss, gradient in results[1:]:
        torch.testing.assert_close(loss, results[0][0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradient, results[0][1], rtol=1e-4, atol=1e-6)


def test_own_order_masks_every_second_copy_where_the_model_is_least_sure(student, token_ids, encoded) -> None:
    config = DiffusionConfig(16, copies=2, own_order=True)
    part = BlockAdaptation(student, token_ids, config).prepare(encoded, SLOTS)
    batch = part.batch
    answer = batch.answer_ids.shape[1]
    everything = torch.ones(3, 1, answer, dtype=torch.bool)
    from training.noise import Noise

    start = corrupted(batch, Noise(everything, everything.float()), config, token_ids.mask)
    sure = stock_logits(student, start, encoded, 16, "strict", 1).softmax(-1).amax(-1)
    counted = part.counted.view(3, 2, answer)[:, 1]
    shown = ~counted & (torch.arange(answer) < (batch.answer_lengths[:, None] + 15) // 16 * 16)
    assert sure[counted].mean() < sure[shown].mean()
    context = part.inputs.context_allowed.shape[-1]
    noisy = part.inputs.ids[:, context:].view(3, 2, answer)[:, 1]
    assert torch.equal(noisy == token_ids.mask, counted | (noisy == token_ids.mask) & ~shown)


class TestOnPolicy:
    DECODE = OnPolicyConfig(every=1, denoising_steps=3, max_new_tokens=16)

    def stage(self, student, ids) -> CrossScale:
        diffusion = DiffusionConfig(8, copies=2)
        config = DistillationConfig(TeacherConfig(""), on_policy=self.DECODE)
        decoder = StudentDecoder(self.DECODE, 8, ids.mask, ids.eos)
        return CrossScale(student, teacher_of(student, View(8)), ids, diffusion, config, decoder)

    def test_states_are_those_the_students_decoding_passes_through(self, student, token_ids, encoded) -> None:
        """From any trained state, one step of the decoder leads to the trajectory's next state."""
        decoder = StudentDecoder(self.DECODE, 8, token_ids.mask, token_ids.eos)
        (trajectory,) = decoder.decode(student, encoded[:1], replace(SLOTS, slots=(0,)))
        assert trajectory.fixed_at.max() == 2  # three steps
        part = self.stage(student, token_ids).prepare(encoded[:1], replace(SLOTS, slots=(0,)))
        answer = part.batch.answer_ids.shape[1]
        assert torch.equal(part.batch.answer_ids[0, : len(trajectory.ids)], trajectory.ids)
        context = part.inputs.context_allowed.shape[-1]
        for copy in part.inputs.ids[0, context:].view(2, answer):
            for block in range(len(trajectory.ids) // 8):
                where = slice(block * 8, block * 8 + 8)
                masked = copy[where] == token_ids.mask
                step = int(trajectory.fixed_at[where][masked].min())
                assert torch.equal(masked, trajectory.fixed_at[where] >= step)
        logits = stock_logits(student, part, encoded[:1], 8, "strict", 2)
        logits[..., token_ids.mask] = -torch.inf
        best = logits.argmax(-1).view(2, answer)
        fixed_at = trajectory.fixed_at
        for copy, named in zip(part.inputs.ids[0, context:].view(2, answer), best, strict=True):
            for block in range(len(trajectory.ids) // 8):
                where = slice(block * 8, block * 8 + 8)
                masked = copy[where] == token_ids.mask
                now = masked & (fixed_at[where] == fixed_at[where][masked].min())
                assert torch.equal(named[where][now], trajectory.ids[where][now])

    def test_answers_of_its_own_are_learnt_from_the_teacher_alone(self, student, token_ids, encoded) -> None:
        stage = self.stage(student, token_ids)
        part = stage.prepare(encoded, SLOTS)
        assert part.extras["own"]
        loss, figures = stage.loss(part, part.totals)
        assert float(loss) > 0
        stage.teacher = Teacher(student, View(8))  # its own teacher: nothing to learn but labels, which do not count
        same, figures = stage.loss(part, part.totals)
        assert abs(float(same)) < 1e-6
        assert float(figures["overlap_1"]) == float(figures["known"])

    def test_every_nth_step_is_on_policy(self, student, token_ids, encoded) -> None:
        stage = self.stage(student, token_ids)
        stage._distillation = replace(stage._distillation, on_policy=replace(self.DECODE, every=3))
        own = [stage.prepare(encoded[:1], Slots(0, step, (0,))).extras["own"] for step in range(6)]
        assert own == [True, False, False, True, False, False]

    def test_states_of_a_block_come_from_all_of_its_steps(self, token_ids, encoded) -> None:
        from training.stages.stage import collate_for

        trajectory = Trajectory(torch.arange(20, 28), torch.tensor([0, 0, 1, 2, 2, 1, 3, 3]), 8)
        batch = collate_for(encoded[:1], token_ids, 8)
        seen = set()
        for step in range(100):
            _, noise = states_of([trajectory], batch, DiffusionConfig(8), Slots(0, step, (0,)))
            seen.add(tuple(noise.masked[0, 0].tolist()))
        assert seen == {tuple((trajectory.fixed_at >= s).tolist()) for s in range(4)}

    def test_cross_scale_without_a_policy_is_refused(self, student, token_ids) -> None:
        config = DistillationConfig(TeacherConfig(""))
        with pytest.raises(UserError, match="on_policy"):
            CrossScale(student, teacher_of(student, View(8)), token_ids, DiffusionConfig(8), config, None)
