"""Who touches whom: near pairs, impulses, and the order in which everybody moves in a tick."""
