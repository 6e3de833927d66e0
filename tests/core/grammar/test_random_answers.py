"""The benchmark that makes answers of random logits: few here, 100,000 by hand; and that it can tell a bad one."""

from __future__ import annotations

import pytest
import torch

from benchmarks import random_answers
from tests.conftest import ROOT

NANO = ROOT / "checkpoints" / "wamdiff2-nano"


@pytest.fixture(autouse=True)
def few(monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.setattr(random_answers, "ROWS", 10)
    yield
    torch.set_num_threads(threads)


def test_answers_of_random_logits_are_valid_in_every_form_and_block_size(capsys):
    assert random_answers.main(answers=1, checkpoint=NANO, seed=3) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 * 4 + 1
    assert lines[-1] == "240 answers, 0 not valid"


def test_an_answer_that_is_not_valid_is_told(monkeypatch, capsys):
    made = random_answers.answers_of

    def damaged(*arguments):
        return [ids[:-1] for ids in made(*arguments)]

    monkeypatch.setattr(random_answers, "BLOCK_SIZES", (32,))
    monkeypatch.setattr(random_answers, "answers_of", damaged)
    assert random_answers.main(answers=1, checkpoint=NANO, seed=3) == 1
    assert "60 answers, 60 not valid" in capsys.readouterr().out
