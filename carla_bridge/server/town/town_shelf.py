"""Towns that were read already: going back to one of the last few takes no time."""

from __future__ import annotations

from pathlib import Path

from carla_bridge.server.town.town import Town

KEPT_TOWNS = 3


class TownShelf:
    """Keeps the towns that were asked for last, as long as their files stay as they were."""

    def __init__(self) -> None:
        self._towns: dict[tuple[Path, int, int], Town] = {}  # by last use

    def load(self, path: Path) -> Town:
        """The town of an OpenDRIVE file.

        Raises:
            UserError: as `Town.load`.
        """
        try:
            state = path.stat()
        except OSError:
            return Town.load(path)  # which says what is wrong
        key = path.resolve(), state.st_mtime_ns, state.st_size
        town = self._towns.pop(key, None) or Town.load(path)
        self._towns[key] = town
        self._towns = dict(list(self._towns.items())[-KEPT_TOWNS:])
        return town
