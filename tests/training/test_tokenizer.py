"""The nano's tokenizer: reproducible, one token a digit, and answers of two blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from training.tokenizer import SPECIAL_TOKENS, write_tokenizer
from wamdiff2_core.config import PlanningTask
from wamdiff2_core.prompts import BENCH2DRIVE
from wamdiff2_core.types import NavCommand, Waypoints
from wamdiff2_core.waypoint_text import format_waypoints


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
