"""A town from its OpenDRIVE: lanes, ground, junctions, bridges, signals, scenery."""
