from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

from wamdiff2_core.errors import ExitCode, InfrastructureError, UserError, did_you_mean, unknown_name

ROOT = Path(__file__).resolve().parents[2]


def test_exit_codes_are_the_documented_ones():
    assert [int(code) for code in ExitCode] == [0, 1, 2, 3]
    assert UserError.exit_code == 2
    assert InfrastructureError.exit_code == 3


def test_user_error_names_field_expectation_finding_and_fix():
    error = UserError("block_size", "an integer >= 1", 0, "published sizes: 4, 8")
    assert str(error) == "block_size: expected an integer >= 1, got 0; published sizes: 4, 8"
    assert isinstance(error, ValueError)


def test_user_error_shows_strings_bare_and_other_values_by_repr():
    assert str(UserError("a", "b", "word")) == "a: expected b, got word"
    assert str(UserError("a", "b", (1, "x"))) == "a: expected b, got (1, 'x')"
    assert str(UserError("a", "b", "", "c")) == "a: expected b, got nothing; c"


def test_user_error_travels_between_processes():
    error = pickle.loads(pickle.dumps(UserError("device", "cpu or cuda", "tpu", "leave it out")))
    assert (str(error), error.field) == ("device: expected cpu or cuda, got tpu; leave it out", "device")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("sequental", "did you mean 'sequential'?"),
        ("zzz", "known: sequential, static"),
        ("", "known: sequential, static"),
    ],
)
def test_did_you_mean_gives_the_closest_word_or_all(word, hint):
    assert did_you_mean(word, iter(["sequential", "static"])) == hint


def test_an_unknown_name_lists_what_there_is_once():
    far, near = (unknown_name("mode", word, iter(["task", "off"])) for word in ("zzz", "tusk"))
    assert str(far) == "mode: expected one of task, off, got zzz"
    assert str(near) == "mode: expected one of task, off, got tusk; did you mean 'task'?"
    assert str(unknown_name("size", 3, ["4"], or_else="a folder")) == "size: expected one of 4, or a folder, got 3"


def test_no_error_lists_the_known_names_in_what_it_expects_and_in_its_fix():
    found = 0
    for package in ("wamdiff2_core", "wamdiff2_ros", "training", "carla_bridge"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "UserError"):
                    continue
                fixes = [call for fix in node.args[3:] for call in ast.walk(fix) if isinstance(call, ast.Call)]
                if any(getattr(call.func, "id", "") == "did_you_mean" for call in fixes):
                    found += 1
                    listed = any(getattr(part, "attr", "") == "join" for part in ast.walk(node.args[1]))
                    assert not listed, f"{file}:{node.lineno}: take unknown_name"
    assert found > 5
