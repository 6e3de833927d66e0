"""`wamdiff2 predict` on a random checkpoint with Qwen's real vocabulary, and on real camera frames where they are."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from tests.core.qwen_vocabulary import qwen_tokenizer_fast, write_random_qwen
from wamdiff2_core.cli.main import main
from wamdiff2_core.config import DecodeConfig, ImagePolicy
from wamdiff2_core.journal import Journal, read_journal
from wamdiff2_core.serving_record import ServingRecord
from wamdiff2_core.tasks.planning import parse_waypoints, planning_prompt
from wamdiff2_core.types import CameraFrame, EgoState, NavCommand, Navigation, Observation

QUICK = ["--max_new_tokens", "8", "--block_size", "4", "--denoising_steps", "2", "--max_pixels", "32768"]
KEYS = ["id", "datasource", "image", "question", "prediction", "ground_truth"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_random_qwen(tmp_path_factory.mktemp("qwen"))


@pytest.fixture(scope="module", autouse=True)
def loaded_once():
    """Read each checkpoint once for all runs within this process; Qwen's tokenizer alone takes seconds."""
    import wamdiff2_core.model.checkpoint as checkpoint

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "load_checkpoint", functools.cache(checkpoint.load_checkpoint))
        yield


@pytest.fixture(autouse=True)
def single_process(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NUM_DEVICES", "NUM_GPUS"):
        monkeypatch.delenv(name, raising=False)


def sample(number, image="frame.png", question="<image> What is ahead of us, in {}?", **extra):
    turns = [{"from": "human", "value": question.format(number)}, {"from": "gpt", "value": f"truth {number}"}]
    return {"id": f"s{number}", "image": image, "conversations": turns} | extra


@pytest.fixture
def folder(tmp_path):
    """A folder with one small camera frame."""
    pixels = np.random.default_rng(0).integers(0, 255, (96, 160, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "frame.png")
    return tmp_path


def write(folder, samples, name="in.json"):
    path = folder / name
    if path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(item) for item in samples) + "\n\n")
    else:
        path.write_text(json.dumps(samples))
    return path


def arguments(checkpoint, source, target, *extra):
    return ["predict", "--model_id", str(checkpoint), "--input_file", str(source), "--output_file", str(target), *extra]


def run(checkpoint, source, target, *extra):
    return main(arguments(checkpoint, source, target, *QUICK, *extra))


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir() if "journal" in path.name or "partial" in path.name)


def test_rows_have_upstreams_keys_in_input_order(checkpoint, folder):
    samples = [sample(10, datasource="mine"), sample(2), sample(1)]
    del samples[2]["id"]
    source = write(folder, samples)
    assert run(checkpoint, source, folder / "out" / "answers.json") == 0
    rows = json.loads((folder / "out" / "answers.json").read_text())
    assert [list(row) for row in rows] == [KEYS] * 3
    assert [row["id"] for row in rows] == ["s10", "s2", 2]
    assert [row["datasource"] for row in rows] == ["mine", "navsim", "navsim"]
    assert rows[0]["image"] == "frame.png"
    assert rows[0]["question"] == "<image> What is ahead of us, in 10?"
    assert [row["ground_truth"] for row in rows] == ["truth 10", "truth 2", "truth 1"]
    assert all(row["prediction"] for row in rows)
    assert (folder / "out" / "answers.json").read_text().startswith('[\n    {\n        "id"')
    assert leftovers(folder / "out") == []


def test_real_camera_frames_in_one_and_in_several_images(checkpoint, shared_data, tmp_path):
    frames = sorted(str(path) for path in (shared_data / "frames").iterdir())
    several = sample(1, frames[:3], "Front <image> left <image> back <image>: and now?")
    source = write(tmp_path, [sample(0, frames[0]), several], "in.jsonl")
    assert run(checkpoint, source, tmp_path / "out.jsonl") == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert rows[1]["image"] == frames[:3]
    assert all(row["prediction"] for row in rows)


def test_the_shipped_checkpoint_answers_a_planning_prompt_on_pictures_it_has_never_seen_the_like_of(
    nano_folder, shared_data, tmp_path
):
    record = ServingRecord.load(nano_folder)
    frame = CameraFrame(np.zeros((128, 256, 3), np.uint8), 0)
    ego = EgoState(velocity_mps=np.array([6.0, 0.0]))
    straight_on = Navigation(np.array([[10.0, 0.0], [20.0, 0.0]]), NavCommand.FOLLOW)
    prompt = planning_prompt(Observation((frame,), ego, straight_on), record.planning)
    frames = sorted(str(path) for path in (shared_data / "frames").iterdir())
    source = write(tmp_path, [sample(number, image, prompt) for number, image in enumerate(frames)])
    assert main(arguments(nano_folder, source, tmp_path / "out.json")) == 0
    rows = json.loads((tmp_path / "out.json").read_text())
    assert [row["id"] for row in rows] == [f"s{number}" for number in range(len(frames))]
    for row in rows:
        parse_waypoints(row["prediction"], record.planning)


