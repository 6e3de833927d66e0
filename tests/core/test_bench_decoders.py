"""What `wamdiff2 bench` times: decoders that answer alike, forwards that are counted, shapes that are as told."""

from __future__ import annotations

import itertools
import shutil
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import Qwen3VLForConditionalGeneration

from tests.core.bench_doubles import DYNAMIC, RATES, STATIC, ours, subject_of
from tests.core.doubles import EOS, MASK, random_inputs, save_tiny, tiny_config, tiny_model
from wamdiff2_core.bench import ladder, naive, parts, subjects
from wamdiff2_core.bench.machine import Floor
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode import Generator
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.block_model import BlockModel
from wamdiff2_core.model.checkpoint import load_checkpoint
from wamdiff2_core.serving_record import ServingRecord

CONFIGS = [STATIC, DYNAMIC, replace(DYNAMIC, block_size=4), replace(STATIC, strategy="sequential", denoising_steps=3)]
IMAGE_SETS = [(), ((4, 4),), ((2, 4), (6, 2))]


@contextmanager
def calls_of_the_last_layer(model):
    """Widths of all forwards, taken by a wrapped method where the measurement itself uses hooks on the first layer."""
    layer = model.model.language_model.layers[-1]
    original, widths = layer.forward, []

    def forward(hidden_states, *arguments, **named):
        widths.append(hidden_states.shape[1])
        return original(hidden_states, *arguments, **named)

    layer.forward = forward
    try:
        yield widths
    finally:
        del layer.forward


