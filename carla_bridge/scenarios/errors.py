"""What goes wrong with a scenario; apart from the rest, so that naming it needs no CARLA."""


class ScenarioError(RuntimeError):
    """A scenario cannot be set up or run on, so its route is void; the message says why."""
