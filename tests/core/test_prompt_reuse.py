"""A prompt that begins as the one before did: what is not run again, and that no answer shows it.

Prompts are made of pieces, a token or an image each, and so is the oracle: it expands the pieces of both prompts into
one descriptor a token, and counts how many are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from tests.core.doubles import EOS, IMAGE, MASK, PATCH_DIM, VISION_END, VISION_START, save_tiny, tiny_model
from tests.core.engines import make_engine
from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode import Generation, Generator
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.block_model import BlockModel
from wamdiff2_core.model.checkpoint import load_checkpoint
from wamdiff2_core.serving_record import ServingRecord

NO_EOS = 100_000  # beyond the vocabulary: never emitted
GRIDS = ((2, 4), (4, 4), (4, 6))
CONFIGS = {
    1: DecodeConfig(strategy="autoregressive", max_new_tokens=5),
    4: DecodeConfig(4, 3, "low_confidence_dynamic", 0.2, max_new_tokens=8),
    32: DecodeConfig(32, 3, "low_confidence_static", max_new_tokens=32),
}
SEQUENCES = {"cpu": 34, "eager": 6, "cpu-operators": 6, "cuda": 2}  # of each block size; `cuda` on a stand-in
FIRST = 2  # with blocks of 32, the stories before it share nothing


@dataclass(frozen=True)
class Picture:
    """An image: rows and columns of patches, and the seed of its pixels."""

    height: int
    width: int
    seed: int

    @property
    def tokens(self) -> int:
        return self.height * self.width // 4


Piece = int | Picture


def blocks_of(engine: str, model) -> BlockModel:
    return BlockModel(model, make_engine(engine, model), 4, reuse_prompts=True)


def generator_of(blocks: BlockModel) -> Generator:
    ids = ServingRecord(mask_token_id=MASK, eos_token_id=NO_EOS)
    generator = Generator.of(blocks.model, None, ids, enforce_record=False)
    generator.blocks = blocks
    return generator


def inputs_of(pieces: Sequence[Piece]) -> ModelInputs:
    ids: list[int] = []
    pixels, grids = [], []
    for piece in pieces:
        if isinstance(piece, Picture):
            ids += [VISION_START, *[IMAGE] * piece.tokens, VISION_END]
            rng = np.random.default_rng(piece.seed)
            pixels.append(rng.normal(size=(piece.height * piece.width, PATCH_DIM)).astype(np.float32))
            grids.append([1, piece.height, piece.width])
        else:
            ids.append(piece)
    if not pixels:
        return ModelInputs(torch.tensor(ids))
    return ModelInputs(torch.tensor(ids), torch.from_numpy(np.concatenate(pixels)), torch.tensor(grids))


def described(pieces: Sequence[Piece]) -> list[object]:
    """One descriptor a token, equal where a token is the same."""
    every: list[object] = []
    for piece in pieces:
        if isinstance(piece, Picture):
            every += [VISION_START, *((piece, index) for index in range(piece.tokens)), VISION_END]
        else:
            every.append(piece)
    return every


Batch = tuple[int, list[list[Piece]]]  # block size, and prompts


def expected_reuse(before: Batch | None, batch: Batch) -> int:
    """Tokens that need not be run again, counted one by one."""
    if before is None or before[0] != batch[0] or len(before[1]) != len(batch[1]):
        return 0
    rows = [(described(old), described(new)) for old, new in zip(before[1], batch[1], strict=True)]
    if any(len({len(row[side]) for row in rows}) > 1 for side in (0, 1)):
        return 0
    equal = 0
    while equal < min(len(rows[0][0]), len(rows[0][1]) - 1) and all(old[equal] == new[equal] for old, new in rows):
        equal += 1
    return equal - equal % batch[0]


def random_pieces(rng: np.random.Generator, count: int, images: float) -> list[Piece]:
    return [
        Picture(*GRIDS[rng.integers(len(GRIDS))], int(rng.integers(3))) if rng.random() < images
        else int(rng.integers(0, 250))
        for _ in range(count)
    ]


def next_pieces(rng: np.random.Generator, before: list[Piece], images: float) -> list[Piece]:
    """A prompt like the one before: the same, another ending, one piece changed, or another beginning."""
    kind = rng.choice(["same", "ending", "ending", "ending", "piece", "beginning"])
    if kind == "same":
        return before
    if kind == "ending":
        kept = int(rng.integers(1, len(before) + 1))
        return before[:kept] + random_pieces(rng, int(rng.integers(1, 20)), images)
    index = int(rng.integers(len(before))) if kind == "piece" else 0
    piece = before[index]
    changed = replace(piece, seed=piece.seed + 1) if isinstance(piece, Picture) else (piece + 1) % 250
    return [*before[:index], changed, *before[index + 1 :]]


def story(seed: int, size: int) -> list[Batch]:
    """Five batches of one to three prompts; now and then with blocks of another size."""
    rng = np.random.default_rng([seed, size])
    images = 0.0 if seed % 3 == 0 else 0.1
    pieces, batches = random_pieces(rng, int(rng.integers(4 + size, 16 + 3 * size)), images), []
    for _ in range(5):
        own = size if rng.random() < 0.9 else int(rng.choice(list(CONFIGS)))
        kind = rng.random()
        if kind < 0.7:
            batches.append((own, [pieces]))
        elif kind < 0.9:  # of one length
            other = [*pieces[:-1], 7]
            batches.append((own, [pieces, other if not isinstance(pieces[-1], Picture) else pieces]))
        else:
            batches.append((own, [pieces, random_pieces(rng, 6, images), pieces]))
        pieces = next_pieces(rng, pieces, images)
    return batches


def answers(generator: Generator, batch: Batch) -> list[Generation]:
    return generator.generate([inputs_of(pieces) for pieces in batch[1]], CONFIGS[batch[0]], trace=True)


@pytest.mark.parametrize("size", list(CONFIGS))
@pytest.mark.parametrize("engine", list(SEQUENCES))
def test_answers_of_any_history_are_those_of_a_fresh_engine(engine, size):
    model, reused = tiny_model(21, gain=1.5), 0
    for seed in range(FIRST, FIRST + SEQUENCES[engine]):
        used, before = generator_of(blocks_of(engine, model)), None
        for batch in story(seed, size):
            found = answers(used, batch)
            fresh = answers(generator_of(blocks_of(engine, model)), batch)
            for own, expected in zip(found, fresh, strict=True):
                assert own.raw_ids == expected.raw_ids
                assert own.trace.fixed_at == expected.trace.fixed_at
                np.testing.assert_allclose(own.trace.confidence, expected.trace.confidence, rtol=1e-3)
                assert own.stats.prefill_reused_tokens == expected_reuse(before, batch)
                assert expected.stats.prefill_reused_tokens == 0
                reused += own.stats.prefill_reused_tokens
            before = batch
    assert reused > 0


PICTURE = Picture(4, 6, 1)
OPENING: list[Piece] = [5, 6, 7, PICTURE, 8, 9]


@pytest.mark.parametrize("size", [1, 4, 8])
@pytest.mark.parametrize("engine", list(SEQUENCES))
def test_hidden_states_keys_and_values_are_those_of_a_whole_prefill(engine, size):
    """Also where the cache has to grow; a stand-in's grows by 256 columns."""
    model = tiny_model(22)
    used, fresh = blocks_of(engine, model), blocks_of(engine, model)
    tail = list(range(250))
    with torch.inference_mode():
        for count in (9, 30, 230, 250, 3):
            inputs = [inputs_of([*OPENING, *tail[:count], 99])] * 2
            own, expected = used.prefill(inputs, size, 16, "float32").clone(), fresh.prefill(inputs, size, 16)
            assert used.reused_columns >= (0 if count == 9 else 8)
            assert fresh.reused_columns == 0
            width = len(inputs[0].input_ids)
            exact = engine == "cpu" and used.backend.compiled
            pairs = zip(used.backend.columns(0, width), fresh.backend.columns(0, width), strict=True)
            for one, other in ((own, expected), *((a, b) for two in pairs for a, b in zip(*two, strict=True))):
                torch.testing.assert_close(one, other, atol=0 if exact else 1e-5, rtol=0)