@contextmanager
def calls_of_the_backend(backend):
    """Widths of all forwards that a backend is asked for."""
    prefill, step, widths = backend.prefill, backend.step, []

    def counted_prefill(batch):
        widths.append(batch.ids.shape[1])
        return prefill(batch)

    def counted_step(ids, *arguments, **named):
        widths.append(ids.shape[1])
        return step(ids, *arguments, **named)

    backend.prefill, backend.step = counted_prefill, counted_step
    try:
        yield widths
    finally:
        del backend.prefill, backend.step


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("images", IMAGE_SETS)
def test_the_naive_decoder_gives_our_tokens(config, images):
    model, steps = tiny_model(7, gain=3), []
    for seed in range(2):
        prompt = random_inputs(seed, 9 + seed, images)
        expected = ours(model, prompt, config)
        assert naive.decode_naively(model, prompt, config, MASK) == list(expected.raw_ids)
        assert len(set(expected.raw_ids)) > 2
        steps.append(expected.stats.steps)
    assert min(steps) > -(-14 // config.block_size)


def test_the_naive_decoder_ends_after_the_block_of_eos():
    model, prompt = tiny_model(7, gain=3), random_inputs(0, 9)
    config = replace(STATIC, max_new_tokens=22)
    free = ours(model, prompt, config).raw_ids
    eos = next(token for token in free[8:16] if token not in free[:8])
    expected = ours(model, prompt, config, eos).raw_ids
    answer = naive.decode_naively(model, prompt, config, MASK, eos)
    assert answer == list(expected[:16])
    assert set(expected[16:]) == {eos}


def test_the_naive_decoder_never_takes_the_mask():
    model, prompt = tiny_model(7, gain=3, tie_word_embeddings=False), random_inputs(0, 9)
    with torch.no_grad():
        most = model.lm_head.weight[ours(model, prompt, STATIC).raw_ids[0]]
        model.lm_head.weight[MASK] = 3 * most
    answer = naive.decode_naively(model, prompt, STATIC, MASK)
    assert MASK not in answer
    assert answer == list(ours(model, prompt, STATIC).raw_ids)


@pytest.mark.parametrize("images", IMAGE_SETS)
def test_both_autoregressive_rows_write_the_same_tokens(images):
    prompts = [random_inputs(seed, 9 + seed, images) for seed in range(2)]
    subject, lengths = subject_of(tiny_model(3, gain=3), prompts), [17, 5]
    hf_ar, own_ar = ladder.make_rungs(subject, lengths, [8], ladder.AUTOREGRESSIVE_ROWS)
    assert (hf_ar.name, own_ar.name) == ("hf_ar", "own_ar")
    for index, length in enumerate(lengths):
        answer = list(own_ar.answer(index))
        assert list(hf_ar.answer(index)) == answer
        assert len(answer) == length
        assert len(set(answer)) > 2


def test_an_answer_does_not_stop_at_eos():
    model, prompts = tiny_model(3, gain=3), [random_inputs(0, 9)]
    subject = subject_of(model, prompts)
    rungs = ladder.make_rungs(subject, [14], [8])
    before = [tuple(rung.answer(0)) for rung in rungs]
    for rung, answer in zip(rungs, before, strict=True):
        if answer:
            eos = answer[2]
            again = ladder.make_rungs(replace(subject, eos_token_id=eos), [14], [8], [rung.name])[0]
            assert tuple(again.answer(0)) == answer


@pytest.mark.parametrize("decode", [STATIC, DYNAMIC])
def test_forwards_and_tokens_are_those_of_an_independent_count(decode):
    model = tiny_model(7, gain=3)
    prompts, lengths, sizes = [random_inputs(seed, 9 + seed) for seed in range(2)], [9, 5], [4, 8]
    subject = subject_of(model, prompts, decode)
    rungs = ladder.make_rungs(subject, lengths, sizes)
    rows = ladder.climb(subject, rungs, lengths, 1, lambda model: Floor(model, RATES))
    assert [(row.name, row.block_size) for row in rows] == [
        ("hf_ar", None), ("own_ar", None), *itertools.product(ladder.BLOCK_ROWS, [4]),
        *itertools.product(ladder.BLOCK_ROWS, [8]),
    ]
    for rung, row in zip(rungs, rows, strict=True):
        counts = []
        for index in range(2):
            stock = rung.blocks is None or rung.blocks.backend.name == "eager"
            with calls_of_the_last_layer(model) if stock else calls_of_the_backend(rung.blocks.backend) as widths:
                rung.answer(index)
            assert widths[0] == len(prompts[index].input_ids)
            counts.append(len(widths))
        expected = []
        for prompt, length in zip(prompts, lengths, strict=True):
            if row.block_size is None:
                expected.append(length)
                continue
            stats = ours(model, prompt, replace(decode, block_size=row.block_size, max_new_tokens=length)).stats
            commits = 0 if row.name in ("block", "block_eager") else -(-length // row.block_size)
            expected.append(1 + stats.steps + commits)
        assert counts == expected, row.name
        assert row.forwards_per_answer == np.mean(counts)
        assert row.tokens_per_forward == pytest.approx(14 / sum(counts))
        assert row.answers == 2


@pytest.fixture(scope="module")
def tiny_qwen() -> subjects.Subject:
    return subjects.random_subject("tiny-qwen-vocab")


def test_a_shape_decodes_one_token_a_step(tiny_qwen):
    subject = replace(tiny_qwen, decode=replace(tiny_qwen.decode, block_size=4), new_tokens=6)
    assert ladder.answer_lengths(subject, subject.decode)[0] == [6]
    rungs = ladder.make_rungs(subject, [6], [4], ["block"])
    (row,) = ladder.climb(subject, rungs, [6], 1, lambda model: Floor(model, RATES))
    assert row.forwards_per_answer == 8 + 1  # two whole blocks
    assert row.tokens_per_forward == 6 / 9


def test_the_small_shape_has_qwens_vocabulary_and_twenty_million_parameters(tiny_qwen):
    subject = tiny_qwen
    weights = list(subject.model.parameters())
    assert 19e6 < sum(weight.numel() for weight in weights) < 21e6
    assert subject.model.lm_head.weight is subject.model.model.language_model.embed_tokens.weight
    assert subject.model.lm_head.weight.shape == (151936, 128)
    assert {weight.dtype for weight in weights} == {torch.float32}
    assert all(bool(weight.isfinite().all()) for weight in weights)
    assert len(subject.prompts[0].input_ids) == 128
    assert subject.new_tokens == 64


def test_the_large_shape_is_qwen3_vl_2b():
    shape = subjects.SHAPES["2b"]
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration._from_config(shape.config(), dtype=shape.dtype)
    weights = list(model.parameters())
    assert len(model.model.language_model.layers) == 28
    assert len(model.model.visual.blocks) == 24
    assert sum(weight.numel() for weight in weights) == 2_127_532_032
    assert {weight.dtype for weight in weights} == {torch.bfloat16}
    assert model.lm_head.weight is model.model.language_model.embed_tokens.weight
    prompt = subjects.random_prompt(model.config, shape.prompt_text, shape.image_px)
    assert prompt.image_grid_thw.tolist() == [[1, 34, 60]]
    assert int((prompt.input_ids == model.config.image_token_id).sum()) == 510
    assert prompt.pixel_values.shape == (34 * 60, 3 * 2 * 16 * 16)


def test_random_weights_keep_the_stock_tables_and_run():
    stock = tiny_model()
    model = subjects.random_model(tiny_config(), torch.bfloat16, "cpu")
    expected = dict(stock.named_buffers())
    for name, table in model.named_buffers():
        assert torch.equal(table, expected.pop(name)), name
    assert not expected
    assert not model.training
    prompt = subjects.random_prompt(model.config, 12, (64, 96))
    assert int((prompt.input_ids == model.config.image_token_id).sum()) == 2 * 3
    answer = ours(model, prompt, STATIC)
    assert answer.stats.steps == 8
    assert naive.decode_naively(model, prompt, STATIC, MASK)


def test_our_prompt_forward_and_the_stock_one_fill_equal_caches():
    """Both rows of `prefill` do the same work: at width 1 the same keys."""
    from transformers import DynamicCache

    model, prompt = tiny_model(), random_inputs(0, 20, ((4, 4),))
    longer = parts._prompt(subject_of(model, [prompt]), 6)
    assert len(longer.input_ids) == 2 + 1 + 4 + 6
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(**naive.stock_inputs(model, longer), cache=cache, use_cache=True, logits_to_keep=1)
        blocks = BlockModel(model)
        blocks.prefill([longer], 1, 1)
    for layer, (keys, _) in enumerate(blocks.backend.columns(0, len(longer.input_ids))):
        torch.testing.assert_close(cache.layers[layer].keys, keys, rtol=1e-4, atol=1e-4)


def test_a_parent_answers_the_autoregressive_rows(tmp_path):
    own, prompt = tiny_model(3, gain=3), random_inputs(0, 9)
    folder = save_tiny(tmp_path / "parent", 4, gain=3)
    subject = subject_of(own, [prompt])
    autoregressive = DecodeConfig(strategy="autoregressive")
    ServingRecord("shifted", (1,), mask_token_id=MASK, eos_token_id=EOS, decode=autoregressive).save(folder)
    parent = ladder.load_parent(folder, subject)
    with_parent = [rung.answer(0) for rung in ladder.make_rungs(subject, [9], [8], ["own_ar", "block"], parent)]
    alone = [rung.answer(0) for rung in ladder.make_rungs(subject, [9], [8], ["own_ar", "block"])]
    assert with_parent[0] != alone[0]
    assert list(with_parent[0]) == naive.generate_stock(tiny_model(4, gain=3), prompt, 9)
    assert with_parent[1] == alone[1]
    (folder / "wamdiff2.json").unlink()
    assert ladder.load_parent(folder, subject).config.get_text_config().vocab_size == 272
    with pytest.raises(UserError, match=r"vocab_size.*expected the checkpoint's 300, got 272"):
        ladder.load_parent(folder, subject_of(tiny_model(vocab_size=300), [prompt]))


def test_weights_with_shifted_labels_decode_no_blocks_unless_told():
    record = ServingRecord("shifted", (1,), decode=DecodeConfig(strategy="autoregressive"))
    with pytest.raises(UserError, match="any-block-size"):
        ladder.allowed_sizes(record, [], False)
    assert ladder.allowed_sizes(record, [], True) == [4, 8, 16, 32]
    assert ladder.allowed_sizes(None, [16, 4, 16], False) == [4, 16]
    assert ladder.allowed_sizes(ServingRecord(block_sizes=(32, 8)), [], False) == [8, 32]


def test_a_checkpoint_is_timed_without_the_deadline_of_its_record(nano_folder, tmp_path):
    record = ServingRecord.load(nano_folder)
    folder = tmp_path / "hurried"
    shutil.copytree(nano_folder, folder)
    replace(record, decode=replace(record.decode, deadline_ms=1.0, grammar="task")).save(folder)
    assert subjects.checkpoint_subject(folder).decode == replace(record.decode, deadline_ms=0.0, grammar="off")


def test_the_length_of_an_answer_is_that_of_service(nano_folder):
    subject = subjects.checkpoint_subject(nano_folder)
    checkpoint = load_checkpoint(nano_folder)
    served = Generator(checkpoint).generate(subject.prompts, replace(checkpoint.record.decode, grammar="off"))[0]
    assert served.ended
    lengths, first_ms = ladder.answer_lengths(subject, subject.decode)
    assert lengths == [len(served.token_ids) + 1]
    assert first_ms > 0
    subject.new_tokens = 40
    assert ladder.answer_lengths(subject, subject.decode)[0] == [40]


def test_samples_of_a_file_are_spread_over_all_of_it(tmp_path):
    from wamdiff2_core.dataset import DatasetWriter

    with DatasetWriter(tmp_path) as writer:
        for number in range(199):
            writer.add(str(number), f"question {number}", "answer")
    asked = [int(request.text.split()[1]) for request in subjects._requests_of(writer.file, 100)]
    assert asked == [number * 199 // 100 for number in range(100)]
    assert len(subjects._requests_of(writer.file, 500)) == 199
