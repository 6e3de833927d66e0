"""The nano's tokenizer: reproducible, one token a digit, and answers of two blocks."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from training.tokenizer import SPECIAL_TOKENS, write_tokenizer
from wamdiff2_core.cli.main import main
from wamdiff2_core.config import PlanningTask
from wamdiff2_core.errors import UserError
from wamdiff2_core.tasks.planning import BENCH2DRIVE, format_waypoints
from wamdiff2_core.types import NavCommand, Waypoints


def test_the_same_command_writes_the_same_files_as_the_shipped_ones(tmp_path: Path, nano_folder: Path) -> None:
    write_tokenizer(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == (nano_folder / "tokenizer.json").read_bytes()


def test_it_loads_through_auto_tokenizer(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    entries = write_tokenizer(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert len(loaded) == entries <= 1024
    assert loaded.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(len(SPECIAL_TOKENS)))
    assert (loaded.eos_token, loaded.pad_token, loaded.mask_token) == ("<|im_end|>", "<|endoftext|>", "<|mask|>")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_earlier_tokenizer_is_written_over_and_nothing_else_is(tmp_path: Path, nano_folder: Path) -> None:
    ours = tmp_path / "ours"
    write_tokenizer(ours, 400)
    assert write_tokenizer(ours) > 400
    assert (ours / "tokenizer.json").read_bytes() == (nano_folder / "tokenizer.json").read_bytes()
    assert content(ours).keys() == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}

    thesis, model, other = tmp_path / "thesis", tmp_path / "model", tmp_path / "other"
    for folder in (thesis, model, other):
        folder.mkdir()
    (thesis / "thesis.tex").write_text("all of it")
    shutil.copytree(ours, model, dirs_exist_ok=True)
    (model / "model.safetensors").write_text("weights that belong to this tokenizer")
    tokens = [{"content": "<|endoftext|>"}, {"content": "<|im_start|>"}]
    (other / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    for folder in (thesis, model, other):
        before = content(folder)
        with pytest.raises(UserError, match="out: expected an empty folder, or one written by this command"):
            write_tokenizer(folder)
        assert content(folder) == before


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_place_that_cannot_be_written_to_is_refused_before_training(monkeypatch, capsys) -> None:
    monkeypatch.setattr("training.tokenizer.build_tokenizer", lambda size: pytest.fail("trained"))
    assert main(["tokenizer", "--out", "/proc/x"]) == 2
    assert capsys.readouterr().err.startswith("error: out: expected a place that can be written to, got /proc/x")


def test_a_full_disk_is_named_and_the_earlier_tokenizer_stays(tmp_path: Path, monkeypatch, capsys) -> None:
    write_tokenizer(tmp_path, 400)
    before = content(tmp_path)

    def save(tokenizer: object, folder: str) -> None:
        (Path(folder) / "tokenizer.json").write_text("a part")
        raise Exception("No space left on device (os error 28)")  # as the library words it

    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.save_pretrained", save)
    assert main(["tokenizer", "--out", str(tmp_path)]) == 3
    assert capsys.readouterr().err == f"error: {tmp_path}: No space left on device\n"
    assert content(tmp_path) == before


def test_every_digit_is_one_token(nano_tokenizer) -> None:
    pieces = [nano_tokenizer.decode([token]) for token in nano_tokenizer("-12.3,4.0,105.7").input_ids]
    assert pieces == ["-", "1", "2", ".", "3", ",", "4", ".", "0", ",", "1", "0", "5", ".", "7"]


@pytest.mark.parametrize("text", ["Bremsen für Fußgänger, 漢字 und 🚗", "a\r\n  b\t c", "", "x²+½"])
def test_any_text_survives(nano_tokenizer, text: str) -> None:
    assert nano_tokenizer.decode(nano_tokenizer(text).input_ids) == text


def test_every_word_of_a_planning_prompt_is_one_token(nano_tokenizer) -> None:
    for command in NavCommand:
        prompt = BENCH2DRIVE.format(x1="1.0", y1="-1.0", x2="10.5", y2="1.0", command=command.value, speed="12.3")
        for text in prompt.split("<image>"):
            pieces = nano_tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
            assert len(nano_tokenizer(text).input_ids) == len(pieces)


def test_longest_driven_answer_and_eos_fit_two_blocks_of_32(nano_tokenizer) -> None:
    """Below 33 m/s no coordinate within three seconds reaches 100 m; all twelve negative, two digits each, is worst."""
    task = PlanningTask(decimals=1)
    worst = format_waypoints(Waypoints(np.full((6, 2), (-33.3, 44.4)), 0.5), task)
    assert len(nano_tokenizer(worst).input_ids) <= 63


def test_chat_layout_is_qwens(nano_tokenizer) -> None:
    content = [{"type": "text", "text": "Look:"}, {"type": "image"}, {"type": "text", "text": "Go."}]
    rendered = nano_tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    assert rendered == (
        "<|im_start|>user\nLook:<|vision_start|><|image_pad|><|vision_end|>Go.<|im_end|>\n<|im_start|>assistant\n"
    )
