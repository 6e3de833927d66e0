"""What `client_scripts/whole_api.py` must have seen, whatever the client's version."""

from __future__ import annotations

from typing import Any

import pytest

from carla_bridge.server.geometry.labels import Label

REFUSED = {
    "get_bones", "get_bone_names", "get_component_names", "normals camera", "walker controller",
    "camera without a field of view", "start_recorder", "show_recorder_file_info", "show_recorder_collisions",
    "show_recorder_actors_blocked", "replay_file",
}  # fmt: skip


def check_whole_api(seen: dict[str, Any]) -> None:
    """Everything is served, or refused with an error that says what is missing."""
    answers = {name: value for name, value in seen.items() if isinstance(value, str)}
    assert len(answers) > 45
    refused = {name: message for name, message in answers.items() if message != "served"}
    assert refused.keys() <= REFUSED, {name: refused[name] for name in refused.keys() - REFUSED}
    for name, message in refused.items():
        unnamed = [word for word in ("not known", "bad_cast", "Error:", "rpc_error") if word in message]
        assert not unnamed, f"{name}: {message}"
    assert seen["batch"] == {}
    assert seen["finite"] is True

    lidar, front_m = seen["lidar"], seen["front"]
    assert lidar["points"] == lidar["per_channel"] > 1000
    assert lidar["ground_z"] == pytest.approx(-1.6, abs=0.05)
    assert lidar["ahead"] == pytest.approx(front_m, abs=0.05)
    assert 0.7 < lidar["intensity"][0] < lidar["intensity"][1] < 1.0
    (_, tag), *others = seen["semantic"]
    assert (tag, others) == (Label.TRUCK, [])
    assert seen["radar"]["still"] == pytest.approx(0.0, abs=1e-3)
    assert 2.0 < seen["radar"]["depth"] < front_m
    assert seen["obstacle"] == [True, True, pytest.approx(front_m - 0.5, abs=0.05)]

    assert seen["gain"] == pytest.approx(0.2)
    assert seen["physics"] == [2500.0, pytest.approx(1.75), pytest.approx(30.0)]
    count, name, labelled = seen["buildings"]
    assert count > 10
    assert name.startswith("building_")
    assert labelled is True
    assert seen["boxes agree"] is True
    assert seen["names"] >= count
    assert seen["cast_ray"] == [[True, False], [False, True]]  # the roof of the car, then the road
    assert seen["ground_projection"] == pytest.approx(1.48, abs=0.05)
    assert seen["nothing above"] is True
