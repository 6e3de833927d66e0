"""Every mutant still has its line: `make mutants` takes too long to be the first to tell."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.defect)
def test_the_line_that_is_broken_stands_there_once(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    file, _, test = mutant.tests.partition("::")
    assert (ROOT / file).is_file()
    assert not test or f"def {test}(" in (ROOT / file).read_text()
