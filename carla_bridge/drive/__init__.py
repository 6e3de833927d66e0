"""One drive, from the first route to `results.json`: agent, world, recording and what the terminal says."""
