"""What can be put behind the wheel: one protocol, `agent.Agent`, and what implements it."""
