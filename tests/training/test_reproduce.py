"""Tables of ablations: every one runs at debug scale, stages are trained once, and verdicts follow from the figures."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from training.checkpoints import checkpoints, step_of
from training.reproduce.command import reproduce
from training.reproduce.measure import paired_by_waypoint
from training.reproduce.recipes import CHAIN, RECIPES, Workshop, needed
from training.reproduce.runs import StoppedError, _train, is_finished, train_stages
from training.reproduce.tables import TABLES
from training.reproduce.verdicts import orderings, statements
from wamdiff2_core.cli.main import as_command
from wamdiff2_core.errors import UserError

pytestmark = pytest.mark.timeout(600)  # thirteen stages, on a machine that may be busy

SMALL = ["--scale", "debug", "--seeds", "1", "--steps", "2", "--limit", "3"]


def run(*arguments: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        as_command(reproduce, "reproduce")(args=list(arguments), prog_name="reproduce", standalone_mode=False)
    return printed.getvalue()


def table(out: Path, name: str) -> dict[str, Any]:
    printed = run(name, *SMALL, "--out", str(out))
    assert printed.strip() == (out / name / "table.md").read_text().strip()
    with Image.open(out / name / "plot.png") as plot:
        assert min(plot.size) > 300
    result: dict[str, Any] = json.loads((out / name / "table.json").read_text())
    return result


def states(out: Path) -> dict[str, int]:
    return {str(file): file.stat().st_mtime_ns for file in (out / "stages").rglob("model.safetensors")}


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("tables")
    return out, table(out, "adaptation")


@pytest.mark.slow
def test_a_table_has_our_figures_the_papers_and_verdicts(adapted: tuple[Path, dict[str, Any]]) -> None:
    out, result = adapted
    assert [row["paper"].get("l2_all_m") for row in result["rows"]] == [88.1, None, 84.1, 87.7, 88.3]
    for row in result["rows"]:
        assert row["figures"]["l2_all_m"]["mean"] > 0
        assert len(row["figures"]["l2_all_m"]["seeds"]) == 1
    assert len(result["orderings"]) == 6
    assert result["samples"] == 3
    folders = {folder.name for folder in (out / "stages" / "seed-0").iterdir()}
    assert folders == {recipe.name for recipe in needed(row.stage for row in TABLES["adaptation"].rows)}


@pytest.mark.slow
def test_the_same_command_again_trains_and_measures_nothing(
    adapted: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, result = adapted
    before = states(out)
    monkeypatch.setattr("training.evaluate.decode_samples", lambda *_, **__: pytest.fail("measured again"))
    assert table(out, "adaptation") == result
    assert states(out) == before


@pytest.mark.slow
def test_a_given_parent_is_what_stages_start_from(adapted: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    parent = adapted[0] / "stages" / "seed-0" / "ar"
    given = ["steps", *SMALL, "--out", str(tmp_path), "--parent", str(parent)]
    assert not any(line.startswith("ar:") for line in run(*given, "--dry-run").splitlines())
    assert str(parent) in run(*given)
    assert {folder.name for folder in (tmp_path / "stages" / "seed-0").iterdir()} == {"b4", "chain_b8", "chain_b16",
                                                                                     "chain_b32"}
    # One seed of the same stage from the same weights.
    ours, theirs = (load_file(checkpoints(out / "stages" / "seed-0" / "b4")[-1] / "model.safetensors")
                    for out in (tmp_path, adapted[0]))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_other_tables_take_the_stages_that_are_there(adapted: tuple[Path, dict[str, Any]]) -> None:
    out, _ = adapted
    before = states(out)
    results = {name: table(out, name) for name in ("horizon", "steps", "speed", "overlap")}
    after = states(out)
    assert before.items() <= after.items()
    assert {Path(file).parents[1].name for file in after.keys() - before.keys()} == {
        "cross_scale_ar_teacher"
    }
    assert [row["decode"]["denoising_steps"] for row in results["steps"]["rows"]] == [1, 2, 4, 8, 16, 32]
    assert all(row["figures"]["ms"]["mean"] > 0 for row in results["speed"]["rows"])
    for row in results["overlap"]["rows"]:
        assert 0 <= row["figures"]["overlap_1"]["mean"] <= 100
        assert row["figures"]["overlap_20"]["mean"] > 0


@pytest.mark.slow
def test_a_folder_of_other_settings_is_refused(adapted: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(UserError, match=r"run\.steps 2 \(now 3\)"):
        run("horizon", "--scale", "debug", "--seeds", "1", "--steps", "3", "--out", str(adapted[0]))


@pytest.mark.slow
def test_a_stopped_stage_goes_on_to_its_last_step(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, "debug", steps=2)
    config = workshop.configure(RECIPES["ar"], 0)
    (tmp_path / "stages" / "seed-0" / "ar").mkdir(parents=True)
    with pytest.raises(StoppedError, match="step 1 of 2"):
        _train(replace(config, run=replace(config.run, stop_at=1)), None)
    assert not is_finished(Path(config.out), 2)
    train_stages(workshop, [RECIPES["ar"]], [0])
    assert is_finished(Path(config.out), 2)
    assert [step_of(folder) for folder in checkpoints(Path(config.out))] == [2]


def test_a_dry_run_counts_samples_and_trains_nothing(tmp_path: Path) -> None:
    printed = run("teacher", "--scale", "nano", "--seeds", "2", "--steps", "300", "--out", str(tmp_path), "--dry-run")
    assert "chain_b8: block_distillation from b4, taught by b4, 50 steps, 1,600 samples a seed" in printed
    assert "cross_scale_ar_teacher: cross_scale from chain_b32, taught by large_ar, 100 steps" in printed
    assert printed.splitlines()[-1].startswith("12 stages x 2 seeds: 108,800 samples")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scale", ["debug", "nano"])
def test_direct_adaptation_has_as_many_steps_as_the_chain_and_the_same_masks(scale: Any, tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, scale)
    chain = [workshop.configure(RECIPES[name], 0) for name in ("b4", "chain_b8", "chain_b16", "chain_b32")]
    direct, longer = (workshop.configure(RECIPES[name], 0) for name in ("direct_b32", "ar_long"))
    assert direct.run.steps == longer.run.steps == sum(config.run.steps for config in chain)
    assert direct.diffusion == chain[-1].diffusion
    assert [config.diffusion.block_size for config in chain] == [int(name[1:]) for name in CHAIN]


@pytest.mark.parametrize(("given", "taken"), [(None, "fp32"), ("bf16", "bf16")])
def test_stages_are_trained_in_the_precision_that_is_asked_for(given: Any, taken: str, tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, "nano", precision=given)
    assert {workshop.configure(recipe, 0).run.precision for recipe in RECIPES.values()} == {taken}


def test_stages_come_after_what_they_build_on() -> None:
    for name in TABLES:
        seen: set[str | None] = {None}
        for recipe in needed(row.stage for row in TABLES[name].rows):
            assert {recipe.init, recipe.teacher} <= seen
            seen.add(recipe.name)


def test_orderings_agree_where_every_seed_has_the_papers_order() -> None:
    of = TABLES["divergence"]
    figures = {"forward KL": [0.3, 0.3], "reverse KL": [0.2, 0.4], "JSD": [0.1, 0.2]}
    verdicts = {(item["better"], item["worse"]): (item["verdict"], item["agreeing"])
                for item in orderings(of, {label: {"l2_all_m": found} for label, found in figures.items()})}
    assert verdicts == {
        ("forward KL", "reverse KL"): ("open", 1), ("JSD", "forward KL"): ("agrees", 2),
        ("JSD", "reverse KL"): ("agrees", 2),
    }
    worse = orderings(TABLES["teacher"], {"AR teacher": {"l2_all_m": [0.1]}, "diffusion teacher": {"l2_all_m": [0.2]}})
    assert worse[0]["verdict"] == "disagrees"
    equal = {row.label: {"l2_all_m": [0.1]} for row in TABLES["teacher"].rows}
    assert orderings(TABLES["teacher"], equal)[0]["verdict"] == "open"


def test_a_lower_figure_of_the_paper_is_better_where_it_is_a_distance() -> None:
    values = {"AR": {"l2_paired_m": [0.5]}, "B32": {"l2_paired_m": [0.4]}, "AR, trained on as long": {}}
    (item,) = orderings(TABLES["horizon"], values)
    assert (item["better"], item["verdict"]) == ("B32", "agrees")


def test_saturation_is_where_more_steps_gain_less_than_a_twentieth() -> None:
    def verdict(*distances: float) -> tuple[str, list[int]]:
        values = {str(1 << k): {"l2_all_m": [distance]} for k, distance in enumerate(distances)}
        (found,) = statements(TABLES["steps"], values)
        return found["verdict"], found["saturates_at"]

    assert verdict(3.0, 2.0, 1.5, 1.03, 1.01, 1.0) == ("agrees", [8])
    assert verdict(1.0, 2.0, 1.0, 1.0, 1.0, 1.0) == ("disagrees", [4])


def test_the_gain_is_compared_at_first_and_last_waypoint() -> None:
    values = {"AR": {"waypoint_01": [0.10], "waypoint_06": [0.9]}, "B32": {"waypoint_01": [0.09], "waypoint_06": [0.8]}}
    assert statements(TABLES["horizon"], values)[0]["verdict"] == "agrees"
    assert statements(TABLES["horizon"], {"AR": {"x": [None]}, "B32": {}})[0]["verdict"] == "open"


def test_waypoints_are_compared_on_samples_that_every_row_can_read() -> None:
    one = {"l2_m": [[1.0, 2.0], [9.0, 9.0], [3.0, 4.0]]}
    other = {"l2_m": [[0.0, 0.0], None, [2.0, 2.0]]}
    assert paired_by_waypoint([one, other]) == [[2.0, 3.0], [1.0, 1.0]]
    assert paired_by_waypoint([{"l2_m": [None]}, {"l2_m": [[1.0, 1.0]]}]) == [[], []]


@pytest.mark.parametrize(("arguments", "expected"), [
    (["adaption"], "did you mean 'adaptation'"),
    (["steps", "--scale", "debug", "--validation", "none.jsonl"], "no such file"),
    (["steps", "--scale", "debug", "--data", "none.jsonl"], "data.train"),
    (["steps", "--parent", "checkpoints/wamdiff2-nano"], "--parent: expected the folder of an autoregressive model"),
    (["teacher", "--large-parent", "checkpoints"], "--large-parent: expected .*, without wamdiff2.json"),
])
def test_wrong_use_is_told(arguments: list[str], expected: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=expected):
        run(*arguments, "--out", str(tmp_path))
