"""Scenarios of Bench2Drive's names and route format, run through the `carla` client.

`engine` runs those of one route, `registry` knows them by name; a scenario is a script over `stage` (what can be done),
`places` (lanes and junctions) and `behaviours` (who drives and walks how). What each one does, its distances and its
times are those of Bench2Drive 0.0.4's scenario_runner; where ours differ, the class says so.
"""
