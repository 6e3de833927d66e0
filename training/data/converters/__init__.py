"""Published data sets, as they lie on disk, to conversation files; images stay where they are.

Every module says which layout it reads, from where, and what it leaves out by rule. `common.Writer` counts both what is
left out by rule and what is broken.
"""
