"""What lives in the world, one state each: vehicles, walkers, props, sensors, signals."""
