"""Figures from decoded answers, one file a task; `training.evaluate` decodes and puts them together."""
