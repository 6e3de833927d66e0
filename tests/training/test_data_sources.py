"""An index finds what is in a file, however large, and notices when the file changes."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from training.data import sources
from training.data.sources import ConversationIndex
from wamdiff2_core.errors import UserError

TEXTS = ("plain", "Zürich “quoted” \u2028 line", 'a "quote", a } and a ] and a \\ ', "日本語\n\ttwo lines", "")


def item(number: int, text: str) -> dict[str, object]:
    question = {"from": "human", "value": f"{text} {number}"}
    return {"id": number, "conversations": [question, {"from": "gpt", "value": f"answer {number}"}]}


ITEMS = [item(number, TEXTS[number % len(TEXTS)]) for number in range(40)]


def write_list(path: Path, indent: int | None = None, ascii_only: bool = False, head: str = "") -> Path:
    path.write_text(head + json.dumps(ITEMS, indent=indent, ensure_ascii=ascii_only), encoding="utf-8")
    return path


def write_lines(path: Path, between: str = "\n", head: str = "") -> Path:
    lines = (json.dumps(entry, ensure_ascii=False) for entry in ITEMS)
    path.write_text(head + between.join(lines), encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize(("between", "head"), [("\n", ""), ("\r\n", ""), ("\n\n  \t\n", "\n"), ("\n", "\ufeff")])
def test_lines_are_found_whatever_stands_between_them(tmp_path: Path, between: str, head: str) -> None:
    index = ConversationIndex(write_lines(tmp_path / "a.jsonl", between, head))
    assert [index.object(number) for number in range(len(index))] == ITEMS


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize(("indent", "ascii_only", "head"), [(None, False, ""), (2, False, "\ufeff \n"), (4, True, "")])
def test_elements_of_a_list_are_found_in_pieces_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, indent: int | None, ascii_only: bool, head: str
) -> None:
    monkeypatch.setattr(sources, "_CHUNK", chunk)
    index = ConversationIndex(write_list(tmp_path / "a.json", indent, ascii_only, head))
    assert [index.object(number) for number in range(len(index))] == ITEMS


def test_lines_are_found_across_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_WINDOW", 13)
    index = ConversationIndex(write_lines(tmp_path / "a.jsonl"))
    assert [index.object(number) for number in range(len(index))] == ITEMS


def test_samples_come_by_number_and_the_limit_keeps_the_first(tmp_path: Path) -> None:
    index = ConversationIndex(write_lines(tmp_path / "a.jsonl"), limit=3)
    assert len(index) == 3
    assert [sample.answer for sample in index] == ["answer 0", "answer 1", "answer 2"]
    assert index[-1].conversation.id == 2
    with pytest.raises(IndexError, match="below 3, got 3"):
        index[3]


@pytest.mark.parametrize("text", ["", "[]", "  [ ] \n"])
def test_empty_files(tmp_path: Path, text: str) -> None:
    name = "a.json" if "[" in text else "a.jsonl"
    (tmp_path / name).write_text(text)
    assert len(ConversationIndex(tmp_path / name)) == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "an empty file"), ('{"a": 1}', "'{' at its start"), ("[{}", "the end of the file"),
        ("[{},]", "sample 2: expected valid JSON"), ("[{} {}]", "after sample 1, got '{' at byte 4"),
        ('[{}, {"a" 1}]', "sample 2: expected valid JSON"), ("[{}] x", "after the list, got 'x' at byte 5"),
        ('[{}, {"a": "open', "sample 2: expected valid JSON"),
    ],
)
def test_a_broken_list_is_refused_with_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    for chunk in (1, 1 << 20):
        monkeypatch.setattr(sources, "_CHUNK", chunk)
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(UserError, match=problem.replace("[", r"\[")):
            ConversationIndex(tmp_path / "a.json")


def test_a_broken_list_is_not_read_to_its_end_to_be_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_CHUNK", 100)
    (tmp_path / "a.json").write_text('[{"a" 1}, ' + json.dumps(ITEMS)[1:] * 50)
    scanner = sources._ListScanner((tmp_path / "a.json").open("rb"), "a.json")
    with pytest.raises(UserError, match="sample 1"):
        list(scanner.elements())
    assert scanner._read < 500


def test_bad_utf_8_is_told_with_its_offset(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'[{"a": "b\xff"}]')
    with pytest.raises(UserError, match="0xff at offset 9"):
        ConversationIndex(tmp_path / "a.json")
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n{"a": "b\xff"}\n')
    index = ConversationIndex(tmp_path / "a.jsonl")
    with pytest.raises(UserError, match=r"a.jsonl: sample 2: .*0xff at offset 8"):
        index.object(1)


def test_a_broken_line_is_told_when_it_is_read(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl")
    with file.open("a") as out:
        out.write('\n{"torn": ')
    index = ConversationIndex(file)
    assert index[0].answer == "answer 0"
    with pytest.raises(UserError, match="sample 41: expected valid JSON"):
        index[40]


def test_places_are_kept_beside_the_file_and_found_anew_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_lines(tmp_path / "a.jsonl")
    first = ConversationIndex(file)
    (kept,) = tmp_path.glob(".a.jsonl.*.index.npy")
    with monkeypatch.context() as patch:
        patch.setattr(sources, "line_spans", lambda _: pytest.fail("found again"))
        assert len(ConversationIndex(file)) == len(first)
    with file.open("a") as out:
        out.write("\n" + json.dumps(item(40, "new")))
    assert ConversationIndex(file)[40].answer == "answer 40"
    assert [path.name for path in tmp_path.glob(".a.jsonl.*")] != [kept.name]
    assert len(list(tmp_path.glob(".a.jsonl.*"))) == 1


@pytest.mark.parametrize("changed", ["head", "tail"])
def test_same_size_and_date_but_another_end_is_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    monkeypatch.setattr(sources, "_ENDS", 16)

    def lines(*ids: int) -> str:
        same, other = json.dumps({"same": 16 * "x"}), "\n".join(json.dumps({"id": one}) for one in ids)
        return f"{other}\n{same}" if changed == "head" else f"{same}\n{other}"

    file, number = tmp_path / "a.jsonl", 0 if changed == "head" else 1
    file.write_text(lines(1, 23456))
    before = file.stat()
    assert ConversationIndex(file).object(number) == {"id": 1}
    file.write_text(lines(12345, 2))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ConversationIndex(file).object(number) == {"id": 12345}


def test_a_damaged_file_of_places_is_made_anew(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl")
    ConversationIndex(file)
    (kept,) = tmp_path.glob(".a.jsonl.*.index.npy")
    kept.write_bytes(b"\x93NUMPY torn")
    assert len(ConversationIndex(file)) == 40
    assert np.load(kept).shape == (40, 2)


def test_a_cache_folder_holds_files_of_one_name_from_several_folders(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        ConversationIndex(write_lines(tmp_path / name / "a.jsonl"), cache=tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["a.jsonl"]


def test_an_index_travels_by_pickle_without_its_places(tmp_path: Path) -> None:
    index = ConversationIndex(write_lines(tmp_path / "a.jsonl"), limit=7)
    packed = pickle.dumps(index)
    assert len(packed) < 1000
    copy = pickle.loads(packed)
    assert (len(copy), copy[6].answer) == (7, "answer 6")


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()])
def test_what_is_no_file_is_refused(tmp_path: Path, make) -> None:
    make(tmp_path / "a.jsonl")
    with pytest.raises(UserError, match=r"a.jsonl: expected a JSON or JSONL file"):
        ConversationIndex(tmp_path / "a.jsonl")


def tagged(path: Path) -> Path:
    lights = ("red", "green", None)
    entries = [
        {**entry, "situation": ("red", "free", "turn")[k % 3], "wet": k % 2 == 0, "light": {"state": lights[k % 3]}}
        for k, entry in enumerate(ITEMS)
    ]
    path.write_text("\n".join(json.dumps(entry) for entry in entries), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        ({"situation": ["red", "turn"]}, [k for k in range(40) if k % 3 != 1]),
        ({"light.state": ["green"]}, list(range(1, 40, 3))),
        ({"situation": ["red"], "wet": ["True"]}, list(range(0, 40, 6))),
        ({"light.state": ["none"]}, list(range(2, 40, 3))),
        ({"light": ["present"]}, list(range(40))),
        ({"situation": ["night"]}, []),
    ],
)
def test_slices_of_a_file_are_what_their_keys_say_also_when_it_is_opened_again(tmp_path, where, numbers) -> None:
    file = tagged(tmp_path / "a.jsonl")
    whole = ConversationIndex(file)
    for _ in range(2):
        index = pickle.loads(pickle.dumps(ConversationIndex(file, where=where)))
        assert [index.object(row)["id"] for row in range(len(index))] == numbers
    assert len(whole) == len(ConversationIndex(file)) == 40
    assert len(ConversationIndex(file, limit=3, where=where)) == min(3, len(numbers))


def test_a_changed_file_is_sliced_anew_and_a_broken_line_is_named(tmp_path: Path) -> None:
    file = tagged(tmp_path / "a.jsonl")
    assert len(ConversationIndex(file, where={"situation": ["red"]})) == 14
    file.write_text(file.read_text().replace('"red"', '"free"', 1))
    assert len(ConversationIndex(file, where={"situation": ["red"]})) == 13
    file.write_text(file.read_text() + "\n{\n")
    with pytest.raises(UserError, match="sample 41: expected valid JSON"):
        ConversationIndex(file, where={"situation": ["red"]})
