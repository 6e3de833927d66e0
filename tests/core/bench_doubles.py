"""What tests of `wamdiff2 bench` share."""

from __future__ import annotations

from tests.core.doubles import EOS, MASK
from wamdiff2_core.bench import naive, subjects
from wamdiff2_core.bench.machine import Rates
from wamdiff2_core.config import DecodeConfig
from wamdiff2_core.decode import Generator
from wamdiff2_core.serving_record import ServingRecord

STATIC = DecodeConfig(8, 4, "low_confidence_static", max_new_tokens=14)
DYNAMIC = DecodeConfig(8, 8, "low_confidence_dynamic", 0.2, max_new_tokens=14)
RATES = Rates(bytes_per_s=1e10, flops_per_s=1e11)


def subject_of(model, prompts, decode=STATIC, new_tokens=14) -> subjects.Subject:
    return subjects.Subject("tiny", model, prompts, MASK, EOS, decode, None, 1.0, new_tokens)


def ours(model, prompt, config, eos=naive.NO_EOS):
    record = ServingRecord(mask_token_id=MASK, eos_token_id=eos)
    return Generator.of(model, None, record, enforce_record=False).generate([prompt], config)[0]
