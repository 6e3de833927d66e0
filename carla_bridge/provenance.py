"""What the outcome of a run depends on beside its arguments: the code, the versions and the maps.

A run that can be gone on with keeps them in its journal's first line, so that no half of it is made by something else.
"""

from __future__ import annotations

import hashlib
import importlib.util
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

PACKAGES = ("carla_bridge", "wamdiff2_core", "wamdiff2_ros")
KINDS = frozenset({".py", ".c", ".json", ".xml", ".xodr", ".yaml"})  # what a drive depends on
HASH_LENGTH = 12


def code_hash() -> str:
    """First digits of the SHA-256 over the files of `PACKAGES` that a drive depends on, by path."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for root in map(Path, (spec.submodule_search_locations if spec is not None else None) or ()):
            for path in sorted(path for path in root.rglob("*") if path.suffix in KINDS):
                digest.update(f"{package}/{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:HASH_LENGTH]


def versions_of(*distributions: str) -> dict[str, str]:
    """Versions of installed distributions by name, and Python's."""
    return {name: metadata.version(name) for name in distributions} | {"python": platform.python_version()}


def map_files(folder: Path | None, towns: Iterable[str]) -> dict[str, Path]:
    """The OpenDRIVE files of a folder that some towns are read from; the others are shipped ones, as the code."""
    files = [] if folder is None else [folder / f"{town}.xodr" for town in sorted(set(towns))]
    return {file.stem: file for file in files if file.is_file()}


def file_hashes(files: dict[str, Path]) -> dict[str, str]:
    """SHA-256 of files."""
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}
