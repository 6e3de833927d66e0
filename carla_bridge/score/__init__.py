"""Scores from result files, without a server."""
