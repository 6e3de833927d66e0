"""The training forward against the stock model under the whole mask, and against what decoding computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from training.config import DiffusionConfig
from training.data.encode import EncodedSample
from training.forward import AnswerModel
from training.layout import absorb, autoregressive_inputs, collate
from training.noise import Noise
from training.stages.block_adaptation import corrupted, draw_batch
from training.stages.stage import Prepared, Slots, TokenIds, collate_for
from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.block_model import BlockModel
from wamdiff2_core.model.masks import training_mask

SLOTS = Slots(0, 0, (0, 1, 2))


def prepared(encoded: Sequence[EncodedSample], ids: TokenIds, config: DiffusionConfig) -> Prepared:
    batch = collate_for(encoded, replace(ids, prompt_multiple=8), config.block_size)
    return corrupted(batch, draw_batch(batch, config, SLOTS), config, ids.mask)


def every_row(part: Prepared) -> Tensor:
    """Rows of all noisy tokens, (N * K * R,)."""
    return part.rows(torch.ones_like(part.counted))


def all_logits(model: AnswerModel, part: Prepared) -> Tensor:
    with torch.no_grad():
        (logits,) = model(part.inputs, every_row(part), lambda logits, _: (logits,))
    return logits.view(*part.labels.shape, -1)


def stock_logits(model: AnswerModel, part: Prepared, encoded, size: int, kind: str, copies: int) -> Tensor:
    """The stock model on [prompt | answer | copies], its own forward, under the whole mask."""
    batch = part.batch
    answer = batch.answer_ids.shape[1]
    noisy = part.inputs.ids[:, -copies * answer :]
    positions = torch.cat([batch.prompt_positions, batch.answer_positions.repeat(1, 1 + copies).expand(3, -1, -1)], 2)
    valid = torch.cat([batch.prompt_valid, torch.ones_like(batch.answer_ids, dtype=torch.bool)], 1)
    mask = training_mask(batch.prompt_ids.shape[1], answer, size, kind, num_noisy=copies, valid=valid)
    with torch.no_grad(), model.decoding():
        logits = model.model(
            input_ids=torch.cat([batch.prompt_ids, batch.answer_ids, noisy], 1),
            pixel_values=torch.cat([sample.pixel_values for sample in encoded]),
            image_grid_thw=torch.cat([sample.image_grid_thw for sample in encoded]),
            position_ids=positions, attention_mask=mask[:, None], use_cache=False,
        ).logits
    return logits[:, -copies * answer :]


@pytest.mark.parametrize("kernel", ["written", "fused"])
@pytest.mark.parametrize("size", [4, 8, 16, 32])
def test_logits_equal_the_stock_model_under_the_whole_mask(student, token_ids, encoded, size: int, kernel) -> None:
    student.kernel = kernel
    part = prepared(encoded, token_ids, DiffusionConfig(size, copies=2))
    stock = stock_logits(student, part, encoded, size, "strict", 2)
    torch.testing.assert_close(all_logits(student, part), stock, rtol=1e-4, atol=1e-4)


def test_upstream_mask_logits_equal_the_stock_model(student, token_ids, encoded) -> None:
    part = prepared(encoded, token_ids, DiffusionConfig(8, mask="upstream"))
    stock = stock_logits(student, part, encoded, 8, "upstream", 1)
    torch.testing.assert_close(all_logits(student, part), stock, rtol=1e-4, atol=1e-4)


def test_a_teacher_with_smaller_blocks_reads_the_same_states_under_its_own_mask(student, token_ids, encoded) -> None:
    batch = collate_for(encoded, token_ids, 32)
    noise = draw_batch(batch, DiffusionConfig(32, copies=2), SLOTS)
    part = corrupted(batch, noise, DiffusionConfig(8, copies=2), token_ids.mask, kept_blocks_of=8)
    stock = stock_logits(student, part, encoded, 8, "strict", 2)
    torch.testing.assert_close(all_logits(student, part), stock, rtol=1e-4, atol=1e-4)
    larger = corrupted(batch, noise, DiffusionConfig(32, copies=2), token_ids.mask, kept_blocks_of=8)
    assert torch.equal(larger.inputs.ids, part.inputs.ids)
    stock = stock_logits(student, larger, encoded, 32, "strict", 2)
    torch.testing.assert_close(all_logits(student, larger), stock, rtol=1e-4, atol=1e-4)


def test_autoregressive_logits_equal_the_stock_causal_model(student, token_ids, encoded) -> None:
    sample = encoded[1]
    batch = collate([sample], answer_multiple=1, prompt_multiple=1, pad_id=token_ids.pad, eos_id=token_ids.eos,
                    image_id=token_ids.image)
    inputs = autoregressive_inputs(batch)
    with torch.no_grad():
        (ours,) = student(inputs, torch.arange(inputs.ids.shape[1]), lambda logits, _: (logits,))
        with student.decoding():
            stock = student.model(
                input_ids=inputs.ids, pixel_values=sample.pixel_values, image_grid_thw=sample.image_grid_thw,
                mm_token_type_ids=(inputs.ids == token_ids.image).int(), use_cache=False,
            ).logits[0]
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [4, 16, 32])
def test_training_sees_what_decoding_sees_in_every_block(student, token_ids, encoded, size: int) -> None:
    """Each block, all masked, after clean earlier blocks: the decoder's first-step logits of that block."""
    batch = collate_for(encoded, token_ids, 32)
    everything = torch.ones(3, 1, 32, dtype=torch.bool)
    part = corrupted(batch, Noise(everything, everything.float()), DiffusionConfig(size), token_ids.mask)
    requests = [ModelInputs(s.prompt_ids, s.pixel_values, s.image_grid_thw) for s in encoded]
    masks = torch.full((3, size), token_ids.mask)
    with torch.inference_mode(), student.decoding():
        model = BlockModel(student.model)
        model.prefill(requests, size, 32)
        served = [model.forward(masks, 0)]
        for start in range(size, 32, size):
            done = batch.answer_ids[:, start - size : start]
            served.append(model.forward(torch.cat([done, masks], 1), start - size, commit=size))
        decoding = model.logits(torch.cat(served, 1))
    torch.testing.assert_close(all_logits(student, part), decoding, rtol=1e-4, atol=1e-4)


