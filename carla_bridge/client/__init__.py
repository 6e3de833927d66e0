"""The `carla` client library in REP-103: starting and watching a server, sensors, surroundings, pedals."""