@pytest.mark.parametrize("engine", list(SEQUENCES))
def test_only_what_is_new_is_run(engine):
    """Rows that go through the first layer: 3 + 8 + 2 tokens and the question's, in whole blocks of 4."""
    model, rows = tiny_model(23), []
    blocks = blocks_of(engine, model)
    if engine.startswith("cpu"):
        run = blocks.backend._text.run
        blocks.backend._text.run = lambda hidden, *args: rows.append(hidden.shape[1]) or run(hidden, *args)
    else:
        layer = model.model.language_model.layers[0]
        layer.register_forward_pre_hook(lambda module, args: rows.append(args[0].shape[1]))
    opening = len(described(OPENING))
    assert opening == 3 + 8 + 2
    other = [*OPENING[:3], replace(PICTURE, seed=2), *OPENING[4:]]
    with torch.inference_mode():
        for pieces, kept in (
            ([*OPENING, *range(10)], 0), ([*OPENING, *range(10)], 20), ([*OPENING, 200, 201], 12),
            ([*other, 200, 201], 4), ([*other, 200, 201, 202, 203, 204], 12), ([*other, 200, 201, 202], 16 - 4),
            (OPENING[:3], 0),
        ):
            inputs = inputs_of(pieces)
            blocks.prefill([inputs], 4, 4, "float32")
            assert rows.pop() == len(inputs.input_ids) - kept
            assert blocks.reused_columns == kept
    assert rows == []


