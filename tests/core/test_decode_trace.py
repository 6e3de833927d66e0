"""A trace rebuilds every state of a decode and costs nothing unless asked for; a model in memory decodes too."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.core.brute_force import logits_of_block
from tests.core.doubles import EOS, MASK, byte_tokenizer, random_inputs, save_tiny, tiny_config, tiny_model
from wamdiff2_core.chat import ChatCodec, ChatRequest
from wamdiff2_core.config import DecodeConfig, ImagePolicy
from wamdiff2_core.decode import Generator
from wamdiff2_core.decode.schedule import schedule
from wamdiff2_core.decode.selection import choose_tokens, select_positions
from wamdiff2_core.errors import UserError
from wamdiff2_core.images import make_image_processor
from wamdiff2_core.model.checkpoint import load_checkpoint
from wamdiff2_core.serving_record import ServingRecord

STRATEGIES = ["sequential", "low_confidence_static", "low_confidence_dynamic"]
NO_EOS = 100_000  # beyond the vocabulary: never emitted
RECORD = ServingRecord(block_sizes=(4, 8), mask_token_id=MASK, eos_token_id=EOS)


def generator(seed: int = 0, eos: int = NO_EOS, gain: float = 1.0) -> Generator:
    model = tiny_model(seed, gain=gain)
    ids = ServingRecord(mask_token_id=MASK, eos_token_id=eos)
    return Generator.of(model, None, ids, enforce_record=False)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("size", "steps", "threshold", "images"),
    [(4, 4, 0.3, ()), (8, 3, 0.2, ((2, 4),)), (7, 7, 0.15, ()), (8, 1, 0.9, ()), (1, 1, 0.9, ())],
)
def test_the_model_chooses_the_same_on_every_state_that_a_trace_rebuilds(strategy, size, steps, threshold, images):
    decoder, inputs = generator(5), random_inputs(size + 20, 13, images)
    config = DecodeConfig(size, steps, strategy, threshold, max_new_tokens=2 * size + 1)
    answer = decoder.generate([inputs], config, trace=True)[0]
    raw, fixed_at, confidence = answer.raw_ids, answer.trace.fixed_at, answer.trace.confidence
    assert len(fixed_at) == len(confidence) == len(raw) == 3 * size
    counts = schedule(size, steps)
    for first in range(0, len(raw), size):
        block = slice(first, first + size)
        at = torch.tensor(fixed_at[block])
        for step in range(max(fixed_at[block]) + 1):
            state = [token if known else MASK for token, known in zip(raw[block], (at < step).tolist(), strict=True)]
            logits = logits_of_block(decoder.model, inputs, [*raw[:first], *state], size)
            logits[:, MASK] = -torch.inf
            tokens, sure = choose_tokens(logits, config)
            open_ = at >= step
            last = step + 1 == len(counts)
            chosen = open_ if last else select_positions(sure[None], open_[None], config, counts[step])[0]
            assert torch.equal(chosen, at == step)
            assert tokens[chosen].tolist() == torch.tensor(raw[block])[chosen].tolist()
            torch.testing.assert_close(sure[chosen], torch.tensor(confidence[block])[chosen], rtol=1e-3, atol=1e-5)


def test_above_temperature_0_the_confidence_is_that_of_the_drawn_token():
    decoder, inputs = generator(6), random_inputs(3, 9)
    config = DecodeConfig(4, 4, "sequential", temperature=0.8, seed=2, max_new_tokens=4)
    answer = decoder.generate([inputs], config, trace=True)[0]
    assert answer.trace.fixed_at == (0, 1, 2, 3)
    for index in range(4):
        state = [*answer.raw_ids[:index], *[MASK] * (4 - index)]
        logits = logits_of_block(decoder.model, inputs, state, 4)[index] / 0.8
        logits[MASK] = -torch.inf
        drawn = float(logits.softmax(-1)[answer.raw_ids[index]])
        assert answer.trace.confidence[index] == pytest.approx(drawn, rel=1e-3)


@pytest.mark.parametrize("strategy", [*STRATEGIES, "autoregressive"])
def test_a_rows_trace_covers_its_decoded_blocks_and_does_not_depend_on_its_neighbours(strategy):
    requests = [random_inputs(seed, 7 + seed) for seed in range(4)]
    config = DecodeConfig(4, 4, strategy, 0.3, max_new_tokens=20)
    eos = generator(7, gain=3.0).generate(requests, config)[0].raw_ids[5]
    together = generator(7, eos, 3.0).generate(requests, config, trace=True)
    size = 1 if strategy == "autoregressive" else 4
    assert len({answer.stats.blocks for answer in together}) > 1
    for request, answer in zip(requests, together, strict=True):
        alone = generator(7, eos, 3.0).generate([request], config, trace=True)[0]
        assert answer.trace.fixed_at == alone.trace.fixed_at
        assert answer.trace.confidence == pytest.approx(alone.trace.confidence, rel=1e-3)
        assert len(answer.trace.fixed_at) == len(answer.trace.confidence) == size * answer.stats.blocks
        assert len(answer.token_ids) <= len(answer.trace.fixed_at)
        assert all(0 < probability <= 1 for probability in answer.trace.confidence)


def test_an_autoregressive_trace_has_the_probability_of_every_token():
    decoder, inputs = generator(3, gain=3.0), random_inputs(1, 11)
    config = DecodeConfig(strategy="autoregressive", max_new_tokens=6)
    answer = decoder.generate([inputs], config, trace=True)[0]
    assert answer.trace.fixed_at == (0, 1, 2, 3, 4, 5)
    ids = torch.cat([inputs.input_ids, torch.tensor(answer.raw_ids)])[None]
    with torch.no_grad():
        probabilities = decoder.model(input_ids=ids).logits[0, len(inputs.input_ids) - 1 : -1].softmax(-1)
    expected = probabilities.gather(-1, torch.tensor(answer.raw_ids)[:, None])[:, 0]
    assert answer.trace.confidence == pytest.approx(expected.tolist(), rel=1e-3)


READS = ("_local_scalar_dense", "item", "nonzero", "masked_select", "_to_copy", "is_nonzero")


class CountReads(TorchDispatchMode):
    """Counts operations whose result the host has to wait for on an accelerator."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        boolean_index = name in ("index", "index_put_") and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if boolean_index or name in READS:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("strategy", [*STRATEGIES, "autoregressive"])
