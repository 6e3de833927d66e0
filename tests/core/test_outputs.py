"""Places for results: refused before any work when nothing can be written there, named when the disk takes no more."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wamdiff2_core.errors import UserError
from wamdiff2_core.journal import Journal, read_journal, replace_file
from wamdiff2_core.outputs import disk_errors_named, writable_file, writable_folder

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


class FullFile:
    """A file on a disk that is full."""

    def write(self, data):
        raise FULL

    def flush(self):
        raise FULL

    def close(self):
        raise FULL


def test_a_folder_is_made_with_its_parents_and_nothing_is_left_in_it(tmp_path):
    folder = writable_folder(tmp_path / "a" / "b", "out")
    assert list(folder.iterdir()) == []
    assert writable_folder(folder, "out") == folder


@linux
@pytest.mark.parametrize("path", ["/proc", "/proc/x", "/proc/x/y"])
def test_a_folder_where_nothing_can_be_written_is_refused(path):
    with pytest.raises(UserError, match=f"^out: expected a place that can be written to, got {path} "):
        writable_folder(Path(path), "out")


def test_paths_at_and_below_a_file_are_no_folders(tmp_path):
    file = tmp_path / "file"
    file.write_text("kept")
    for path in (file, file / "below"):
        with pytest.raises(UserError, match="out: expected a place"):
            writable_folder(path, "out")
        with pytest.raises(UserError, match="output_file: expected a place"):
            writable_file(path / "answers.json", "output_file")
    assert file.read_text() == "kept"


def test_a_file_may_be_there_already_and_is_left_alone(tmp_path):
    file = tmp_path / "answers.json"
    file.write_text("kept")
    assert writable_file(file, "output_file") == file
    assert file.read_text() == "kept"
    assert writable_file(tmp_path / "new" / "answers.json", "output_file").parent.is_dir()


def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path(os.devnull), tmp_path / ("a" * 300)):
        with pytest.raises(UserError, match="output_file"):
            writable_file(path, "output_file")


def test_a_file_that_may_not_be_written_is_refused_where_its_folder_may(tmp_path, monkeypatch):
    file = tmp_path / "answers.json"
    file.write_text("kept")
    # the superuser, who may run this test, may write everything
    monkeypatch.setattr(os, "access", lambda path, mode: path != file)
    with pytest.raises(UserError, match=r"json: expected a place that can be written to, got .*permission denied"):
        writable_file(file, "json")


@pytest.mark.parametrize("error", [
    FULL,
    OSError(errno.EFBIG, "File too large"),
    Exception("No space left on device (os error 28)"),
    Exception("Error while serializing: I/O error: Os { code: 28, kind: StorageFull, message: \"No space left\" }"),
])
def test_errors_of_a_full_disk_name_the_file(error):
    with pytest.raises(OSError, match=r"'answers\.json'") as told, disk_errors_named(Path("answers.json")):
        raise error
    assert told.value.errno == getattr(error, "errno", errno.ENOSPC)


@pytest.mark.parametrize("error", [
    OSError(errno.ENOSPC, "full", "its own name"), ConnectionResetError(errno.ECONNRESET, "reset"), KeyError("x"),
    Exception("exit code: 28"),
])
def test_other_errors_and_names_stay_as_they_are(error):
    with pytest.raises(type(error)) as told, disk_errors_named(Path("answers.json")):
        raise error
    assert told.value is error


def test_a_journal_on_a_full_disk_names_itself_and_keeps_what_is_finished(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, {"asked": 1})
    journal.append({"index": 0})
    file, journal._file = journal._file, FullFile()
    with pytest.raises(OSError, match=r"journal\.jsonl"), journal:
        journal.append({"index": 1})
    file.write(b'{"index": 1, "ro')  # what fitted
    file.close()
    assert read_journal(path) == ({"asked": 1}, [{"index": 0}])
    with Journal(path, {"asked": 1}) as again:
        again.append({"index": 1})
    assert read_journal(path)[1] == [{"index": 0}, {"index": 1}]


def test_a_file_that_cannot_be_replaced_stays_and_leaves_no_part(tmp_path):
    """A limit on the size of files stands in for a full disk; both end a write in the middle."""
    target = tmp_path / "answers.json"
    target.write_text("old")
    program = f"""
import resource
from pathlib import Path
from wamdiff2_core.journal import replace_file
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
replace_file(Path({str(target)!r}), "x" * 100_000)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "File too large: " in run.stderr
    assert "answers.json" in run.stderr.strip().splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["answers.json"]
    assert target.read_text() == "old"
    replace_file(target, "new")
    assert target.read_text() == "new"
