"""The embedded world: a server that the unmodified `carla` client library (0.9.15 or 0.9.16) connects to.

It is no simulator of CARLA's fidelity: vehicles are bicycles on tyres with a limit, the camera is a simple renderer,
and its scores are never Bench2Drive scores. What it keeps is the protocol, the frames and units, the frame-by-frame
synchrony of sensors, and determinism. Everything in this folder is in CARLA's world: left-handed, x forward, y right,
z up, yaw clockwise seen from above, degrees; only the motion of vehicles is computed in radians.

Data flow: `protocol` (requests) -> `handlers` -> `world` (state, one tick) -> `sensors` and `rendering` -> `protocol`
(streams), all in one thread, an asyncio loop, so no state needs a lock. `app` ties the parts to ports. Folders stand
on each other in one direction only: `pyproject.toml` lists the layers, and the linter holds them.
"""
