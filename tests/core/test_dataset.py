"""The data set writer and reader: what goes in comes out, also after a kill."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from wamdiff2_core.conversations import Conversation, ConversationError, first_file, read_objects, read_rgb
from wamdiff2_core.dataset import DatasetWriter, read_dataset, read_images, read_picture
from wamdiff2_core.errors import UserError

PICTURE = np.broadcast_to(np.linspace(0, 255, 64, dtype=np.uint8)[None, :, None], (32, 64, 3))


def test_samples_come_back_with_images_and_extra_keys(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path) as writer:
        writer.add("a", "look: <image> where to?", "1.0,2.0", [PICTURE], {"speed_mps": 3.5})
        writer.add("b", "no picture", "left")
        writer.add("c", "<image><image>", "two", [PICTURE, 255 - PICTURE])
    first, second, third = read_dataset(writer.file)
    assert (first.conversation.id, first.prompt, first.answer) == ("a", "look: <image> where to?", "1.0,2.0")
    assert first.extra == {"speed_mps": 3.5}
    assert first.conversation.datasource == "wamdiff2-embedded"
    assert np.abs(read_rgb(first.images[0]).astype(int) - PICTURE).mean() < 2.0
    assert second.images == ()
    assert len(third.images) == 2
    assert np.abs(read_rgb(third.images[1]).astype(int) - (255 - PICTURE)).mean() < 2.0


def test_images_are_found_beside_the_file_else_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DatasetWriter(tmp_path / "set") as writer:
        writer.add("a", "<image> where to?", "left", [PICTURE])
    (sample,) = read_dataset(writer.file)
    beside = read_images(sample, "sample 'a'")[0]
    below = tmp_path / "images"
    below.mkdir()
    below.joinpath("a.jpg").write_bytes(b"no picture")
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(read_images(sample, "sample 'a'")[0], beside)
    sample.images[0].unlink()
    with pytest.raises(UserError, match="sample 'a': image: expected a picture that can be decoded, got cannot decode"):
        read_images(sample, "sample 'a'")
    below.joinpath("a.jpg").unlink()
    with pytest.raises(UserError, match=r"sample 'a': image: expected an image file, got none at .*set/images/a\.jpg"):
        read_images(sample, "sample 'a'")


def test_lines_have_the_published_form(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path) as writer:
        writer.add("a", "<image> where to?", "1.0,2.0", [PICTURE])
    line = json.loads(writer.file.read_text())
    assert line["image"] == "images/a.jpg"
    assert line["conversations"] == [
        {"from": "human", "value": "<image> where to?"}, {"from": "gpt", "value": "1.0,2.0"},
    ]


def test_a_torn_last_line_is_cut_off_and_writing_goes_on(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path) as writer:
        writer.add("a", "q", "1")
        writer.add("b", "q", "2")
    torn = writer.file.read_bytes()[:-5]
    writer.file.write_bytes(torn)
    with DatasetWriter(tmp_path) as writer:
        assert writer.count == 1
        writer.add("c", "q", "3")
    assert [sample.conversation.id for sample in read_dataset(writer.file)] == ["a", "c"]


def test_marks_must_match_the_images(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path) as writer:
        with pytest.raises(ValueError, match="marks"):
            writer.add("a", "<image>", "1")
        with pytest.raises(ValueError, match="marks"):
            writer.add("a", "no mark", "1", [PICTURE])
        assert writer.count == 0


def test_an_extra_key_may_not_hide_one_of_the_format(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path) as writer, pytest.raises(ValueError, match="image"):
        writer.add("a", "q", "1", extra={"image": "x.jpg"})


@pytest.mark.parametrize(
    "line",
    [
        '{"conversations": [{"from": "human", "value": "<image> q"}, {"from": "gpt", "value": "a"}]}',
        '{"conversations": [{"from": "human", "value": "q"}]}',
        '{"conversations": []}',
        "[1]",
    ],
)
def test_a_bad_sample_is_named_with_its_number(tmp_path: Path, line: str) -> None:
    with DatasetWriter(tmp_path) as writer:
        writer.add("a", "q", "1")
    with writer.file.open("a") as out:
        out.write(line + "\n")
    with pytest.raises(UserError, match="sample 2"):
        read_dataset(writer.file)


def line_of(*turns: tuple[str, str], **keys: object) -> str:
    return json.dumps({"conversations": [{"from": role, "value": text} for role, text in turns], **keys})


def test_the_last_answer_is_learnt_and_earlier_turns_are_its_history(tmp_path: Path) -> None:
    turns = ("system", "s"), ("human", "<image> a"), ("gpt", "<image> b"), ("human", "<image> c"), ("gpt", "d")
    (tmp_path / "a.jsonl").write_text(line_of(*turns, image=["x.jpg", "y.jpg"]))
    (sample,) = read_dataset(tmp_path / "a.jsonl")
    assert (sample.prompt, sample.answer) == ("<image> c", "d")
    assert [(turn.role, turn.text) for turn in sample.history] == [*turns[1:3]]
    assert sample.conversation.exchange.system == "s"


@pytest.mark.parametrize(
    ("turns", "problem"),
    [
        ([("human", "a"), ("gpt", "b"), ("human", "c")], "a human turn and its gpt answer at the end"),
        ([("human", "a"), ("gpt", "b"), ("gpt", "c")], "a human turn and its gpt answer at the end"),
        ([("human", "a"), ("system", "b"), ("gpt", "c")], "system turns before the first human turn only"),
        ([("gpt", "a"), ("human", "b"), ("gpt", "c")], "the first human turn before any gpt turn"),
        ([("human", "a"), ("gpt", "")], "an empty one"),
    ],
)
def test_conversations_without_a_last_answer_are_refused(tmp_path: Path, turns, problem: str) -> None:
    (tmp_path / "a.jsonl").write_text(line_of(*turns))
    with pytest.raises(UserError, match=problem):
        read_dataset(tmp_path / "a.jsonl")


def test_only_newlines_end_a_line(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\x85d"
    with DatasetWriter(tmp_path) as writer:
        writer.add("a", text, text)
        writer.add("b", "q", "a")
    first, _ = read_dataset(writer.file)
    assert (first.prompt, first.answer) == (text, text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("[" * 100_000, "Nested too deep at line 2"),
     ('{"id": ' + "1" * 5000 + "}", "Integer of more than 4300 digits at"),
     (line_of(("human", "q"), ("gpt", "\ud800")), r"got \\ud800, half of a surrogate pair, in line 2")],
    ids=["deep", "integer", "surrogate"],
)
def test_what_json_can_spell_but_nobody_can_use_is_refused_in_one_line(tmp_path: Path, text: str, problem: str) -> None:
    lines, whole = tmp_path / "a.jsonl", tmp_path / "a.json"
    lines.write_text("[]\n" + text)
    whole.write_text("[{},\n" + text + "]")
    with pytest.raises(UserError, match=problem):
        read_objects(lines)
    with pytest.raises(UserError, match=problem.replace("line 2", "") if "half" not in problem else "in sample 2"):
        read_objects(whole)


@pytest.mark.parametrize(
    ("keys", "kind"),
    [({"id": ["a"]}, "bad_id"), ({"id": False}, "bad_id"), ({"datasource": ["a"]}, "bad_sample"),
     ({"own": [{"\udc00": 1}]}, "lone_surrogate")],
)
def test_a_fault_of_one_sample_has_its_kind(keys: dict[str, object], kind: str) -> None:
    turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    with pytest.raises(ConversationError) as caught:
        Conversation.from_json({"conversations": turns, **keys})
    assert caught.value.kind == kind


def test_a_place_that_cannot_be_looked_at_has_no_file(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert first_file(tmp_path / ("x" * 300), tmp_path / "a") == tmp_path / "a"
    assert first_file(tmp_path / ("x" * 300)) is None
    with pytest.raises(UserError, match=r"--image: expected an image file, got none at .*xxx"):
        read_picture(tmp_path / ("x" * 300), "--image")


def test_a_decoder_with_an_error_of_its_own_is_a_fault_of_the_sample(tmp_path: Path, monkeypatch) -> None:
    from PIL import Image

    def load(image: object) -> None:
        raise RuntimeError("Failed to decode")

    Image.fromarray(PICTURE.copy()).save(tmp_path / "a.png")
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", load)
    with pytest.raises(ConversationError, match=r"cannot decode 'a\.png': Failed to decode"):
        read_rgb(tmp_path / "a.png")
