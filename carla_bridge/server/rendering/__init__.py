"""Pictures: polygons of ground, actors and signals, projected, lit and painted."""
