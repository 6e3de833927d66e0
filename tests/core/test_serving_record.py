from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wamdiff2_core.config import (
    TASK_NAMES,
    CameraSpec,
    DecodeConfig,
    GroundingTask,
    ImagePolicy,
    PlanningTask,
    TargetRule,
)
from wamdiff2_core.errors import UserError
from wamdiff2_core.serving_record import RECORD_NAME, ServingRecord

NANO = ServingRecord(
    block_sizes=(4, 32),
    mask_token_id=5,
    eos_token_id=2,
    decode=DecodeConfig(block_size=32, max_new_tokens=64),
    planning=PlanningTask(decimals=1, input_decimals=1, target_rule=TargetRule("arc_length", (10.0, 20.0))),
    images=ImagePolicy((256, 128), 32768, 32768),
    rig=(CameraSpec(name="roof", z_m=2.5),),
    notes="ä line\nand another",
)
GENERALIST = ServingRecord(planning=PlanningTask(), tasks=TASK_NAMES, grounding=GroundingTask("curly"))



def recorded(planning: st.SearchStrategy, cameras: int) -> st.SearchStrategy:
    """Records with such a planning task and at most so many cameras."""
    spec = st.builds(CameraSpec, name=st.text(max_size=5), x_m=st.floats(-5, 5))
    return PARTS.flatmap(lambda record: st.builds(
        replace, st.just(record), planning=planning, rig=st.lists(spec, max_size=cameras).map(tuple)
    ))


PARTS = st.builds(
    ServingRecord,
    label_alignment=st.sampled_from(["shifted", "aligned"]),
    block_sizes=st.lists(st.integers(1, 64), min_size=1, max_size=4).map(tuple),
    mask_kind=st.sampled_from(["strict", "upstream"]),
    mask_token_id=st.integers(0, 2**18),
    decode=st.builds(DecodeConfig, block_size=st.integers(1, 64), temperature=st.floats(0, 2), seed=st.integers(0, 9)),
    images=st.builds(ImagePolicy, size_px=st.none() | st.tuples(st.integers(1, 99), st.integers(1, 99))),
    notes=st.text(max_size=20),
)
FORMS = st.builds(PlanningTask, decimals=st.integers(0, 3), y_axis=st.sampled_from(["left", "right"]))
records = recorded(st.none(), 3) | recorded(FORMS, 1)


@given(records | st.just(GENERALIST) | st.just(ServingRecord(tasks=("lingoqa",))))
def test_a_record_survives_its_file(tmp_path_factory, record):
    folder = tmp_path_factory.mktemp("record")
    record.save(folder)
    assert ServingRecord.load(folder) == record


def test_a_folder_without_a_record_has_none(tmp_path):
    assert ServingRecord.load(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"notes": ', "expected valid JSON"),
        ("[1]", "expected a JSON object, got list"),
        ('{"note": "x"}', "did you mean 'notes'"),
        ('{"tasks": ["lingoqa", "chess"]}', "tasks.1: expected 'planning', 'lingoqa', 'drivebench' or"),
        ('{"tasks": ["planning"]}', "planning: expected the planning task, as tasks name it, got null"),
        ('{"tasks": ["lingoqa"], "planning": {}}', "tasks: expected planning among them, as its form is given"),
        ('{"tasks": ["lingoqa"], "grounding": {}}', "tasks: expected grounding among them, as its form is given"),
        ('{"tasks": ["lingoqa", "lingoqa"]}', "tasks: expected each task once, got lingoqa, lingoqa"),
        ('{"grounding": {"quotes": "none"}}', "grounding.quotes: expected 'doubled', 'curly' or 'straight', got none"),
        ('{"planning": {"waypoints": 8}}', "planning.waypoints: expected 6, as the prompt bench2drive asks, got 8"),
        ('{"planning": {"dt_s": 0.25}}', "planning.dt_s: expected 0.5 s, as the prompt bench2drive asks, got 0.25"),
        ('{"planning": {"prompt": "navsim_upstream"}}', "planning.waypoints: expected 8, as the prompt navsim"),
        ('{"planning": {"prompt": "navsim_paper", "waypoints": 8}, "rig": [{}]}', "rig: expected 3, one camera for"),
        ('{"planning": {}, "rig": [{"name": "left"}, {"name": "right"}]}', "rig: expected 1, one camera for"),
        ('{"planning": {"input_decimals": 4}}', "planning.input_decimals: expected 0..3, got 4"),
        ('{"mask_kind": "soft"}', "mask_kind: expected 'strict' or 'upstream', got soft"),
    ],
)
def test_a_malformed_record_is_refused_with_its_path(tmp_path, text, message):
    (tmp_path / RECORD_NAME).write_text(text)
    with pytest.raises(UserError) as caught:
        ServingRecord.load(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path / RECORD_NAME) in str(caught.value)


