"""Decoding: block diffusion and autoregressive, over one cached model."""

from wamdiff2_core.decode.generator import Generation, Generator
from wamdiff2_core.decode.trace import DecodeTrace

__all__ = ["DecodeTrace", "Generation", "Generator"]
