from __future__ import annotations

import dataclasses
import math

import pytest

from wamdiff2_core.config import (
    REMASKING_STRATEGIES,
    CameraSpec,
    DecodeConfig,
    ImagePolicy,
    PlanningTask,
    TargetRule,
    parse,
)
from wamdiff2_core.errors import UserError
from wamdiff2_core.serving_record import ServingRecord


def test_published_decode_defaults():
    assert dataclasses.asdict(DecodeConfig()) == {
        "block_size": 32,
        "denoising_steps": 32,
        "strategy": "low_confidence_dynamic",
        "confidence_threshold": 0.9,
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "seed": 0,
        "max_new_tokens": 128,
        "grammar": "off",
        "deadline_ms": 0.0,
        "warm_start": "off",
        "prompt_reuse": "float32",
    }
    assert (ImagePolicy().min_pixels, ImagePolicy().max_pixels) == (12544, 1920 * 1080)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("block_size", 0, "block_size"),
        ("denoising_steps", 0, "denoising_steps"),
        ("strategy", "low_confidence", "strategy"),
        ("confidence_threshold", 1.5, "confidence_threshold"),
        ("confidence_threshold", -0.1, "confidence_threshold"),
        ("confidence_threshold", math.nan, "confidence_threshold"),
        ("temperature", -1.0, "temperature"),
        ("top_k", -1, "top_k"),
        ("top_p", 0.0, "top_p"),
        ("top_p", 1.01, "top_p"),
        ("max_new_tokens", 0, "max_new_tokens"),
    ],
)
def test_decode_values_out_of_range_are_refused_by_name(field, value, named):
    with pytest.raises(UserError) as caught:
        DecodeConfig(**{field: value})
    assert caught.value.field == named
    assert caught.value.got == value or value != value


@pytest.mark.parametrize("strategy", REMASKING_STRATEGIES)
def test_every_published_strategy_is_taken(strategy):
    assert DecodeConfig(strategy=strategy).strategy == strategy


def test_unknown_strategy_gets_a_suggestion():
    with pytest.raises(UserError, match="did you mean 'sequential'"):
        DecodeConfig(strategy="sequentiel")


def test_focal_length_sees_half_the_width_at_half_the_field_of_view():
    camera = CameraSpec(width_px=640, hfov_deg=70.0)
    assert math.degrees(math.atan(320 / camera.focal_px)) == pytest.approx(35.0)


@pytest.mark.parametrize(
    "build",
    [
        lambda: CameraSpec(width_px=0),
        lambda: CameraSpec(hfov_deg=180.0),
        lambda: ImagePolicy(min_pixels=0),
        lambda: ImagePolicy(min_pixels=100, max_pixels=99),
        lambda: PlanningTask(waypoints=0),
        lambda: PlanningTask(dt_s=0.0),
        lambda: PlanningTask(decimals=4),
    ],
)
def test_impossible_settings_are_refused(build):
    with pytest.raises(UserError):
        build()


def test_parse_builds_nested_classes_from_plain_json():
    record = parse(
        ServingRecord,
        {
            "block_sizes": [4, 8],
            "rig": [{"name": "left", "yaw_deg": 55}],
            "planning": {"target_rule": {"kind": "arc_length", "distances_m": [10, 20]}},
        },
        "x.json",
    )
    assert record.block_sizes == (4, 8)
    assert record.rig == (CameraSpec(name="left", yaw_deg=55.0),)
    assert record.planning == PlanningTask(target_rule=TargetRule("arc_length", (10.0, 20.0)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"block_size": [4]}, "x.json: block_size: expected a known key, got block_size; did you mean 'block_sizes'?"),
        (
            {"decode": {"bloc_size": 4}},
            "x.json: decode.bloc_size: expected a known key, got bloc_size; did you mean 'block_size'?",
        ),
        ({"rig": [{}, {"hfov": 90}]}, "x.json: rig.1.hfov: expected a known key, got hfov; did you mean 'hfov_deg'?"),
        (
            {"planning": {"target_rule": {"kinds": "plan_points"}}},
            "x.json: planning.target_rule.kinds: expected a known key, got kinds; did you mean 'kind'?",
        ),
        ({"label_alignment": "left"}, "x.json: label_alignment: expected 'shifted' or 'aligned', got left"),
        ({"rig": [{"hfov_deg": 200}]}, "x.json: rig.0.hfov_deg: expected in (0, 180), got 200.0"),
        (
            {"decode": {"block_size": 0}},
            "x.json: decode.block_size: expected an integer >= 1, got 0; published sizes: 4, 8, 16, 32",
        ),
    ],
)
def test_parse_names_the_nested_field_at_fault(data, message):
    with pytest.raises(UserError) as caught:
        parse(ServingRecord, data, "x.json")
    assert str(caught.value) == message


def test_parse_refuses_a_value_of_the_wrong_type_and_shows_it():
    with pytest.raises(UserError, match=r"x: images.max_pixels: expected .*integer.*, got many"):
        parse(ServingRecord, {"images": {"max_pixels": "many"}}, "x")
