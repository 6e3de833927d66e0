"""Golden bytes, written out by hand from the protocol's layout."""

from __future__ import annotations

import pytest

from carla_bridge.server.protocol import wire
from carla_bridge.server.protocol.wire import SensorType, TrafficLightState

ONE, TWO, HALF = "0000803f", "00000040", "0000003f"  # float32 1, 2, 0.5
ZERO4 = "00000000"


def test_token_is_24_bytes_of_stream_port_tcp_ipv4_address() -> None:
    assert wire.stream_token(7, "127.0.0.1", 2001).hex() == "07000000" + "d107" + "01" + "01" + "7f000001" + "00" * 12


def test_sensor_header_is_48_bytes_of_type_frame_time_and_pose() -> None:
    header = wire.sensor_header(SensorType.CAMERA_RGB, 258, 1.5, ((1.0, 2.0, 0.5), (0.0, 1.0, 2.0)))
    expected = "0d00000000000000" + "0201000000000000" + "000000000000f83f" + ONE + TWO + HALF + ZERO4 + ONE + TWO
    assert header.hex() == expected
    assert len(header) == 48


def test_image_body_is_size_fov_and_pixels() -> None:
    assert wire.image_body(2, 1, 1.0, b"abcdefgh").hex() == "02000000" + "01000000" + ONE + b"abcdefgh".hex()


def test_image_body_refuses_missing_pixels() -> None:
    with pytest.raises(ValueError, match="expected 8 bytes"):
        wire.image_body(2, 1, 90.0, b"abc")


def test_world_state_header_is_36_bytes() -> None:
    body = wire.world_state_body(3, 1.5, 0.5, wire.MAP_CHANGED, b"")
    assert body.hex() == "0300000000000000" + "000000000000f83f" + HALF + "00" * 12 + "01000000"
    assert len(body) == 36


def test_vehicle_record_is_119_bytes_with_the_control_in_its_detail() -> None:
    control = [1.0, 0.5, 0.0, True, False, True, -1]
    detail = wire.vehicle_detail(control, 2.0, light=(9, TrafficLightState.RED))
    record = wire.actor_record(
        5, ((1.0, 0.0, 0.0), (0.0, 0.0, 2.0)), (1.0, 0.0, 0.0), (0.0, 0.0, 2.0), (0.5, 0.0, 0.0), detail
    )
    fixed = "05000000" + "01" + ONE + ZERO4 * 4 + TWO + ONE + ZERO4 * 4 + TWO + HALF + ZERO4 * 2
    union = ONE + HALF + ZERO4 + "010001" + "ffffffff" + TWO + "00" + "01" + "09000000" + "00"
    assert record.hex() == fixed + union + "00" * (54 - len(union) // 2)
    assert len(record) == 119


def test_vehicle_without_a_light_reports_green_and_none() -> None:
    detail = wire.vehicle_detail([0.0, 0.0, 0.0, False, False, False, 0], 50.0)
    assert detail[23] == TrafficLightState.GREEN
    assert detail[24] == 0


def test_walker_detail() -> None:
    assert wire.walker_detail((1.0, 0.0, 0.5), 2.0, True).hex() == ONE + ZERO4 + HALF + TWO + "01"


def test_envelopes() -> None:
    assert wire.value(5) == [[1, 5]]
    assert wire.value_error("no") == [[0, ["no"]]]
    assert wire.void() == [[False]]
    assert wire.void_error("no") == [[True, ["no"]]]


def test_stream_message_carries_its_length() -> None:
    assert wire.frame_message(b"abc") == b"\x03\0\0\0abc"
