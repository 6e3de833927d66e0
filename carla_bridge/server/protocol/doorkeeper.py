"""How many connections a port holds open: strangers who never say anything must not keep clients out."""

from __future__ import annotations

import logging
from typing import Protocol

LOG = logging.getLogger(__name__)
MAX_CONNECTIONS = 400  # two ports of this stay below the usual limit of 1024 open files


class Guest(Protocol):
    """A connection."""

    @property
    def loitering(self) -> bool:
        """Whether it has not yet said anything that makes sense."""

    def abort(self) -> None:
        """Close at once."""


class Doorkeeper:
    """Counts open connections; above the limit the one that has loitered longest goes, else the newcomer."""

    def __init__(self, limit: int = MAX_CONNECTIONS) -> None:
        self._limit = limit
        self._inside: dict[Guest, None] = {}  # in the order of arrival

    def enter(self, guest: Guest) -> None:
        """A connection was made."""
        self._inside[guest] = None
        if len(self._inside) > self._limit:
            leaving = next((other for other in self._inside if other.loitering), guest)
            LOG.warning("more than %d connections: one is closed", self._limit)
            self.leave(leaving)
            leaving.abort()

    def leave(self, guest: Guest) -> None:
        """A connection is gone."""
        self._inside.pop(guest, None)

    def close(self) -> None:
        """Close all that are left."""
        for guest in tuple(self._inside):
            guest.abort()
