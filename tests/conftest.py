"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# A deadline per example measures the machine, not the code.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of test inputs that are not part of this repository: `../shared/data` beside the checkout."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs ../shared/data beside the checkout")
    return folder


@pytest.fixture(scope="session")
def nano_folder() -> Path:
    """The shipped checkpoint."""
    folder = ROOT / "checkpoints" / "wamdiff2-nano"
    if not (folder / "model.safetensors").exists():
        pytest.skip("checkpoints/wamdiff2-nano is not there")
    return folder
