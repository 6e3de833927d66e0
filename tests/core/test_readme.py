"""The Python examples of the documentation run as they stand, from the root of the repository."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "checkpoints").rglob("*.md"))]
EXAMPLES = [
    pytest.param(page, match, id=f"{page.relative_to(ROOT)}:{page.read_text()[: match.start()].count(chr(10)) + 1}")
    for page in PAGES for match in BLOCK.finditer(page.read_text())
]


def run_example(code: str, where: str) -> tuple[dict[str, object], str]:
    """The names that an example leaves behind, and what it prints."""
    names: dict[str, object] = {"__name__": "__main__"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, where, "exec"), names)
    return names, printed.getvalue()


@pytest.mark.parametrize(("page", "match"), EXAMPLES)
def test_example_runs(page: Path, match: re.Match[str], monkeypatch, nano_folder: Path) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(ROOT)
    run_example(match[1], page.name)


def test_the_readmes_plan_turns_left_as_it_was_told(monkeypatch, nano_folder: Path) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(ROOT)
    names, printed = run_example(BLOCK.findall((ROOT / "README.md").read_text())[0], "README.md")
    plan = names["plan"]
    assert plan.check.ok
    assert plan.waypoints.xy_m.shape == (6, 2)
    assert np.all(np.diff(plan.waypoints.xy_m[:, 1]) > 0)
    assert plan.waypoints.xy_m[-1, 1] > 5.0
    assert printed.startswith("[[")
    assert f"True {plan.text}" in printed
