"""What both sides, client and embedded world, read from a `carla.Map`. Imports nothing of either."""