def test_bad_samples_become_error_rows_and_exit_code_1(checkpoint, folder):
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnot a picture")
    (folder / "cut.png").write_bytes((folder / "frame.png").read_bytes()[:300])
    bad = {
        "missing image": sample(0, "nowhere.png"),
        "not a picture": sample(1, "broken.png"),
        "torn picture": sample(2, "cut.png"),
        "too few images": sample(3, [], "<image> and <image>"),
        "too many images": sample(4, ["frame.png", "frame.png"], "one <image>"),
        "no placeholder": sample(5, "frame.png", "no mark at all"),
        "empty conversation": sample(6) | {"conversations": []},
        "no human": sample(7) | {"conversations": [{"from": "gpt", "value": "alone"}]},
        "odd role": sample(8) | {"conversations": [{"from": "robot", "value": "x"}]},
        "no text": sample(9) | {"conversations": [{"from": "human", "value": None}]},
        "no conversation": {"id": "s10"},
        "not an object": 11,
        "odd image": sample(12, {"path": "frame.png"}),
        "odd limits": sample(13, min_pixels="many"),
        "crossed limits": sample(14, min_pixels=50000, max_pixels=40000),
    }
    source = write(folder, [sample(100), *bad.values(), sample(101)])
    assert run(checkpoint, source, folder / "out.json") == 1
    rows = json.loads((folder / "out.json").read_text())
    assert len(rows) == len(bad) + 2
    assert [row["id"] for row in rows if "error" not in row] == ["s100", "s101"]
    for name, row in zip(bad, rows[1:-1], strict=True):
        assert list(row) == [*KEYS, "error"], name
        assert (row["prediction"], row["ground_truth"]) == ("", ""), name
        assert row["error"], name
    assert "nowhere.png" in rows[1]["error"]
    assert rows[1]["question"] == "<image> What is ahead of us, in 0?"
    assert [rows[1 + list(bad).index(name)]["question"] for name in ("no human", "odd role", "no text")] == [
        "alone", "x", "",
    ]


def test_the_first_human_turn_is_answered_the_system_text_counts_and_question_is_the_first_turn(checkpoint, folder):
    turns = [{"from": "human", "value": "Where to?"}, {"from": "gpt", "value": "left"}]
    later = [{"from": "human", "value": "And then?"}, {"from": "gpt", "value": "right"}]
    plain = {"conversations": turns}
    system = {"conversations": [{"from": "system", "value": "You drive a bus."}, *turns]}
    source = write(folder, [plain, {"conversations": turns + later}, system])
    assert run(checkpoint, source, folder / "out.json") == 0
    first, longer, with_system = json.loads((folder / "out.json").read_text())
    assert first["question"] == longer["question"] == "Where to?"
    assert with_system["question"] == "You drive a bus."
    assert first["ground_truth"] == longer["ground_truth"] == "left"
    assert first["prediction"] == longer["prediction"]
    assert with_system["prediction"] != first["prediction"]


def test_images_are_looked_for_beside_the_input_file_then_below_the_working_directory(checkpoint, folder, monkeypatch):
    other = folder / "elsewhere"
    other.mkdir()
    (folder / "frame.png").rename(other / "frame.png")
    Image.new("RGB", (64, 64), "red").save(folder / "frame.png")
    source = write(other, [sample(0)])
    monkeypatch.chdir(folder)
    assert run(checkpoint, source, folder / "beside.json") == 0
    (other / "frame.png").unlink()
    assert run(checkpoint, source, folder / "below.json") == 0
    beside, below = (json.loads((folder / name).read_text())[0]["prediction"] for name in ("beside.json", "below.json"))
    assert beside != below


