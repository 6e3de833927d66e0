"""What every part of the world describes itself with: poses, lines, polygons, and the things of a scene."""
