"""The privileged expert: it knows the route and sees every actor, light and sign as they are. The teacher for data.

    road     the route as a strip: arc length and sideways distance of whatever is near it
    others   the other actors on that strip, and where they will be
    idm      how fast to go behind a leader, a stop line, or something that will cross
    rules    where the route's lights and stop signs ask to stop
    passing  leaving the route's line: around what stands on it, and out of an emergency vehicle's way
    agent    all of it together
"""
