from __future__ import annotations

import pickle

import pytest

from wamdiff2_core.errors import ExitCode, InfrastructureError, UserError, did_you_mean


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
