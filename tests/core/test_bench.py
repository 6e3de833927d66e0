"""The commands of `wamdiff2 bench`: what they write, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.core.bench_doubles import RATES
from wamdiff2_core.bench import grammar, ladder, parts
from wamdiff2_core.bench.command import bench
from wamdiff2_core.bench.machine import Rates
from wamdiff2_core.cli.main import as_command, exit_code_of, main
from wamdiff2_core.decode.grammar import detection_language, waypoint_language
from wamdiff2_core.model.checkpoint import load_chat_codec, read_model_config
from wamdiff2_core.tasks.planning import format_waypoints, parse_waypoints

ROW_KEYS = {
    "name", "block_size", "ms_per_answer_median", "ms_per_answer_p95", "ms_per_answer_iqr", "ms_per_token",
    "forwards_per_answer", "tokens_per_forward", "ms_per_forward", "fraction_of_floor", "first_ms", "answers",
    "denoising_steps",
}
MACHINE_KEYS = {
    "cpu", "vector_extensions", "cores", "threads", "torch_version", "device", "memory_gb_per_s", "matrix_gflop_per_s",
}
WRONG = {
    "unknown shape": (["decode", "--shape", "tiny"], "shape: expected one of tiny-qwen-vocab, 2b, got tiny"),
    "checkpoint and shape": (["decode", "DIR", "--shape", "2b"], "shape: expected a checkpoint or a shape"),
    "image of a shape": (["prefill", "--shape", "2b", "--image", "x.png"], "image: expected nothing beside --shape"),
    "untrained size": (["decode", "DIR", "--block-sizes", "8,32"], "block_sizes: expected among [32] (trained), got 8"),
    "size in words": (["decode", "DIR", "--block-sizes", "four"], "block_sizes: expected integers"),
    "no such folder": (["decode", "none"], "checkpoint: expected a checkpoint folder, got none"),
    "no such folder to plan": (["plan", "none"], "checkpoint: expected a checkpoint folder, got none"),
    "no such parent": (["decode", "DIR", "--parent", "none"], "parent: expected a checkpoint folder, got none"),
    "parent of blocks": (["decode", "DIR", "--parent", "DIR"], "parent: expected autoregressive weights"),
    "unknown row": (["decode", "DIR", "--rows", "hf_ra"], "rows: expected one of hf_ar, own_ar"),
    "steps in words": (["decode", "DIR", "--denoising-steps", "few"], "denoising_steps: expected integers"),
    "more threads than any machine has": (
        ["decode", "DIR", "--threads", "99999"], "threads: expected an integer from 1 to 1024, got 99999"
    ),
    "commas for block sizes": (["decode", "DIR", "--block-sizes", ","], "block_sizes: expected integers >= 1"),
    "commas for rows": (["decode", "DIR", "--rows", " , "], "rows: expected names, such as own_ar,block"),
    "a huge block size": (["decode", "DIR", "--block-sizes", "9" * 30], "block_sizes: expected integers >= 1"),
    "an infinite temperature": (["plan", "DIR", "--temperature", "inf"], "temperature: expected a finite number"),
    "no number for a temperature": (["plan", "DIR", "--temperature", "nan"], "temperature: expected a finite number"),
    "commas for deadlines": (["deadline", "DIR", "--data", "x", "--deadlines", ","], "deadlines: expected integers"),
    "no deadlines": (["deadline", "DIR", "--data", "x", "--deadlines", ""], "deadlines: expected integers"),
    "near without end": (["deadline", "DIR", "--data", "x", "--near", "inf"], "near: expected a finite number"),
    "no rounds": (["decode", "DIR", "--rounds", "0"], "rounds: expected an integer >= 1, got 0"),
    "picture of another kind": (["decode", "DIR", "--plot", "x.jpg"], "plot: expected a file that ends in .png"),
    "folder for a file": (["plan", "DIR", "--json", "DIR"], "json: expected a file"),
    "unknown dtype": (["plan", "DIR", "--dtype", "int8"], "dtype: expected one of auto"),
    "no lengths": (["prefill", "DIR", "--lengths", ","], "lengths: expected integers"),
    "too long": (["prefill", "DIR", "--lengths", "5000"], "lengths: expected prompts of at most 4096 tokens"),
    "picture of another size": (["plan", "DIR", "--image", "PICTURE"], "image: expected 256 x 128 pixels"),
    "autoregressive blocks": (["decode", "DIR", "--strategy", "autoregressive"], "strategy: expected a strategy of"),
    "no answers": (["grammar", "DIR", "--rounds", "0"], "rounds: expected an integer >= 1, got 0"),
    "no such folder of a grammar": (["grammar", "none"], "checkpoint: expected a checkpoint folder, got none"),
    "no temperature": (["plan", "DIR", "--temperature", "0"], "temperature: expected a finite number above 0"),
    "one file for two": (["decode", "DIR", "--json", "x.png", "--plot", "./x.png"], "plot: expected another file than"),
    "samples of nothing": (["decode", "DIR", "--samples", "2"], "samples: expected --data beside it"),
    "picture beside data": (
        ["decode", "DIR", "--data", "x.jsonl", "--image", "PICTURE"], "image: expected none with --data"
    ),
    "a block beyond every answer": (["grammar", "DIR", "--block-sizes", "99999999"], "block_sizes: expected at most"),
    "no threads": (["grammar", "DIR", "--threads", "0"], "threads: expected an integer from 1 to 1024, got 0"),
    "a device without memory": (["plan", "DIR", "--device", "meta"], "device: expected a device of this machine"),
    "rounds in words": (["plan", "DIR", "--rounds", "few"], "--rounds: expected an integer, got few"),
    "no such data": (["decode", "DIR", "--data", "none.jsonl"], "none.jsonl"),
}


@pytest.fixture
def quick(monkeypatch):
    """No measurement of the machine."""
    monkeypatch.setattr(Rates, "measure", classmethod(lambda cls, device, dtype: RATES))


def run(*arguments) -> int:
    command = as_command(bench, "bench")
    return exit_code_of(lambda: command([str(word) for word in arguments], standalone_mode=False))


def test_decode_writes_table_object_and_picture(quick, nano_folder, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "out" / "bench.json", tmp_path / "bench.png"
    assert run("decode", nano_folder, "--rounds", 1, "--new-tokens", 6, "--any-block-size", "--block-sizes", "32,16",
               "--json", file, "--plot", picture) == 0
    result = json.loads(file.read_text())
    assert set(result["machine"]) == MACHINE_KEYS
    assert all(set(row) == ROW_KEYS for row in result["rows"])
    assert [(row["name"], row["block_size"]) for row in result["rows"]] == [
        ("load", None), ("first_answer", None), ("hf_ar", None), ("own_ar", None),
        *((name, size) for size in (16, 32) for name in ladder.BLOCK_ROWS),
    ]
    for row in result["rows"][2:]:
        assert all(row[key] > 0 for key in ROW_KEYS - {"name", "block_size", "denoising_steps", "ms_per_answer_iqr"})
        assert row["ms_per_token"] == pytest.approx(row["ms_per_answer_median"] / 6)
    assert {name: list(values) for name, values in result["ratios"].items()} == {
        "over_hf_ar": ["16", "32"], "over_naive_block": ["16", "32"], "over_block_eager": ["16", "32"],
        "naive_block_over_hf_forward": ["16", "32"],
    }
    times = {(row["name"], row["block_size"]): row["ms_per_answer_median"] for row in result["rows"]}
    assert result["ratios"]["over_hf_ar"]["32"] == pytest.approx(times["hf_ar", None] / times["block", 32])
    assert result["ratios"]["over_naive_block"]["16"] == pytest.approx(times["naive_block", 16] / times["block", 16])
    assert result["peak_memory_gib"] > 0.1
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("hf_ar", "naive_block", "over_hf_ar", "peak memory", "GB/s"))


def test_decode_takes_prompts_of_a_file_and_chosen_rows(quick, nano_folder, tmp_path):
    data = Path(__file__).resolve().parents[2] / "training" / "configs" / "debug" / "data" / "samples.jsonl"
    assert run("decode", nano_folder, "--rounds", 1, "--data", data, "--samples", 2, "--rows", "block",
               "--json", tmp_path / "bench.json") == 0
    result = json.loads((tmp_path / "bench.json").read_text())
    assert [row["name"] for row in result["rows"]] == ["load", "first_answer", "block"]
    assert len(result["answer_tokens"]) == 2
    assert result["rows"][2]["answers"] == 2
    assert not any(result["ratios"].values())


def other_grammar(folder):
    """What `bench plan` measures beside the grammar of the folder's record."""
    return {"off": "task", "task": "off"}[load_chat_codec(folder)[1].decode.grammar]


