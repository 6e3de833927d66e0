"""Decoding: block diffusion and autoregressive, over one cached model."""

from wamdiff2_core.decode.generator import Generation, Generator

__all__ = ["Generation", "Generator"]
