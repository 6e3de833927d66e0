"""Bench2Drive's own evaluator, unmodified and from its own checkout, run route by route with our agent file."""
