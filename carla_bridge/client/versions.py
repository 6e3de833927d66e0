"""Whether the installed `carla` library and a server go together, found out before anything can go wrong.

The library ends the whole process, without an exception, when the stream of a server of another version comes in:
each 0.9.15 and 0.9.16 does so with the other. The version is asked for before any stream is opened.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from wamdiff2_core.errors import UserError

LOG = logging.getLogger(__name__)
KNOWN = ("0.9.15", "0.9.16")
_told: set[tuple[str, str]] = set()


def check_versions(client: Any, where: str) -> None:
    """Tell of a mismatch between the library and a server; once in a process for each pair of versions.

    Args:
        client: a `carla.Client` that has not opened a world yet.
        where: address of the server, for the message.

    Raises:
        UserError: the two are known not to work together.
        RuntimeError: the server does not answer.
    """
    ours, theirs = client.get_client_version(), client.get_server_version()
    if _release(ours) == _release(theirs):
        return
    field, expected = "carla library", f"{theirs}, the version of the server at {where}"
    if _release(ours) in KNOWN and _release(theirs) in KNOWN:
        raise UserError(field, expected, ours, "their streams differ, and the library would end this process; use "
                        f"a server of {_release(ours)}, or a Python with carla {_release(theirs)}")
    if (ours, theirs) not in _told:
        _told.add((ours, theirs))
        LOG.warning("%s: expected %s, got %s; going on, but calls may fail", field, expected, ours)


def embedded_dialect() -> str:
    """The version in which an embedded server must speak to this process: that of the installed library.

    Raises:
        UserError: the embedded server does not speak it.
    """
    from importlib import metadata

    version = _release(metadata.version("carla"))
    if version not in KNOWN:
        raise UserError("carla library", " or ".join(KNOWN) + " for the embedded server", version,
                        f"install carla {KNOWN[-1]}")
    return version


def _release(version: str) -> str:
    """The release a version was built from: `0.9.16` for `0.9.16-3-gabc` too; anything else as it stands."""
    found = re.match(r"\d+\.\d+\.\d+", version)
    return found[0] if found else version