@pytest.mark.parametrize("engine", list(SEQUENCES))
def test_a_prefill_that_failed_half_way_leaves_nothing_to_reuse(engine):
    blocks = blocks_of(engine, tiny_model(24))
    batch: Batch = (4, [[*OPENING, 1, 2, 3]])
    expected = answers(generator_of(blocks_of(engine, blocks.model)), batch)[0]
    used = generator_of(blocks)
    answers(used, batch)
    whole = blocks.backend.prefill

    def broken(one):
        whole(replace(one, ids=(one.ids + 1) % 200, reused=0, image_slots=None))
        raise MemoryError

    blocks.backend.prefill = broken
    with pytest.raises(MemoryError):
        answers(used, batch)
    blocks.backend.prefill = whole
    again = answers(used, batch)[0]
    assert (again.raw_ids, again.stats.prefill_reused_tokens) == (expected.raw_ids, 0)
    assert answers(used, batch)[0].stats.prefill_reused_tokens > 0


@pytest.mark.parametrize("engine", list(SEQUENCES))
def test_generators_that_share_a_backend_know_what_the_other_left(engine):
    model = tiny_model(25)
    backend = make_engine(engine, model)
    one, two = (generator_of(BlockModel(model, backend, reuse_prompts=True)) for _ in range(2))
    without = generator_of(BlockModel(model, backend))
    first: Batch = (4, [[*OPENING, 1, 2, 3]])
    second: Batch = (4, [[1, *OPENING, 2, 3]])
    assert answers(one, first)[0].stats.prefill_reused_tokens == 0
    assert answers(two, second)[0].stats.prefill_reused_tokens == 0
    assert answers(one, first)[0].stats.prefill_reused_tokens == 0
    assert answers(two, first)[0].stats.prefill_reused_tokens == 12
    assert answers(without, second)[0].stats.prefill_reused_tokens == 0
    assert answers(one, second)[0].stats.prefill_reused_tokens == 0


def test_weights_that_change_are_seen_by_eager():
    model = tiny_model(26)
    used, batch = generator_of(BlockModel(model, "eager", reuse_prompts=True)), (4, [[*OPENING, 1, 2, 3]])
    before = answers(used, batch)[0]
    with torch.no_grad():
        model.model.language_model.layers[0].self_attn.v_proj.weight.mul_(-1.5)
    after = answers(used, batch)[0]
    fresh = answers(generator_of(BlockModel(model, "eager")), batch)[0]
    assert after.stats.prefill_reused_tokens == 0
    assert after.raw_ids == fresh.raw_ids
    assert after.raw_ids != before.raw_ids
    assert answers(used, batch)[0].stats.prefill_reused_tokens == 12


def test_where_sums_are_not_in_float32_reuse_has_to_be_asked_for():
    model, batch = tiny_model(27).to(torch.bfloat16), [inputs_of([*OPENING, 1, 2, 3])]
    used = BlockModel(model, "eager", reuse_prompts=True)
    with torch.inference_mode():
        for reuse, kept in (("float32", 0), ("float32", 0), ("always", 0), ("always", 12), ("off", 0), ("always", 0)):
            used.prefill(batch, 4, 4, reuse)
            assert used.reused_columns == kept


def test_a_checkpoint_reuses_prompts_unless_told_not_to(tmp_path):
    checkpoint = load_checkpoint(
        save_tiny(tmp_path, tokenizer=False), require_tokenizer=False, mask_token_id=MASK, eos_token_id=EOS
    )
    generator, batch = Generator(checkpoint), [inputs_of([*OPENING, 1, 2, 3])]
    off = replace(CONFIGS[4], prompt_reuse="off")
    for config, kept in ((CONFIGS[4], 0), (CONFIGS[4], 12), (off, 0), (off, 0), (CONFIGS[4], 0)):
        assert generator.generate(batch, config)[0].stats.prefill_reused_tokens == kept
    with pytest.raises(UserError, match="prompt_reuse: expected one of off, float32, always, got on"):
        DecodeConfig(prompt_reuse="on")