def test_a_trace_changes_no_answer_and_makes_the_host_wait_no_more(strategy):
    config = DecodeConfig(8, 5, strategy, 0.2, max_new_tokens=24)
    requests = [random_inputs(1, 12), random_inputs(2, 9, ((2, 4),))]
    answers, reads, forwards = [], [], []
    for trace in (False, True):
        decoder = generator(9)
        calls: list[int] = []
        decoder.model.model.language_model.layers[0].register_forward_hook(lambda *_, calls=calls: calls.append(1))
        with CountReads() as counted:
            answers.append(decoder.generate(requests, config, trace=trace))
        reads.append(counted.counts)
        forwards.append(len(calls))
    assert [answer.raw_ids for answer in answers[0]] == [answer.raw_ids for answer in answers[1]]
    assert [answer.trace for answer in answers[0]] == [None, None]
    assert all(answer.trace is not None for answer in answers[1])
    assert forwards[0] == forwards[1]
    assert reads[0]
    assert reads[0] == reads[1]


def chat() -> ChatCodec:
    policy = ImagePolicy((64, 32), 2048, 2048)
    return ChatCodec(byte_tokenizer(), make_image_processor(policy, tiny_config().vision_config), policy, 261, EOS)


def test_a_model_in_memory_decodes_as_its_checkpoint_does(tmp_path):
    save_tiny(tmp_path, 4)
    config = DecodeConfig(8, 8, max_new_tokens=24)
    checkpoint = load_checkpoint(tmp_path, mask_token_id=MASK, eos_token_id=EOS)
    request = checkpoint.chat.encode(ChatRequest("What is ahead?"))
    expected = Generator(checkpoint).generate([request], config)[0]
    answer = Generator.of(tiny_model(4), chat(), RECORD).generate([request], config)[0]
    assert answer.raw_ids == expected.raw_ids
    assert answer.text == expected.text != ""
    assert Generator.of(tiny_model(4), None, RECORD).generate([request], config)[0].text == ""


def test_a_model_in_memory_is_held_to_its_record_unless_told_otherwise():
    inputs, config = random_inputs(1, 9), DecodeConfig(16, max_new_tokens=16)
    with pytest.raises(UserError, match="block_size"):
        Generator.of(tiny_model(), None, RECORD).generate([inputs], config)
    assert Generator.of(tiny_model(), None, RECORD, enforce_record=False).generate([inputs], config)[0].raw_ids


def test_a_model_is_decoded_between_its_training_steps_with_the_weights_it_then_has():
    model, inputs, config = tiny_model(2), random_inputs(1, 9), DecodeConfig(8, 8, max_new_tokens=16)
    decoder = Generator.of(model, None, RECORD)
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    seen = []
    for step in range(3):
        seen.append(decoder.generate([inputs], config, trace=True)[0])
        assert seen[-1].raw_ids == Generator.of(model, None, RECORD).generate([inputs], config)[0].raw_ids
        model.train()
        with pytest.raises(UserError, match=r"model: expected a model in evaluation mode, got one in training mode"):
            decoder.generate([inputs], config)
        loss = model(input_ids=inputs.input_ids[None], labels=torch.full((1, 9), 40 + step)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
    assert len({answer.raw_ids for answer in seen}) > 1
