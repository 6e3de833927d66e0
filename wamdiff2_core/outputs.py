"""Places for files: whether what a user names can be written to, and what is told when a disk takes no more.

A place that cannot be written to is wrong use and is told before any work; a disk that fails on the way is
infrastructure, and the message names the file.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wamdiff2_core.errors import UserError

# A full disk, a quota, the largest file that `ulimit -f` allows, and a disk that fails.
DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
# Safetensors and tokenizers, written in Rust, tell the error of the operating system in words only.
_RUST_ERRNO = re.compile(r"\bos error (\d+)|\bOs { code: (\d+)")


def cache_folder() -> Path:
    """Where files are kept that can be made anew: `wamdiff2` in XDG_CACHE_HOME, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wamdiff2"


def writable_folder(folder: Path, field: str) -> Path:
    """The folder, made where it is missing, in which a file can be written.

    Args:
        folder: may not exist yet.
        field: option or key that names it, for messages.

    Raises:
        UserError: it cannot be made, or nothing can be written there.
        OSError: the disk is full or fails; it names the folder.
    """
    try:
        with disk_errors_named(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as probe:
                probe.write(b"\0")
    except OSError as error:
        if error.errno in DISK_ERRNOS:
            raise
        raise _refusal(field, folder, error) from None
    return folder


def writable_file(file: Path, field: str) -> Path:
    """The path of a regular file that can be written, whether it exists or not; its folder is made.

    Args:
        file: may not exist yet.
        field: see `writable_folder`.

    Raises:
        UserError, OSError: see `writable_folder`; a device or a pipe is refused too, as it would be replaced by a file.
    """
    try:
        if file.is_dir():
            raise UserError(field, "a file", f"{file} (a folder)")
        if file.exists() and not file.is_file():
            raise UserError(field, "a file", f"{file} (a device, a pipe or a socket)")
        if file.exists() and not os.access(file, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:  # such as a name that is too long
        raise _refusal(field, file, error) from None
    writable_folder(file.parent, field)
    return file


@contextmanager
def disk_errors_named(path: Path) -> Iterator[None]:
    """Raise what a full or failing disk makes of the block as an `OSError` that names `path`.

    Python leaves the name out when it is a write that fails, and libraries have errors of their own.
    """
    try:
        yield
    except Exception as error:
        number = _errno_of(error)
        if number not in DISK_ERRNOS or getattr(error, "filename", None) is not None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def _refusal(field: str, path: Path, error: OSError) -> UserError:
    reason = (error.strerror or str(error)).lower()
    return UserError(field, "a place that can be written to", f"{path} (trying to write: {reason})",
                     "name another path")


def _errno_of(error: Exception) -> int:
    if isinstance(error, OSError):
        return error.errno or 0
    found = _RUST_ERRNO.search(str(error))
    return int(found[1] or found[2]) if found else 0