def test_a_sample_may_ask_for_image_limits_of_its_own(checkpoint, folder):
    source = write(folder, [sample(0), sample(0, max_pixels=4096), sample(0, max_pixels=32768)])
    assert run(checkpoint, source, folder / "out.json", "--min_pixels", "1024") == 0
    default, smaller, same = (row["prediction"] for row in json.loads((folder / "out.json").read_text()))
    assert default == same != smaller


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sampling_is_seeded_by_position_not_by_process(checkpoint, folder, monkeypatch):
    source = write(folder, [sample(0)] * 3)
    warm = ["--temperature", "5", "--seed", "3"]
    assert run(checkpoint, source, folder / "one.json", *warm) == 0
    predictions = [row["prediction"] for row in json.loads((folder / "one.json").read_text())]
    assert len(set(predictions)) == 3
    monkeypatch.setenv("NUM_DEVICES", "2")
    assert run(checkpoint, source, folder / "two.json", *warm) == 0
    assert (folder / "two.json").read_text() == (folder / "one.json").read_text()
    assert leftovers(folder) == []


def test_autoregressive_decoding_is_a_strategy_of_the_same_flag(checkpoint, folder):
    source = write(folder, [sample(0)])
    assert run(checkpoint, source, folder / "ar.json", "--remasking_strategy", "autoregressive") == 0


def test_processes_of_torchrun_share_the_work_and_the_last_one_merges(checkpoint, folder, monkeypatch, capsys):
    source = write(folder, [sample(number) for number in range(3)] + [sample(3, "nowhere.png")])
    assert run(checkpoint, source, folder / "whole.json") == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert run(checkpoint, source, folder / "shared.json") == 0
    assert not (folder / "shared.json").exists()
    monkeypatch.setenv("RANK", "0")
    assert run(checkpoint, source, folder / "shared.json") == 1
    assert (folder / "shared.json").read_text() == (folder / "whole.json").read_text()
    assert leftovers(folder) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_run_goes_on_to_the_same_file(checkpoint, folder, processes):
    samples = [sample(number) for number in range(24)]
    samples[5]["image"] = "nowhere.png"
    source = write(folder, samples)
    assert run(checkpoint, source, folder / "whole.json") == 1
    target, journal = folder / "out.json", folder / "out.json.journal.jsonl"
    command = [sys.executable, "-m", "wamdiff2_core.cli.main", *arguments(checkpoint, source, target, *QUICK)]
    killed = subprocess.Popen(command, env=os.environ | {"NUM_DEVICES": str(processes)})
    wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 3)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not target.exists()
    with Journal(journal, read_journal(journal)[0]) as released:  # waits for orphaned workers to end
        assert len(released.items) >= 2
    with journal.open("ab") as file:
        file.write(b'{"index": 23, "row": {"torn')
    assert run(checkpoint, source, target) == 1
    assert target.read_text() == (folder / "whole.json").read_text()
    assert leftovers(folder) == []


def test_what_a_journal_holds_is_not_computed_again(checkpoint, folder):
    source = write(folder, [sample(number) for number in range(2)])
    interrupted_after_first(checkpoint, source, folder, "kept from the first run")
    assert run(checkpoint, source, folder / "out.json") == 0
    predictions = [row["prediction"] for row in json.loads((folder / "out.json").read_text())]
    assert predictions[0] == "kept from the first run"
    assert predictions[1] != "kept from the first run"


def test_a_journal_of_another_request_is_refused_or_dropped_on_demand(checkpoint, folder, capsys):
    source = write(folder, [sample(number) for number in range(2)])
    interrupted_after_first(checkpoint, source, folder, "old")
    assert run(checkpoint, source, folder / "out.json", "--seed", "1") == 2
    message = capsys.readouterr().err
    assert "decode.seed 0 (now 1)" in message
    assert "--overwrite" in message
    source.write_text(source.read_text() + "\n")
    assert run(checkpoint, source, folder / "out.json") == 2
    assert "input" in capsys.readouterr().err
    assert run(checkpoint, source, folder / "out.json", "--overwrite") == 0
    assert all(row["prediction"] != "old" for row in json.loads((folder / "out.json").read_text()))
    assert leftovers(folder) == []


def test_overwrite_drops_what_an_earlier_run_of_more_processes_left(checkpoint, folder, monkeypatch):
    source = write(folder, [sample(number) for number in range(4)])
    interrupted_after_first(checkpoint, source, folder, "old")
    monkeypatch.setenv("NUM_DEVICES", "2")
    for rank in (1, 2, 3):
        left = (folder / "out.json.journal.jsonl").read_text().replace('"index": 0', f'"index": {rank}')
        (folder / f"out.json.journal.{rank}.jsonl").write_text(left)
    assert run(checkpoint, source, folder / "out.json", "--overwrite") == 0
    assert all(row["prediction"] != "old" for row in json.loads((folder / "out.json").read_text()))
    assert leftovers(folder) == []


