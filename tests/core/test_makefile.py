"""What `make` says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_help_lists_targets_and_nothing_else():
    said = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    *targets, variables = said.splitlines()
    listed = [re.fullmatch(r"make (\w+) +\S.*", line)[1] for line in targets]
    assert listed == ["drive", "test", "py38", "core312", "mutants"]
    assert variables.startswith("drive takes ")
