"""The privileged expert: it knows the route and sees every actor, light and sign as they are. The teacher for data.

    road         the route as a strip: arc length and sideways distance of whatever is near it
    others       the other actors on that strip, and where they will be
    idm          how fast to go behind a leader, a stop line, or something that will cross
    rules        where the route's lights and stop signs ask to stop
    lanes        the lanes beside the route, and who comes into them
    detour       a shift of the route to one side
    passing      leaving the route's line: around what stands on it, and out of an emergency vehicle's way
    keep_right   giving room to oncoming vehicles over the middle of the road
    agent        all of it together
"""