def test_prefill_and_plan_write_their_parts(quick, nano_folder, tmp_path):
    file = tmp_path / "bench.json"
    assert run("prefill", nano_folder, "--rounds", 1, "--lengths", "16,32", "--json", file) == 0
    result = json.loads(file.read_text())
    rows = result["rows"]
    assert [row["name"] for row in rows] == ["vision", *["prefill", "hf_prefill", "second_question"] * 2]
    assert rows[4]["prompt_tokens"] - rows[1]["prompt_tokens"] == 16
    assert rows[1]["prompt_tokens"] > 16 + 32  # the picture has 32 tokens
    for ratio in ("over_hf_prefill", "second_over_prefill"):
        assert list(result["ratios"][ratio]) == [str(rows[1]["prompt_tokens"]), str(rows[4]["prompt_tokens"])]
    assert run("plan", nano_folder, "--rounds", 1, "--json", file) == 0
    every = json.loads(file.read_text())["rows"]
    rows = {row["name"]: row["ms_median"] for row in every}
    other = other_grammar(nano_folder)
    assert list(rows) == ["load", "warm_up", "first_plan", "plan", "prefill", "decode", "other", f"grammar_{other}",
                          "temperature"]
    assert rows["plan"] == pytest.approx(rows["prefill"] + rows["decode"] + rows["other"])
    assert min(rows.values()) > 0
    assert [row["calls"] for row in every] == [1] * 9
    decoded = {row["name"]: row["forwards_per_answer"] for row in every if row["forwards_per_answer"] is not None}
    assert list(decoded) == ["plan", f"grammar_{other}", "temperature"]
    assert min(decoded.values()) >= 2


