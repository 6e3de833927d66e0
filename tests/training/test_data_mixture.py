"""Any position of a mixture can be computed; weights are kept, and every pass meets every sample once."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from training.data.mixture import NAMED_MIXTURES, Mixture, MixtureConfig, _key, permuted
from training.data.sources import SourceConfig
from wamdiff2_core.errors import UserError


def source(folder: Path, name: str, count: int, weight: float = 1.0, limit: int = 0) -> SourceConfig:
    file = folder / f"{name}.jsonl"
    with file.open("w") as out:
        for number in range(count):
            turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": f"{name} {number}"}]
            out.write(json.dumps({"id": number, "conversations": turns}) + "\n")
    return SourceConfig(name, str(file), weight, limit)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 17, 256, 257, 1000])
def test_every_key_gives_a_permutation(size: int) -> None:
    for epoch in range(3):
        key = _key(0, "a", epoch)
        assert sorted(permuted(k, size, key) for k in range(size)) == list(range(size))


def test_passes_differ_and_look_random() -> None:
    size = 1000
    orders = [[permuted(k, size, _key(seed, "a", epoch)) for k in range(size)] for seed in (0, 1) for epoch in (0, 1)]
    for number, order in enumerate(orders):
        fixed = sum(value == place for place, value in enumerate(order))
        neighbours = sum(abs(a - b) == 1 for a, b in pairwise(order))
        assert fixed < 12, number  # 1 is expected
        assert neighbours < 15, number  # 2 are expected
        for other in orders[:number]:
            assert sum(a == b for a, b in zip(order, other, strict=True)) < 12


def test_places_of_a_sample_over_many_passes_are_spread_evenly() -> None:
    size, passes = 10, 3000
    places = Counter(permuted(3, size, _key(7, "a", epoch)) for epoch in range(passes))
    expected = passes / size
    assert sum((places[k] - expected) ** 2 / expected for k in range(size)) < 30  # 99.96 % of chi-squared with 9


def test_weights_are_shares_of_the_draws_at_every_moment(tmp_path: Path) -> None:
    weights = {"a": 1.0, "b": 2.5, "c": 0.05, "d": 6.45}
    mixture = Mixture([source(tmp_path, name, 5, weight) for name, weight in weights.items()])
    drawn: Counter[str] = Counter()
    for position in range(3000):
        drawn[mixture.row(position, 0)[0]] += 1
        for name, weight in weights.items():
            assert abs(drawn[name] - (position + 1) * weight / 10) < 3


def test_natural_weights_meet_every_sample_exactly_once_in_a_pass(tmp_path: Path) -> None:
    sizes = {"a": 7, "b": 41, "c": 13}
    mixture = Mixture([source(tmp_path, name, size, weight=size) for name, size in sizes.items()])
    for start in (0, 61, 122):
        answers = [mixture.row(start + k, 3)[1].answer for k in range(len(mixture))]
        assert len(set(answers)) == len(answers) == 61


def test_a_position_far_away_costs_no_more_than_the_first(tmp_path: Path) -> None:
    mixture = Mixture([source(tmp_path, "a", 50), source(tmp_path, "b", 3, 0.1)])
    near = [mixture.draw(10**15 + k, 5) for k in range(20)]
    tracemalloc.start()
    assert [mixture.draw(10**15 + k, 5) for k in range(20)] == near
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    assert mixture.turn(10**15)[1] == round(10**15 * 10 / 11)


def test_turns_count_up_without_a_gap(tmp_path: Path) -> None:
    mixture = Mixture([source(tmp_path, "a", 4, 3), source(tmp_path, "b", 4, 5), source(tmp_path, "c", 4, 9)])
    seen: Counter[int] = Counter()
    for position in range(500):
        number, before = mixture.turn(position)
        assert before == seen[number]
        seen[number] += 1


def test_the_seed_changes_samples_but_not_whose_turn_it_is(tmp_path: Path) -> None:
    mixture = Mixture([source(tmp_path, "a", 40), source(tmp_path, "b", 40)])
    one, other = ([mixture.draw(k, seed) for k in range(40)] for seed in (0, 1))
    assert [number for number, _ in one] == [number for number, _ in other]
    assert one != other


def test_weight_0_is_left_out_and_need_not_exist(tmp_path: Path) -> None:
    mixture = Mixture([source(tmp_path, "a", 2), SourceConfig("b", str(tmp_path / "none.jsonl"), 0)])
    assert {mixture.row(k, 0)[0] for k in range(10)} == {"a"}


def test_the_limit_takes_the_first_samples(tmp_path: Path) -> None:
    mixture = Mixture([source(tmp_path, "a", 20, limit=3)])
    assert {mixture.row(k, 0)[1].answer for k in range(30)} == {"a 0", "a 1", "a 2"}


def test_slices_of_one_file_are_sources_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    lines = [{"id": k, "conversations": turns, "situation": "red" if k == 7 else "free"} for k in range(20)]
    file.write_text("\n".join(map(json.dumps, lines)))
    config = tmp_path / "mix.yaml"
    config.write_text(
        f"sources:\n- {{name: red, file: {file}, weight: 0.5, where: {{situation: [red]}}}}\n"
        f"- {{name: others, file: {file}, weight: 0.5, where: {{situation: [free, turn]}}}}\n"
    )
    mixture = Mixture(MixtureConfig.load(config).sources)
    assert [len(index) for index in mixture.indices] == [1, 19]
    drawn = Counter(mixture.row(k, 0)[1].extra["situation"] for k in range(40))
    assert drawn == {"red": 20, "free": 20}
    config.write_text(f"sources:\n- {{name: fog, file: {file}, where: {{situation: [fog, rain]}}}}\n")
    with pytest.raises(UserError, match=r"fog: .*expected at least one sample, got none with situation fog or rain"):
        Mixture(MixtureConfig.load(config).sources)


@pytest.mark.parametrize(
    ("sources", "problem"),
    [
        ([{"name": "a", "file": "x.jsonl", "weight": -1}], r"sources.0.weight: expected a finite number >= 0, got -1"),
        ([{"name": "a", "file": "x.jsonl", "weigth": 1}], "did you mean 'weight'"),
        ([{"name": "a", "file": "x", "where": {"situation": "red"}}], r"sources.0.where.situation: expected a valid"),
        ([{"name": "a", "file": "x"}, {"name": "a", "file": "y"}], "a name for each source"),
    ],
)
def test_wrong_configurations_are_refused_by_field(tmp_path: Path, sources: list[dict], problem: str) -> None:
    file = tmp_path / "mix.yaml"
    file.write_text(json.dumps({"sources": sources}))
    with pytest.raises(UserError, match=problem):
        MixtureConfig.load(file)


def test_sources_that_give_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least one with a weight above 0"):
        Mixture([SourceConfig("a", "none.jsonl", 0)])
    with pytest.raises(UserError, match=r"a: .*at least one sample"):
        Mixture([source(tmp_path, "a", 0)])


def test_weights_are_overridden_by_name(tmp_path: Path) -> None:
    config = MixtureConfig((source(tmp_path, "a", 1), source(tmp_path, "b", 1)))
    changed = config.with_weights({"b": 3.0})
    assert Mixture(changed.sources).shares == (0.25, 0.75)
    with pytest.raises(UserError, match="known: a, b"):
        config.with_weights({"A": 3.0})


def test_named_mixtures_have_the_published_sizes() -> None:
    unified = MixtureConfig.load("unified")
    weights = {entry.name: entry.weight for entry in unified.sources}
    assert weights == {"navsim": 103288, "drivelm": 346978, "lingoqa": 413829, "coco": 117266}
    assert sum(weights.values()) == 981361
    for file in NAMED_MIXTURES.glob("*.yaml"):
        assert MixtureConfig.load(file.stem).sources
    with pytest.raises(UserError, match="did you mean 'unified'"):
        MixtureConfig.load("unifed")