def test_images_of_several_sizes_and_samples_without_any_share_a_batch(student, token_ids, encoded) -> None:
    first, second = encoded[0], encoded[1]
    small = torch.tensor([[1, 2, 2]])
    where = (second.prompt_ids == token_ids.image).nonzero()[:, 0]
    keep = torch.ones(len(second.prompt_ids), dtype=torch.bool)
    keep[where[1:]] = False  # one image token: a picture of 2 x 2 patches
    other = replace(second, prompt_ids=second.prompt_ids[keep], prompt_positions=second.prompt_positions[:, keep],
                    pixel_values=second.pixel_values[:4], image_grid_thw=small)
    blind_ids = first.prompt_ids[first.prompt_ids != token_ids.image]
    blind = replace(first, prompt_ids=blind_ids, prompt_positions=torch.arange(len(blind_ids)).expand(3, -1),
                    pixel_values=None, image_grid_thw=None)
    config, mixed = DiffusionConfig(16), [first, blind, other]

    def logits_of(samples: list[EncodedSample], slots: tuple[int, ...]) -> Tensor:
        batch = collate_for(samples, token_ids, 32)
        noise = draw_batch(batch, config, Slots(0, 0, slots))
        return all_logits(student, corrupted(batch, noise, config, token_ids.mask))

    together = logits_of(mixed, (0, 1, 2))
    for row, sample in enumerate(mixed):
        torch.testing.assert_close(together[row : row + 1], logits_of([sample], (row,)), rtol=1e-4, atol=1e-4)
    student.stock_vision = True
    torch.testing.assert_close(logits_of(mixed, (0, 1, 2)), together, rtol=1e-4, atol=1e-4)


