"""From a plan to a vehicle command: pure pursuit and speed control, on the plan and the ego state only."""
