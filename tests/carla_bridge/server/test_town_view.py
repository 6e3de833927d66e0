"""The view of a town from above."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

pytest.importorskip("carla")

from benchmarks.town_view import PHASES, SIGNS, main
from carla_bridge.server.geometry.scene import SignalKind

pytestmark = pytest.mark.carla


def test_view_shows_both_phases_and_both_signs_and_counts_them(tmp_path, capsys) -> None:
    main("Wamtown02", tmp_path / "deep" / "town.png", 2.0)
    assert "21 lights, 7 stop signs, 1 yield signs, 21 crosswalks" in capsys.readouterr().out
    picture = cv2.imread(str(tmp_path / "deep" / "town.png"))
    height, width = picture.shape[:2]
    assert 900 < height < 1300
    assert 1000 < width < 1500
    for color in (*PHASES[:2], SIGNS[SignalKind.STOP], SIGNS[SignalKind.YIELD]):
        assert np.abs(picture.astype(int) - color).sum(axis=2).min() < 12
