"""Where test inputs are looked for that are not part of the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT, find_shared_data


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAMDIFF2_TEST_DATA", str(tmp_path))
    assert find_shared_data() == tmp_path


def test_a_named_folder_that_is_not_there_fails_instead_of_skipping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAMDIFF2_TEST_DATA", str(tmp_path / "none"))
    with pytest.raises(pytest.fail.Exception, match="WAMDIFF2_TEST_DATA"):
        find_shared_data()


def test_without_it_the_folder_lies_beside_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAMDIFF2_TEST_DATA", raising=False)
    beside = ROOT.parent / "shared" / "data"
    if beside.is_dir():
        assert find_shared_data() == beside
        return
    with pytest.raises(pytest.skip.Exception, match="beside the checkout"):
        find_shared_data()
