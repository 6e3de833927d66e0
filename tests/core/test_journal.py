"""A journal that somebody has damaged is refused by its line, and begun anew when asked to."""

from __future__ import annotations

from pathlib import Path

import pytest

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