@pytest.fixture
def own_threads():
    """Threads of torch are as before, whatever a command has set."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("own_threads")
def test_grammar_writes_a_row_for_each_language_and_size(nano_folder, tmp_path, capsys):
    file = tmp_path / "bench.json"
    assert run("grammar", nano_folder, "--rounds", 1, "--block-sizes", "32,16", "--json", file) == 0
    result = json.loads(file.read_text())
    rows = result["rows"]
    assert [(row["name"], row["block_size"]) for row in rows] == [
        ("waypoints", 16), ("detections", 16), ("waypoints", 32), ("detections", 32),
    ]
    assert result["machine"]["threads"] == 1
    codec, record = load_chat_codec(nano_folder)
    for name, language in (("waypoints", waypoint_language(codec, record.planning)),
                           ("detections", detection_language(codec))):
        for row in rows:
            if row["name"] == name:
                assert (row["states"], row["alphabet"]) == (len(language.shortest), len(language.alphabet))
                assert 0 < row["ms_median"] <= row["ms_p95"]
    assert waypoint_language(codec, record.planning).shortest[0] > 32
    blocks = rows[2]["calls"] / grammar.STEPS
    assert blocks in range(2, record.decode.max_new_tokens // 32 + 1)  # no plan is as short as one
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("waypoints", "detections", "p95"))


def test_steps_of_a_grammar_are_those_of_an_answer_that_its_task_reads(nano_folder):
    codec, record = load_chat_codec(nano_folder)
    task, vocabulary = record.planning, read_model_config(nano_folder).get_text_config().vocab_size
    texts = set()
    for seed in range(3):
        language, device = waypoint_language(codec, task), torch.device("cpu")
        times, ids = grammar.made_up_answer(language, vocabulary, 32, 64, seed, device)
        assert len(times) == grammar.STEPS * len(ids) / 32
        text = codec.decode(ids[: ids.index(codec.eos_token_id)])
        assert format_waypoints(parse_waypoints(text, task), task) == text
        texts.add(text)
    assert len(texts) == 3
    told = []
    languages = {"waypoints": language}
    grammar.measure_grammar(languages, vocabulary, [32], 64, 1, torch.device("cpu"), told.append)
    assert told[-1] == grammar.grammar_calls(languages, [32], 1) == 2


def test_plan_rows_take_turns_on_other_pictures_each_in_its_own_decoding(nano_folder, monkeypatch):
    from wamdiff2_core.planner import CheckpointPlanner

    seen, planned = [], CheckpointPlanner.plan

    def plan(self, observation):
        seen.append((self.decode.grammar, self.decode.temperature, observation.frames[0].rgb.tobytes()))
        return planned(self, observation)

    monkeypatch.setattr(CheckpointPlanner, "plan", plan)
    told = []
    _, dtype = parts.measure_plan(nano_folder, 2, show=told.append, temperature=0.5)
    assert dtype == torch.float32
    other = other_grammar(nano_folder)
    own = {"off": "task", "task": "off"}[other]
    kinds = [(own, 0.0), (other, 0.0), ("off", 0.5)]
    measured = seen[-6:]
    assert [kind[:2] for kind in measured] == [*kinds, *kinds[1:], kinds[0]]
    assert [kind[:2] for kind in seen[3:-6]] == [kinds[0]] * 2 + [kinds[1]] * 2 + [kinds[2]] * 2  # warm-up of each
    pictures = [kind[2] for kind in measured]
    assert len(set(pictures[:3])) == len(set(pictures[3:])) == 1
    assert len({pictures[0], pictures[3], seen[2][2]}) == 3
    assert told[-1] == parts.plan_calls(2) == 6


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_told_in_one_line(case, quick, nano_folder, tmp_path, capsys, monkeypatch):
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (64, 64)).save(tmp_path / "small.png")
    arguments, expected = WRONG[case]
    named = {"DIR": nano_folder, "PICTURE": tmp_path / "small.png"}
    assert run(*(named.get(word, word) for word in arguments)) == 2
    error = capsys.readouterr().err
    assert expected in " ".join(error.split())


@pytest.mark.parametrize(("arguments", "expected"), [
    (["decode", "DIR", "--data", "none.jsonl"], "none.jsonl: expected"),
    (["decode", "DIR", "--image", "none.png"], "image: expected an image file"),
    (["prefill", "DIR", "--image", "."], "image: expected an image file"),
    (["plan", "DIR", "--image", "none.png"], "image: expected an image file"),
    (["deadline", "DIR", "--data", "none.jsonl"], "none.jsonl: expected"),
])
def test_files_are_looked_at_before_the_weights_are_read(
    arguments, expected, nano_folder, tmp_path, capsys, monkeypatch
):
    from wamdiff2_core.bench import subjects
    from wamdiff2_core.model import checkpoint

    monkeypatch.chdir(tmp_path)
    for module in (subjects, parts, checkpoint):
        monkeypatch.setattr(module, "load_checkpoint", lambda *args, **kwargs: pytest.fail("loaded"))
    assert run(*(nano_folder if word == "DIR" else word for word in arguments)) == 2
    assert expected in " ".join(capsys.readouterr().err.split())


def test_an_unknown_measurement_gets_a_suggestion(capsys):
    assert main(["bench", "decod"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert error == "error: command: expected a wamdiff2 bench command, got decod; did you mean 'decode'?"


def test_the_command_is_registered():
    import tomllib

    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["wamdiff2.commands"]["bench"] == "wamdiff2_core.bench.command:bench"
    assert project["project"]["entry-points"]["wamdiff2.bench"] == {"node": "wamdiff2_ros.command:bench_node"}
    assert set(as_command(bench, "bench").commands) == {"decode", "prefill", "plan", "deadline", "grammar"}
