"""The `wamdiff2` command."""
