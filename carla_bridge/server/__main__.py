"""`python -m carla_bridge.server`: see `carla_bridge.server.command`."""

from carla_bridge.server.command import main

main()
