"""What can be spawned: blueprints of vehicles, walkers, props and sensors, with their attributes."""
