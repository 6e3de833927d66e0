"""The planner in a process of its own, for agents whose Python is too old for the model stack."""
