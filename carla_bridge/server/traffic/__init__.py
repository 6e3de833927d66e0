"""Server-driven traffic: vehicles and walkers whose attribute `driver` is `server`.

`network` and `footpaths` are what they know of the town, `routes` where each vehicle is going, `sight` what stands in
its way, `right_of_way` who goes first, `following` how hard to accelerate, `drivers` and `strollers` the actors
themselves, `population` how an episode gets its background traffic, and `traffic` the whole.

Everything is in CARLA's world. Choices come from the world's seed and are made in the order of the actors, so an
episode repeats exactly.
"""