def test_a_journal_without_answers_blocks_nobody(checkpoint, folder):
    source = write(folder, [sample(0)])
    (folder / "out.json.journal.jsonl").write_text('{"model": "another"}\n')
    assert run(checkpoint, source, folder / "out.json") == 0
    assert leftovers(folder) == []


def interrupted_after_first(checkpoint, source, folder, prediction):
    """Leave the journal that a run killed after its first sample leaves, with a prediction that tells it apart."""
    assert run(checkpoint, write(folder, [sample(0)], "first.json"), folder / "first_out.json") == 0
    row = json.loads((folder / "first_out.json").read_text())[0] | {"prediction": prediction}
    from wamdiff2_core.cli.predict import fingerprint

    decode = DecodeConfig(max_new_tokens=8, block_size=4, denoising_steps=2)
    request = fingerprint(checkpoint, source, decode, ImagePolicy(max_pixels=32768), "auto")
    lines = [json.dumps(request), json.dumps({"index": 0, "row": row})]
    (folder / "out.json.journal.jsonl").write_text("\n".join(lines) + "\n")


def wait_until(condition, timeout_s=400.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A checkpoint with a serving record: block size 4, 8 new tokens, its own image limits."""
    folder = write_random_qwen(tmp_path_factory.mktemp("recorded"), seed=1)
    decode = DecodeConfig(block_size=4, denoising_steps=2, max_new_tokens=8)
    ServingRecord(block_sizes=(4, 8), decode=decode, images=ImagePolicy(None, 1024, 8192)).save(folder)
    return folder


def test_flags_left_out_come_from_the_record(recorded, checkpoint, folder):
    source = write(folder, [sample(0), sample(0, max_pixels=8192), sample(0, max_pixels=4096)])
    assert main(arguments(recorded, source, folder / "record.json")) == 1
    spelled = ["--block_size", "4", "--denoising_steps", "2", "--max_new_tokens", "8", "--max_pixels", "8192"]
    assert main(arguments(recorded, source, folder / "flags.json", *spelled)) == 1
    assert (folder / "record.json").read_text() == (folder / "flags.json").read_text()
    first, same, other = json.loads((folder / "record.json").read_text())
    assert first["prediction"] == same["prediction"]
    assert "expected the policy's (1024, 8192), got (1024, 4096)" in other["error"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--block_size", "16"], "block_size: expected one of [4, 8] (trained), got 16"),
        (["--max_pixels", "2073600"], "max_pixels: expected 8192"),
        (["--remasking_strategy", "autoregressive"], "remasking_strategy"),
    ],
)
def test_a_flag_that_contradicts_the_record_is_refused(recorded, folder, capsys, flags, named):
    source = write(folder, [sample(0)])
    assert main(arguments(recorded, source, folder / "out.json", *flags)) == 2
    assert named in capsys.readouterr().err
    assert not (folder / "out.json").exists()


@pytest.fixture
def no_model(monkeypatch):
    """Fail when the weights are read."""
    import wamdiff2_core.model.checkpoint as checkpoint

    def refuse(*arguments, **options):
        raise AssertionError("the model was loaded before the request was checked")

    monkeypatch.setattr(checkpoint, "load_checkpoint", refuse)


WRONG_FLAGS = {
    "block_size": ["--block_size", "0"],
    "confidence_threshold": ["--confidence_threshold", "1.5"],
    "remasking_strategy": ["--remasking_strategy", "low_confidence"],
    "denoising_steps": ["--denoising_steps", "0"],
    "top_p": ["--top_p", "0"],
    "max_new_tokens": ["--max_new_tokens", "0"],
    "min_pixels": ["--min_pixels", "0"],
    "dtype": ["--dtype", "int8"],
    "--top_k": ["--top_k", "few"],
}


@pytest.mark.parametrize("named", WRONG_FLAGS)
def test_wrong_flags_are_refused_before_the_model_loads(checkpoint, folder, no_model, capsys, named):
    source = write(folder, [sample(0)])
    assert main(arguments(checkpoint, source, folder / "out.json", *WRONG_FLAGS[named])) == 2
    assert_one_line(capsys, named)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ('[{"id": 1,', "in.json", "valid JSON"),
        ('{"id": 1}', "in.json", "a JSON list"),
        ('{"id": 1}\n{"id": ', "in.jsonl", "line 2"),
        ("\udcff", "in.json", "UTF-8"),
    ],
)
def test_a_malformed_input_file_is_refused_before_the_model_loads(
    checkpoint, folder, no_model, capsys, content, name, message
):
    source = folder / name
    source.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert run(checkpoint, source, folder / "out.json") == 2
    assert_one_line(capsys, message)


def test_folders_and_missing_files_are_refused_before_the_model_loads(checkpoint, folder, no_model, capsys):
    source = write(folder, [sample(0)])
    assert run(checkpoint, folder, folder / "out.json") == 2
    assert_one_line(capsys, "folder")
    assert run(checkpoint, folder / "nowhere.json", folder / "out.json") == 2
    assert_one_line(capsys, "no such file")
    assert run(checkpoint, source, folder) == 2
    assert_one_line(capsys, "output_file")
    assert run(checkpoint, source, source) == 2
    assert_one_line(capsys, "another file than the input")
    assert run(checkpoint, source, folder / "frame.png" / "out.json") == 2
    assert_one_line(capsys, "output_file")


@pytest.mark.parametrize("target", ["/proc/x", "/proc/x/y.json", os.devnull, "a" * 300 + ".json"])
def test_places_that_cannot_be_written_to_are_refused_before_the_model_loads(
    checkpoint, folder, no_model, capsys, monkeypatch, target
):
    monkeypatch.chdir(folder)
    assert run(checkpoint, write(folder, [sample(0)]), target) == 2
    assert_one_line(capsys, "output_file")


@pytest.mark.parametrize("devices", ["1", "2"])
def test_a_disk_that_takes_no_more_is_named_with_code_3_and_the_rows_are_kept(nano_folder, folder, devices):
    """A limit on the size of files stands in for a full disk; both end a write in the middle."""
    samples = [sample(number) for number in range(12)]
    for row in samples:
        row["conversations"][0]["value"] += " " + "and so on " * 60
    line = arguments(nano_folder, write(folder, samples), folder / "out.json")
    program = "import resource, sys; from wamdiff2_core.cli.main import main;"
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (4200, resource.RLIM_INFINITY));"
    environment = os.environ | {"NUM_DEVICES": devices}
    command = [sys.executable, "-c", f"{program} {limit} sys.exit(main())", *line]
    stopped = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert stopped.returncode == 3, stopped.stderr
    last = stopped.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert last.endswith(".jsonl: File too large")
    assert "out.json.journal" in last
    kept = [json.loads(text) for path in folder.glob("out.json.journal*") for text in whole_lines(path)[1:]]
    assert 0 < len(kept) < len(samples)
    for path in folder.glob("out.json.journal*"):  # would be answered anew if they were not kept
        path.write_text(path.read_text().replace('"prediction": "', '"prediction": "kept '))
    assert main(line) == 0
    rows = json.loads((folder / "out.json").read_text())
    assert [row["id"] for row in rows] == [row["id"] for row in samples]
    assert sum(row["prediction"].startswith("kept ") for row in rows) == len(kept)


def whole_lines(path):
    text = path.read_text()
    return text[: text.rfind("\n") + 1].splitlines()


def test_folders_that_are_no_checkpoints_are_refused(checkpoint, folder, no_model, capsys):
    source = write(folder, [sample(0)])
    assert run(folder / "nowhere", source, folder / "out.json") == 2
    assert_one_line(capsys, "checkpoint")
    assert run(folder, source, folder / "out.json") == 2
    assert_one_line(capsys, "config.json")
    bare = folder / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).symlink_to(checkpoint / name)
    assert run(bare, source, folder / "out.json") == 2
    assert_one_line(capsys, "tokenizer")


@pytest.mark.parametrize("name", ["NUM_DEVICES", "NUM_GPUS"])
@pytest.mark.parametrize("value", ["0", "two", ""])
def test_a_process_count_that_is_none_is_refused(checkpoint, folder, no_model, monkeypatch, capsys, name, value):
    monkeypatch.setenv(name, value)
    assert run(checkpoint, write(folder, [sample(0)]), folder / "out.json") == 2
    assert_one_line(capsys, name)


def assert_one_line(capsys, expected):
    stderr = capsys.readouterr().err
    assert expected in stderr
    assert "Traceback" not in stderr
    assert stderr.strip().count("\n") == 0


def test_an_empty_file_has_an_empty_answer(checkpoint, folder):
    assert run(checkpoint, write(folder, []), folder / "out.json") == 0
    assert json.loads((folder / "out.json").read_text()) == []


def test_the_vocabulary_of_these_tests_is_qwens_own():
    tokenizer = qwen_tokenizer_fast()
    assert tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|image_pad|>"]) == [151645, 151655]
    import qwen_tokenizer

    text = "12.50,-0.17 Straße 你好 don't  stop\n\n x"
    assert tokenizer(text).input_ids == qwen_tokenizer.get_tokenizer("qwen").encode(text)
