"""Where torch is not installed, tests that need it are skipped at the import that asks for it, and say so."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

NEEDED_BY_MODELS = ("torch", "transformers")


class SkipMissing:
    """Last finder on the path: an import that no other finder satisfies, of a module that only models need, skips."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in NEEDED_BY_MODELS:
            pytest.skip(f"needs {name}, which is not installed for this Python", allow_module_level=True)
        return None


if any(importlib.util.find_spec(name) is None for name in NEEDED_BY_MODELS):
    sys.meta_path.append(SkipMissing())
