"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

# A deadline per example measures the machine, not the code.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure() -> None:
    """Processes that tests start take SIGINT, also where the suite is a shell's background job, which ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with the most slow tests first, then those with the most tests.

    Workers take whole files in this order (`--dist loadfile --no-loadscope-reorder`): were a long file of few tests
    among the last, one worker would run it while the other has nothing left to do.
    """
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (-slow[item.path], -tests[item.path], str(item.path)))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of test inputs that are not part of this repository: see `docs/tests.md`."""
    return find_shared_data()


def find_shared_data() -> Path:
    """The folder that WAMDIFF2_TEST_DATA names, or else `../shared/data` beside the checkout; skips without one."""
    named = os.environ.get("WAMDIFF2_TEST_DATA", "")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        if named:
            pytest.fail(f"WAMDIFF2_TEST_DATA: expected a folder, got {named}")
        pytest.skip("needs ../shared/data beside the checkout, or WAMDIFF2_TEST_DATA")
    return folder


@pytest.fixture(scope="session")
def nano_folder() -> Path:
    """The shipped checkpoint."""
    folder = ROOT / "checkpoints" / "wamdiff2-nano"
    if not (folder / "model.safetensors").exists():
        pytest.skip("checkpoints/wamdiff2-nano is not there")
    return folder
