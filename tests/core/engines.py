"""All that can run a model here, for tests that hold for each of them."""

from __future__ import annotations

from typing import Any

from wamdiff2_core.decode import Generator
from wamdiff2_core.model.backends import Backend, make_backend
from wamdiff2_core.model.backends.cpu import CpuBackend
from wamdiff2_core.serving_record import ServingRecord

ENGINES = ("eager", "cpu", "cpu-operators")  # the last one is `cpu` without a compiler


def make_engine(name: str, model: Any) -> Backend:
    """A backend for a stock model."""
    return CpuBackend(model, compiled=False) if name == "cpu-operators" else make_backend(name, model)


def engine_generator(name: str, model: Any, mask: int, eos: int, record: ServingRecord | None = None) -> Generator:
    """A generator on that backend; without a record, all decoding is allowed."""
    ids = ServingRecord(mask_token_id=mask, eos_token_id=eos)
    return Generator.of(
        model, None, record or ids, enforce_record=record is not None, backend=make_engine(name, model)
    )
