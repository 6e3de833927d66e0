"""A journal that somebody has damaged is refused by its line, and begun anew when asked to; one writer at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import wamdiff2_core.journal as journal_module
from wamdiff2_core.errors import UserError
from wamdiff2_core.journal import Journal, read_journal


@pytest.mark.parametrize("damage", [b'{"item": 1, "te', b"\xff\xfe{}"])
def test_a_damaged_line_is_named_and_nothing_is_changed(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, {"asked": 1}) as journal:
        journal.append({"item": 0})
    broken = path.read_bytes() + damage + b'\n{"item": 2}\n'
    path.write_bytes(broken)
    with pytest.raises(UserError, match=r"journal\.jsonl: line 3: expected JSON, got a damaged line"):
        Journal(path, {"asked": 1})
    assert path.read_bytes() == broken
    with Journal(path, {"asked": 1}, overwrite=True) as journal:
        assert journal.items == []
    assert read_journal(path) == ({"asked": 1}, [])


def test_errors_tell_how_to_begin_anew_as_the_command_does_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, {"asked": 1}) as journal:
        journal.append({"item": 0})
    with pytest.raises(UserError, match=r"go on with it, or choose another place for it, or begin anew with --over"):
        Journal(path, {"asked": 2})
    with pytest.raises(UserError, match=r"asked 1 \(now 2\); give the request of before .*, or choose another --out$"):
        Journal(path, {"asked": 2}, begin_anew="choose another --out")
    with path.open("a") as file:
        file.write("damaged\n")
    with pytest.raises(UserError, match=r"restore the file, or choose another --out$"):
        Journal(path, {"asked": 1}, begin_anew="choose another --out")


HOLD = """
import sys
from pathlib import Path
from wamdiff2_core.journal import Journal
with Journal(Path(sys.argv[1]), {"asked": 1}):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_journal_that_another_process_writes_is_refused_by_its_process_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "LOCK_WAIT_S", 0.0)
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    command = [sys.executable, "-c", HOLD]
    root = Path(journal_module.__file__).parents[1]
    holders = [subprocess.Popen([*command, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root)
               for path in paths]
    try:
        for path, holder in zip(paths, holders, strict=True):
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(UserError, match=f"{path.name}: .* got one that process {holder.pid} is writing; wait"):
                Journal(path, {"asked": 1})
    finally:
        for holder in holders:
            holder.communicate()
    with Journal(paths[0], {"asked": 1}) as journal:
        assert journal.items == []


def test_without_the_kernels_table_the_writer_is_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "LOCK_WAIT_S", 0.0)
    with Journal(tmp_path / "j", {"asked": 1}):
        monkeypatch.setattr(Path, "read_text", lambda path, *_: (_ for _ in ()).throw(FileNotFoundError(path)))
        with pytest.raises(UserError, match="got one that another process is writing"):
            Journal(tmp_path / "j", {"asked": 1})
