"""Decoding: block diffusion and autoregressive, over one cached model."""
