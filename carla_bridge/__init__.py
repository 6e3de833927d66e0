"""The CARLA side: server, client, navigation, expert, closed loop."""
