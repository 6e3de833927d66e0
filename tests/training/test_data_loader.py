"""Steps are the same for any number of ranks and workers, and go on where a run stopped."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch

from tests.training.test_data_mixture import source
from training.data.encode import EncodedSample, SampleEncoder
from training.data.limits import LengthLimits
from training.data.loader import StepLoader
from training.data.mixture import Mixture
from training.data.sources import SourceConfig
from wamdiff2_core.errors import UserError

BATCH = 12


@pytest.fixture
def mixture(picture_set: Path, tmp_path: Path) -> Mixture:
    pictures = SourceConfig("pictures", str(picture_set), 1.0)
    return Mixture([source(tmp_path, "words", 30, 3.0), pictures])


def loader(mixture: Mixture, codec, limits: LengthLimits = LengthLimits(), **options) -> StepLoader:  # noqa: B008
    return StepLoader(mixture, SampleEncoder(codec, codec.image_token_id, 2, limits), BATCH, 5, **options)


def same(one: EncodedSample, other: EncodedSample) -> bool:
    if (one.id, one.source) != (other.id, other.source):
        return False
    for name in ("prompt_ids", "prompt_positions", "answer_ids", "pixel_values", "image_grid_thw"):
        a, b = getattr(one, name), getattr(other, name)
        if (a is None) != (b is None) or (a is not None and not torch.equal(a, b)):
            return False
    return True


def steps(loader: StepLoader, count: int) -> list[list[EncodedSample]]:
    return list(islice(loader, count))


@pytest.mark.parametrize("over_long", ["refuse", "drop"])
@pytest.mark.parametrize("workers", [0, 2])
def test_any_world_and_any_workers_give_the_same_steps(mixture: Mixture, codec, over_long: str, workers: int) -> None:
    # With 9 tokens the long answers of the pictures are dropped, and replaced by other pictures.
    limits = LengthLimits(4096, 9 if over_long == "drop" else 64, over_long)
    whole = steps(loader(mixture, codec, limits), 3)
    assert all(len(step) == BATCH for step in whole)
    for world in (1, 3) if workers else (2, 4):
        ranks = [steps(loader(mixture, codec, limits, rank=rank, world=world, workers=workers), 3)
                 for rank in range(world)]
        for step in range(3):
            for rank in range(world):
                own = ranks[rank][step]
                assert len(own) == BATCH // world
                assert all(map(same, own, whole[step][rank::world])), (world, rank, step)


def test_a_run_goes_on_at_any_step(mixture: Mixture, codec) -> None:
    whole = steps(loader(mixture, codec), 6)
    resumed = steps(loader(mixture, codec, start_step=4), 2)
    for one, other in zip(whole[4:], resumed, strict=True):
        assert all(map(same, one, other))


def test_a_dropped_sample_is_replaced_from_its_own_source_and_counted(mixture: Mixture, codec) -> None:
    limits = LengthLimits(4096, 9, "drop")
    dropping = loader(mixture, codec, limits)
    drawn = [sample for step in steps(dropping, 10) for sample in step]
    assert dropping.over_long["dropped_answer_tokens"] > 0
    assert sum(sample.source == "pictures" for sample in drawn) == BATCH * 10 / 4
    assert max(len(sample.answer_ids) for sample in drawn) <= 9


def test_every_rank_gets_its_share_of_every_source(mixture: Mixture, codec) -> None:
    for rank in range(4):
        own = [sample for step in steps(loader(mixture, codec, rank=rank, world=4), 40) for sample in step]
        assert 0.1 < sum(sample.source == "pictures" for sample in own) / len(own) < 0.4


def test_a_source_of_which_nothing_fits_ends_the_run_with_a_reason(mixture: Mixture, codec) -> None:
    with pytest.raises(UserError, match=r"source words: .* 100 over answer_tokens"):
        steps(loader(mixture, codec, LengthLimits(4096, 2, "drop")), 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_sample_ends_the_run_with_file_and_number(tmp_path: Path, codec, workers: int) -> None:
    (tmp_path / "a.jsonl").write_text('{"torn": \n')
    broken = Mixture([SourceConfig("a", str(tmp_path / "a.jsonl"))])
    with pytest.raises(UserError, match=r"a.jsonl: sample 1: expected valid JSON"):
        steps(loader(broken, codec, workers=workers), 1)


def test_a_batch_that_ranks_cannot_share_is_refused(mixture: Mixture, codec) -> None:
    with pytest.raises(UserError, match="global_batch: expected a multiple of the 5 ranks"):
        loader(mixture, codec, world=5)
