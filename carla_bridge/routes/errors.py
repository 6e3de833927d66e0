"""What goes wrong with a route; apart from the rest, so that naming it needs nothing else."""

from wamdiff2_core.errors import UserError


class RouteError(UserError):
    """One route cannot be driven here, which says nothing about the others."""
