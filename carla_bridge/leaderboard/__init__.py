"""CARLA's leaderboard as Bench2Drive 0.0.4 has it: criteria, infractions, and the records of its result files."""
