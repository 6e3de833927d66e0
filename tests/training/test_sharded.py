"""Parameters in shards: the training forward under FSDP2 has the gradients of the whole model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training import ranks, sharded_step


@pytest.mark.slow
def test_two_shards_have_the_gradients_of_the_whole_model(tmp_path: Path) -> None:
    ranks.run(tmp_path / "log", sharded_step.main, processes=2)
    assert (tmp_path / "log").read_text().count("equal") == 2
