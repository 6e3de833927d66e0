"""Towns by name: the shipped ones, those of a folder, and one from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wamdiff2_core.errors import UserError, did_you_mean

SHIPPED_FOLDER = Path(__file__).resolve().parents[1] / "towns"
DEFAULT_TOWN = "Wamtown01"


@dataclass(frozen=True)
class TownLibrary:
    """OpenDRIVE files by town name, which is the file's name without its suffix.

    Attributes:
        folder: where further towns lie; they go before shipped ones of the same name.
        file: one more file, before all others.
    """

    folder: Path | None = None
    file: Path | None = None

    def __post_init__(self) -> None:
        if self.folder is not None and not self.folder.is_dir():
            raise UserError("--maps", "a folder of .xodr files", str(self.folder))
        if self.folder is not None and not any(self.folder.glob("*.xodr")):
            deeper = sorted({str(path.parent) for path in self.folder.glob("*/**/*.xodr")})
            fix = f"some lie in {deeper[0]}" if deeper else ""
            raise UserError("--maps", "a folder of .xodr files", f"{self.folder} without any", fix)
        if self.file is not None and not self.file.is_file():
            raise UserError("--map", "an OpenDRIVE file", str(self.file))

    def names(self) -> list[str]:
        """Names of all towns, sorted."""
        return sorted(self._files())

    def find(self, name: str, field: str = "town") -> Path:
        """File of a town; of a path-like name such as `/Game/Carla/Maps/Town01` the last part counts, as in CARLA.

        Args:
            name: of the town.
            field: what an error calls it: the option that named it.

        Raises:
            UserError: no such town.
        """
        files, wanted = self._files(), name.rsplit("/", 1)[-1]
        if wanted not in files:
            if wanted.endswith(".xodr"):
                fix = "give a file with --map"
            else:
                fix = f"{wanted}.xodr would be found in a folder that the server is given as --maps; "
                fix += did_you_mean(wanted, files)
            raise UserError(field, "the name of a town", name, fix)
        return files[wanted]

    def _files(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for folder in (SHIPPED_FOLDER, self.folder):
            if folder is not None:
                found.update({path.stem: path for path in sorted(folder.glob("*.xodr"))})
        if self.file is not None:
            found[self.file.stem] = self.file
        return found
