"""Accelerators that are not there: their graphs, streams and attention libraries, run on the CPU.

The arithmetic is real, and so are the rules: what a device or library documents as forbidden raises `StandInError`.
What they cannot tell: whether a kernel exists, its rounding, and its speed.
"""