def test_a_record_that_is_not_utf8_is_refused_with_its_path(tmp_path):
    (tmp_path / RECORD_NAME).write_bytes(b'{"notes": "\xe9"}')
    with pytest.raises(UserError, match=rf"{RECORD_NAME}: expected UTF-8 text, got byte 0xe9 at offset 11"):
        ServingRecord.load(tmp_path)


def test_the_file_is_plain_json_that_a_person_can_read(tmp_path):
    NANO.save(tmp_path)
    data = json.loads((tmp_path / RECORD_NAME).read_text())
    assert data["planning"]["target_rule"] == {"kind": "arc_length", "distances_m": [10.0, 20.0]}
    assert data["rig"][0]["name"] == "roof"


@pytest.mark.parametrize("block_size", [4, 32])
def test_trained_block_sizes_are_allowed(block_size):
    NANO.check_request(DecodeConfig(block_size=block_size))


@pytest.mark.parametrize("block_size", [1, 8, 16, 33])
def test_other_block_sizes_are_refused(block_size):
    with pytest.raises(UserError, match=r"block_size: expected one of \[4, 32\] \(trained\)"):
        NANO.check_request(DecodeConfig(block_size=block_size))


def test_aligned_weights_do_not_decode_autoregressively():
    with pytest.raises(UserError, match="needs weights trained with shifted labels"):
        NANO.check_request(DecodeConfig(strategy="autoregressive"))


def test_shifted_weights_decode_only_autoregressively_and_ignore_the_block_size():
    record = ServingRecord(label_alignment="shifted", block_sizes=(1,))
    record.check_request(DecodeConfig(strategy="autoregressive", block_size=32))
    with pytest.raises(UserError, match="only by 'autoregressive'"):
        record.check_request(DecodeConfig(strategy="sequential", block_size=1))


def test_all_else_of_decoding_may_be_chosen_for_a_request():
    """As the table in docs/decoding.md says; a field that is added has to be decided on here."""
    other = {
        "denoising_steps": 3, "confidence_threshold": 0.1, "temperature": 0.5, "top_k": 5, "top_p": 0.5, "seed": 7,
        "max_new_tokens": 9, "grammar": "task", "deadline_ms": 5.0, "warm_start": "previous", "prompt_reuse": "off",
    }
    assert {*other, "block_size", "strategy"} == {field.name for field in fields(DecodeConfig)}
    for name, value in other.items():
        assert value != getattr(NANO.decode, name)
        NANO.check_request(replace(NANO.decode, **{name: value}))
    for strategy in ("sequential", "low_confidence_static", "low_confidence_dynamic"):
        NANO.check_request(replace(NANO.decode, strategy=strategy))


def test_a_generalist_names_its_tasks_and_a_planner_needs_no_list():
    assert GENERALIST.trained_tasks == TASK_NAMES
    assert ServingRecord(planning=PlanningTask()).trained_tasks == ("planning",)
    assert ServingRecord().trained_tasks == ()


def test_a_task_outside_the_record_is_refused_unless_it_states_none():
    for task in TASK_NAMES:
        GENERALIST.check_task(task)
        ServingRecord().check_task(task)
    with pytest.raises(UserError, match=r"task: expected one of planning \(trained\), got lingoqa"):
        NANO.check_task("lingoqa")