def test_a_noisy_copy_does_not_see_the_other_copy(student, token_ids, encoded) -> None:
    part = prepared(encoded, token_ids, DiffusionConfig(8, copies=2))
    answer = part.batch.answer_ids.shape[1]
    changed = part.inputs.ids.clone()
    changed[:, -answer:] = 100
    before = all_logits(student, part)[:, :answer]
    after = all_logits(student, replace(part, inputs=replace(part.inputs, ids=changed)))[:, :answer]
    assert torch.equal(before, after)


def test_scores_in_pieces_have_the_values_and_gradients_of_one_piece(student, token_ids, encoded) -> None:
    part = prepared(encoded, token_ids, DiffusionConfig(8))
    labels = part.labels[part.counted]
    weight = student.model.model.language_model.layers[0].mlp.up_proj.weight
    results = []
    for rows in (4096, 5):
        student.score_rows = rows
        (entropy,) = student(part.inputs, part.rows(part.counted), lambda logits, where: (
            torch.nn.functional.cross_entropy(logits, labels[where], reduction="none"),))
        (gradient,) = torch.autograd.grad(entropy.sum(), weight)
        results.append((entropy.detach(), gradient))
    for whole, pieces in zip(*results, strict=True):
        torch.testing.assert_close(whole, pieces, rtol=1e-5, atol=1e-5)


def test_absorbing_keeps_the_mask_out_of_the_clean_copy(token_ids, encoded) -> None:
    part = prepared(encoded, token_ids, DiffusionConfig(8, full_share=1.0))
    context = part.inputs.context_allowed.shape[-1]
    assert (part.inputs.ids[:, :context] != token_ids.mask).all()
    noisy = absorb(part.batch.answer_ids, torch.ones(3, 1, part.batch.answer_ids.shape[1], dtype=torch.bool), 7)
    assert torch.equal(part.inputs.ids[:, context:], torch.where(noisy[:, 0] == 7, token_ids.mask, 0))


def test_wrong_configurations_are_refused() -> None:
    with pytest.raises(UserError, match="copies"):
        DiffusionConfig(mask="upstream", copies=2)
    with pytest.raises(UserError, match="block_size"):
        DiffusionConfig(block_size=0)
    with pytest.raises(UserError, match="full_share"):
        DiffusionConfig(full_share=1.5)
    with pytest.raises(UserError, match="copies"):
        DiffusionConfig(own_order=True)


def test_activation_checkpointing_reaches_vision_and_text_and_changes_no_gradient(student, token_ids, encoded) -> None:
    part = prepared(encoded, token_ids, DiffusionConfig(8))
    kept: list[int] = []
    gradients = []
    for pick in ("text", "visual", "none"):
        stock = student.model
        for module in stock.modules():
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = False
        if pick != "none":
            stock.activation_checkpointing_enable({"use_reentrant": False})
            other = stock.model.language_model if pick == "visual" else stock.model.visual
            for module in other.modules():
                if hasattr(module, "gradient_checkpointing"):
                    module.gradient_checkpointing = False
        stock.train()
        stock.zero_grad()
        kept.append(0)

        def count(tensor: Tensor) -> Tensor:
            kept[-1] += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            (values,) = student(part.inputs, every_row(part), lambda logits, _: (logits.logsumexp(-1),))
            values.sum().backward()
        gradients.append([parameter.grad.clone() for parameter in stock.parameters() if parameter.grad is not None])
    assert kept[0] < kept[2]
    assert kept[1] < kept[2]
    for got in gradients[:2]:
        for gradient, plain in zip(got, gradients[2], strict=True):
            torch.testing.assert_close(gradient, plain)


def test_a_student_in_one_piece_decodes_past_its_forward_which_may_be_compiled(student, monkeypatch) -> None:
    monkeypatch.setattr(student, "forward", lambda *_: pytest.fail("by way of the forward"))
    student.model.train()
    assert student.decode(lambda: student.model.training) is False
    assert student.model.training
